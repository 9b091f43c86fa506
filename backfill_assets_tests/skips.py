"""Skipped tests: refused in CI, allowed with a reason elsewhere. Works as a pytest plugin."""

from __future__ import annotations

import os

import pytest

WITHOUT_REASON = ("", "unconditional skip")


def refused_skips(reports: list[pytest.TestReport], *, in_ci: bool) -> list[str]:
    """Lines that name each skipped or expectedly failing test which this place does not accept."""
    reasons = {report.nodeid: _reason(report) for report in reports}
    return [
        f"{nodeid}: {reason or 'no reason given'}"
        for nodeid, reason in sorted(reasons.items())
        if in_ci or reason in WITHOUT_REASON
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    # In CI a skip is a hole in the proof that a green light hides.
    looks_fine = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    if looks_fine and _refused(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = _refused(config)
    if lines:
        where = "in CI every test has to run" if _in_ci() else "a skip needs a reason"
        terminalreporter.section(f"refused: {where}", red=True)
        for line in lines:
            terminalreporter.line(line)


def _refused(config: pytest.Config) -> list[str]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:
        return []
    reports = [*terminal.stats.get("skipped", []), *terminal.stats.get("xfailed", [])]
    return refused_skips(reports, in_ci=_in_ci())


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ").removeprefix("Skipped").strip()
    return str(report.longrepr)
