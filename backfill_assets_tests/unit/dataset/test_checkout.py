"""Datasets as they are at a commit, read without touching the working folder."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from backfill_assets.core.errors import DatasetError
from backfill_assets.dataset.checkout import datasets_at
from backfill_assets_tests.harness.git import git

DATASET = """\
name: sales
partition_column: day
start: 2026-01-01
key: [id]
columns: {id: {type: long}, day: {type: date}}
source: {format: csv, path: "x/{day}.csv", columns: {id: long}}
"""


@pytest.fixture
def datasets(tmp_path: Path) -> Path:
    """A repository with one dataset, committed, and then changed in the working folder."""
    folder = tmp_path / "repository" / "models" / "datasets"
    home = folder / "sales"
    home.mkdir(parents=True)
    (home / "dataset.yaml").write_text(DATASET)
    (home / "staging.sql").write_text("SELECT id, day, _lineage FROM raw")
    (home / "fact.sql").write_text("SELECT id, day FROM staging")
    git(folder, "init", "-q", "-b", "main", str(tmp_path / "repository"))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (home / "fact.sql").write_text("SELECT id, day FROM staging WHERE id > 0")
    return folder


@pytest.fixture(params=["filters", "no filters"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python, and one before 3.11.4 whose tarfile has no filters."""
    if request.param == "no filters":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


pythons = pytest.mark.usefixtures("python")
without_filters = pytest.mark.filterwarnings("ignore:.*(extraction|extracted tar):DeprecationWarning")


@pythons
@without_filters
def test_the_datasets_of_a_commit_are_loaded_and_the_working_folder_stays_as_it_is(datasets: Path) -> None:
    for ref in ("HEAD", "main", git(datasets, "rev-parse", "HEAD")):
        with datasets_at(datasets, ref) as checkout:
            assert checkout.catalog.datasets["sales"].fact.text == "SELECT id, day FROM staging"
            assert (checkout.ref, checkout.commit) == (ref, git(datasets, "rev-parse", "HEAD"))
    assert git(datasets, "status", "--short").endswith("fact.sql")


def test_models_whose_modules_differ_at_that_commit_are_refused(
    datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = datasets.parent / "sales_kit" / "rates.py"
    module.parent.mkdir()
    module.write_text("RATE = 1\n")
    (datasets / "sales" / "fact.sql").unlink()
    (datasets / "sales" / "fact.py").write_text("from sales_kit import rates\ndef fact(staging): return rates.RATE\n")
    monkeypatch.syspath_prepend(str(datasets.parent))
    git(datasets, "add", "-A", "sales")
    git(datasets, "commit", "-qm", "imports what is not committed")
    refused = r"models import models/sales_kit/rates\.py, which differs at 'HEAD'; check out HEAD"
    with pytest.raises(DatasetError, match=refused), datasets_at(datasets, "HEAD"):
        pass
    git(datasets, "add", "-A", "..")
    git(datasets, "commit", "-qm", "the module")
    with datasets_at(datasets, "HEAD") as checkout:
        assert checkout.catalog.datasets["sales"].fact.modules["sales_kit.rates"].content == b"RATE = 1\n"
    module.write_text("RATE = 2\n")
    with pytest.raises(DatasetError, match=refused), datasets_at(datasets, "HEAD"):
        pass


@pytest.mark.parametrize("ref", ["no-such-branch", "HEAD:models"])
def test_what_is_no_commit_is_refused(datasets: Path, ref: str) -> None:
    with pytest.raises(DatasetError, match=r"this clone has no such commit"), datasets_at(datasets, ref):
        pass


def test_a_commit_without_the_folder_is_refused(datasets: Path) -> None:
    git(datasets, "rm", "-rqf", "--cached", ".")
    git(datasets, "commit", "-qm", "gone")
    with pytest.raises(DatasetError, match="models/datasets does not exist at 'HEAD'"), datasets_at(datasets, "HEAD"):
        pass


def test_a_folder_outside_of_git_and_a_machine_without_git_are_refused(
    datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(DatasetError, match="is not in a git repository"), datasets_at(outside, "HEAD"):
        pass
    monkeypatch.setenv("PATH", str(outside))
    with pytest.raises(DatasetError, match="git cannot be run"), datasets_at(datasets, "HEAD"):
        pass


@pythons
@without_filters
@pytest.mark.parametrize("target", ["/etc/passwd", "../../../.."])
def test_a_folder_with_a_link_that_leads_out_of_it_is_refused(datasets: Path, target: str) -> None:
    (datasets / "sales" / "more.sql").symlink_to(target)
    git(datasets, "add", "-A")
    git(datasets, "commit", "-qm", "a link")
    with pytest.raises(DatasetError, match="cannot be unpacked"), datasets_at(datasets, "HEAD"):
        pass
