"""The data files of a report: `report.json`, `fleet.json` (indented JSON, keys in the order of the types), and tables.

Tables are CSV (RFC 4180): raw numbers, an empty field for a value that is not there.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from hugewise.model.fleet import FleetResults
from hugewise.model.results import Comparison, Results, Spread
from hugewise.report.cell_answers import answers
from hugewise.report.reasons import values, worded
from hugewise.visible import json_text, printable

_ATTEMPT = (
    *("run", "session", "block", "cell", "arm", "baseline", "policy", "mechanism", "order", "slot", "number", "state"),
    *("reason", "started", "ended", "wall_s", "cpu_s", "overhead_s", "steal_s", "boot_id", "environment_pad"),
    *("peak_bytes", "pool_bytes", "exit_code", "signal"),
)
_COMPARISON = tuple(name for name in Comparison.__struct_fields__ if name not in ("tiers", "warnings", "spread"))


def attempt_lines(results: Results) -> Iterator[str]:
    """Yield the head, then a row per attempt, with `metric.NAME` and `guest.NAME`."""
    groups = ("pressure", "metrics", "guest")
    names = {group: _names(getattr(attempt, group) for attempt in results.attempts) for group in groups}
    called = ("pressure", "metric", "guest")
    yield _line(
        [
            *_ATTEMPT,
            *("delivered", "delivered_share", "promised", "proof", "source", "coverage", "disturbances"),
            *(f"{word}.{name}" for word, group in zip(called, groups, strict=True) for name in names[group]),
        ]
    )
    own = attrgetter(*_ATTEMPT)
    for attempt in results.attempts:
        delivery = attempt.delivery
        yield _line(
            [
                *own(attempt),
                *(delivery.delivered, delivery.share, str(delivery.target), delivery.proof, delivery.source),
                *(json.dumps(dict(delivery.coverage), sort_keys=True), "; ".join(attempt.disturbances)),
                *(getattr(attempt, group).get(name) for group in groups for name in names[group]),
            ]
        )


def comparisons_csv(results: Results) -> str:
    """Return one row per comparison; all ratios are arm/baseline, `better` is the metric's direction.

    An end of an interval that is not bounded is empty. `earlier_runs` is the same in every row: empty where they were
    not looked for, `none` where there were none.
    """
    known = None if results.earlier is None else "; ".join(results.earlier) or "none"
    rows = [
        [
            *(
                cell.cell,
                cell.workload,
                cell.metric_named(comparison.metric).unit,
                cell.metric_named(comparison.metric).better,
            ),
            *values(comparison, _COMPARISON),
            *(
                None if comparison.spread is None else getattr(comparison.spread, name)
                for name in Spread.__struct_fields__
            ),
            known,
        ]
        for cell in results.cells
        for comparison in cell.judged
    ]
    spread = (f"spread.{name}" for name in Spread.__struct_fields__)
    head = ["cell", "workload", "unit", "better", *_COMPARISON, *spread, "earlier_runs"]
    return "".join(map(_line, (head, *rows)))


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping})


def _line(row: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(map(field, row))
    return out.getvalue()


def field(value: object) -> object:
    """Booleans in lower case as in JSON; printable text, quoted where a spreadsheet would run it as a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _shown(value) if isinstance(value, str) else value


@lru_cache(1_000)  # names come again in every row
def _shown(text: str) -> str:
    shown = printable(text)
    first = unicodedata.normalize("NFKC", shown[:1])  # some take a full-width sign for the sign
    return f"'{shown}" if first in ("=", "+", "-", "@") else shown


LEFT_OUT = ("attempts",)
"""Keys of `Results` that `report.json` does not have."""


def report_json(results: Results) -> bytes:
    """`report.json`: the results without their attempts, with the answer of each cell under `answers`."""
    told: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(results).items() if name not in LEFT_OUT
    }
    told["answers"] = answers(results)
    return json_text(worded(told)).encode() + b"\n"


def fleet_json(results: FleetResults) -> bytes:
    """`fleet.json`. `msgspec.json.decode(_, type=FleetResults)` reads it."""
    return json_text(worded(results)).encode() + b"\n"
