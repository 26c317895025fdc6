"""Whole runs in guests: what is measured and proven, and which rejected attempts are left out."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import hugewise
from hugewise.model import guest
from hugewise.model.metric import COMMON, NOT_IN_EMULATION, Metric
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.store.folder import RunFolder
from hugewise.workloads._micro import Fault
from hugewise.workloads.memcached import WORKLOAD as MEMCACHED
from tests.build import known, trials
from tests.build.results import plain
from tests.guests import runs
from tests.guests.runs import counted
from tests.requirements import need_program

MIB = 1 << 20


pytestmark = pytest.mark.usefixtures("unchanged", "nothing_left")


def folder_of(results: Results, attempt: Attempt) -> Path:
    name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
    return Path(results.folder) / "attempts" / name


def check_no_time(attempt: Attempt, own: tuple[Metric, ...]) -> None:
    """Nothing that emulation does not count has a value, and each says why."""
    assert (attempt.wall_s, attempt.cpu_s, attempt.series) == (None, None, ())
    for metric in (*COMMON, *own):
        if metric.name in attempt.metrics and not metric.emulated:
            assert attempt.metrics[metric.name] is None, metric.name
            assert attempt.absent[metric.name] == NOT_IN_EMULATION
    assert {"wall_s", "cpu_s", "cycles", "dtlb_load_misses", "instructions"} <= attempt.absent.keys()
    assert {name for name, value in attempt.metrics.items() if value is None} == attempt.absent.keys()


def test_a_run_in_guests_counts_and_proves_and_says_no_time(tmp_path: Path) -> None:
    exact = runs.FAULT.replace("blocks = 2", "blocks = 20").replace("0.9", '0.6\nmethod = "exact"')
    study = hugewise.load(runs.write(tmp_path, exact))
    results = hugewise.run(study, results=tmp_path / "results")
    assert results.state == "finished"
    # 4 boots of each that count the same are a verdict at 60%, and the end.
    counted = runs.counted(results)
    assert Counter((a.arm, a.state) for a in counted) == {("small", "accepted"): 4, ("huge", "accepted"): 4}
    for attempt in counted:
        small = attempt.arm == "small"
        assert attempt.metrics["page_faults"] == runs.BYTES // (4096 if small else 2 * MIB)
        check_no_time(attempt, Fault.metrics)
        assert attempt.delivery.delivered, attempt.delivery
        assert attempt.delivery.source == "kpageflags"
        assert attempt.delivery.coverage == {"anon:4096" if small else "anon:2097152": runs.BYTES}
        served = known(attempt.metrics["allocations_2m"])
        assert served == 0 if small else abs(served - runs.BYTES // (2 * MIB)) <= 1
        check_facts(attempt, "base" if small else "hugetlb-2m", "base" if small else f"hugetlb:{2 * MIB}")
        kept = folder_of(results, attempt)
        assert "-machine" in msgspec.json.decode((kept / "guest-argv.json").read_bytes(), type=list[str])
        assert f"KernelPageSize:     {4 if small else 2048:4} kB" in (kept / "smaps.txt").read_text()
    # Both of a block have one seed, and each block another.
    assert len({(a.block, a.guest["guest_seed"]) for a in results.attempts}) == 4
    assert len({a.guest["guest_seed"] for a in results.attempts}) == 4
    guests = known(guest.read(Path(results.folder)))
    assert (guests.accelerator, [kernel.name for kernel in guests.kernels]) == ("tcg", ["debian"])
    (comparison,) = [c for cell in results.cells for c in cell.comparisons if c.arm == "huge"]
    assert (comparison.metric, comparison.constant) == ("page_faults", True)
    assert (comparison.method, comparison.verdict, comparison.p) == ("exact", "better", 2.0**-3)
    assert comparison.ratio == comparison.low == comparison.high == 4096 / (2 * MIB)
    paths = hugewise.write_reports(results)
    text = paths["markdown"].read_text()
    assert "emulated by QEMU (TCG)" in text
    assert "8 under huge and 4,096 under small in each of 4 boots" in text.lower()
    assert RunFolder(Path(results.folder)).opened().pools == {2 * MIB: runs.MEMORY // (2 * MIB)}


def check_facts(attempt: Attempt, backing: str, kind: str) -> None:
    """What the guest was, and that its memory was what the arm promises."""
    facts = attempt.guest
    assert (facts["accelerator"], facts["kernel"], facts["backing"]) == ("tcg", "debian", backing)
    assert len(str(facts["kernel_sha256"])) == 64
    assert facts["guest_memory_bytes"] == runs.MEMORY
    assert facts[f"backing_{kind}"] == runs.MEMORY
    assert facts["backing_share"] == 1.0
    assert {"qemu", "cpu_model", "kernel_release", "kernel_origin", "backing_proof"} <= facts.keys()


# The guest of the arm with huge pages is brought down by its own workload; the other's is not.
PANIC = f"""
format = 1
name = "panic"
policies = ["base", "thp"]
{runs.SHORT}{runs.TCG}memory = "256m"
packages = ["dash"]
{runs.KERNEL}
[[workload]]
name = "command"
user = "root"
timeout = "60s"
delivery = {{ share = 0 }}

