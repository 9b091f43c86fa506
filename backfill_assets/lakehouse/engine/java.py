"""Find the Java that Spark will run on; one that is missing or too old is refused before anything starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from backfill_assets.core.errors import JavaError

LOWEST_JAVA: Final = 17
"""The oldest Java on which Spark 4 runs."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_REMEDY: Final = f"Install Java {LOWEST_JAVA} or newer, or set JAVA_HOME to the folder of one."


def require_java(environ: Mapping[str, str]) -> Path:
    """Give the `java` of `JAVA_HOME`, else of `PATH`; raises `JavaError` if it is missing or too old."""
    java = _find(environ)
    output = _version_output(java)
    match = _VERSION.search(output)
    if match is None:
        raise JavaError(f"{java} -version does not tell a Java version but {output.strip()[:200]!r}. {_REMEDY}")
    if int(match[1]) < LOWEST_JAVA:
        raise JavaError(f"{java} is Java {match[1]}, Spark needs {LOWEST_JAVA} or newer. {_REMEDY}")
    return java


def _find(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise JavaError(f"JAVA_HOME is {home}, but there is no program {java}. {_REMEDY}")
        return java
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaError(f"Java was not found: JAVA_HOME is not set and PATH has no java. {_REMEDY}")
    return Path(found)


def _version_output(java: Path) -> str:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} -version failed: {error}. {_REMEDY}") from error
    return done.stderr + done.stdout
