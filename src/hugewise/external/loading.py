"""Which reader knows a file of measurements, and all series of several files under one set of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hugewise.errors import UserError
from hugewise.external import readers
from hugewise.external.reader import Ask, DataError, Reader, Series, head_of
from hugewise.reading import shown

__all__ = ["load", "recognise"]

_LARGEST = 1e100
_LONGEST = 256  # characters of a name: a file's name has fewer, and figures cut longer ones


def recognise(path: Path, known: dict[str, Reader]) -> Reader:
    """The reader that knows the file. Raises DataError when there is none, or more than one."""
    head = head_of(path)
    if not head.strip():
        raise DataError("the file is empty", file=path, hint="name the file that the tool wrote its results to")
    found = [reader for reader in known.values() if reader.recognises(head)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise DataError("its format is not known", file=path, hint=f"name it with --format, one of: {', '.join(known)}")
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
    known = readers.discover()
    if name is not None and name not in known:
        raise UserError(f"--format {name}: no such format", hint=f"one of: {', '.join(known)}")
    read = []
    for path in paths:
        reader = known[name] if name is not None else recognise(path, known)
        series = reader.read(path, ask)
        if not any(np.isfinite(one.values).any() for one in series):
            raise DataError("no value in it", file=path, hint="did the tool end before it measured anything?")
        _measurable(series, path)
        for metric in dict.fromkeys(one.metric for one in series):
            _nameable("metric", metric.name, path, "give it a shorter name in the file")
            _nameable("unit", metric.unit, path, "give it a shorter name in the file")
        read.append((reader.NAME, path, series))
    found: dict[str, list[Series]] = {}
    offset = 0
    labels = _labels([(path, series) for _, path, series in read], arms)
    for (kind, path, series), names in zip(read, labels, strict=True):
        for label in names.values():
            _nameable("arm", label, path, "name each arm, in their order: --arm base --arm thp")
        top = offset
        for one in series:
            moved = one.run
            if moved is not None:
                top = max(top, offset + int(moved.max(initial=-1)) + 1)
                moved = moved + offset
            found.setdefault(kind, []).append(replace(one, arm=names[one.arm], run=moved))
        offset = top
    return found


def _nameable(what: str, name: str, path: Path, cure: str) -> None:
    """Raise DataError where a name is longer than anything that is read, drawn or typed."""
    if len(name) > _LONGEST:
        raise DataError(
            f"the {what} {shown(name)} has a name of {len(name):,} characters: at most {_LONGEST} can be shown",
            file=path,
            hint=cure,
        )


def _measurable(series: list[Series], path: Path) -> None:
    """Squares and ratios of what is measured must be numbers too. Raises DataError."""
    for one in series:
        sizes = np.abs(one.values[np.isfinite(one.values) & (one.values != 0)])
        wrong = sizes[(sizes > _LARGEST) | (sizes < 1 / _LARGEST)]
        if len(wrong):
            raise DataError(
                f"{one.metric.name} is {wrong[0]:g}, which is no measurement",
                file=path,
                hint=f"values lie between {1 / _LARGEST:g} and {_LARGEST:g}, or are 0",
            )


def _labels(read: Sequence[tuple[Path, list[Series]]], arms: Sequence[str]) -> list[dict[str | None, str]]:
    """For each file: its own labels -> those to use."""
    own = [list(dict.fromkeys(one.arm for one in series)) for _, series in read]
    total = sum(len(labels) for labels in own)
    if arms and len(arms) == total:
        given = iter(arms)
        return [{label: next(given) for label in labels} for labels in own]
    if arms:
        listed = ", ".join(label[:_LONGEST] for labels in own for label in labels if label is not None)
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
