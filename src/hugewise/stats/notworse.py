"""The sequential method for whoever asks whether an arm is no worse: it ends when that is known, either way.

An arm is *not worse* when the test has rejected, on the usable pairs and on the kept-in ones, that it is worse by the
margin or more; it is *worse by more* when "worse by the margin at most" is rejected on both. A smaller effect in either
direction ends nothing: that an arm is 1% slower says nothing against it where 2% are allowed for.

Error. Both claims are tests of an end of the margin by the same exact test (`sequential`), of which each side has half
of alpha: under "worse by the margin or more" the chance of ever having ended with "not worse" is at most alpha/2, for
an effect that is the same in every pair or symmetric around it. Better, worse and equivalent stay what `sequential`
makes of the same pairs: to look on for the other claim costs them nothing, as their tests hold whenever one looks.

What is said of it is read off the interval: "not worse" holds exactly when the interval ends before the margin.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hugewise.model.results import Comparison, Reach, Verdict
from hugewise.stats.sequential import Sequential

__all__ = ["NotWorse"]


class NotWorse(Sequential):
    """The sequential method, ended by whether the arm is worse by more than the margin: no `width` is waited for."""

    @property
    def settled(self) -> Literal["not worse", "worse by more"] | None:
        """What is known of that; never where an attempt failed or could not be started."""
        usable, smaller, larger = self.usable, self._smaller, self._larger
        if self.pairs.failed or self.pairs.refusal(self.planned) is not None:
            return None
        if self.contrast.metric.better == "higher":
            if usable.above and larger.above:
                return "not worse"
            return "worse by more" if usable.beyond < 0 and smaller.beyond < 0 else None
        if usable.below and smaller.below:
            return "not worse"
        return "worse by more" if usable.beyond > 0 and larger.beyond > 0 else None

    def comparison(self) -> Comparison:
        """The result, as `sequential` gives it; what that corrects for is another stop than this one."""
        return msgspec.structs.replace(super().comparison(), corrected=None)

    def _stopped(self) -> bool:
        return self.pairs.exhausted(self.planned) or bool(self._moved.test.sign) or self.settled is not None

    def _judged(self) -> tuple[Verdict, str, Reach | None]:
        verdict, reason, reach = super()._judged()
        if verdict in ("better", "equivalent", "none") or self.settled is None:
            return verdict, reason, reach
        by = f"the margin of {self._margin:.3g}"
        known = f"not worse by {by} or more" if self.settled == "not worse" else f"worse by more than {by}"
        return verdict, f"{known}; {reason}", reach
