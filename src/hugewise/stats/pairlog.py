"""Many pairs in little memory: columns of numbers, and a `Pair` made anew for whoever looks.

A run of days has tens of thousands of blocks, and each of its comparisons keeps every pair: as objects they were most
of what a long run grew by (180 bytes a pair; as columns 60).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from hugewise.stats.pair import Pair

__all__ = ["PairLog"]


class _Columns:
    """All pairs of a comparison; an absent number is NaN, which no pair has."""

    def __init__(self) -> None:
        self._blocks, self._sessions = array("q"), array("i")
        self._numbers = tuple(array("d") for _ in range(4))
        self._flags = bytearray()
        self._last: Pair | None = None

    def add(self, pair: Pair) -> int:
        """Its place. The pair that was added last has a place already."""
        if pair is not self._last:
            self._blocks.append(pair.block)
            self._sessions.append(pair.session)
            ratios, arms, baselines, covariates = self._numbers
            ratios.append(math.nan if pair.log_ratio is None else pair.log_ratio)
            arms.append(math.nan if pair.arm is None else pair.arm)
            baselines.append(math.nan if pair.baseline is None else pair.baseline)
            covariates.append(math.nan if pair.covariate is None else pair.covariate)
            self._flags.append(pair.arm_failed | pair.baseline_failed << 1 | pair.lost << 2)
            self._last = pair
        return len(self._flags) - 1

    def log_ratio(self, place: int) -> float | None:
        number = self._numbers[0][place]
        return None if math.isnan(number) else number

    def flags(self, place: int) -> int:
        return self._flags[place]

    def at(self, place: int) -> Pair:
        log_ratio, arm, baseline, covariate = (
            None if math.isnan(column[place]) else column[place] for column in self._numbers
        )
        flags = self._flags[place]
        return Pair(
            self._blocks[place],
            self._sessions[place],
            log_ratio,
            arm,
            baseline,
            bool(flags & 1),
            bool(flags & 2),
            covariate,
            bool(flags & 4),
        )


class PairLog(Sequence[Pair]):
    """Pairs in the order in which they came. `beside`: another log of the same comparison, whose pairs it shares."""

    def __init__(self, beside: PairLog | None = None) -> None:
        self._columns: _Columns = _Columns() if beside is None else beside._columns
        self._places = array("I")

    def append(self, pair: Pair) -> None:
        """Take a pair in; one that the log beside it has just taken in costs four bytes."""
        self._places.append(self._columns.add(pair))

    def log_ratios(self) -> list[float | None]:
        """Those of all pairs, at a tenth of the time that the pairs themselves take."""
        return list(map(self._columns.log_ratio, self._places))

    def failures(self) -> tuple[int, int]:
        """In how many pairs the arm failed, and the baseline."""
        flags = list(map(self._columns.flags, self._places))
        return sum(each & 1 for each in flags), sum(each >> 1 & 1 for each in flags)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Pair]:
        return map(self._columns.at, self._places)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self._columns.at(place) for place in self._places[index]]
        return self._columns.at(self._places[index])
