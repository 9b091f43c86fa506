"""How many examples Hypothesis tries."""

from __future__ import annotations

import os
from typing import Final

NIGHTLY_EXAMPLES: Final = 100
EXAMPLES: Final = int(os.environ.get("HOSTILE_EXAMPLES", "10"))
"""Examples of a hostile value: `make test` tries 10, `make test-all` 100, and HOSTILE_EXAMPLES=2000 is for a search."""


def examples(count: int) -> int:
    """So many examples, for a test whose examples take seconds; half of them in `make test`."""
    return count if EXAMPLES >= NIGHTLY_EXAMPLES else count // 2
