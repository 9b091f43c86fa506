"""The Python of a model runs from the bytes that its code version names, and from nothing else."""

from __future__ import annotations

import importlib
import linecache
import os
import pickle
import py_compile
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from backfill_assets.core.errors import ModelError
from backfill_assets.dataset import load
from backfill_assets.dataset.loaded import Language, LoadedDataset, Model, ModelLayer
from backfill_assets.dataset.models import find_model
from backfill_assets.dataset.running import running
from backfill_assets_tests.harness.dataset_folders import loaded, problems, python_dataset, write_dataset
from backfill_assets_tests.unit.dataset.conftest import Project

RATE = "from trip_rates import RATE\ndef fact(staging):\n    return RATE * staging\n"
Run = Callable[[str], Any]


def run(model: Model) -> Any:
    with running(model) as module:
        return module.fact(10)


@pytest.fixture
def run_text(tmp_path: Path) -> Run:
    """Loads a dataset with this fact model and runs it."""
    return lambda text: run(loaded(python_dataset(tmp_path / "datasets", text)).fact)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Removes the modules that Python itself has imported after each test."""
    before = set(sys.modules)
    yield
    left = {name for name in set(sys.modules) - before if name.partition(".")[0].startswith("trip")}
    for name in left:
        del sys.modules[name]


def test_a_stale_pyc_is_not_run(tmp_path: Path, project: Project) -> None:
    file = project({"trip_rates.py": "RATE = 1\n"}) / "trip_rates.py"
    at = file.stat()
    py_compile.compile(str(file))
    file.write_text("RATE = 2\n")
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert importlib.import_module("trip_rates").RATE == 1
    del sys.modules["trip_rates"]
    assert run(loaded(python_dataset(tmp_path, RATE)).fact) == 20


def test_modules_that_the_process_has_imported_before_are_neither_run_nor_touched(
    tmp_path: Path, project: Project
) -> None:
    project({"trip_rates.py": "RATE = 1\n"})
    before = importlib.import_module("trip_rates")
    project({"trip_rates.py": "RATE = 22\n"})
    names = set(sys.modules)
    assert run(loaded(python_dataset(tmp_path, RATE)).fact) == 220
    assert sys.modules["trip_rates"] is before
    assert set(sys.modules) == names


@pytest.mark.parametrize(
    "text", [RATE, "def fact(staging):\n    import trip_rates\n    return trip_rates.RATE * staging\n"]
)
def test_code_that_is_deployed_after_loading_is_not_run(tmp_path: Path, project: Project, text: str) -> None:
    home = project({"trip_rates.py": "RATE = 1\n"})
    folder = python_dataset(tmp_path, text)
    old = loaded(folder)
    project({"trip_rates.py": "RATE = 33\n"})
    new = loaded(folder)
    assert (run(old.fact), run(new.fact), run(old.fact)) == (10, 330, 10)
    assert old.code_version != new.code_version
    (home / "trip_rates.py").unlink()
    assert run(old.fact) == 10


def test_code_that_is_deployed_while_a_folder_is_loaded_is_not_hashed_in_its_place(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(rate: int) -> LoadedDataset:
        project({"trip_rates.py": f"RATE = {rate}\n"})
        return loaded(folder)

    def deployed(*arguments: Any) -> Any:
        found = find_model(*arguments)
        project({"trip_rates.py": "RATE = 2\n"})
        (folder / "staging.py").write_text(f"{staging}\n# deployed meanwhile\n", encoding="utf-8")
        return found

    staging = RATE.replace("fact(staging)", "staging(raw)").replace("* staging", "* raw")
    folder = python_dataset(tmp_path, RATE)
    (folder / "staging.sql").unlink()
    (folder / "staging.py").write_text(staging, encoding="utf-8")
    before = code(1)
    monkeypatch.setattr(load, "find_model", deployed)
    between = code(1)
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    after = loaded(folder)
    with running(between.staging_model) as module:
        assert module.staging(10) == 10
    assert run(between.fact) == 20
    assert len({before.code_version, between.code_version, after.code_version}) == 3


def test_line_ends_that_do_not_count_change_no_text(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path)
    (folder / "fact.sql").write_bytes(b"SELECT 'a\r\nb' AS city FROM staging\r\n")
    assert loaded(folder).fact.text == "SELECT 'a\nb' AS city FROM staging\n"


def test_two_versions_run_side_by_side(tmp_path: Path, project: Project) -> None:
    models = []
    for rate in (1, 2):
        project({"trip_rates.py": f"RATE = {rate}\ndef late():\n    import trip_late\n    return trip_late.RATE\n"})
        project({"trip_late.py": f"RATE = {rate}00\n"})
        text = "import trip_rates\ndef fact(wait):\n    wait()\n    return trip_rates.RATE, trip_rates.late()\n"
        models.append(loaded(python_dataset(tmp_path / str(rate), text.replace("wait", "staging"))).fact)
    both = Barrier(2, timeout=10)

    def one(model: Model) -> Any:
        with running(model) as module:
            both.wait()
            return module.fact(both.wait)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(one, models)) == [(1, 100), (2, 200)]


def test_nothing_is_left_from_one_run_to_the_next(tmp_path: Path, project: Project) -> None:
    project({"trip_cache.py": "SEEN = []\n"})
    text = (
        "import trip_cache\ndef fact(staging):\n    trip_cache.SEEN.append(staging)\n    return len(trip_cache.SEEN)\n"
    )
    model = loaded(python_dataset(tmp_path, text)).fact
    assert [run(model), run(model)] == [1, 1]


def test_a_file_of_the_project_with_the_name_of_a_module_of_python_is_refused(tmp_path: Path, project: Project) -> None:
    home = project({"tabnanny.py": "RATE = 1\n", "trip_rates.py": "import tabnanny\n", "pyclbr/__init__.py": ""})
    folder = python_dataset(tmp_path / "datasets", "import trip_rates, pyclbr\ndef fact(staging): ...")
    found = [str(problem) for problem in problems(folder)]
    assert len(found) == 2
    assert found[0].endswith(
        f"fact.py:1: imports pyclbr; {home}/pyclbr/__init__.py of the project has the name of a module of the standard "
        "library; rename it"
    )
    assert f"trip_rates.py:1: imports tabnanny; {home}/tabnanny.py" in found[1]


def test_a_file_that_python_took_for_its_own_module_is_refused_wherever_it_is_now(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project({"tabnanny.py": "RATE = 1\n"})
    text = "import tabnanny\ndef fact(staging):\n    return tabnanny.RATE\n"
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    assert importlib.import_module("tabnanny").RATE == 1
    (home / "tabnanny.py").unlink()
    (problem,) = problems(python_dataset(tmp_path / "datasets", text))
    assert f"{home}/tabnanny.py of the project" in str(problem)
    with pytest.raises(
        ModelError, match=r"line 1: imports tabnanny, but Python has imported the project's .*; rename that"
    ):
        run(Model(ModelLayer.fact, tmp_path / "fact.py", Language.python, text))


def test_a_module_of_python_that_the_project_shadows_after_loading_is_refused(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    model = loaded(python_dataset(tmp_path / "datasets", "def fact(staging):\n    import tabnanny\n")).fact
    project({"tabnanny.py": "RATE = 1\n"})
    with pytest.raises(ModelError, match=r"fact\.py, line 2: asks for '.*/tabnanny\..*pyc?' \(open\)"):
        run(model)


def test_python_finds_its_own_module_first_where_the_project_is_later_on_the_path(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project({"tabnanny.py": "RATE = 1\n"})
    monkeypatch.setattr(sys, "path", [*(place for place in sys.path if place != str(home)), str(home)])
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    text = "import tabnanny\ndef fact(staging):\n    return hasattr(tabnanny, 'RATE')\n"
    assert run(loaded(python_dataset(tmp_path, text)).fact) is False


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ("import json; return json.load(open(Path(__file__).with_name('rates.json')))", r"rates\.json"),
        ("return Path(__file__).with_name('rates.json').read_text()", r"rates\.json"),
        ("import os; return os.open('/etc/hostname', os.O_RDONLY)", "/etc/hostname"),
        ("import trip_table; return trip_table.rates()", r"rates\.json"),
        ("import sqlite3; return sqlite3.connect('rates.db')", r"rates\.db"),
        ("import subprocess; return subprocess.run(['cat', 'rates'])", "cat"),
        ("import urllib.request; return urllib.request.urlopen('http://127.0.0.1:9/rates')", r"127\.0\.0\.1"),
        ("import pydoc; return pydoc.locate('trip_unknown')", r"trip_unknown\."),
    ],
)
def test_a_file_beside_the_code_is_refused_even_if_the_refusal_is_caught(
    tmp_path: Path, project: Project, body: str, asked: str
) -> None:
    project(
        {
            "trip_table.py": "def rates():\n    import pathlib\n    return pathlib.Path('rates.json').read_bytes()\n",
            "rates.json": "[1]",
            "trip_unknown.py": "",
        }
    )
    for text in (
        f"from pathlib import Path\ndef fact(staging):\n    {body}\n",
        f"from pathlib import Path\ndef fact(staging):\n    try:\n        {body}\n    except Exception:\n        return 1\n",
    ):
        (tmp_path / "datasets").mkdir(exist_ok=True)
        folder = python_dataset(tmp_path / "datasets" / str(len(text)), text)
        (folder / "rates.json").write_text("[1]", encoding="utf-8")
        with pytest.raises(
            ModelError, match=rf"\.py, line \d: asks for .*{asked}.* make it a reference in dataset\.yaml"
        ):
            run(loaded(folder).fact)


@pytest.mark.parametrize(
    "body",
    [
        "__import__('trip_' + 'unknown')",
        "exec('import trip_unknown')",
        "eval(\"__import__('trip_unknown')\")",
        "exec('import trip_unknown', {})",
        "import builtins; builtins.__import__('trip_unknown')",
        "import trip_rates; exec('from trip_rates import unknown')",
        "import tripkit; exec('from tripkit import unknown')",
        "import tripkit; exec('import tripkit.unknown')",
        "import trip_star; trip_star.load()",
    ],
)
def test_a_module_under_a_name_that_is_made_up_is_refused(project: Project, run_text: Run, body: str) -> None:
    project(
        {
            "trip_unknown.py": "raise SystemExit('this was run')\n",
            "trip_rates.py": "",
            "tripkit/__init__.py": "",
            "tripkit/unknown.py": "raise SystemExit('this was run')\n",
            "trip_star.py": "def load():\n    exec('from tripkit.star import *')\n",
            "tripkit/star/__init__.py": "__all__ = ['unknown']\n",
            "tripkit/star/unknown.py": "raise SystemExit('this was run')\n",
        }
    )
    importlib.import_module("tripkit")
    error = ImportError if "trip_rates" in body else ModelError
    with pytest.raises(error, match=r"line \d: imports trip.*write one|cannot import name 'unknown'"):
        run_text(f"def fact(staging):\n    {body}\n")


@pytest.mark.parametrize("name", ["importlib", "importlib.resources", "pkgutil", "runpy"])
def test_an_import_by_name_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    (problem,) = problems(python_dataset(tmp_path, f"def fact(staging):\n    import {name}\n"))
    assert f"fact.py:2: imports {name}; it loads modules and files by names" in str(problem)


def test_a_file_beside_the_model_is_no_module_of_the_project(tmp_path: Path) -> None:
    folder = python_dataset(tmp_path, "import trip_beside\ndef fact(staging): ...")
    (folder / "trip_beside.py").touch()
    assert "fact.py:1: imports trip_beside; a model may import pyspark" in str(problems(folder)[0])


PACKAGE = {
    "tripkit/__init__.py": "LOADED = ['tripkit']\nfrom .rates import RATE\n__all__ = ['day', 'RATE']\n",
    "tripkit/rates.py": "from . import LOADED, circle\nLOADED.append('rates')\nRATE = 3\n",
    "tripkit/circle.py": "import tripkit.rates as back\nfrom tripkit import rates\nNAME = back.__name__ == rates.__name__\n",
    "tripkit/deep/day.py": "from ..rates import RATE\nfrom .. import deep\nfrom ..deep import week\nDAY = RATE + week.WEEK\n",
    "tripkit/deep/week.py": "WEEK = 7\n",
    "tripkit/day.py": "ONE = 1\n",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "import tripkit.deep.day\ndef fact(staging): return tripkit.deep.day.DAY, tripkit.LOADED",
            (10, ["tripkit", "rates"]),
        ),
        ("import tripkit.deep.day as day\ndef fact(staging): return day.DAY", 10),
        ("from tripkit.deep import day, week\ndef fact(staging): return day.DAY, week.WEEK", (10, 7)),
        ("from tripkit import circle\ndef fact(staging): return circle.NAME", True),
        ("from tripkit import day, RATE\ndef fact(staging): return day.ONE, RATE", (1, 3)),
        ("from tripkit import day as _\nfrom tripkit import *\ndef fact(staging): return day.ONE, RATE", (1, 3)),
        (
            "import os.path, xml.dom.minidom\ndef fact(staging): return os.path.sep, xml.dom.minidom.Node.TEXT_NODE",
            ("/", 3),
        ),
        ("from json import *\nfrom os import path\ndef fact(staging): return loads('1'), path.sep", (1, "/")),
        ("import builtins\ndef fact(staging): return builtins.max(1, staging)", 10),
    ],
)
def test_packages_work_as_in_python(project: Project, run_text: Run, text: str, expected: object) -> None:
    project(PACKAGE)
    assert run_text(text) == expected


def test_code_that_looks_up_its_own_module_finds_it(project: Project, run_text: Run) -> None:
    code = """
