"""Bad input is a fault: `make test-faults` tries more of it than a run of the complete suite, and reports what it tried."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.faults)
            # The results have a thousand forms; the name of a test says what each of them must be.
            item.user_properties += [
                ("injected", f"bad input: {_words(item.path.stem)}"),
                ("sought", ascii(_words(item.name))[1:-1]),
            ]


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")
