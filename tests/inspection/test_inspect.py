"""Real processes: what is found of them is what a plain reader finds, and why it is not more."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hugewise import beneath
from hugewise.errors import UserError
from hugewise.host.journal import Journal
from hugewise.host.knob import Settings
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.inspection import look
from hugewise.inspection.inspect import SampleDraw, inspect
from hugewise.inspection.inspected import Inspection, SizeBacked
from hugewise.inspection.targets import of_command, of_numbers
from hugewise.machine import probe
from hugewise.model.pages import HUGETLB, THP
from tests.inspection import reference
from tests.inspection.running import PAGES, SIZE, built, running, under
from tests.inspection.test_verify import as_nobody
from tests.requirements import need, need_program, need_root

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


def found(*pids: int, sampling: SampleDraw | None = None) -> Inspection:
    return inspect(of_numbers([str(pid) for pid in pids], HOST), HOST, sampling=sampling)


def states(sizes: tuple[SizeBacked, ...]) -> Counter[str]:
    told: Counter[str] = Counter()
    for one in sizes:
        for state in ("pmd", "aligned", "unaligned", "partial"):
            told[f"{one.pages}:{one.size}:{state}"] += getattr(one, state)
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
    had = {(each.pages, each.size) for each in one.sizes}
    assert {("anon", 1 << 12), ("anon", 2 << 20), ("shmem", 1 << 12), ("file", 1 << 12)} <= had
    assert {each.kind for each in one.kinds} >= {"heap", "anonymous", "stack", "file", "shmem"}
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
        assert (one.source, one.once, one.sampled, one.nodes is None) == ("kpageflags", False, None, False)
        assert {(each.pages, each.size, each.pmd) for each in one.sizes if each.pmd} == {("anon", 2 << 20, SIZE)}
        first = one.mappings[0]
        assert (first.bytes, first.large, first.kind, first.advised, first.lost) == (
            SIZE, SIZE, "anonymous", "huge", None,
        )  # fmt: skip
        assert one.bytes == sum(each.bytes for each in one.mappings) == sum(each.bytes for each in one.kinds)
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
        anonymous = sum(each.bytes for each in both.sizes if each.pages == "anon")
        assert SIZE <= anonymous < SIZE + (4 << 20)
        assert sum(each.bytes for each in both.processes) > 2 * SIZE
        assert alone.bytes <= both.bytes < alone.bytes + (4 << 20)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_sample_has_bounds_that_hold(program: Path) -> None:
    """40 draws at 99%: each line of each holds what the whole look finds, but for 1 in 100 (here: at most 3 of 40)."""
    need_root()
    with under(), running(program, "first") as pid:
        os.kill(pid, signal.SIGSTOP)
        whole = {(each.pages, each.size): each.bytes for each in found(pid).sizes}
        missed = 0
        for seed in range(40):
            one = found(pid, sampling=SampleDraw(24, seed))
            assert one.sampled is not None
            assert (one.sampled.drawn, one.lost, one.mappings) == (24, (), ())
            told = {(each.pages, each.size): (each.low or 0, each.high or 0) for each in one.sizes}
            inside = [low <= whole[key] <= high for key, (low, high) in told.items()]
            unseen = [size <= one.sampled.unseen for key, size in whole.items() if key not in told]
            missed += not all(inside + unseen)
        assert missed <= 3
        assert found(pid, sampling=SampleDraw(24, 7)).sizes == found(pid, sampling=SampleDraw(24, 7)).sizes
        all_of_it = found(pid, sampling=SampleDraw(10_000, 7))
        assert all_of_it.sampled is None
        assert {(each.pages, each.size): each.bytes for each in all_of_it.sizes} == whole


def test_an_ordinary_user_has_what_smaps_tells(program: Path) -> None:
    need_root()
    with under("madvise", "always"), running(program, "first", user=65534) as pid:
        told = as_nobody(lambda: found(pid))
        assert told["source"] == "smaps"
        assert "without root" in str(told["notes"])
        sizes = {(each["pages"], each["size"]): each["bytes"] for each in told["sizes"]}  # type: ignore[attr-defined]
        assert sizes["anon", 2 << 20] == SIZE
        refused = as_nobody(lambda: found(pid, sampling=SampleDraw(20, 1)))
        assert "--sample" in str(refused["refused"])
        assert refused["hint"] == "call it as root: sudo"
    with running(program, "idle") as pid:
        refused = as_nobody(lambda: found(pid))
        assert f"{pid} cannot be looked at: it belongs to the account 0" in str(refused["refused"])


def test_what_has_no_memory_is_said(program: Path) -> None:
    kernel = next(
        each for each in Path("/proc").iterdir()
        if each.name.isdigit() and not (each / "cmdline").read_bytes() and _state(each) not in "ZX"
    ) if Path("/proc/2/status").exists() and _state(Path("/proc/2")) not in "ZX" else None  # fmt: skip
    if kernel is not None and "Kthread:\t1" in (kernel / "status").read_text():
        with pytest.raises(UserError, match="thread of the kernel"):
            found(int(kernel.name))
    ended = subprocess.Popen([program, "idle"], stdout=subprocess.PIPE)
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UserError, match="has ended"):
        found(ended.pid)
    ended.communicate()
    with pytest.raises(UserError, match="there is no such process"):
        found(ended.pid)


def _state(folder: Path) -> str:
    lines = (folder / "status").read_text().split("\n")
    return next(line.split()[1] for line in lines if line.startswith("State"))


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
        assert [each.pid for each in one.processes] == [first]
        assert f"not looked at: {second} (it has ended)" in one.notes


def test_thousands_of_mappings_are_looked_at(program: Path) -> None:
    with running(program, "many", "6000") as pid:
        one = found(pid)
        assert len(one.mappings) > 6000
        assert one.lost == () or one.lost[0].id in ("advised-against", "too-small", "rules-never", "not-advised")


def test_a_command_is_found_by_its_name(program: Path) -> None:
    with running(program, "idle") as pid:
        assert of_command(program.name, HOST).processes == (pid,)
        assert of_command(str(program), HOST).processes == (pid,)
    with pytest.raises(UserError, match="no process of that name runs"):
        of_command(program.name, HOST)
