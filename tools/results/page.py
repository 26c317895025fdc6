"""A page of results to publish: what a study found, beside what was published, made from one Parquet file of its data.

    add(Path("docs/results/redhat-2021.parquet"), run)   # the run joins those that are there; the page is made again
    render(data, "redhat-2021")                          # file name -> content: the page and its figures

The data are the results of each run with every attempt, what each carries to a combination, and the forecast for what
is undecided. Everything on the page is computed from them, so that whoever has the file can make the page again. Runs
are never chosen by what they found: `add` takes each, and several are judged together by their e-values
(`analysis.combining`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from hugewise import reading
from hugewise.analysis import analysis, combining
from hugewise.analysis.forecast import Forecast, forecast
from hugewise.errors import StorageError, UserError
from hugewise.files import write_whole
from hugewise.model.results import DECIDED, Results
from hugewise.reading import UnreadableError
from hugewise.report import images, numbers
from hugewise.report.document import Block, Document, Figure, Heading, Line, Points, Section, figures, some, table
from hugewise.report.figures.effects import overview
from hugewise.report.figures.theme import colours
from hugewise.report.markdown import markdown
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words
from hugewise.report.sections import beside
from hugewise.report.sections.beside import stand_ins_of_cells
from hugewise.report.sections.run import levels
from hugewise.report.sentences import effect_of, marked
from hugewise.report.write import held_folder, place_below
from hugewise.store import folder
from hugewise.store.folder import RunFolder
from hugewise.store.log import going_on
from hugewise.study.workload import SMALL
from tools.results.answers import hours_of, pairs_of
from tools.results.claims import (
    OPEN,
    STANDINGS,
    Claimed,
    beyond,
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
from tools.results.programs import in_short
from tools.results.runs import (
    TOGETHER,
    counted,
    decided,
    delivered,
    facts,
    labels,
    measured_cells,
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

MOST_BYTES = 2_000_000
"""Limit on the data of a page: they are kept beside it under version control."""
MARK = b"<!-- Made by hugewise from the data beside it: changes are lost. -->\n\n"
_ALONE = "the comparisons of it that no later run has"
RESERVED = ("overview", "programs", "claims", "folklore")
"""Pages that are made of all others (`overview`)."""


def add(path: Path, run: Path) -> list[Path]:
    """Take the run in the folder `run`, which has ended or was broken off, into the page's data at `path`, and make the
    page again; what was written. Raises UserError where the run has not ended or is another study's, RunError,
    StorageError.
    """
    known = read(path) if path.exists() else PageData(runs=())
    found = RunFolder(run).read()
    if found.closed is None and going_on(run):
        raise UserError(f"{run} has not ended: no page is made of what is under way", hint="wait for its end")
    of = known.runs[0].results.study if known.runs else None
    if of not in {None, found.opened.study}:
        raise UserError(f"{path} is of {of}, and {run} is of {found.opened.study}", hint="name a page for each study")
    results = analysis.results_of(found)
    evidence = combining.carried(found, results) if found.study.method == "sequential" else None
    planned = None
    with contextlib.suppress(UserError):  # no method that makes verdicts, or too few pairs
        planned = forecast(found.study, [run])
    new = PageRun(results=slim(results), evidence=evidence, forecast=planned)
    return write(path, PageData(runs=newest_first(new, known.runs)))


def write(path: Path, data: PageData) -> list[Path]:
    """Return the data, the page and its figures; the paths. Nothing of another's is replaced, and nothing is written
    where anything is refused. Raises StorageError, UserError.
    """
    if path.stem in RESERVED:
        raise UserError(f"{path}: that name is the overview's", hint="name the page after its study")
    files = render(data, path.stem)
    page = path.with_suffix(".md")
    if path.exists():
        read(path)  # only a page's data are replaced
    refuse_others(page)
    try:
        with held_folder(path.parent, "the page") as held:
            with place_below(held, path.name) as (place, owner):
                folder.write_compacted(place, records(data), most=MOST_BYTES, owner=owner, called=path)
            for name, content in files.items():
                with place_below(held, name) as (place, owner):
                    write_whole(place, content, owner=owner)
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error
    return [path, *(path.parent / name for name in files)]


def made_here(page: Path) -> bool:
    """Return whether the file is a page that was made here; a link, a pipe or a device is none. Raises OSError where it
    is there and cannot be read.
    """
    try:
        with reading.opened(page) as file:
            return file.read(len(MARK)) == MARK
    except (FileNotFoundError, UnreadableError):
        return False


def refuse_others(page: Path) -> None:
    """Raises UserError where the page or the folder of its figures is there and was not made here: it is somebody's."""
    if made_here(page):
        return
    if page.with_suffix("").exists():
        raise UserError(f"{page.with_suffix('')} is there, and not a page's", hint="choose another name for the page")
    if os.path.lexists(page):
        raise UserError(
            f"{page} is there, and was not made by hugewise: it is left as it is", hint="write the page elsewhere"
        )


def render(data: PageData, name: str) -> dict[str, bytes]:
    """Return the files of the page by their paths beside its data: NAME.md, and its figures below NAME/."""
    return drawn(document(data), name)


