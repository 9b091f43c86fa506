"""Types a page of the documentation: every file, every command, on Dagster and Spark of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^(?:`(?P<file>[\w./-]+)`\n\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b([ur])_\d{8}_\d{6}_[0-9a-f]{6}\b")
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_NAMES = re.compile(r"\b[ur]_\d{8}_\d{6}_[0-9a-f]{6}\b|backfill [a-z]{8}\b|run [0-9a-f]{8}\b|\b[0-9a-f]{64}\b|[ \t]+")


class Reader:
    """Types what a page says, in its order; ids and hashes of evidence are those that the commands printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        self.environ = environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"}
        self.newest: dict[str, str] = {}
        self.hash = ""

    def typed(self, command: str) -> subprocess.CompletedProcess[str]:
        own = _ID.sub(lambda found: self.newest.get(found[1], found[0]), command).replace("HASH", self.hash)
        done = subprocess.run(
            ["bash", "-euc", f"cd {self.folder}; {own}"],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.newest |= {found[1]: found[0] for found in _ID.finditer(done.stdout)}
        self.hash = next(iter(_HASH.findall(done.stdout)), self.hash)
        return done

    @contextmanager
    def dagster(self) -> Iterator[None]:
        """`dagster dev` in the second terminal, at a free port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["bash", "-c", f"cd {self.folder}; exec dagster dev --port {port}"]
        log = (self.folder.parent / "dagster.log").open("a")
        with log, subprocess.Popen(words, env=self.environ, stdout=log, stderr=log, start_new_session=True) as started:
            try:
                yield
            finally:
                os.killpg(started.pid, signal.SIGINT)
                started.wait(60)

    def walk(self, blocks: Sequence[re.Match[str]], fails: str = "") -> None:
        """Write files, type commands, and find each line that the page shows in what the last command said.

        A command that begins with `fails` ends with the exit code 1, all others with 0.
        """
        said = ""
        for block in blocks:
            if block["file"]:
                path = self.folder / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["text"], encoding="utf-8")
            elif block["language"] == "console":
                done = self.typed(block["text"])
                said = done.stdout
                assert done.returncode == int(bool(fails) and block["text"].startswith(fails)), said
            else:
                assert block["language"] == "text"
                missing = [line for line in same(block["text"]) if line not in same(said)]
                assert missing == [], said


def same(text: str) -> list[str]:
    """The lines of an output, without what differs each time."""
    return [line for line in (_NAMES.sub(" ", line).strip() for line in text.splitlines()) if line]
