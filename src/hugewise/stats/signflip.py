"""The sequential sign-flip test: does the arm differ from the baseline, looked at after every pair.

Null hypothesis: every attempt would have taken the same whatever labels the coins had given it, those of its pair and
those before (Fisher's sharp null). So under it the sign of each difference D_t is a fair coin given all magnitudes,
whatever the noise: drift, correlation, heavy tails, neighbours. The test adds signed normal scores of D (see `scores`)
and says + or - when the sum first reaches the boundary that spends alpha over the exact law of such sums (`boundary`).

*The chance of a verdict under the null is at most alpha, however often and whenever one looks*, for any number of
pairs, with no condition on the distribution. For every vector of magnitudes it can be proved by enumerating the signs.
It needs the coins: for pairs in an order or slots that no coin chose, it assumes instead that the differences are
symmetric about 0 and independent.
"""

from __future__ import annotations

from collections.abc import Iterable

from hugewise.stats.boundary import Boundary, Spending
from hugewise.stats.scores import Scores, signed

__all__ = ["SignFlip", "run", "stopped", "verdict"]


class SignFlip:
    """The test for one comparison and end point, two-sided at `alpha`, over a declared `budget` of pairs.

    `budget` None spends open-endedly. After the budget the test goes on with what is left of alpha.
    """

    def __init__(self, alpha: float, budget: int | None, spending: Spending | None = None) -> None:
        self._scores = Scores()
        self._boundary = Boundary(alpha, budget, spending)
        self.walk = 0
        """The sum of the scores, in tenths of a standard normal."""
        self.sign = 0
        """+1: the arm is larger (D > 0); -1: smaller; 0: no verdict yet. The first crossing decides for good."""
        self.crossed_at: int | None = None
        """The number of pairs at the first crossing."""

    def add(self, difference: float) -> None:
        """Take a pair's difference, log(arm) - log(baseline). Raises ValueError on a NaN."""
        score = self._scores.add(difference)
        self.walk += score
        boundary = self._boundary.step(abs(score))
        if self.sign == 0 and boundary is not None and abs(self.walk) >= boundary:
            self.sign = 1 if self.walk > 0 else -1
            self.crossed_at = self.pairs

    @property
    def pairs(self) -> int:
        return self._boundary.pairs

    @property
    def alpha(self) -> float:
        return self._boundary.alpha

    @property
    def boundary(self) -> int | None:
        """|walk| had to reach this after the last pair; None where no walk could cross then."""
        return self._boundary.value

    @property
    def spent(self) -> float:
        """Alpha spent so far: the chance under the null of having crossed by now."""
        return self._boundary.spent

    @property
    def ledger(self) -> list[float]:
        """Alpha spent after each pair."""
        return self._boundary.ledger


def run(differences: Iterable[float], alpha: float, budget: int | None, spending: Spending | None = None) -> SignFlip:
    """The test after all of these pairs, in their order."""
    test = SignFlip(alpha, budget, spending)
    for difference in differences:
        test.add(difference)
    return test


def stopped(
    differences: Iterable[float], alpha: float, budget: int | None, spending: Spending | None = None
) -> SignFlip:
    """The test of somebody who looks after each of these pairs and stops at the first verdict."""
    test = SignFlip(alpha, budget, spending)
    for difference in differences:
        test.add(difference)
        if test.sign:
            break
    return test


def verdict(differences: Iterable[float], alpha: float, budget: int | None) -> int:
    """What the test says to somebody who looks after each of these pairs and stops at the first verdict.

    As `stopped`, in two thirds of the time where it does not stop soon: the scores are made all at once.
    """
    law, walk = Boundary(alpha, budget), 0
    for score in signed(differences).tolist():
        walk += score
        level = law.step(abs(score))
        if level is not None and abs(walk) >= level:
            return 1 if walk > 0 else -1
    return 0
