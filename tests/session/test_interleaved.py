"""Arms side by side that take turns, on the real kernel: what is counted, proven, and left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.attempt import interleaved, runner
from hugewise.attempt.arm_in_turns import ArmInTurns
from hugewise.errors import HugewiseError
from hugewise.host import cgroup, journal
from hugewise.host.cgroup import Freezer
from hugewise.model import trial
from hugewise.model.pages import THP
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.report.reasons import in_words
from hugewise.session import session
from hugewise.session.conductor import Conductor
from hugewise.store.folder import RunFolder
from hugewise.workloads import _mariadb
from hugewise.workloads._tpcc import go_tpc_path
from tests.build import known
from tests.build.services import service
from tests.build.studies import as_toml, study_data, study_of
from tests.drive import drive, words
from tests.requirements import need, need_program
from tests.servers.test_build import archive
from tests.servers.trying import need_pages
from tests.state import run_folders
from tests.wait import has_ended, until

pytestmark = pytest.mark.usefixtures("unchanged")

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
SLICE, WASH_OUT = 0.1, 0.4  # seconds, and the share of it that does not count
KEYS = {
    "keys": 150_000, "instances": 1, "connections": 2, "duration": "300ms", "lead": "100ms", "set_get": "0:1",
}  # fmt: skip
REDIS = {"name": "redis", "parameters": {"allocator": "libc", **KEYS}, "delivery": {"share": 0.7}}
SETTING = {"name": "redis", "parameters": {"allocator": "libc", **KEYS, "set_get": "1:1"}, "delivery": {"share": 0.7}}
MEMCACHED = {"name": "memcached", "parameters": {"memory": "64m", **KEYS}, "delivery": {"share": 0.7}}
PGBENCH: Mapping[str, Any] = {
    "name": "pgbench",
    "parameters": {
        "mode": "select-only", "shared_buffers": "40m", "scale": 1, "clients": 1, "duration": "1s", "lead": "200ms",
    },
}  # fmt: skip
MYSQL = {
    "name": "mysql-ro",
    "parameters": {"tables": 1, "table_size": 20_000, "buffer_pool": "96m", "threads": 1, "duration": "1s"},
    "delivery": {"share": 0.8},
}
TPCB = {"name": "pgbench", "parameters": {**PGBENCH["parameters"], "mode": "tpcb", "clients": 2, "transactions": 1000}}
TPCC = {
    "name": "tpcc",
    "parameters": {"server": "mariadb", "warehouses": 1, "buffers": "192m", "connections": 2, "transactions": 600},
    "delivery": {"share": 0.8},
}
LOOP = "n = 0\nwhile n < {}: n += 1"


def command(code: str) -> dict[str, Any]:
    return {
        "name": "command", "parameters": {"argv": [sys.executable, "-IS", "-c", code]}, "delivery": {"share": 0.0},
    }  # fmt: skip


def keys(workload: Mapping[str, Any], policies: Sequence[Any], **more: Any) -> dict[str, Any]:
    """The keys of a study of one interleaved block."""
    return {
        "policies": list(policies),
        "design": {"kind": "interleaved", "slice": f"{SLICE * 1000:g}ms", "wash_out": WASH_OUT},
        "between": {"settle": "0ms"},
        "budget": {"blocks": 2, "time": "1s"},
        "confidence": 0.9,
        "workload": [{"timeout": "120s", **workload}],
        **more,
    }


def two(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The same policy under two names."""
    again = {"name": "again", "from": "as-is", "environment": {"A": "1"}}
    return keys(workload, ["as-is", again])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow to begin, or to stand still, on a busy machine is not given up."""
    monkeypatch.setattr(interleaved, "_TO_BEGIN_S", 60.0)
    monkeypatch.setattr(Freezer.__init__, "__defaults__", (60.0,))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No folder of a run is left where its processes and data were, and nothing is to be put back."""
    need_pages()
    before = left_over()
    yield
    assert left_over() <= before
    assert journal.restore() == ["nothing to restore"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of several runs, which have their data in common."""
    return tmp_path_factory.mktemp("interleaved")


def left_over() -> set[Path]:
    """Folders of runs, in memory and among the cgroups."""
    return run_folders(*tops(), Path("/dev/shm"))


def tops() -> list[Path]:
    """Where a run has its cgroups."""
    return list(dict.fromkeys(cgroup.find().values()))


class Groups:
    """The cgroups of a run, as anybody can see them: an attempt's, and that of its client beside it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def folders(self) -> Iterator[Path]:
        for top in tops():
            with suppress(FileNotFoundError):
                yield from (top / f"hugewise-{self.pid}").iterdir()

    def attempts(self) -> dict[str, bool]:
        """Whether all processes of an attempt stand still, by its name; only of those that have any."""
        groups: dict[str, bool] = {}
        for group in self.folders():
            if text(group / "cgroup.procs"):
                said = text(group / "cgroup.events") + text(group / "freezer.state")
                groups[group.name] = groups.get(group.name, False) or "frozen 1" in said or "FROZEN" in said
        found: dict[str, bool] = {}
        for name, still in groups.items():
            attempt = name.removesuffix("-client")
            found[attempt] = found.get(attempt, True) and still
        return found

    def at_once(self) -> dict[str, bool]:
        """The same at one moment: two looks within less than a slice that found the same."""
        while True:
            begun, one = time.monotonic(), self.attempts()
            if self.attempts() == one and time.monotonic() - begun < SLICE / 4:
                return one

    def is_turning(self, number: int = 1) -> bool:
        """Whether of two arms one stands still and the other does not, in their attempt of that number."""
        found = self.at_once()
        return {*found.values()} == {True, False} and all(name.endswith(f"-{number}") for name in found)

    def processes(self, of: str = "") -> list[int]:
        """Those in the groups whose names end so."""
        found = (text(group / "cgroup.procs") for group in self.folders() if group.name.endswith(of))
        return sorted({int(word) for each in found for word in each.split()})

    def kill(self, of: str) -> None:
        for pid in self.processes(of):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def text(file: Path) -> str:
    """Of a group that may be gone, or has no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""


@dataclass
class Diary:
    """What all sides were whenever one of them had been thawed or frozen, in this process.

    frozen  when each side was frozen for the first time, in UTC epoch seconds
    """

    seen: list[dict[str, bool]] = field(default_factory=list)
    frozen: dict[int, float] = field(default_factory=dict)

    def together(self, since: float) -> float:
        """For how long all went on at once before their turns: seconds from then on."""
        return max(self.frozen.values()) - since

    def turns(self) -> Counter[tuple[str, ...]]:
        """Who went on at a time, from when the first one stood still until the last one did."""
        still = [any(each.values()) for each in self.seen]
        within = self.seen[still.index(True) : len(still) - still[::-1].index(True)]
        return Counter(tuple(sorted(name for name, stands in each.items() if not stands)) for each in within)


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    made = Diary()

    def noting(act: Callable[[ArmInTurns], None], *, freezes: bool) -> Callable[[ArmInTurns], None]:
        def noted(side: ArmInTurns) -> None:
            act(side)
            made.seen.append(Groups(os.getpid()).attempts())
            if freezes:
                made.frozen.setdefault(id(side), time.time())

        return noted

    monkeypatch.setattr(ArmInTurns, "release", noting(ArmInTurns.release, freezes=False))
    monkeypatch.setattr(ArmInTurns, "freeze", noting(ArmInTurns.freeze, freezes=True))
    return made


@pytest.fixture(autouse=True)
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first block is closed, the time of a run in this process is up: on the quickest machine, too."""
    monkeypatch.setattr(Conductor, "_late", lambda conductor, _: conductor._in_session.total() > 0)


def run(
    asked: Mapping[str, Any], results: Path, at_turns: Callable[[], None] = lambda: None, seed: bytes | None = None
) -> Results:
    """A whole run; `at_turns` is done once, when all arms of the first block are up and before anybody waits for
    their turns: the run stands still until it is done.
    """
    left = [at_turns]

    def first(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*given: Any, **named: Any) -> Any:
            while left:
                left.pop()()
            return wait(*given, **named)

        return waited

    with pytest.MonkeyPatch.context() as patched:
        for name in ("ends", "take_turns"):  # of servers that one client visits, and of all others
            patched.setattr(interleaved, name, first(getattr(interleaved, name)))
        folder = session.run(study_of(**asked), results, seed=seed)
    assert not left
    return hugewise.open_results(folder.path)


def run_beside(asked: Mapping[str, Any], results: Path, at_launch: Callable[[], None]) -> Results:
    """A whole run; `at_launch` is done beside its first turns."""
    beside: list[threading.Thread] = []

    def on_step(step: str) -> None:
        if step == "launch" and not beside:
            beside.append(threading.Thread(target=at_launch))
            beside[0].start()

    folder = session.run(study_of(**asked), results, on_step=on_step)
    for thread in beside:
        thread.join(60)
    return hugewise.open_results(folder.path)


def folder(results: Results, attempt: Attempt) -> Path:
    name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
    return Path(results.folder) / "attempts" / name


def accepted(results: Results, arms: Sequence[str]) -> dict[str, Attempt]:
    """The attempts by arm, of which there is one each; all count, and are delivered.

    Those are passed over meanwhile khugepaged collapsed another process's memory: its counter is the machine's.
    """
    attempts = [one for one in results.attempts if "khugepaged collapsed" not in (one.reason or "")]
    said = {one.arm: (one.state, one.reason, one.delivery.delivered, one.delivery.reason) for one in attempts}
    assert {arm: (state, shown) for arm, (state, _, shown, _) in said.items()} == dict.fromkeys(
        arms, ("accepted", True)
    ), said
    assert len(attempts) == len(arms)
    assert results.state == "time is up"
    return {one.arm: one for one in attempts}


def names_its_design(results: Results) -> None:
    """Each line with a figure names the design; no calibration is asked for."""
    for comparison in results.cells[0].comparisons:
        assert "withheld" not in in_words(comparison.reason)
        assert "side by side, which take turns" in comparison.estimand


def chosen(knob: str) -> str:
    """The word of a knob that holds now."""
    return next(word.strip("[]") for word in Path(THP, knob).read_text().split() if word.startswith("["))


# -- one client visits all


@pytest.mark.parametrize(
    ("workload", "arms"),
    [
        pytest.param(REDIS, ("base", "thp", "hugetlb-2m"), id="redis"),
        pytest.param(SETTING, ("base", "thp"), id="redis-set", marks=pytest.mark.soak),
        pytest.param(MEMCACHED, ("base", "thp"), id="memcached", marks=pytest.mark.soak),
    ],
)
def test_one_client_visits_servers_that_were_each_brought_up_under_its_own_treatment(
    tmp_path: Path, workload: Mapping[str, Any], arms: Sequence[str]
) -> None:
    server = {"redis": "redis-server"}.get(str(workload["name"]), str(workload["name"]))
    need_program(server, server)
    meanwhile: dict[str, Any] = {}

    def look() -> None:
        meanwhile.update(enabled=chosen("enabled"), pool=int((POOL / "nr_hugepages").read_text()))

    # The setting that all share is then not what the last of them left.
    seed = next(
        seed for seed in (bytes([n] * 16) for n in range(99)) if trial.draw_order(seed, 1, arms)[-1].arm == "thp"
    )
    results = run(keys(workload, arms), tmp_path, look, seed)
    found = accepted(results, arms)
    names_its_design(results)

    assert {arm: one.knobs[f"{THP}/enabled"] for arm, one in found.items()} == {
        arm: "always" if arm == "thp" else "never" for arm in arms
    }
    assert meanwhile["enabled"] == "never"
    assert (meanwhile["pool"] > 0) == ("hugetlb-2m" in arms)
    for arm, kind in (("thp", "anon:2097152"), ("hugetlb-2m", "hugetlb:2097152")):
        if arm in arms:
            assert found[arm].delivery.coverage[kind] > 10 << 20

    told = next(path for one in found.values() if (path := folder(results, one) / "spec.json").exists())
    argv = json.loads(told.read_bytes())["argv"]
    rounds = 5  # in each of which 60 ms count, of 300 ms asked for
    turns = itertools.cycle(trial.draw_turns(bytes.fromhex(known(results.seed)), 1, len(arms)))
    assert argv[argv.index("--turns") + 1] == "".join(itertools.islice(turns, rounds * len(arms)))

    loads = {arm: load_events(results, one) for arm, one in found.items()}
    assert {arm: len(said) for arm, said in loads.items()} == dict.fromkeys(arms, 1)
    # Whose servers they are: each arm's have a folder of their own, which has the number of its trial.
    for arm, (said,) in loads.items():
        (place,) = {Path(one["server"].removeprefix("unix:")).parent for one in said["timed"]["instances"]}
        assert place.parent.name == str(found[arm].order)
    for fact in ("sequence_hash", "slice_operations", "operations", "turns"):
        assert len({one.facts[fact] for one in found.values()}) == 1, fact
    for one in found.values():
        assert one.facts["turns"] == rounds
        washed = 1 - int(one.facts["operations"]) / int(one.facts["operations_with_wash_out"])
        assert washed == pytest.approx(WASH_OUT, abs=0.02)
        assert known(one.metrics["ops_per_s"]) > 0
        if workload is SETTING:  # what is set was there: the store is written, and does not grow
            assert int(one.facts["evicted_keys"]) == 0
        assert one.absent["wall_s"].startswith("one client was timed")


def load_events(results: Results, attempt: Attempt) -> list[dict[str, Any]]:
    lines = (folder(results, attempt) / "events.jsonl").read_bytes().splitlines()
    return [event for event in map(json.loads, lines) if event["ev"] == "load"]


# -- each has its own client


def need_database(workload: Mapping[str, Any]) -> None:
    if workload["name"] == "pgbench":
        need(any(Path("/usr/lib/postgresql").glob("*/bin/initdb")), "PostgreSQL (apt install postgresql-15)")
    else:
        if workload["name"] == "tpcc":
            need(go_tpc_path() is not None, "go-tpc (make go-tpc)")
        else:
            need_program("sysbench", "sysbench")
        need(not _mariadb.missing(), "mariadbd (apt install mariadb-server)")


@pytest.mark.parametrize(
    "workload", [pytest.param(PGBENCH, id="pgbench"), pytest.param(MYSQL, id="mysql-ro", marks=pytest.mark.soak)]
)
def test_clients_and_servers_of_one_arm_go_on_at_a_time_and_only_that_is_counted(
    kept: Path, workload: Mapping[str, Any], diary: Diary
) -> None:
    need_database(workload)
    arms = ("base", "hugetlb-2m")
    results = run(keys(workload, arms), kept)
    found = accepted(results, arms)
    names_its_design(results)

    went_on = diary.turns()
    assert {len(names) for names in went_on} <= {0, 1}, went_on
    assert len([names for names in went_on if names]) == len(arms), went_on

    for one in found.values():
        assert known(one.wall_s) >= 1
        for metric in ("page_faults", "cpu_s", "footprint_bytes"):
            assert one.metrics.get(metric) is not None, (metric, one.absent)
    assert sum(known(one.wall_s) for one in found.values()) <= found["base"].ended - found["base"].started


@pytest.mark.parametrize("workload", [TPCB, TPCC], ids=["pgbench-tpcb", "tpcc"])
@pytest.mark.soak
def test_writers_do_the_same_work_in_their_turns_and_it_is_said_what_grew(
    kept: Path, workload: Mapping[str, Any]
) -> None:
    need_database(workload)
    arms = ("base", "hugetlb-2m")
    found = accepted(run(keys(workload, arms), kept), arms)
    work = workload["parameters"]["transactions"]
    metric = "tps" if workload is TPCB else "tpm_total"
    for one in found.values():
        assert known(one.metrics[metric]) > 0 and known(one.metrics["server_cpu_us"]) > 0
        assert 0 < known(one.wall_s) < one.ended - one.started
        if workload is TPCB:
            assert (one.facts["transactions_made"], one.facts["checkpoints"]) == (work, 0)
            assert 0.3 * work < int(one.facts["transactions"]) <= work, "what is washed out does not count"
        else:
            assert int(one.facts["transactions"]) + int(one.facts["failed"]) == work
    log = "wal_grew_bytes" if workload is TPCB else "redo_grew_bytes"
    grown = [int(one.facts[log]) for one in found.values()]
    # InnoDB writes for its own sake too (a purge, a page that is merged), whoever's turn it is.
    assert min(grown) > 100 * work and max(grown) < (1.5 if workload is TPCB else 4) * min(grown)
    assert sum(known(one.wall_s) for one in found.values()) <= found["base"].ended - found["base"].started


def test_commands_have_their_own_time_and_that_of_nobody_else(tmp_path: Path, diary: Diary) -> None:
    results = run(two(command(LOOP.format(3_000_000))), tmp_path)
    found = {one.arm: one for one in results.attempts}
    assert {arm: (one.state, one.reason) for arm, one in found.items()} == dict.fromkeys(
        ("as-is", "again"), ("accepted", None)
    )
    names_its_design(results)
    one, other = found.values()
    have_their_own_time(one, other, diary)
    for each in (one, other):
        assert known(each.cpu_s) > 0.05


def have_their_own_time(one: Attempt, other: Attempt, diary: Diary) -> None:
    """One at a time goes on, and they begin together: with the time in which they were frozen it would be nearly twice
    as much.
    """
    assert {len(names) for names in diary.turns()} <= {0, 1}, diary.turns()
    assert known(one.wall_s) + known(other.wall_s) <= one.ended - one.started + diary.together(one.started)


def test_a_command_with_a_socket_is_refused_with_the_cure(tmp_path: Path) -> None:
    code = "import socket, time\na, b = socket.socketpair()\ntime.sleep(1)"
    # Time enough for every block that is tried before the run gives up.
    asked = two(command(code)) | {"attempt": {"retries": 0}, "budget": {"blocks": 5, "time": "10m"}}
    with pytest.raises(HugewiseError, match="5 blocks in a row do not count") as error:
        session.run(study_of(**asked), tmp_path)
    for said in ("has a socket: who is at its other end may not wait", '[design] kind = "sequential"'):
        assert said in error.value.message
    (run_folder,) = tmp_path.glob("s/*")
    stored = RunFolder(run_folder).read()
    assert {block.state for block in stored.blocks} == {"incomplete"}
    assert {one.state for one in stored.attempts} == {"rejected"}


# 64 MiB that are touched step by step, held for many slices of CPU time, and freed before the end.
TOUCHES = """
import mmap, time
held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 4096):
    held[at] = 1
    for _ in range(500):
        pass
until = time.process_time() + 1
while time.process_time() < until:
    pass
held.close()
n = 0
while n < 500_000: n += 1
"""


def test_commands_take_their_memory_in_turns_each_under_its_own_knobs(tmp_path: Path) -> None:
    """The pages are proven while the command is frozen: at its end it has none of them any more."""
    arms = ("base", "mthp-64k", "thp")
    asked = keys({**command(TOUCHES), "delivery": {"share": 0.5}}, arms)
    khugepaged = Path(THP, "khugepaged")
    meanwhile: list[str] = []
    before = (khugepaged / "scan_sleep_millisecs").read_text()
    results = run(asked, tmp_path, lambda: meanwhile.append((khugepaged / "scan_sleep_millisecs").read_text().strip()))
    found = accepted(results, arms)
    small = f"{THP}/hugepages-64kB/enabled"
    assert {arm: (one.knobs[f"{THP}/enabled"], one.knobs[small]) for arm, one in found.items()} == {
        "base": ("never", "always"), "mthp-64k": ("never", "always"), "thp": ("always", "never")
    }  # fmt: skip
    assert {arm: one.knobs.get("PR_SET_THP_DISABLE") for arm, one in found.items()} == {
        "base": "all", "mthp-64k": None, "thp": None
    }  # fmt: skip
    for arm, size in (("base", 4096), ("mthp-64k", 65536), ("thp", 2 << 20)):
        assert found[arm].delivery.coverage[f"anon:{size}"] > 32 << 20, found[arm].delivery
    assert meanwhile == [str((1 << 32) - 1)]
    assert (khugepaged / "scan_sleep_millisecs").read_text() == before


def test_a_build_takes_turns_process_by_process_and_makes_the_same_objects(tmp_path: Path, diary: Diary) -> None:
    """All compilers of an arm stand still while the other arm works. What is made is held against the reference."""
    need_program("make", "make")
    need_program("gcc", "gcc")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        source = str(archive(Path(place), functions=3000))
        workload = {"name": "build", "parameters": {"project": "make", "source": source}, "delivery": {"share": 0.3}}
        results = run(keys(workload, ["base", "mthp-64k"]), tmp_path)
    found = accepted(results, ("base", "mthp-64k"))
    names_its_design(results)
    one, other = found.values()
    have_their_own_time(one, other, diary)
    assert {one.delivery.proof, other.delivery.proof} == {"live"}  # they were scanned while they were frozen
    for each in (one, other):
        worked = known(each.metrics["user_s"]) + known(each.metrics["system_s"])
        assert 0 < worked <= known(each.wall_s) * (os.cpu_count() or 1)
        assert known(each.metrics["page_faults"]) > 1000


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "parameters"), [("x264", {"length": 0.2}), ("integer-set", {"program": "xz", "size": 0.5})]
)
def test_a_workload_without_servers_takes_turns(
    kept: Path, diary: Diary, name: str, parameters: Mapping[str, Any]
) -> None:
    need_program("ffmpeg", "ffmpeg")
    # What so short a run promises is not asserted: of clips of some frames thp has two thirds.
    results = run(keys({"name": name, "parameters": parameters, "delivery": {"share": 0.3}}, ["base", "thp"]), kept)
    found = accepted(results, ("base", "thp"))
    one, other = found.values()
    have_their_own_time(one, other, diary)
    for each in found.values():
        assert each.delivery.coverage
    if name == "x264":  # its rate is by the time of its turns
        rates = [known(each.metrics["files_per_s"]) * known(each.wall_s) for each in found.values()]
        assert rates == pytest.approx([4 * (os.cpu_count() or 1)] * 2, rel=0.005)


