"""Tables for other programs, as CSV (RFC 4180): raw numbers, an empty field for a value that is not there."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from hugewise.model.results import Beside, Comparison, Level, Measured, Results, Spread
from hugewise.model.trial import Attempt
from hugewise.report.sections.beside import published_words
from hugewise.visible import printable

_ATTEMPT = (
    *("run", "session", "block", "cell", "arm", "baseline", "policy", "mechanism", "order", "slot", "number", "state"),
    *("reason", "started", "ended", "wall_s", "cpu_s", "overhead_s", "steal_s", "boot_id", "environment_pad"),
    *("peak_bytes", "pool_bytes", "exit_code", "signal"),
)
_AT_ONCE = 1_000
_AS_THEY_ARE = frozenset({float, int, type(None)})  # no booleans, whose type is another
_COMPARISON = tuple(name for name in Comparison.__struct_fields__ if name not in ("tiers", "warnings", "spread"))


def attempts(results: Results) -> str:
    """`attempt_lines` as one text."""
    return "".join(attempt_lines(results))


def attempt_lines(results: Results) -> Iterator[str]:
    """The head, then some rows at a time: one row per attempt, with its delivery, pressure, disturbances, every metric
    as `metric.NAME`, covariates, and what its guest was as `guest.NAME`.
    """
    metrics = _names(one.metrics for one in results.attempts)
    pressure = _names(one.pressure for one in results.attempts)
    covariates = _names(one.covariates for one in results.attempts)
    guest = _names(one.guest for one in results.attempts)
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
    """Numbers of a row, three times as fast as `csv` writes them: most of a run is numbers."""
    return msgspec.json.encode([*map(values.get, names)])[1:-1].decode().replace("null", "")


def comparisons(results: Results) -> str:
    """One row per comparison; all ratios are arm/baseline, `better` is the metric's direction.

    An end of an interval that is not bounded is empty. `earlier_runs` is the same in every row: empty where they were
    not looked for, `none` where there were none.
    """
    known = None if results.earlier is None else "; ".join(results.earlier) or "none"
    rows = [
        [
            *(cell.cell, cell.workload, cell.metric_named(one.metric).unit, cell.metric_named(one.metric).better),
            *(getattr(one, name) for name in _COMPARISON),
            *(None if one.spread is None else getattr(one.spread, name) for name in Spread.__struct_fields__),
            known,
        ]
        for cell in results.cells
        for one in cell.judged
    ]
    spread = (f"spread.{name}" for name in Spread.__struct_fields__)
    return _text(["cell", "workload", "unit", "better", *_COMPARISON, *spread, "earlier_runs"], rows)


def published(beside: Beside) -> str:
    """One row per published figure or finding and measured cell; the published columns are called so.

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
                *(point.agreement, point.reason, point.points),
            ]
        )
    rows += [
        [
            *(beside.name, finding.entry, finding.effect, finding.arm, finding.baseline, None),
            *(None, None, None, None, None, published_words(finding)),
            *(level.cell, finding.policy, *_measured(level.measured)),
            *(finding.agreement, level.reason or finding.reason, None),
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
    """Each without its line end, of which there is none within."""
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
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown
