"""What servers have begun, by what the kernel keeps of each process: of written files, and of real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise.attempt.under_test import count_children
from hugewise.host.local_host import LocalHost
from hugewise.host.network import tree
from tests.build.hosts import Files, stat_text
from tests.wait import until

EXECUTED, COPY = 0x400000, 0x400040


def host(*processes: tuple[int, int, int, int], ignored: str = "0000000000001000") -> Files:
    """Processes of a PID, flags, page faults of children that were waited for, and threads."""
    files = {}
    for pid, flags, faults, threads in processes:
        name = f"a ) b\n({pid}"
        files[f"/proc/{pid}/stat"] = stat_text(pid, name, flags=flags, cminflt=faults, num_threads=threads)
        files[f"/proc/{pid}/status"] = f"Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t{ignored}\n"
    return Files(files)


def test_a_server_alone_has_begun_nothing() -> None:
    found = count_children(host((7, EXECUTED, 0, 1)), [7], {7})
    assert found == {"forked": 0, "executed": 0, "threads": 0, "ended": 0}


def test_copies_programs_threads_and_children_that_are_gone_are_told_apart() -> None:
    several = host((7, EXECUTED, 0, 4), (8, COPY, 0, 1), (9, COPY, 12, 2), (10, EXECUTED, 0, 1))
    assert count_children(several, [7, 8, 9, 10], {7}) == {"forked": 2, "executed": 1, "threads": 4, "ended": 1}


@pytest.mark.parametrize("ignored", ["0000000000010000", "ffffffff", "", "x"])
def test_of_a_server_whose_children_vanish_nothing_is_known(ignored: str) -> None:
    assert count_children(host((7, EXECUTED, 0, 1), ignored=ignored), [7], {7}) == {}


def test_of_a_process_that_cannot_be_looked_at_nothing_is_known() -> None:
    assert count_children(host((7, EXECUTED, 0, 1)), [7, 8], {7}) == {}
    assert count_children(Files({"/proc/7/stat": "7 (x) S 1", "/proc/7/status": "SigIgn:\t0\n"}), [7], {7}) == {}
    assert count_children(Files(), [], set()) == {}


FORKS = """
import os, subprocess, sys, threading, time
if sys.argv[1] == "copy" and os.fork() == 0:
    time.sleep(60)
if sys.argv[1] == "saved":
    (child := os.fork()) or os._exit(0)
    os.waitpid(child, 0)
if sys.argv[1] == "program":
    subprocess.Popen(["sleep", "60"])
if sys.argv[1] == "thread":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("begun", flush=True)
time.sleep(60)
"""


@pytest.fixture
def begun(request: pytest.FixtureRequest) -> Iterator[int]:
    words = [sys.executable, "-IS", "-c", FORKS, request.param]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("begun", "counts"),
    [("copy", (1, 0, 0, 0)), ("saved", (0, 0, 0, 1)), ("program", (0, 1, 0, 0)), ("thread", (0, 0, 1, 0))],
    indirect=["begun"],
)
def test_the_kernel_says_so_of_real_ones(begun: int, counts: tuple[int, ...]) -> None:
    def found() -> tuple[int, ...]:
        return tuple(count_children(LocalHost(), tree([begun]), {begun}).values())

    # A program that was begun is a copy until it has executed.
    until(lambda: found() == counts, f"the counts are {counts}", seen=found)
    assert Path(f"/proc/{begun}").exists()
