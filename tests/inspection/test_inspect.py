"""Real processes: what is found of them is what a plain reader finds, and shared memory is counted once."""

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hugewise import beneath
from hugewise.errors import UserError
from hugewise.host.journal import Journal
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.inspection import look
from hugewise.inspection import look as looking
from hugewise.inspection import verify as verifying
from hugewise.inspection.backing import again, coverage_once
from hugewise.inspection.inspect import inspect
from hugewise.inspection.inspected import Inspection, SizeBacked
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker
from hugewise.inspection.targets import of_numbers
from hugewise.machine import probe
from hugewise.model.pages import HUGETLB, THP, PageTarget
from hugewise.model.policy import Treatment
from tests.inspection import reference
from tests.inspection.running import PAGES, SIZE, built, running, under
from tests.inspection.test_reasons import MIB, mapping, rules, seen
from tests.inspection.test_verify import as_nobody, status
from tests.requirements import need, need_program, need_root
from tests.wait import until

pytestmark = pytest.mark.looks

HOST = LocalHost()
KINDS = PAGES.with_name("kinds.c")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """That every account may enter, as those of pytest are not."""
    made = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    beneath.discard(made)


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return built(folder)


def found(*pids: int) -> Inspection:
    return inspect(of_numbers([str(pid) for pid in pids], HOST), HOST)


def states(sizes: tuple[SizeBacked, ...]) -> Counter[str]:
    told: Counter[str] = Counter()
    for size in sizes:
        for state in ("pmd", "aligned", "unaligned", "partial"):
            told[f"{size.pages}:{size.size}:{state}"] += getattr(size, state)
    return +told


@pytest.mark.whole
def test_totals_are_those_of_a_plain_reader(folder: Path) -> None:
    """Every kind of memory, with sizes that a host seldom has on: they are turned on meanwhile, and put back."""
    need_root()
    compiler = need_program("gcc", "gcc libc6-dev")
    need(Path(f"{THP}/hugepages-64kB/enabled").exists(), "a kernel with multi-size THP (Linux 6.8)")
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", folder / "kinds", KINDS], check=True)
    (folder / "file").write_bytes(bytes(range(256)) * (16 << 10))
    wanted = {
        f"{THP}/enabled": "madvise",
        f"{THP}/shmem_enabled": "advise",
        f"{THP}/hugepages-2048kB/enabled": "inherit",
    }
    wanted |= {f"{THP}/hugepages-{kib}kB/enabled": "madvise" for kib in (16, 64)}
    wanted |= {f"{THP}/khugepaged/pages_to_scan": "1", f"{HUGETLB}/hugepages-2048kB/nr_hugepages": "1"}
    with ExitStack() as turned, tempfile.TemporaryDirectory(prefix="hugewise-kinds-") as own:
        turned.enter_context(HostLock(HOST))
        settings = Settings(HOST, Journal.begin(HOST, Path(own) / "journal.jsonl", "test"))
        turned.callback(settings.restore)
        settings.apply({path: value for path, value in wanted.items() if Path(path).exists()})
        pid = turned.enter_context(running(folder / "kinds", str(folder / "file")))
        os.kill(pid, signal.SIGSTOP)
        plain, one = reference.folios(pid), found(pid)
        assert states(one.sizes) + Counter(swapped=one.swapped or 0) == plain
        assert sum((states(each.sizes) for each in one.mappings), Counter()) == states(one.sizes)
        told = probe.ask("folios", "--plain", "--pid", str(pid))
        assert isinstance(told, probe.MappedFolios)
        assert sum((Counter(dict(each.bytes)) for each in told.mappings), Counter()) == states(one.sizes)
    had = {(size.pages, size.size) for size in one.sizes}
    assert {("anon", 1 << 12), ("anon", 2 << 20), ("shmem", 1 << 12), ("file", 1 << 12)} <= had
    assert {kind.kind for kind in one.kinds} >= {"heap", "anonymous", "stack", "file", "shmem"}
    # What a fragmented machine cannot give is no fault of the look; what it gave was compared above.
    sure = plain["anon:65536:aligned"] and plain["anon:16384:aligned"] and plain["anon:2097152:partial"]
    need(bool(sure), "free memory for pages of 16k, 64k and 2m")
    assert plain["anon:2097152:unaligned"] and plain["anon:65536:unaligned"]
    assert plain["hugetlb:2097152:pmd"] == 2 << 20


