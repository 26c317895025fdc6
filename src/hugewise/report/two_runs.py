"""Two runs held against each other, for a terminal: in what they differ, then each effect, then the levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from hugewise.model.two_runs import Aspect, EffectOfRun, LevelBeside, MetricBeside, RunDifference, TwoEffects, TwoRuns
from hugewise.report import numbers
from hugewise.report.document import Block, Document, Line, Note, Points, Section, Table, some, table
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
    "No coin chose which of the two runs came first, or what it was made on. What a coin did choose is the order of arm"
    " and baseline within each run: so each run's change is an effect, and the second's over the first's is what of the"
    " effect differs between these two runs. Whatever makes one of them faster as a whole is in both sides, and"
    " cancels.",
    "Why it differs is not known from one run a side: besides what you changed, an effect varies from boot to boot and"
    " from day to day, and no interval of two runs has that in it. Make several runs of each in turn; or make what"
    " differs an arm of one study, as a study of guests can with kernels.",
)


def report(found: TwoRuns, metrics: Sequence[str] = ()) -> Document:
    """The document. `metrics`: names or patterns of other metrics to be shown."""
    wanted = [one for one in found.others if any(fnmatchcase(one.metric, pattern) for pattern in metrics)]
    others = Section("Other metrics, by medians: not judged", tuple(_others(wanted)), key="others")
    return Document(
        title=f"{found.first.run} (first) and {found.second.run} (second)",
        lead=tuple(_lead(found)),
        sections=(
            Section("In what they differ", tuple(_differences(found)), key="differences"),
            Section("What each change is in the second run, over the first", tuple(_effects(found)), key="effects"),
            *((others,) if wanted else ()),
            Section("Levels: second over first, which nothing has randomised", tuple(_levels(found)), key="levels"),
            Section("How this is read", (Points(_READING),), key="reading"),
        ),
    )


def _lead(found: TwoRuns) -> Iterator[Block]:
    for name, run in (("first", found.first), ("second", found.second)):
        host = f"on {run.host or 'a host without a name'}, {run.kernel or 'its kernel is not known'}"
        yield Line(f"{name}: {run.study}, {host}, {numbers.when(run.started)}, {run.blocks} blocks, {run.state}")
    if not found.same_study:
        yield Note("the two runs are of different studies: see what was asked")
    if found.same_host is False:
        yield Note("they were made on different machines")


def _differences(found: TwoRuns) -> Iterator[Block]:
    if not found.differences:
        yield Line("Nothing that was recorded: study, host, kernel, settings and versions are the same.")
    for aspect, several in groupby(found.differences, key=lambda one: one.aspect):
        mine = list(several)
        yield Line(f"{_ASPECTS[aspect]}:")
        more = len(mine) - _MOST
        told = tuple(map(_difference, mine[:_MOST]))
        yield Points((*told, f"and {more} more: --json has all") if more > 0 else told)
    if found.alone:
        yield Line("only in one of them:")
        yield Points(found.alone)


def _difference(one: RunDifference) -> str:
    first, second = ("not there" if value is None else value or '""' for value in (one.first, one.second))
    return f"{one.key}: {first} / {second}"


def _effects(found: TwoRuns) -> Iterator[Block]:
    yield Line(f"All intervals of the differences hold together at {numbers.percent(found.confidence)}.", quiet=True)
    for one in found.effects:
        what = one.metric if one.end_point == TYPICAL else f"{one.metric} ({one.end_point})"
        yield Line(f"{one.cell}: {one.arm} against {one.baseline}, {what}: {_sentence(one, found.margin)}")
        yield Line(f"first {_of_run(one.first)}; second {_of_run(one.second)}", quiet=True)
        yield from (Note(f"not the same measurement: {why}") for why in one.unlike)
        if one.reason and one.relation == "not comparable":
            yield Note(one.reason)


def _of_run(one: EffectOfRun) -> str:
    return f"{numbers.effect(one.ratio, one.low, one.high)}, {one.n} pairs"


def _sentence(one: TwoEffects, margin: float) -> str:
    span = numbers.effect(one.ratio, one.low, one.high)
    if one.relation == "alike":
        return f"alike: second over first {span}, within the margin of {numbers.percent(margin)}"
    if one.relation in ("higher", "lower"):
        favour = "in favour of" if one.relation == one.better else "against"
        return f"{one.relation} in the second, {favour} {one.arm}: second over first {span}"
    return f"{one.relation}: second over first {span}"


def _others(wanted: Sequence[MetricBeside]) -> Iterator[Block]:
    for cell, several in groupby(wanted, key=lambda one: one.cell):
        rows = [
            (one.metric, one.arm, *(numbers.change(value) for value in (one.first, one.second, one.ratio)))
            for one in several
        ]
        yield table(f"{cell}: arm over baseline", ("metric", "arm", "first", "second", "second/first"), rows, numeric=2)


def _levels(found: TwoRuns) -> Iterator[Block]:
    yield Line(
        "All that differs between the runs is in these medians: hosts, days, versions. They have no interval, since the"
        " attempts of one run are no replicates of it.",
        quiet=True,
    )
    for (cell, metric), several in groupby(found.levels, key=lambda one: (one.cell, one.metric)):
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
