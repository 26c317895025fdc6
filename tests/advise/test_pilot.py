import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.advise.pilot import ProgramAsIs, judge_pilot, needed, never_ran, remarks, time_option, time_remark
from hugewise.errors import UserError
from hugewise.model.trial import Attempt, Block
from hugewise.quantity import parse_duration
from hugewise.stats import power
from tests.build import known
from tests.build.trials import attempt, block, delivery

SEEN = ProgramAsIs(
    runs=6, wall_s=1.0, block_s=2.5, sd=0.02, coverage={"anon:4096": 75.0, "anon:2097152": 25.0}, memory=100,
    faults=10.0, same_output=True,
)  # fmt: skip


def ran(wall_s: float, number: int, arm: str, **changes: Any) -> Attempt:
    made = attempt(arm, wall_s, block=number, cell="command", delivery=delivery(None, coverage={"anon:4096": 1000}))
    return msgspec.structs.replace(made, wall_s=wall_s, peak_bytes=5000, **changes)


def of(*pairs: tuple[float, float]) -> list[Block]:
    return [
        msgspec.structs.replace(
            block(number, ran(one, number, "as-is"), ran(other, number, "again"), cell="command"), seconds=3.0
        )
        for number, (one, other) in enumerate(pairs, 1)
    ]


def test_a_program_is_described_as_it_is(tmp_path: Path) -> None:
    found = judge_pilot(of((1.0, 1.1), (1.0, 0.9), (1.2, 1.2)), tmp_path, 600.0)
    assert (found.runs, found.wall_s, found.block_s, found.memory) == (6, 1.05, 3.0, 5000)
    logs = [math.log(1.1), math.log(0.9), 0.0]
    mean = sum(logs) / 3
    assert found.sd == pytest.approx(math.sqrt(sum((one - mean) ** 2 for one in logs) / 2))
    assert found.coverage == {"anon:4096": pytest.approx(1000.0)}
    assert found.huge == 0.0
    assert found.same_output is True, "nobody said anything"


@pytest.mark.parametrize(("several", "huge"), [((0.3, 0.0, 0.0, 0.2), 0.0), ((0.97, 0.97, 0.0, 0.97), 0.97)])
def test_counters_of_the_machine_tell_the_pages_of_the_median_run(
    tmp_path: Path, several: tuple[float, ...], huge: float
) -> None:
    shares = iter(several)
    run = [
        msgspec.structs.replace(each, attempts=tuple(by_counters(one, next(shares)) for one in each.attempts))
        for each in of((1.0, 1.0), (1.0, 1.0))
    ]
    assert judge_pilot(run, tmp_path, 600.0).huge == huge


def by_counters(one: Attempt, huge: float) -> Attempt:
    coverage = {"anon:4096": round(1000 * (1 - huge)), "anon:2097152": round(1000 * huge)}
    return msgspec.structs.replace(one, delivery=delivery(None, coverage=coverage, source="counters"))


