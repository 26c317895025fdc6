"""What could make the verdict of an interleaved block false, or leave something behind: each was found by an attack."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hugewise.attempt import interleaved, runner
from hugewise.attempt.arm_in_turns import ArmInTurns
from hugewise.attempt.context import AttemptState, Group
from hugewise.attempt.driver import AttemptDriver
from hugewise.attempt.interleaved import _without_rests
from hugewise.attempt.launching import _said
from hugewise.attempt.outcome import Problem
from hugewise.attempt.recording import stored
from hugewise.errors import AttemptLostError, HugewiseError
from hugewise.machine import noise, probe
from hugewise.machine.machine import Contained
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Attempt, DeliveryThreshold, at_fault
from hugewise.model.workload import Launch
from tests.attempt.test_disturbances import FILES
from tests.attempt.test_runner_guests import SAID, FakeGuest, FakeMachine, Fault, bench, trial
from tests.build import trials
from tests.build.hosts import Files
from tests.build.studies import an_arm, cell_of
from tests.machine.test_serving import Launcher

BASE = PageTarget("base", 4096)
EVENTS = list(probe.decode(msgspec.json.encode(event) + b"\n" for event in SAID))


class OnThisHost(FakeGuest):
    """What is played without a guest: the machine's counters are of all that runs on it."""

    own = False


class Filled(AttemptDriver):
    """Servers whose memory was looked at before their turns, and after."""

    served = True
    counted = "nothing was counted"

    def __init__(self, filled: Sequence[probe.Coverage] | None, coverage: Sequence[probe.Coverage]) -> None:
        self.filled, self.coverage = filled, coverage


def pages(**sizes: int) -> list[probe.Coverage]:
    """A server with so many bytes, as in `anon_4096 = 8192`."""
    seen = {name.replace("_", ":"): size for name, size in sizes.items()}
    return [probe.Coverage(7, "server", True, "kpageflags", seen, False, 1)]


def recorded(folder: Path, *plays: AttemptDriver, events: Sequence[probe.Event] = EVENTS) -> list[Attempt]:
    """What is stored of the arms of one block, two of which promise base pages."""
    arms = [an_arm(name, BASE) for name in ("base", "thp")]
    cell = cell_of(Fault(), *arms, kind="interleaved", delivery=DeliveryThreshold(0.9, 0.1))
    works = []
    for order, (arm, play) in enumerate(zip(arms, plays, strict=True)):
        aboard = OnThisHost(FakeMachine(emulated=False))
        work = AttemptState(arm, trial(arm.name, order), 1, folder, aboard=aboard, driver=play, events=list(events))
        work.launch = Launch(argv=("true",), proof="live")
        works.append(work)
    group = Group(bench(folder), cell, works, "01")
    group.background = {"kcompactd": 9.0}
    group.before = noise.snapshot(Files(FILES))
    group.after = noise.snapshot(Files({**FILES, "/proc/38/stat": FILES["/proc/38/stat"].replace(" 100 ", " 300 ")}))
    for work in works:
        work.before, work.after = group.before, group.after
    return [stored(group, work) for work in works]


@dataclass
class Frozen(Contained):
    """A group of which it is kept whether it stands still. `breaks` is what it does not do."""

    breaks: str = ""
    still: bool = False
    procs_files: tuple[Path, ...] = (Path("cgroup.procs"),)

    def freeze(self) -> None:
        self.turn("freeze", still=True)

    def thaw(self) -> None:
        self.turn("thaw", still=False)

    def turn(self, word: str, *, still: bool) -> None:
        if self.breaks == word:
            raise HugewiseError(f"the cgroup does not {word} within 5 s")
        self.still = still


