"""/proc/PID/stat: its fields, names that look like fields, and processes that have ended."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise import processes
from hugewise.processes import parse_stat
from tests.build import known
from tests.build.hosts import stat_text
from tests.wait import until


@pytest.mark.parametrize("name", ["a", "", "a b", ") S 9 (b", "a) Z 1 1 1", "((", "a\nb", "名"])
def test_the_fields_are_those_behind_a_name_of_any_characters(name: str) -> None:
    stat = parse_stat(stat_text(7, name, "D", 3, flags=0x40, cutime=-1, num_threads=2, starttime=10**18, rss=5))
    assert stat is not None
    assert stat[:5] == (7, name, "D", 3, 0x40)
    assert (stat.cutime, stat.num_threads, stat.starttime, stat.rss) == (-1, 2, 10**18, 5)


@pytest.mark.parametrize("text", ["", "7", "7 (x)", "7 (x) S 1 1 1", "7 x S 1", stat_text(7).replace(" S ", " S S ")])
def test_another_text_is_none(text: str) -> None:
    assert parse_stat(text) is None


def test_the_own_process_is_as_the_kernel_says_it_elsewhere() -> None:
    stat, use = processes.stat(Path("/proc/self")), resource.getrusage(resource.RUSAGE_SELF)
    assert stat is not None and not stat.has_ended
    assert (stat.pid, stat.ppid, stat.comm) == (os.getpid(), os.getppid(), Path("/proc/self/comm").read_text().rstrip())
    assert 0 < stat.minflt <= use.ru_minflt and stat.utime * processes.TICK <= use.ru_utime + 0.02
    # A thread of an earlier test may just be ending.
    tasks = Path("/proc/self/task")
    until(lambda: known(processes.stat(tasks.parent)).num_threads == len(list(tasks.iterdir())), "they agree")
    assert 0 < stat.rss * resource.getpagesize() <= use.ru_maxrss << 10


def test_a_zombie_has_ended_and_one_that_was_waited_for_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        folder = Path(f"/proc/{child.pid}")
        until(lambda: (stat := processes.stat(folder)) is not None and stat.has_ended, "it is a zombie")
    assert processes.stat(folder) is None
