"""What each case of a fault injected and found, printed at the end. Works as a pytest plugin."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import pytest

_WEAKER: Final = "weaker"


@dataclass
class Observed:
    """Lines of a case for the report at the end."""

    lines: list[tuple[str, object]]

    def injected(self, text: str) -> None:
        """Report what is done to the system."""
        self.lines.append(("injected", text))

    def found(self, *what: object) -> None:
        """Report the results; only the first line of each."""
        self.lines.append(("found", "; ".join(str(part).splitlines()[0] for part in what if str(part)) or "nothing"))

    def weaker(self, why: str) -> None:
        """Report that this machine allows only a weaker case, what the case does instead, and what the full case needs."""
        self.lines.append((_WEAKER, why))


@pytest.fixture
def observed(request: pytest.FixtureRequest) -> Observed:
    """What this case injected and what it found."""
    return Observed(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it if only faults or verbose output were asked for, and for failed tests.

    Weaker cases are printed after every run.
    """
    ended = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    said = [report for report in ended if report.user_properties]
    if said and (config.option.markexpr == "faults" or config.option.verbose > 0):
        terminalreporter.section("faults injected, and what was found")
        for report in said:
            if report.failed:
                terminalreporter.line(f"   failed: {report.nodeid}", red=True)
            for kind, text in report.user_properties:
                terminalreporter.line(f"{kind:>9}: {text}")
    # A case that shows less than its name says is a hole in the proof, also in CI.
    weaker = Counter(str(text) for report in said for kind, text in report.user_properties if kind == _WEAKER)
    if weaker:
        terminalreporter.section("shown in a weaker way: this machine does not let it be otherwise", yellow=True)
        for why, cases in sorted(weaker.items()):
            terminalreporter.line(f"{cases} {'case' if cases == 1 else 'cases'}: {why}")
