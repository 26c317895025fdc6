"""Stopping for futility: the verdicts that a stream would have come to had it not been ended, and the pairs spared.

The planted fault ends each stream at the fewest pairs of a verdict: it must be seen to lose verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from hugewise.model.results import DECIDED
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential
from tools.verification.block_streams import CONTRAST
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator
from tools.verification.screenings import block

ALPHA, MARGIN, WORTH = 0.01, 0.02, 0.05
MOST = 0.1
"""Share of the streams that may lose their verdict."""


class FutilityCase(NamedTuple):
    """Pairs whose log-ratios have this mean and standard deviation, as many as the time has `room` for."""

    effect: float
    sd: float
    room: int


CONTROL = FutilityCase(-0.04, 0.05, 60)
"""Case in which the planted fault must be seen to lose verdicts."""
CASES = tuple(
    FutilityCase(effect, sd, room) for effect in (0.0, -0.02, -0.04, 0.03) for sd in (0.03, 0.05) for room in (24, 60)
)


def _promised(made: Sequential, more: int) -> bool:
    return made.futile(more, WORTH)


def _hasty(made: Sequential, more: int) -> bool:
    del more
    least = least_pairs(ALPHA, made.planned)
    return least is not None and len(made.pairs.usable) >= least


def _ended(case: FutilityCase, seed: int, streams: int, rule: Callable[[Sequential, int], bool]) -> tuple[int, float]:
    """Return how many streams lose their verdict as the rule ends them, and the median end."""
    random = generator(seed, "futility", *case)
    lost, lengths = 0, []
    for _ in range(streams):
        made = Sequential(CONTRAST, planned=2 * case.room, alpha=ALPHA, margin=MARGIN)
        end = None
        for number in range(1, case.room + 1):
            times = {CONTRAST.baseline: 0.0, CONTRAST.arm: case.effect + case.sd * random.standard_normal()}
            made.observe(block(number, times, list(times)))
            if made.decision().status == "stop":
                break
            if end is None and rule(made, case.room - number):
                end = number
        lost += made.decision().verdict in DECIDED and end is not None
        lengths.append(number if end is None else end)
    return lost, median(lengths)


def ended(case: FutilityCase, seed: int, streams: int) -> Sequence[CheckResult]:
    """Check the verdicts lost by ending where `Sequential.futile` says so, and those of the planted rule."""
    what = f"effect {case.effect:+.0%}, sd {case.sd:.0%}, room for {case.room} pairs"
    lost, end = _ended(case, seed, streams, _promised)
    told, most = f"{lost} of {streams}, median end {end:g}", MOST * streams
    found = [CheckResult("futility", f"{what}: verdicts lost", told, f"<= {MOST:.0%}", passed=lost <= most)]
    if case == CONTROL:
        lost, _ = _ended(case, seed, streams, _hasty)
        hasty = f"{what}: ended at the fewest pairs"
        found.append(CheckResult("control", hasty, f"{lost} of {streams}", f"> {MOST:.0%}", passed=lost > most))
    return found


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [Task(f"futility: {' '.join(map(str, case))}", ended, (case, seed, streams)) for case in CASES]
