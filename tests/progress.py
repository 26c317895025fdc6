"""What a run of the tests is about to do, said at its start, and a line when a part is done.

A part is a folder of tests/ ("." are the files beside this one). `make test` has two processes do them (`pytest -n 2
--dist loadgroup`): tests/conftest.py gives all that needs the host to one of them, and the other one does the rest.
PARTS has the seconds that each of them spends in each part, on 2 cores. HUGEWISE_RECORD_PARTS=1 prints what they took.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Parts", "part"]

HERE = Path(__file__).parent
GATE = "not soak"
PARTS = {
    ".": (2, 34), "advise": (31, 23), "analysis": (7, 34), "attempt": (1, 23), "audit": (0, 12), "cli": (34, 23),
    "clients": (22, 1), "deployment": (9, 3), "external": (0, 9), "fleet": (24, 87), "fuzz": (0, 31), "guests": (59,
    11), "host": (17, 6), "inspection": (8, 2), "machine": (8, 11), "model": (0, 1), "plan": (0, 1), "policies": (1,
    0), "published": (0, 0), "report": (0, 71), "results": (2, 19), "servers": (98, 39), "session": (69, 14), "stats":
    (0, 44), "store": (0, 9), "study": (0, 2), "torture": (20, 2), "verification": (0, 23), "workloads": (16, 5),
}  # fmt: skip
"""Of what `make test` does: the seconds of what needs the host, and of the rest."""


def part(path: Path) -> str:
    """The folder that a file of tests lies in; "." also for one that lies elsewhere."""
    return path.relative_to(HERE).parts[0] if HERE in path.parents[1:] else "."


def spent(seconds: float) -> str:
    """As a person says it: 40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def takes(names: Iterable[str]) -> float:
    """Seconds, by what was recorded, of the gate's tests in these parts: two processes end with the slower one."""
    known = [PARTS.get(name, (0, 0)) for name in names]
    return max(sum(host for host, _ in known), sum(rest for _, rest in known))


class Parts:
    """The plugin of pytest that says so; not of a process that another one hands tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.took: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.begin = time.monotonic()

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> str:
        return self.collected(item.nodeid for item in items) if items else ""  # other processes collect them

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """Each process has collected the same tests; the first one's are told."""
        if not self.tests:
            self.say(self.collected(ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Each process has left out the same tests; pytest's own last line has their number."""
        if error is None:
            self.reporter.stats["deselected"] = [node] * node.workeroutput.get("deselected", 0)

    def collected(self, names: Iterable[str]) -> str:
        """What is about to be done."""
        self.tests.update(map(self.part, names))
        whole = self.config.option.markexpr == GATE and self.config.getoption("numprocesses", None) == 2
        time_ = f"; they take about {spent(takes(self.tests))} on 2 cores" if whole else ""
        return f"{self.tests.total()} tests in {len(self.tests)} parts{time_}. Page settings are turned, and put back."

    def part(self, name: str) -> str:
        return part(self.config.rootpath / name.split("::", maxsplit=1)[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self.part(report.nodeid)
        self.took[name][not report.nodeid.endswith("@host")] += report.duration
        if report.when != "teardown":
            return
        self.done[name] += 1
        if self.done[name] == self.tests[name]:
            gone, took = spent(time.monotonic() - self.begin), spent(sum(self.took[name]))
            self.say(f"\n{name}: {self.tests[name]} tests done in {took} (gone {gone})")

    @property
    def reporter(self) -> pytest.TerminalReporter:
        found: pytest.TerminalReporter | None = self.config.pluginmanager.get_plugin("terminalreporter")
        assert found is not None
        return found

    def say(self, line: str) -> None:
        self.reporter.write_line(line)

    def pytest_terminal_summary(self) -> None:
        if os.environ.get("HUGEWISE_RECORD_PARTS") == "1":
            table = {name: tuple(map(round, seconds)) for name, seconds in sorted(self.took.items())}
            self.say(f"PARTS = {table}")