# -- what goes wrong meanwhile


def test_a_server_that_dies_under_the_client_of_all_has_failed_and_the_others_are_visited(tmp_path: Path) -> None:
    need_program("redis-server", "redis-server")
    arms = ("base", "thp", "hugetlb-2m")

    def kill() -> None:
        groups = Groups(os.getpid())
        until(lambda: groups.processes("-client"), "its client is there")
        groups.kill("hugetlb-2m-1")

    longer = {**REDIS, "parameters": {"allocator": "libc", **KEYS, "duration": "3s"}}
    results = run(keys(longer, arms), tmp_path, kill)
    assert failed(results, arms).startswith("redis-0 ended during the attempt (signal 9)")
    told = [one.facts for one in results.attempts if one.state == "accepted"]
    assert len({one["sequence_hash"] for one in told}) == len({one["operations"] for one in told}) == 1


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        ("hugetlb-2m-1", "postgres ended during the attempt (signal 9)"),
        ("hugetlb-2m-1-client", "its client ended before all turns were over (signal 9)"),
    ],
    ids=["server", "client"],
)
@pytest.mark.soak
def test_who_dies_in_the_turns_has_failed_and_the_others_go_on(kept: Path, of: str, reason: str) -> None:
    """Made again it would be judged by the attempts that it survived."""
    need_database(PGBENCH)
    arms = ("base", "hugetlb-2m")

    def kill() -> None:
        groups = Groups(os.getpid())
        until(groups.is_turning, "one arm is frozen", seen=groups.attempts)
        groups.kill(of)

    results = run_beside(keys(PGBENCH, arms), kept, kill)
    assert failed(results, arms).startswith(reason)


