"""Project modules that a Python model imports are part of the dataset's code, and nothing is run to find them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from backfill_assets.dataset.models import imports_of
from backfill_assets_tests.harness.dataset_folders import loaded, problems, python_dataset
from backfill_assets_tests.unit.dataset.conftest import Project

RUNS = "raise SystemExit('this was run')\n"


def modules(text: str) -> set[str]:
    found = imports_of(ast.parse(text), Path("fact.py")).modules
    return {name for name, module in found.items() if module.file is not None}


def foreign(text: str) -> list[str]:
    return [str(problem) for problem in imports_of(ast.parse(text), Path("fact.py")).foreign]


def test_the_text_of_an_imported_helper_is_part_of_the_code_version(tmp_path: Path, project: Project) -> None:
    home = project({"rates_of_trips.py": RUNS})
    folder = python_dataset(tmp_path, "from rates_of_trips import RATE\ndef fact(staging): ...")
    before = loaded(folder).code_version
    (home / "rates_of_trips.py").write_bytes(RUNS.replace("\n", "\r\n").encode())
    assert loaded(folder).code_version == before
    project({"rates_of_trips.py": f"{RUNS}RATE = 2\n"})
    after = loaded(folder).code_version
    assert after != before
    project({"rates_of_trips.py": RUNS, "unrelated_to_trips.py": ""})
    assert loaded(folder).code_version == before
    assert "rates_of_trips" not in sys.modules


def test_a_helper_of_a_helper_counts_wherever_it_is_imported(tmp_path: Path, project: Project) -> None:
    project(
        {
            "trip_one.py": "def f():\n    import trip_two\n",
            "trip_two.py": "import trip_three\n",
            "trip_three.py": "X = 1\n",
        }
    )
    folder = python_dataset(tmp_path, "import trip_one\ndef fact(staging): ...")
    before = loaded(folder).code_version
    project({"trip_three.py": "X = 2\n"})
    assert loaded(folder).code_version != before


@pytest.mark.parametrize(
    "text",
    [
        "if 0: ...\nelse:\n    import trip_one",
        "for x in ():\n    import trip_one\nelse: ...",
        "while 0: ...\nelse:\n    import trip_one",
        "try:\n    import trip_one\nfinally: ...",
        "try: ...\nexcept* ValueError:\n    import trip_one",
        "try: ...\nexcept ValueError: ...\nelse:\n    import trip_one",
        "try: ...\nfinally:\n    import trip_one",
        "with x:\n    import trip_one",
        "match x:\n    case 1: ...\n    case _:\n        import trip_one",
        "class A:\n    async def f():\n        async with x:\n            async for y in z:\n                import trip_one",
        "x = 1; import trip_one",
    ],
)
def test_no_block_hides_an_import(text: str, project: Project) -> None:
    project({"trip_one.py": ""})
    assert modules(text) == {"trip_one"}


def test_helpers_that_import_each_other_are_read_once(project: Project) -> None:
    project({"ring_one.py": "import ring_two\n", "ring_two.py": "import ring_one\n"})
    assert modules("import ring_one") == {"ring_one", "ring_two"}


def test_packages_above_a_module_and_relative_imports_count(project: Project) -> None:
    project(
        {
            "tripkit/__init__.py": RUNS,
            "tripkit/rates/__init__.py": "from ..common import f\n",
            "tripkit/rates/day.py": "from . import week\n",
            "tripkit/rates/week.py": "",
            "tripkit/common.py": "",
            "tripkit/unused.py": "",
        }
    )
    wanted = {"tripkit", "tripkit.rates", "tripkit.rates.day", "tripkit.rates.week", "tripkit.common"}
    assert modules("from tripkit.rates import day") == wanted
    assert modules("import tripkit.rates.day as d") == wanted
    assert "tripkit" not in sys.modules


def test_functions_of_a_package_that_is_only_passed_through_do_not_count(project: Project) -> None:
    project(
        {
            "lazykit/__init__.py": "def f():\n    import lazykit.heavy\n",
            "lazykit/light.py": "",
            "lazykit/heavy.py": "",
        }
    )
    assert modules("import lazykit.light") == {"lazykit", "lazykit.light"}
    assert modules("import lazykit.light\nfrom lazykit import f") == {"lazykit", "lazykit.light", "lazykit.heavy"}


def test_a_folder_without_init_is_a_package_as_well(project: Project) -> None:
    project({"loosekit/deep/day.py": ""})
    assert modules("from loosekit.deep import day") == {"loosekit.deep.day"}


def test_a_name_from_a_module_is_no_module(project: Project) -> None:
    project({"trip_names.py": "A = 1\n"})
    assert modules("from trip_names import A, B") == {"trip_names"}
    assert foreign("from trip_names import A, B") == []


def test_the_standard_library_and_spark_are_neither_read_nor_refused() -> None:
    text = "import math, os.path\nfrom pyspark.sql import functions as F"
    assert (modules(text), foreign(text)) == (set(), [])


def test_what_a_helper_imports_of_installed_packages_is_refused_at_its_line(tmp_path: Path, project: Project) -> None:
    project({"trip_frames.py": "import math\nimport pandas\n"})
    folder = python_dataset(tmp_path, "import trip_frames\ndef fact(staging): ...")
    (problem,) = problems(folder)
    assert str(problem).endswith(
        "trip_frames.py:2: imports pandas; a model may import pyspark, the standard library and modules of its own project"
    )


def test_modules_of_this_project_count_with_their_text_once_a_model_imports_them() -> None:
    text = "from backfill_assets.core import days"
    found = modules(text)
    assert {
        "backfill_assets",
        "backfill_assets.core",
        "backfill_assets.core.days",
        "backfill_assets.core.errors",
    } <= found
    assert not any(name.startswith("backfill_assets.orchestration") for name in found)
    assert foreign(text) == []


def test_a_helper_that_is_no_python_still_counts_with_its_text(project: Project) -> None:
    project({"trip_broken.py": "def (:\n"})
    assert modules("import trip_broken") == {"trip_broken"}
