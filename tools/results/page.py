"""A page of results to publish: what a study found, beside what was published, made from one Parquet file of its data.

    add(Path("docs/results/redhat-2021.parquet"), run)   # the run joins those that are there; the page is made again
    render(data, "redhat-2021")                          # file name -> content: the page and its figures

The data are the results of each run with every attempt, what each carries to a combination, and the forecast for what
is undecided. Everything on the page is computed from them, so that whoever has the file can make the page again. Runs
are never chosen by what they found: `add` takes each, and several are judged together by their e-values
(`analysis.combining`).

Which of the metrics that a study declared carries a claim on an arm: for pages of results. Pure.

A rate and its cost are two views of the same attempts, judged apart, and on a machine with other work beside one of
them may be decided long before the other. A reader of a page is told which it was, and that the other was not.

Whether what a pilot or an earlier run forecast came out: the spread of pairs, on which every planned number rests,
and the pairs and hours of a verdict.

The interval of the forecast is that of the earlier run's spread alone (95%), as `analysis.forecast` gives it. The
later run's own spread has its error too, so that with few pairs a figure outside is no proof of a change. Pairs are
forecast for a change as large as the margin: a larger one takes fewer.

Pilots of a page's study, and what they and the runs have forecast. Nothing is judged by a pilot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise.analysis import analysis, budget, combining
from hugewise.analysis.forecast import TYPICAL, Forecast, Row, forecast, pilot_name
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.files import made_folder, write_whole
from hugewise.model.results import CellResult, Comparison, Results, Verdict
from hugewise.quantity import format_duration
from hugewise.report import images, numbers, remarks
from hugewise.report.document import Block, Document, Figure, Heading, Line, Points, Section, figures, some, table
from hugewise.report.figures.effects import overview
from hugewise.report.figures.theme import colours
from hugewise.report.markdown import markdown
from hugewise.report.numbers import NOTHING
from hugewise.report.sections import beside
from hugewise.report.sections.beside import stand_ins_of_cells
from hugewise.report.sections.levels import levels
from hugewise.report.sentences import SYMBOLS, effect_of
from hugewise.store import folder
from hugewise.store.folder import RunFolder
from hugewise.store.records import Run
from hugewise.study.load import with_budget
from hugewise.study.study import Study
from hugewise.study.workload import SMALL
from tools.results import first_cells
from tools.results.claims import (
    OPEN,
    STANDINGS,
    Claimed,
    beyond,
    claim_line,
    claim_lines,
    claimed,
    differing,
    in_emulation,
    size_of,
    sizes,
)
from tools.results.data import (
    PageData,
    PageRun,
    newest_first,
    read,
    records,
    slim,
)
from tools.results.first_cells import CellList, first_cells_section, missed, unmeasured
from tools.results.programs import in_short
from tools.results.runs import (
    TOGETHER,
    counted,
    decided,
    delivered,
    derived,
    facts,
    labels,
    measured_cells,
    named_stand_ins,
    newer_cells,
    older_cells,
    older_title,
    other_machines,
    outcome,
    standing,
    together_sentence,
    together_typical,
    told_together,
)

_WITH_VERDICT = ("better", "worse", "equivalent")


def carried(results: Results) -> Iterator[Section]:
    """A section, where cells judge more than one metric: of each arm every metric, and those that are decided."""
    rows = [
        (cell.cell, arm, *map(_told, (own, beside)), _carrying((*own, *beside)))
        for cell in results.cells
        if cell.declared
        for arm, own, beside in _by_arm(cell)
    ]
    if rows:
        head = ("cell", "policy", "its metric", "declared beside it", "what carries a claim")
        yield Section("Which metric carries a claim", (table("metrics of the same attempts", head, rows, 5),))


def _by_arm(cell: CellResult) -> Iterator[tuple[str, list[Comparison], list[Comparison]]]:
    for arm in dict.fromkeys(one.arm for one in cell.comparisons):
        yield (
            arm,
            [one for one in cell.comparisons if one.arm == arm],
            [one for one in cell.declared if one.arm == arm],
        )


def _told(several: list[Comparison]) -> str:
    return "; ".join(f"{one.metric} {effect_of(one)}: {SYMBOLS[one.verdict]} {one.verdict}" for one in several)


def _carrying(several: tuple[Comparison, ...]) -> str:
    found = [f"{one.metric} ({one.verdict})" for one in several if one.verdict in _WITH_VERDICT]
    return ", ".join(found) or "none of them"


_OF = ("cell", "policy", "metric", "by")
_DECIDED = {"better", "worse", "equivalent"}


Key = tuple[str, str, str]
"""A cell, an arm and a metric."""


class Foretelling(NamedTuple):
    """A run with its forecast. A pilot foretells others, and nothing is judged by it: it has no `verdicts`, which are
    by cell, arm and metric.
    """

    forecast: Forecast
    verdicts: Mapping[Key, Verdict] = {}
    pilot: bool = False


class _Held(NamedTuple):
    """A comparison of a run beside what was forecast of it before."""

    before: Row
    after: Row
    verdict: Verdict | None
    by: str


def foretold(told: Sequence[Foretelling]) -> Iterator[Block]:
    """Tables of every comparison of a run that a pilot or a run before it has too; `told`: the newest first."""
    held = list(_comparisons(told))
    if held:
        head = ("pairs before", "spread forecast (95%)", "pairs after", "spread found", "came out")
        rows = [(*_named(one), *_spreads(one)) for one in held]
        yield table("how much pairs differ: as forecast before, and as it was", (*_OF, *head), rows, 4)
    taken = [(*_named(one), *_taken(one)) for one in held if one.before.needed is not None]
    if taken:
        beside = ("pairs forecast", "time forecast", "pairs taken", "time taken", "verdict", "came out")
        caption = "pairs and time of a verdict: as forecast for a change as large as the margin, and as they were"
        yield table(caption, (*_OF, *beside), taken, 4)


def _comparisons(told: Sequence[Foretelling]) -> Iterator[_Held]:
    """Each comparison of the newest run that has its spread, beside the newest forecast before it."""
    seen: set[Key] = set()
    for place, one in enumerate(told):
        for row in () if one.pilot else one.forecast.rows:
            key = (row.cell, row.arm, row.metric)
            if key in seen or (after := _row(one.forecast, key)) is None:
                continue
            seen.add(key)
            for earlier in told[place + 1 :]:
                if (before := _row(earlier.forecast, key)) is not None:
                    yield _Held(before, after, one.verdicts.get(key), "a pilot" if earlier.pilot else "a run")
                    break


def _row(one: Forecast, key: Key) -> Row | None:
    typical = (row for row in one.rows if row.end_point == TYPICAL and row.sd is not None)
    return next((row for row in typical if (row.cell, row.arm, row.metric) == key), None)


def _named(one: _Held) -> tuple[str, str, str, str]:
    return one.after.cell, one.after.arm, one.after.metric, one.by


def _spreads(one: _Held) -> tuple[object, ...]:
    before, after = one.before, one.after
    return before.pairs, remarks.spread(before), after.pairs, _percent(after.sd), _word(before, after)


def _percent(sd: float | None) -> str:
    """A spread of log-ratios as the change that it is."""
    return NOTHING if sd is None else numbers.share(math.expm1(sd))


def _word(earlier: Row, later: Row) -> str:
    if earlier.sd_low is None or earlier.sd_high is None or later.sd is None:
        return NOTHING
    if later.sd > earlier.sd_high:
        return "noisier"
    return "quieter" if later.sd < earlier.sd_low else "yes"


def _taken(one: _Held) -> tuple[object, ...]:
    after = one.after
    time = remarks.UNKNOWN if after.seconds is None else format_duration(after.pairs * after.seconds)
    forecast = f"{one.before.needed:,}", remarks.hours(one.before)
    return *forecast, f"{after.pairs:,}", time, one.verdict or remarks.UNKNOWN, _came_out(one)


def _came_out(one: _Held) -> str:
    """Whether a verdict was there within the pairs that were forecast: fewer are no failure of the forecast, which is
    for a change as large as the margin.
    """
    needed = one.before.needed or 0
    if one.verdict not in _DECIDED:
        return "ended before" if one.after.pairs < needed else "not decided by then"
    if one.after.pairs < needed:
        larger = one.verdict != "equivalent"
        return "decided sooner: larger effects than the margin take fewer pairs" if larger else "decided sooner"
    return "decided with as many" if one.after.pairs == needed else "decided later: it took more"


def pilots_beside(run: Path, found: Run) -> list[Path]:
    """The pilots of the run's study in the same folder of results."""
    folder = run.absolute().parent.parent / pilot_name(found.opened.study)
    return sorted(folder.iterdir()) if folder.is_dir() else []


