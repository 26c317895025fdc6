"""Carry-over: what a turn of one arm does to the next turn, which is another arm's.

An arm that costs the next turn a share c of its time reads as better by c where the turns alternate (ABAB), and by
nothing where each arm follows itself as often as the other arm (ABBA). A coin draws the order of each block
(`model.trial.draw_turns`), so that the log-ratios of a comparison on

    x = 1 - share of the arm's turns that follow its own - the same share of the baseline

have the slope c(baseline) - c(arm), by least squares. The bias of the estimate is that slope times the mean of x
(crossover trials call it the first-order carry-over: Jones and Kenward 2014, Design and Analysis of Cross-Over Trials).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

_FEWEST = 4
_MOST = 20.0  # in log-ratio: bounds beyond say nothing, and exceed what a ratio holds


def exposure(turns: str, places: Sequence[str], arm: str, baseline: str) -> float:
    """Return x of a block with these turns, which are repeated; `places` are the arms whose places the digits count: an
    arm has several where the block has copies.
    """
    order = [places[int(turn)] for turn in turns]
    own = {
        side: sum(last == now == side for last, now in zip(order[-1:] + order[:-1], order, strict=True))
        for side in (arm, baseline)
    }
    return 1 - sum(own[side] / order.count(side) for side in own)


def bias(points: Sequence[tuple[float, float]], confidence: float) -> tuple[float, float] | None:
    """Return the interval of the bias, in log-ratio, from the blocks' (x, log-ratio); None where it is not bounded:
    below four blocks, with one order of turns, or where the blocks scatter too much.
    """
    if len(points) < _FEWEST or len({x for x, _ in points}) < 2:
        return None
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    mean, level = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean) ** 2 for x, _ in points)
    slope = sum((x - mean) * y for x, y in points) / spread
    freedom = len(points) - 2
    squares = sum((y - level - slope * (x - mean)) ** 2 for x, y in points)
    half = -float(stdtrit(freedom, (1 - confidence) / 2)) * math.sqrt(squares / freedom / spread)
    low, high = sorted((mean * (slope - half), mean * (slope + half)))
    return (low, high) if max(-low, high) <= _MOST else None
