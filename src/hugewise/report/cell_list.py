"""What is to be measured first: the list `cells.toml` beside the pages of results, a cell for each published claim.

    format = 1
    pairs = 12            # that each comparison gets at least

    [[cell]]
    study = "redhat-2021"
    only = ["iperf3"]     # labels of workloads, or cells
    arms = ["base"]       # beside the baseline; left out: all that the cell has
    claims = ["iperf3"]   # entries of the publication that it answers

The order is that of measuring. A page has its own study's part of the list in its data (`First`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from hugewise import reading, workloads
from hugewise.errors import StudyError
from hugewise.plan.cells import Resolved, resolve
from hugewise.study import keys
from hugewise.study.keys import Key, Name, Place
from hugewise.study.study import Study
from hugewise.study.workload import SMALL

NAME = "cells.toml"
_MOST = 1 << 20  # bytes


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the list."""

    study: Annotated[Name, Key("The study.", 'study = "redhat-2021"')]
    scale: Annotated[Name, Key("Its scale.", 'scale = "sure"')] = SMALL
    only: Annotated[
        tuple[str, ...], keys.listing(keys.text()), Key("Labels of its workloads, or cells.", 'only = ["iperf3"]')
    ]
    arms: Annotated[
        tuple[str, ...],
        keys.listing(keys.name()),
        Key("Policies beside the baseline.", 'arms = ["thp"]', default="all that the cell has"),
    ] = ()
    claims: Annotated[
        tuple[str, ...],
        keys.listing(keys.text(), least=0),
        Key("Entries of the publication that it answers.", 'claims = ["iperf3"]', default="none: beyond it"),
    ] = ()


class CellList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list; `file` is where it came from, and no key."""

    format: Annotated[int, keys.integer(1, 1), Key("The version of this format: 1.", "format = 1")]
    pairs: Annotated[int, keys.integer(1), Key("Pairs that each comparison gets at least.", "pairs = 12")]
    cell: Annotated[tuple[Listed, ...], keys.listing(keys.table(Listed)), Key("Entries, first first.", "[[cell]]")]
    file: str = ""


class First(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was to be measured first: `arms` beside its baseline, in at least so many `pairs`, for the published
    entries `claims`.
    """

    cell: str
    arms: tuple[str, ...]
    claims: tuple[str, ...]
    pairs: int


def beside(page: Path) -> CellList | None:
    """The list in the folder of a page; None where there is none. Raises StudyError."""
    path = page.parent / NAME
    return read(path) if path.exists() else None


def read(path: Path) -> CellList:
    """The list in the file at `path`. Raises StudyError, which names file, key, value and cure."""
    try:
        data = reading.toml(reading.text(reading.content(path, _MOST)))
    except reading.UnreadableError as error:
        raise StudyError(error.reason, file=str(path), hint="see https://toml.io for the syntax") from None
    return keys.read_table(CellList, data, Place(str(path)), file=str(path))


def of_study(listed: CellList, whole: Study) -> tuple[First, ...]:
    """What the list has of the study, at its scale. Raises StudyError where it names what the study has not."""
    return tuple(
        first
        for place, entry in Place(listed.file).items("cell", listed.cell)
        if (entry.study, entry.scale) == (whole.name, whole.scale)
        for first in _cells(entry, place, whole, listed.pairs)
    )


def _cells(entry: Listed, place: Place, whole: Study, pairs: int) -> Iterator[First]:
    cells = resolve(whole, workloads.discover())
    for here, name in place.items("only", entry.only):
        chosen = [cell for cell in cells if name in {cell.id, cell.used.called}]
        if not chosen:
            known = [cell.id for cell in cells]
            raise here.wrong(f"is no label and no cell of {whole.name}", name, hint=keys.near(name, known))
        for cell in chosen:
            yield First(cell=cell.id, arms=_arms(entry, place, whole, cell), claims=entry.claims, pairs=pairs)


def _arms(entry: Listed, place: Place, whole: Study, cell: Resolved) -> tuple[str, ...]:
    own = cell.used.policies or [use.name for use in whole.policies]
    known = [name for name in own if name != whole.compared_with and name not in whole.unjudged]
    for here, name in place.items("arms", entry.arms):
        if name not in known:
            raise here.wrong(f"is not judged in {cell.id} of {whole.name}", name, hint=keys.near(name, known))
    return entry.arms or tuple(known)