def with_pilot(data: PageData, path: Path, found: Run) -> PageData:
    """With the forecast that a pilot gives for the page's newest run: its method, and its blocks and time. Raises
    UserError where there is none for it to foretell, or it forecasts nothing.
    """
    if not data.runs:
        raise UserError(
            f"{found.path} is a pilot: nothing is judged by it, and {path} has no run that it could foretell",
            hint="add the run first: a pilot in the same folder of results joins with it",
        )
    newest = data.runs[0].results
    scale = newest.options.get("scale", SMALL)
    if found.study.scale != scale:
        raise UserError(
            f"{found.path} is at the scale {found.study.scale}, and {path} at {scale}",
            hint="name a page for each scale",
        )
    if found.closed is None:
        raise UserError(f"{found.path} has not ended", hint=f"hugewise resume {found.path}")
    budget = newest.options["budget"]
    study = with_budget(found.study, budget["blocks"], budget["time"])
    study = msgspec.structs.replace(study, name=newest.study, method=newest.options["method"])
    results = msgspec.structs.replace(slim(analysis.results_of(found)), attempts=())
    new = PageRun(results=results, forecast=forecast(study, [found.path]))
    return msgspec.structs.replace(data, pilots=newest_first(new, data.pilots))


def foretelling(data: PageData) -> Iterator[Section]:
    """What runs and pilots before them forecast, beside what was found."""
    every = [(one, False) for one in data.runs] + [(one, True) for one in data.pilots]
    every.sort(key=lambda one: one[0].results.started, reverse=True)
    blocks = tuple(
        foretold(
            [
                Foretelling(one.forecast, {} if pilot else _verdicts_of(one.results), pilot)
                for one, pilot in every
                if one.forecast is not None
            ]
        )
    )
    if blocks:
        yield Section("How the forecast came out", blocks)


