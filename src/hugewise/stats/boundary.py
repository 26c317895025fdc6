"""The boundary of the sequential sign-flip test, by dynamic programming over the walk of integer scores.

The walk is S_t = s_1 + ... + s_t with s_i = +a_i or -a_i at a fair coin, the magnitudes a_i given (see `scores`). Its
law is known exactly, so alpha can be spent exactly (alpha spending: Lan and DeMets 1983, Biometrika 70:659, here over
the randomisation law: Plamadeala and Rosenberger 2012, Ann. Statist. 40:30). After pair t,

    b_t = the smallest b >= 1 with   spent_(t-1) + P(|S_t| >= b, not crossed before t)  <=  alpha * f(t)

and the walk crosses where |S_t| >= b_t. By construction the chance of ever crossing is at most alpha * f <= alpha,
given the magnitudes and so also on average over them. b_t depends on a_1, ..., a_t alone.

Spending: f runs over log t, since what decides is how often the sample doubles. With N the declared budget in pairs and
n0 = ceil(log2(2/alpha)), the least number of coins whose agreement has a chance of at most alpha (15 at alpha = 1e-4,
8 at 1e-2),

    f(t) = log((t + 1)/n0) / log((N + 1)/n0), within 0 and 1;   0 throughout where N < n0, as nothing could cross
    open-ended: f(t) = x/(x + 4), x = log2((t + 1)/n0), 0 where x < 0; it never spends all of alpha

Zeros count in t: they are pairs. After N pairs f stays 1, and the test stays valid with what is left.

Arithmetic. Probabilities are kept times 2^t (divided by 2^512 from time to time, exactly), so that each step only
adds non-negative doubles. Up to 50 pairs all of these are exact, so is the comparison with alpha * f(t). Beyond, the
relative error of what is spent is below (t steps + t sums over pairs + at most 31 t states) * 2^-53; it is held to
alpha * f(t) * (1 - t * 2^-47), so that the exact chance keeps alpha * f(t). By symmetry only S_t >= 0 is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from hugewise.stats.numbers import Numbers
from hugewise.stats.scores import CAP

__all__ = ["Boundary", "Spending", "first_crossing", "log_spending", "open_ended"]

Spending = Callable[[int], float]
"""The share of alpha that may be spent after t pairs: within 0 and 1, never falling."""

_EXACT = 50
_RESCALE = 512
_WINDOW = 64  # states looked at first; at least 2 * CAP, as so many zeros follow the last state


def first_crossing(alpha: float) -> int:
    """n0: the least number of pairs with 2 * 2^-n0 <= alpha. Raises ValueError unless 0 < alpha < 1."""
    if not 0 < alpha < 1:
        raise ValueError("alpha must be within 0 and 1")
    return math.ceil(math.log2(2 / alpha))


@lru_cache(64)  # many tests of a study share it
def log_spending(alpha: float, budget: int) -> Spending:
    """Spending over log t to `budget` pairs. Raises ValueError unless budget >= 1."""
    if budget < 1:
        raise ValueError("the budget must be at least one pair")
    first = first_crossing(alpha)
    whole = math.log((budget + 1) / first)

    @cache
    def share(pairs: int) -> float:
        if whole <= 0:
            return 0.0
        return min(1.0, max(0.0, math.log((pairs + 1) / first) / whole))

    return share


def open_ended(alpha: float) -> Spending:
    """Spending without a budget: half of alpha when t is 16 times n0, 5/7 at 1024 times."""
    first = first_crossing(alpha)

    def share(pairs: int) -> float:
        doublings = max(0.0, math.log2((pairs + 1) / first))
        return doublings / (doublings + 4)

    return share


class Boundary:
    """Boundary after each pair, two-sided at `alpha`, from the magnitudes of the scores.

    `budget` is the declared number of pairs; None with the default spending means open-ended. Raises ValueError on an
    alpha or a budget out of range. A step costs about 10 us at 24,000 pairs: one sum of two shifted rows.
    """

    def __init__(self, alpha: float, budget: int | None, spending: Spending | None = None) -> None:
        first_crossing(alpha)
        self.alpha = alpha
        self.budget = budget
        if spending is None:
            spending = open_ended(alpha) if budget is None else log_spending(alpha, budget)
        self._spending = spending
        self.pairs = 0
        self.value: int | None = None
        """The boundary after the last pair."""
        self.spent = 0.0
        """The chance, under fair coins, of having crossed by now. At most alpha."""
        self.ledger: list[float] = []
        """`spent` after each pair."""
        self._mass = np.zeros(1 + 2 * _WINDOW)  # of S = 0, 1, ...; zeros from _reach on
        self._next = np.zeros(1 + 2 * _WINDOW)
        self._mass[0] = 1.0
        self._reach = 1  # all mass is on |S| < _reach
        self._left = 0  # what `_next` had before ends here
        self._unit = 1.0  # the stored number that means probability 1
        self._since = 0  # steps since the last division

    def __copy__(self) -> Boundary:
        """The boundary after the same pairs, which takes others from here on."""
        twin = Boundary(self.alpha, self.budget, self._spending)
        twin.__dict__.update(self.__dict__)
        twin.ledger, twin._mass, twin._next = self.ledger.copy(), self._mass.copy(), np.zeros_like(self._next)
        twin._left = 0
        return twin

    def step(self, magnitude: int) -> int | None:
        """Take a pair with this score; the boundary after it, None while nothing can cross.

        Raises ValueError on a magnitude that no score has.
        """
        if not 0 <= magnitude <= CAP:
            raise ValueError("the magnitude of a score is between 0 and 31")
        self.pairs += 1
        if magnitude:
            self._walk(magnitude)
        allowed = self.alpha * self._spending(self.pairs)
        if self.pairs > _EXACT:
            allowed *= 1 - self.pairs * 2.0**-47
        left = allowed - self.spent
        self.value = self._absorb(left) if left > 0 else None
        self.ledger.append(self.spent)
        return self.value

    def _walk(self, a: int) -> None:
        """One coin of size `a`: the new mass at s is the sum of the old at |s - a| and s + a."""
        reach = self._reach
        if len(self._mass) < reach + 3 * _WINDOW:
            self._mass = np.concatenate((self._mass, np.zeros(reach + 3 * _WINDOW)))
            self._next, self._left = np.zeros_like(self._mass), 0
        old, new, end = self._mass, self._next, reach + a
        np.add(old[:reach], old[2 * a : end + a], new[a:end])
        np.add(old[a:0:-1], old[a : 2 * a], new[:a])
        if self._left > end:  # seldom: the boundary hardly ever falls
            new[end : self._left] = 0.0
        self._mass, self._next, self._reach, self._left = new, old, end, reach
        self._unit *= 2.0
        self._since += 1
        if self._since == _RESCALE:
            new[:end] *= 2.0**-_RESCALE
            self._unit *= 2.0**-_RESCALE
            self._since = 0

    def _absorb(self, left: float) -> int | None:
        """Take the largest |S| out for at most `left`; the smallest of them, None where none has any mass."""
        half, reach, window = left / 2 * self._unit, self._reach, _WINDOW
        while True:
            low = reach - window if reach > window else 1
            tail: Numbers = np.add.accumulate(self._mass[low:reach][::-1])
            count = int(tail.searchsorted(half, "right"))
            if count < len(tail) or low == 1:
                break
            window *= 4
        taken = float(tail[count - 1]) if count else 0.0
        if taken == 0.0:
            return None
        boundary = reach - count
        self._mass[boundary:reach] = 0.0
        self._reach = boundary
        self.spent += 2 * taken / self._unit
        return boundary
