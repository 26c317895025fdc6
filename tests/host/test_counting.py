"""Counters of a process that runs already: a server of a few lines that touches pages when it is asked to."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec
import pytest

from hugewise.errors import ProbeError
from hugewise.host.local_machine import Counting
from hugewise.machine.probe import Count, Counters, Spec, decode, find
from hugewise.model.metric import COUNTERS
from tests.build import known
from tests.requirements import need
from tests.wait import until

pytestmark = pytest.mark.looks

PAGES = 2048
# Each line of its stdin: so many base pages are touched, by a thread or by a child of its own if asked.
SERVER = """
import mmap, os, sys, threading
kept = []
def touch(pages):
    area = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(area), mmap.PAGESIZE):
        area[at] = 1
    kept.append(area)
print("ready", flush=True)
for line in sys.stdin:
    who, pages = line.split()
    if who == "child":
        child = os.fork()
        if child == 0:
            touch(int(pages))
            os._exit(0)
        os.waitpid(child, 0)
    elif who == "thread":
        worker = threading.Thread(target=touch, args=(int(pages),))
        worker.start()
        worker.join()
    else:
        touch(int(pages))
    print("done", flush=True)
"""


class Asked:
    """The server, and its pipes."""

    def __init__(self, process: subprocess.Popen[str], stdin: IO[str], stdout: IO[str]) -> None:
        self.pid, self._process, self._stdin, self._stdout = process.pid, process, stdin, stdout

    def touch(self, who: str, pages: int) -> None:
        """Have it touch pages, and wait until it has."""
        self._stdin.write(f"{who} {pages}\n")
        self._stdin.flush()
        assert self._stdout.readline() == "done\n"


@pytest.fixture
def server() -> Iterator[Asked]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Asked(process, known(process.stdin), process.stdout)
        process.kill()


def value(counters: Counters, name: str) -> int:
    found: Count = counters.values[name]
    need(found.value is not None, f"the perf event {name}: {found.reason}")
    return known(found.value)


@pytest.mark.parametrize("who", ["itself", "thread", "child"])
def test_the_measured_part_alone_is_counted_with_what_is_made_in_it(server: Asked, who: str) -> None:
    with closing(Counting([server.pid], ("page-faults", "task-clock"))) as counting:
        server.touch("itself", 3 * PAGES)
        counting.begin()
        server.touch(who, PAGES)
        counting.end()
        server.touch(who, 3 * PAGES)
        found = counting.counts()
    assert found.scope == "timed"
    assert PAGES <= value(found, "page-faults") < PAGES + PAGES // 2
    assert value(found, "task-clock") > 0
    assert found.values["task-clock"].enabled_ns == found.values["task-clock"].running_ns > 0


def test_a_hardware_counter_has_a_value_or_the_probes_reason(server: Asked) -> None:
    hardware = [counter.event for counter in COUNTERS if counter.hardware]
    with closing(Counting([server.pid], hardware)) as counting:
        counting.begin()
        server.touch("itself", 64)
        counting.end()
        found = counting.counts().values
    assert sorted(found) == sorted(hardware)
    assert all((count.value is None) <= bool(count.reason) for count in found.values())


def test_a_process_that_has_gone_is_told_and_the_others_are_counted(server: Asked) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    with closing(Counting([gone.pid, server.pid], ("page-faults",))) as counting:
        counting.begin()
        server.touch("itself", PAGES)
        counting.end()
        found = counting.counts()
    assert value(found, "page-faults") >= PAGES
    assert "1 of 2 threads had ended" in (found.values["page-faults"].reason or "")


def test_a_server_that_dies_meanwhile_leaves_what_was_counted(server: Asked) -> None:
    with closing(Counting([server.pid], ("page-faults",))) as counting:
        counting.begin()
        server.touch("itself", PAGES)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: ") Z " in Path(f"/proc/{server.pid}/stat").read_text(), "the server has ended")
        counting.end()
        assert value(counting.counts(), "page-faults") >= PAGES


def test_a_probe_that_ends_early_is_an_error_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "probe"
    broken.write_text("#!/bin/sh\necho no such subcommand >&2\nexit 2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("HUGEWISE_PROBE", str(broken))
    with pytest.raises(ProbeError, match="ended early: no such subcommand"):
        Counting([1], ("page-faults",))


def test_a_group_of_a_running_server_is_read_as_one(server: Asked) -> None:
    with closing(Counting([server.pid], ("clock=task-clock+faults=page-faults+no-such", "page-faults"))) as counting:
        counting.begin()
        server.touch("thread", PAGES)
        counting.end()
        found = counting.counts()
    # The one is switched on some microseconds after the other.
    assert PAGES <= value(found, "faults") <= value(found, "page-faults") + 16
    assert "unknown counter" in (found.values["no-such"].reason or "")
    clock, faults = found.values["clock"], found.values["faults"]
    assert (clock.enabled_ns, clock.running_ns) == (faults.enabled_ns, faults.running_ns)


def test_a_group_of_a_command_has_its_children_in_it(tmp_path: Path) -> None:
    program = f"""
import mmap, os
def touch():
    area = mmap.mmap(-1, {PAGES} * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(area), mmap.PAGESIZE):
        area[at] = 1
touch()
if os.fork() == 0:
    touch()
    os._exit(0)
os.wait()
"""
    spec = Spec(
        argv=(sys.executable, "-S", "-c", program),
        env={},
        stdout=str(tmp_path / "out"),
        stderr=str(tmp_path / "err"),
        timeout_s=120.0,
        counters=("page-faults", "clock=task-clock+faults=page-faults+user=page-faults:u+cycles"),
    )
    told = tmp_path / "spec.json"
    told.write_bytes(msgspec.json.encode(spec))
    done = subprocess.run([find(), "run", "--spec", str(told)], capture_output=True, check=True)
    (found,) = (event for event in decode(done.stdout.splitlines(keepends=True)) if isinstance(event, Counters))
    assert value(found, "faults") == value(found, "page-faults") >= 2 * PAGES
    assert 2 * PAGES <= value(found, "user") <= value(found, "faults")
    assert found.values["clock"].running_ns == found.values["faults"].running_ns > 0
    assert (found.values["cycles"].value is None) <= bool(found.values["cycles"].reason)