[workload.parameters]
argv = [
    "/bin/sh",
    "-c",
    '''
    read -r chosen rest < /sys/kernel/mm/transparent_hugepage/enabled
    if [ "$chosen" = "[always]" ]; then echo c > /proc/sysrq-trigger; fi
    ''',
]
"""


@pytest.mark.soak
def test_a_guest_that_panics_fails_its_attempt_with_its_last_words_and_the_run_goes_on(tmp_path: Path) -> None:
    need_program("mke2fs", "e2fsprogs")
    results = hugewise.run(hugewise.load(runs.write(tmp_path, PANIC)), results=tmp_path / "results")
    assert results.state == "finished"
    counted = runs.counted(results)
    assert Counter((a.arm, a.state) for a in counted) == {("base", "accepted"): 2, ("thp", "failed"): 2}
    for attempt in counted:
        if attempt.state == "accepted":
            continue
        assert attempt.reason is not None
        assert "console: " in attempt.reason
        assert "Kernel panic - not syncing: sysrq triggered crash" in attempt.reason
        assert not attempt.metrics
        assert attempt.ended >= attempt.started
        assert attempt.guest["kernel"] == "debian"  # known, whether or not QEMU was still there to be looked at
        assert "Kernel panic" in (folder_of(results, attempt) / "console.txt").read_text(errors="replace")
    (comparison,) = [c for cell in results.cells for c in cell.comparisons if c.arm == "thp"]
    assert comparison.verdict != "better"
    hugewise.write_reports(results)


HOSTED = f"""
format = 1
name = "both"
policies = ["base", "thp"]
{runs.SHORT}"""
GUEST = f"""{runs.TCG}memory = "512m"
{runs.KERNEL}"""
# One connection: the order of the requests does not hang on how many CPUs the client has.
CACHE = """
[[workload]]
name = "memcached"
timeout = "120s"

[workload.parameters]
instances = 1
keys = 40_000
payload = "1024:1"
memory = "128m"
connections = 1
pipeline = 8
operations = 4_000
"""


def both(folder: Path, workload: str) -> list[tuple[Attempt, ...]]:
    """The accepted attempts of the same study on this host and in guests."""
    items = []
    for place, study in {"host": HOSTED + workload, "guest": HOSTED + GUEST + workload}.items():
        results = hugewise.run(hugewise.load(runs.write(folder, study, place)), results=folder / place)
        counted = tuple(runs.counted(results))
        assert Counter((a.arm, a.state) for a in counted) == {("base", "accepted"): 2, ("thp", "accepted"): 2}
        items.append(counted)
    return items


@pytest.mark.soak
def test_a_server_does_the_same_work_on_the_host_and_in_a_guest_and_is_proven_while_it_lives(tmp_path: Path) -> None:
    need_program("memcached", "memcached")
    need_program("mke2fs", "e2fsprogs")
    here, there = both(tmp_path, CACHE)
    work = [
        {tuple(a.facts[name] for name in ("stored_hash", "sequence_hash", "operations")) for a in attempts}
        for attempts in (here, there)
    ]
    assert work[0] == work[1]
    assert len(work[0]) == 1
    for attempt in there:
        check_no_time(attempt, MEMCACHED.metrics)
        assert attempt.metrics["hit_ratio"] == here[0].metrics["hit_ratio"]
        assert (attempt.delivery.proof, attempt.delivery.source) == ("live", "kpageflags")
        assert attempt.delivery.delivered, attempt.delivery
        footprint, faults = attempt.metrics["footprint_bytes"], attempt.metrics["lifetime_faults"]
        assert footprint is not None
        assert faults is not None
        assert footprint > 40 * MIB
        assert faults > 0
        assert "image" in attempt.guest


HALF_PATCHED = "Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\nKernel panic - not syncing: Fatal exception in interrupt\n"
NO_ROOM = "Kernel panic - not syncing: System is deadlocked on memory\n"


def of_consoles(folder: Path, *consoles: str) -> Results:
    """Of a run with one attempt that was accepted, and one that was rejected for each of these last words."""
    rejected = [trials.attempt("thp", None, block=n, state="rejected", reason="it ended") for n in range(len(consoles))]
    for each, console in zip(rejected, consoles, strict=True):
        made = folder / "attempts" / f"b{each.block:05d}-{each.order}-{each.arm}-{each.number}"
        made.mkdir(parents=True)
        (made / "console.txt").write_text(console)
    return replace(plain(), folder=str(folder), attempts=(trials.attempt("base", 1.0), *rejected))


def test_one_that_the_emulator_brought_down_is_left_out(tmp_path: Path) -> None:
    assert [each.arm for each in counted(of_consoles(tmp_path, HALF_PATCHED))] == ["base"]


@pytest.mark.parametrize("consoles", [(NO_ROOM,), ("",), (HALF_PATCHED, HALF_PATCHED)])
def test_any_other_and_a_second_one_is_a_failure(tmp_path: Path, consoles: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        counted(of_consoles(tmp_path, *consoles))
