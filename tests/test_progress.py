from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import progress
from tests.conftest import pytest_itemcollected
from tests.progress import HERE, PARTS, part, spent, takes

MAKE = (HERE.parent / "Makefile").read_text(encoding="utf-8")


def test_every_part_has_its_seconds() -> None:
    assert {part(path) for path in HERE.rglob("test_*.py")} == PARTS.keys()


def test_times_are_said_as_people_say_them() -> None:
    assert [spent(seconds) for seconds in (0.4, 89, 91, 1500)] == ["0 s", "89 s", "2 min", "25 min"]


class Item(SimpleNamespace):
    """A test as it is collected: where it lies, what it asks for, and its markers."""

    def add_marker(self, marker: Any) -> None:
        mark = getattr(pytest.mark, marker) if isinstance(marker, str) else marker
        self.marks[mark.name] = mark

    def get_closest_marker(self, name: str) -> object:
        return self.marks.get(name)


@pytest.mark.parametrize(
    ("asks", "marks", "alone"),
    [
        (["x86"], [], True),  # a guest is where others look for what a run left
        ([], ["boots"], True),
        (["unchanged"], [], True),
        ([], ["whole"], True),
        ([], ["looks"], True),
        ([], ["soak"], False),
        ([], [], False),
    ],
)
def test_what_needs_the_host_is_one_process_s(asks: list[str], marks: list[str], *, alone: bool) -> None:
    item: Any = Item(fixturenames=asks, marks={})
    for mark in marks:
        item.add_marker(mark)
    pytest_itemcollected(item)
    group = item.get_closest_marker("xdist_group")
    assert (group is not None and group.args == ("host",)) == alone


def test_the_time_is_that_of_the_slower_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PARTS", {"a": (100, 20), "b": (0, 50)})
    assert (takes(["a", "b"]), takes(["b"]), takes(["unknown"])) == (100, 50, 0)


@pytest.mark.whole  # for a moment it has the lock of the host, as any call of pytest here
def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    """By the Makefile's own words, in two processes."""
    words = next(line for line in MAKE.splitlines() if line.startswith("PYTEST := ")).split()[3:]
    environment = {**os.environ, "HUGEWISE_RECORD_PARTS": "1"}
    command = [sys.executable, "-m", "pytest", *words, "-m", "not soak", "-p", "no:cacheprovider"]
    command += ["tests/guests/test_pmu.py"]
    done = subprocess.run(command, check=False, cwd=HERE.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ tests in 1 parts; they take about \d+ (s|min) on 2 cores\.", done.stdout, re.MULTILINE)
    assert re.search(r"^1 passed, 1 deselected in ", done.stdout, re.MULTILINE), done.stdout
    assert "\nPARTS = {'guests': (" in done.stdout


def test_one_process_does_all_of_a_group(tmp_path: Path) -> None:
    """By the versions of pytest and xdist that are installed: some have no groups, and say nothing of it."""
    (tmp_path / "test_it.py").write_text(
        "import os, time, pytest\n"
        "@pytest.mark.parametrize('number', range(12))\n"
        "def test_free(number):\n"
        "    time.sleep(0.05)\n"
        "@pytest.mark.xdist_group('host')\n"
        "@pytest.mark.parametrize('number', range(12))\n"
        "def test_it(number):\n"
        "    time.sleep(0.05)\n"
        f"    with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "        file.write(f'{os.getpid()}\\n')\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "2", "--dist", "loadgroup"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no other plugin is of use here
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, env=environment)
    assert done.returncode == 0, done.stdout.decode()
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 12
    assert len(set(pids)) == 1