def _verdicts_of(results: Results) -> dict[tuple[str, str, str], Verdict]:
    return {
        (cell.cell, one.arm, one.metric): one.verdict
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
    }


MOST_BYTES = 2_000_000
"""Of the data of a page: they are kept beside it under version control."""
MARK = b"<!-- Made by hugewise from the data beside it: changes are lost. -->\n\n"
RESERVED = ("overview", "folklore")
"""Pages that are made of all others (`overview`)."""


def add(path: Path, run: Path, whole: Study | None = None, listed: CellList | None = None) -> list[Path]:
    """Take the ended run in the folder `run` into the page's data at `path`, and make the page again; what was written.

    A pilot of the page's study joins as such, and a run brings those that lie beside it: a forecast, and no more.

    whole   the study of which the run measured a part, where that is known: its other cells are named as not run
    listed  what is to be measured first
    Raises UserError where the run has not ended or is another study's, RunError, StorageError.
    """
    known = read(path) if path.exists() else PageData(runs=())
    found = RunFolder(run).read()
    if found.closed is None:
        raise UserError(f"{run} has not ended: no page is made of what is under way", hint=f"hugewise resume {run}")
    of = known.runs[0].results.study if known.runs else None
    if found.opened.study == pilot_name(of or (whole.name if whole else "")):
        return write(path, renewed(with_pilot(known, path, found), whole, listed))
    if of not in {None, found.opened.study}:
        raise UserError(f"{path} is of {of}, and {run} is of {found.opened.study}", hint="name a page for each study")
    results = analysis.results_of(found)
    evidence = combining.carried(found, results) if found.study.method == "sequential" else None
    planned = None
    with contextlib.suppress(UserError):  # no method that makes verdicts, or too few pairs (`renewed`)
        planned = forecast(found.study, [run])
    new = PageRun(results=slim(results), evidence=evidence, forecast=planned)
    data = msgspec.structs.replace(known, runs=newest_first(new, known.runs))
    for pilot in pilots_beside(run, found):
        with contextlib.suppress(HugewiseError):  # it was no part of what was asked for
            data = with_pilot(data, path, RunFolder(pilot).read())
    return write(path, renewed(data, whole, listed))


def renewed(data: PageData, whole: Study | None = None, listed: CellList | None = None) -> PageData:
    """The data with all that is computed by now from the runs, and from the `whole` study where that is known, with
    what is `listed` of it. Raises StudyError where that is not in the study.
    """
    runs = tuple(
        msgspec.structs.replace(
            one, forecast=budget.completed(one.forecast, one.results), results=named_stand_ins(one.results)
        )
        for one in data.runs
    )
    if whole is None:
        return msgspec.structs.replace(data, runs=runs)
    runs = tuple(msgspec.structs.replace(one, derived=derived(one.results, whole)) for one in runs)
    first = data.first if listed is None else first_cells.of_study(listed, whole)
    others = unmeasured(whole, _measured(runs))
    return msgspec.structs.replace(data, runs=runs, unmeasured=others, first=first)


def _measured(runs: Sequence[PageRun]) -> dict[str, tuple[Row, ...]]:
    """The cells that were measured, each with its forecast from the newest run of it."""
    return {
        cell.cell: () if one.forecast is None else tuple(_typical(one.forecast, cell.cell))
        for one in reversed(runs)
        for cell in one.results.cells
    }


