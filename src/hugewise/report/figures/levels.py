"""Cells that differ in their parameters alone: their metric at the levels of a study's factors.

Lines over a numeric parameter, one for each policy, as in studies of databases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from hugewise.model.results import CellResult
from hugewise.quantity import format_duration, format_size
from hugewise.report.figures.theme import (
    VALUES,
    Spec,
    arm_marks,
    arrows,
    chart,
    fit,
    layer,
    mean_of,
    mean_title,
    panels,
    quantitative,
)
from hugewise.report.numbers import scale
from hugewise.visible import printable

_MOST_LEVELS = 60  # more cells than this are no figure


class FactorGroup(NamedTuple):
    """Cells of one of the study's workloads in its order, by its label, and the parameters in which they differ."""

    label: str
    workload: str
    cells: tuple[CellResult, ...]
    varied: tuple[str, ...]


def groups(cells: Iterable[CellResult]) -> list[FactorGroup]:
    """Return the groups of two cells and more."""
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
    head, equals, _ = cell.cell.partition("=")
    named = [name for name in cell.parameters if equals and head.endswith(f"-{name}")]
    return head.removesuffix(f"-{max(named, key=len)}") if named else cell.cell


def numeric(group: FactorGroup, name: str) -> bool:
    """Return whether every level of the parameter is a number."""
    values = [cell.parameters.get(name) for cell in group.cells]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def levels(group: FactorGroup, name: str) -> list[Any]:
    """Return the parameter's levels: numbers by size, others in the study's order."""
    found = list(
        {repr(value): value for cell in group.cells if (value := cell.parameters.get(name)) is not None}.values()
    )
    return sorted(found) if numeric(group, name) else found


def level(workload: str, name: str, value: Any) -> str:
    """Return a level as the study's reader would write it: `64k` of a size, `10m` of a duration."""
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


_WIDTH, _HEIGHT = 270, 200
_LOG_FROM = 8.0  # largest level against the smallest from which the axis is logarithmic
_MOST_IN_A_ROW, _IN_A_ROW = 3, 2
_APART = 3.0  # panels whose values differ by more than this have axes of their own


def lines(group: FactorGroup, name: str, palette: Mapping[str, str], confidence: float) -> Spec | None:
    """Return means with t intervals over parameter `name`, side by side, a panel for each other setting."""
    steps = [float(value) for value in levels(group, name)] if numeric(group, name) else []
    known = [arm.mean for cell in group.cells for arm in cell.arms if arm.mean is not None]
    if len(steps) < 2 or not known:
        return None
    metric, unit = group.cells[0].metric, scale(group.cells[0].metric.unit, known)
    others = [other for other in group.varied if other != name]
    arms = list(dict.fromkeys(arm.arm for cell in group.cells for arm in cell.arms if arm.mean is not None))
    logarithmic = steps[0] > 0 and steps[-1] / steps[0] >= _LOG_FROM
    rows = []
    for cell in group.cells:
        here = float(cell.parameters[name])
        for arm in cell.arms:
            if arm.mean is None:
                continue
            aside = (arms.index(arm.arm) - (len(arms) - 1) / 2) * 0.012
            place = here * (steps[-1] / steps[0]) ** aside if logarithmic else here + (steps[-1] - steps[0]) * aside
            rows.append(
                {
                    "panel": setting(group.workload, cell, others),
                    "level": place,
                    **mean_of(arm, unit),
                }
            )
    colour, shape = arm_marks(arms, palette)
    names = [level(group.workload, name, _whole(step)) for step in steps]
    x = quantitative(
        "level",
        title=printable(name),
        axis={"values": steps, "labelExpr": _labels(steps, names)},
        scale={"type": "log" if logarithmic else "linear", "zero": False, "nice": False, "padding": 14},
    )
    y = quantitative("mean", title=mean_title(metric, unit, confidence), axis={"grid": True, "tickCount": 5})
    shown = list(dict.fromkeys(str(row["panel"]) for row in rows))
    values = {panel: [row for row in rows if row["panel"] == panel] for panel in shown}
    domain = None if _far_apart(values) else fit(rows)

    def body(mine: list[dict[str, Any]]) -> Spec:
        scaled = {**y, "scale": {**VALUES, "domain": domain or fit(mine)}}
        layers = [
            layer("line", {"x": x, "y": scaled}, whose=True, strokeWidth=1.5, opacity=0.8),
            layer(
                "rule", {"x": x, "y": {**scaled, "field": "low"}, "y2": {"field": "high"}}, whose=True, strokeWidth=2
            ),
            *arrows(mine, "y", scaled, {"x": x}),
            layer("point", {"x": x, "y": scaled, "shape": shape}, tells=True, filled=True, size=55, opacity=1),
        ]
        encoding = {"color": colour}
        return {"width": _WIDTH, "height": _HEIGHT, "data": {"values": mine}, "encoding": encoding, "layer": layers}

    if not others:
        return chart(body(rows))
    columns = len(values) if len(values) <= _MOST_IN_A_ROW else _IN_A_ROW
    return panels({panel: body(mine) for panel, mine in values.items()}, columns)


def _far_apart(values: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    highest = [max(float(row["mean"]) for row in rows) for rows in values.values()]
    return min(highest) <= 0 or max(highest) / min(highest) > _APART


def _whole(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _labels(steps: list[float], names: list[str]) -> str:
    text = "datum.label"
    for step, name in zip(steps, names, strict=True):
        text = f"abs(datum.value - {step!r}) <= {abs(step) * 1e-9!r} ? {json.dumps(name)} : {text}"
    return text
