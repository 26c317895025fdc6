"""One test that this machine let down is done again, alone, when all others have ended.

That is a test whose guest was brought down by its emulator, or whose browser did not listen: the error has a type that
says so. An assertion is never done again, and two such tests in one run are red.
"""

import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from hugewise.errors import MachineError

__all__ = ["Again", "BrowserError", "noted"]


class BrowserError(Exception):
    """The browser did not begin to listen."""


def noted(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """What a `pytest_runtest_makereport` does beside: the report has the fault of the machine, where there is one."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, BrowserError) or (isinstance(error, MachineError) and error.emulator):
        report.fault = f"{type(error).__name__}: {error}".splitlines()[0]
    return report


class Again:
    """The plugin of the process that hands out the tests."""

    def __init__(self) -> None:
        self.failed: dict[str, str | None] = {}
        self.said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            fault = getattr(report, "fault", None)
            # With two failures of one test, such as of its end too, all must be the machine's.
            self.failed[report.nodeid] = fault if self.failed.get(report.nodeid, fault) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        faults = list(self.failed.items())
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or len(faults) != 1 or faults[0][1] is None:
            return
        name = faults[0][0].partition("@")[0]
        alone = [sys.executable, "-m", "pytest", "-q", name]
        done = subprocess.run(alone, cwd=session.config.rootpath, check=False)
        if done.returncode == 0:
            session.exitstatus = pytest.ExitCode.OK
        self.said = f"FLAKY {name}: {faults[0][1]} ({'passed' if done.returncode == 0 else 'failed'} alone)"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.said:
            terminalreporter.write_line(self.said)
