"""How far measurements that follow each other depend on each other, and how many independent ones they are worth.

Autocorrelation by Wiener-Khinchin, piece by piece, so that memory does not grow with the number of lags. The
statistical inefficiency (integrated autocorrelation time) is 1 + 2 * sum of the autocorrelations, summed while Geyer's
initial monotone positive sequence holds (Geyer 1992, Statist. Sci. 7:473-483); n divided by it is the effective n of
the mean. It needs the order in time, and a series without drift: under drift it grows with n, and so it should.
"""

from __future__ import annotations

import msgspec
import numpy as np

from hugewise.stats.numbers import Numbers

__all__ = ["Dependence", "autocorrelation", "dependence"]

_FIRST_LAGS = 1 << 11
_PIECES = 1 << 16


class Dependence(msgspec.Struct, frozen=True):
    """Of a series in its order in time.

    lags          autocorrelation at lag 1, 2, ... (at most 1,000 of them), without unit
    limit         two-sided 95% limit of each under independence, 1.96/sqrt(n)
    inefficiency  at least 1: the variance of the mean, over that of as many independent values
    effective     n / inefficiency
    complete      False where correlation still held at the longest lag that was looked at: n is then too large still
    """

    lags: Numbers
    limit: float
    inefficiency: float
    effective: float
    complete: bool


def autocorrelation(values: Numbers, lags: int) -> Numbers:
    """Autocorrelation at lags 0 to `lags` (fewer where n is small), biased estimate; shape (lags+1,).

    A constant series has none: NaN at all lags but 0.
    """
    n = len(values)
    lags = min(lags, n - 1)
    centred = values - values.mean()
    variance = float(np.dot(centred, centred))
    if not variance > 0 or float(np.ptp(values)) == 0:
        return np.concatenate([[1.0], np.full(lags, np.nan)])
    if n * lags <= 1 << 22:
        products = [np.dot(centred[: n - lag], centred[lag:]) for lag in range(lags + 1)]
        return np.array(products, dtype=np.float64) / variance
    from scipy import fft  # noqa: PLC0415  (slow to load)

    piece = max(_PIECES, 2 * lags)
    size = fft.next_fast_len(piece + lags, real=True)
    total = np.zeros(lags + 1)
    for start in range(0, n, piece):
        left = fft.rfft(centred[start : start + piece], size)
        right = fft.rfft(centred[start : start + piece + lags], size)
        total += fft.irfft(np.conj(left) * right, size)[: lags + 1]
    return total / variance


def dependence(values: Numbers) -> Dependence | None:
    """What the order of finite `values`, shape (n,), shows; None below 10 of them, or where all are the same.

    The longest lag looked at is a tenth of n, at least 2,048 or all there are.
    """
    n = len(values)
    if n < 10:
        return None
    lags = min(n - 2, _FIRST_LAGS)
    while True:
        found = autocorrelation(values, lags)
        if np.isnan(found[-1]):
            return None
        inefficiency, ended = _summed(found)
        if ended or lags >= min(n - 2, max(_FIRST_LAGS, n // 10)):
            break
        lags = min(n - 2, max(_FIRST_LAGS, n // 10), lags * 8)
    inefficiency = max(1.0, inefficiency)
    return Dependence(found[1:1001], 1.96 / np.sqrt(n), inefficiency, n / inefficiency, ended)


def _summed(found: Numbers) -> tuple[float, bool]:
    """(statistical inefficiency, whether the sum ended before the lags did)."""
    even = len(found) // 2 * 2
    pairs = found[:even].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    ended = len(negative) > 0
    kept = pairs[: negative[0]] if ended else pairs
    return float(2 * np.minimum.accumulate(kept).sum() - 1) if len(kept) else 0.0, ended
