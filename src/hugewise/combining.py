"""The verb `combine`: the runs of one question, on several hosts or at several times, judged together.

What their comparisons carry is read from the folders, put together by `hugewise.stats.evidence`, and told on the
terminal or as JSON. The end points that the studies declared (mean, slow, p99) are comparisons beside the typical
ratio, and share the error rate with it. Nothing but e-values is combined: a common effect or interval would need a
model of how hosts and sessions differ, which runs like these do not give.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hugewise import analysis
from hugewise.calibration.record import identity
from hugewise.errors import UserError
from hugewise.report.sentences import printable
from hugewise.results import Comparison, Guests
from hugewise.runlog import CellRecord, Opened, RunFolder
from hugewise.stats import evidence
from hugewise.stats.end_points import END_POINTS
from hugewise.stats.evidence import TYPICAL, Carried, Combined, Source
from hugewise.study import Layout, Study

__all__ = ["Combination", "answer", "lines", "main"]

_WIDTH = 80
_HOW = {"mean": " in sum", "slow": " by its slow runs", "p99": " in its worst hundredth of runs"}


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """What several runs say together; `alone` names the comparisons that only one of them has."""

    format: int = 1
    runs: tuple[str, ...]
    confidence: float
    comparisons: tuple[Combined, ...]
    alone: tuple[str, ...]


def main(runs: Sequence[Path], confidence: float | None, *, as_json: bool) -> None:
    """Print what the runs say together. Raises UserError."""
    found = answer(runs, confidence)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
    else:
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines(found)))


def answer(runs: Sequence[Path], confidence: float | None = None) -> Combination:
    """The runs in these folders, judged together at `confidence` (default: that of their studies). Raises UserError."""
    if len(runs) < 2:
        raise UserError("one run alone has nothing to be combined with", hint="hugewise combine RUN RUN...")
    folders = [RunFolder(path) for path in runs]
    opened, asked = [folder.opened() for folder in folders], [folder.study() for folder in folders]
    _alike_enough(runs, opened, asked)
    chosen = _level(asked) if confidence is None else confidence
    carried = [_source(path, first, study) for path, first, study in zip(runs, opened, asked, strict=True)]
    found = evidence.combine(carried, 1 - chosen)
    if not found:
        raise UserError(
            "the runs have no comparison in common (cell, arm, baseline, metric and end point)",
            hint="combine runs of one study; see the comparisons of each: hugewise report RUN",
        )
    if all(one.direction == "refused" for one in found):
        one = found[0]
        raise UserError(
            f"nothing can be put together: {one.arm} against {one.baseline} on {one.cell}: {one.reason}",
            hint="combine runs of the same study, with the same design and treatments",
        )
    shared = {one.key for one in found}
    alone = [
        f"{one.arm} against {one.baseline} on {one.cell}, {one.metric}, {one.end_point}: only in {source.run}"
        for source in carried
        for one in source.comparisons
        if one.key not in shared
    ]
    return Combination(
        runs=tuple(source.run for source in carried), confidence=chosen, comparisons=found, alone=tuple(alone)
    )


def _alike_enough(runs: Sequence[Path], opened: Sequence[Opened], asked: Sequence[Study]) -> None:
    """Raises UserError where the runs cannot be put together, whatever they found."""
    for path, study in zip(runs, asked, strict=True):
        if study.method != "sequential":
            raise UserError(
                f"{path}: the method {study.method} gives no e-values", hint='combine runs with method = "sequential"'
            )
    if (same := evidence.not_separate([_unread(first) for first in opened])) is not None:
        raise UserError(same, hint="each run needs coins of its own: name different runs, made without --seed")
    if len({first.mechanism for first in opened}) > 1:
        told = ", ".join(f"{first.run} is by {first.mechanism}" for first in opened)
        raise UserError(
            f"different mechanisms are never merged: {told}", hint="combine the runs of each mechanism by themselves"
        )


def _level(asked: Sequence[Study]) -> float:
    """The confidence that all studies have. Raises UserError where they differ."""
    levels = sorted({study.confidence for study in asked})
    if len(levels) > 1:
        raise UserError(
            f"the studies have different confidences: {', '.join(f'{level:.6g}' for level in levels)}",
            hint=f"choose one, such as --confidence {levels[-1]:.6g}",
        )
    return levels[0]


def _unread(opened: Opened) -> Source:
    name = opened.host.get("name")
    host = name if isinstance(name, str) else ""
    return Source(run=opened.run, seed_hash=opened.seed_hash, host=host, comparisons=())


def _source(path: Path, opened: Opened, study: Study) -> Source:
    results = analysis.analyze(path)
    guests = results.guests
    if guests is not None and guests.counting and any(arm.attempts and not arm.initramfs for arm in guests.arms):
        raise UserError(
            f"{path}: which agent its guests had was not kept, and a count is of one agent",
            hint="run its study again, or leave it out",
        )
    cells = {cell.id: cell for cell in opened.cells}
    comparisons = [
        _carried(cells[cell.cell], one, study.design, results.guests)
        for cell in results.cells
        if cell.metric.better != "neutral"
        for one in (*cell.comparisons, *cell.end_points)
    ]
    return msgspec.structs.replace(_unread(opened), comparisons=tuple(comparisons))


def _carried(cell: CellRecord, one: Comparison, design: Layout, guests: Guests | None) -> Carried:
    arms = {arm.name: arm.treatment for arm in cell.arms}
    rules = {arm.name: cell.delivery.of(arm.judged) for arm in cell.arms}
    judged = one.verdict != "none"
    absent = "" if judged else one.reason
    if judged and (one.evidence_larger is None or one.evidence_smaller is None):
        absent = f"none was kept of its {_end_point(one)}"
    return Carried(
        cell=cell.id,
        arm=one.arm,
        baseline=one.baseline,
        metric=one.metric,
        higher_is_better=cell.metric.better == "higher",
        identity={
            "workload": cell.workload,
            "parameters": _exactly(cell.values),
            "metric": _exactly([cell.metric.unit, cell.metric.better]),
            "delivery rule": _exactly([rules[one.arm], rules[one.baseline]]),
            "treatment of the arm": identity(arms[one.arm]),
            "treatment of the baseline": identity(arms[one.baseline]),
            "design": f"{design.kind} {design.turns}" if design.kind == "crossover" else design.kind,
            "estimand": one.estimand,
        }
        | ({} if guests is None else _machines(guests, one)),
        pairs=one.n,
        larger=one.evidence_larger if judged else None,
        smaller=one.evidence_smaller if judged else None,
        absent=absent,
        end_point=_end_point(one),
    )


def _end_point(one: Comparison) -> str:
    """What is judged of the metric, as the study names it. An estimand begins with it; the design may add to that."""
    for name, kind in END_POINTS.items():
        if one.estimand.startswith(kind.estimand):
            return name
    return TYPICAL


def _machines(guests: Guests, one: Comparison) -> dict[str, str]:
    """The guests of both sides: another accelerator, kernel, backing or size makes another question.

    Where they count, so do another QEMU and another agent.
    """
    known = {arm.arm: arm for arm in guests.arms}
    origins = {kernel.name: kernel.origin for kernel in guests.kernels}

    def machine(name: str) -> str:
        arm = known[name]
        kernel = origins.get(arm.kernel, arm.sha256)
        return _exactly([kernel, arm.backing, arm.cpu_model, arm.cpus, arm.memory, arm.qemu if guests.counting else ""])

    agents = [known[name].initramfs for name in (one.arm, one.baseline)] if guests.counting else []
    return {
        "accelerator": guests.accelerator or "",
        "agent of the counts": _exactly(agents),
        "guest of the arm": machine(one.arm),
        "guest of the baseline": machine(one.baseline),
    }


def _exactly(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


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
