"""The verb `combine`: what several runs of one question say together, on the terminal or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise.analysis.combining import Combination, answer
from hugewise.stats.evidence import Combined
from hugewise.visible import printable, say, say_json

_WIDTH = 80


_HOW = {"mean": " in sum", "slow": " by its slow runs", "p99": " in its worst hundredth of runs"}


def main(runs: Sequence[Path], confidence: float | None, *, as_json: bool) -> None:
    """Print what the runs say together. Raises UserError."""
    found = answer(runs, confidence)
    if as_json:
        say_json(found)
    else:
        for line in lines(found):
            say(line.rstrip())


def lines(found: Combination) -> Iterator[str]:
    """The combination for a terminal of 80 columns; only names longer than that run over."""
    alpha = 1 - found.confidence
    yield from _wrapped(
        f"{len(found.runs)} runs together at {100 * found.confidence:.6g}% over {_comparisons(len(found.comparisons))}:"
        f" a direction needs an e-value of {1 / alpha:.6g} after e-Holm"
    )
    for one in found.comparisons:
        yield ""
        yield from _wrapped(f"{one.cell}: {one.arm} against {one.baseline}, {one.metric}, {one.end_point}")
        yield f"  {'run':<26} {'pairs':>6} {'e larger':>10} {'e smaller':>10}  leans to"
        for part in one.parts:
            yield _row(part.run, part.pairs, part.larger, part.smaller)
            if part.host:
                yield f"    on {printable(part.host)}"
        if one.direction != "refused":
            yield _row("product", sum(part.pairs for part in one.parts), one.larger, one.smaller)
        yield from _wrapped(_sentence(one), "  ")
    if found.alone:
        yield ""
        yield "Not combined"
        for text in found.alone:
            yield from _wrapped(text, "  ")
    yield ""
    yield from _wrapped(
        "The e-values say whether and in which direction, in at least one of these runs; not how much, and not that it"
        " is so everywhere. They hold if no run was left out for its result."
    )


def _comparisons(count: int) -> str:
    return f"{count} comparison{'' if count == 1 else 's'}"


def _row(name: str, pairs: int, larger: float | None, smaller: float | None) -> str:
    if larger is None or smaller is None:
        return f"  {printable(name):<26} {pairs:>6} {'-':>10} {'-':>10}"
    leans = "larger" if larger > smaller else "smaller" if smaller > larger else "neither"
    return f"  {printable(name):<26} {pairs:>6} {larger:>10.3g} {smaller:>10.3g}  {leans}"


def _sentence(one: Combined) -> str:
    if one.direction == "refused":
        return f"refused: {one.reason}"
    if one.direction == "undecided":
        return f"undecided: adjusted e-value {one.adjusted:.3g}"
    how = f"{one.direction}{_HOW.get(one.end_point, '')}"
    return f"{one.verdict}: {one.metric} is {how} (adjusted e-value {one.adjusted:.3g})"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
