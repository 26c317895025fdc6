"""Interleaved blocks without a machine: whose time counts, who is told what, and what the pages were."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from hugewise.attempt.arm_in_turns import ArmInTurns
from hugewise.attempt.context import AttemptState, Group
from hugewise.attempt.interleaved import _hand_out, _in_own_time, _Turning, _without_rests
from hugewise.attempt.procedure import ProcedureError
from hugewise.attempt.recording import _proof, needs_twin
from hugewise.machine import probe
from hugewise.model.pages import THP, PageTarget
from hugewise.model.procedure import counted as counted_parts
from hugewise.model.trial import Delivery, DeliveryThreshold
from hugewise.model.workload import Launch, Proof
from tests.attempt.test_outcome import USAGE
from tests.build import known
from tests.build.hosts import Files
from tests.build.studies import FakeWorkload, an_arm, cell_of

MIB = 1 << 20


def exited(t: float, wall: float, looked: tuple[float, float] | None = None) -> probe.Exit:
    """Of a command that ended at `t`; `looked` is when the look at its pages began and ended."""
    return probe.Exit(
        t_ns=round(t * 1e9),
        wall_ns=round(wall * 1e9),
        code=0,
        signal=None,
        timed_out=False,
        early_exits=0,
        killed=0,
        looked_ns=None if looked is None else (round(looked[0] * 1e9), round(looked[1] * 1e9)),
    )


def counted(*rests: tuple[float, float], looked: tuple[float, float] | None = None) -> float:
    """Seconds of a command of 10 s that ended at 100 s and was frozen in those times."""
    (found,) = _without_rests([exited(100.0, 10.0, looked)], rests)
    assert isinstance(found, probe.Exit)
    return found.wall_ns / 1e9


def test_a_command_is_timed_by_a_clock_that_stands_still_while_it_is_frozen() -> None:
    assert counted() == 10
    assert counted((91.0, 92.5), (95.0, 99.0)) == 4.5


def test_what_came_after_its_end_takes_nothing_away() -> None:
    assert counted((91.0, 92.0), (99.0, 104.0), (105.0, 109.0)) == 8
    assert counted((80.0, 100.0)) == 0, "never less than nothing"


def test_from_the_look_at_its_pages_on_nothing_is_taken_off() -> None:
    """The look itself is not in its time, and what it does after that, it does frozen or not."""
    rests = ((91.0, 92.0), (95.0, 98.0), (98.5, 99.5))
    assert counted(*rests) == 5
    assert counted(*rests, looked=(96.0, 97.0)) == 8


def test_a_rest_from_before_the_launch_takes_away_what_lies_after_it() -> None:
    """A command is frozen before it is launched."""
    begun = probe.Start(v=1, t_ns=round(90e9), pid=7, probe="0")
    _, found = _without_rests([begun, exited(100.0, 10.0)], [(80.0, 92.0)])
    assert isinstance(found, probe.Exit) and found.wall_ns == round(8e9)


def test_everything_else_that_the_launcher_said_is_left() -> None:
    begun = probe.Start(v=1, t_ns=5, pid=7, probe="0")
    first, last = _without_rests([begun, exited(3, 2)], [(1.5, 2.0)])
    assert first is begun
    assert last == exited(3, 1.5)


def test_each_attempt_has_the_result_of_its_own_servers_and_all_that_is_of_the_client(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    start, end = b'{"ev":"start"}\n', b'{"ev":"exit"}\n'
    loads = [b'{"ev":"load","timed":%d}\n' % number for number in range(3)]
    files[0].write_bytes(b"".join((start, loads[0], b'{"ev":"loads"}\n', loads[1], loads[2], end)))
    _hand_out(files)
    for number, file in enumerate(files):
        other = b'{"ev":"loads"}\n'
        told = (loads[0], other) if number == 0 else (other, loads[number])
        assert file.read_bytes() == b"".join((start, *told, end))


def test_a_client_that_said_less_leaves_the_others_without_a_result(tmp_path: Path) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    files[0].write_bytes(b'{"ev":"start"}\n{"ev":"load"}\n{"ev":"error"}')
    _hand_out(files)
    assert files[0].read_bytes() == b'{"ev":"start"}\n{"ev":"load"}\n{"ev":"error"}'
    assert files[1].read_bytes() == b'{"ev":"start"}\n{"ev":"error"}'


# -- the two looks


def seen(*, huge: int, base: int) -> list[probe.Coverage]:
    backing: dict[Any, int] = {"anon:2097152": huge * MIB, "anon:4096": base * MIB}
    return [
        probe.Coverage(
            pid=1, command="s", named=False, source="kpageflags", bytes=backing, thp_disabled=False, scan_ns=1
        )
    ]


HUGE, SPLIT = seen(huge=64, base=0), seen(huge=16, base=48)


@pytest.mark.parametrize(
    ("proof", "left_early", "scanned", "twin"),
    [
        ("twin", 0, False, True),
        ("twin", 5, True, False),
        ("exit", 5, False, True),
        ("exit", 5, True, False),
        ("exit", 0, False, False),
        ("counters", 5, False, False),
    ],
)
def test_processes_that_were_scanned_while_they_were_frozen_need_no_twin(
    proof: Proof, left_early: int, scanned: bool, twin: bool
) -> None:
    """A process that left before the root did was seen by no scan at the root's exit."""
    arm = an_arm("thp", PageTarget("thp", 2 * MIB))
    work = AttemptState(arm, None, 1, Path("none"))  # type: ignore[arg-type]
    work.launch = Launch(argv=("make",), proof=proof)
    work.events = [*HUGE, msgspec.structs.replace(exited(100.0, 10.0), early_exits=left_early)]
    work.scanned_frozen = scanned
    group = SimpleNamespace(cell=cell_of(FakeWorkload("build", ()), an_arm("base"), arm))
    assert needs_twin(cast(Group, group), work) == twin


