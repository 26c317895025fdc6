"""The sequential sign-flip test: does the arm differ from the baseline, looked at after every pair.

Null hypothesis: every attempt would have taken the same whatever labels the coins had given it, those of its pair and
those before (Fisher's sharp null). So under it the sign of each difference D_t is a fair coin given all magnitudes,
whatever the noise: drift, correlation, heavy tails, neighbours. The test adds signed normal scores of D (see `scores`)
and says + or - when the sum first reaches the boundary that spends alpha over the exact law of such sums (`boundary`).

A block may hold k copies of the arm and k of the baseline, in an order that a coin drew over all 2k places. Under the
same null each of the C(2k, k) placings of the two labels on these places is as likely as any other (Pitman 1937, Suppl.
J. R. Stat. Soc. 4:119). Each placing has a difference: mean of the places labelled arm less mean of the others; a
placing and its opposite differ in the sign alone. So the block's score is that of the placing that was drawn, and its
law is that of all placings: six for two copies, and the two signs of a pair for one (`Placings`).

*The chance of a verdict under the null is at most alpha, however often and whenever one looks*, for any number of
pairs, with no condition on the distribution. For every vector of magnitudes it can be proved by enumerating the signs.
It needs the coins: for pairs in an order or slots that no coin chose, it assumes instead that the differences are
symmetric about 0 and independent.

Signed normal scores of paired differences, one pair at a time.

The t-th pair has the difference D_t (a log-ratio; +inf where the arm failed, -inf where the baseline failed, 0 where
both did). Let r be the rank of |D_t| among |D_1|, ..., |D_t|, its mid-rank where there are ties. With u = (r - 1/2)/t
its score is

    a_t = round(10 * Phi^-1((1 + u)/2)), 1 at least and 31 at most, and 0 where D_t = 0;    s_t = sign(D_t) * a_t

These are the normal scores of Fraser 1957 (Ann. Math. Statist. 28:1040) for the one-sample problem, from sequential
ranks (Parent 1965; Reynolds 1975, Ann. Statist. 3:382), in steps of a tenth so that their sums are whole numbers. They
never lose to Student's t asymptotically (Chernoff and Savage 1958) and an outlier counts 31 at most.

What makes the tests on them exact: a_t depends on |D_1|, ..., |D_t| alone. The labels' coin sets sign(D_t) and nothing
else, so that given the magnitudes every non-zero score is +a_t or -a_t with chance 1/2 each. In particular:

- Ties take the mid-rank, never an order that the sign or the time would break.
- A zero has no sign that a coin could have set: its score is 0, which the walk of sums adds with certainty. It still is
  a pair: it counts in t and takes its place in the ranks of the later ones. Leaving zeros out would also be exact, but
  the clock of the alpha spent would then run on another count than the budget's.
- Every other difference scores at least 1. With a score of 0 for the lowest ranks the walk in which all agree would be
  one of several that end at the same place, all of which would have to be paid for: verdicts came later, and one end of
  the interval was then missing in 2 to 18% of the earliest of them.
- A failure is the largest magnitude there is (infinite, tied with other failures), with its own sign.
- Of a block with copies, the magnitudes of all its placings take part in the ranks, those of the other placings too:
  which of them was drawn changes no rank. The other placings compare places with equally many arms on both sides: their
  magnitudes are the noise of the block itself, which no effect changes.

The boundary of the sequential sign-flip test, by dynamic programming over the walk of integer scores.

The walk is S_t = s_1 + ... + s_t with s_i = +a_i or -a_i at a fair coin, the magnitudes a_i given (see `scores`). Its
law is known exactly, so alpha can be spent exactly (alpha spending: Lan and DeMets 1983, Biometrika 70:659, here over
the randomisation law: Plamadeala and Rosenberger 2012, Ann. Statist. 40:30). After pair t,

    b_t = the smallest b >= 1 with   spent_(t-1) + P(|S_t| >= b, not crossed before t)  <=  alpha * f(t)

and the walk crosses where |S_t| >= b_t. By construction the chance of ever crossing is at most alpha * f <= alpha,
given the magnitudes and so also on average over them. b_t depends on a_1, ..., a_t alone.

Spending: f runs over log t, since what decides is how often the sample doubles. With N the declared budget in pairs and
n0 = ceil(log2(2/alpha)), the least number of coins whose agreement has a chance of at most alpha (15 at alpha = 1e-4,
8 at 1e-2; with two copies 2 ceil(log6(2/alpha)) pairs, 12 and 6),

    f(t) = log((t + 1)/n0) / log((N + 1)/n0), within 0 and 1;   0 throughout where N < n0, as nothing could cross
    open-ended: f(t) = x/(x + 4), x = log2((t + 1)/n0), 0 where x < 0; it never spends all of alpha

Zeros count in t: they are pairs. After N pairs f stays 1, and the test stays valid with what is left.

Arithmetic. Probabilities are kept times the number of placings so far (2^t without copies; divided by 2^512 from time
to time, exactly), so that each step only adds non-negative doubles. As long as that number is at most 2^50 all of these
are exact, so is the comparison with alpha * f(t). Beyond, the relative error of what is spent is below (t steps + t
sums over pairs + at most 31 t states) * 2^-53; it is held to alpha * f(t) * (1 - t * 2^-47), so that the exact chance
keeps alpha * f(t). By symmetry only S_t >= 0 is stored.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hugewise.stats.method import Integers, Numbers

UNIT = 10
"""Scores per unit of the normal distribution."""
CAP = 31
"""The largest score."""

# Phi^-1((1 + u)/2) >= z exactly where u >= 2 Phi(z) - 1 = erf(z / sqrt 2): the score is the count of these at or
# below u. A table compares alike for one value and for many, on any machine with the same erf. The first is 0: u is
# above it, and the score at least 1.
STEPS = [0.0, *(math.erf((k - 0.5) / UNIT / math.sqrt(2)) for k in range(2, CAP + 1))]
_FEW = 80  # as many as are scored sooner one by one than at once
_BLOCK = 64  # as many as a word has bits
_EARLIER = np.packbits(np.tri(_BLOCK, k=-1, dtype=bool), axis=1).view(np.uint64)[:, 0]


class Placings(NamedTuple):
    """A block with copies: the differences of its placings of the labels, up to their signs, the drawn one first.

    An effect moves the first alone: the others have as many values of the arm on either side.
    """

    differences: tuple[float, ...]


Drawn = float | Placings
"""What a block shows of arm and baseline: the difference of its only pair, or those of all placings."""

COPIES_BY_PLACINGS = {math.comb(2 * copies, copies) // 2: copies for copies in (1, 2)}
"""Copies of each side, by the number of placings up to their signs."""


def placings(arm: Sequence[float], baseline: Sequence[float]) -> Drawn:
    """Return what a block with these logarithms shows, as many of the arm as of the baseline: one or two.

    An infinite one is a failure, and has the sign of the bad side: all differences of a block with one are infinite. A
    difference is that of the means, rounded to a billionth as `pairs.log_ratio` is. Raises ValueError for other numbers
    of copies, and for more than one failure.
    """
    values, copies = [*arm, *baseline], len(arm)
    if len(baseline) != copies or copies not in COPIES_BY_PLACINGS.values():
        raise ValueError(f"a block has one or two copies of either side, not {len(arm)} and {len(baseline)}")
    if sum(map(math.isinf, values)) > 1:
        raise ValueError("more than one failure: show the block pair by pair")
    differences = []
    for others in combinations(range(1, 2 * copies), copies - 1):
        over = (0, *others)
        signs = [1 if at in over else -1 for at in range(2 * copies)]
        total = math.fsum(sign * value for sign, value in zip(signs, values, strict=True))
        differences.append(round(total / copies, 9) if math.isfinite(total) else total)
    return differences[0] if copies == 1 else Placings(tuple(differences))


def less(drawn: Drawn, theta: float) -> Drawn:
    """Return what the block shows where the arm's values are all less by `theta`."""
    if not isinstance(drawn, Placings):
        return drawn - theta
    first, *others = drawn.differences
    return Placings((first - theta, *others))


