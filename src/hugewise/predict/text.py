"""A prediction as a document: a table by size of pages, one figure, and what was not seen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from hugewise.predict.line import Interval
from hugewise.predict.prediction import Band, Prediction, Row
from hugewise.report import document as doc
from hugewise.report.figures.theme import WIDTH, chart
from hugewise.report.numbers import NOTHING, percent, size

_BAR = 14
_HEAD = ("pages", "walks", "walk steps", "1st-level misses", "memory added", "holds 90%")


def document(found: Prediction) -> doc.Document:
    """Return the prediction for a terminal or a page."""
    told = shlex.join(found.command)
    seen = f"{found.instructions:,} instructions, {found.accesses:,} accesses, {size(found.touched_bytes)} touched"
    return doc.Document(
        title=f"Prediction: {told}",
        lead=(
            doc.Line(f"One traced run: {seen}. Rates are per thousand instructions."),
            doc.Line(_timed(found), quiet=True),
        ),
        sections=(
            *(_machine(found, name) for name in found.machines),
            *_time(found),
            doc.Section("Walk steps", (_figure(found),), key="steps", nav="steps"),
            doc.Section("Limits of the trace", (doc.Points(found.limits),), key="limits", nav="limits", brief=True),
            doc.Section("Described machines", tuple(_sources(found)), key="machines", nav="machines"),
        ),
        about=told,
        page=told,
        heading=told,
        files="prediction.json and figures/",
    )


def _machine(found: Prediction, name: str) -> doc.Section:
    rows = [row for row in found.rows if row.machine == name]
    table = doc.table(
        "A row: pages of this size, on a kernel with this base page. Walks: misses of the second level. Holds 90%: the "
        "least memory in such pages with 90% of the walks",
        _HEAD,
        [_cells(row) for row in rows],
    )
    return doc.Section(found.machines[name].title, (table,), key=name, nav=name, brief=True)


def _timed(found: Prediction) -> str:
    if found.timing is None:
        return "No time is predicted: walks overlap with other work. Runs on this host tell (--time 2m)."
    if found.timing.why is not None:
        return f"No time is predicted: {found.timing.why}."
    errors = [abs(each.took / each.predicted.value - 1) for each in found.timing.layouts if each.predicted]
    return (
        f"User CPU time is predicted for this host from {len(errors)} layouts of the heap, each timed "
        f"{len(found.timing.layouts[0].seconds)} times: each lies in the interval that the others predict, "
        f"{percent(round(max(errors), 3))} off at most."
    )


def _time(found: Prediction) -> Iterator[doc.Section]:
    timing = found.timing
    if timing is None or timing.host is None:
        return
    title, timed = found.machines[timing.host].title, [row for row in found.rows if row.seconds is not None]
    times = doc.table(
        "User CPU seconds of a run, with all memory in such pages, and the 90% interval",
        ("pages", "seconds", "90% interval"),
        [(called(row), *_seconds(row.seconds)) for row in timed],
    )
    layouts = doc.table(
        "Layouts of the heap: the lower quartile of the runs, in seconds; what the other layouts predict; simulated "
        "hits in the second level, and its misses of base pages and of huge pages",
        ("layout", "seconds", "predicted", "90% interval", "hits", "4K misses", "2M misses"),
        [
            (each.layout, f"{each.took:.4g}", *_seconds(each.predicted), each.hits, *each.misses)
            for each in timing.layouts
        ],
    )
    stands = "this host's processor" if timing.known else "not this host's processor, and the nearest that is described"
    reach = "of their own size" if timing.entries == "whole" else "of base pages, as under a hypervisor without them"
    told = f"Simulated is {title}: {stands}. Better prediction: entries of huge pages {reach}."
    if timed:
        blocks = (times, doc.Line(told, quiet=True))
        yield doc.Section("CPU time on this host", blocks, key="time", nav="time", brief=True)
    yield doc.Section("Layouts that were run", (layouts,), key="layouts", nav="layouts")


def _seconds(found: Interval | None) -> tuple[str, str]:
    return (NOTHING, NOTHING) if found is None else (f"{found.value:.4g}", f"{found.low:.4g} to {found.high:.4g}")


def _cells(row: Row) -> tuple[str, ...]:
    memory = row.memory
    return (
        called(row),
        band(row.misses_pki),
        band(row.steps_pki),
        band(row.l1_misses_pki),
        NOTHING if memory is None else size(memory.added),
        NOTHING if memory is None or memory.needed is None else size(memory.needed),
    )


def called(row: Row) -> str:
    """Return the name of a row's pages: `2M on 4K`, or of base pages `4K`."""
    return row.page if row.page == row.base else f"{row.page} on {row.base}"


def band(found: Band) -> str:
    """Return a band to three digits: `1.23 to 1.45`, or one figure where both ends read the same."""
    low, high = _rate(found.low), _rate(found.high)
    return low if low == high else f"{low} to {high}"


def _rate(value: float) -> str:
    if value == 0:
        return "0"
    return "<0.001" if value < 0.001 else f"{value:.{3 if value < 1 else 2 if value < 100 else 0}f}"


def _figure(found: Prediction) -> doc.Figure:
    rows = [
        {
            "machine": found.machines[row.machine].title,
            "page": called(row),
            "low": row.steps_pki.low,
            "high": row.steps_pki.high,
        }
        for row in found.rows
    ]
    text = "Walk steps per thousand instructions, by machine and size of pages; the dark part is the band"
    return doc.Figure("steps", "steps", text, _spec(rows))


def _spec(rows: list[dict[str, Any]]) -> dict[str, Any]:
    machines = list(dict.fromkeys(row["machine"] for row in rows))
    x = {"type": "quantitative", "title": "walk steps per thousand instructions", "scale": {"zero": True}}
    bar, tick = {"type": "bar", "height": _BAR}, {"type": "tick", "thickness": 2, "size": _BAR}
    marks: tuple[tuple[dict[str, Any], str, dict[str, Any]], ...] = (
        (bar | {"opacity": 0.5}, "low", {"x2": {"datum": 0}}),
        (bar, "low", {"x2": {"field": "high"}}),
        (tick, "high", {}),
    )
    return chart(
        {
            "data": {"values": rows},
            "facet": {"row": {"field": "machine", "type": "nominal", "sort": machines, "title": None}},
            "resolve": {"scale": {"y": "independent"}},
            "spec": {
                "width": WIDTH,
                "height": {"step": 2 * _BAR},
                "encoding": {"y": {"field": "page", "type": "nominal", "sort": None, "title": None}},
                "layer": [
                    {"mark": {**mark, "color": "#2a78d6"}, "encoding": {"x": {**x, "field": field}, **other}}
                    for mark, field, other in marks
                ],
            },
        }
    )


def _sources(found: Prediction) -> Iterator[doc.Block]:
    for machine in found.machines.values():
        yield doc.Heading(machine.title)
        yield doc.Points(
            tuple(
                f"{'Assumed' if source.assumed else source.text}: {source.says}."
                + ("" if source.assumed or source.read else " As others cite it: the document was not read.")
                for source in machine.source
            )
        )


def change(before: Band, after: Band) -> str:
    """Return the change of a rate from the middle of one band to that of another; nothing where there was none."""
    first, second = (before.low + before.high) / 2, (after.low + after.high) / 2
    return NOTHING if first == 0 else percent(round(second / first - 1, 3))