def test_outputs_that_differ_are_seen(tmp_path: Path) -> None:
    run = of((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    for place, one in enumerate(one for each in run for one in each.attempts):
        folder = tmp_path / "attempts" / f"b{one.block:05d}-{one.order}-{one.arm}-{one.number}"
        folder.mkdir(parents=True)
        (folder / "stdout").write_text(f"{place}\n")
    found = judge_pilot(run, tmp_path, 600.0)
    assert found.same_output is False
    assert any("output differs between runs" in one for one in remarks(found))


@pytest.mark.parametrize(("seconds", "said"), [(118.2, "119s"), (120, "2m"), (10800, "180m"), (10801, "4h")])
def test_a_time_is_proposed_as_the_option_takes_it(seconds: float, said: str) -> None:
    assert time_option(seconds) == said
    assert parse_duration(said) >= seconds


@pytest.mark.parametrize(
    ("memory", "service", "told"),
    [(3 << 20, True, True), (3 << 20, False, False), (1 << 30, True, False), (0, True, False)],
)
def test_a_server_that_holds_hardly_any_data_is_noticed(memory: int, service: bool, told: bool) -> None:
    seen = msgspec.structs.replace(SEEN, memory=memory)
    assert any("the server has 3 MiB of memory" in one for one in remarks(seen, service=service)) == told


def test_a_command_of_which_some_runs_fail_is_judged_by_the_others_and_the_failures_are_told(tmp_path: Path) -> None:
    run = of((1.0, 1.1), (1.0, 0.9), (1.2, 1.2))
    bad = ran(9.0, 1, "as-is", state="failed", reason="exit status 3")
    run[0] = msgspec.structs.replace(run[0], attempts=(bad, *run[0].attempts[1:]))
    found = judge_pilot(run, tmp_path, 600.0)
    assert (found.runs, found.failed, found.wall_s) == (5, 1, 1.1)
    assert "1 of 6 runs as it is failed: a failed run counts as the slowest" in list(remarks(found))
    with pytest.raises(UserError, match="the service fails"):
        judge_pilot(run, tmp_path, 600.0, service=True)
    run[1] = msgspec.structs.replace(run[1], attempts=(msgspec.structs.replace(bad, block=2), *run[1].attempts[1:]))
    assert judge_pilot(run[:2], tmp_path, 600.0).failed == 2, "two of four"
    run[0] = msgspec.structs.replace(run[0], attempts=(bad, msgspec.structs.replace(bad, arm="again")))
    with pytest.raises(UserError, match="the command fails"):
        judge_pilot(run[:2], tmp_path, 600.0)


def test_a_command_that_fails_is_an_error_with_its_reason(tmp_path: Path) -> None:
    bad = ran(1.0, 1, "as-is", state="failed", reason="exit status 3")
    with pytest.raises(UserError, match="the command fails: exit status 3") as caught:
        judge_pilot([block(1, bad, ran(1.0, 1, "again"))], tmp_path, 600.0)
    assert "without a terminal" in (caught.value.hint or "")
    assert "it said" not in str(caught.value), "nothing is there that it said"
    said = tmp_path / "attempts" / f"b{bad.block:05d}-{bad.order}-{bad.arm}-{bad.number}"
    said.mkdir(parents=True)
    (said / "stderr").write_bytes(b"reading\nno such table: \x1b[31mtree\n")
    with pytest.raises(UserError, match=r"exit status 3; it said: no such table: ") as caught:
        judge_pilot([block(1, bad, ran(1.0, 1, "again"))], tmp_path, 600.0)
    assert "\x1b" not in str(caught.value)
    late = msgspec.structs.replace(bad, reason="timed out after 150 s", timed_out=True)
    with pytest.raises(UserError, match="does not end in time") as caught:
        judge_pilot([block(1, late)], tmp_path, 600.0)
    assert "10 min" in (caught.value.hint or "")
    assert "--server and --load" in (caught.value.hint or "")
    of_time = msgspec.structs.replace(bad, reason="exit status 1: runtime error: out of memory")
    with pytest.raises(UserError, match="the command fails"):  # what a program says of time is no time-out
        judge_pilot([block(1, of_time)], tmp_path, 600.0)
    with pytest.raises(UserError, match="could not be measured: no run of it counted"):
        judge_pilot([], tmp_path, 600.0)


def test_it_says_at_once_what_the_time_can_show() -> None:
    said = time_remark(SEEN, 600.0, 0.01, 2)
    assert said.endswith("or more would be found 4 times in 5 in 10 min 00 s (240 pairs of runs)")
    shown = SEEN.shown_in(600.0, 0.01, 2)
    assert shown is not None
    assert 0.002 < shown < 0.02
    wider = msgspec.structs.replace(SEEN, sd=0.2).shown_in(600.0, 0.01, 2)
    assert wider is not None
    assert wider > 5 * shown


def test_what_it_says_is_shown_by_the_test_that_is_declared() -> None:
    """It spoke of a test that was declared for the very pairs that fit, and another one was run."""
    few = msgspec.structs.replace(SEEN, block_s=40.0)
    pairs, declared, shown = few.pairs_in(600.0), few.declared(600.0), few.shown_in(600.0, 0.01, 2)
    assert (pairs, declared) == (15, 30)
    assert shown is not None
    assert few.sd is not None
    shift = math.log1p(shown) / few.sd
    chance = power.averaged(lambda factor: power.power(shift * factor, pairs, 0.01, declared, 2), few.runs // 2 - 1)
    assert chance == pytest.approx(0.8, abs=0.05)
    assert power.power(shift, pairs, 0.01, declared, 2) > 0.9, "its spread was taken for known"
    assert msgspec.structs.replace(SEEN, block_s=90.0).shown_in(600.0, 0.01, 2) is None


def test_the_spread_is_that_of_the_judged_metric(tmp_path: Path) -> None:
    run = of((1.0, 2.0), (2.0, 1.0), (1.0, 4.0))
    for each in run:
        for one in each.attempts:
            one.metrics["rate"] = 5.0 + one.block  # type: ignore[index]
    assert known(judge_pilot(run, tmp_path, 600.0).sd) > 0.5
    assert judge_pilot(run, tmp_path, 600.0, "rate").sd is None, "it does not differ at all"
    assert judge_pilot(run, tmp_path, 600.0, "absent").sd is None


@pytest.mark.parametrize(("copies", "least"), [(1, 10), (2, 8)])
def test_too_little_time_is_said_with_what_is_needed(copies: int, least: int) -> None:
    slow = msgspec.structs.replace(SEEN, block_s=90.0)
    assert time_remark(slow, 600.0, 0.01, copies) == ""
    minutes = math.ceil((100.0 + least * 1.5 * 90.0) / 60)  # the pilot, and a screening, come before it
    assert needed(slow, 600.0, 0.01, 100.0, copies) == f"{minutes}m"
    assert needed(msgspec.structs.replace(SEEN, block_s=5.0), 10.0, 0.01, 3.0, copies).endswith("s"), (
        "seconds below two minutes"
    )
    assert needed(SEEN, 600.0, 0.01, 100.0, copies) == ""


def test_the_share_in_huge_pages() -> None:
    assert SEEN.huge == 0.25
    assert msgspec.structs.replace(SEEN, coverage={}).huge is None
    assert msgspec.structs.replace(SEEN, coverage={"anon:65536": 1.0, "shmem:2097152": 5.0}).huge == 0.0


def test_a_run_that_is_too_short_and_a_load_without_a_count_or_by_the_clock_are_remarked() -> None:
    short = msgspec.structs.replace(SEEN, wall_s=0.004, block_s=0.5)
    assert any("of which starting it is a large part" in one for one in remarks(short))
    told = list(remarks(SEEN, loaded=True, uncounted=True))
    assert any(one.startswith("how much its load does is not known") and "--value" in one for one in told)
    assert not any("how much its load does" in one for one in remarks(SEEN, loaded=True))
    steady = msgspec.structs.replace(SEEN, wall_s=10.0, sd=0.0004)
    assert any("runs by the clock" in one for one in remarks(steady, loaded=True))
    for other in (steady, SEEN, msgspec.structs.replace(steady, wall_s=0.5)):
        assert not any("by the clock" in one for one in remarks(other, loaded=other is not steady))


def test_what_fails_of_a_service_is_told_of_its_load_or_its_server(tmp_path: Path) -> None:
    bad = ran(1.0, 1, "as-is", state="failed", reason="exit status 3")
    with pytest.raises(UserError, match="the service fails under its load: exit status 3") as caught:
        judge_pilot([block(1, bad)], tmp_path, 600.0, service=True)
    assert "try both by hand" in (caught.value.hint or "")
    early = ran(1.0, 1, "as-is", state="rejected", reason="server ended before it answered")
    with pytest.raises(UserError, match="the service could not be measured: server ended before it answered") as caught:
        judge_pilot([block(1, early)], tmp_path, 600.0, service=True)
    assert "--ready says how it is known to be up" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("service", "what", "cure"), [(True, "service", "stays in the foreground"), (False, "command", "hugewise run")]
)
def test_what_never_ran_is_told_with_what_to_see_to(*, service: bool, what: str, cure: str) -> None:
    why = "server ended before it answered"
    never = [ran(1.0, 1, name, state="abandoned", reason=why) for name in ("as-is", "again")]
    unstarted = msgspec.structs.replace(block(1), unstarted={"as-is": why})
    for blocks in ([block(1, *never)], [unstarted]):
        found = never_ran(blocks, service=service)
        assert found is not None
        assert found.message == f"the {what} could not be measured: {why}"
        assert cure in (found.hint or "")
    assert never_ran([], service=service) is None, "nothing is known: whoever broke it off says why"
    for there in (ran(1.0, 1, "again"), ran(1.0, 1, "again", state="failed", reason="exit status 3")):
        assert never_ran([block(1, never[0], there)], service=service) is None