def _typical(planned: Forecast, cell: str) -> Iterator[Row]:
    return (row for row in planned.rows if row.cell == cell and row.end_point == TYPICAL)


def write(path: Path, data: PageData) -> list[Path]:
    """The data, the page and its figures; the paths. Nothing of another's is replaced, and nothing is written where
    anything is refused. Raises StorageError, UserError.
    """
    if path.stem in RESERVED:
        raise UserError(f"{path}: that name is the overview's", hint="name the page after its study")
    files = {path.parent / name: content for name, content in render(data, path.stem).items()}
    page = path.with_suffix(".md")
    if path.exists():
        read(path)  # only a page's data are replaced
    if path.with_suffix("").exists() and not made_here(page):
        raise UserError(f"{path.with_suffix('')} is there, and not a page's", hint="choose another name for the page")
    refuse_others(page)
    try:
        made_folder(path.parent)
        folder.write_compacted(path, records(data), most=MOST_BYTES)
        for place, content in files.items():
            made_folder(place.parent)
            write_whole(place, content)
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error
    return [path, *files]


def made_here(page: Path) -> bool:
    """Whether the file is a page that was made here. Raises OSError where it is there and cannot be read."""
    try:
        with page.open("rb") as file:
            return file.read(len(MARK)) == MARK
    except FileNotFoundError:
        return False


def refuse_others(page: Path) -> None:
    """Raises UserError where a file is there that was not made here: it is somebody's."""
    if page.exists() and not made_here(page):
        raise UserError(
            f"{page} is there, and was not made by hugewise: it is left as it is", hint="write the page elsewhere"
        )


def render(data: PageData, name: str) -> dict[str, bytes]:
    """The files of the page by their paths beside its data: NAME.md, and its figures below NAME/."""
    told = document(data)
    files = {f"{name}.md": MARK + markdown(told, figures=name).encode()}
    for figure in figures(told):
        files[f"{name}/{figure.stem}.svg"] = images.standalone(images.render(dict(figure.spec))).encode()
    return files


def document(data: PageData) -> Document:
    """The page: what was asked and where, what agrees with the publication, every verdict, what stays open."""
    newest = data.runs[0].results
    return Document(
        title=f"{_name(newest)}: {newest.question}",
        lead=tuple(map(Line, _lead(data))),
        sections=(
            *_claims(data),
            *_first(data),
            Section("Verdicts", some(_overview(newest), _verdicts(newest), *stand_ins_of_cells(newest.cells))),
            *carried(newest),
            *_open(newest, data.runs[0].forecast),
            *told_together(data),
            *foretelling(data),
            *levels(newest),
            *beside.beside(newest.beside, introduced=True),
            *_earlier(data),
            *_not_run(newest, data),
            Section("How it was measured", tuple(_facts(data))),
        ),
    )


def _name(results: Results) -> str:
    """Of the page: its study, and the scale where that is none that a study has by itself."""
    scale = results.options.get("scale", SMALL)
    return results.study if scale == SMALL else f"{results.study} at the scale {scale}"


def _lead(data: PageData) -> Iterator[str]:
    newest, several = data.runs[0].results, list(standing(data))
    yield from in_short(data)
    if len(several) > 1:
        every = decided(found for _, found in several)
        yield f"{every} comparisons were decided, each as the newest run of it found it."
    if told := together_sentence(data):
        yield told
    yield f"{'Of the newest run: ' if len(data.runs) > 1 else ''}{outcome(newest)}"
    if told := counted(newest):
        yield f"Its guests were emulated: what was judged is {told}, and nothing here tells what is faster."
    if len(data.runs) > 1:
        yield f"The figures are of the newest of {len(data.runs)} runs; “{TOGETHER}” judges what several of them have."
        yield from older_cells((found, labels(found, newer_cells(data, one))) for one, found in several[1:])
    yield from other_machines([one.results for one in data.runs])
    if newest.beside is not None:
        yield from beside.introduction(newest.beside)


