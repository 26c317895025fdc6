"""Blocks with two copies of each arm: wrong verdicts without an effect, and the pairs that effects take.

Every family's adjacent pairs are put together to blocks of four places, on which a coin draws the labels anew. The
planted fault draws them otherwise than the test assumes: both copies of an arm side by side, so that drift of the host
becomes a difference of the arms.

The pairs that a verdict takes stand beside those of one copy and the goals: 1.3 times the pairs at which Wilcoxon's
test, asked once, finds the effect half of the time (49, 11 and, as fewer never suffice, 8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from hugewise.stats.method import Numbers
from hugewise.stats.signflip import Drawn, placings, stopped
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import FAMILIES, generator

ALPHA, BLOCKS, DECLARED = 0.01, 60, 200
DEVIATION = 0.05  # of a pair's log-ratio
EFFECTS = {0.02: 64, 0.05: 14, 0.2: 10}
"""Effects with their goals: pairs after which half of the streams have ended."""
_ROOM = 1.2  # times the goal that the pairs may be: no test of whole blocks of two pairs has reached the goals


def shuffled(random: Generator, places: Numbers) -> list[Drawn]:
    """Return blocks from the logarithms on their four places, shape (blocks, 4), the labels placed by a coin."""
    ordered = random.permuted(places, axis=1)
    return [placings(row[:2], row[2:]) for row in ordered.tolist()]


def _side_by_side(random: Generator, places: Numbers) -> list[Drawn]:
    """Planted fault: the arm has the first two places or the last two."""
    first = random.integers(0, 2, len(places)).astype(bool)
    return [
        placings(row[:2], row[2:]) if arm else placings(row[2:], row[:2])
        for row, arm in zip(places.tolist(), first.tolist(), strict=True)
    ]


def _four(name: str, seed: int, streams: int) -> tuple[Generator, Numbers]:
    random = generator(seed, "copies", name)
    family = next(family for family in FAMILIES if family.name == name)
    drawn = family.draw(random, streams, 2 * BLOCKS)
    sides = np.log(drawn.arm), np.log(drawn.baseline)
    return random, np.stack([side[:, start::2] for start in (0, 1) for side in sides], axis=2)


def null(name: str, seed: int, streams: int) -> Sequence[CheckResult]:
    """Return how many streams of the family end in a verdict, which all are wrong."""
    random, places = _four(name, seed, streams)
    allowed = most_wrong(streams)
    wrong = sum(_decided(shuffled(random, row)) for row in places)
    found = [CheckResult("copies", f"{name}: wrong", f"{wrong} of {streams}", f"<= {allowed}", wrong <= allowed)]
    if name == PLANTED:
        wrong = sum(_decided(_side_by_side(random, row)) for row in places)
        case = f"planted: {name}, copies side by side"
        found.append(CheckResult("control", case, f"{wrong} of {streams}", f"> {allowed}", wrong > allowed))
    return found


def most_wrong(streams: int) -> int:
    """Return the most wrong verdicts of so many streams that a test at `ALPHA` makes 99 times in 100."""
    from scipy.stats import binom  # noqa: PLC0415  (slow to load)

    return int(binom.ppf(0.99, streams, ALPHA))


def _decided(blocks: Sequence[Drawn]) -> bool:
    return stopped(blocks, ALPHA, DECLARED, copies=2).sign != 0


def pairs(effect: float, seed: int, streams: int) -> Sequence[CheckResult]:
    """Return the pairs after which half, and nine in ten, of the streams with this effect have ended."""
    random, goal = generator(seed, "copies", effect), EFFECTS[effect]
    noise = random.normal(0, DEVIATION / np.sqrt(2), (streams, DECLARED // 2, 4))
    noise[:, :, :2] += np.log1p(effect)
    ends: dict[int, list[int]] = {1: [], 2: []}
    for row in noise:
        four = [placings(block[:2], block[2:]) for block in row.tolist()]
        single = [float(first - other) for first, other in zip(row[:, :2].ravel(), row[:, 2:].ravel(), strict=True)]
        for copies, drawn in ((1, single), (2, four)):
            test = stopped(drawn, ALPHA, DECLARED, copies=copies)
            ends[copies].append(test.pairs if test.sign > 0 else DECLARED + 1)
    seen = {
        copies: "/".join(f"{np.quantile(each, share, method='higher'):g}" for share in (0.5, 0.9))
        for copies, each in ends.items()
    }
    middle = float(np.quantile(ends[2], 0.5, method="higher"))
    fewer = middle <= float(np.quantile(ends[1], 0.5, method="higher"))
    case = f"{effect:.0%} of {DEVIATION:.0%}: pairs, half/nine in ten"
    told = f"{seen[2]}; one copy {seen[1]}; goal {goal}"
    return [CheckResult("copies", case, told, f"half by {_ROOM * goal:.0f}", middle <= _ROOM * goal and fewer)]


PLANTED = "correlated"


def tasks(seed: int, streams: int) -> list[Task]:
    """Return a task for each family and each effect."""
    return [
        *(Task(f"copies: {family.name}", null, (family.name, seed, streams)) for family in FAMILIES),
        *(Task(f"copies: {effect:.0%}", pairs, (effect, seed, streams)) for effect in EFFECTS),
    ]
