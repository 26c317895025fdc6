"""Stopping for futility: the verdicts that a stream would have come to had it not been ended, and the pairs spared.

The planted fault ends each stream at the fewest pairs of a verdict: it must be seen to lose verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def ended(case: FutilityCase, seed: int, streams: int) -> Sequence[CheckResult]:
    """Check the verdicts lost by ending where `Sequential.futile` says so, over whole streams of the case."""
    random = generator(seed, "futility", *case)
    lost, hasty, least = 0, 0, least_pairs(ALPHA, 2 * case.room) or 0
    lengths = []
    for _ in range(streams):
        made = Sequential(CONTRAST, planned=2 * case.room, alpha=ALPHA, margin=MARGIN)
        end = None
        for number in range(1, case.room + 1):
            times = {CONTRAST.baseline: 0.0, CONTRAST.arm: case.effect + case.sd * random.standard_normal()}
            made.observe(block(number, times, list(times)))
            if made.decision().status == "stop":
                break
            if end is None and made.futile(case.room - number, WORTH):
                end = number
        decided = made.decision().verdict in DECIDED
        lost += decided and end is not None
        hasty += decided and number > least
        lengths.append(number if end is None else end)
    what = f"effect {case.effect:+.0%}, sd {case.sd:.0%}, room for {case.room} pairs"
    told = f"{lost} of {streams}, median end {median(lengths):g}"
    found = [CheckResult("futility", f"{what}: verdicts lost", told, f"<= {MOST:.0%}", passed=lost <= MOST * streams)]
    if case == CONTROL:
        found.append(
            CheckResult(
                *("control", f"{what}: ended at the fewest pairs", f"{hasty} of {streams}", f"> {MOST:.0%}"),
                passed=hasty > MOST * streams,
            )
        )
    return found


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [Task(f"futility: {' '.join(map(str, case))}", ended, (case, seed, streams)) for case in CASES]
