"""`hugewise compare A B`: two runs, two kernels or two hosts, on the terminal or as JSON.

The verb `combine`: what several runs of one question say together, on the terminal or as JSON.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from hugewise.analysis.combining import Combination, answer
from hugewise.cli import options
from hugewise.stats.evidence import Combined
from hugewise.visible import printable, say, say_json

# Imports inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.command(short_help="Hold two runs against each other: kernels, hosts, days.")
@click.argument("first", metavar="FIRST", type=click.Path(path_type=Path), shell_complete=options.complete_runs)
@click.argument("second", metavar="SECOND", type=click.Path(path_type=Path), shell_complete=options.complete_runs)
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Show this metric too, such as 'page_*' (repeatable)."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, with every metric.")
def compare(first: Path, second: Path, metrics: Sequence[str], *, as_json: bool) -> None:
    """Hold two runs against each other: two kernels, two hosts, two days.

    First in what they differ before anything was measured; then, of each comparison that both have, whether its effect
    differs, with an interval. FIRST and SECOND are folders of runs, or of advices, whose confirmation is taken.
    """
    from hugewise.analysis.combining import compared
    from hugewise.errors import UserError
    from hugewise.report.terminal import show
    from hugewise.report.two_runs import report
    from hugewise.visible import say_json

    found = compared(_run_of(first), _run_of(second))
    unknown = [name for name in metrics if not any(name in one.metric for one in found.others) and not _pattern(name)]
    if unknown:
        known = ", ".join(sorted({one.metric for one in found.others})) or "none"
        raise UserError(f"--metric {unknown[0]}: the runs have no such metric in common", hint=f"they have: {known}")
    if as_json:
        say_json(found)
    else:
        show(report(found, metrics))


class _Confirmed(msgspec.Struct):
    """What is read of an advice."""

    confirmation_folder: str = ""
    cwd: str = ""


def _pattern(name: str) -> bool:
    return any(one in name for one in "*?[")


def _run_of(folder: Path) -> Path:
    """The run in the folder; of an advice that of its confirmation. Raises UserError where it has none."""
    from hugewise import reading
    from hugewise.advise.advice import RECORD
    from hugewise.errors import UserError

    if (folder / "run.jsonl").exists() or not (folder / RECORD).is_file():
        return folder
    try:
        found = reading.stored(folder / RECORD, _Confirmed)
    except (OSError, reading.UnreadableError) as error:
        raise UserError(f"{folder / RECORD}: no advice: {error}", hint="name the folder of a run") from None
    if not found.confirmation_folder:
        raise UserError(
            f"{folder}: the advice has no confirmation, and a screening claims nothing",
            hint=f"go on with it: hugewise advise --resume {folder}",
        )
    run = Path(found.confirmation_folder)
    return run if run.exists() else Path(found.cwd) / run  # it was named from where the advice was asked


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
