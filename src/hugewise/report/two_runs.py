"""Two runs held against each other, for a terminal: in what they differ, then each effect, then the levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from hugewise.model.two_runs import Aspect, EffectOfRun, LevelBeside, MetricBeside, RunDifference, TwoEffects, TwoRuns
from hugewise.report import numbers
from hugewise.report.document import Block, Document, Line, Note, Points, Section, Table, some, table
from hugewise.report.reasons import in_words
from hugewise.stats.evidence import TYPICAL

_MOST = 15  # differences of one aspect that are told; the JSON has all
_ASPECTS: dict[Aspect, str] = {
    "study": "what was asked",
    "host": "hosts",
    "page settings": "page settings before the run",
    "versions": "versions",
    "run": "how they were run",
}
_READING = (
    "No coin chose which of the two runs came first, or what it was made on. A coin chose the order of arm"
    " and baseline within each run: so each run's change is an effect, and the second's over the first's is what of the"
    " effect differs between these two runs. Whatever makes one of them faster as a whole is in both sides, and"
    " cancels.",
    "An effect varies from boot to boot and from day to day. So higher, lower and alike are said only with the spread"
    " between runs: of the earlier runs in the same results folder that differ from one of the two in nothing but keys"
    " of the study in which both agree. Make several runs of each in turn; or make what differs an arm of one study, as"
    " a study of guests can with kernels.",
)


def report(runs: TwoRuns, metrics: Sequence[str] = ()) -> Document:
    """Return the document. `metrics`: names or patterns of other metrics to be shown."""
    wanted = [metric for metric in runs.others if any(fnmatchcase(metric.metric, pattern) for pattern in metrics)]
    others = Section("Other metrics, by medians: not judged", tuple(_others(wanted)), key="others")
    return Document(
        title=f"{runs.first.run} (first) and {runs.second.run} (second)",
        lead=tuple(_lead(runs)),
        sections=(
            Section("In what they differ", tuple(_differences(runs)), key="differences"),
            Section("Each change in the second run, over the first", tuple(_effects(runs)), key="effects"),
            *((others,) if wanted else ()),
            Section("Levels: second over first, which nothing has randomised", tuple(_levels(runs)), key="levels"),
            Section("How this is read", (Points(_READING),), key="reading"),
        ),
    )


def _lead(runs: TwoRuns) -> Iterator[Block]:
    for name, run in (("first", runs.first), ("second", runs.second)):
        host = f"on {run.host or 'a host without a name'}, {run.kernel or 'its kernel is not known'}"
        yield Line(f"{name}: {run.study}, {host}, {numbers.when(run.started)}, {run.blocks} blocks, {run.state}")
    if not runs.same_study:
        yield Note("the two runs are of different studies: see what was asked")
    if runs.same_host is False:
        yield Note("they were made on different machines")


def _differences(runs: TwoRuns) -> Iterator[Block]:
    if not runs.differences:
        yield Line("Nothing that was recorded: study, host, kernel, settings and versions are the same.")
    for aspect, several in groupby(runs.differences, key=lambda one: one.aspect):
        mine = list(several)
        yield Line(f"{_ASPECTS[aspect]}:")
        more = len(mine) - _MOST
        told = tuple(map(_difference, mine[:_MOST]))
        yield Points((*told, f"and {more} more: --json has all") if more > 0 else told)
    if runs.alone:
        yield Line("only in one of them:")
        yield Points(runs.alone)


def _difference(difference: RunDifference) -> str:
    first, second = ("not there" if value is None else value or '""' for value in (difference.first, difference.second))
    return f"{difference.key}: {first} / {second}"


def _effects(runs: TwoRuns) -> Iterator[Block]:
    yield Line(f"All intervals of the differences hold together at {numbers.percent(runs.confidence)}.", quiet=True)
    for effect in runs.effects:
        what = effect.metric if effect.end_point == TYPICAL else f"{effect.metric} ({effect.end_point})"
        yield Line(f"{effect.cell}: {effect.arm} against {effect.baseline}, {what}: {_sentence(effect, runs.margin)}")
        yield Line(f"first {_of_run(effect.first)}; second {_of_run(effect.second)}", quiet=True)
        yield from (Note(f"not the same measurement: {why}") for why in effect.unlike)
        if effect.reason and effect.relation in ("spread unknown", "not comparable"):
            yield Note(in_words(effect.reason))


def _of_run(effect: EffectOfRun) -> str:
    return f"{numbers.effect(effect.ratio, effect.low, effect.high)}, {effect.n} pairs"


def _sentence(effects: TwoEffects, margin: float) -> str:
    span = numbers.effect(effects.ratio, effects.low, effects.high)
    if effects.relation == "spread unknown":
        return f"second over first {span} in these two runs alone"
    if effects.relation != "not comparable":
        span += f", over {effects.runs[0]} and {effects.runs[1]} runs"
    if effects.relation == "alike":
        return f"alike: second over first {span}, within the margin of {numbers.percent(margin)}"
    if effects.relation in ("higher", "lower"):
        favour = "in favour of" if effects.relation == effects.better else "against"
        return f"{effects.relation} in the second, {favour} {effects.arm}: second over first {span}"
    return f"{effects.relation}: second over first {span}"


def _others(wanted: Sequence[MetricBeside]) -> Iterator[Block]:
    for cell, several in groupby(wanted, key=lambda one: one.cell):
        rows = [
            (one.metric, one.arm, *(numbers.change(value) for value in (one.first, one.second, one.ratio)))
            for one in several
        ]
        yield table(f"{cell}: arm over baseline", ("metric", "arm", "first", "second", "second/first"), rows, numeric=2)


def _levels(runs: TwoRuns) -> Iterator[Block]:
    yield Line(
        "All that differs between the runs is in these medians: hosts, days, versions. The medians have no interval,"
        " since the attempts of one run are no replicates of it.",
        quiet=True,
    )
    for (cell, metric), several in groupby(runs.levels, key=lambda one: (one.cell, one.metric)):
        mine = list(several)
        reason = next((one.reason for one in mine if one.reason), "")
        yield from some(_level_table(cell, metric, mine), Note(reason) if reason else None)


def _level_table(cell: str, metric: str, mine: Sequence[LevelBeside]) -> Table:
    unit = numbers.scale(mine[0].unit, [value for one in mine for value in (one.first.median, one.second.median)])
    rows = [
        (one.first.arm, unit.number(one.first.median), unit.number(one.second.median), numbers.change(one.ratio))
        for one in mine
    ]
    return table(f"{cell}: median {metric}, {unit.unit}", ("arm", "first", "second", "second/first"), rows)
