from __future__ import annotations

from pathlib import Path

import pytest

from backfill_assets.core.errors import JavaError
from backfill_assets.settings import Settings
from backfill_assets.spark.server import SparkServer
from backfill_assets.spark.start import require_java


def _java_home(folder: Path, says: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "says",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'java version "21" 2023-09-19 LTS',
        'openjdk version "25-ea" 2025',
    ],
)
def test_java_17_and_newer_are_taken_from_java_home(tmp_path: Path, says: str) -> None:
    home = _java_home(tmp_path / "jdk", says)
    assert require_java({"JAVA_HOME": str(home), "PATH": "/nowhere"}) == home / "bin" / "java"


def test_without_java_home_the_path_is_searched(tmp_path: Path) -> None:
    home = _java_home(tmp_path / "jdk", 'openjdk version "17.0.1"')
    assert require_java({"PATH": f"/nowhere:{home}/bin"}) == home / "bin" / "java"


@pytest.mark.parametrize(
    ("says", "found"), [('java version "1.8.0_392"', "Java 8,"), ('openjdk version "11.0.2"', "Java 11,")]
)
def test_an_old_java_is_refused_with_its_version_and_the_remedy(tmp_path: Path, says: str, found: str) -> None:
    home = _java_home(tmp_path / "jdk", says)
    with pytest.raises(JavaError, match=rf"{found} Spark needs 17.*JAVA_HOME"):
        require_java({"JAVA_HOME": str(home)})


def test_a_program_that_prints_no_version_is_refused(tmp_path: Path) -> None:
    home = _java_home(tmp_path / "jdk", "No Java runtime present, requesting install.")
    with pytest.raises(JavaError, match="No Java runtime present"):
        require_java({"JAVA_HOME": str(home)})


def test_a_missing_java_is_refused_with_the_remedy() -> None:
    with pytest.raises(JavaError, match="JAVA_HOME is not set and PATH has no java"):
        require_java({"PATH": "/nowhere"})


def test_a_java_home_without_java_is_refused_even_if_the_path_has_one(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match="JAVA_HOME is"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_the_server_checks_java_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java_home(tmp_path / "jdk", 'java version "1.8.0_392"')))
    server = SparkServer(Settings.from_env({"BACKFILL_ASSETS_STATE": str(tmp_path / "state")}))
    said: list[str] = []
    with pytest.raises(JavaError):
        server.ensure(said.append)
    assert said == [f"starting Spark, which takes a minute; its log: {server.folder.log}"]
    assert not server.folder.registration.exists()
    assert not server.folder.properties.exists()