from __future__ import annotations
import pickle, sys, typing
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import ClassVar, NamedTuple
class Kind(Enum):
    day = 1
class Pair(NamedTuple):
    kind: Kind
@dataclass(frozen=True)
class Rate:
    many: ClassVar[int] = 3
    kind: Kind = Kind.day
    pairs: list[Pair] = field(default_factory=list)
def checked():
    rate = Rate(pairs=[Pair(Kind.day)])
    assert pickle.loads(pickle.dumps(rate)) == rate
    assert pickle._loads(pickle._dumps(rate)) == rate
    assert typing.get_type_hints(Rate)['kind'] is Kind
    return len(fields(Rate))
"""
    project({"tripkit/__init__.py": "", "tripkit/types.py": code})
    assert run_text(f"{code}from tripkit import types\ndef fact(staging): return checked(), types.checked()\n") == (
        2,
        2,
    )


def test_installed_packages_import_their_own_modules(tmp_path: Path) -> None:
    data = pickle.dumps(np.array([1, 2]))
    with running(
        loaded(python_dataset(tmp_path, "import pickle\ndef fact(staging): return pickle.loads(staging)\n")).fact
    ) as module:
        assert module.fact(data).tolist() == [1, 2]


def test_annotations_mean_what_the_model_says(run_text: Run) -> None:
    assert run_text("def other(x: int): ...\ndef fact(staging): return other.__annotations__['x']") is int


def test_what_python_brings_with_it_may_be_read_and_files_may_be_written(tmp_path: Path, run_text: Run) -> None:
    text = f"""