def launched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *groups: Contained
) -> tuple[list[AttemptState], list[list[probe.Event]]]:
    """Commands in these groups had their turns; their launchers end when they are asked to."""
    arms = [an_arm(f"arm-{number}") for number in range(len(groups))]
    works = [
        AttemptState(arm, trial(arm.name, order), 1, folder, driver=AttemptDriver(), leaf=leaf)
        for order, (arm, leaf) in enumerate(zip(arms, groups, strict=True))
    ]
    group = Group(bench(folder), cell_of(Fault(), *arms, kind="interleaved"), works, "01")
    running = [Launcher() for _ in works]

    def probes(*_: object, beside: AttemptDriver, **__: object) -> list[list[probe.Event]]:
        for launcher in running:
            launcher.end(0)
        beside.timing(held=False)(running)
        return [list(EVENTS) for _ in works]

    monkeypatch.setattr(interleaved, "probes", probes)
    return works, interleaved.launch(group, works)


@pytest.mark.parametrize("breaks", ["freeze", "thaw"])
def test_who_does_not_obey_is_tried_again_and_leaves_nobody_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """A server that hangs in the kernel ended the whole run, and those after it stayed frozen."""
    groups = [Frozen(), Frozen(breaks=breaks), Frozen()]
    works, events = launched(tmp_path, monkeypatch, *groups)
    assert [work.driver.problem for work in works] == [
        None,
        Problem("rejected", f"the cgroup does not {breaks} within 5 s"),
        None,
    ]
    assert events == [[], [], []] and not any(group.still for group in (groups[0], groups[2]))


def test_without_cgroups_no_arm_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HugewiseError, match="without a cgroup"):
        launched(tmp_path, monkeypatch, Contained(), Contained())


def test_who_is_on_its_way_out_has_the_time_to_itself(tmp_path: Path) -> None:
    """What gives its memory back goes on in a frozen group: that time was taken off as if it had stood still."""
    arm, running = an_arm("base"), Launcher()
    side = ArmInTurns(AttemptState(arm, trial(), 1, tmp_path, leaf=Frozen()), (Frozen(),), running)
    said = tmp_path / "events.jsonl"
    said.touch()
    assert not side.wait(time.monotonic() + 0.01)
    said.write_text("start")
    begun = time.monotonic()
    threading.Timer(0.1, running.end, [0]).start()
    assert side.wait(begun + 0.01) and time.monotonic() - begun >= 0.1


def test_nothing_is_taken_off_the_time_after_the_exit() -> None:
    """Else who has more pages to look at and to give back, which are the small ones, is faster by as much."""
    start = 10_000_000_000
    leaves, looked, gone = start + 2_000_000_000, start + 3_000_000_000, start + 3_500_000_000
    said = probe.Exit(gone, 2_500_000_000, 0, None, False, 0, 0, looked_ns=(leaves, looked))
    rests = [(10.5, 11.5), (12.25, 12.75), (13.25, 13.5), (20.0, 21.0)]  # before it, within, after, and not any more
    (found,) = _without_rests([said], rests)
    assert isinstance(found, probe.Exit) and found.wall_ns == 1_500_000_000
    (across,) = _without_rests([said], [(11.5, 13.25)])
    assert isinstance(across, probe.Exit) and across.wall_ns == 2_000_000_000
    (unseen,) = _without_rests([msgspec.structs.replace(said, looked_ns=None)], [(10.5, 11.5)])
    assert isinstance(unseen, probe.Exit) and unseen.wall_ns == 1_500_000_000


def test_pages_that_nobody_could_see_before_the_turns_are_not_proven(tmp_path: Path) -> None:
    """Else whoever had other pages at first, and lost them, would pass by what is there in the end."""
    base, huge = pages(anon_4096=8192), pages(anon_2097152=2 << 20)
    seen, unseen = recorded(tmp_path, Filled(base, base), Filled([], base))
    assert (seen.delivery.delivered, unseen.delivery.delivered) == (True, None)
    assert unseen.delivery.reason == "before its turns: no memory was found to prove it by"
    without_turns, changed = recorded(tmp_path / "again", Filled(None, base), Filled(huge, base))
    assert (without_turns.delivery.delivered, changed.delivery.delivered) == (True, False)


