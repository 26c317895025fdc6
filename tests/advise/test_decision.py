from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.advise.candidates import Reach
from hugewise.advise.decision import (
    FootprintChange,
    KnownFrom,
    MeasuredSetting,
    SettingFootprint,
    TradeOff,
    blocks_of,
    decisive,
    fails,
    footprint,
    footprint_change,
    measured,
    pairs_to_decide,
    runner_up,
    trade_offs,
)
from hugewise.model.metric import Metric
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from tests.build import known
from tests.build.restated import run
from tests.build.results import cell_result, comparison, summary
from tests.build.trials import attempt

MIB = 1 << 20
SIZE = SettingFootprint(resident=100 * MIB, pool=0)


def setting(name: str, ratio: float | None = 1.0, growth: float | None = 1.0, **changes: Any) -> MeasuredSetting:
    change = None if growth is None else FootprintChange(ratio=growth, low=None, high=None, confidence=0.99, pairs=6)
    made = MeasuredSetting(
        name=name, known="screening", n=6, ratio=ratio, low=None, high=None, confidence=0.9, footprint=SIZE,
        growth=change,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def row(name: str, ratio: float | None, growth: float | None, reach: Reach | None = "process") -> TradeOff:
    return TradeOff(name=name, reach=reach, seen=setting(name, ratio, growth))


AS_IS = row("as-is", 1.0, 1.0, None)


def dominated(*rows: TradeOff, better: str = "lower") -> dict[str, str]:
    return {each.name: each.dominated_by for each in trade_offs([AS_IS, *rows], better, 0.02)}


def test_a_setting_is_dominated_by_one_that_is_better_in_something_and_worse_in_nothing() -> None:
    found = dominated(row("advised", 0.8, 1.0), row("always", 0.8, 1.0, "host"), row("pool", 0.7, 1.2, "pool"))
    assert found == {"as-is": "", "advised": "", "always": "advised", "pool": ""}, "as it is reaches least"
    assert dominated(row("advised", 1.3, 1.0), row("always", 1.1, 1.0, "host"), better="higher")["always"] == "advised"
    # What is alike within the margin is ordered by the rest.
    found = dominated(row("advised", 0.801, 1.003), row("pool", 0.799, 1.15, "pool"))
    assert found["pool"] == "advised"
    assert dominated(row("worse", 1.3, 1.1)) == {"as-is": "", "worse": "as-is"}
    assert dominated(row("same", 1.001, 0.999)) == {"as-is": "", "same": "as-is"}


def test_what_is_not_known_takes_no_part() -> None:
    unknown = [row("a", None, 1.0), row("b", 0.5, None), TradeOff(name="c", reach="host", why="no pool")]
    assert set(dominated(*unknown, row("worse", 1.1, 1.2)).values()) == {"", "as-is"}
    assert {name for name, by in dominated(*unknown).items() if by} == set()


ratios = st.floats(0.2, 5.0)
rows = st.lists(st.tuples(ratios, ratios, st.sampled_from(["process", "pool", "host"])), min_size=1, max_size=8)


@given(rows, st.sampled_from(["lower", "higher"]))
def test_somebody_is_never_dominated_and_dominators_are_not(
    drawn: list[tuple[float, float, Reach]], better: str
) -> None:
    made = [row(f"s{number}", *each) for number, each in enumerate(drawn)]
    found = dominated(*made, better=better)
    assert "" in found.values()
    assert all(found[by] == "" and by != name for name, by in found.items() if by)


@given(rows)
def test_who_is_not_dominated_does_not_hang_on_the_order(drawn: list[tuple[float, float, Reach]]) -> None:
    made = [row(f"s{number}", *each) for number, each in enumerate(drawn)]
    assert {name for name, by in dominated(*made).items() if by} == {
        name for name, by in dominated(*reversed(made)).items() if by
    }


def test_the_runner_up_is_the_best_that_was_neither_chosen_nor_dropped() -> None:
    estimates = {"a": 0.8, "b": 0.7, "c": 0.75, "d": None, "e": 0.9}
    assert runner_up(estimates, "lower", "b") == "c"
    assert runner_up(estimates, "lower", "b", {"c", "a"}) == "e"
    assert runner_up(estimates, "higher", "e") == "a"
    assert runner_up({"b": 0.7, "d": None}, "lower", "b") == ""


def results(unjudged: bool) -> Results:
    arms = ["as-is", "advised", *(["pool-2m"] if unjudged else [])]
    attempts = [
        attempt(
            arm, 1.0, block=number, cell="command", peak_bytes=(100 + 10 * place) * MIB,
            metrics={"wall_s": 1.0 - 0.1 * place, "user_s": 0.5, "system_s": 0.5 - 0.1 * place},
        )
        for number in range(1, 15)
        for place, arm in enumerate(arms)
    ]  # fmt: skip
    made = [comparison("advised", "wall_s", "better", baseline="as-is", ratio=0.9, low=0.88, high=0.92, n=14)]
    if unjudged:
        told = {"method": "unjudged", "ratio": 0.8, "low": 0.7, "high": 0.9, "n": 14, "confidence": 0.99}
        made.append(comparison("pool-2m", "wall_s", "none", baseline="as-is", **told))
    summaries = [summary(arm, attempts, "wall_s") for arm in arms]
    cell = cell_result("command", "command", Metric("wall_s", "s", "lower", "time"), {}, summaries, made)
    return run([(cell, attempts)])


def test_a_run_tells_each_arm_with_the_rate_at_which_it_is_known() -> None:
    found = measured(whole := results(unjudged=True), whole.cells[0], "advised")
    rates: list[tuple[str, KnownFrom]] = [(one.name, one.known) for one in found]
    assert rates == [("as-is", "confirmed"), ("advised", "confirmed"), ("pool-2m", "beside")]
    assert known(found[1].growth).ratio == pytest.approx(1.1)
    assert found[2].footprint.total == 120 * MIB
    screened = measured(alone := results(unjudged=False), alone.cells[0])
    assert {one.known for one in screened} == {"screening"}


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("failed", [0.0, float("inf"), None])
def test_who_failed_is_nobodys_second(failed: float | None, better: str) -> None:
    """A rate of an arm whose runs fail is 0 of what it was, a time infinite; where as-is fails it is the reverse."""
    assert runner_up({"dies": failed, "fine": 1.02, "chosen": 0.9}, better, "chosen") == "fine"
    assert runner_up({"dies": failed, "chosen": 0.9}, better, "chosen") == ""


def paired(*pairs: tuple[float, float], metric: str = "cpu_s") -> list[tuple[Any, Any]]:
    return [
        (attempt("thp", 1.0, metrics={metric: one}), attempt("base", 1.0, metrics={metric: other}))
        for one, other in pairs
    ]


def test_a_forecast_counts_the_pairs_that_decide_the_effect_that_is_seen() -> None:
    """Of 4% with an sd of 4% it takes fewer than of 4% with an sd of 12%, and of no effect as many as of the margin."""
    near, far = [(100 + step, 100.0) for step in (0, 8, 0, 8)], [(100 + step, 100.0) for step in (-8, 16, -8, 16)]
    few, many = (pairs_to_decide(paired(*each), "cpu_s", margin=0.001, alpha=0.01) for each in (near, far))
    assert few is not None and many is not None
    assert 20 < few < many / 4
    none = pairs_to_decide(paired((96, 100), (104, 100), (96, 100), (104, 100)), "cpu_s", margin=0.04, alpha=0.01)
    assert none is not None and abs(none - few) <= 5
    assert pairs_to_decide(paired(*near[:3]), "cpu_s", margin=0.02, alpha=0.01) is None
    assert pairs_to_decide(paired(*near), "wall_s", margin=0.02, alpha=0.01) is None, "all pairs are equal"


def test_another_metric_is_named_only_where_its_signs_reject() -> None:
    lower, higher = [(90.0, 100.0)] * 9, [(110.0, 100.0)]
    assert decisive(paired(*lower), ("cpu_s",), 0.01) == "cpu_s was lower in 9 of 9 pairs: --metric cpu_s judges by it"
    assert decisive(paired(*[(b, a) for a, b in lower]), ("cpu_s",), 0.01).startswith("cpu_s was higher in 9 of 9")
    assert decisive(paired(*lower[:7]), ("cpu_s",), 0.01) == "", "2 / 2^7 is more than 1%"
    assert decisive(paired(*lower, *higher), ("cpu_s",), 0.01) == ""
    assert decisive(paired(*lower, metric="wall_s"), ("cpu_s",), 0.01) == ""


@pytest.mark.parametrize(
    ("mine", "theirs", "more"),
    [(0, 0, False), (1, 0, True), (3, 1, False), (7, 1, True), (1, 3, False), (20, 20, False)],
)
def test_a_setting_fails_more_often_by_an_exact_test_where_the_program_fails_as_it_is(
    mine: int, theirs: int, more: bool
) -> None:
    """Of 20 runs each: 3 against 1 is a chance of 30%, 7 against 1 of 2%."""
    whole = results(unjudged=True).cells[0]
    failed = {whole.baseline: theirs, "advised": mine}
    arms = tuple(
        msgspec.structs.replace(one, n=20 - failed[one.arm], failed=failed[one.arm])
        for one in whole.arms
        if one.arm in failed
    )
    assert len(arms) == len(failed)
    (one,) = (one for one in whole.comparisons if one.arm == "advised")
    assert fails(one, msgspec.structs.replace(whole, arms=arms)) == more


def taken(arm: str, resident: int | None, *, block: int = 1, pool: int = 0) -> Attempt:
    return attempt(arm, 1.0, block=block, peak_bytes=resident, pool_bytes=pool)


def test_a_footprint_is_resident_memory_and_the_pool_used_or_not() -> None:
    assert footprint([taken("a", 5 * MIB, pool=110 * MIB), taken("a", 6 * MIB, pool=110 * MIB)]).total == 116 * MIB
    assert footprint([taken("a", None)]).total is None, "what nobody saw is not known"
    assert footprint([]).total is None


def test_its_change_is_of_attempts_of_the_same_blocks() -> None:
    random = np.random.default_rng(1)
    mine = [taken("thp", int(127 * MIB * random.normal(1, 0.01)), block=number) for number in range(1, 25)]
    theirs = [taken("base", int(100 * MIB * random.normal(1, 0.01)), block=number) for number in range(1, 25)]
    pairs = blocks_of([*mine, *theirs[:20], attempt("base", 1.0, block=23, state="failed")], "thp", "base")
    assert [one.block for one, _ in pairs] == list(range(1, 21))
    change = known(footprint_change(pairs, 100, 0.99))
    assert change.pairs == 20
    assert change.ratio == pytest.approx(1.27, abs=0.02)
    assert 1.2 < known(change.low) < change.ratio < known(change.high) < 1.31


def test_few_pairs_and_a_change_that_drifts_bound_nothing_and_none_say_nothing() -> None:
    pairs = [(taken("thp", (130 + number) * MIB), taken("base", (100 + number) * MIB)) for number in range(1, 21)]
    change = known(footprint_change(pairs, 100, 0.99))
    assert (change.low, change.high) == (None, None)
    change = known(footprint_change([(taken("thp", 2 * MIB), taken("base", MIB))], 100, 0.99))
    assert change.ratio == pytest.approx(2.0)
    assert (change.low, change.high) == (None, None)
    assert footprint_change([(taken("thp", None), taken("base", MIB))], 100, 0.99) is None
    assert footprint_change([], 100, 0.99) is None
