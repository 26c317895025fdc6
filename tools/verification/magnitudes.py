"""Vectors of |differences| for the exhaustive proof and the ledger: built-in kinds, and the caller's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hugewise.errors import UserError
from hugewise.stats.method import Numbers
from tools.verification.generators import generator

KINDS = ("random", "ties", "zeros", "outliers", "trend", "failures")
MOST = 16  # 2^16 sign vectors are enumerated


def draw(kind: str, pairs: int, seed: int) -> Numbers:
    """A vector of the built-in kind; zeros, ties and outliers stand at places that the seed decides."""
    random = generator(seed, "magnitudes", kind, pairs)
    values = np.abs(random.standard_normal(pairs))
    if kind == "ties":
        values = np.ceil(values * 2)
    elif kind == "zeros":
        values[random.permutation(pairs)[: pairs // 4]] = 0.0
    elif kind == "outliers":
        values[random.permutation(pairs)[: max(1, pairs // 8)]] *= 1e6
    elif kind == "trend":
        values = np.arange(1.0, pairs + 1)
    elif kind == "failures":
        values[random.permutation(pairs)[: max(2, pairs // 6)]] = np.inf
    return values


def signed(vector: Numbers) -> Iterator[Numbers]:
    """The vector under all signs that coins may give it."""
    bits = np.arange(len(vector))
    for number in range(2 ** len(vector)):
        yield vector * (1 - 2 * (number >> bits & 1))


def read(path: Path) -> Numbers:
    """Numbers separated by blanks, commas or line ends; signs are ignored. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}", hint="a text file of numbers is needed") from None
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.replace(",", " ").split():
            try:
                value = float(word)
            except ValueError:
                value = math.nan
            if math.isnan(value):
                raise UserError(f"{path}, line {number}: {word} is not a number", hint="for instance: 0.1 0 0.25 1e6")
            values.append(abs(value))
    if not 1 <= len(values) <= MOST:
        raise UserError(
            f"{path}: {len(values)} numbers, but all 2^n sign vectors are tried",
            hint=f"give 1 to {MOST} numbers",
        )
    return np.array(values)
