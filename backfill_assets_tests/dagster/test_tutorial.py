"""docs/tutorial.md, typed by a new user: every file, every command, on Dagster and Spark of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^(?:`(?P<file>[\w./-]+)`\n\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"\b([ur])_\d{8}_\d{6}_[0-9a-f]{6}\b")
_NAMES = re.compile(r"\b[ur]_\d{8}_\d{6}_[0-9a-f]{6}\b|backfill [a-z]{8}\b|run [0-9a-f]{8}\b|\b[0-9a-f]{64}\b|[ \t]+")


class Reader:
    """Types what the tutorial says, in its order; ids of units and releases are those that the commands printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("BACKFILL_", "DAGSTER_"))}
        self.environ = environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"}
        self.newest: dict[str, str] = {}

    def typed(self, command: str) -> subprocess.CompletedProcess[str]:
        own = _ID.sub(lambda found: self.newest.get(found[1], found[0]), command)
        done = subprocess.run(
            ["bash", "-euc", f"cd {self.folder}; {own}"],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.newest |= {found[1]: found[0] for found in _ID.finditer(done.stdout)}
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


def same(text: str) -> list[str]:
    """The lines of an output, without what differs each time."""
    return [line for line in (_NAMES.sub(" ", line).strip() for line in text.splitlines()) if line]


def test_a_new_user_gets_from_an_empty_folder_to_an_undone_correction(tmp_path: Path) -> None:
    blocks = list(_BLOCK.finditer((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    assert blocks[0]["text"] == "backfill init shop\n"
    assert blocks[1]["text"] == "dagster dev\n"
    assert Reader(tmp_path).typed("backfill init shop").returncode == 0
    reader = Reader(tmp_path / "shop")
    parts = [i for i, block in enumerate(blocks) if block["text"].startswith("backfill run returns")]
    try:
        for part in (blocks[2 : parts[0]], blocks[parts[0] :]):
            with reader.dagster():
                walk(reader, part)
    finally:
        reader.typed("backfill spark stop")


def walk(reader: Reader, blocks: list[re.Match[str]]) -> None:
    said = ""
    for block in blocks:
        if block["file"]:
            path = reader.folder / block["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"], encoding="utf-8")
        elif block["language"] == "console":
            done = reader.typed(block["text"])
            said = done.stdout
            fails = block["text"].startswith("backfill run returns")
            assert done.returncode == int(fails), said
        else:
            assert block["language"] == "text"
            missing = [line for line in same(block["text"]) if line not in same(said)]
            assert missing == [], said
