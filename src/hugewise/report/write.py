"""The report of a run: its sections, and its files, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from hugewise.beneath import DirFd
from hugewise.errors import StorageError
from hugewise.files import drafted, made_folder, own, sync
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.document import Block, Document, Folded, Line, Note, figures, narrow_figures
from hugewise.report.figures.theme import colours
from hugewise.report.numbers import when
from hugewise.report.remarks import differing_controls, earlier, time_short
from hugewise.report.sections import answer, beside, guests
from hugewise.report.sections.cell import cell
from hugewise.report.sections.run import left_out, levels, reading, run, settings, trouble
from hugewise.report.sentences import records, run_line


def report(results: Results) -> Document:
    """Everything, for a page or a file."""
    return Document(
        title=f"{results.study}: {results.question}",
        lead=(
            Line(f"Run `{results.run}`, {when(results.started)}. {run_line(results)}"),
            *(Note(said) for said in (*differing_controls(results), *time_short(results))),
            Line(earlier(results), quiet=True),
            *_records(results),
        ),
        sections=(
            answer.answer(results),
            settings(results),
            left_out(results),
            *guests.guests(results.guests),
            *beside.beside(results.beside),
            *levels(results),
            *(cell(results, number, one) for number, one in enumerate(results.cells, 1)),
            trouble(results),
            run(results),
            reading(results),
        ),
        top=tuple(answer.top(results)),
        about=results.study,
        page=results.study,
        heading=results.question or results.study,
        tally=answer.tally(results),
        files="report.json, attempts.csv, comparisons.csv and figures/",
        colours=colours(results),
    )


def _records(results: Results) -> Iterator[Block]:
    said = tuple(Line(record, quiet=True) for record in records(results))
    whole = results.integrity is not None and results.integrity.state in ("consistent", "unaltered")
    if said and whole and results.state not in ("running", "interrupted"):
        yield Folded("The run's records are whole", said, long=True)
    else:
        yield from said


def write(results: Results, folder: Path | str) -> dict[str, Path]:
    """Write every report of the run into `folder`, each file whole or not at all.

    Returns the paths: `html`, `markdown`, `json`, `attempts`, `comparisons`, and for each figure its key with `.svg`.
    Raises StorageError when they cannot be written, and UserError to root where the folder is another account's.
    """
    from hugewise.report import data_files  # noqa: PLC0415  (as the engines below: only for those who write a report)

    data: dict[str, tuple[str, Iterable[bytes]]] = {
        "json": ("report.json", (data_files.report_json(results),)),
        "attempts": ("attempts.csv", (line.encode() for line in data_files.attempt_lines(results))),
        "comparisons": ("comparisons.csv", (data_files.comparisons_csv(results).encode(),)),
    }
    return write_document(report(results), folder, data)


def write_document(
    document: Document, folder: Path | str, data: Mapping[str, tuple[str, Iterable[bytes]]]
) -> dict[str, Path]:
    """Write the files of `data` (key -> name and content in pieces), the document's figures, report.md and report.html.

    Returns the path of each by its key. Raises StorageError, UserError.
    """
    from hugewise.report.html import html  # noqa: PLC0415
    from hugewise.report.markdown import markdown  # noqa: PLC0415

    place, several, narrow = Path(folder), list(figures(document)), list(narrow_figures(document))
    try:
        with held_folder(place) as held:
            images.need_room()
            paths = _written(held, place, data)
            paths |= _written(held, place, {"markdown": ("report.md", (markdown(document).encode(),))})
            drawn = {figure.key: images.render(figure.spec) for figure in (*several, *narrow)}
            if several:
                with _below(held, "figures") as below:
                    files = {
                        f"{figure.key}.svg": (f"{figure.stem}.svg", (images.standalone(drawn[figure.key]).encode(),))
                        for figure in several
                    }
                    paths |= _written(below, place / "figures", files)
                    sync(_path(below))
            inline = {
                figure.key: images.inline(drawn[figure.key], name=f"figure-{figure.key}", title=figure.text)
                for figure in (*several, *narrow)
            }
            paths |= _written(held, place, {"html": ("report.html", (html(document, inline).encode(),))})
            sync(_path(held))
            return paths
    except OSError as error:
        raise StorageError(
            f"{error.filename or place}: the report cannot be written: {error.strerror or error}",
            hint="free some space or correct the folder's permissions, then: hugewise report RUN",
        ) from error


def held_folder(place: Path, what: str = "the report") -> DirFd:
    """Return the folder of what is written, made where it is not there. To root UserError where it could be another
    account's.

    The account that called sudo may own it, or what is above it: from here on nothing that it does leads elsewhere.
    Raises OSError.
    """
    for _ in range(2):  # what was not there before is looked at again
        own(place, f"{what} is not written to {place}", "write it as the account that the folder belongs to")
        made_folder(place, theirs=True)
    return DirFd.open(place.resolve())


@contextmanager
def place_below(held: DirFd, relative: str) -> Iterator[tuple[Path, tuple[int, int] | None]]:
    """Yield where a file below a held folder (`held_folder`) is written, NAME or FOLDER/NAME, and its future owner: for
    `files.drafted`. Raises OSError, StorageError.
    """
    folder, _, name = relative.rpartition("/")
    with _below(held, folder) if folder else nullcontext(held) as below:
        its = below.status()
        yield _path(below) / name, (its.st_uid, its.st_gid) if os.geteuid() == 0 and its.st_uid != 0 else None


def _below(held: DirFd, name: str) -> DirFd:
    try:
        return held.folder(name)
    except FileNotFoundError:
        made, its = held.make(name), held.status()
        theirs = os.geteuid() == 0 and its.st_uid != 0  # whom root works for
        made.hand_over(its.st_uid if theirs else None, its.st_gid if theirs else None, its.st_mode & 0o755)
        return made


def _written(folder: DirFd, called: Path, files: Mapping[str, tuple[str, Iterable[bytes]]]) -> dict[str, Path]:
    paths, its = {}, folder.status()
    owner = (its.st_uid, its.st_gid) if os.geteuid() == 0 and its.st_uid != 0 else None
    for key, (name, content) in files.items():
        paths[key] = called / name
        try:
            with drafted(_path(folder) / name, owner=owner, named=False) as file:
                file.writelines(content)
        except OSError as error:
            error.filename = str(paths[key])
            raise
    return paths


def _path(folder: DirFd) -> Path:
    return Path(f"/proc/self/fd/{folder.fileno()}")
