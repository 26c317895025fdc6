"""What a run of the tests is about to do and how long it takes, said at its start, and a line when a part is done.

A part is a folder of tests/ ("." are the files beside this one). PARTS has the seconds of each on 2 cores as they
were in a run of all by two processes with little beside it. HUGEWISE_RECORD_PARTS=1 prints what they took.

`make test` has two processes do them (`pytest -n 2 --dist loadgroup`): tests/conftest.py gives all that needs the host
to one of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

__all__ = ["Parts", "part"]

HERE = Path(__file__).parent
PARTS = {
    ".": 50, "advise": 306, "analysis": 27, "attempt": 21, "audit": 6, "cli": 54, "clients": 101, "deployment": 15,
    "external": 2, "fleet": 592, "fuzz": 63, "guests": 714, "host": 26, "inspection": 14, "machine": 17, "model": 1,
    "plan": 1, "policies": 1, "published": 1, "report": 256, "servers": 488, "session": 232, "stats": 89,
    "store": 13, "study": 3, "torture": 66, "verification": 55, "workloads": 22,
}  # fmt: skip


def part(path: Path) -> str:
    """The folder that a file of tests lies in; "." also for one that lies elsewhere."""
    return path.relative_to(HERE).parts[0] if HERE in path.parents[1:] else "."


def spent(seconds: float) -> str:
    """As a person says it: 40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class Parts:
    """The plugin of pytest that says so; not of a process that another one hands tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.processes = max(1, config.getoption("numprocesses", None) or 1)
        self.tests: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.took: defaultdict[str, float] = defaultdict(float)
        self.begin = time.monotonic()

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        if not items:  # other processes collect them
            return []
        host = sum(item.get_closest_marker(name) is not None for item in items for name in ("whole", "boots"))
        return self.collected((item.nodeid for item in items), host)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """Each process has collected the same tests; the first one's are told."""
        if not self.tests:
            for line in self.collected(ids, 0):
                self.say(line)

    def collected(self, names: Iterable[str], host: int) -> list[str]:
        """What is about to be done."""
        self.tests.update(map(self.part, names))
        return [
            f"{self.tests.total()} tests in {len(self.tests)} parts; they take about {spent(self.left())} on 2 cores.",
            f"{host} start runs, servers or guests (-m 'whole or boots'); page settings are turned, and put back.",
        ]

    def part(self, name: str) -> str:
        return part(self.config.rootpath / name.split("::", maxsplit=1)[0])

    def left(self) -> float:
        """Seconds, by what was recorded, of the tests that have not ended."""
        return (
            sum(PARTS.get(name, 0) * (1 - self.done[name] / all_) for name, all_ in self.tests.items()) / self.processes
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self.part(report.nodeid)
        self.took[name] += report.duration
        if report.when != "teardown":
            return
        self.done[name] += 1
        if self.done[name] == self.tests[name]:
            gone, left, took = (spent(s) for s in (time.monotonic() - self.begin, self.left(), self.took[name]))
            self.say(f"\n{name}: {self.tests[name]} tests done in {took} (gone {gone}, to go about {left})")

    def say(self, line: str) -> None:
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_line(line)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if os.environ.get("HUGEWISE_RECORD_PARTS") == "1":
            table = {name: round(seconds) or 1 for name, seconds in sorted(self.took.items())}
            terminalreporter.write_line(f"PARTS = {table}")