@pytest.mark.parametrize(("peak", "twin"), [(100, False), (300, True)])
def test_processes_that_gave_their_memory_back_before_the_scan_need_a_twin(peak: int, twin: bool) -> None:
    """Of 64 MiB that were scanned: also where they were frozen, as the workload asks for a twin."""
    arm = an_arm("thp", PageTarget("thp", 2 * MIB))
    work = AttemptState(arm, None, 1, Path("none"))  # type: ignore[arg-type]
    work.launch = Launch(argv=("make",), proof="twin")
    work.events = [*HUGE, msgspec.structs.replace(USAGE, peak_bytes=peak * MIB), exited(100.0, 10.0)]
    work.scanned_frozen = True
    group = SimpleNamespace(cell=cell_of(FakeWorkload("build", ()), an_arm("base"), arm))
    assert needs_twin(cast(Group, group), work) == twin


@pytest.mark.parametrize(
    ("asleep", "after", "told"), [(True, "8", True), (True, "7", False), (False, "8", False), (None, "8", False)]
)
def test_a_collapse_between_turns_is_told_where_khugepaged_was_to_sleep(
    asleep: bool | None, after: str, told: bool
) -> None:
    collapsed = f"{THP}/khugepaged/pages_collapsed"
    host = Files({collapsed: "7"})
    alternation = SimpleNamespace(settings=SimpleNamespace(without_khugepaged=asleep))
    group = SimpleNamespace(alternation=None if asleep is None else alternation)
    works = [SimpleNamespace(site=SimpleNamespace(host=host))]
    turning = _Turning(cast(Group, group), cast(Any, works), [])
    expected = pytest.raises(ProcedureError, match=r"7 before, 8 now") if told else nullcontext()
    with expected, turning._without_khugepaged():
        host.files[collapsed] = after


def test_the_rate_of_a_workload_without_servers_is_by_the_time_of_its_own_turns() -> None:
    driver = SimpleNamespace(served=False, measured=(1000.0, 1030.0), parts=())
    side = SimpleNamespace(
        driver=driver, served=False, rests=[(92.0, 98.0)], fullest=HUGE, work=SimpleNamespace(scanned_frozen=False)
    )
    events = _in_own_time(cast(ArmInTurns, side), [exited(100.0, 10.0)])
    assert counted_parts(driver.parts) == 4.0  # of 10 s it was frozen for 6
    assert side.work.scanned_frozen
    assert events[-1:] == HUGE


def proven(filled: list[probe.Coverage], coverage: list[probe.Coverage]) -> Delivery:
    """Of an arm that is promised huge pages, by what was seen before and after its turns."""
    arm = an_arm("thp", PageTarget("thp", 2 * MIB))
    cell = cell_of(FakeWorkload("redis", ()), an_arm("base"), arm, delivery=DeliveryThreshold(0.9, 0.01))
    machine = SimpleNamespace(base_size=4096, source="kpageflags")
    work = SimpleNamespace(
        arm=arm,
        command=Launch(argv=("true",), proof="live"),
        site=machine,
        driver=SimpleNamespace(filled=filled, coverage=coverage, served=True),
        cgroup_faults=None,
        boarded=SimpleNamespace(own=False),
        events=[],
        twin=None,
        scanned_frozen=False,
        laid=None,
    )
    group = SimpleNamespace(cell=cell, works=[work, work], bench=SimpleNamespace(pools={}))
    return _proof(cast(Group, group), cast(AttemptState, work), None)


def test_pages_that_changed_are_not_delivered_though_enough_are_left() -> None:
    """Nobody's pages change in the turns: what does was measured with some of both."""
    found = proven(HUGE, seen(huge=60, base=4))
    assert found.delivered is False and known(found.share) == pytest.approx(0.9375)
    assert found.reason == "its pages changed while the arms took turns: 100.0% at the stated size, then 93.8%"
    assert proven(HUGE, seen(huge=127, base=1)).delivered is True


def test_pages_that_only_came_in_the_turns_are_not_delivered_either() -> None:
    found = proven(SPLIT, HUGE)
    assert found.delivered is False
    assert known(found.reason).startswith("before its turns: ")
    assert known(found.share) == pytest.approx(0.25)


def test_a_look_that_could_not_be_taken_after_the_turns_proves_nothing() -> None:
    assert proven(HUGE, []).delivered is None
