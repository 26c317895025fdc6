"""What sysbench 1.0 says of a run against a database server. Pure."""

from __future__ import annotations

import re

import msgspec

from hugewise.reading import figure, whole

__all__ = ["OltpRun", "OltpSecond", "read"]

_SECOND = re.compile(r"^\[ (\d+)s \] thds: \d+ tps: ([\d.]+) qps: ([\d.]+) ", re.MULTILINE)
_TRANSACTIONS = re.compile(r"^ +transactions: +(\d+) +\(", re.MULTILINE)
_QUERIES = re.compile(r"^ +queries: +(\d+) +\(", re.MULTILINE)
_ERRORS = re.compile(r"^ +ignored errors: +(\d+) +\(", re.MULTILINE)
_RECONNECTS = re.compile(r"^ +reconnects: +(\d+) +\(", re.MULTILINE)
_TIME = re.compile(r"^ +total time: +([\d.]+)s$", re.MULTILINE)
_AVERAGE = re.compile(r"^ +avg: +([\d.]+)$", re.MULTILINE)
_QUANTILE = re.compile(r"^ +(\d+)th percentile: +([\d.]+)$", re.MULTILINE)


class OltpSecond(msgspec.Struct, frozen=True):
    """One line of --report-interval=1: the second of the run that ends with it, transactions and queries in it."""

    second: int
    tps: float
    qps: float


class OltpRun(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: counts, seconds, and milliseconds of a transaction."""

    transactions: int
    queries: int
    errors: int
    reconnects: int
    time_s: float
    average_ms: float
    quantile: int
    quantile_ms: float
    seconds: tuple[OltpSecond, ...]


def read(said: str) -> OltpRun:
    """What a run said. Raises ValueError naming the first line that is not there."""

    def one(pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.search(said)
        if found is None:
            raise ValueError(f"sysbench's report has no {what}: {said.strip()[-300:]!r}")
        return found

    def count(pattern: re.Pattern[str], what: str) -> int:
        return whole(one(pattern, what)[1], what)

    percentile, time = one(_QUANTILE, "percentile"), figure(one(_TIME, "total time")[1], "the total time")
    if time == 0:
        raise ValueError("sysbench's report says that the run took no time")
    return OltpRun(
        transactions=count(_TRANSACTIONS, "transactions"),
        queries=count(_QUERIES, "queries"),
        errors=count(_ERRORS, "ignored errors"),
        reconnects=count(_RECONNECTS, "reconnects"),
        time_s=time,
        average_ms=figure(one(_AVERAGE, "average latency")[1], "the average latency"),
        quantile=whole(percentile[1], "the percentile"),
        quantile_ms=figure(percentile[2], "the percentile"),
        seconds=tuple(
            OltpSecond(whole(m[1], "a second"), figure(m[2], "tps"), figure(m[3], "qps"))
            for m in _SECOND.finditer(said)
        ),
    )
