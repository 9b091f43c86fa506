"""The stage of the campaign's story: an installation of its own, on which it shows and runs real commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from rich.text import Text

from backfill_assets.application import Application
from backfill_assets.cli.output import console, say
from backfill_assets.system import SystemUser
from demo.campaign_models import put_datasets
from demo.campaign_specification import APPROVER, StoryError
from demo.daemon import refuse_second_daemon

_FOREIGN = (
    "BACKFILL_ASSETS_WEBSERVER",
    "BACKFILL_ASSETS_SPARK_PORT",
    "BACKFILL_ASSETS_GATE_WAIT",
)
"""Settings of the checkout that the story must not inherit."""


@dataclass(frozen=True)
class Stage:
    """A folder with datasets, sources, tables, ledger and Dagster's home of its own; the working folder of the story."""

    folder: Path

    @property
    def datasets(self) -> Path:
        """The folder of the dataset folders."""
        return self.folder / "datasets"

    @property
    def log(self) -> Path:
        """The log of the daemon."""
        return self.folder / "state" / "daemon.log"

    @property
    def application(self) -> Application:
        """The application as the models are now."""
        return Application.from_env()

    def set_up(self) -> None:
        """Make this process and all that it starts work on the stage, and the stage empty.

        Raises:
            StoryError: the project's dagster.yaml is not where it should be.
            DaemonError: a daemon of an earlier story is still alive.
        """
        config = Path(os.environ.get("DAGSTER_HOME") or Path.cwd()) / "dagster.yaml"
        if not config.is_file():
            raise StoryError(f"{config} is missing; run the story in the project's folder, or set DAGSTER_HOME to it")
        content = config.read_bytes()
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(self._environment())
        for name in _FOREIGN:
            os.environ.pop(name, None)
        # Not the project's folder: Dagster would read the .env there and take the checkout's own home.
        os.chdir(self.folder)
        if (self.folder / "home" / "dagster.yaml").is_file():
            refuse_second_daemon()
            self.stop_spark()
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("home", "state/dagster", "backfills"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "home" / "dagster.yaml").write_bytes(content)
        put_datasets(self.datasets)
        self._write_environment()
        # Its storage is created before the daemon, the webserver and a launch could race for it.
        with dg.DagsterInstance.get():
            pass

    def stop_spark(self) -> None:
        """Stop the embedded server; a server of the user's own goes on."""
        if self.application.settings.spark_url is None:
            self.quietly("spark", "stop")

    def run(self, *arguments: str, refused: bool = False) -> None:
        """Show a command, run it, and show its output.

        Raises:
            StoryError: it was refused against expectation, or was not refused against expectation.
        """
        show_command("backfill", *arguments)
        code = subprocess.run(_command(arguments), stderr=subprocess.STDOUT, check=False).returncode
        if (code != 0) is not refused:
            raise StoryError(
                f"`backfill {shlex.join(arguments)}` ended with exit code {code}, but should "
                f"{'be refused' if refused else 'succeed'}; the log of the daemon: {self.log}"
            )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Show a command and start it; its output continues."""
        show_command("backfill", *arguments)
        return subprocess.Popen(_command(arguments), stderr=subprocess.STDOUT)

    def quietly(self, *arguments: str) -> str:
        """Run a command without showing it; returns its output.

        Raises:
            StoryError: it was refused.
        """
        done = subprocess.run(_command(arguments), capture_output=True, text=True, check=False)
        if done.returncode:
            raise StoryError(f"backfill {shlex.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def _environment(self) -> Mapping[str, str]:
        state = self.folder / "state"
        return {
            "DAGSTER_HOME": str(self.folder / "home"),
            "BACKFILL_ASSETS_STATE": str(state),
            "BACKFILL_ASSETS_DAGSTER_STATE": str(state / "dagster"),
            "BACKFILL_ASSETS_WAREHOUSE": str(state / "warehouse"),
            "BACKFILL_ASSETS_SPARK_FOLDER": str(state),
            "BACKFILL_ASSETS_SOURCES": str(state / "sources"),
            "BACKFILL_ASSETS_LEDGER_URL": f"sqlite:///{state / 'ledger.db'}",
            "BACKFILL_ASSETS_DATASETS": str(self.datasets),
            "BACKFILL_ASSETS_ROLES": f"{APPROVER}={SystemUser().name()}",
            # Days are small at this scale: a run takes all consecutive ones.
            "BACKFILL_ASSETS_CHUNK": "all",
            # Dagster warns of beta features; that does not help a reader of the story.
            "PYTHONWARNINGS": "ignore",
        }

    def _write_environment(self) -> None:
        lines = (f"export {name}={shlex.quote(value)}" for name, value in self._environment().items())
        (self.folder / "environment.sh").write_text("\n".join([*lines, ""]), encoding="utf-8")


def narrate(text: str) -> None:
    """A sentence of the story, with room above it."""
    console.print()
    say(text)


def show_command(program: str, *arguments: str) -> None:
    """Print a command as a user would type it."""
    console.print()
    console.print(Text(f"$ {program} {' '.join(map(_quoted, arguments))}", style="bold cyan"), soft_wrap=True)
    sys.stdout.flush()


def _quoted(argument: str) -> str:
    """The argument as people would quote it: in double quotes where it has single ones."""
    quotable = "'" in argument and not set(argument) & set('"$`!\\')
    return f'"{argument}"' if quotable else shlex.quote(argument)


def _command(arguments: tuple[str, ...]) -> list[str]:
    return [str(Path(sys.executable).with_name("backfill")), *arguments]