import datetime as dt, linecache, logging, random, traceback, warnings
from zoneinfo import ZoneInfo
def fact(staging):
    ZoneInfo.clear_cache()
    warnings.warn('seen', stacklevel=1)
    try:
        raise KeyError(1)
    except KeyError:
        logging.getLogger('trips').exception('seen')
        shown = traceback.format_exc()
    with open({str(tmp_path / "trips.log")!r}, 'w') as log:
        log.write('seen')
    zone = ZoneInfo('Europe/Berlin')
    return dt.datetime.strptime('2024-01-01', '%Y-%m-%d').astimezone(zone).year, "raise KeyError(1)" in shown
"""
    with pytest.warns(UserWarning, match="seen"):
        assert run_text(text) == (2024, True)


def test_a_model_is_the_text_that_was_read_and_a_module_what_its_encoding_says(project: Project, run_text: Run) -> None:
    home = project({})
    (home / "trip_latin.py").write_bytes("# coding: latin-1\nCITY = 'Köln'\n".encode("latin-1"))
    text = "# coding: latin-1\nimport trip_latin\ndef fact(staging): return trip_latin.CITY, 'Köln'\n"
    assert run_text(text) == ("Köln", "Köln")


def test_a_package_may_ask_for_its_version(project: Project, run_text: Run) -> None:
    project({"tripkit/__init__.py": "from importlib.metadata import version\nV = version('pyspark')\n"})
    assert run_text("import tripkit\ndef fact(staging): return tripkit.V.partition('.')[0]") == "4"


def test_spark_may_be_anywhere_on_the_path_of_python(
    project: Project, run_text: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    home = project({"pyspark/__init__.py": "", "pyspark/rates.py": "RATE = 7\n"})
    text = "def fact(staging):\n    from pyspark import rates\n    return rates.RATE, rates.__file__\n"
    assert run_text(text) == (7, str(home / "pyspark" / "rates.py"))
    for name in ("pyspark", "pyspark.rates"):
        del sys.modules[name]


def test_a_traceback_shows_the_line_that_ran(tmp_path: Path, project: Project) -> None:
    home = project({"trip_rates.py": "def rate():\n    raise KeyError('old')\n"})
    model = loaded(
        python_dataset(tmp_path, "import trip_rates\ndef fact(staging):\n    return trip_rates.rate()\n")
    ).fact
    project({"trip_rates.py": "# deployed meanwhile\n# and longer\n"})
    with pytest.raises(KeyError) as caught:
        run(model)
    linecache.checkcache()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (str(home / "trip_rates.py"), 2, "raise KeyError('old')")


def test_a_module_that_fails_is_tried_again_as_python_does(project: Project, run_text: Run) -> None:
    project(
        {
            "trip_fails.py": "from trip_count import SEEN\nSEEN.append(1)\nassert len(SEEN) > 1\n",
            "trip_count.py": "SEEN = []\n",
        }
    )
    text = "def fact(staging):\n    try:\n        import trip_fails\n    except AssertionError:\n        import trip_fails\n"
    assert run_text(f"{text}    return len(trip_fails.SEEN)\n") == 2


def test_a_module_of_this_project_runs_as_it_was_hashed(run_text: Run) -> None:
    text = "from backfill_assets.core import days\ndef fact(staging): return days.parse_days.__module__, days.__file__"
    module, file = run_text(text)
    assert module.endswith(".backfill_assets.core.days")
    assert module not in sys.modules
    assert Path(file).is_file()