def test_the_kernels_work_for_all_arms_is_no_figure_of_one(tmp_path: Path) -> None:
    """The same figure in all of them would be a ratio of exactly 1, and arms `equivalent` that nobody has compared."""
    base = pages(anon_4096=8192)
    for attempt in recorded(tmp_path, Filled(base, base), Filled(base, base)):
        for name in ("khugepaged_cpu_s", "kcompactd_cpu_s", "kswapd_cpu_s", "swap_bytes"):
            assert attempt.metrics[name] is None
            assert attempt.absent[name] == "it is of the machine, which the arms shared"
        assert attempt.state == "accepted" and attempt.metrics["cpu_s"] is None
    alone = recorded(tmp_path / "own", AttemptDriver(), AttemptDriver())
    assert [any("which share it" in said for said in one.disturbances) for one in alone] == [True, True]


def test_a_timed_command_that_was_ended_had_the_time_of_all_turns(tmp_path: Path) -> None:
    late = [msgspec.structs.replace(each, timed_out=True) if isinstance(each, probe.Exit) else each for each in EVENTS]
    found = recorded(tmp_path, Filled([], []), Filled([], []), events=late)
    told = {(attempt.reason, attempt.timed_out) for attempt in found}
    assert told == {("timed out after 150 s", True)}  # 30 s of the cell, two arms, a fifth washed out, and scans


def test_a_command_has_its_timeout_of_its_own_turns(tmp_path: Path) -> None:
    """It is launched with the time of all turns; in sequence it would have been ended."""
    for wall_s, state in ((29.0, "accepted"), (31.0, "failed")):
        events = [
            msgspec.structs.replace(each, wall_ns=round(wall_s * 1e9))
            if isinstance(each, probe.Exit | probe.Result)
            else each
            for each in EVENTS
        ]
        found = recorded(tmp_path / state, Filled([], []), Filled([], []), events=events)
        assert {(attempt.state, attempt.timed_out) for attempt in found} == {(state, state == "failed")}
    assert {attempt.reason for attempt in found} == {"timed out after 30 s of its turns"}


@pytest.mark.parametrize(("visited", "arm"), [(True, None), (False, "thp")])
def test_the_client_of_all_arms_is_lost_to_all_of_them(tmp_path: Path, visited: bool, arm: str | None) -> None:
    """Its launcher stands below the folder of the first arm, which is the coin's."""
    job = SimpleNamespace(events=tmp_path / "none", stderr=tmp_path / "stderr", told=tmp_path / "spec.json")
    job.stderr.touch()
    work = SimpleNamespace(driver=SimpleNamespace(visited=visited), trial=SimpleNamespace(label="thp"))
    with pytest.raises(AttemptLostError, match="killed by signal 9") as caught:
        _said(cast(Any, work), cast(Any, job), -9)
    assert caught.value.arm == arm


def test_who_has_failed_beside_one_that_is_made_again_stays_known_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are made again; but an arm whose server died is not made again as if nothing had been."""
    plays = [Filled([], []) for _ in range(3)]
    plays[1].problem = Problem("failed", "postgres ended during the attempt (signal 9)")
    plays[2].problem = Problem("rejected", "the cgroup does not freeze within 5 s")
    arms = ("base", "thp", "other")
    attempts = {"base": trials.attempt("base", 1.0)}
    for arm, play in zip(arms[1:], plays[1:], strict=True):
        assert play.problem is not None
        attempts[arm] = trials.attempt(arm, None, state=play.problem.state, reason=play.problem.reason)
    monkeypatch.setattr(runner, "stored", lambda _, work: attempts[work.arm.name])
    works = [
        SimpleNamespace(arm=an_arm(arm), driver=play, draft=tmp_path) for arm, play in zip(arms, plays, strict=True)
    ]
    kept: list[Attempt] = []
    folder = SimpleNamespace(accept=lambda _, attempt: kept.append(attempt))
    group = SimpleNamespace(
        bench=SimpleNamespace(earlier=defaultdict(list), folder=folder),
        cell=SimpleNamespace(id="c"), works=works, drift=[], shared=False, stored=[], backing=None,
    )  # fmt: skip
    runner.store(cast(Group, group))
    assert [one.state for one in kept] == ["rejected"] * 3
    assert at_fault(kept) == ["thp", "other"]
    assert kept[1].reason == "postgres ended during the attempt (signal 9)"