def _claims(data: PageData) -> Iterator[Section]:
    """What was published, each with what was found here, by how they agree."""
    if all(one.results.beside is None for one in data.runs):
        return
    blocks: list[Block] = []
    every = claims_of(data)
    for word in STANDINGS:
        found = [one for one in every if one.standing == word]
        if not found:
            continue
        count = len({(claim_line(one.row), one.agrees) for one in found})
        blocks.append(Heading(f"{word[0].upper()}{word[1:]} ({count})"))
        if word != OPEN:
            within = sizes(size_of(one.row) for one in found)
            size = f"published changes within our interval: {within}" if within else "no size is compared"
            blocks.append(Line(f"That is of the sign; {size}."))
        blocks.append(Points(claim_lines(found)))
        if word == OPEN and (takes := in_emulation(one.results for one in data.runs)):
            blocks.append(Line(takes))
    blocks += beside.exactly(one.row for one in every)
    if any(beyond(one.row) for one in every) and (why := differing(data.runs[0].results)):
        blocks.append(Line(why))
    yield Section("Published, and found here", tuple(blocks) or (Line("Nothing of it was measured."),))


def _verdicts(results: Results) -> Block:
    rows = [
        (
            *(cell.cell, one.arm, one.baseline, one.metric),
            *(effect_of(one), one.n, delivered(one), f"{SYMBOLS[one.verdict]} {one.verdict}"),
        )
        for cell in results.cells
        for one in cell.judged
    ]
    head = ("cell", "policy", "baseline", "metric", "change (interval)", "pairs", "delivered", "verdict")
    return table("every judged comparison", head, rows, 4)


def _overview(results: Results) -> Figure | None:
    spec = overview(results, colours(results))
    text = "Every effect with its interval; the grey band is the margin of equivalence."
    return Figure("overview", "overview", text, spec, text) if spec else None


def _earlier(data: PageData) -> Iterator[Section]:
    """The comparisons that the newest run did not have, as the newest run of each found them."""
    for one, found in standing(data):
        if one is not data.runs[0]:
            yield Section(
                older_title(found),
                (Line(f"Of that run as a whole: {outcome(one.results)}"), _verdicts(found)),
            )
            newer = newer_cells(data, one)
            whole = msgspec.structs.replace(found, cells=tuple(cell for cell in found.cells if cell.cell not in newer))
            for section in (*carried(found), *_open(found, one.forecast), *levels(whole)):
                of = f"{section.title}: the run of {numbers.when(found.started)}"
                yield dataclasses.replace(section, title=of)


def _open(results: Results, planned: Forecast | None) -> Iterator[Section]:
    """What is undecided, with the pairs and the hours that a verdict would take."""
    typical = [row for row in planned.rows if row.end_point == TYPICAL] if planned is not None else []
    rows = {(row.cell, row.arm, row.metric): row for row in typical}
    told = [
        (
            *(cell.cell, one.arm, one.metric, one.n),
            *(*_needed(rows.get((cell.cell, one.arm, one.metric))), one.reason or NOTHING),
        )
        for cell in results.cells
        for one in (*cell.comparisons, *cell.declared)
        if one.verdict in {"undecided", "none"}
    ]
    if told:
        effect = "" if planned is None else f" of {numbers.percent(planned.effect)}"
        head = ("cell", "policy", "metric", "pairs here", f"pairs for a change{effect}", "time", "why it is open")
        yield Section("Not decided here", (table("what a verdict would take", head, told, 3),))


def _needed(row: Row | None) -> tuple[str, str]:
    return remarks.pairs(row), remarks.hours(row)


def _first(data: PageData) -> Iterator[Section]:
    """The cells that were to be measured first."""
    together = {(one.cell, one.arm, one.metric): one.verdict for one in together_typical(data)}
    planned: dict[tuple[str, str, str], Row] = {}
    for one in reversed(data.runs):  # the newest that has a forecast of it: a later run may have other arms
        for row in one.forecast.rows if one.forecast is not None else ():
            key = (row.cell, row.arm, row.metric)
            if row.end_point == TYPICAL and (row.needed is not None or key not in planned):
                planned[key] = row
    runs = [one.results for one in data.runs]
    yield from first_cells_section(data.first, runs, together, planned, data.unmeasured)


def claims_of(data: PageData) -> list[Claimed]:
    """What became of each published claim, by all runs of the page."""
    return claimed((one.results for one in data.runs), together_typical(data))


def _facts(data: PageData) -> Iterator[Block]:
    yield facts("the runs", ((one.results, one.derived) for one in data.runs))
    yield measured_cells("the cells that were measured", [one.results for one in data.runs])
    if data.pilots:
        yield Line("A pilot is measured to plan from: what it forecast stands above, and nothing is judged by it.")
        yield facts("the pilots", ((one.results, "") for one in data.pilots))


def _not_run(results: Results, data: PageData) -> Iterator[Section]:
    blocks: list[Block] = [*missed(data.unmeasured)]
    if results.left_out:
        rows = [(one.what, one.reason) for one in results.left_out]
        blocks.append(table("left out before anything ran", ("what", "why"), rows, 2))
    if blocks:
        yield Section("Not run", tuple(blocks))
