"""What the study of two virtual machines does, in a small run: both guests at once, and one after the other.

sysbench in both, a build over NFS in both, and iperf3 from one at a time to this host; one block of each.
"""

import tarfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest

import hugewise
from hugewise.attempt.outcome import last
from hugewise.guests import nfs
from hugewise.host import journal
from hugewise.machine import probe
from hugewise.model import trial
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.trial import Attempt
from hugewise.store.folder import RunFolder
from tests.drive import drive, only_run
from tests.guests import runs
from tests.guests.conftest import Bootable
from tests.requirements import need_program, need_root
from tests.state import page_state

MIB = 1 << 20

pytestmark = pytest.mark.soak

STUDY = f"""
format = 1
name = "pair"
policies = [
    {{ name = "thp", backing = "thp" }},
    {{ name = "static", from = "thp", backing = "hugetlb-2m" }},
]
baseline = "thp"
{runs.SHORT}
[design]
slots = [0, 1]
{runs.TCG}memory = "256m"
network = "user"
nfs = true
{runs.KERNEL}
[[workload]]
name = "sysbench-memory"
concurrency = "together"
parameters = {{ block = "8m", total = "64m", threads = 1 }}

[[workload]]
name = "build"
concurrency = "together"
storage = "nfs"
delivery = {{ share = 0 }}
parameters = {{ project = "make", source = "SOURCE", jobs = 1, reference = false }}

[[workload]]
name = "iperf3"
concurrency = "alone"
parameters = {{ peer = "host", bytes = "4m" }}
"""

# It is built nowhere else than on NFS.
PROJECT = {
    "Makefile": 'all: nfs one.o two.o\nnfs:\n\ttest "$$(stat --file-system --format=%T .)" = nfs\n',
    "one.c": "unsigned one(unsigned a) { return a * 2654435761u; }\n",
    "two.c": "int two(int a) { return a + 40503; }\n",
}


def source(folder: Path) -> Path:
    """The project's archive."""
    tree, archive = folder / "project", folder / "project.tar.gz"
    tree.mkdir()
    for name, text in PROJECT.items():
        (tree / name).write_text(text)
    with tarfile.open(archive, "w:gz") as writing:
        writing.add(tree, "project")
    return archive


@pytest.fixture(scope="module")
def folder(x86: Bootable, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run, interrupted when each workload had one block: a study has two at least. It left nothing."""
    need_root()
    need_program("mke2fs", "e2fsprogs")
    need_program("iperf3", "iperf3")
    runs.need_none(nfs.missing())
    assert x86.kernel.arch == "x86-64"
    place = tmp_path_factory.mktemp("pair")
    study = runs.write(place, STUDY.replace("SOURCE", str(source(place))))
    state, before = page_state(), runs.left()
    try:
        # Attempts that run at once board together, those of iperf3 each for itself.
        done = drive("run", study, place / "results", "--at", "board", "--nth", "5", "--do", "interrupt")
        assert done.returncode == 0, done.stdout + done.stderr
        assert runs.not_as(state) == {}
        assert runs.left() - before == set()
    finally:
        journal.restore()
    return RunFolder(only_run(place / "results"))


def by_cell(folder: RunFolder) -> dict[str, list[Attempt]]:
    """The two attempts of each cell, in their order."""
    by_name: dict[str, list[Attempt]] = {}
    for attempt in sorted(folder.read().attempts, key=lambda each: (each.block, each.order)):
        by_name.setdefault(attempt.cell, []).append(attempt)
    return by_name


def lived(folder: RunFolder, attempt: Attempt) -> tuple[int, int]:
    """When the attempt's QEMU was started and when it ended, ns on this host's clock; told by its launcher."""
    name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
    lines = (folder.path / "attempts" / name / "qemu.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line, type=probe.Event) for line in lines]
    start, end = last(events, probe.Start), last(events, probe.Exit)
    assert start is not None
    assert end is not None
    assert end.code == 0
    return start.t_ns, end.t_ns


def test_every_workload_does_its_work_in_both_guests(folder: RunFolder) -> None:
    assert hugewise.open_results(folder.path).state == "interrupted"
    complete = [block for block in folder.read().blocks if block.state == "complete"]
    assert [block.cell for block in complete] == ["sysbench-memory", "build", "iperf3"]
    cells = by_cell(folder)
    for attempts in cells.values():
        assert Counter((a.arm, a.state, a.exit_code) for a in attempts) == {
            ("thp", "accepted", 0): 1,
            ("static", "accepted", 0): 1,
        }
    for attempt in cells["sysbench-memory"]:
        assert (attempt.facts["moved_mib"], attempt.facts["threads"]) == (64, 1)
    built = cells["build"]
    assert [(a.facts["objects"], a.facts["files"]) for a in built] == [(2, len(PROJECT) + 2)] * 2
    assert len({a.facts["objects_sha256"] for a in built}) == 1
    for attempt in cells["iperf3"]:
        assert attempt.facts["sent_bytes"] == attempt.facts["received_bytes"] == 4 * MIB


def test_each_guest_has_the_backing_of_its_arm(folder: RunFolder) -> None:
    for attempt in folder.read().attempts:
        asked, kind = ("thp", "thp") if attempt.arm == "thp" else ("hugetlb-2m", f"hugetlb:{2 * MIB}")
        assert (attempt.guest["backing"], attempt.guest["backing_share"]) == (asked, 1.0)
        assert attempt.guest[f"backing_{kind}"] == runs.MEMORY
    # A pool for as many guests as live at once: one of the two arms takes from it.
    assert folder.opened().pools == {2 * MIB: runs.MEMORY // (2 * MIB)}


def test_guests_live_at_once_or_one_after_the_other_as_the_study_says(folder: RunFolder) -> None:
    for cell, attempts in by_cell(folder).items():
        (begun, ended), (other_begun, other_ended) = (lived(folder, attempt) for attempt in attempts)
        at_once = max(begun, other_begun) < min(ended, other_ended)
        assert at_once == (cell != "iperf3"), cell


def test_each_has_the_slot_that_the_coin_gave_it(folder: RunFolder) -> None:
    for attempts in by_cell(folder).values():
        block = attempts[0].block
        trials = trial.draw_order(folder.seed(folder.read()), block, ["thp", "static"], 2, cell=attempts[0].cell)
        assert [(a.arm, a.order, a.slot) for a in attempts] == [(t.arm, t.order, t.slot) for t in trials]
        assert sorted(a.slot for a in attempts) == [0, 1]
        for attempt in attempts:
            name = f"b{block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
            asked = msgspec.json.decode((folder.path / "attempts" / name / "qemu.spec.json").read_bytes())
            assert asked["cpus"] == ([0, 1] if attempt.cell == "iperf3" else [attempt.slot])


def test_no_figure_of_time_is_told(folder: RunFolder) -> None:
    for attempt in folder.read().attempts:
        assert (attempt.wall_s, attempt.cpu_s, attempt.series) == (None, None, ())
        told = {name for name, value in attempt.metrics.items() if value is not None}
        assert not {name for name in told if name.endswith(("_s", "_per_s", "_ms", "_share"))}
        assert attempt.absent["wall_s"] == NOT_IN_EMULATION
        assert attempt.metrics["page_faults"]
    report = hugewise.write_reports(hugewise.open_results(folder.path))["markdown"].read_text()
    assert "emulated by QEMU (TCG)" in report