class Scores:
    """Scores of blocks as they come. About 10 us a pair at 24,000 pairs, all of which are kept, sorted."""

    def __init__(self) -> None:
        self._seen: list[float] = []

    def add(self, drawn: Drawn) -> tuple[int, ...]:
        """Return the score of a new block with its sign, then the magnitudes of its other placings. Raises ValueError
        on a NaN.
        """
        differences = drawn.differences if isinstance(drawn, Placings) else (drawn,)
        if any(map(math.isnan, differences)):
            raise ValueError("a difference must be a number or infinite")
        first, *others = self.magnitudes(*map(abs, differences))
        return (first if differences[0] > 0 else -first, *others)

    def magnitudes(self, *sizes: float) -> list[int]:
        """Return the scores of a new block's placings without their signs, from the sizes of their differences."""
        seen = self._seen
        for size in sizes:
            insort(seen, size)
        # Mid-rank r = below + (ties + 1)/2 with itself among the ties, so r - 1/2 = (below + upto)/2.
        twice = 2 * len(seen)
        return [
            bisect_right(STEPS, (bisect_left(seen, size) + bisect_right(seen, size)) / twice) if size else 0
            for size in sizes
        ]


class Rows(NamedTuple):
    """Blocks as a table: a row each, a column for each placing, the drawn one first; NaN where a row has fewer.

    weights  how far the drawn one's difference falls where all values of the arm fall by 1: 1, unless others are given
    """

    differences: Numbers
    weights: Numbers

    def less(self, theta: float) -> Numbers:
        """Return the differences, shape (blocks, placings), where the arm's values are all less by `theta`."""
        moved: Numbers = self.differences.copy()
        moved[:, 0] -= theta * self.weights
        return moved