def failed(results: Results, arms: Sequence[str]) -> str:
    """Why the arm of which something was killed has failed; all others count, and nothing is made again."""
    found = {one.arm: one for one in results.attempts}
    assert len(results.attempts) == len(found)
    said = {arm: (one.state, one.reason) for arm, one in found.items()}
    reason = known(found["hugetlb-2m"].reason)
    assert said == dict.fromkeys(arms, ("accepted", None)) | {"hugetlb-2m": ("failed", reason)}
    assert (results.state, results.blocks_complete) == ("time is up", 1)
    for comparison in results.cells[0].comparisons:
        assert comparison.failures_arm == (comparison.arm == "hugetlb-2m")
        assert (comparison.failures_baseline, comparison.unstarted_arm, comparison.n) == (0, 0, 1)
    return reason


@contextmanager
def in_turns(results: Path, asked: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process group of its own while one of its arms is frozen, which is then to be ended.

    Nothing of it is left after that, and it can be resumed.
    """
    if asked["workload"][0]["name"] == "pgbench":
        need_database(PGBENCH)
    path = results / "s.toml"
    path.write_text(as_toml(study_data(**asked)))
    before = {*results.glob("s/*")}
    HELD.touch()
    begun = subprocess.Popen(words("run", path, results), stdout=subprocess.DEVNULL, start_new_session=True)
    groups = Groups(begun.pid)
    try:
        until(lambda: begun.poll() is not None or groups.is_turning(), "one arm is frozen", seen=groups.attempts)
        assert begun.poll() is None, "it ended before its turns"
        pids = groups.processes()
        assert pids
        yield begun
    finally:
        HELD.unlink()
        begun.kill()
        begun.wait()
    until(lambda: all(map(has_ended, pids)), "its processes have ended")
    assert not {path for path in left_over() if path.name == f"hugewise-{begun.pid}"}
    (folder,) = {*results.glob("s/*")} - before
    resumed = hugewise.resume(folder)
    assert resumed.blocks_complete >= 1  # a second one fits into its time where the machine is quick
    torn = [one for one in resumed.attempts if one.block == 1]
    last = max(one.number for one in torn)
    assert [one.state for one in torn if one.number == last] == ["accepted"] * 2


# It has turns for as long as this file is there, and some more.
HELD = Path(tempfile.gettempdir()) / f"hw-held-{os.getpid()}"
GOES_ON = f"import os\nwhile os.path.exists({str(HELD)!r}): pass\n{LOOP.format(3_000_000)}"
TORN = [
    pytest.param(two(command(GOES_ON)), id="command"),
    pytest.param(keys(command(GOES_ON), ["mthp-64k", "thp"]), id="knobs"),
    pytest.param(keys(PGBENCH, ["base", "hugetlb-2m"]), id="pgbench", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("asked", TORN)
def test_killed_while_an_arm_is_frozen_it_is_restored_and_resumed(kept: Path, asked: Mapping[str, Any]) -> None:
    with in_turns(kept, asked) as begun:
        begun.kill()
        begun.wait(60)
        journal.restore()


@pytest.mark.parametrize("asked", TORN)
@pytest.mark.soak
def test_interrupted_while_an_arm_is_frozen_it_ends_by_itself_and_is_resumed(
    kept: Path, asked: Mapping[str, Any]
) -> None:
    with in_turns(kept, asked) as begun:
        os.killpg(begun.pid, signal.SIGINT)
        begun.wait(60)
        assert journal.restore() == ["nothing to restore"]


STEPS = [step.__name__ for step in runner.STEPS]


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in ("apply", "launch") else pytest.mark.soak) for step in STEPS]
)
def test_killed_at_any_step_of_its_turns_nothing_is_left_and_it_is_resumed(tmp_path: Path, step: str) -> None:
    mark = f"# {tmp_path}"
    asked = keys(command(f"{mark}\n{LOOP.format(3_000_000)}"), ["mthp-64k", "thp"])
    path = tmp_path / "s.toml"
    path.write_text(as_toml(study_data(**asked)))
    killed = drive("run", path, tmp_path, "--at", step, "--nth", "1", "--do", "kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    journal.restore()
    until(lambda: not any(mark in text(file) for file in Path("/proc").glob("[0-9]*/cmdline")), "they are gone")
    (folder,) = tmp_path.glob("s/*")
    assert hugewise.resume(folder).blocks_complete >= 1


# -- a service, whose load ends by itself


def test_a_service_and_its_load_go_on_together_and_have_their_own_time(tmp_path: Path, diary: Diary) -> None:
    asked = two({"name": "service", "parameters": service(asked=1500, environment=["HELD=16"])})
    results = run(asked, tmp_path)
    found = {one.arm: one for one in results.attempts}
    assert {arm: (one.state, one.reason) for arm, one in found.items()} == dict.fromkeys(
        ("as-is", "again"), ("accepted", None)
    )
    names_its_design(results)
    one, other = found.values()
    have_their_own_time(one, other, diary)
    for each in (one, other):
        assert known(each.wall_s) > 0.2
        assert known(each.metrics["server_cpu_s"]) > 0
        assert known(each.peak_bytes) > 16 << 20


@pytest.mark.soak
def test_a_service_that_nobody_fills_takes_its_memory_in_turns_under_its_own_knobs(tmp_path: Path) -> None:
    workload = {"name": "service", "parameters": service(asked=1500, environment=["HELD=64"])}
    results = run(keys({**workload, "delivery": {"share": 0.5}}, ["base", "mthp-64k", "thp"]), tmp_path)
    found = accepted(results, ("base", "mthp-64k", "thp"))
    names_its_design(results)
    assert found["thp"].delivery.coverage["anon:2097152"] > 40 << 20
    assert found["mthp-64k"].delivery.coverage["anon:65536"] > 40 << 20


@pytest.mark.soak
def test_a_service_that_was_filled_is_proven_before_its_turns_and_after(tmp_path: Path) -> None:
    workload = {
        "name": "service",
        "parameters": service(asked=1200, environment=["HELD=64"], fill=["/bin/true"]),
        "delivery": {"share": 0.7},
    }
    meanwhile: dict[str, str] = {}
    results = run(keys(workload, ["base", "thp"]), tmp_path, lambda: meanwhile.update(enabled=chosen("enabled")))
    found = accepted(results, ("base", "thp"))
    assert meanwhile == {"enabled": "never"}
    assert found["thp"].delivery.coverage["anon:2097152"] > 40 << 20
    assert found["thp"].knobs[f"{THP}/enabled"] == "always"


def test_a_server_that_dies_in_its_turns_has_failed(tmp_path: Path) -> None:
    results = run(two({"name": "service", "parameters": service("mortal")}), tmp_path)
    assert {(one.arm, one.state) for one in results.attempts} == {("as-is", "failed"), ("again", "failed")}
    for one in results.attempts:
        assert known(one.reason).startswith("server ended during the attempt (exit status 7)")
