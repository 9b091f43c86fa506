"""Extracts by a Python file: the documented example against a real server, and everything that such a file can do wrong."""

from __future__ import annotations

import datetime as dt
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from backfill_assets.core.errors import BackfillError, SourceError
from backfill_assets.storage.bucket import bucket_of
from backfill_assets.storage.disk import path_of
from backfill_assets_tests.full_disk import LIMITED, NO_DISK, TMPFS, full, small_disk
from backfill_assets_tests.harness.waiting import wait_for
from backfill_assets_tests.observed import Observed
from backfill_assets_tests.unit.extracts.kit import D1, D2, file_of, names_in, orders, rows_in, take
from backfill_assets_tests.unit.hostile.watch import showable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
FILE = {"file": "extract.py"}
ONE = """\
from decimal import Decimal
import datetime as dt
ROW = {'id': 1, 'at': dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC), 'amount': Decimal(5)}
"""


class Shop(BaseHTTPRequestHandler):
    """Three orders a day on two pages; each second request is answered with: come back later."""

    asked = 0

    def do_GET(self) -> None:
        Shop.asked += 1
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if self.headers["Authorization"] != "Bearer t0ken":
            self.send_error(401)
        elif Shop.asked % 2:
            self.send_response(429)
            self.send_header("Retry-After", "0")
            self.end_headers()
        else:
            first = int(query["page"]) == 1
            ids = (1, 2) if first else (3,)
            found = [{"id": n, "ordered_at": f"{query['day']}T0{n}:00:00+01:00", "amount": f"{n}.50"} for n in ids]
            content = json.dumps({"orders": found, "next_page": 2 if first else None}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    monkeypatch.setenv("SHOP_URL", f"http://127.0.0.1:{serving.server_port}")
    monkeypatch.setenv("SHOP_TOKEN", "t0ken")
    yield
    serving.shutdown()
    serving.server_close()


def documented() -> str:
    (example,) = re.findall(
        r"^```python\n(import datetime.*?)^```$", (ROOT / "docs" / "sources.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(example)


def test_the_documented_example_reads_all_pages_of_a_busy_server(
    server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": "long", "ordered_at": "timestamp", "amount": "decimal(12,2)"}
    application = orders(tmp_path, FILE, documented(), columns=columns)
    take(application, D1, D2)
    for day in (D1, D2):
        noon = dt.datetime.combine(day, dt.time(), dt.UTC)
        assert rows_in(application, day) == [
            {"id": n, "ordered_at": noon + dt.timedelta(hours=n - 1), "amount": Decimal(n) + Decimal("0.5")}
            for n in (1, 2, 3)
        ]
    monkeypatch.setenv("SHOP_TOKEN", "wr0ng")
    with pytest.raises(
        SourceError, match=r"orders 2024-03-01: source.extract: extract.py, line \d+: HTTPError: 401"
    ) as caught:
        take(application, D1)
    assert "wr0ng" not in str(caught.value)
    assert len(rows_in(application, D1)) == 3


@pytest.mark.faults
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("def extract(day):\n  return [ROW, 5]", "row 2 is a int; return a mapping"),
        ("def extract(day):\n  return [dict(ROW, more=1)]", "row 1 has id, at, amount, more; expected exactly id, at, amount"),
        ("def extract(day):\n  return [{'id': 1}]", "row 1 has id; expected exactly id, at, amount"),
        ("def extract(day):\n  return [dict(ROW, ID=2)]", "row 1 has id, at, amount, ID; expected exactly"),
        ("def extract(day):\n  return [dict(ROW, id='x')]", "row 1, column id: 'x' is no long"),
        ("def extract(day):\n  pass", "extract returned a NoneType"),
        ("def extract(day):\n  return ROW", "extract returned a dict"),
        ("def fetch(day):\n  return []", "there is no function extract"),
        ("def extract(:", "extract.py: SyntaxError"),
        ("def extract(day):\n  yield ROW\n  raise OSError('https://api?key=s3cret is down')", "line 6: OSError: .*is down"),
        ("import sys\ndef extract(day):\n  yield ROW\n  sys.exit(0)", "line 7: SystemExit: 0"),
        ("import os\ndef extract(day):\n  yield ROW\n  os._exit(0)", "its process has ended with exit code 0"),
        ("import os\ndef extract(day):\n  yield ROW\n  os.abort()", "its process has ended with exit code -6"),
        ("import os\ndef extract(day):\n  yield ROW\n  os._exit(3)", ""),
        ("import os\ndef extract(day):\n  yield ROW\n  os._exit(4)", "its process has ended with exit code 4"),
        ("import os\ndef extract(day):\n  yield from [ROW] * 30000\n  os._exit(4)", "its process has ended with exit code 4"),
        ("def extract(day):\n  while True: yield ROW", "takes longer than its timeout, 3s"),
        ("def extract(day):\n  return [dict(ROW, amount=10**5000)]", "row 1, column amount: a very large int is no decimal"),
        ("def extract(day):\n  return [dict(ROW, **{'\\x1b[2J\\ud800': 1})]", r"row 1 has .*, \\x1b\[2J\\ud800; expected"),
        ("import time\ndef extract(day):\n  yield ROW\n  time.sleep(600)", "takes longer than its timeout, 8s"),
    ],
)  # fmt: skip
def test_a_file_that_fails_in_any_way_writes_nothing_and_says_why(
    tmp_path: Path, observed: Observed, script: str, message: str
) -> None:
    observed.injected(f"extract.py: {' '.join(script.split())}")
    limit = "8s" if "sleep" in script else "3s" if "while" in script else "10m"
    application = orders(tmp_path, {**FILE, "timeout": limit}, ONE + script)
    with pytest.raises(SourceError, match=f"(?s)orders 2024-03-01: source.extract: .*{message}") as caught:
        take(application, D1)
    showable(str(caught.value))
    assert "s3cret" not in str(caught.value)
    assert names_in(application) == []
    observed.found(caught.value)


MANY = """
import os, resource
def extract(day):
    if os.environ.get("NO_ROOM"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return (dict(ROW, id=number) for number in range(200_000))
"""


@pytest.mark.faults
@pytest.mark.parametrize("pages", [0, 16], ids=["none", "some"])
def test_a_disk_without_room_for_a_file_is_named_and_the_file_before_stays(
    tmp_path: Path, observed: Observed, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    application = orders(tmp_path, FILE, ONE + MANY)
    with small_disk() as (disk, kind):
        path_of(application.layout.sources).symlink_to(disk)
        file_of(application, D1).parent.mkdir(parents=True)
        file_of(application, D1).write_text("before", encoding="utf-8")
        observed.injected(f"{kind if kind == TMPFS else LIMITED}, with room for {pages} pages, while a file is written")
        if kind != TMPFS:
            observed.weaker(NO_DISK)
            monkeypatch.setenv("NO_ROOM", "1")
        with full(disk, kind, pages=pages) if kind == TMPFS else nullcontext():
            with pytest.raises(BackfillError, match=r"No space left on device|File too large") as refused:
                take(application, D1)
            assert file_of(application, D1).read_text(encoding="utf-8") == "before"
            assert set(names_in(application)) <= {"2024-03-01.parquet", "ballast"}
        if kind == TMPFS:
            take(application, D1)
            assert len(rows_in(application, D1)) == 200_000
        observed.found(
            str(refused.value).replace(str(disk), ""),
            "the file before is there; with room again, the same call writes all rows",
        )


def test_what_a_file_prints_is_no_part_of_what_a_command_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    take(orders(tmp_path, FILE, ONE + "def extract(day):\n  print('hello'); return [ROW]"), D1)
    assert capfd.readouterr().out == ""


def test_the_text_that_was_hashed_runs_whatever_is_on_disk_by_then(tmp_path: Path) -> None:
    application = orders(tmp_path, FILE, ONE + "def extract(day):\n  return [ROW]")
    (tmp_path / "datasets" / "orders" / "extract.py").write_text("def extract(day): return []", encoding="utf-8")
    take(application, D1)
    assert len(rows_in(application, D1)) == 1


HANGS = """
import sys, datetime as dt
from backfill_assets_tests.unit.extracts.kit import Extracts, Application, Settings
environ = {"BACKFILL_ASSETS_STATE": sys.argv[1], "BACKFILL_ASSETS_DATASETS": sys.argv[1] + "/datasets"}
Extracts(Application(Settings.from_env(environ)).warehouse).take("orders", [dt.date(2024, 3, 1)])
"""


def test_the_process_of_a_file_ends_with_the_worker(tmp_path: Path) -> None:
    application = orders(tmp_path, FILE, ONE + "import time\ndef extract(day):\n  yield ROW\n  time.sleep(600)")
    worker = psutil.Popen([sys.executable, "-c", HANGS, str(tmp_path)], stdout=subprocess.DEVNULL)
    wait_for(lambda: names_in(application), "the file to be begun", 60)
    (child,) = worker.children()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the process to end", 30)


def test_an_extract_into_a_bucket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = orders(tmp_path, FILE, "def extract(day):\n  return []")
    monkeypatch.setattr(application, "layout", replace(application.layout, sources=bucket_of("s3://lake/delivered")))
    told = r"^orders 2024-03-01: source\.extract: s3://lake/.*/2024-03-01\.parquet is in a bucket.*SOURCES to a folder"
    with pytest.raises(SourceError, match=told):
        take(application, D1)