def rows(drawn: Iterable[Drawn], weights: Iterable[float] | None = None) -> Rows:
    """Return a table of these blocks. Raises ValueError on a NaN among them."""
    given = list(drawn)
    if any(isinstance(one, Placings) for one in given):
        differences = np.full((len(given), max(COPIES_BY_PLACINGS)), math.nan)
        for at, one in enumerate(given):
            several = one.differences if isinstance(one, Placings) else (one,)
            differences[at, : len(several)] = several
            if any(map(math.isnan, several)):
                raise ValueError("a difference must be a number or infinite")
    else:
        differences = _array(given)[:, None]  # type: ignore[arg-type]
    scale = np.ones(len(given)) if weights is None else np.array(list(weights), dtype=np.float64)
    return Rows(differences, scale)


def magnitudes(differences: Iterable[float] | Numbers) -> Integers:
    """Return the scores without their signs: those that `Scores` gives, all at once. 0.2 ms for 1,000 pairs.

    Of one row of numbers, a pair each, in shape (pairs,); of a table as in `Rows`, in its shape, -1 where it has NaN.
    Raises ValueError on a NaN in a row of pairs.
    """
    if isinstance(differences, np.ndarray) and differences.ndim == 2:
        return _of_pairs(differences[:, 0])[:, None] if differences.shape[1] == 1 else _of_rows(np.abs(differences))
    return _of_pairs(_array(differences))


def _of_rows(differences: Numbers) -> Integers:
    scored, found = Scores(), np.full(differences.shape, -1, dtype=np.int64)
    for row, place in zip(differences.tolist(), found, strict=True):
        known = [value for value in row if value == value]  # noqa: PLR0124  (NaN differs from itself)
        place[: len(known)] = scored.magnitudes(*known)
    return found


