"""An arm that is measured beside those that are judged: it has an interval, no verdict, and no say in when it ends.

Its error. Whoever shows the second best beside the best has not asked whether it is better: so it has no share of the
study's error rate, and the judged comparisons have theirs whole, whatever the unjudged arm does. Its blocks end when
the last judged comparison of its cell ends, which the data of the judged arms decide. Its interval is by inversion of
the same exact test at the study's confidence: it holds whenever one looks, so also at an end that others choose, and
misses its own ratio with a chance of at most 1 - confidence. That it and the interval of a judged arm hold *together*
is not promised: whoever claims both has twice that chance of being wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.stats.covariate import Controlled
from hugewise.stats.method import Contrast, Decision, Method
from hugewise.stats.pairs import Inference, Pairs, ratio_of
from hugewise.stats.watched import closely

__all__ = ["Unjudged"]

_REASON = "measured beside what is judged: it claims nothing, and its interval holds by itself"


class Unjudged:
    """A comparison without a verdict, over the blocks of the `judged` ones of its cell, to which more may still come.

    `alpha`: one less the confidence of its interval; `planned`: the declared budget of pairs.
    """

    name = "unjudged"

    def __init__(
        self,
        contrast: Contrast,
        judged: Sequence[Method],
        *,
        planned: int,
        alpha: float,
        margin: float,
        covariate: str | None = None,
    ) -> None:
        self.contrast = contrast
        self.planned = planned
        self.alpha = alpha
        self._judged = judged
        self._pairs = Pairs(contrast, covariate, spared=1)
        self._controlled = Controlled()
        self._margin = round(math.log1p(margin), 9)

    def observe(self, block: Block) -> Decision:
        """Take in a closed block, whatever those before it have shown."""
        if not self._pairs.exhausted(self.planned) and (pair := self._pairs.take(block)) is not None:
            difference = pair.difference(higher_is_better=self.contrast.metric.better == "higher")
            self._controlled.add(difference, pair.covariate)
        return self.decision()

    def decision(self) -> Decision:
        """Whether it is measured any more: as long as something judged is, and something can come of it."""
        going = any(one.decision().status == "continue" for one in self._judged)
        wanted = going and not self._pairs.exhausted(self.planned)
        return Decision("continue" if wanted else "stop", None, "none", _REASON)

    def comparison(self) -> Comparison:
        """Estimate and interval, and nothing that could be taken for a claim."""
        finding = Inference("none", self._pairs.refusal(self.planned) or _REASON)
        if self._pairs.usable:
            low, high = closely(self._controlled, self.alpha, self.planned, self._margin)
            finding = Inference(
                "none",
                finding.reason,
                ratio_of(self._controlled.centre()),
                ratio_of(low) if math.isfinite(low) else None,
                ratio_of(high) if math.isfinite(high) else None,
            )
        return self._pairs.comparison(self.name, self.planned, finding, ratio_all=None, confidence=1 - self.alpha)
