"""A screening and the confirmation after it, on simulated blocks: who is passed over wrongly, what is claimed wrongly.

The confirmation has the screening's runner-up in its blocks, which claims nothing and is no reason to go on: its blocks
are asked for as a run asks for them.

Each promise has its planted fault beside it: choosing by the estimate after a few blocks, and judging the winner of
many on the very blocks that made it so. Both must be seen to be wrong too often, or the streams would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from hugewise.model.results import DIRECTIONS
from hugewise.model.trial import Block
from hugewise.stats.method import Method
from hugewise.stats.screening import Screening
from hugewise.stats.sequential import Sequential, Unjudged
from hugewise.stats.signflip import verdict
from tools.verification.block_streams import CONTRAST, attempt
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator

DROPPED, CLAIMED = 0.1, 0.05  # the error of a screening, and of the confirmation after it
MARGIN, BUDGET = 0.02, 60
_EARLY = 4  # blocks after which the planted fault chooses
_CLEAR = 2.5  # margins by which the best arm is better where an unsure screening has to find it, too


class ScreeningCase(NamedTuple):
    """`arms` beside the baseline, of which the last is better than all others by `gain` margins."""

    noise: str
    arms: int
    gain: float


_NOISE: Mapping[str, float] = {"normal": np.inf, "Student's t, 3 df": 3.0}
_SD = 0.03  # standard deviation of one attempt's log-time; blocks drift by five times as much, in common
CASES = tuple(ScreeningCase(noise, arms, gain) for noise in _NOISE for arms in (2, 6) for gain in (0.0, 1.05, _CLEAR))


def limit(rate: float, streams: int) -> float:
    """Most of so many streams that may be wrong: 3 standard errors above the rate."""
    return rate + 3 * float(np.sqrt(rate * (1 - rate) / streams))


def _blocks(case: ScreeningCase, random: Generator) -> Iterator[dict[str, float]]:
    names = [CONTRAST.baseline, *(f"arm-{number}" for number in range(case.arms))]
    levels = np.zeros(len(names))
    levels[-1] -= case.gain * np.log1p(MARGIN)
    freedom = _NOISE[case.noise]
    while True:
        shocks = random.standard_normal(len(names)) if np.isinf(freedom) else random.standard_t(freedom, len(names))
        times = levels + _SD * shocks + 5 * _SD * random.standard_normal()
        yield dict(zip(names, times.tolist(), strict=True))


def block(number: int, times: Mapping[str, float], of: Sequence[str]) -> Block:
    """Return a complete block of attempts of the arms `of`, which took exp(`times`)."""
    made = tuple(msgspec.structs.replace(attempt(name, times[name]), block=number) for name in of)
    return Block(number=number, cell=CONTRAST.cell, state="complete", reason=None, attempts=made)


def _screened(case: ScreeningCase, stream: Iterator[dict[str, float]]) -> tuple[Screening, list[dict[str, float]]]:
    contrasts = [msgspec.structs.replace(CONTRAST, arm=f"arm-{number}") for number in range(case.arms)]
    made, seen = Screening(contrasts, planned=BUDGET, alpha=DROPPED, margin=MARGIN), []
    while not made.ended:
        seen.append(next(stream))
        made.observe(block(len(seen), seen[-1], [arm for arm in made.arms if arm not in made.dropped]))
    return made, seen


def together(case: ScreeningCase, seed: int, streams: int) -> Sequence[CheckResult]:
    """Screening after screening, each with its confirmation on blocks of its own."""
    random = generator(seed, "screening", *case)
    wrong = hasty = claimed = selected = longer = 0
    lengths = []
    for _ in range(streams):
        stream = _blocks(case, random)
        made, seen = _screened(case, stream)
        lengths.append(len(seen))
        best, chosen = made.arms[-1] if case.gain else None, made.chosen()
        wrong += best is not None and chosen.arm != best and (case.gain == _CLEAR or not chosen.unsure)
        early = [_estimate(arm, seen[:_EARLY]) for arm in made.arms]
        hasty += best is not None and made.arms[int(np.argmin(early))] != best
        if best is None:
            candidate, *others = sorted(made.arms[1:], key=lambda arm: _estimate(arm, seen))
            told_of = _confirmed(candidate, next((arm for arm in others if arm not in made.dropped), None), stream)
            claimed, longer = claimed + told_of.claimed, longer + told_of.longer
            again = [one[candidate] - one[CONTRAST.baseline] for one in (*seen, *(next(stream) for _ in range(5)))]
            selected += verdict(again, CLAIMED, len(again)) != 0
    what = f"{case.arms} arms, {case.noise}, " + (f"one better by {case.gain:g} margins" if case.gain else "all alike")
    told = f"of {streams}, median block {np.median(lengths):g}"
    most = limit(DROPPED if case.gain else CLAIMED, streams)
    if case.gain == _CLEAR:
        return [
            CheckResult("screening", f"{what}: another goes on, sure or not", f"{wrong} {told}", f"<= {most:.3f}",
                        wrong / streams <= most),
        ]  # fmt: skip
    if case.gain:
        return [
            CheckResult("screening", f"{what}: it is surely passed over", f"{wrong} {told}", f"<= {most:.3f}",
                        wrong / streams <= most),
            CheckResult("control", f"{what}: the best after {_EARLY} blocks is another", f"{hasty} of {streams}",
                        f"> {most:.3f}", hasty / streams > most),
        ]  # fmt: skip
    found = [
        CheckResult("screening", f"{what}: the best of them is confirmed as different", f"{claimed} {told}",
                    f"<= {most:.3f}", claimed / streams <= most),
        CheckResult("screening", f"{what}: the runner-up beside it claims, or prolongs it", f"{longer} of {streams}",
                    "0", longer == 0),
    ]  # fmt: skip
    if case.arms > 2 and np.isinf(_NOISE[case.noise]):
        found.append(
            CheckResult("control", f"{what}: judged on the blocks that chose it", f"{selected} of {streams}",
                        f"> {most:.3f}", selected / streams > most)
        )  # fmt: skip
    return found


def _estimate(arm: str, seen: Sequence[Mapping[str, float]]) -> float:
    return fmean(one[arm] for one in seen)


class _Confirmation(NamedTuple):
    claimed: bool
    longer: bool


def _confirmed(arm: str, beside: str | None, stream: Iterator[dict[str, float]]) -> _Confirmation:
    """Return whether the confirmation claims a difference, and whether the arm beside it does, or has it go on."""
    contrast = msgspec.structs.replace(CONTRAST, arm=arm)
    made = Sequential(contrast, planned=BUDGET, alpha=CLAIMED, margin=MARGIN)
    methods: list[Method] = [made]
    if beside is not None:
        other = msgspec.structs.replace(CONTRAST, arm=beside)
        methods.append(Unjudged(other, methods[:1], planned=BUDGET, alpha=CLAIMED, margin=MARGIN))
    number, decided = 0, None
    while any(method.decision().status == "continue" for method in methods):
        number += 1
        closed = block(number, next(stream), [contrast.baseline, *(method.contrast.arm for method in methods)])
        for method in methods:
            method.observe(closed)
        if decided is None and made.decision().status == "stop":
            decided = number
    says = any(method.decision().verdict != "none" for method in methods[1:])
    return _Confirmation(made.decision().verdict in DIRECTIONS, says or decided != number)


def tasks(seed: int, streams: int) -> list[Task]:
    """Return one task a case."""
    return [Task(f"screening: {' '.join(map(str, case))}", together, (case, seed, streams)) for case in CASES]
