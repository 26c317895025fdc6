"""The method `exact`: counts of guests that come out the same in every boot, judged by that; all others sequentially.

What is repeated. An attempt is a boot of its own: QEMU starts anew, with a seed of its block, and the guest is thrown
away after it. Between repetitions the seed is varied (from which the guest draws where its kernel and its programs lie,
and every random number), and what the host does meanwhile. The arm's kernel, backing and policy, the workload with its
parameters, QEMU, CPU model, agent and image stay as they are. Counts are *equal* where all boots of the arm have one
value, all of the baseline have one, bit for bit, and no attempt failed, was lost, or lacked its pages.

Error. As in all methods the null hypothesis is that the label changes nothing (Fisher's sharp null).

- Guests that count (`counting = true`) hear nothing from outside: a count is a function of the arm and the seed, and
  under this method both sides of a pair boot with *the same seed*. If the label changed nothing, the two would be equal
  in every block. One pair that differs disproves that with certainty; a second, with another seed, is asked for, which
  must repeat both counts: that is what shows that the count is a function at all.
- Other guests: boots are taken as independent (a guest carries nothing over, and what the host does moves no count of
  an emulated one), so that under the null the 2n counts are draws from one distribution, whatever that is. That the n
  of one label are all equal, the n of the other all equal, and the two differ, then has a chance of at most 2^(1 - 2n),
  as of two values that are equally likely: the sum of p_a^n p_b^n over all ordered pairs of values is largest there,
  for n of 2 and more (a seed that both sides share can only make the two alike). At 1% for a study this is 5 boots of
  each for one comparison, and 6 for each of nine.
- Equivalent asks for more: that the median pair lies within the margin. Were it beyond, n pairs that all lie within
  have a chance of at most 2^-n (the one-sided sign test against the nearer end of the margin; Dixon and Mood 1946,
  J. Am. Stat. Assoc. 41:557): 8 boots for one comparison at 1%. A difference within the margin is never called better
  or worse.

What this shows is that the sharp null is false. Direction and size are, as with `sequential`, those of an effect that
is the same in every pair: of the seeds that were drawn, which the reason counts. An arm that counts less under some
seeds and more under others shows that by a boot that counts otherwise, and two boots may have been drawn alike. So the
interval, which bounds the typical ratio, is left out until n pairs of one ratio would be rare enough were it not the
median: 2^(1 - n), 9 pairs for one comparison at 1%.

Where a single boot says another value, counts are no longer equal, for good: the comparison is what `sequential` makes
of its pairs, over the same declared budget. Each of the two ways has half of the comparison's share of the error rate,
so that both together hold it.
"""

from __future__ import annotations

import math
from itertools import count
from typing import NamedTuple

import msgspec

from hugewise.model.results import Comparison, Reach, Tier, Verdict
from hugewise.model.trial import Block
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Pair
from hugewise.stats.power import least_pairs
from hugewise.stats.sequential import Sequential

_AT_LEAST = 2  # one boot repeats nothing


def boots_needed(alpha: float, *, within: bool = False, same_seeds: bool = False) -> int:
    """Boots of each arm whose equal counts make a verdict at this error: that they differ, or that they lie `within`
    the margin. `same_seeds`: of guests that count, both sides of a pair with one seed.
    """
    if within:
        return max(_AT_LEAST, math.ceil(-math.log2(alpha)))
    return _AT_LEAST if same_seeds else max(_AT_LEAST, math.ceil((1 - math.log2(alpha)) / 2))


class Fewest(NamedTuple):
    """Blocks after which a comparison of guests that do not count can have a verdict, at the least.

    differ, equal   of counts that are the same in every boot: that they differ, or lie within the margin
    varied          of all else, where every pair points the same way; None: the budget is too small for any
    """

    differ: int
    equal: int
    varied: int | None


def fewest(alpha: float, planned: int) -> Fewest:
    """What a comparison with this share of the error rate needs of `planned` blocks; each way has half of it."""
    half = alpha / 2
    return Fewest(boots_needed(half), boots_needed(half, within=True), least_pairs(half, planned))


def least_budget(alpha: float) -> int:
    """The fewest blocks to declare for a comparison with this share, so that it can be decided in either way."""
    enough = (blocks for blocks in count(boots_needed(alpha / 2, within=True)) if fewest(alpha, blocks).varied)
    return next(enough)


