"""Planning: do the pairs that a pilot asks for deliver their verdict as often as promised, over many pilots?

A pilot of 20 normal pairs gives the scale; from it the pairs for an effect are asked for, as `hugewise plan` does; then
the real sequential test runs on fresh pairs with that effect. What the pairs of one pilot deliver is counted on a pool
of such campaigns, which is the same for all pilots: a campaign's first crossing does not know the pilot.

The planted fault is the plan that takes the pilot's scale for the true one: it must be found to break the promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from hugewise.stats import paired, power
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import stopped
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator

PAIRS = 20
"""Pairs of a pilot."""
CHANCE = 0.9
BAND = 0.02
"""Allowed distance of the average over pilots from the promise."""
ROUGH = 0.05
"""The same for the pairs of half and for the hidden effect, which nobody plans by."""


class PilotCase(NamedTuple):
    """`shift` is the effect in standard deviations of a pair; `budget` is declared, and more than a pilot asks for.

    pilots  at least: where campaigns are short, more of them cost little
    """

    shift: float
    alpha: float
    budget: int
    pilots: int = 0


_EFFECTS = ((0.2, 5000, 0), (0.4, 2000, 0), (1.0, 500, 1000))
CASES = tuple(PilotCase(shift, alpha, *more) for shift, *more in _EFFECTS for alpha in (0.01, 0.0025))
CAMPAIGNS = 2
"""Campaigns in the pool, for each pilot; every pilot's pairs are tried on all of the pool."""
REPLAYS = 10
"""Replays for each pilot, of a test at a fixed number of pairs."""
SHOWN = 200
"""Declared pairs whose shown and hidden effects are tried."""

PilotDraw = Callable[[Generator, tuple[int, ...]], Numbers]


def normal(random: Generator, shape: tuple[int, ...]) -> Numbers:
    """Return pairs of standard deviation 1."""
    return random.standard_normal(shape)


def heavy(random: Generator, shape: tuple[int, ...]) -> Numbers:
    """Return pairs of standard deviation 1 from Student's t with 3 degrees of freedom."""
    return random.standard_t(3, shape) / math.sqrt(3)


def pairs(case: PilotCase, seed: int, pilots: int) -> Sequence[CheckResult]:
    """Check pairs for 90%, for half, the planted fault; report the worst pilots and heavy tails."""
    random = generator(seed, "planning", case.shift, case.alpha, case.budget)
    scales, ends = _scales(random, normal, pilots), _ends(random, normal, case, pilots)

    freedom = paired.freedom(PAIRS)

    def asked(scales: Numbers, chance: float = CHANCE, freedom: float = freedom) -> Numbers:
        return _asked(
            lambda shift: power.pairs_for_assurance(shift, freedom, case.alpha, chance=chance, budget=case.budget),
            case.shift,
            scales,
        )

    seen, half = delivered(asked(scales), ends), delivered(asked(scales, 0.5), ends)
    known = delivered(asked(scales, freedom=power.KNOWN), ends)
    tails = delivered(asked(_scales(random, heavy, pilots)), _ends(random, heavy, case, pilots))
    name = f"effect {case.shift:g} sd, alpha {case.alpha:g}"
    planted, out = f"{name}: spread taken as known (planted)", abs(float(known.mean()) - CHANCE) > BAND
    return [
        _kept(f"{name}: verdict by the pairs asked for", float(seen.mean()), CHANCE, BAND),
        _kept(f"{name}: verdict by the pairs of half", float(half.mean()), 0.5, ROUGH),
        CheckResult("planning", planted, f"{known.mean():.1%}", f"outside {_band(CHANCE, BAND)}", out),
        _reported(
            f"{name}: the worst tenth of pilots", f"{_worst(seen):.1%} (spread taken as known: {_worst(known):.1%})"
        ),
        _reported(f"{name}: pairs of t noise with 3 degrees of freedom", f"{tails.mean():.1%}"),
    ]


