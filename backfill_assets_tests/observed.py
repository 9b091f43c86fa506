"""What each case of faults injected and what it found, printed at the end. Works as a pytest plugin."""

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
        """Say what is done to the system."""
        self.lines.append(("injected", text))

    def found(self, *what: object) -> None:
        """Say what came of it; of each only the first line."""
        self.lines.append(("found", "; ".join(str(part).splitlines()[0] for part in what if str(part)) or "nothing"))

    def weaker(self, why: str) -> None:
        """Say that this machine lets the case show less than it is for, what it does instead and what that would take."""
        self.lines.append((_WEAKER, why))


@pytest.fixture
def observed(request: pytest.FixtureRequest) -> Observed:
    """What this case injected and what it found."""
    return Observed(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it where only faults were asked for, or more than usual; of what failed as well.

    What was shown in a weaker way is printed after every run.
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
    # A case that passes by less than its name says is a hole in the proof, in CI as well.
    weaker = Counter(str(text) for report in said for kind, text in report.user_properties if kind == _WEAKER)
    if weaker:
        terminalreporter.section("shown in a weaker way: this machine does not let it be otherwise", yellow=True)
        for why, cases in sorted(weaker.items()):
            terminalreporter.line(f"{cases} {'case' if cases == 1 else 'cases'}: {why}")