def _of_pairs(differences: Numbers) -> Integers:
    values = np.abs(differences)
    count = len(values)
    if count <= _FEW:
        # As `Scores.magnitudes`, in a quarter of the time: it is asked for again and again.
        seen, found = list[float](), list[int]()
        for at, size in enumerate(values.tolist(), 1):
            insort(seen, size)
            ranks = bisect_left(seen, size) + bisect_right(seen, size)
            found.append(bisect_right(STEPS, ranks / (2 * at)) if size else 0)
        return np.array(found, dtype=np.int64)
    blocks = np.full((-(-count // _BLOCK), _BLOCK), np.inf)
    blocks.flat[:count] = values
    # Numbers below and up to a value among those before it, added: first of its own block, as bits that are counted.
    twice = _before(blocks[:, None, :] < blocks[:, :, None]) + _before(blocks[:, None, :] <= blocks[:, :, None])
    before = np.empty(0)
    for at in range(1, len(blocks)):
        before = np.concatenate((before, blocks[at - 1]))
        before.sort(kind="stable")  # two runs, which are merged
        twice[at] += before.searchsorted(blocks[at], "left") + before.searchsorted(blocks[at], "right")
    twice = twice.reshape(-1)[:count]
    shares = (twice + 1) / (2 * np.arange(1, count + 1))
    scores = np.searchsorted(np.array(STEPS), shares, "right")
    scores[values == 0] = 0
    return scores


def _before(said: NDArray[np.bool_]) -> Integers:
    bits = np.packbits(said, axis=2).view(np.uint64)[:, :, 0]
    counted: Integers = np.bitwise_count(bits & _EARLIER).astype(np.int64)
    return counted


def signed(differences: Iterable[float] | Numbers) -> Integers:
    """Return `magnitudes` with the sign of the pair, or in a table that of each row's first placing, which is drawn.

    Raises ValueError on a NaN in a row of pairs.
    """
    values = differences if isinstance(differences, np.ndarray) else _array(differences)
    scores = magnitudes(values)
    first = values if values.ndim == 1 else values[:, 0]
    (scores if values.ndim == 1 else scores.T[0])[...] *= np.sign(first).astype(np.int64)
    return scores


def _array(differences: Iterable[float]) -> Numbers:
    given = differences if isinstance(differences, np.ndarray) else list(differences)
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 1 or np.isnan(values).any():
        raise ValueError("differences must be one row of numbers, infinite ones allowed")
    return values


Spending = Callable[[int], float]
"""The share of alpha that may be spent after t pairs: within 0 and 1, never falling."""

_EXACT = 2.0**50
_RESCALE = 2.0**512
_WINDOW = 64  # states looked at first; at least 2 * CAP, as so many zeros follow the last state


def first_crossing(alpha: float, copies: int = 1) -> int:
    """n0: the least number of pairs, in blocks of `copies`, with 2 * C(2 copies, copies)^-(n0 / copies) <= alpha.

    Raises ValueError unless 0 < alpha < 1.
    """
    if not 0 < alpha < 1:
        raise ValueError("alpha must be within 0 and 1")
    if copies == 1:
        return math.ceil(math.log2(2 / alpha))
    return copies * math.ceil(math.log(2 / alpha) / math.log(math.comb(2 * copies, copies)))


@lru_cache(64)  # many tests of a study share it
def log_spending(alpha: float, budget: int, copies: int = 1) -> Spending:
    """Spending over log t to `budget` pairs. Raises ValueError unless budget >= 1."""
    if budget < 1:
        raise ValueError("the budget must be at least one pair")
    first = first_crossing(alpha, copies)
    whole = math.log((budget + 1) / first)

    @cache
    def share(pairs: int) -> float:
        if whole <= 0:
            return 0.0
        return min(1.0, max(0.0, math.log((pairs + 1) / first) / whole))

    return share


def open_ended(alpha: float, copies: int = 1) -> Spending:
    """Spending without a budget: half of alpha when t is 16 times n0, 5/7 at 1024 times."""
    first = first_crossing(alpha, copies)

    def share(pairs: int) -> float:
        doublings = max(0.0, math.log2((pairs + 1) / first))
        return doublings / (doublings + 4)

    return share


class Boundary:
    """Boundary after each pair, two-sided at `alpha`, from the magnitudes of the scores.

    `budget` is the declared number of pairs; None with the default spending means open-ended; `copies` those of either
    side in a block, as declared: single blocks may have fewer. Raises ValueError on an alpha or a budget out of range.
    A step costs about 10 us at 24,000 pairs: one sum of two shifted rows.
    """

    def __init__(self, alpha: float, budget: int | None, spending: Spending | None = None, *, copies: int = 1) -> None:
        first_crossing(alpha)
        self.alpha = alpha
        self.budget = budget
        if spending is None:
            spending = open_ended(alpha, copies) if budget is None else log_spending(alpha, budget, copies)
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
        self._placings = 1.0  # of all blocks so far, at most some more than `_EXACT`

    def __copy__(self) -> Boundary:
        """Return the boundary after the same pairs, which takes others from here on."""
        twin = Boundary(self.alpha, self.budget, self._spending)
        twin.__dict__.update(self.__dict__)
        twin.ledger, twin._mass, twin._next = self.ledger.copy(), self._mass.copy(), np.zeros_like(self._next)
        twin._left = 0
        return twin

    def step(self, *magnitudes: int) -> int | None:
        """Take a block with these scores of its placings, one for a pair; the boundary after it, None while nothing can
        cross.

        Raises ValueError on a magnitude that no score has.
        """
        most = max(magnitudes)
        if most > CAP or min(magnitudes) < 0:
            raise ValueError("the magnitude of a score is between 0 and 31")
        self.pairs += COPIES_BY_PLACINGS[len(magnitudes)]
        if most:
            self._walk(magnitudes, most)
        if self._placings <= _EXACT:
            self._placings *= 2 * len(magnitudes)
        allowed = self.alpha * self._spending(self.pairs)
        if self._placings > _EXACT:
            allowed *= 1 - self.pairs * 2.0**-47
        left = allowed - self.spent
        self.value = self._absorb(left) if left > 0 else None
        self.ledger.append(self.spent)
        return self.value

    def _walk(self, magnitudes: Sequence[int], most: int) -> None:
        reach = self._reach
        if len(self._mass) < reach + 3 * _WINDOW:
            self._mass = np.concatenate((self._mass, np.zeros(reach + 3 * _WINDOW)))
            self._next, self._left = np.zeros_like(self._mass), 0
        old, new, end = self._mass, self._next, reach + most
        first, *others = magnitudes
        _move(old, new, reach, first)
        new[reach + first : end] = 0.0
        for other in others:
            added = np.empty(reach + other)
            _move(old, added, reach, other)
            new[: reach + other] += added
        if self._left > end:  # seldom: the boundary hardly ever falls
            new[end : self._left] = 0.0
        self._mass, self._next, self._reach, self._left = new, old, end, reach
        self._unit *= 2.0 * len(magnitudes)
        if self._unit >= _RESCALE:
            new[:end] *= 1 / _RESCALE
            self._unit *= 1 / _RESCALE

    def _absorb(self, left: float) -> int | None:
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


def _move(old: Numbers, new: Numbers, reach: int, a: int) -> None:
    """Set `new` to the mass `old` of |S| < `reach` after a step of +a and one of -a, both added."""
    if a == 0:
        np.multiply(old[:reach], 2.0, out=new[:reach])
        return
    end = reach + a
    np.add(old[:reach], old[2 * a : end + a], new[a:end])
    np.add(old[a:0:-1], old[a : 2 * a], new[:a])


class SignFlip:
    """The test for one comparison and end point, two-sided at `alpha`, over a declared `budget` of pairs.

    `budget` None spends open-endedly. After the budget the test goes on with what is left of alpha.
    """

    def __init__(self, alpha: float, budget: int | None, spending: Spending | None = None, *, copies: int = 1) -> None:
        self._scores = Scores()
        self._boundary = Boundary(alpha, budget, spending, copies=copies)
        self.walk = 0
        """The sum of the scores, in tenths of a standard normal."""
        self.sign = 0
        """+1: the arm is larger (D > 0); -1: smaller; 0: no verdict yet. The first crossing decides for good."""
        self.crossed_at: int | None = None
        """The number of pairs at the first crossing."""

    def add(self, drawn: Drawn) -> None:
        """Take a pair's difference, log(arm) - log(baseline), or a block's placings. Raises ValueError on a NaN."""
        score, *others = self._scores.add(drawn)
        self.walk += score
        boundary = self._boundary.step(abs(score), *others)
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


def run(
    drawn: Iterable[Drawn], alpha: float, budget: int | None, spending: Spending | None = None, *, copies: int = 1
) -> SignFlip:
    """Return the test after all of these blocks, in their order."""
    test = SignFlip(alpha, budget, spending, copies=copies)
    for one in drawn:
        test.add(one)
    return test


def stopped(
    drawn: Iterable[Drawn], alpha: float, budget: int | None, spending: Spending | None = None, *, copies: int = 1
) -> SignFlip:
    """Return the test of somebody who looks after each of these blocks and stops at the first verdict."""
    test = SignFlip(alpha, budget, spending, copies=copies)
    for one in drawn:
        test.add(one)
        if test.sign:
            break
    return test


_PARTS, _LEAST = 16, 32  # that a row of magnitudes is cut into, and blocks of one
_NONE = 255  # -1 as a byte: the magnitude of a placing that a block does not have
_KEPT = 256  # parts whose boundaries are kept: 2 MiB at 1,000 pairs, 61 MiB at 24,000


class Terms(NamedTuple):
    """Terms of a test: two-sided level `alpha`, declared `budget` of pairs (None: open-ended), `copies` in a block."""

    alpha: float
    budget: int | None
    copies: int = 1


def levels(scores: Integers, terms: Terms) -> Iterator[Numbers]:
    """Yield the levels that the walk of these scores, a table as in `signed`, has to reach, infinite where none would
    do, part by part.

    A level depends on the magnitudes up to its block alone, and thetas that lie close have the same magnitudes in most
    of their first pairs: a search to 1e-7 has 70% of its pairs in common with an earlier theta (400,000 of 570,000, in
    13 intervals of 700 to 1,000 pairs). So the boundary after a part is kept by all magnitudes up to there.
    """
    table = scores.astype(np.uint8)
    table[:, 0] = np.abs(scores[:, 0])
    part = max(_LEAST, math.ceil(len(table) / _PARTS))
    for end in range(part, len(table) + part, part):
        yield _after(table[:end].tobytes(), table.shape[1], part, terms)[0]


@lru_cache(_KEPT)
def _after(sizes: bytes, placings: int, part: int, terms: Terms) -> tuple[Numbers, Boundary]:
    """Return the levels of the last part of these magnitudes, and the boundary after all of them."""
    start = (len(sizes) - 1) // (part * placings) * (part * placings)
    if start:
        law = copy.copy(_after(sizes[:start], placings, part, terms)[1])
    else:
        law = Boundary(terms.alpha, terms.budget, copies=terms.copies)
    blocks = np.frombuffer(sizes[start:], np.uint8).reshape(-1, placings).tolist()
    steps = [law.step(*(size for size in block if size != _NONE)) for block in blocks]
    return np.array([math.inf if level is None else level for level in steps]), law


def first_crossing_of(walk: Integers, levels: Numbers) -> int:
    """Return the sign of the walk where it first reaches the levels; 0 where it does not."""
    crossed = np.abs(walk) >= levels
    if not crossed.any():
        return 0
    return 1 if walk[int(crossed.argmax())] > 0 else -1


def judged(scores: Integers, terms: Terms) -> int:
    """Return the verdict on these scores, a table as in `signed`: the sign of the first crossing, or 0."""
    walk, start = scores[:, 0].cumsum(), 0
    for part in levels(scores, terms):
        if sign := first_crossing_of(walk[start : start + len(part)], part):
            return sign
        start += len(part)
    return 0


def verdict(differences: Iterable[float] | Numbers, alpha: float, budget: int | None, *, copies: int = 1) -> int:
    """Return the verdict of the test for somebody who looks after each of these pairs, or rows of a table as in `Rows`,
    and stops at the first verdict.

    As `stopped`, in less of the time where it does not stop soon: the scores are made all at once, and boundaries of
    magnitudes that were judged before are at hand.
    """
    scores = signed(differences)
    return judged(scores if scores.ndim == 2 else scores[:, None], Terms(alpha, budget, copies))


def chance(differences: Iterable[float]) -> float:
    """Return the one-sided p at this fixed number of pairs: the chance, under fair coins, of a walk as high as theirs
    or higher. At least 2^-n for n pairs. Time grows with n^2: 0.1 s for 2,000.
    """
    scores = signed(differences)
    reach = int(np.abs(scores).sum())
    mass = np.zeros(2 * reach + 1)  # of the walk at -reach, ..., reach
    mass[reach] = 1.0
    for size in np.abs(scores[scores != 0]).tolist():
        mass = (np.roll(mass, size) + np.roll(mass, -size)) / 2  # nothing wraps round: reach is the sum of the sizes
    return min(1.0, float(mass[reach + int(scores.sum()) :].sum()))
