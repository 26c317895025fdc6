"""Measurements made elsewhere: what is read from their files, and which reader knows a file.

A reader is one file under `importers/`, found by being there: it has

    NAME, DESCRIPTION
    recognises(head: bytes) -> bool            from the first 64 KiB of the file
    read(path: Path, ask: Ask) -> list[Series]  raises DataError

Readers recognise content, never file names, and no content is recognised by two of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hugewise.errors import UserError
from hugewise.metric import Direction, Metric

__all__ = [
    "Ask",
    "DataError",
    "Importer",
    "Labels",
    "Numbers",
    "Series",
    "discover",
    "head_of",
    "load",
    "recognise",
    "text_of",
]

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]

_HEAD = 1 << 16


class DataError(UserError):
    """A file of measurements that cannot be used: `file: line N: message`, and the cure."""

    def __init__(self, message: str, *, file: Path | str, where: str | None = None, hint: str | None = None) -> None:
        place = f"{file}: {where}" if where else str(file)
        super().__init__(f"{place}: {message}", hint=hint)


@dataclass(frozen=True)
class Ask:
    """What the user said about the files; names are those of columns in CSV and Parquet files."""

    value: str | None = None
    arm_column: str | None = None
    block: str | None = None
    order: str | None = None
    session: str | None = None
    slot: str | None = None
    run: str | None = None
    unit: str | None = None
    better: Direction | None = None


@dataclass(frozen=True, eq=False)
class Series:
    """The values of one metric under one arm, in the order of the file.

    arm       the file's own label, or None where it has none
    values    shape (n,), in the metric's unit; NaN where the file has no value
    order     shape (n,), time or rank of each value, comparable between arms of one file; None: not known
    block, session, slot, run   shape (n,), numbers of labels that mean the same in all series read together;
              None: not known. `run` is the program run that a value came from; None: each value is a run of its own
    failed    shape (n,), True where the measured program failed; None: nothing is known to have failed
    primary   what a reader of this file most likely asks about
    notes     what the way of measuring implies, in whole sentences
    """

    arm: str | None
    metric: Metric
    values: Numbers
    source: str
    order: Numbers | None = None
    block: Labels | None = None
    session: Labels | None = None
    slot: Labels | None = None
    run: Labels | None = None
    failed: NDArray[np.bool_] | None = None
    primary: bool = True
    own_arm: bool = False  # the label tells arms of one file apart
    notes: tuple[str, ...] = ()


class Importer(Protocol):
    """A module under `importers/`."""

    NAME: str
    DESCRIPTION: str

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins with `head` is of this format."""
        ...

    def read(self, path: Path, ask: Ask) -> list[Series]:
        """The series of the file. Raises DataError."""
        ...


def discover() -> dict[str, Importer]:
    """All readers by name, sorted: the modules under `importers/`."""
    import hugewise.importers as package  # noqa: PLC0415  (the package's modules import this one)

    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    modules = (cast(Importer, importlib.import_module(f"{package.__name__}.{name}")) for name in names)
    return {module.NAME: module for module in modules}


def head_of(path: Path) -> bytes:
    """The first 64 KiB. Raises DataError."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except IsADirectoryError:
        raise DataError(
            "a folder", file=path, hint="name files; a run of hugewise is shown by: hugewise report RUN"
        ) from None
    except OSError as error:
        raise DataError(str(error.strerror or error), file=path, hint="check the name and its permissions") from error


def text_of(path: Path) -> str:
    """The whole file as text. Raises DataError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {error.start} is not UTF-8 text", file=path, hint="convert it with iconv, or name another file"
        ) from error
    except OSError as error:
        raise DataError(str(error.strerror or error), file=path, hint="check the name and its permissions") from error


def recognise(path: Path, readers: dict[str, Importer]) -> Importer:
    """The reader that knows the file. Raises DataError when there is none, or more than one."""
    head = head_of(path)
    known = ", ".join(readers)
    if not head.strip():
        raise DataError("the file is empty", file=path, hint="name the file that the tool wrote its results to")
    found = [reader for reader in readers.values() if reader.recognises(head)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError("its format is not known", file=path, hint=f"name it with --format, one of: {known}")
    raise DataError(
        f"it could be {' or '.join(reader.NAME for reader in found)}", file=path, hint="name it with --format"
    )


def load(
    paths: Sequence[Path], ask: Ask, *, arms: Sequence[str] = (), name: str | None = None
) -> dict[str, list[Series]]:
    """All series of the files by format, labelled: by `arms` when given, else by the files' labels or their names.

    `arms` holds one label for each file, or one for each arm that is found, in the order of the files. Labels of runs
    are made distinct between files; those of blocks, sessions and slots are taken as they are, so that files can share
    them. Raises DataError.
    """
    readers = discover()
    if name is not None and name not in readers:
        raise UserError(f"--format {name}: no such format", hint=f"one of: {', '.join(readers)}")
    read = []
    for path in paths:
        reader = readers[name] if name is not None else recognise(path, readers)
        series = reader.read(path, ask)
        if not any(np.isfinite(one.values).any() for one in series):
            raise DataError("no value in it", file=path, hint="did the tool end before it measured anything?")
        read.append((reader.NAME, path, series))
    found: dict[str, list[Series]] = {}
    offset = 0
    labels = _labels([(path, series) for _, path, series in read], arms)
    for (kind, _, series), names in zip(read, labels, strict=True):
        top = offset
        for one in series:
            moved = one.run
            if moved is not None:
                top = max(top, offset + int(moved.max(initial=-1)) + 1)
                moved = moved + offset
            found.setdefault(kind, []).append(replace(one, arm=names[one.arm], run=moved))
        offset = top
    return found


def _labels(read: Sequence[tuple[Path, list[Series]]], arms: Sequence[str]) -> list[dict[str | None, str]]:
    """For each file: its own labels -> those to use."""
    own = [list(dict.fromkeys(one.arm for one in series)) for _, series in read]
    total = sum(len(labels) for labels in own)
    if arms and len(arms) == total:
        given = iter(arms)
        return [{label: next(given) for label in labels} for labels in own]
    if arms:
        listed = ", ".join(str(label) for labels in own for label in labels if label is not None)
        raise UserError(
            f"--arm is given {len(arms)} times for {len(read)} files with {total} arms",
            hint="give one --arm for each file, in their order"
            if total == len(read)
            else f"give one --arm for each arm, in their order: {listed}",
        )
    labels = [
        {label: path.stem if label is None else label for label in mine}
        for (path, _), mine in zip(read, own, strict=True)
    ]
    seen: dict[str, Path] = {}
    for (path, series), mine in zip(read, labels, strict=True):
        if any(one.own_arm for one in series):
            continue
        for label in mine.values():
            if label in seen:
                raise UserError(
                    f"{seen[label]} and {path} would both be the arm {label!r}",
                    hint="say which arm each file is: --arm base --arm thp (the same name twice merges files)",
                )
            seen[label] = path
    return labels
