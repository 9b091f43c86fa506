"""What each case of faults injected and what it found, printed at the end. Works as a pytest plugin."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass
class Told:
    """Lines of a case for the report at the end."""

    lines: list[tuple[str, object]]

    def injected(self, text: str) -> None:
        """Say what is done to the system."""
        self.lines.append(("injected", text))

    def found(self, *what: object) -> None:
        """Say what came of it; of each only the first line."""
        self.lines.append(("found", "; ".join(str(part).splitlines()[0] for part in what if str(part)) or "nothing"))


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Told:
    """What this case injected and what it found."""
    return Told(request.node.user_properties)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it where only faults were asked for, or more than usual; of what failed as well."""
    ended = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    said = [report for report in ended if report.user_properties]
    if said and (config.option.markexpr == "faults" or config.option.verbose > 0):
        terminalreporter.section("faults injected, and what was found")
        for report in said:
            if report.failed:
                terminalreporter.line(f"   failed: {report.nodeid}", red=True)
            for kind, text in report.user_properties:
                terminalreporter.line(f"{kind:>9}: {text}")
