"""The method `sequential` on simulated blocks: its verdicts, its error rate, its tiers, and its end points."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
import scipy.stats

from hugewise.model.results import Comparison
from hugewise.model.trial import Block, DeliveryThreshold
from hugewise.stats.end_points import EndPoint
from hugewise.stats.evidence import EProcess
from hugewise.stats.family import conclude, methods_for
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import verdict
from hugewise.study.load import parse
from tests.build import known
from tests.build.trials import CONTRAST, HIGHER, LOWER, NEUTRAL, attempt, block, delivery, ends


def method(alpha: float = 0.01, planned: int = 200, margin: float = 0.005, contrast: Contrast = CONTRAST) -> Sequential:
    return Sequential(contrast, planned=planned, alpha=alpha, margin=margin)


def pairs(differences: Iterable[float]) -> list[Block]:
    return [block(n, {"base": 100.0, "thp": 100.0 * math.exp(d)}) for n, d in enumerate(differences, 1)]


def fed(blocks: Iterable[Block], made: Sequential | None = None) -> Sequential:
    made = made or method()
    for each in blocks:
        made.observe(each)
    return made


def noise(seed: int, count: int, mean: float = 0.0, sd: float = 0.05) -> list[float]:
    return list(np.random.default_rng(seed).normal(mean, sd, count))


def width(found: Comparison) -> float:
    low, high = ends(found)
    return high - low


def test_a_clear_effect_stops_early_and_says_how_far_it_reaches() -> None:
    made = fed(pairs(noise(1, 200, mean=-0.3)))
    found = made.comparison()
    assert found.verdict == "better"
    assert 8 <= found.n <= 18
    assert found.reach == "this campaign"
    assert known(found.high) < 1
    assert 0 < known(found.alpha_spent) <= 0.01
    here, average, beyond = found.tiers
    assert here.supported
    assert not average.supported
    assert "100" in average.reason
    assert not beyond.supported


def test_the_direction_of_the_metric_decides_what_is_better() -> None:
    higher = Contrast("chase", "thp", "base", HIGHER)
    assert fed(pairs(noise(1, 200, mean=-0.3)), method(contrast=higher)).decision().verdict == "worse"


def test_after_the_stop_nothing_is_taken_in() -> None:
    made = fed(pairs(noise(1, 200, mean=-0.3)))
    before = made.comparison()
    fed(pairs(noise(2, 50, mean=+3.0)), made)
    assert made.comparison() == before


def test_rebuilt_from_stored_blocks_it_says_the_same() -> None:
    blocks = pairs(noise(3, 60, mean=-0.01))
    whole, resumed = fed(blocks), fed(blocks[30:], fed(blocks[:30]))
    assert whole.comparison() == resumed.comparison()


@pytest.mark.parametrize("seeds", [10, pytest.param(20, marks=pytest.mark.soak)])
def test_it_says_what_the_public_test_says(seeds: int) -> None:
    for seed in range(seeds):
        differences = noise(seed, 100, mean=0.01 * (seed % 5 - 2))
        found = fed(pairs(differences), method(planned=100, margin=1e-6)).comparison()
        sign = {"better": -1, "worse": 1}.get(found.verdict, 0)
        logs = [math.log(100.0 * math.exp(d)) - math.log(100.0) for d in differences]
        assert sign == verdict(logs, 0.01, 100)


def test_tight_pairs_are_equivalent_within_the_margin() -> None:
    found = fed(pairs(noise(4, 200, sd=0.002)), method(margin=0.01)).comparison()
    assert found.verdict == "equivalent"
    low, high = ends(found)
    assert 1 / 1.01 <= low < high <= 1.01


def test_a_failure_counts_as_the_worst_and_forbids_equivalence() -> None:
    blocks = pairs(noise(4, 60, sd=0.002))
    failing = [
        msgspec.structs.replace(b, attempts=(b.attempts[0], attempt("thp", None, block=b.number, state="failed")))
        for b in pairs(noise(5, 40))
    ]
    found = fed([*blocks[:10], failing[0], *blocks[11:]], method(margin=0.01, planned=60)).comparison()
    assert found.verdict != "equivalent"
    assert found.failures_arm == 1
    worse = fed(failing).comparison()
    assert worse.verdict == "worse"
    assert worse.ratio == math.inf


def test_a_budget_without_a_crossing_is_undecided_with_the_largest_effect() -> None:
    found = fed(pairs(noise(6, 40)), method(planned=40)).comparison()
    assert found.verdict == "undecided"
    assert 0.005 < known(found.change) < 0.2


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("contrast", [CONTRAST, Contrast("chase", "thp", "base", HIGHER)])
@pytest.mark.parametrize("count", [3, 5])
def test_until_there_is_an_interval_a_t_interval_of_the_pairs_is_provisional(
    count: int, contrast: Contrast, alpha: float
) -> None:
    differences = noise(7, count, mean=0.3)
    found = fed(pairs(differences), method(alpha, contrast=contrast)).comparison()
    assert (found.verdict, found.low, found.high) == ("undecided", None, None)
    ends_ = scipy.stats.t.interval(
        1 - alpha, count - 1, loc=np.mean(differences), scale=np.std(differences, ddof=1) / math.sqrt(count)
    )
    assert found.provisional == pytest.approx(tuple(np.exp(ends_)))
    assert found.confidence == pytest.approx(1 - alpha)
    assert fed(pairs(differences[:2]), method(alpha, contrast=contrast)).comparison().provisional is None


def test_pairs_that_are_all_the_same_or_of_which_one_failed_have_no_provisional_interval() -> None:
    assert fed(pairs([0.3] * 5)).comparison().provisional is None
    *good, last = pairs(noise(7, 5, mean=0.3))
    assert fed([*good, last]).comparison().provisional is not None
    lost = msgspec.structs.replace(
        last, attempts=(last.attempts[0], attempt("thp", None, block=last.number, state="failed"))
    )
    found = fed([*good, lost]).comparison()
    assert (found.verdict, found.n, found.provisional) == ("undecided", 5, None)
    wide = fed(pairs([-700.0, 0.0, 700.0])).comparison()
    assert (wide.verdict, wide.provisional) == ("undecided", None), "its upper end is beyond all numbers"


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_the_exact_interval_takes_the_provisional_one_away(step: int) -> None:
    blocks, seen = pairs(noise(6, 40)), set()
    for count in range(3, 41, step):
        found = fed(blocks[:count], method(planned=40)).comparison()
        exact = found.low is not None and found.high is not None
        assert found.verdict == "undecided"
        assert (found.provisional is None) == exact, count
        seen.add(exact)
    assert seen == {False, True}


@pytest.mark.parametrize("ends_", [(-math.inf, 0.7), (-0.7, math.inf)])
def test_one_end_of_the_exact_interval_is_enough_for_that(
    ends_: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fed(pairs(noise(7, 5, mean=0.3)))
    assert made.comparison().provisional is not None
    monkeypatch.setattr(type(made.usable), "interval", lambda _: ends_)
    found = made.comparison()
    assert [found.low, found.high].count(None) == 1
    assert (found.verdict, found.provisional) == ("undecided", None)


def test_where_no_verdict_is_possible_there_is_no_provisional_interval() -> None:
    shown = Contrast("chase", "thp", "base", NEUTRAL)
    found = fed(pairs(noise(7, 5)), method(contrast=shown)).comparison()
    assert (found.verdict, found.low, found.high, found.provisional) == ("none", None, None, None)


def test_the_campaign_average_is_named_from_100_pairs_on() -> None:
    found = fed(pairs(noise(8, 600, mean=-0.009)), method(planned=600)).comparison()
    assert found.n > 100
    assert found.verdict == "better"
    average = found.tiers[1]
    assert average.supported
    assert known(average.high) < 1
    assert found.reach == "campaign average"


def test_undelivered_pages_take_the_pair_out_and_above_one_percent_the_verdict() -> None:
    blocks = pairs(noise(1, 40, mean=-0.3))
    bad = delivery(False, reason="pool too short")
    spoilt = [
        msgspec.structs.replace(
            b, attempts=tuple(msgspec.structs.replace(a, delivery=bad) if a.arm == "thp" else a for a in b.attempts)
        )
        for b in blocks
    ]
    found = fed(spoilt, method(planned=20)).comparison()
    assert (found.verdict, found.n) == ("none", 0)
    assert "pool too short" in found.reason
    assert found.ratio_all is not None


STUDY = """
format = 1
name = "s"
policies = ["base", "thp"]
method = "sequential"
confidence = 0.98
end_points = ["mean", "slow"]
[budget]
blocks = 300
[[workload]]
name = "chase"
"""


class Cell:
    id = "chase"
    metric = LOWER
    also = ()
    baseline = "base"
    delivery = DeliveryThreshold(0.95, 0.01)

    class Arm:
        def __init__(self, name: str) -> None:
            self.name = name

    arms = (Arm("base"), Arm("thp"))


def family(differences: Iterable[float]) -> tuple[Comparison, ...]:
    study = parse(STUDY, "s.toml")
    methods = methods_for(study, [Cell()])
    for each in pairs(differences):
        for one in methods:
            one.observe(each)
    return conclude(methods, study.confidence, study.margin)


def test_end_points_share_alpha_equally_and_are_judged_on_the_same_pairs() -> None:
    found = family(noise(9, 300, mean=-0.05, sd=0.3))
    assert found[0].estimand == "typical ratio"
    assert len(found) == 3
    assert [one.alpha for one in found] == [pytest.approx(0.02 / 3)] * 3
    typical, mean, slow = found
    assert mean.ratio is not None
    assert mean.n >= typical.n
    assert slow.ratio is None
    assert "slow runs" in slow.reason


def test_a_mean_below_100_pairs_says_so() -> None:
    _, mean, _ = family(noise(9, 50, mean=-0.05, sd=0.3))
    assert mean.verdict == "undecided"
    assert "needs 100 pairs" in mean.reason


def test_an_arm_with_many_slow_runs_is_worse_in_the_tail() -> None:
    rng = np.random.default_rng(10)
    slow = EndPoint("slow", CONTRAST, planned=300, alpha=0.01, margin=0.005)
    for each in pairs(np.where(rng.random(300) < 0.3, 1.0, 0.0) + rng.normal(0, 0.02, 300)):
        slow.observe(each)
    assert slow.comparison().verdict == "worse"


@pytest.mark.parametrize(("asked", "few"), [(0.05, 24), pytest.param(0.03, 60, marks=pytest.mark.soak)])
def test_a_width_that_is_asked_for_is_waited_for_and_costs_no_verdict(asked: float, few: int) -> None:
    blocks = pairs(noise(1, 200, mean=-0.3))
    early = fed(blocks).comparison()
    made = fed(blocks, Sequential(CONTRAST, planned=200, alpha=0.01, margin=0.005, width=asked))
    waited = made.comparison()
    assert width(early) > asked >= width(waited)
    assert early.n < waited.n < 200
    assert (waited.verdict, made.decision().status) == ("better", "stop")
    never = fed(blocks, Sequential(CONTRAST, planned=few, alpha=0.01, margin=0.005, width=0.0001))
    assert (never.comparison().n, never.comparison().verdict) == (few, "better")


@pytest.mark.parametrize("asked", [0.05, pytest.param(0.03, marks=pytest.mark.soak)])
def test_the_studys_width_reaches_its_methods(asked: float) -> None:
    text = (
        'format = 1\nname = "s"\npolicies = ["base", "thp"]\nmethod = "sequential"\nmargin = "0.5%"\n'
        f'[budget]\nblocks = 200\nwidth = "{asked:.0%}"\n[[workload]]\nname = "chase"\n'
    )
    (made,) = methods_for(parse(text, "t"), [Cell()])
    for each in pairs(noise(1, 200, mean=-0.3)):
        made.observe(each)
    assert made.decision().status == "stop"
    (found,) = conclude([made], 0.99, 0.005)
    assert width(found) <= asked


def test_the_evidence_is_the_open_ended_one_on_the_pairs_up_to_the_stop() -> None:
    differences = noise(1, 200, mean=-0.3)
    found = fed(pairs(differences)).comparison()
    process = EProcess()
    for difference in differences[: found.n]:
        process.add(math.log(100.0 * math.exp(difference)) - math.log(100.0))
    assert found.evidence == pytest.approx(process.value)
    assert found.evidence_larger == pytest.approx(process.up)
    assert found.evidence_smaller == pytest.approx(process.down)
    assert process.down > 100
    assert process.up < 1


def test_there_is_no_evidence_without_a_possible_verdict() -> None:
    shown = Contrast("chase", "thp", "base", NEUTRAL)
    found = fed(pairs(noise(1, 20)), method(contrast=shown)).comparison()
    assert (found.verdict, found.evidence, found.evidence_larger, found.evidence_smaller) == ("none", None, None, None)
