"""The files of a report, each whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hugewise.beneath import Folder
from hugewise.errors import StorageError
from hugewise.files import drafted, made_folder, own, sync
from hugewise.model.results import Results
from hugewise.report.document import Document, figures
from hugewise.report.drawing import Drawing, begun, drawn

__all__ = ["held_folder", "write", "write_document"]

FIGURES = "figures"
_OF_A_CELL = 9  # figures, about


def write(results: Results, folder: Path | str) -> dict[str, Path]:
    """Write every report of the run into `folder`, each file whole or not at all.

    Returns the paths: `html`, `markdown`, `json`, `attempts`, `comparisons`, `published` where the study restates a
    published experiment, and for each figure its key with `.svg` and with `.png`. Raises StorageError when they cannot
    be written, and UserError to root where the folder is another account's.
    """
    from hugewise.report import csv, json  # noqa: PLC0415  (as the engines below: only for those who write a report)
    from hugewise.report.study import report  # noqa: PLC0415

    data: dict[str, tuple[str, Iterable[bytes]]] = {
        "json": ("report.json", (json.encode(results),)),
        "attempts": ("attempts.csv", (some.encode() for some in csv.attempt_lines(results))),
        "comparisons": ("comparisons.csv", (csv.comparisons(results).encode(),)),
    }
    if results.beside is not None:
        data["published"] = ("published.csv", (csv.published(results.beside).encode(),))
    with begun(len(results.cells) * _OF_A_CELL) as drawing:
        return write_document(report(results), folder, data, drawing)


def write_document(
    document: Document,
    folder: Path | str,
    data: Mapping[str, tuple[str, Iterable[bytes]]],
    drawing: Drawing | None = None,
) -> dict[str, Path]:
    """Write the files of `data` (key -> name and content in pieces), the document's figures, report.md and report.html.

    Each is written as it is made: of a large run none has to stay in memory beside what draws the figures (`drawing`,
    where that is `begun`). Returns the path of each by its key. Raises StorageError, UserError.
    """
    from hugewise.report import images  # noqa: PLC0415
    from hugewise.report.html import html  # noqa: PLC0415
    from hugewise.report.markdown import markdown  # noqa: PLC0415

    place, several = Path(folder), list(figures(document))
    with _errors(place), held_folder(place) as held:
        images.need_room()
        inline: dict[str, str] = {}
        # Maybe beside this process, which has other things to write meanwhile.
        with drawn([dict(figure.spec) for figure in several], drawing) as drawings:
            paths = _written(held, place, data)
            paths |= _written(held, place, {"markdown": ("report.md", (markdown(document).encode(),))})
            if several:
                with _below(held, FIGURES) as below:
                    for figure, made in zip(several, drawings, strict=True):
                        inline[figure.key] = images.inline(made.svg, name=f"figure-{figure.key}", title=figure.text)
                        alone = images.standalone(made.svg)
                        files = {
                            f"{figure.key}.{kind}": (f"{figure.stem}.{kind}", (content,))
                            for kind, content in (("svg", alone.encode()), ("png", made.png or images.png(alone)))
                        }
                        paths |= _written(below, place / FIGURES, files)
                    _sync(below)
        paths |= _written(held, place, {"html": ("report.html", (html(document, inline).encode(),))})
        _sync(held)
        return paths


@contextmanager
def _errors(place: Path) -> Iterator[None]:
    """What the system refuses is a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{error.filename or place}: the report cannot be written: {error.strerror or error}",
            hint="free some space or correct the folder's permissions, then: hugewise report RUN",
        ) from error


def held_folder(place: Path, what: str = "the report") -> Folder:
    """The folder of what is written, made where it is not there. To root UserError where it could be another account's.

    The account that called sudo may own it, or what is above it: from here on nothing that it does leads elsewhere.
    Raises OSError.
    """
    for _ in range(2):  # what was not there before is looked at again
        own(place, f"{what} is not written to {place}", "write it as the account that the folder belongs to")
        made_folder(place, theirs=True)
    return Folder.open(place.resolve())


def _below(held: Folder, name: str) -> Folder:
    """A folder in it, which is no link and belongs to the same account. Raises OSError, StorageError."""
    try:
        return held.folder(name)
    except FileNotFoundError:
        made, its = held.make(name), held.status()
        theirs = os.geteuid() == 0 and its.st_uid != 0  # whom root works for
        made.hand_over(its.st_uid if theirs else None, its.st_gid if theirs else None, its.st_mode & 0o755)
        return made


def _written(folder: Folder, called: Path, files: Mapping[str, tuple[str, Iterable[bytes]]]) -> dict[str, Path]:
    """Write the files (name and content in pieces by key), each whole; the path of each. Raises OSError that names it.

    In a folder of whom root works for, they are theirs. Their names are on disk when the folder is synced.
    """
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


def _sync(folder: Folder) -> None:
    sync(_path(folder))


def _path(folder: Folder) -> Path:
    """The folder that is held, wherever it is called."""
    return Path(f"/proc/self/fd/{folder.fileno()}")
