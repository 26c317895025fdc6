"""A log of transactions in pgbench's form: what was done in the measured part of a run. Pure.

Format: PostgreSQL documentation, pgbench, "Per-Transaction Logging": client_id transaction_no time(us) script_no
time_epoch(s) time_us; transactions are counted from 1, and the time is that of the transaction's end.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hugewise.model.scene import Part, counted

__all__ = ["QUANTILES", "UNTIMED", "MeasuredPart", "measured"]

QUANTILES = (0.5, 0.95, 0.99)
UNTIMED = "no transaction began and ended within one turn"
"""Why there is no latency although transactions count."""

_DIGIT = re.compile(rb"[0-9]")
_LARGEST = 1e15  # microseconds of 30 years
_WAITED = 2  # the number of the transaction in which a client waits for its share of work


class MeasuredPart(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part of a run whose clients' first transactions are their warm-up.

    transactions   that ended in what counts of the measured part, warm-ups not counted
    between        that ended between its begin and its end, whether they count or not: what CPU time is of
    regular        the same of the whole run
    seconds        in what counts
    latency_ms     at QUANTILES, of those that count and began after their client was last thawed; empty: there is none
    mean_ms        of the same; None: there is none
    series         how many ended in each whole second of it; empty where it has several parts
    clients        how many logged anything
    warmed_s       when the last client was through its warm-up: seconds before the measured part began
    """

    transactions: int
    between: int
    regular: int
    seconds: float
    latency_ms: tuple[float, ...]
    mean_ms: float | None
    series: tuple[float, ...]
    clients: int
    warmed_s: float


def measured(
    logs: Iterable[bytes], begin: float, end: float, parts: Sequence[Part] = (), share: int = 0
) -> MeasuredPart:
    """What the logs of a run (one of each thread) say of the time from `begin` to `end`, UTC epoch seconds.

    `parts`: what counts of it, in their order and apart from each other (none: all of it). `share`: how many
    transactions each client had to do, after its warm-up and one in which it waited; it may have idled in more. Then
    what counts ends with the last of whoever was through first, as from then on fewer were at work. Raises ValueError
    when there is no log, a line is none of a transaction, no transaction ended in what counts, or a client has not
    done its share.
    """
    tables = [_table(log) for log in logs if log.strip()]
    if not tables:
        raise ValueError("the client left no log of its transactions")
    client, number, microseconds, ended = np.concatenate(tables, axis=1)
    parts = parts or (Part(begin, end),)
    first, regular = number == 1, number > 1
    if share:
        regular = (number > _WAITED) & (number <= _WAITED + share)
        parts = _until(_first_through(client, number, ended, share), parts)
    begins, ends, thawed = np.array([(part.begin, part.end, part.thawed) for part in parts]).T
    part = np.searchsorted(begins, ended, side="right") - 1  # the last that had begun; -1: none
    inside = regular & (part >= 0) & (ended <= ends[part])
    count = int(inside.sum())
    if count == 0:
        raise ValueError(
            f"no transaction ended in the measured part: of {len(ended)} logged, {int(first.sum())} are warm-ups, and"
            f" they ended {ended.min() - begin:+.1f} to {ended.max() - begin:+.1f} s from its begin"
        )
    # One that was frozen on its way took the time of others' turns.
    whole = microseconds[inside & (ended - microseconds * 1e-6 >= thawed[part])]
    return MeasuredPart(
        transactions=count,
        between=int((regular & (ended >= begin) & (ended <= end)).sum()),
        regular=int(regular.sum()),
        seconds=counted(parts),
        latency_ms=tuple(float(value) for value in np.quantile(whole, QUANTILES) / 1e3) if whole.size else (),
        mean_ms=float(whole.mean() / 1e3) if whole.size else None,
        series=_series(ended[inside], parts[0]) if len(parts) == 1 else (),
        clients=len(np.unique(client)),
        warmed_s=float(begin - ended[first].max()) if first.any() else float("-inf"),
    )


def _first_through(
    client: NDArray[np.float64], number: NDArray[np.float64], ended: NDArray[np.float64], share: int
) -> float:
    """When the first of the clients had done its share. Raises ValueError where one has not."""
    last = number == _WAITED + share
    if lazy := sorted(set(client.tolist()) - set(client[last].tolist())):
        done = max(0, int(number[client == lazy[0]].max()) - _WAITED)
        raise ValueError(f"client {lazy[0]:g} has done {done} of its {share} transactions")
    return float(ended[last].min())


def _until(moment: float, parts: Sequence[Part]) -> tuple[Part, ...]:
    """What lies before a moment of these parts. Raises ValueError where that is nothing."""
    found = tuple(msgspec.structs.replace(part, end=min(part.end, moment)) for part in parts if part.begin < moment)
    if not found:
        raise ValueError("a client had done its share before anything counted: give it more transactions")
    return found


def _series(ended: NDArray[np.float64], part: Part) -> tuple[float, ...]:
    seconds = max(1, round(part.end - part.begin))
    bins = np.bincount(np.floor(ended - part.begin).astype(np.int64), minlength=seconds)
    return tuple(float(each) for each in bins[:seconds])


def _table(log: bytes) -> NDArray[np.float64]:
    """Rows: client, number of the transaction, microseconds, end in epoch seconds."""
    if not log.isascii() or _DIGIT.search(log) is None:  # blanks that are none in ASCII would be a log without rows
        raise ValueError(
            "the log of transactions holds a line that is no transaction: it is no ASCII text with numbers"
        )
    try:
        rows = np.loadtxt(io.BytesIO(log), usecols=(0, 1, 2, 4, 5), ndmin=2, dtype=np.float64, comments=None)
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"the log of transactions holds a line that is no transaction: {error}") from None
    if not ((rows >= 0) & (rows < _LARGEST)).all():
        raise ValueError("the log of transactions holds a line whose numbers are none of a transaction")
    client, number, microseconds, seconds, parts = rows.T
    return np.stack([client, number, microseconds, seconds + parts * 1e-6])