@under("madvise", "always")
def test_what_backs_a_process_and_why_not_more(program: Path) -> None:
    need_root()
    with running(program, "first") as pid:
        one = found(pid)
        assert (one.source, one.once, one.nodes is None) == ("kpageflags", False, False)
        assert {(size.pages, size.size, size.pmd) for size in one.sizes if size.pmd} == {("anon", 2 << 20, SIZE)}
        first = one.mappings[0]
        assert (first.bytes, first.large, first.kind, first.advised, first.lost) == (
            SIZE, SIZE, "anonymous", "huge", None,
        )  # fmt: skip
        assert one.bytes == sum(each.bytes for each in one.mappings) == sum(kind.bytes for kind in one.kinds)
        assert one.processes[0].pid == pid
        assert one.processes[0].started > 0
    with running(program, "against") as pid:
        one = found(pid)
        lost = {each.id: each.bytes for each in one.lost}
        assert lost["advised-against"] is not None
        assert lost["advised-against"] >= SIZE
        assert one.mappings[0].whole == SIZE


@under("madvise")
def test_memory_that_nobody_advised_has_its_cure(program: Path) -> None:
    need_root()
    with running(program, "plain") as pid:
        (lost,) = [each for each in found(pid).lost if each.id == "not-advised"]
        assert lost.bytes is not None
        assert lost.bytes >= SIZE
        assert "GLIBC_TUNABLES" in str(lost.cure)


@under("madvise", "always")
def test_what_a_fork_shares_counts_once_for_root(program: Path) -> None:
    need_root()
    with running(program, "shared") as pid:
        pids = [pid, *_children(pid)]
        assert len(pids) == 2
        both, alone = found(*pids), found(pid)
        assert both.once
        assert any("counts once" in note for note in both.notes)
        anonymous = sum(size.bytes for size in both.sizes if size.pages == "anon")
        assert SIZE <= anonymous < SIZE + (4 << 20)
        assert sum(process.bytes for process in both.processes) > 2 * SIZE
        assert alone.bytes <= both.bytes < alone.bytes + (4 << 20)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_ordinary_user_has_what_smaps_tells(program: Path) -> None:
    need_root()
    with under("madvise", "always"), running(program, "first", user=65534) as pid:
        told = as_nobody(lambda: found(pid))
        assert told["source"] == "smaps"
        assert "without root" in str(told["notes"])
        sizes = {(each["pages"], each["size"]): each["bytes"] for each in told["sizes"]}  # type: ignore[attr-defined]
        assert sizes["anon", 2 << 20] == SIZE
    with running(program, "idle") as pid:
        refused = as_nobody(lambda: found(pid))
        assert f"{pid} cannot be looked at: it belongs to the account 0" in str(refused["refused"])


def test_what_has_no_memory_is_said(program: Path) -> None:
    if "Kthread:\t1" in status("2"):
        with pytest.raises(UserError, match="thread of the kernel"):
            found(2)
    ended = subprocess.Popen([program, "idle"], stdout=subprocess.PIPE)
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UserError, match="has ended"):
        found(ended.pid)
    ended.communicate()
    with pytest.raises(UserError, match="there is no such process"):
        found(ended.pid)


def test_a_number_that_was_given_anew_is_no_answer(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at has ended meanwhile, and its number is another's."""
    asked: list[int] = []

    def identity(pid: int) -> tuple[bytes, bytes]:
        asked.append(pid)
        return (str(len(asked)).encode(), b"")

    monkeypatch.setattr("hugewise.inspection.inspect.identity", identity)
    with running(program, "idle") as pid, pytest.raises(UserError, match="become another program"):
        found(pid)


def test_processes_that_end_meanwhile_leave_the_others(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(program, "idle") as first, running(program, "idle") as second:
        real = look.Looker.look

        def looked(self: look.Looker, pid: int) -> object:
            if pid == second:
                os.kill(second, signal.SIGKILL)
                os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
            return real(self, pid)

        monkeypatch.setattr(look.Looker, "look", looked)
        one = found(first, second)
        assert [process.pid for process in one.processes] == [first]
        assert f"not looked at: {second} (it has ended)" in one.notes


def test_thousands_of_mappings_are_looked_at(program: Path) -> None:
    with running(program, "many", "6000") as pid:
        one = found(pid)
        assert len(one.mappings) > 6000
        assert one.lost == () or one.lost[0].id in ("advised-against", "too-small", "rules-never", "not-advised")


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
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        until(lambda: looking.identity(child.pid) != before, "the shell has become sleep")
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
