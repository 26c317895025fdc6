"""What is under test: an object with the functions that make verdicts. The checks know no more of a method than this.

`PUBLIC` hands on to the public functions of `hugewise.stats`, with nothing in between; the self-test puts faulty ones
in its place.
"""

from __future__ import annotations

import numpy as np

from hugewise.stats import signflip
from hugewise.stats.numbers import Numbers

__all__ = ["PUBLIC", "Candidate"]


class Candidate:
    """A sequential test of "the arm makes no difference": the sign-flip test as everybody gets it.

    `differences` are log(arm) - log(baseline), one per pair, in the order of the pairs; `budget` is the declared
    largest number of pairs; `alpha` the two-sided error that may be made by stopping at any time up to then.
    """

    name = "signflip"
    """As it is called in the report."""

    def verdict(self, differences: Numbers, alpha: float, budget: int) -> int:
        """1 the arm is larger, -1 smaller, 0 no verdict up to and including the last pair."""
        return signflip.verdict(differences, alpha, budget)

    def stop(self, differences: Numbers, alpha: float, budget: int) -> tuple[int, int]:
        """The number of pairs at which the verdict falls, and the verdict; (all, 0) where none falls."""
        test = signflip.stopped(differences.tolist(), alpha, budget)
        return test.pairs, test.sign

    def spent(self, magnitudes: Numbers, alpha: float, budget: int) -> Numbers:
        """The ledger: the error spent up to and including each pair, from |differences| alone; shape (pairs,)."""
        return np.array(signflip.run(magnitudes, alpha, budget).ledger, dtype=np.float64)


PUBLIC = Candidate()
