"""The data files of a report: `report.json`, `fleet.json` (indented JSON, keys in the order of the types), and tables.

Tables are CSV (RFC 4180): raw numbers, an empty field for a value that is not there.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from hugewise.model.fleet import FleetResults
from hugewise.model.results import Beside, Comparison, Level, Measured, Results, Spread
from hugewise.model.trial import Attempt
from hugewise.report.cell_answers import answers
from hugewise.report.reasons import in_words, values, worded
from hugewise.report.sections.beside import published_words
from hugewise.visible import json_text, printable

_ATTEMPT = (
    *("run", "session", "block", "cell", "arm", "baseline", "policy", "mechanism", "order", "slot", "number", "state"),
    *("reason", "started", "ended", "wall_s", "cpu_s", "overhead_s", "steal_s", "boot_id", "environment_pad"),
    *("peak_bytes", "pool_bytes", "exit_code", "signal"),
)
_AT_ONCE = 1_000
_AS_THEY_ARE = frozenset({float, int, type(None)})  # no booleans, whose type is another
_COMPARISON = tuple(name for name in Comparison.__struct_fields__ if name not in ("tiers", "warnings", "spread"))


def attempts_csv(results: Results) -> str:
    """`attempt_lines` as one text."""
    return "".join(attempt_lines(results))


def attempt_lines(results: Results) -> Iterator[str]:
    """Yield the head, then some rows at a time: one row per attempt, with its delivery, pressure, disturbances, every
    metric as `metric.NAME`, covariates, and what its guest was as `guest.NAME`.
    """
    metrics = _names(attempt.metrics for attempt in results.attempts)
    pressure = _names(attempt.pressure for attempt in results.attempts)
    covariates = _names(attempt.covariates for attempt in results.attempts)
    guest = _names(attempt.guest for attempt in results.attempts)
    head = [
        *_ATTEMPT,
        *("delivered", "delivered_share", "promised", "proof", "source", "coverage", "disturbances"),
        *(f"pressure.{name}" for name in pressure),
        *(f"metric.{name}" for name in metrics),
        *(f"covariate.{name}" for name in covariates),
        *(f"guest.{name}" for name in guest),
    ]

    own = attrgetter(*_ATTEMPT)

    def words(one: Attempt) -> list[object]:
        delivery = one.delivery
        return [
            *own(one),
            *(delivery.delivered, delivery.share, str(delivery.target), delivery.proof, delivery.source),
            *(json.dumps(dict(delivery.coverage), sort_keys=True), "; ".join(one.disturbances)),
            *map(one.pressure.get, pressure),
        ]

    numbers = [(attrgetter(of), names) for of, names in (("metrics", metrics), ("covariates", covariates)) if names]
    yield _text(head, ())
    left = iter(results.attempts)
    while some := list(islice(left, _AT_ONCE)):
        columns = [_rows(map(words, some)), *([_plain(of(one), names) for one in some] for of, names in numbers)]
        if guest:
            columns.append(_rows([one.guest.get(name) for name in guest] for one in some))
        yield "".join(f"{','.join(row)}\r\n" for row in zip(*columns, strict=True))


def _plain(values: Mapping[str, float | None], names: Sequence[str]) -> str:
    """Return numbers of a row, three times as fast as `csv` writes them: most of a run is numbers."""
    return msgspec.json.encode([*map(values.get, names)])[1:-1].decode().replace("null", "")


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
    return _text(["cell", "workload", "unit", "better", *_COMPARISON, *spread, "earlier_runs"], rows)


def published_csv(beside: Beside) -> str:
    """Return one row per published figure or finding and measured cell; the published columns are called so.

    `published.change_percent` is empty where a finding or a counter gives none.
    """
    head = [
        *(f"published.{name}" for name in ("source", "entry", "what", "arm", "baseline", "change_percent")),
        *(f"published.{name}" for name in ("arm_mean", "arm_n", "baseline_mean", "baseline_n", "unit", "words")),
        *("cell", "policy", *(f"measured.{name}" for name in Measured.__struct_fields__)),
        *("agreement", "reason", "difference_points"),
    ]
    rows: list[list[object]] = []
    for point in beside.points:
        arm, base = point.arm_sample, point.baseline_sample
        figures = (arm and arm.mean, arm and arm.n, base and base.mean, base and base.n)
        rows.append(
            [
                *(beside.name, point.entry, point.quantity, point.arm, point.baseline, point.percent),
                *(*figures, point.unit, None),
                *(point.cell, point.policy, *_measured(point.measured)),
                *(point.agreement, in_words(point.reason), point.points),
            ]
        )
    rows += [
        [
            *(beside.name, finding.entry, finding.effect, finding.arm, finding.baseline, None),
            *(None, None, None, None, None, published_words(finding)),
            *(level.cell, finding.policy, *_measured(level.measured)),
            *(finding.agreement, in_words(level.reason or finding.reason), None),
        ]
        for finding in beside.findings
        for level in finding.measured or (Level(cell="", value="", measured=None, reason=finding.reason),)
    ]
    return _text(head, rows)


def _measured(measured: Measured | None) -> list[object]:
    return [None if measured is None else getattr(measured, name) for name in Measured.__struct_fields__]


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for mapping in mappings for name in mapping})


def _text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return _lines([head]) + _lines(rows)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    return "".join(f"{row}\r\n" for row in _rows(rows))


def _rows(rows: Iterable[Sequence[object]]) -> list[str]:
    """Return each without its line end, of which there is none within."""
    found: list[str] = []
    writer = csv.writer(_Kept(found), lineterminator="")
    writer.writerows(
        [
            value if (kind := type(value)) in _AS_THEY_ARE else _shown(value) if kind is str else field(value)
            for value in row
        ]
        for row in rows
    )
    return found


class _Kept(NamedTuple):
    """A file that keeps each row by itself."""

    rows: list[str]

    def write(self, row: str) -> None:
        self.rows.append(row)


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
