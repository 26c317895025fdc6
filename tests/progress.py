"""What a run of the tests is about to do and how long it takes, said at its start, and a line a part as it goes on.

A part is a folder of tests/ ("." are the files beside this one). PARTS has the seconds of each on 2 cores with nothing
beside: scaled, from runs beside other work, to the 25 minutes of all. HUGEWISE_RECORD_PARTS=1 prints what they took.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

__all__ = ["Parts", "part"]

HERE = Path(__file__).parent
PARTS = {
    ".": 40, "advise": 180, "analysis": 60, "attempt": 30, "audit": 10, "cli": 35, "clients": 60, "deployment": 3,
    "external": 15, "fleet": 370, "fuzz": 90, "guests": 540, "host": 30, "inspection": 8, "machine": 10, "model": 5,
    "plan": 5, "policies": 10, "published": 2, "report": 60, "servers": 330, "session": 155, "stats": 130, "store": 5,
    "study": 15, "torture": 100, "verification": 60, "workloads": 40,
}  # fmt: skip


def part(path: Path) -> str:
    """The folder that a file of tests lies in; "." also for one that lies elsewhere."""
    return path.relative_to(HERE).parts[0] if HERE in path.parents[1:] else "."


def spent(seconds: float) -> str:
    """As a person says it: 40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Parts:
    """The plugin of pytest that says so."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[str] = Counter()
        self.took: defaultdict[str, float] = defaultdict(float)
        self.now, self.begin = "", time.monotonic()

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        self.tests.update(part(item.path) for item in items)
        whole, boots = (sum(item.get_closest_marker(name) is not None for item in items) for name in ("whole", "boots"))
        return [
            f"{len(items)} tests in {len(self.tests)} parts; whole, they take about {spent(self.left())} on 2 cores:",
            f"{whole} start runs of hugewise or servers; page settings are turned, and put back (-m whole),",
            f"{boots} boot a guest (-m boots)",
        ]

    def left(self) -> float:
        """Seconds, as they were recorded, of the parts that have not begun."""
        return sum(PARTS.get(name, 0) for name in self.tests if name not in self.took)

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        name = part(self.config.rootpath / location[0])
        if name != self.now:
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            assert reporter is not None
            if self.now:
                reporter.write_line("")
            self.now = name
            gone, left = spent(time.monotonic() - self.begin), spent(self.left())
            about = spent(PARTS.get(name, 0))
            reporter.write_line(f"{name}: {self.tests[name]} tests, about {about} (gone {gone}, to go about {left})")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[self.now] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if os.environ.get("HUGEWISE_RECORD_PARTS") == "1":
            table = {name: round(seconds) or 1 for name, seconds in self.took.items()}
            terminalreporter.write_line(f"PARTS = {table}")
