"""A page of results: what a published table says of walk steps and misses, beside predictions (`hugewise predict`).

    python -m tools.results.predicted docs/results/lpc-2024-tlb.json

The data are a JSON file: for each workload the prediction, and how it was traced. The page is made from it alone.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise import reading
from hugewise.files import write_whole
from hugewise.predict.prediction import Band, Prediction, Row
from hugewise.predict.text import band
from hugewise.published import Table, load
from hugewise.report.document import Document, Line, Points, Section, table
from hugewise.report.markdown import markdown
from hugewise.report.numbers import change, size
from tools.results.page import MARK

SOURCE = "lpc-2024-mthp-arm64"
MACHINE = "neoverse-n1"
METRICS = {"dtlb_walk_steps_pki": "steps_pki", "dtlb_mpki": "misses_pki"}
"""Published metric -> field of a row."""
LEAST = 0.001
"""Rates per thousand instructions below this are equal: what the program misses once."""


class Traced(msgspec.Struct, frozen=True):
    """A prediction, how its program was loaded, and what its load generator says."""

    prediction: Prediction
    how: str
    keys: int
    operations: int


class Beside(NamedTuple):
    """A published change of one arm, and the predicted one: from the middles of the bands, and from their ends."""

    arm: str
    published: float
    band: Band
    ratio: float
    low: float
    high: float

    @property
    def factor(self) -> float:
        """By how much what remains differs: 2 where 0.2 of the misses remain, and 0.4 or 0.1 were published."""
        remaining = 1 + self.published / 100
        larger, smaller = max(remaining, self.ratio), min(remaining, self.ratio)
        return larger / smaller if smaller > 0 else float("inf")


def arm(row: Row) -> str:
    """Return how the publication calls the pages of a row."""
    return f"{row.page} ({row.base}PS)"


def beside(published: Table, found: Prediction, metric: str) -> list[Beside]:
    """Return the arms that were published and predicted, without the first, in the published order."""
    rows = {arm(row): getattr(row, METRICS[metric]) for row in found.rows if row.machine == MACHINE}
    base: Band = rows[published.arms[0]]
    middle = (base.low + base.high) / 2
    return [
        Beside(
            name, percent, rows[name], (rows[name].low + rows[name].high) / 2 / middle,
            rows[name].low / base.high, rows[name].high / base.low,
        )
        for name, percent in zip(published.arms, published.changes[metric], strict=True)
        if name in rows and name != published.arms[0]
    ]  # fmt: skip


def ordered(found: list[Beside]) -> tuple[int, int, int]:
    """Return how many pairs of arms have the published order, how many the other one, and how many none: their bands
    overlap. Pairs that are published alike are none of these.
    """
    by_change = sorted(found, key=lambda one: one.published)
    pairs = itertools.combinations(by_change, 2)
    differ = [(less.band, more.band) for less, more in pairs if less.published != more.published]
    as_published = sum(max(less.high, LEAST) < more.low for less, more in differ)
    reversed_ = sum(max(more.high, LEAST) < less.low for less, more in differ)
    return as_published, reversed_, len(differ) - as_published - reversed_


def signs(found: list[Beside]) -> int:
    """Return how many arms have the published sign."""
    return sum((one.published < 0) == (one.ratio < 1) for one in found)


def _summary(found: list[Beside]) -> Iterator[str]:
    as_published, reversed_, none = ordered(found)
    yield (
        f"{signs(found)} of {len(found)} signs as published; of {as_published + reversed_ + none} pairs of arms "
        f"{as_published} in the published order, {reversed_} in the other, {none} too close to tell"
    )
    kept = [one for one in found if one.ratio >= 0.01]
    if kept:
        worst = max(kept, key=lambda one: one.factor)
        yield f"what remains differs by a factor of {worst.factor:.1f} at most ({worst.arm}), where at least 1% remains"
    if gone := [100 + one.published for one in found if one.ratio < 0.01]:
        spread = f"{min(gone):.0f}%" if min(gone) == max(gone) else f"{min(gone):.0f}% to {max(gone):.0f}%"
        arms = "1 arm" if len(gone) == 1 else f"{len(gone)} arms"
        yield f"of {arms} less than 1% remains; published: {spread}"


def _factor(value: float) -> str:
    return "over 100" if value > 100 else f"{value:.1f}"


def _section(name: str, traced: Traced, published: Table) -> Section:
    blocks: list[Line | Points] = []
    tables = []
    for metric, field in METRICS.items():
        found = beside(published, traced.prediction, metric)
        blocks += [Line(f"{metric}: {sentence}.") for sentence in _summary(found)]
        rows = [
            (
                *(one.arm, f"{one.published:+.0f}%".replace("-", "−"), change(one.ratio)),
                *(f"{change(one.low)} to {change(one.high)}", band(one.band), _factor(one.factor)),
            )
            for one in found
        ]
        head = ("pages", "published", "predicted", "over the bands", f"{field} predicted", "factor of what remains")
        tables.append(table(f"{name}: {metric}, against {published.arms[0]}", head, rows))
    seen = traced.prediction
    return Section(
        name,
        (
            Line(
                f"{traced.how} {traced.keys:,} keys, {size(seen.touched_bytes)} touched; counted: "
                f"{traced.operations:,} operations, {seen.instructions:,} instructions, {seen.accesses:,} accesses."
            ),
            *blocks,
            *tables,
        ),
    )


def document(data: dict[str, Traced]) -> Document:
    """Return the page."""
    source = load(SOURCE)
    tables = {one.name: one for one in source.tables}
    told = [(name, limit) for name, traced in data.items() for limit in traced.prediction.limits]
    shared = Counter(limit for _, limit in told)
    limits = dict.fromkeys(limit if shared[limit] == len(data) else f"{name}: {limit}" for name, limit in told)
    return Document(
        title="lpc-2024-tlb: What do base pages and huge pages leave of walk steps and misses?",
        lead=(
            Line(
                "Predicted by hugewise predict from one traced run of each server: no machine with these pages was "
                "there. The publication counted on Ampere Altra (Neoverse N1); predicted is neoverse-n1."
            ),
            Line(
                "Published changes are medians of 5 runs without a spread; predicted ones are of one trace each (n 1)."
            ),
        ),
        sections=(
            *(_section(name, traced, tables[name]) for name, traced in data.items()),
            Section("What differs", (Points(tuple(_differs(tuple(limits)))),)),
        ),
    )


def _differs(limits: tuple[str, ...]) -> Iterator[str]:
    yield ("The publication has 13,600,000 keys in 2.0 GB for each instance, and counts the kernel's walks too.")
    yield (
        "How much of the memory larger pages covered in the publication is not known here. A prediction takes all "
        "memory to be in them: its changes are the largest that can be."
    )
    yield from limits


def read(path: Path) -> dict[str, Traced]:
    """Return the data of the page. Raises UnreadableError."""
    return reading.stored(path, dict[str, Traced])


def render(data: dict[str, Traced]) -> bytes:
    """Return the content of the page."""
    return MARK + markdown(document(data)).encode()


def main(path: Path) -> None:
    """Write the page beside its data."""
    write_whole(path.with_suffix(".md"), render(read(path)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
