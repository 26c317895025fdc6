"""What the two TPC-C clients say, second by second and in the end. Pure.

go-tpc 1.0 with `--output json --interval 1s` prints a list of rows for each second, then those of the whole run, then
the rates. sysbench-tpcc prints sysbench's own report, in which all transactions are alike.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hugewise import reading
from hugewise.reading import UnreadableError, count, figure, number, shown
from hugewise.workloads import _sysbench_oltp

__all__ = ["QUANTILES", "MeasuredTransactions", "go_tpc", "go_tpc_whole", "sysbench"]

# Names of metrics, and go-tpc's names of them.
QUANTILES = {"p50": "50th(ms)", "p90": "90th(ms)", "p95": "95th(ms)", "p99": "99th(ms)"}

_Rows = dict[str, dict[str, Any]]
"""By operation."""
_A_SECOND_MS = 900  # latencies are kept to one digit
_FAILED = re.compile(r"execute run failed, err (.*)")


class MeasuredTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """The measured part: counts in it, milliseconds of a new order in it.

    new_orders    None: the client does not tell the transactions apart
    series        transactions in each of its seconds
    average_ms    None: it tells that of its whole run alone, or there was no new order
    quantiles_ms  empty where the measured part is not its whole run, of which alone it tells them
    """

    seconds: float
    transactions: int
    new_orders: int | None
    average_ms: float | None
    quantiles_ms: dict[str, float]
    series: tuple[float, ...]
    errors: int
    error: str | None


def go_tpc(said: str, lead: int, length: int, whole: int) -> MeasuredTransactions:
    """Of go-tpc's JSON, of a run of `whole` seconds. Raises ValueError when a second or the summary is not there."""
    tables = [found for line in said.splitlines() if (found := _rows(line)) is not None]
    told = [{row["Operation"]: row for row in rows} for rows in tables if _prefix(rows) == "[Current]"]
    part = _every_second(told, _summary(said, tables), lead, length, whole)[lead : lead + length]
    if len(part) < length:
        raise ValueError(f"go-tpc told of {len(told)} seconds, not of the {lead + length} asked for")
    series = [_made(rows) for rows in part]
    orders = [rows["NEW_ORDER"] for rows in part if "NEW_ORDER" in rows]
    new_orders = sum(map(_count, orders))
    spent = sum(_number(row, "Sum(ms)") for row in orders)
    failed = _FAILED.search(said)
    return MeasuredTransactions(
        seconds=length,
        transactions=sum(series),
        new_orders=new_orders,
        average_ms=spent / new_orders if new_orders else None,
        quantiles_ms={},
        series=tuple(map(float, series)),
        errors=len(_FAILED.findall(said)),
        error=failed[1][:200] if failed else None,
    )


def _every_second(told: list[_Rows], summary: _Rows, lead: int, length: int, whole: int) -> list[_Rows]:
    """The rows of every second of a run: none where no transaction ended, as of such a second go-tpc prints nothing.

    While backends touch their buffers nothing ends for seconds, at first or soon after (seen: 5 to 7, 14 warehouses and
    9 connections). Connections rest at no time: what ends first after g silent seconds took as long at least. Raises
    ValueError where that does not tell which seconds of the measured part were silent, if any.
    """
    if not told:
        raise ValueError("go-tpc told of no second")
    # The last second may be over before it is told; its transactions are then in the summary alone.
    untold = _made(summary) - sum(map(_made, told))
    silent = whole - len(told) - (untold * 2 > _made(told[-1]))
    if silent <= 0:
        return told
    longest = [max(_number(row, "Max(ms)") for row in rows.values()) for rows in told]
    after = [place for place, spent in enumerate(longest) if spent >= _A_SECOND_MS]
    alone = len(after) == 1 and longest[after[0]] >= silent * _A_SECOND_MS
    if not (alone or (after and (after[-1] + silent < lead or after[0] >= lead + length))):
        raise ValueError(f"go-tpc told of {len(told)} seconds of {whole}, and not which the others were")
    return [*told[: after[0]], *({} for _ in range(silent)), *told[after[0] :]]


def _made(rows: _Rows) -> int:
    """Transactions, without those that failed."""
    return sum(_count(row) for name, row in rows.items() if not name.endswith("_ERR"))


def go_tpc_whole(said: str, seconds: float) -> MeasuredTransactions:
    """Of go-tpc's JSON, all of a run that took so many seconds of its own. Raises ValueError."""
    tables = [found for line in said.splitlines() if (found := _rows(line)) is not None]
    whole = _summary(said, tables)
    orders, failed = whole["NEW_ORDER"], _FAILED.search(said)
    return MeasuredTransactions(
        seconds=seconds,
        transactions=_made(whole),
        new_orders=_count(orders),
        average_ms=_number(orders, "Sum(ms)") / made if (made := _count(orders)) else None,
        quantiles_ms={name: _number(orders, theirs) for name, theirs in QUANTILES.items()},
        series=(),
        errors=len(_FAILED.findall(said)),
        error=failed[1][:200] if failed else None,
    )


def _summary(said: str, tables: list[list[dict[str, Any]]]) -> _Rows:
    whole = [{row["Operation"]: row for row in rows} for rows in tables if _prefix(rows) == "[Summary]"]
    if not whole or "NEW_ORDER" not in whole[-1]:
        raise ValueError(f"go-tpc's summary has no NEW_ORDER: {said.strip()[-300:]!r}")
    return whole[-1]


def sysbench(said: str, lead: int, length: int) -> MeasuredTransactions:
    """Of sysbench-tpcc's report. Raises ValueError when a second or the summary is not there."""
    run = _sysbench_oltp.read(said)
    part = [second.tps for second in run.seconds if lead < second.second <= lead + length]
    if len(part) < length:
        raise ValueError(f"sysbench told of {len(run.seconds)} seconds, not of the {lead + length} asked for")
    return MeasuredTransactions(
        seconds=length,
        transactions=round(sum(part)),
        new_orders=None,
        average_ms=None,
        quantiles_ms={},
        series=tuple(part),
        errors=run.errors,
        error=f"{run.errors} ignored errors" if run.errors else None,
    )


def _rows(line: str) -> list[dict[str, Any]] | None:
    """The rows in a line of JSON; None for any other line."""
    if not line.startswith("[{"):
        return None
    try:
        found = reading.json(line.encode())
    except UnreadableError:
        return None
    return found if all(isinstance(row, dict) and isinstance(row.get("Operation"), str) for row in found) else None


def _prefix(rows: list[dict[str, Any]]) -> str:
    return str(rows[0].get("Prefix", "")).strip()


def _number(row: dict[str, Any], name: str) -> float:
    told, what = row.get(name), f"{name} in go-tpc's row of {shown(row['Operation'])}"
    return figure(told, what, low=0) if isinstance(told, str) else number(told, what, low=0)


def _count(row: dict[str, Any]) -> int:
    return count(_number(row, "Count"), "Count")