def budgets(alpha: float, seed: int, pilots: int) -> Sequence[CheckResult]:
    """Return the effect that a declared budget shows with 90%, and the one that stays hidden with 90%."""
    random = generator(seed, "planning", "budgets", alpha)
    found = []
    for chance, what in ((CHANCE, "shown"), (1 - CHANCE, "hidden")):
        shift = power.shift_shown(SHOWN, paired.freedom(PAIRS), alpha, chance=chance)
        assert shift is not None
        scales = _scales(random, normal, pilots)
        ends = np.array(
            [_end(random, normal, PilotCase(shift * scale, alpha, SHOWN)) for scale in np.tile(scales, CAMPAIGNS)]
        )
        said = f"{SHOWN} pairs, alpha {alpha:g}: verdict on the {what} effect"
        found.append(_kept(said, float((ends <= SHOWN).mean()), chance, BAND if what == "shown" else ROUGH))
    return found


def fixed(shift: float, alpha: float, seed: int, pilots: int) -> Sequence[CheckResult]:
    """Return the pairs of a paired t test at a number that was fixed beforehand."""
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    random = generator(seed, "planning", "fixed", shift, alpha)
    freedom = paired.freedom(PAIRS)
    asked = _asked(lambda s: power.student_needed(s, freedom, alpha), shift, _scales(random, normal, pilots))
    found = 0
    for count in asked.astype(int):
        drawn = shift + normal(random, (REPLAYS, count))
        t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / math.sqrt(count))
        found += int(np.count_nonzero(t > stdtrit(count - 1, 1 - alpha / 2)))
    share = found / (REPLAYS * pilots)
    return [_kept(f"fixed n, effect {shift:g} sd, alpha {alpha:g}: the pairs asked for", share, CHANCE, BAND)]


def delivered(asked: Numbers, ends: Numbers) -> Numbers:
    """Return, for each number of pairs asked for, the share of campaigns that ended right by then."""
    return np.searchsorted(np.sort(ends), asked, "right") / len(ends)


def tasks(seed: int, pilots: int) -> list[Task]:
    """Return one task a case."""
    found = [
        Task(f"planning: {case.shift:g} sd at {case.alpha:g}", pairs, (case, seed, max(pilots, case.pilots)))
        for case in CASES
    ]
    found += [Task(f"planning: budgets at {alpha:g}", budgets, (alpha, seed, pilots)) for alpha in (0.01, 0.0025)]
    found += [Task(f"planning: fixed n, {shift:g} sd", fixed, (shift, 0.01, seed, pilots)) for shift in (0.2, 0.4, 1.0)]
    return found


def _scales(random: Generator, draw: PilotDraw, pilots: int) -> Numbers:
    """Return the pilots' estimates of the deviation, which is 1."""
    return np.array([paired.scale(pilot) for pilot in draw(random, (pilots, PAIRS))])


def _asked(needed: Callable[[float], int | None], shift: float, scales: Numbers) -> Numbers:
    """Return the pairs that each pilot asks for, whole, interpolated on a grid of scales; infinite where none do."""
    grid = np.geomspace(scales.min() * 0.999, scales.max() * 1.001, 13)
    counts = [needed(shift / scale) for scale in grid.tolist()]
    logs = [math.inf if count is None else math.log(count) for count in counts]
    return np.rint(np.exp(np.interp(np.log(scales), np.log(grid), logs)))


def _ends(random: Generator, draw: PilotDraw, case: PilotCase, pilots: int) -> Numbers:
    """Return the pairs after which campaigns of the real test end in the right direction, or infinity."""
    return np.array([_end(random, draw, case) for _ in range(CAMPAIGNS * pilots)])


def _end(random: Generator, draw: PilotDraw, case: PilotCase) -> float:
    test = stopped((case.shift + draw(random, (case.budget,))).tolist(), case.alpha, case.budget)
    return float(test.pairs) if test.sign > 0 else math.inf


def _worst(seen: Numbers) -> float:
    """Return the average that the worst tenth delivers."""
    return float(np.sort(seen)[: max(1, len(seen) // 10)].mean())


def _band(chance: float, band: float) -> str:
    return f"{100 * (chance - band):.0f} to {100 * (chance + band):.0f}%"


def _kept(case: str, seen: float, chance: float, band: float) -> CheckResult:
    return CheckResult("planning", case, f"{seen:.1%}", _band(chance, band), abs(seen - chance) <= band)


def _reported(case: str, seen: str) -> CheckResult:
    return CheckResult("planning", case, seen, "not judged", True)
