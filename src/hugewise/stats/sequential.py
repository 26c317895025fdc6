"""The method `sequential`: an exact test after every block, at an error rate that holds however often one looks.

One object watches one comparison of one end point with its own fixed share of the study's error rate. After each pair:

1. better or worse: the sequential sign-flip test has crossed (`signflip`: exact, by the coin alone), and the
   confidence sequence of the campaign average, where there are pairs enough for one, does not contradict it;
2. equivalent: the same test has rejected both "the ratio is at least 1 + margin" and "at most 1/(1 + margin)", which is
   the interval by inversion lying within the margin; never where an attempt failed;
3. otherwise the comparison goes on, to the declared budget of pairs; then it is undecided.

How far a verdict reaches is named with it (`hugewise.results.Tier`): this campaign (the sign test), the campaign
average (`campaign`; from 100 pairs), beyond these sessions (`sessions`). A tier that the data cannot carry says so.

The estimand is the typical ratio: the pseudo-median of the pairs' log-ratio (Hodges and Lehmann 1963). Its interval is
the set of ratios that the test has not rejected (`inversion`), so that it excludes 1 exactly when the test has crossed.

A study may name a covariate (`covariate`). Test, interval and estimate are then all made on the same differences with
it taken out. What is kept by inversion need not be an interval then, so every verdict also asks that the interval
shown bears it out: all of it above 1, below 1, or within the margin. Until it does, the comparison goes on.
A covariate that differs by arm is refused by a check of its own, and the comparison ends without a verdict. Campaign
average, session means and evidence stay those of the plain differences.

Beside it an e-process (`eprocess`) sees the same differences, and stops with the comparison. An e-value counts at any
stopping time, so at this one too: what it is when the sign test ends the comparison is what multiplies over runs
(`evidence`). It has no part in the verdict here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec

from hugewise.results import Comparison, Reach, Tier, Verdict
from hugewise.stats import campaign, inversion, sessions
from hugewise.stats.covariate import FALSIFICATION_ALPHA, Controlled, falsification, variance_ratio
from hugewise.stats.eprocess import EProcess
from hugewise.stats.method import Contrast, Decision, Effect
from hugewise.stats.pairs import Finding, Pair, Pairs, ratio_of
from hugewise.stats.signflip import SignFlip
from hugewise.trial import Block

__all__ = ["Sequential"]

_TYPICAL = "typical ratio"


class Sequential:
    """The sequential method for one comparison.

    `alpha` is its share of the study's error rate, `planned` the declared budget of pairs: both fixed before the first
    block. With `width` a better or worse does not end it until the interval of the ratio is at most as wide; the
    interval holds whenever one looks, so that waiting for it costs no error. `covariate` is a name of
    `hugewise.covariates.COVARIATES`, taken out of the differences.
    """

    name = "sequential"

    def __init__(
        self,
        contrast: Contrast,
        *,
        planned: int,
        alpha: float,
        margin: float,
        width: float | None = None,
        covariate: str | None = None,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._margin = margin
        self._width = width
        self._covariate = covariate
        self._pairs = Pairs(contrast, covariate)
        self._controlled = Controlled()
        self._moved = SignFlip(FALSIFICATION_ALPHA, planned)  # is the covariate different under the arm?
        self._test = SignFlip(alpha, planned)
        # Has "arm/baseline is 1 + margin or more" been rejected, and "1/(1 + margin) or less"?
        self._below_upper = SignFlip(alpha, planned)
        self._above_lower = SignFlip(alpha, planned)
        self._average = campaign.Campaign(alpha)
        self._evidence = EProcess()
        self._narrow_at: int | None = None
        self._shown: tuple[int, tuple[float, float]] | None = None

    def observe(self, block: Block) -> Decision:
        """Take in a closed block; after the stop nothing is taken in any more."""
        if not self._stopped():
            pair = self._pairs.take(block)
            if pair is not None:
                self._add(pair)
        return self.decision()

    def decision(self) -> Decision:
        """What is known; cheap, so the interval is left to `comparison`."""
        verdict, reason, _ = self._verdict()
        return Decision("stop" if self._stopped() else "continue", None, verdict, reason)

    def comparison(self) -> Comparison:
        """The result with interval, tiers and the alpha spent. About a second at thousands of pairs."""
        verdict, reason, reach = self._verdict()
        effect = self._effect(self._pairs.usable)
        everything = self._effect(self._pairs.everything, interval=False)
        finding = (
            Finding(verdict, reason)
            if effect is None
            else Finding(verdict, reason, effect.ratio, effect.low, effect.high)
        )
        found = self._pairs.comparison(
            self.name,
            self.planned,
            finding,
            ratio_all=None if everything is None else everything.ratio,
            confidence=1 - self.alpha,
        )
        return msgspec.structs.replace(
            found,
            estimand=_TYPICAL,
            alpha=self.alpha,
            alpha_spent=self._test.spent,
            reach=reach,
            tiers=self._tiers(effect),
            warnings=self._warnings(),
            evidence=None if verdict == "none" else _finite(self._evidence.value),
            evidence_larger=None if verdict == "none" else _finite(self._evidence.up),
            evidence_smaller=None if verdict == "none" else _finite(self._evidence.down),
        )

    def _difference(self, pair: Pair) -> float:
        return pair.difference(higher_is_better=self.contrast.metric.better == "higher")

    def _add(self, pair: Pair) -> None:
        margin, difference = math.log1p(self._margin), self._difference(pair)
        if pair.log_ratio is not None:
            self._average.add(pair.log_ratio)
        self._evidence.add(difference)
        if pair.covariate is not None:
            self._moved.add(pair.covariate)
        value, weight = self._controlled.add(difference, pair.covariate)
        self._test.add(value)
        self._below_upper.add(value - margin * weight)
        self._above_lower.add(value + margin * weight)

    def _stopped(self) -> bool:
        if self._pairs.exhausted(self.planned) or self._moved.sign:
            return True
        verdict = self._verdict()[0]
        return verdict == "equivalent" or (verdict in ("better", "worse") and self._narrow())

    def _narrow(self) -> bool:
        """Whether the interval is as narrow as was asked for. Remembered for each pair: it is asked again and again."""
        if self._width is None or self._narrow_at == len(self._pairs.usable):
            return True
        effect = self._effect(self._pairs.usable)
        ends = None if effect is None or effect.low is None or effect.high is None else (effect.low, effect.high)
        if ends is None or ends[1] - ends[0] > self._width:
            return False
        self._narrow_at = len(self._pairs.usable)
        return True

    def _verdict(self) -> tuple[Verdict, str, Reach | None]:
        refusal = self._pairs.refusal(self.planned)
        if refusal is not None:
            return "none", refusal, None
        if self._moved.sign:
            return "none", f"{self._covariate}: {self._falsification()}", None
        failures = self._pairs.failures()
        margin = math.log1p(self._margin)
        tight = self._below_upper.sign < 0 < self._above_lower.sign
        if tight and not failures and self._borne_out(-margin, margin):
            return "equivalent", f"the whole interval lies within the margin of {self._margin:.3g}", "this campaign"
        beyond = (0.0, math.inf) if self._test.sign > 0 else (-math.inf, 0.0)
        if self._test.sign and self._borne_out(*beyond):
            return self._crossed()
        if self._test.sign and len(self._pairs.usable) >= self.planned:
            return "undecided", "the test has crossed, but with the covariate its interval still has both sides", None
        if len(self._pairs.usable) < self.planned:
            return "undecided", self._pairs.shortfall(self.planned), None
        return "undecided", "the declared budget of pairs is used up and the test has not crossed", None

    def _borne_out(self, low: float, high: float) -> bool:
        """Whether the interval that would be shown lies between these log-ratios; true without a covariate.

        Remembered for each pair: it is asked again and again.
        """
        if self._covariate is None:
            return True
        if self._shown is None or self._shown[0] != len(self._pairs.usable):
            self._shown = len(self._pairs.usable), self._interval(self._controlled)
        ends = self._shown[1]
        return low < ends[0] <= ends[1] < high

    def _falsification(self) -> str:
        moved = [pair.covariate for pair in self._pairs.usable if pair.covariate is not None]
        return falsification(moved, FALSIFICATION_ALPHA, budget=self.planned)[1]

    def _warnings(self) -> tuple[str, ...]:
        """What the covariate bought, and what its check has said."""
        if self._covariate is None or self._moved.sign:
            return ()
        pairs = self._pairs.usable
        missing = sum(pair.covariate is None for pair in pairs)
        if missing == len(pairs):
            return (f"the covariate {self._covariate} was measured in no pair: nothing was taken out",)
        if not any(pair.covariate for pair in pairs):
            return (f"the covariate {self._covariate} was the same on both sides of every pair: nothing was taken out",)
        bought = variance_ratio([self._difference(pair) for pair in pairs], self._controlled.values)
        said = f"the covariate {self._covariate} was taken out of the differences"
        if bought is not None:
            said += f": their variance is {bought:.3g} times that of the plain ones"
        if missing:
            said += f"; it was missing in {missing} of {len(pairs)} pairs, which stay as they are"
        return said, self._falsification()

    def _crossed(self) -> tuple[Verdict, str, Reach | None]:
        sign = self._test.sign
        average = self._campaign_interval()
        verdict: Verdict = "better" if (sign > 0) == (self.contrast.metric.better == "higher") else "worse"
        crossed = f"the exact test crossed at pair {self._test.crossed_at}"
        if average is None:
            return verdict, f"{crossed}: in this campaign", "this campaign"
        low, high = average
        if (high < 0) if sign > 0 else (low > 0):
            return "undecided", f"{crossed}, but the campaign average contradicts it", None
        if (low > 0) if sign > 0 else (high < 0):
            return verdict, f"{crossed}, and the campaign average agrees", "campaign average"
        return verdict, f"{crossed}; the campaign average does not contradict it", "this campaign"

    def _log_ratios(self) -> list[float]:
        return [pair.log_ratio for pair in self._pairs.usable if pair.log_ratio is not None]

    def _campaign_interval(self) -> tuple[float, float] | None:
        """Interval of the campaign average of the log-ratio; None where there is none (too few pairs, failures)."""
        return None if self._pairs.failures() else self._average.interval()

    def _effect(self, pairs: Sequence[Pair], *, interval: bool = True) -> Effect | None:
        if not pairs:
            return None
        controlled = Controlled()
        for pair in pairs:
            # A covariate that the arm moves is not used, and what it made of the interval is not shown.
            controlled.add(self._difference(pair), None if self._moved.sign else pair.covariate)
        centre = controlled.centre()
        low, high = self._interval(controlled) if interval and not self._moved.sign else (-math.inf, math.inf)
        return Effect(
            ratio=ratio_of(centre),
            low=ratio_of(low) if math.isfinite(low) else None,
            high=ratio_of(high) if math.isfinite(high) else None,
            confidence=1 - self.alpha,
            p=math.nan,
            n=len(pairs),
        )

    def _interval(self, pairs: Controlled) -> tuple[float, float]:
        """The interval; an end that its rounding put on "no change", just rejected, is looked at more closely."""
        found = inversion.interval(pairs.values, self.alpha, self.planned, weights=pairs.weights)
        if 0.0 not in found:
            return found
        return inversion.interval(pairs.values, self.alpha, self.planned, 1e-7, weights=pairs.weights)

    def _tiers(self, effect: Effect | None) -> tuple[Tier, ...]:
        if effect is None or self._moved.sign:
            return ()
        here = Tier(
            name="this campaign",
            supported=True,
            ratio=effect.ratio,
            low=effect.low,
            high=effect.high,
            reason="exact: by the coin of each block alone"
            + (f"; without {self._covariate}" if self._covariate else ""),
        )
        return here, self._campaign_tier(), self._session_tier()

    def _campaign_tier(self) -> Tier:
        found = self._campaign_interval()
        logs = self._log_ratios()
        if found is None:
            why = "attempts failed, and a failure has no ratio" if self._pairs.failures() else self._average.reason()
            return _unsupported("campaign average", why)
        return _tier("campaign average", math.fsum(logs) / len(logs), found, "asymptotic, by the design's coins")

    def _session_tier(self) -> Tier:
        by_session: dict[int, list[float]] = {}
        for pair in self._pairs.usable:
            if pair.log_ratio is not None:
                by_session.setdefault(pair.session, []).append(pair.log_ratio)
        means = [math.fsum(values) / len(values) for values in by_session.values()]
        found = sessions.interval(means, self.alpha)
        if found is None:
            return _unsupported("beyond these sessions", sessions.reason(means, self.alpha))
        return _tier("beyond these sessions", math.fsum(means) / len(means), found, f"over {len(means)} session means")


def _tier(name: Reach, centre: float, found: tuple[float, float], reason: str) -> Tier:
    low, high = found
    return Tier(
        name=name, supported=True, ratio=ratio_of(centre), low=ratio_of(low), high=ratio_of(high), reason=reason
    )


def _unsupported(name: Reach, reason: str | None) -> Tier:
    return Tier(name=name, supported=False, ratio=None, low=None, high=None, reason=reason or "no interval is known")


def _finite(e_value: float) -> float:
    """At most the largest double, which JSON can hold; a smaller e-value is an e-value too."""
    return min(e_value, sys.float_info.max)
