"""The files of a report, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hugewise.errors import StorageError
from hugewise.model.results import Results

__all__ = ["write", "write_file"]


def write(results: Results, folder: Path | str) -> dict[str, Path]:
    """Write every report of the run into `folder`, each file whole or not at all.

    Returns the paths: `html`, `markdown`, `json`, `attempts`, `comparisons`, `published` where the study restates a
    published experiment, and for each figure of
    `report.drawings` its key with `.svg` and with `.png`. Raises StorageError when they cannot be written.
    """
    # The engines of templates and figures are loaded only by those who write a report.
    from hugewise.report import csv, images, json  # noqa: PLC0415
    from hugewise.report.drawings import drawings  # noqa: PLC0415
    from hugewise.report.html import html  # noqa: PLC0415
    from hugewise.report.markdown import markdown  # noqa: PLC0415

    place = Path(folder)
    paths: dict[str, Path] = {}
    inline: dict[str, str] = {}
    linked: dict[str, tuple[str, str]] = {}
    for drawing in drawings(results):
        drawn = images.render(drawing.spec)
        alone = images.standalone(drawn)
        inline[drawing.key] = images.inline(drawn, name=f"figure-{drawing.key}", title=drawing.text)
        linked[drawing.key] = (f"figures/{drawing.stem}.svg", drawing.text)
        for kind, data in (("svg", alone.encode()), ("png", images.png(alone))):
            paths[f"{drawing.key}.{kind}"] = write_file(place / "figures" / f"{drawing.stem}.{kind}", data)
    written = [
        ("json", "report.json", json.encode(results)),
        ("attempts", "attempts.csv", csv.attempts(results).encode()),
        ("comparisons", "comparisons.csv", csv.comparisons(results).encode()),
        ("markdown", "report.md", markdown(results, linked).encode()),
        ("html", "report.html", html(results, inline).encode()),
    ]
    if results.beside is not None:
        written.append(("published", "published.csv", csv.published(results.beside).encode()))
    for key, name, data in written:
        paths[key] = write_file(place / name, data)
    return paths


def write_file(path: Path, data: bytes) -> Path:
    """Write beside the place and rename into it. Raises StorageError."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise StorageError(
            f"{path}: the report cannot be written: {error.strerror or error}",
            hint="free some space or correct the folder's permissions, then: hugewise report RUN",
        ) from error
    return path
