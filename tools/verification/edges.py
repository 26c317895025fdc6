"""Verdicts beside the sequential ones: `exact`, `fixed-n`, equivalence under stalls, and `hugewise analyze`.

Each case is played from closed blocks, or from series of values, to the verdict and its words; those of whole studies
are in `studies`. Each has a fault that is planted here, and that it must find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from numpy.random import Generator

from hugewise.external import compare as comparing
from hugewise.external.analyze import arm_figures
from hugewise.external.compare import AnalysisPlan, ExternalComparison
from hugewise.external.reader import Series
from hugewise.model.reason import MeanWithin, Reason, WithinMargin
from hugewise.model.results import DIRECTIONS
from hugewise.model.trial import Block
from hugewise.report.reasons import in_words
from hugewise.stats import campaign, exact
from hugewise.stats.end_points import EndPoint
from hugewise.stats.method import Numbers
from hugewise.stats.sequential import Sequential
from tools.verification import studies
from tools.verification.block_streams import CONTRAST, pair
from tools.verification.blocks import limit, play
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import autoregression, generator
from tools.verification.studies import Edge, comparisons, run_of, study_of


def _places(random: Generator, count: int, noise: float) -> list[Block]:
    """Return pairs in which the label changes nothing, and the second place is 1% slower."""
    arms, times = random.integers(0, 2, count), noise * random.standard_normal((count, 2)) + np.array([0.0, 0.01])
    return [
        pair(number + 1, float(times[number, arm]), float(times[number, 1 - arm])) for number, arm in enumerate(arms)
    ]


def _stalls(random: Generator, count: int, share: float, longer: float) -> tuple[Numbers, Numbers]:
    """Return log-times of an arm that stalls in a share of its runs, and of a baseline that does not."""
    quiet = 0.002 * random.standard_normal((2, count))
    return quiet[0] + math.log1p(longer) * (random.random(count) < share), quiet[1]


def _closed(arm: Numbers, baseline: Numbers) -> Iterator[Block]:
    for number, (over, under) in enumerate(zip(arm.tolist(), baseline.tolist(), strict=True), 1):
        yield pair(number, over, under)


def _of_mean(reason: Reason) -> bool:
    """Return whether equivalence is claimed of the mean, or without the share of stalls that it cannot exclude."""
    if not isinstance(reason, WithinMargin | MeanWithin) or reason.unseen is None:
        return True
    told = f"up to {100 * reason.unseen:.2g}% of runs may stall" in in_words(reason)
    return not told or isinstance(reason, MeanWithin) or reason.average


def _of_places(method: str, count: int, noise: float, alpha: float = 0.01) -> Callable[[Generator], bool]:
    study = msgspec.structs.replace(study_of(blocks=count, alpha=alpha), method=method)
    return lambda random: comparisons(run_of(study, _places(random, count, noise)))[0].verdict in DIRECTIONS


def _equivalent(share: float, longer: float, margin: float) -> Callable[[Generator], bool]:
    def wrong(random: Generator) -> bool:
        made = Sequential(CONTRAST, planned=2000, alpha=0.01, margin=margin)
        found = play(made, _closed(*_stalls(random, 300, share, longer))).decision()
        return found.verdict == "equivalent" and _of_mean(found.reason)

    return wrong


def _mean(random: Generator) -> bool:
    made = EndPoint("mean", CONTRAST, planned=2000, alpha=0.01, margin=0.005)
    for block in _closed(*_stalls(random, 120, 0.015, 0.5)):
        made.observe(block)
    return made.comparison().verdict == "equivalent"


def _analyzed(random: Generator, arm: Numbers, baseline: Numbers, *, coin: bool = True) -> ExternalComparison:
    """Return what `hugewise analyze --randomised` says of these log-times, in an order of coins, or always the same."""
    count = len(arm)
    first = random.random(count) < 0.5 if coin else np.zeros(count, np.bool_)
    place, block = 2.0 * np.arange(count), np.arange(count)
    over = Series("arm", CONTRAST.metric, np.exp(arm), "file", order=place + ~first, block=block)
    under = replace(over, arm="base", values=np.exp(baseline), order=place + first)
    return _compared(over, under, AnalysisPlan(margin=0.02, randomised=True), 0.01)


def _compared(over: Series, under: Series, plan: AnalysisPlan, alpha: float) -> ExternalComparison:
    return comparing.compare(over, under, (arm_figures(over, 0.99), arm_figures(under, 0.99)), plan, alpha)


def _elsewhere(random: Generator) -> bool:
    found = _analyzed(random, *_stalls(random, 60, 0.02, 3.0))
    return found.verdict == "equivalent" and _of_mean(found.reason)


def _always_second(random: Generator) -> bool:
    times = 0.001 * random.standard_normal((2, 60))
    return _analyzed(random, times[0] + 0.01, times[1], coin=False).verdict != "none"


def _turned(random: Generator) -> bool:
    times = 0.002 * random.standard_normal((2, 90))
    return studies.astray(_analyzed(random, times[0] + np.where(np.arange(90) < 30, -0.01, 0.01), times[1]))


def _lost_in_slow_places(random: Generator) -> bool:
    """A third of all places are slower by a tenth, and there the arm leaves no value."""
    slow = random.random((2, 96)) < 1 / 3
    arm, baseline = 0.02 * random.standard_normal((2, 96)) + 0.1 * slow
    return _analyzed(random, np.where(slow[0], np.nan, arm), baseline).verdict in DIRECTIONS


def _one_after_the_other(random: Generator) -> bool:
    """All values of the arm before all of the baseline, on a host that drifts."""
    drift = np.exp(0.02 * autoregression(random, 1, 400, 0.99)[0])
    over = Series("arm", CONTRAST.metric, drift[:200], "file", order=np.arange(200.0))
    under = replace(over, arm="base", values=drift[200:], order=np.arange(200.0, 400.0))
    return _compared(over, under, AnalysisPlan(margin=0.02), 0.05).verdict != "none"


def _half_the_boots() -> AbstractContextManager[Any]:
    needed = exact.boots_needed
    return mock.patch.object(exact, "boots_needed", lambda *given, **more: needed(*given, **more) // 2)


def _no_coins() -> AbstractContextManager[Any]:
    return mock.patch("hugewise.stats.signflip.chance", lambda _: 0.0)


def _no_tail() -> AbstractContextManager[Any]:
    return mock.patch.object(campaign.Campaign, "bounded", campaign.Campaign.within)


def _nothing_unseen() -> AbstractContextManager[Any]:
    return mock.patch.object(campaign, "unseen", lambda *_: 0.0)


def _no_look_at_the_order() -> AbstractContextManager[Any]:
    return mock.patch.object(comparing, "_coin", lambda *_: iter(()))


@contextmanager
def _lost_are_dropped() -> Iterator[None]:
    """Two guards are removed: either alone lets no verdict come of such series."""
    closed = comparing.closed_blocks

    def whole(*sides: Series) -> Iterator[Block]:
        return (block for block in closed(*sides) if not any(one.absent for one in block.attempts))

    with mock.patch.object(comparing, "_TOLERATED", 1.0), mock.patch.object(comparing, "closed_blocks", whole):
        yield


def _welch_claims() -> AbstractContextManager[Any]:
    welch = comparing._welch

    def claiming(*given: Any) -> dict[str, Any]:
        own = welch(*given)
        return own if own["low"] < 1 < own["high"] else own | {"verdict": "better"}

    return mock.patch.object(comparing, "_welch", claiming)


EDGES: tuple[Edge, ...] = (
    Edge("exact: a count that hangs on its place", _of_places("exact", 12, 0.0), _half_the_boots, "half the boots"),
    Edge(
        "exact, alpha 0.0011: the same", _of_places("exact", 14, 0.0, 0.0011), _half_the_boots, "half the boots", 0.0011
    ),
    *(
        Edge(
            f"fixed-n, {count} blocks, noise {noise:.2%}: the second place is slower",
            _of_places("fixed-n", count, noise),
            _no_coins,
            "no coins",
        )
        for count, noise in ((3, 0.0001), (3, 0.001), (5, 0.0001))
    ),
    Edge("equivalent within 2%: +80% in 5% of runs, of the mean", _equivalent(0.05, 0.8, 0.02), _no_tail, "no tail"),
    Edge("equivalent within 0.5%: +50% in 2% of runs, of the mean", _equivalent(0.02, 0.5, 0.005), _no_tail, "no tail"),
    Edge("end point mean within 0.5%: +50% in 1.5% of runs", _mean, _nothing_unseen, "nothing unseen"),
    Edge("analyze, equivalent within 2%: +300% in 2% of runs, of the mean", _elsewhere, _no_tail, "no tail"),
    Edge("analyze: always second, which is slower", _always_second, _no_look_at_the_order, "no look at the order"),
    Edge("analyze: an effect that turns, estimate outside its interval", _turned, studies.no_fit, "no look at it"),
    Edge("analyze: no value of the arm in slow places", _lost_in_slow_places, _lost_are_dropped, "blocks are dropped"),
    Edge("analyze: AAAA..BBBB, which drifts", _one_after_the_other, _welch_claims, "Welch's interval claims"),
    *studies.EDGES,
)


def edge(number: int, seed: int, streams: int) -> Sequence[CheckResult]:
    """Play a case, and its fault on the same streams until it is seen."""
    case = EDGES[number]
    streams = max(20, round(case.of * streams))
    most = limit(case.alpha, streams)
    wrong, _ = _count(case, seed, streams)
    with case.fault():
        caught, played = _count(case, seed, streams, most * streams)
    return [
        CheckResult(
            "edges",
            case.what,
            f"{wrong} of {streams} ({wrong / streams:.4f})",
            f"<= {most:.4f}",
            wrong / streams <= most,
        ),
        CheckResult(
            "edges",
            f"{case.what}: {case.planted} (planted)",
            f"{caught} of the first {played}",
            f"> {math.floor(most * streams)} of {streams}",
            caught > most * streams,
        ),
    ]


def _count(case: Edge, seed: int, streams: int, enough: float = math.inf) -> tuple[int, int]:
    """Return how many streams are wrong, and how many were played until more than `enough` were."""
    wrong = stream = 0
    while stream < streams and wrong <= enough:
        wrong += case.wrong(generator(seed, "edges", case.what, stream))
        stream += 1
    return wrong, stream


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [Task(f"edges: {case.what}", edge, (number, seed, streams)) for number, case in enumerate(EDGES)]
