"""Shared memory is counted once, what is swapped is in no huge page, and who is not seen is no proof."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hugewise.host.local_host import LocalHost
from hugewise.inspection import look as looking
from hugewise.inspection import verify as verifying
from hugewise.inspection.backing import again, coverage_once
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from tests.inspection.test_reasons import MIB, mapping, rules, seen

pytestmark = pytest.mark.looks


def shared(size: int, offset: int = 0, start: int = 0, resident: int | None = None, inode: int = 7) -> Look:
    memory = (size if resident is None else resident) * MIB
    one = mapping(size, start, permissions="rw-s", name="/memfd:x", anonymous=0, resident=memory)
    one.offset, one.object = offset * MIB, ("00:01", inode)
    return seen(one, pid=inode * 100 + start)


def test_parts_of_an_object_are_counted_where_most_of_it_is() -> None:
    first, second = shared(64), shared(32, 16, 1)
    assert again([first, second]) == {701: [(second.mappings[0].start, second.mappings[0].end)]}
    small, large = shared(64, 0, 2, resident=1), shared(64, 32, 3)
    begin = small.mappings[0].start
    assert again([small, large]) == {702: [(begin + 32 * MIB, begin + 64 * MIB)]}
    assert again([first, shared(64, 64, 4)]) == {}, "other parts of it"
    assert again([first, shared(64, inode=8)]) == {}, "another object"
    assert again([seen(mapping()), seen(mapping(), pid=8)]) == {}, "private memory"


def test_what_one_maps_twice_is_counted_once() -> None:
    one = shared(64)
    twice = seen(one.mappings[0], *shared(64, 0, 200 * MIB).mappings, coverage={"shmem:2097152": 128 * MIB})

    def scan(pid: int, ranges: list[tuple[int, int]]) -> dict[str, int]:
        return {"shmem:2097152": sum(end - start for start, end in ranges)}

    assert coverage_once([twice], scan) == {"shmem:2097152": 64 * MIB}


PROGRAM = """
import mmap, os, signal
size = 32 << 20
everybodys = mmap.mmap(-1, size)
everybodys.write(b"x" * size)
for _ in range(4):
    if os.fork() == 0:
        for at in range(0, size, 4096):
            everybodys[at] = 1
        os.write(1, b"x")
        signal.pause()
os.write(1, b"x")
signal.pause()
"""


@contextmanager
def family() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, process_group=0)
    try:
        assert child.stdout is not None and len(child.stdout.read(5)) == 5
        yield child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_processes_that_share_memory_have_it_once() -> None:
    """Else shared pages that are huge would outweigh the base pages that each process has for itself."""
    with family() as pid:
        found = verifying.verify(str(pid), LocalHost(), "base")
    assert len(found.processes) == 5
    much = sum(size for key, size in found.coverage.items() if key.startswith("shmem"))
    assert 30 * MIB < much < 40 * MIB, found.coverage


def test_who_cannot_be_looked_at_leaves_it_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Looker.look

    def some(self: Looker, pid: int) -> Look:
        if pid != parent:
            raise DeniedError("it belongs to the account 1")
        return look(self, pid)

    with family() as parent:
        monkeypatch.setattr(Looker, "look", some)
        found = verifying.verify(str(parent), LocalHost(), "base")
        assert found.delivered is None
        assert found.said.endswith("; of 4 of its processes nothing is known")
        assert verifying.verify(str(parent), LocalHost()).delivered is None


@pytest.mark.parametrize(("swapped", "delivered"), [(0, True), (1, True), (60, False)])
def test_memory_that_is_swapped_is_in_no_huge_page(swapped: int, delivered: bool) -> None:
    one = seen(
        mapping(64, resident=64 * MIB, huge=64 * MIB, eligible=True),
        mapping(64, 128 * MIB, resident=0, anonymous=0, swapped=swapped * MIB, eligible=True),
        coverage={"anon:2097152": 64 * MIB},
    )
    treatment = Treatment(policy="thp", mechanism="system", target=PageTarget("thp", 2 << 20))
    _, found, _, said, why = verifying._by_policy(
        [one], rules("always"), treatment, 0.95, source="smaps", backed=one.coverage
    )
    assert found is delivered, said
    assert ("swapped" in {reason.id for reason in why}) == (not delivered)
    assert verifying._by_rules([one], rules("always"), 0.95)[1] is delivered


def test_a_number_that_means_another_program_meanwhile_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of one program says nothing of the next one."""
    seen_as = iter([(b"1", b""), (b"2", b""), (b"2", b""), (b"2", b"")])
    monkeypatch.setattr(looking, "identity", lambda pid: next(seen_as))
    assert Looker("smaps").look(os.getpid()).pid == os.getpid()
    assert next(seen_as, None) is None
    changing = iter((bytes([number]), b"") for number in range(100))
    monkeypatch.setattr(looking, "identity", lambda pid: next(changing))
    with pytest.raises(GoneError, match="another program each time"):
        Looker("smaps").look(os.getpid())


def test_programs_that_follow_one_another_in_a_process_are_told_apart() -> None:
    child = subprocess.Popen(["sh", "-c", "read x; exec sleep 60"], stdin=subprocess.PIPE)
    try:
        before = looking.identity(child.pid)
        child.communicate(b"\n", timeout=0.3)
    except subprocess.TimeoutExpired:
        assert looking.identity(child.pid) != before
    finally:
        child.kill()
        child.wait()


def test_mappings_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_MOST_MAPPINGS", 10)
    with pytest.raises(DeniedError, match="too many mappings"):
        Looker("smaps").look(os.getpid())
    monkeypatch.setattr(looking, "_MOST_MAPPINGS", 100_000)
    looker = Looker("smaps")
    left = looker._left - len(looker.look(os.getpid()).mappings)
    assert looker._left == left
