"""The files of a report, each whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hugewise.errors import StorageError
from hugewise.files import made_folder, own, write_whole
from hugewise.model.results import Results
from hugewise.report.document import Document, figures

__all__ = ["write", "write_document"]


def write(results: Results, folder: Path | str) -> dict[str, Path]:
    """Write every report of the run into `folder`, each file whole or not at all.

    Returns the paths: `html`, `markdown`, `json`, `attempts`, `comparisons`, `published` where the study restates a
    published experiment, and for each figure its key with `.svg` and with `.png`. Raises StorageError when they cannot
    be written, and UserError to root where the folder is another account's.
    """
    from hugewise.report import csv, json  # noqa: PLC0415  (as the engines below: only for those who write a report)
    from hugewise.report.study import report  # noqa: PLC0415

    data = {
        "json": ("report.json", json.encode(results)),
        "attempts": ("attempts.csv", csv.attempts(results).encode()),
        "comparisons": ("comparisons.csv", csv.comparisons(results).encode()),
    }
    if results.beside is not None:
        data["published"] = ("published.csv", csv.published(results.beside).encode())
    return write_document(report(results), folder, data)


def write_document(document: Document, folder: Path | str, data: Mapping[str, tuple[str, bytes]]) -> dict[str, Path]:
    """Write the document's figures, the files of `data` (key -> name and content), report.md and report.html.

    Returns the path of each by its key. Raises StorageError, UserError.
    """
    from hugewise.report import images  # noqa: PLC0415
    from hugewise.report.html import html  # noqa: PLC0415
    from hugewise.report.markdown import markdown  # noqa: PLC0415

    place = Path(folder)
    paths: dict[str, Path] = {}
    inline: dict[str, str] = {}
    for figure in figures(document):
        drawn = images.render(dict(figure.spec))
        alone = images.standalone(drawn)
        inline[figure.key] = images.inline(drawn, name=f"figure-{figure.key}", title=figure.text)
        for kind, drawing in (("svg", alone.encode()), ("png", images.png(alone))):
            paths[f"{figure.key}.{kind}"] = _write(place / "figures" / f"{figure.stem}.{kind}", drawing)
    told = {
        "markdown": ("report.md", markdown(document).encode()),
        "html": ("report.html", html(document, inline).encode()),
    }
    for key, (name, content) in {**data, **told}.items():
        paths[key] = _write(place / name, content)
    return paths


def _write(path: Path, data: bytes) -> Path:
    """Write it whole. Raises StorageError; UserError to root where the folder is another account's."""
    try:
        own(
            path.parent,
            f"the report is not written to {path.parent}",
            "write it as the account that the folder belongs to",
        )
        made_folder(path.parent)
        write_whole(path, data)
    except OSError as error:
        raise StorageError(
            f"{path}: the report cannot be written: {error.strerror or error}",
            hint="free some space or correct the folder's permissions, then: hugewise report RUN",
        ) from error
    return path
