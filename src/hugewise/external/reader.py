"""A reader of measurements made elsewhere, and what it yields.

A reader is one file under `readers/`, found by being there: it has

    NAME, DESCRIPTION
    recognises(head: bytes) -> bool            from the first 64 KiB of the file
    read(path: Path, ask: Ask) -> list[Series]  raises DataError

Readers recognise content, never file names, and no content is recognised by two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hugewise import reading
from hugewise.errors import UserError
from hugewise.model.metric import Direction, Metric
from hugewise.reading import UnreadableError
from hugewise.stats.method import Numbers

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


class Reader(Protocol):
    """A module under `readers/`."""

    NAME: str
    DESCRIPTION: str

    def recognises(self, head: bytes) -> bool:
        """Whether a file that begins with `head` is of this format."""
        ...

    def read(self, path: Path, ask: Ask) -> list[Series]:
        """The series of the file. Raises DataError."""
        ...


def head_of(path: Path) -> bytes:
    """The first 64 KiB. Raises DataError."""
    return _content(path, _HEAD, part="head")


def text_of(path: Path) -> str:
    """The whole file as text. Raises DataError."""
    with readable(path, "convert it to UTF-8 with iconv, or name another file"):
        return reading.text(_content(path, reading.MOST))


def json_of(path: Path, cure: str) -> Any:
    """The whole file as JSON. Raises DataError."""
    with readable(path, cure):
        return reading.json(_content(path, reading.MOST_JSON))


@contextmanager
def readable(path: Path, cure: str, where: str | None = None) -> Iterator[None]:
    """What cannot be read is a DataError, at its line where that is known, else at `where`."""
    try:
        yield
    except UnreadableError as error:
        place = where if error.line is None else f"line {error.line}"
        raise DataError(error.reason, file=path, where=place, hint=cure) from error


def _content(path: Path, most: int, *, part: Literal["whole", "head"] = "whole") -> bytes:
    cure = "check the name and its permissions"
    if path.is_dir():
        cure = "name files; a run of hugewise is shown by: hugewise report RUN"
    with readable(path, cure):
        return reading.content(path, most, part=part)
