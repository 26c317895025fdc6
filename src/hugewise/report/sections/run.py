"""The run itself: what was left out, what failed or was disturbed, the host, and the options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.document import Block, Folded, Heading, Line, Only, Points, Section, Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.remarks import earlier
from hugewise.report.sections.effects import alpha_table

_OPEN = ("the run", "host")  # tables that are shown at once
_FEW = 12  # disturbances that are shown at once


def left_out(results: Results) -> Iterator[Section]:
    """Yield what the plan left out before anything ran."""
    rows = [(part.what, part.reason) for part in results.left_out]
    shown = table("left out before anything ran", ("what", "why"), rows, 2, titled=True)
    yield Section("Left out, and why", (shown,), key="left-out", nav="Left out", only="html")
    yield Section("Left out", (shown if rows else Line("Nothing."),), only="markdown")


def trouble(results: Results) -> Section:
    """Return the disturbances, and every attempt that failed or did not count."""
    lines = Points(results.disturbances)
    many = len(lines.lines)
    found: tuple[Block, ...] = (Folded(f"Noticed while it was measured ({many})", (lines,), open=many <= _FEW),)
    if not many:
        found = (Only("html", (Line("Nothing was noticed.", quiet=True),)),)
    return Section("Failures and disturbances", (*found, _failures_table(results)), key="trouble", nav="Failures")


def run(results: Results) -> Section:
    """Return the ledger, the run, its host and its options."""
    tables = (
        alpha_table(results),
        run_table(results),
        facts("host", results.host, titled=True),
        facts("page settings before the run", results.settings, titled=True),
        facts("versions", results.versions, titled=True),
        facts("study options as used", results.options, titled=True),
    )
    blocks: list[Block] = []
    for one in filter(None, tables):
        blocks += [Only("markdown", (Heading(_capital(one.caption)),)), folded(one)]
    return Section("Run and host", tuple(blocks), key="run")


def folded(one: Table) -> Folded:
    """Return a table behind its caption."""
    return Folded(_capital(one.caption), (one,), open=one.caption in _OPEN)


def _capital(caption: str) -> str:
    return caption[0].upper() + caption[1:]


def _failures_table(results: Results) -> Table:
    """Return every attempt that failed or did not count, with the reason."""
    rows = [(a.cell, a.arm, a.block, a.number, state, why) for a in results.attempts for state, why in _trouble(a)]
    caption = "attempts that failed, were rejected or abandoned, or were not delivered"
    return table(caption, ("cell", "policy", "block", "attempt", "what", "why"), rows, 6, titled=True)


def _trouble(attempt: Attempt) -> Iterable[tuple[str, str]]:
    if attempt.state == "abandoned":
        yield attempt.state, attempt.reason or "its block was not completed, or disturbed: it counts in no pair"
    elif attempt.state != "accepted":
        how = f"signal {attempt.signal}" if attempt.signal else f"exit {attempt.exit_code}"
        yield attempt.state, attempt.reason or how
    elif attempt.delivery.delivered is False:
        yield (
            "not delivered",
            f"{attempt.delivery.reason or ''} ({numbers.share(attempt.delivery.share)} delivered)".strip(),
        )


def run_table(results: Results) -> Table:
    """Return the run itself: times, state, blocks, seed."""
    blocks = (results.blocks_complete, results.blocks_incomplete, results.blocks_disturbed)
    rows = [
        ("run", results.run),
        ("folder", results.folder),
        ("state", results.state),
        ("started", numbers.when(results.started)),
        ("took", format_duration(max(results.ended - results.started, 0.0))),
        ("blocks complete, incomplete, disturbed", ", ".join(map(str, blocks))),
        ("confidence", numbers.percent(results.confidence)),
        ("margin of equivalence", f"±{numbers.percent(results.margin)}"),
        ("mechanism", results.mechanism),
        ("earlier runs", earlier(results, None)),
        ("seed's hash, committed before the first block", results.seed_hash),
        ("seed, revealed at the end", results.seed or "not revealed: the run has not ended"),
    ]
    return table("the run", ("key", "value"), rows, 2, titled=True)


def facts(caption: str, values: Mapping[str, Any], *, titled: bool = False) -> Table:
    """Nested facts (host, versions, settings, options), a line a leaf: `cpu.model`."""
    return table(caption, ("key", "value"), list(_leaves("", values)), 2, titled=titled)


def _leaves(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping | list | tuple) for inner in value):
        for number, inner in enumerate(value):
            yield from _leaves(f"{prefix}[{number}]", inner)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(inner) for inner in value) or NOTHING
    elif isinstance(value, bool):
        yield prefix, "yes" if value else "no"
    elif isinstance(value, int) and prefix.endswith("bytes"):
        yield prefix, f"{numbers.size(value)} ({value:,})"
    else:
        yield prefix, NOTHING if value is None or value == {} else str(value)
