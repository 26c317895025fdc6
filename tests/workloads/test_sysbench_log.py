"""The log of sysbench's transactions, of a real sysbench under a test that asks no database."""

import os
import re
import subprocess
import time
from pathlib import Path

import msgspec
import numpy as np

from hugewise.workloads import mysql_ro
from hugewise.workloads._outputs import measured
from tests.build import known
from tests.build.workloads import PLACES
from tests.requirements import need_program

TRIVIAL = "function event() end\nfunction thread_done() end\n"
# Each transaction takes 3 ms at least.
SLOW = 'local ffi = require("ffi")\nffi.cdef("int usleep(unsigned int)")\n'
SLOW += "function event() ffi.C.usleep(3000) end\nfunction thread_done() end\n"
# The twentieth transaction of a thread says that it is enough.
TELLING = (
    SLOW.replace("usleep(3000)", "usleep(3000) told()")
    + """
local done = 0
function told()
   done = done + 1
   if done == 20 then io.open(os.getenv("HUGEWISE_ENOUGH"), "w"):close() end
end
"""
)


def logged(folder: Path, test: str, *options: str) -> tuple[list[bytes], str]:
    """The logs of a run of `test`, and what sysbench said."""
    sysbench = need_program("sysbench", "sysbench")
    places = msgspec.structs.replace(PLACES, data=str(folder), run=str(folder))
    written = mysql_ro.script_text()
    (folder / written.path).write_text(written.text)
    (folder / "mine.lua").write_text(test)
    done = subprocess.run(
        [sysbench, mysql_ro.script_path(places), *options, "run"],
        env={"PATH": os.environ["PATH"], **mysql_ro.script_environment("mine", places)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [each.read_bytes() for each in sorted(folder.iterdir()) if mysql_ro.LOGS.fullmatch(each.name)], done.stdout


def test_every_transaction_is_there_also_those_of_later_pages(tmp_path: Path) -> None:
    logs, said = logged(tmp_path, TRIVIAL, "--threads=1", "--events=140000", "--time=0")
    events = re.search(r"total number of events: +(\d+)", said)
    assert events is not None and events[1] == "140000"
    (log,) = logs
    rows = np.array([line.split() for line in log.splitlines()], dtype=np.int64)
    assert (rows[:, 1] == np.arange(1, 140001)).all()
    ended = rows[:, 4] * 1_000_000 + rows[:, 5]
    assert (np.diff(ended) >= 0).all() and len(np.unique(rows[:, 5])) > 1000
    assert set(rows[:, 0]) == set(rows[:, 3]) == {0}


def test_ends_are_on_the_clock_and_times_are_those_of_the_transactions(tmp_path: Path) -> None:
    begun = time.time()
    logs, _ = logged(tmp_path, SLOW, "--threads=2", "--time=1")
    ended = time.time()
    seen = measured(logs, begun, ended)
    assert len(logs) == seen.clients == 2
    assert 3.0 <= seen.latency_ms[0] <= seen.latency_ms[-1]
    # One after the other in each thread, they fit into the time that both had.
    assert known(seen.mean_ms) * seen.transactions <= 2 * (ended - begun) * 1e3
    assert seen.transactions == seen.regular == sum(log.count(b"\n") for log in logs) - 2


def test_it_ends_when_it_is_told_that_it_is_enough_and_says_all_the_same_what_it_did(tmp_path: Path) -> None:
    logs, said = logged(tmp_path, TELLING, "--threads=2", "--time=0", "--events=0")  # without end by themselves
    events = re.search(r"total number of events: +(\d+)", said)
    assert events is not None and int(events[1]) == sum(log.count(b"\n") for log in logs) >= 20
    assert len(logs) == 2