class Exact(Sequential):
    """The method for one comparison; `alpha` is its share of the error rate, of which each of its two ways has half.

    `counting`: the guests count, so that pairs of one seed are held against each other without chance.
    """

    name = "exact"

    def __init__(self, contrast: Contrast, *, planned: int, alpha: float, margin: float, counting: bool) -> None:
        super().__init__(contrast, planned=planned, alpha=alpha / 2, margin=margin)
        self._same_seeds = counting
        self._first: Pair | None = None
        self._equal = True

    def observe(self, block: Block) -> Decision:
        """Take in a closed block."""
        self._same_seeds = self._same_seeds and _one_seed(block, self.contrast)
        return super().observe(block)

    def comparison(self) -> Comparison:
        """The result; the interval of equal counts is their ratio itself, where the pairs are enough for that."""
        found = super().comparison()
        if not self._equal or self._first is None or found.verdict == "none":
            return msgspec.structs.replace(found, method=Sequential.name)
        judged, first = found.verdict != "undecided", self._first
        assert first.arm is not None and first.baseline is not None
        point = first.arm / first.baseline
        # That the typical ratio is this very one takes more pairs than that there is a difference.
        ratio = point if judged and math.ldexp(1.0, 1 - found.n) <= self.alpha else None
        tier = Tier(
            name="this campaign",
            supported=judged,
            ratio=ratio,
            low=ratio,
            high=ratio,
            reason=f"by counts that are the same in every boot: of these {found.n} seeds" if judged else found.reason,
        )
        return msgspec.structs.replace(
            found,
            ratio=point,
            ratio_all=point,
            low=ratio,
            high=ratio,
            p=None if self._certain() else self._chance(),
            alpha_spent=None,
            tiers=(tier,),
            corrected=None,
            change=None,
        )

    def _add(self, kept: Pair, usable: Pair | None) -> None:
        first = self._first = self._first or usable
        self._equal = (
            self._equal
            and first is not None
            and kept == usable
            and kept.log_ratio is not None
            and (kept.arm, kept.baseline) == (first.arm, first.baseline)
        )
        super()._add(kept, usable)

    def _judged(self) -> tuple[Verdict, str, Reach | None]:
        if self._first is None or self.pairs.refusal(self.planned) is not None:
            return super()._judged()
        if not self._equal:
            verdict, reason, reach = super()._judged()
            return verdict, f"{self._varied()}, so that the sequential test judges; {reason}", reach
        ratio, n, needed = self._first.log_ratio, len(self.pairs.usable), self._needed()
        assert ratio is not None
        if n < needed:
            more = f" (declare so many blocks: {self.planned} are)" if needed > self.planned else ""
            what = "within the margin" if self._within() else "different"
            return "undecided", f"{self._repeated()}; {needed} of each show that they are {what}{more}", None
        if self._within():
            return "equivalent", f"{self._repeated()}: within the margin of {self._margin:.3g}", "this campaign"
        better = (ratio > 0) == (self.contrast.metric.better == "higher")
        return "better" if better else "worse", self._repeated(), "this campaign"

    def _within(self) -> bool:
        """Whether the one ratio lies within the margin."""
        assert self._first is not None and self._first.log_ratio is not None
        return abs(self._first.log_ratio) <= self._edge

    def _needed(self) -> int:
        return boots_needed(self.alpha, within=self._within(), same_seeds=self._same_seeds)

    def _chance(self) -> float:
        """At most this is the chance of such counts, if the label changed nothing (or the margin were exceeded)."""
        n = len(self.pairs.usable)
        if self._within():
            return math.ldexp(1.0, -n)
        return min(1.0, math.ldexp(1.0, 1 - 2 * n))

    def _certain(self) -> bool:
        """Whether no chance has part in it that the two counts differ: with one seed on both sides, and repeated."""
        return self._same_seeds and not self._within() and len(self.pairs.usable) >= _AT_LEAST

    def _repeated(self) -> str:
        first, n = self._first, len(self.pairs.usable)
        assert first is not None
        boots = "one boot of each" if n == 1 else f"each of {n} boots"
        sides = f"{first.arm:,.12g} under {self.contrast.arm} and {first.baseline:,.12g} under {self.contrast.baseline}"
        return f"{sides} in {boots}" + (", both sides with the same seed" if self._same_seeds else "")

    def _varied(self) -> str:
        """Why the sequential test judges."""
        for name, side in ((self.contrast.arm, "arm"), (self.contrast.baseline, "baseline")):
            values = {value for pair in self.pairs.usable if (value := getattr(pair, side)) is not None}
            if len(values) > 1:
                return f"counts of {name} vary from boot to boot ({min(values):,.12g} to {max(values):,.12g})"
        return "not every boot of both sides gave a count that can be used"


def _one_seed(block: Block, contrast: Contrast) -> bool:
    """Whether both sides' last attempts booted with one seed, as their records say. Other blocks change nothing."""
    last = {one.arm: one.guest.get("guest_seed") for one in sorted(block.attempts, key=lambda one: one.number)}
    if block.cell != contrast.cell or not {contrast.arm, contrast.baseline} <= last.keys():
        return True
    return last[contrast.arm] is not None and last[contrast.arm] == last[contrast.baseline]
