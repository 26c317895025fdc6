"""The method `exact`: counts of guests that come out the same in every boot, judged by that; all others sequentially.

What is repeated. An attempt is a boot of its own: QEMU starts anew, with a seed of its block, and the guest is thrown
away after it. Between repetitions the seed is varied (from which the guest draws where its kernel and its programs lie,
and every random number), and what the host does meanwhile. Counts are *equal* where all boots of the arm have one
value, all of the baseline have one, bit for bit, and no attempt failed, was lost, or lacked its pages.

Error. As in all methods the null hypothesis is that the label changes nothing (Fisher's sharp null), and the coins of
the blocks are all that is relied on: a count may hang on its seed, on its place in the block and on what the host does.

- Different: under the null the coin alone decides which side of a block has which of its two counts. That the coins of
  n blocks fall so that one label has the one count throughout and the other label the other has a chance of 2^(1 - n).
  At 1% for a study this takes 9 boots of each for one comparison, and 12 for each of nine.
- Equivalent: the median pair lies within the margin. Were it beyond, n pairs that all lie within have a chance of at
  most 2^-n (the one-sided sign test against the nearer end of the margin; Dixon and Mood 1946, J. Am. Stat. Assoc.
  41:557): 8 boots for one comparison at 1%. A difference within the margin is never called better or worse.

Each is asked once, at the first pair that is enough. Direction and size are, as with `sequential`, those of an effect
that is the same in every pair: of the seeds that were drawn, which the reason counts. The interval bounds the typical
ratio, and is left out until n pairs of one ratio would be rare enough were it not the median: 2^(1 - n) too.

Where a single boot says another value, counts are no longer equal, for good: the comparison is what `sequential` makes
of its pairs, over the same declared budget. Each of the two ways has half of the comparison's share of the error rate,
so that both together hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import msgspec

from hugewise.model.reason import ByCounts, CountsVary, Reason, SameCounts
from hugewise.model.results import Comparison, Reach, Tier, Verdict
from hugewise.stats import campaign
from hugewise.stats.method import Contrast
from hugewise.stats.pairs import Pair
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import first_crossing


def boots_needed(alpha: float, *, within: bool = False) -> int:
    """Boots of each arm whose equal counts make a verdict at this error: that they differ, or that they lie `within`
    the margin.
    """
    return first_crossing(2 * alpha if within else alpha)


def least_budget(alpha: float) -> int:
    """The fewest blocks to declare for a comparison with this share, so that it can be decided in either way."""
    return next(blocks for blocks in count(boots_needed(alpha / 2)) if least_pairs(alpha / 2, blocks) is not None)


class Exact(Sequential):
    """The method for one comparison; `alpha` is its share of the error rate, of which each of its two ways has half."""

    name = "exact"

    def __init__(self, contrast: Contrast, *, planned: int, alpha: float, margin: float) -> None:
        super().__init__(contrast, planned=planned, alpha=alpha / 2, margin=margin)
        self._first: Pair | None = None
        self._equal = True

    def comparison(self) -> Comparison:
        """The result; the interval of equal counts is their ratio itself, where the pairs are enough for that."""
        sequential = super().comparison()
        if not self._equal or self._first is None or sequential.verdict == "none":
            return msgspec.structs.replace(sequential, method=Sequential.name)
        judged, first = sequential.verdict != "undecided", self._first
        assert first.arm is not None and first.baseline is not None
        point = first.arm / first.baseline
        # That the typical ratio is this very one takes a pair more than that it lies within the margin.
        ratio = point if judged and math.ldexp(1.0, 1 - sequential.n) <= self.alpha else None
        tier = Tier(
            name="this campaign",
            supported=judged,
            ratio=ratio,
            low=ratio,
            high=ratio,
            reason=ByCounts(sequential.n) if judged else sequential.reason,
        )
        return msgspec.structs.replace(
            sequential,
            ratio=point,
            ratio_all=point,
            low=ratio,
            high=ratio,
            p=self._chance(),
            alpha_spent=None,
            tiers=(tier,),
            corrected=None,
            change=None,
        )

    def _add(self, kept: Sequence[Pair], usable: Sequence[Pair]) -> None:
        first = self._first = self._first or next(iter(usable), None)
        self._equal = (
            self._equal
            and first is not None
            and kept == usable
            and all(
                pair.log_ratio is not None and (pair.arm, pair.baseline) == (first.arm, first.baseline) for pair in kept
            )
        )
        super()._add(kept, usable)

    def _judged(self) -> tuple[Verdict, Reason, Reach | None]:
        if self._first is None or self.pairs.refusal(self.planned) is not None:
            return super()._judged()
        if not self._equal:
            verdict, reason, reach = super()._judged()
            return verdict, self._varied(reason), reach
        ratio, n, needed = self._first.log_ratio, len(self.pairs.usable), self._needed()
        assert ratio is not None
        if n < needed:
            return "undecided", self._repeated(needed), None
        if self._within():
            return "equivalent", self._repeated(), "this campaign"
        better = (ratio > 0) == (self.contrast.metric.better == "higher")
        return "better" if better else "worse", self._repeated(), "this campaign"

    def _within(self) -> bool:
        assert self._first is not None and self._first.log_ratio is not None
        return abs(self._first.log_ratio) <= self._edge

    def _needed(self) -> int:
        return boots_needed(self.alpha, within=self._within())

    def _chance(self) -> float:
        return math.ldexp(1.0, (0 if self._within() else 1) - len(self.pairs.usable))

    def _repeated(self, needed: int | None = None) -> SameCounts:
        first, within, boots = self._first, self._within(), len(self.pairs.usable)
        assert first is not None and first.arm is not None and first.baseline is not None
        return SameCounts(
            self.contrast.arm,
            first.arm,
            self.contrast.baseline,
            first.baseline,
            boots,
            self._margin if within else None,
            needed,
            self.planned,
            campaign.unseen(boots, self.alpha) if within else None,
        )

    def _varied(self, reason: Reason) -> CountsVary:
        for name, side in ((self.contrast.arm, "arm"), (self.contrast.baseline, "baseline")):
            values = {value for pair in self.pairs.usable if (value := getattr(pair, side)) is not None}
            if len(values) > 1:
                return CountsVary(reason, name, min(values), max(values))
        return CountsVary(reason)