def drawn(told: Document, name: str) -> dict[str, bytes]:
    """Return the files of a document by their paths: NAME.md, and its figures below NAME/."""
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
            Section("Verdicts", some(_overview(newest), _verdicts(newest), *stand_ins_of_cells(newest.cells))),
            *_open(newest, data.runs[0].forecast),
            *told_together(data),
            *levels(newest),
            *beside.beside(newest.beside, introduced=True),
            *_earlier(data),
            *_not_run(newest),
            Section("How it was measured", tuple(_facts(data))),
        ),
    )


def _name(results: Results) -> str:
    """Return the name of the page: its study, and the scale where it is not the default."""
    scale = results.options.get("scale", SMALL)
    return results.study if scale == SMALL else f"{results.study} at the scale {scale}"


def _lead(data: PageData) -> Iterator[str]:
    newest, several = data.runs[0].results, list(standing(data))
    yield from in_short(data)
    if len(several) > 1:
        every = decided(found for _, found in several)
        yield f"By the newest run of each, {every} comparisons have a verdict."
    if told := together_sentence(data):
        yield told
    yield outcome(newest, "The newest run" if len(data.runs) > 1 else "The run")
    if told := counted(newest):
        yield f"The guests were emulated: the verdicts are about {told}, and no figure measured here is a speed."
    if len(data.runs) > 1:
        yield f"The figures are of the newest of {len(data.runs)} runs; “{TOGETHER}” judges what several of them have."
        yield from older_cells((found, labels(found, newer_cells(data, one))) for one, found in several[1:])
    yield from other_machines([run.results for run in data.runs])
    if newest.beside is not None:
        yield from beside.introduction(newest.beside)


def _claims(data: PageData) -> Iterator[Section]:
    """Yield the published claims, each with the finding here, by their agreement."""
    if all(run.results.beside is None for run in data.runs):
        return
    blocks: list[Block] = []
    every = claims_of(data)
    for word in STANDINGS:
        found = [one for one in every if one.standing == word]
        if not found:
            continue
        blocks.append(Heading(f"{word[0].upper()}{word[1:]} ({len(found)}, cell by cell)"))
        if word != OPEN:
            within = sizes(size_of(one.row) for one in found)
            size = f"{within} published changes lie within our interval" if within else "no size is compared"
            blocks.append(Line(f"The sign of the change decides the agreement, or that there is none; {size}."))
        blocks.append(Points(claim_lines(found)))
        if word == OPEN and (takes := in_emulation(run.results for run in data.runs)):
            blocks.append(Line(takes))
    if any(beyond(one.row) for one in every) and (why := differing(data.runs[0].results)):
        blocks.append(Line(why))
    yield Section("Published, and found here", tuple(blocks) or (Line("Nothing of it was measured."),))


def _verdicts(results: Results, caption: str = "every judged comparison") -> Block:
    rows = [
        (
            *(cell.cell, comparison.arm, comparison.baseline, comparison.metric),
            *(effect_of(comparison), comparison.n, delivered(comparison), marked(comparison.verdict)),
        )
        for cell in results.cells
        for comparison in cell.judged
    ]
    head = ("cell", "policy", "baseline", "metric", "change (interval)", "pairs", "delivered", "verdict")
    return table(caption, head, rows, 4)


def _overview(results: Results) -> Figure | None:
    spec = overview(results, colours(results))
    text = "Every effect with its interval; the grey band is the margin of equivalence."
    return Figure("overview", "overview", text, spec, text) if spec else None


def _earlier(data: PageData) -> Iterator[Section]:
    """Yield the comparisons that the newest run did not have, as the newest run of each found them."""
    for one, found in standing(data):
        if one is not data.runs[0]:
            yield Section(
                older_title(found),
                (Line(outcome(one.results, f"The run of {numbers.when(found.started)}")), _verdicts(found, _ALONE)),
            )
            for section in _open(found, one.forecast):
                yield dataclasses.replace(section, title=f"{section.title}: the run of {numbers.when(found.started)}")


def _open(results: Results, planned: Forecast | None) -> Iterator[Section]:
    """Yield the undecided comparisons, with the pairs and the hours that a verdict would take."""
    rows = {(row.cell, row.arm, row.metric): row for row in (planned.rows if planned is not None else ())}
    told = [
        (
            *(cell.cell, comparison.arm, comparison.metric, comparison.n),
            *(
                *(told(rows.get((cell.cell, comparison.arm, comparison.metric))) for told in (pairs_of, hours_of)),
                in_words(comparison.reason) or NOTHING,
            ),
        )
        for cell in results.cells
        for comparison in (*cell.comparisons, *cell.declared)
        if comparison.verdict not in DECIDED
    ]
    if told:
        effect = "" if planned is None else f" of {numbers.percent(planned.effect)}"
        head = ("cell", "policy", "metric", "pairs here", f"pairs for a change{effect}", "time", "why it is open")
        yield Section("Not decided here", (table("what a verdict would take", head, told, 3),))


def claims_of(data: PageData) -> list[Claimed]:
    """Return the outcome of each published claim, by all runs of the page."""
    return claimed((run.results for run in data.runs), together_typical(data))


def _facts(data: PageData) -> Iterator[Block]:
    yield facts("the runs", ((run.results, run.derived) for run in data.runs))
    yield measured_cells("the cells that were measured", [run.results for run in data.runs])


def _not_run(results: Results) -> Iterator[Section]:
    if results.left_out:
        rows = [(part.what, part.reason) for part in results.left_out]
        yield Section("Not run", (table("left out before anything ran", ("what", "why"), rows, 2),))
