"""Which commands can take turns: each is run once, on the real kernel, and looked at."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import hugewise
from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.host.lock import HostLock
from hugewise.machine.machine import Contained
from hugewise.model.design import Slicing
from hugewise.plan.plan import Cell, Plan
from hugewise.session import session
from hugewise.session import suitability as module
from hugewise.session.steps import Session
from hugewise.session.suitability import Samples, Suitability, suitability
from hugewise.store.folder import RunFolder
from hugewise.study.load import MOST_BLOCKS, command_study
from hugewise.study.study import Study
from hugewise.workloads import discover
from tests.build import known
from tests.build.hosts import FakeHost
from tests.build.studies import an_arm, cell_of
from tests.servers.trying import need_pages

SLICING = Slicing(arms=2, length=0.02, wash_out=0.0)
# A program goes on until it was looked at that many times, and one that waits until twice as many: however late a look.
LOOKS = 60
LOOKED = Path(tempfile.gettempdir()) / f"hw-looked-{os.getpid()}"
TWICE = LOOKED.with_name(f"{LOOKED.name}-twice")
LOOP = f"import os\nwhile not os.path.exists({str(LOOKED)!r}): pass"
WAIT = f"import time\nwhile not os.path.exists({str(TWICE)!r}): time.sleep(0.002)"


def cell(*argv: str) -> Cell:
    arms = [an_arm(name) for name in ("base", "thp")]
    return cell_of(discover()["command"], *arms, values={"argv": argv}, timeout=30.0)


def of(folder: Path, *argv: str, slicing: Slicing = SLICING, longest: float = 30.0) -> Suitability:
    outputs = folder / "outputs"
    outputs.mkdir()
    cwd = folder / "cwd"
    cwd.mkdir(exist_ok=True)
    looks, runnable = itertools.count(1), module._runnable_threads

    def look(pid: int) -> int:
        if (number := next(looks)) in (LOOKS, 2 * LOOKS):
            (LOOKED if number == LOOKS else TWICE).touch()
        return runnable(pid)

    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "_runnable_threads", look)
            return suitability(cell(*argv), LocalMachine(LocalHost()), outputs, slicing, cwd=str(cwd), longest=longest)
    finally:
        LOOKED.unlink(missing_ok=True)
        TWICE.unlink(missing_ok=True)


def python(folder: Path, code: str) -> str:
    found = of(folder, sys.executable, "-IS", "-c", code)
    assert found.refused is not None
    return found.refused


def test_a_program_that_computes_on_one_thread_can(tmp_path: Path) -> None:
    found = of(tmp_path, sys.executable, "-IS", "-c", LOOP)
    assert found == Suitability(None, one_thread=True, seconds=found.seconds, peak=found.peak)
    assert known(found.seconds) > 0
    assert 1 << 20 < found.peak < 1 << 30


def test_an_allocator_that_works_by_the_clock_is_named(tmp_path: Path) -> None:
    program = tmp_path / "jemalloc"
    program.write_bytes(Path("/bin/sh").read_bytes() + b"<jemalloc>: ")
    program.chmod(0o755)
    found = of(tmp_path, str(program), "-c", f"while [ ! -e {LOOKED} ]; do :; done")
    assert (found.refused, found.by_clock) == (None, "jemalloc")


def test_a_program_that_waits_cannot(tmp_path: Path) -> None:
    assert "of its time" in python(tmp_path, f"{LOOP}\n{WAIT}")


def test_a_program_that_is_over_at_once_cannot(tmp_path: Path) -> None:
    said = of(tmp_path, "true", slicing=msgspec.structs.replace(SLICING, length=60.0)).refused
    assert said is not None and "less than 10 turns of 1 min" in said


def test_a_program_that_takes_half_the_time_of_the_run_cannot(tmp_path: Path) -> None:
    said = of(tmp_path, sys.executable, "-IS", "-c", "while True: pass", longest=0.5).refused
    assert said == "its first run has not ended after 500 ms"


def test_a_program_that_fails_cannot(tmp_path: Path) -> None:
    assert of(tmp_path, "false").refused == "its first run did not succeed"


def test_a_program_with_a_socket_cannot(tmp_path: Path) -> None:
    assert "has a socket" in python(tmp_path, f"import socket\npair = socket.socketpair()\n{LOOP}")


def test_a_program_that_holds_a_lock_cannot(tmp_path: Path) -> None:
    code = f"import fcntl\nheld = open('/proc/self/exe', 'rb')\nfcntl.flock(held, fcntl.LOCK_SH)\n{LOOP}"
    assert "holds a lock on a file" in python(tmp_path, code)


@pytest.mark.parametrize(
    ("name", "kept", "refused"),
    [
        ("{os.getpid()}", "mapped = mmap.mmap(held.fileno(), 4096); held.close()", False),
        ("{os.getpid()}", "pass", False),
        ("x{os.getpid()}", "mapped = mmap.mmap(held.fileno(), 4096)", True),
    ],
    ids=["mapped", "open", "another name"],
)
def test_a_lock_on_a_file_named_after_the_process_is_its_own(
    tmp_path: Path, name: str, kept: str, refused: bool
) -> None:
    """The JVM has such a file, which stays locked while it is mapped: /tmp/hsperfdata_USER/PID."""
    held = f"import fcntl, mmap, os\nheld = open(f'{tmp_path}/{name}', 'w+b')\nheld.write(b'x' * 4096)\nheld.flush()"
    held += f"\nfcntl.flock(held, fcntl.LOCK_EX)\n{kept}"
    code = f"{held}\n{LOOP}\nos.unlink(held.name)"
    said = of(tmp_path, sys.executable, "-IS", "-c", code).refused
    assert (said is not None and "holds a lock" in said) == refused


@pytest.mark.parametrize("name", ["out.bin", "../elsewhere"])
def test_a_program_that_writes_a_file_that_stays_cannot(tmp_path: Path, name: str) -> None:
    said = python(tmp_path, f"out = open({name!r}, 'wb')\n{LOOP}")
    assert said.startswith("it writes ") and "at the same time" in said


def test_a_file_that_was_open_for_a_moment_is_found_by_its_time(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "out").write_text("old")
    assert "writes" in python(tmp_path, f"open('out', 'w').close()\n{LOOP}")
    for made in (tmp_path / "outputs").iterdir():
        made.unlink()
    (tmp_path / "outputs").rmdir()
    named = tmp_path / "named"
    named.write_text("old")
    said = of(tmp_path, sys.executable, "-IS", "-c", f"import sys\nopen(sys.argv[1], 'w').close()\n{LOOP}", str(named))
    assert said.refused is not None and str(named) in said.refused


def test_a_temporary_file_that_is_gone_in_the_end_is_its_own(tmp_path: Path) -> None:
    code = f"import os\nheld = open('{tmp_path}/t', 'wb')\n{LOOP}\nos.unlink('{tmp_path}/t')"
    assert of(tmp_path, sys.executable, "-IS", "-c", code).refused is None


def test_a_file_that_is_gone_in_the_end_is_common_where_programs_do_not_draw_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TEMPORARY", ("/nowhere/",))
    code = f"import os\nheld = open('{tmp_path}/t', 'wb')\n{LOOP}\nos.unlink('{tmp_path}/t')"
    assert f"it writes {tmp_path}/t" in python(tmp_path, code)


def test_a_program_with_two_busy_threads_is_not_judged_by_its_cpu_time(tmp_path: Path) -> None:
    code = f"import os\nchild = os.fork()\n{LOOP}\nif child: os.wait()"
    found = of(tmp_path, sys.executable, "-IS", "-c", code)
    assert (found.refused, found.one_thread) == (None, False)


def test_programs_that_have_no_room_at_once_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "meminfo", lambda _: {"MemAvailable": 10 << 30})
    machine = cast(LocalMachine, type("M", (), {"host": None})())
    assert module._room(3 << 30, 2, machine) is None
    assert module._room(3 << 30, 3, machine) == "3 arms at once need 9 GiB, and 10 GiB are free"
    busy = Samples(count=100, busy=100)
    assert module._refusal(busy, 3.0, (), "no room", SLICING) == "no room"


@pytest.mark.usefixtures("unchanged")
def test_a_command_without_a_file_is_declared_for_twice_the_pairs_that_fit(tmp_path: Path) -> None:
    """It was declared for 1,000 pairs whatever its time: some 8% more pairs were needed for nothing."""
    need_pages()

    def interrupt(step: str) -> None:
        if step == "launch":
            raise KeyboardInterrupt

    argv = [sys.executable, "-IS", "-c", "n = 0\nwhile n < 2_000_000: n += 1"]
    study = command_study(["as-is", "base"], argv, time="60s")
    folder = session.run(study, tmp_path, on_step=interrupt)
    run = folder.read()
    assert study.budget.blocks == MOST_BLOCKS and 24 <= known(run.opened.blocks) < MOST_BLOCKS
    (comparison,) = hugewise.open_results(folder.path).cells[0].comparisons
    assert comparison.planned == run.study.budget.blocks == run.opened.blocks


def a_session(study: Study, *, root: bool = False) -> Session:
    host, folder = FakeHost(root=root), RunFolder(Path("results/s/run"))
    return Session(study, folder, b"", Plan((), ()), None, lambda _: None, lambda _: None, HostLock(host), host=host)


@pytest.mark.parametrize("given", [{"time": "1h"}, {"time": "1h", "blocks": MOST_BLOCKS}, {"blocks": 2000}])
def test_a_number_of_blocks_that_was_given_stays(given: dict[str, Any]) -> None:
    """Who asked for 1,000 blocks was taken for one who had not said."""
    held = a_session(command_study(["as-is", "base"], ["true"], **given))
    held._declare(cell("true"), Suitability(seconds=18.0))
    assert held.declared == (None if "blocks" in given else 200)


def test_nothing_is_stopped_by_signals_where_the_kernel_does_not_list_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt was rejected after 10 s, as no process of it was seen."""

    def none(note: object) -> None:
        raise HugewiseError("no cgroups")

    monkeypatch.setattr(cgroup.Hierarchy, "open", none)
    monkeypatch.setattr(processes, "lists_children", lambda: False)
    held = a_session(command_study(["as-is", "base"], ["true"]))
    held.settings = Settings(held.host, None)
    held.make_cgroups()
    assert type(held.contain("attempt")) is Contained
    said = held._suitability(cell("true"), HugewiseError("no cgroups"), 1).refused
    assert said is not None and said.startswith("no cgroups; ") and "CONFIG_PROC_CHILDREN" in said
