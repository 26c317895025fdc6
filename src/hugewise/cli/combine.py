"""The verb `combine`: what several runs of one question say together, on the terminal or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise.analysis.combining import Combination, answer
from hugewise.errors import UserError
from hugewise.report.reasons import in_words, worded
from hugewise.stats.evidence import Combined
from hugewise.visible import printable, say, say_json

_WIDTH = 80


_HOW = {"mean": " in sum", "slow": " by its slow runs", "p99": " in its worst hundredth of runs"}


def main(runs: Sequence[Path], confidence: float | None, *, as_json: bool) -> None:
    """Print what the runs say together. Raises UserError."""
    found = answer(runs, confidence)
    if all(one.direction == "refused" for one in found.comparisons):
        one = found.comparisons[0]
        raise UserError(
            f"nothing can be put together: {one.arm} against {one.baseline} on {one.cell}: {in_words(one.reason)}",
            hint="combine runs of the same study, with the same design and treatments",
        )
    if as_json:
        say_json(worded(found))
    else:
        for line in lines(found):
            say(line.rstrip())


def lines(combination: Combination) -> Iterator[str]:
    """Yield the combination for a terminal of 80 columns; only names longer than that run over."""
    alpha = 1 - combination.confidence
    yield from _wrapped(
        f"{len(combination.runs)} runs together at {100 * combination.confidence:.6g}% over"
        f" {_comparisons(len(combination.comparisons))}:"
        f" a direction needs an e-value of {1 / alpha:.6g} after e-Holm"
    )
    for comparison in combination.comparisons:
        yield ""
        yield from _wrapped(
            f"{comparison.cell}: {comparison.arm} against {comparison.baseline}, {comparison.metric},"
            f" {comparison.end_point}"
        )
        yield f"  {'run':<26} {'pairs':>6} {'e larger':>10} {'e smaller':>10}  leans to"
        for part in comparison.parts:
            yield _row(part.run, part.pairs, part.larger, part.smaller)
            if part.host:
                yield f"    on {printable(part.host)}"
        if comparison.direction != "refused":
            yield _row("product", sum(part.pairs for part in comparison.parts), comparison.larger, comparison.smaller)
        yield from _wrapped(_sentence(comparison), "  ")
    if combination.alone:
        yield ""
        yield "Not combined"
        for text in combination.alone:
            yield from _wrapped(text, "  ")
    yield ""
    yield from _wrapped(
        "The e-values say whether and in which direction, in at least one of these runs; not how much, and not that it"
        " is so everywhere. The results hold if no run was left out for its result."
    )


def _comparisons(count: int) -> str:
    return f"{count} comparison{'' if count == 1 else 's'}"


def _row(name: str, pairs: int, larger: float | None, smaller: float | None) -> str:
    if larger is None or smaller is None:
        return f"  {printable(name):<26} {pairs:>6} {'-':>10} {'-':>10}"
    leans = "larger" if larger > smaller else "smaller" if smaller > larger else "neither"
    return f"  {printable(name):<26} {pairs:>6} {larger:>10.3g} {smaller:>10.3g}  {leans}"


def _sentence(combined: Combined) -> str:
    if combined.direction == "refused":
        return f"refused: {in_words(combined.reason)}"
    if combined.direction == "undecided":
        return f"undecided: adjusted e-value {combined.adjusted:.3g}"
    how = f"{combined.direction}{_HOW.get(combined.end_point, '')}"
    return f"{combined.verdict}: {combined.metric} is {how} (adjusted e-value {combined.adjusted:.3g})"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
