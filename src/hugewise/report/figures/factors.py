"""Cells that differ in their parameters alone: what figures over factor levels are drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from hugewise.model.results import CellResult
from hugewise.quantity import format_duration, format_size
from hugewise.visible import printable

__all__ = ["FactorGroup", "groups", "level", "levels", "numeric", "setting"]

_MOST_LEVELS = 60  # more cells than this are no figure


class FactorGroup(NamedTuple):
    """Cells of one of the study's workloads in its order, by its label, and the parameters in which they differ."""

    label: str
    workload: str
    cells: tuple[CellResult, ...]
    varied: tuple[str, ...]


def groups(cells: Iterable[CellResult]) -> list[FactorGroup]:
    """The groups of two cells and more."""
    found: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in cells:
        found.setdefault((_label(cell), cell.workload, cell.metric.name), []).append(cell)
    made = []
    for (label, workload, _), several in found.items():
        names = dict.fromkeys(name for cell in several for name in cell.parameters)
        varied = tuple(name for name in names if len({repr(cell.parameters.get(name)) for cell in several}) > 1)
        if varied and len(several) <= _MOST_LEVELS:
            made.append(FactorGroup(label, workload, tuple(several), varied))
    return made


def _label(cell: CellResult) -> str:
    """What the cell's id begins with, before the first of its varied parameters (`label-name=level-name=level`)."""
    head, equals, _ = cell.cell.partition("=")
    named = [name for name in cell.parameters if equals and head.endswith(f"-{name}")]
    return head.removesuffix(f"-{max(named, key=len)}") if named else cell.cell


def numeric(group: FactorGroup, name: str) -> bool:
    """Whether every level of the parameter is a number."""
    values = [cell.parameters.get(name) for cell in group.cells]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def levels(group: FactorGroup, name: str) -> list[Any]:
    """The parameter's levels: numbers by size, others in the study's order."""
    found = list(
        {repr(value): value for cell in group.cells if (value := cell.parameters.get(name)) is not None}.values()
    )
    return sorted(found) if numeric(group, name) else found


def level(workload: str, name: str, value: Any) -> str:
    """A level as the study's reader would write it: `64k` of a size, `10m` of a duration."""
    kind = _types(workload).get(name)
    sized = kind == "size" or (kind is None and name.endswith("bytes"))
    if sized and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return format_size(value)
    if kind == "duration" and isinstance(value, int | float):
        return format_duration(float(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return printable(" ".join(str(part) for part in value))[:60]
    return printable(f"{value:g}" if isinstance(value, float) else str(value))[:60]


def setting(workload: str, cell: CellResult, names: Iterable[str]) -> str:
    """`scale=50, clients=8`, of the parameters `names`."""
    return ", ".join(f"{printable(name)}={level(workload, name, cell.parameters.get(name))}" for name in names)


@cache
def _types(workload: str) -> Mapping[str, str]:
    from hugewise.workloads import discover  # noqa: PLC0415  (loads every workload)

    found = discover().get(workload)
    return {parameter.name: parameter.type for parameter in found.parameters} if found is not None else {}
