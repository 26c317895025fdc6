"""Cells of a study before any machine is looked at: every parameter resolved, and the metrics of each. Pure.

All mistakes of the study's workloads, parameters and metrics are reported here.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hugewise.errors import UserError
from hugewise.model import design
from hugewise.model.design import Kind
from hugewise.model.metric import COMMON, Metric
from hugewise.model.pages import MemoryAge
from hugewise.model.workload import OutputParser, Parameter, ParameterValue, Workload
from hugewise.quantity import format_size
from hugewise.study import keys
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse
from hugewise.study.workload import SMALL, ParameterInput, WorkloadUse


def parameter_levels(
    used: WorkloadUse, workload: Workload, place: Place, scale: str
) -> dict[str, tuple[ParameterValue, ...]]:
    """Return the levels of every parameter of the workload at `scale`, in its own order. Raises StudyError."""
    scaled = used.scales[scale].parameters if scale in used.scales else {}

    def at(name: str) -> Place:
        return (place.at("scales").at(scale) if name in scaled else place.at("parameters")).at(name)

    known = {parameter.name: parameter for parameter in workload.parameters}
    for name, given in used.parameters.items():
        if name not in known:
            hint = keys.near(name, known, what=f"parameters of {workload.name}")
            raise at(name).wrong(f"is not a parameter of {workload.name}", given, hint=hint)
    found: dict[str, tuple[ParameterValue, ...]] = {}
    for parameter in workload.parameters:
        here = at(parameter.name)
        if parameter.name not in used.parameters:
            if parameter.default is None:
                raise here.wrong("is missing", hint=f"it is {parameter.description}")
            found[parameter.name] = (typed(parameter, parameter.default, here),)
            continue
        given = used.parameters[parameter.name]
        if is_factor(used, workload, parameter.name):
            assert isinstance(given, tuple)
            levels = tuple(typed(parameter, item, here.item(n)) for n, item in enumerate(given, 1))
            here.once(levels, given)
            if not levels:
                raise here.wrong("is an empty list", hint="name at least one value, or remove the key")
            found[parameter.name] = levels
        else:
            found[parameter.name] = (typed(parameter, given, here),)
    return found


def arm_parameters(use: PolicyUse, workload: Workload, place: Place) -> dict[str, ParameterValue] | str:
    """Return an arm's own parameters as the workload takes them, or why it cannot. Raises StudyError."""
    known = {parameter.name: parameter for parameter in workload.parameters}
    if absent := [name for name in use.parameters if name not in known]:
        return f"{workload.name} has no parameter {absent[0]}"
    return {name: typed(known[name], given, place.at(name)) for name, given in use.parameters.items()}


def is_factor(used: WorkloadUse, workload: Workload, name: str) -> bool:
    """Return whether the study varies the parameter: a list of values, or of lists where the value is a list."""
    given = used.parameters.get(name)
    if not isinstance(given, tuple):
        return False
    is_list = any(one.name == name and one.type in ("argv", "texts") for one in workload.parameters)
    return not is_list or any(isinstance(item, tuple) for item in given)


_KINDS = {
    "integer": keys.integer(),
    "number": keys.number(),
    "duration": keys.duration(),
    "share": keys.share(),
    "text": keys.text(),
    "flag": keys.flag(),
}


def typed(parameter: Parameter, given: ParameterInput | ParameterValue, place: Place) -> ParameterValue:
    """Return the value as the workload takes it: sizes as bytes, durations as seconds. Raises StudyError."""
    if parameter.type == "argv":
        return _argv(given, place)
    if parameter.type == "texts":
        return _texts(given, place, "write each in quotes, in square brackets")
    if parameter.pattern is not None:
        kind = keys.text(pattern=re.compile(parameter.pattern), words=parameter.words, cure=parameter.description)
    else:
        kind = keys.size(0 if parameter.default == 0 else 1) if parameter.type == "size" else _KINDS[parameter.type]
    value: ParameterValue = kind.read(given, place)
    return value


def _argv(given: ParameterInput | ParameterValue, place: Place) -> tuple[str, ...]:
    words = _texts(given, place, 'write ["program", "argument"]; no shell is involved')
    if not words or not words[0]:
        raise place.wrong("names no program", given, hint='write ["program", "argument"]')
    return words


def _texts(given: ParameterInput | ParameterValue, place: Place, hint: str) -> tuple[str, ...]:
    if not isinstance(given, tuple):
        raise place.wrong("must be a list", given, hint=hint)
    words = []
    for number, word in enumerate(given, 1):
        if not isinstance(word, str):
            raise place.item(number).wrong("must be text", word, hint="write each argument in quotes")
        words.append(word)
    return tuple(words)


_MOST_CELLS = 10_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_LONGEST_ID = 120


NO_TURNS: Mapping[str, TakesTurns] = MappingProxyType({})


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Cell as resolved from the study alone. `id` is unique, readable and safe as a file name.

    used      the workload's table, at the study's scale
    values    of every parameter of the workload, in its own order; sizes in bytes, times in s
    own       by policy: the parameters that its arm has instead, or why the workload cannot take them
    metrics   all that an attempt has; `metric` is judged where time can be measured, and `also` beside it
    kind      how the arms of a block are laid out
    together  they run at once
    memory_age  what the machine's memory has been through
    """

    id: str
    used: WorkloadUse
    workload: Workload
    values: Mapping[str, ParameterValue]
    own: Mapping[str, Mapping[str, ParameterValue] | str]
    metrics: Mapping[str, Metric]
    metric: Metric
    also: tuple[Metric, ...]
    kind: Kind
    together: bool
    memory_age: MemoryAge = "fresh"

    def judged(self, *, emulated: bool, counting: bool) -> Metric:
        """Return the metric that is judged; on an emulated machine, one that emulation counts exactly."""
        if not emulated:
            return self.metric
        wanted = self.metrics[self.used.counted or self.metric.name]
        return wanted if _exact(wanted, counting=counting) else self.metrics["page_faults"]

    def beside(self, *, emulated: bool, counting: bool) -> tuple[Metric, ...]:
        """Return the other judged metrics; on an emulated machine, only those that emulation counts exactly."""
        first = self.judged(emulated=emulated, counting=counting)
        return tuple(one for one in self.also if one != first and (not emulated or _exact(one, counting=counting)))


def _exact(metric: Metric, *, counting: bool) -> bool:
    return metric.emulated or (counting and metric.name == "instructions")


class TakesTurns(NamedTuple):
    """Design of a cell that takes turns by `auto`, and the metric judged where the study names none."""

    kind: Kind
    metric: str | None = None


def resolve(
    study: Study, workloads: Mapping[str, Workload], in_turns: Mapping[str, TakesTurns] = NO_TURNS
) -> list[Resolved]:
    """Return the study's cells, in its order. `in_turns`: by name, the cells that take turns under `kind = "auto"`.
    Raises StudyError, and UserError where a cell was chosen that the study does not have.
    """
    place = Place(study.file)
    _check_arms(study, workloads, place)
    taken: set[str] = set()
    every = [
        _in_turns(cell, in_turns[cell.id]) if cell.id in in_turns and cell.used.client != "apart" else cell
        for here, used in place.items("workload", study.workload)
        for cell in _cells(used, here, study, workloads, taken)
    ]
    return _chosen(every, study)


def _in_turns(cell: Resolved, how: TakesTurns) -> Resolved:
    named = how.metric if cell.used.metric is None else None
    metric = cell.metric if named is None else cell.metrics[named]
    also = tuple(one for one in cell.also if one != metric)
    return msgspec.structs.replace(cell, kind=how.kind, together=True, metric=metric, also=also)


def _chosen(every: list[Resolved], study: Study) -> list[Resolved]:
    """Return the cells chosen by name, and all cells of workloads of which none was chosen. Raises UserError."""
    of_label: dict[str, list[str]] = {}
    for name in study.cells:
        cell = next((cell for cell in every if cell.id == name), None)
        if cell is None:
            known = [cell.id for cell in every]
            raise UserError(
                f"{study.file or study.name} has no cell {name!r}", hint=keys.near(name, known, what="cells")
            )
        of_label.setdefault(cell.used.called, []).append(name)
    return [cell for cell in every if cell.id in of_label.get(cell.used.called, [cell.id])]


def _check_arms(study: Study, workloads: Mapping[str, Workload], place: Place) -> None:
    """Check that an arm's own parameters belong to some workload of the study. Raises StudyError."""
    found = [workloads[used.name] for used in study.workload if used.name in workloads]
    known = {parameter.name for workload in found for parameter in workload.parameters}
    for here, use in place.items("policies", study.policies):
        for name, value in use.parameters.items():
            if name not in known:
                there = here.at("parameters").at(name)
                raise there.wrong("is not a parameter of any workload of the study", value, hint=keys.near(name, known))
    for here, used in place.items("workload", study.workload):
        if study.design.slots and used.cpus is not None:
            cure = "remove cpus here, or slots of the design"
            raise here.at("cpus").wrong("the design has slots", list(used.cpus), hint=cure)


def _cells(
    used: WorkloadUse, place: Place, study: Study, workloads: Mapping[str, Workload], taken: set[str]
) -> Iterator[Resolved]:
    """Yield a cell for each combination of the parameters and ways to run. Raises StudyError."""
    workload = workloads.get(used.name)
    if workload is None:
        hint = keys.near(used.name, workloads.keys(), what="workloads")
        raise place.at("name").wrong("is not a workload", used.name, hint=hint)
    if study.scale == SMALL:  # mistakes of the other scales are told before they are chosen
        for scale in used.scales:
            parameter_levels(used.at(scale), workload, place, scale)
    factors = parameter_levels(used, workload, place, study.scale)
    varied = [name for name in used.parameters if is_factor(used, workload, name)]
    combinations = math.prod(len(levels) for levels in factors.values())
    if combinations > _MOST_CELLS:
        raise place.at("parameters").wrong(
            f"makes {combinations} cells", hint=f"a study has at most {_MOST_CELLS}: shorten the lists"
        )
    policies = Place(study.file).items("policies", study.policies)
    own = {
        use.name: arm_parameters(use, workload, here.at("parameters"))
        for here, use in policies
        if used.policies is None or use.name in used.policies
    }
    ways = itertools.product(used.concurrency, used.memory_age)
    for levels, (concurrency, age) in itertools.product(itertools.product(*factors.values()), ways):
        values = dict(zip(factors, levels, strict=True))
        called = f"{used.called}-{concurrency}" if len(used.concurrency) > 1 else used.called
        called = called if used.memory_age == ("fresh",) else f"{called}-{age}"
        metrics, metric = _metrics(used, workload, values, place)
        also = tuple(_further(used, metrics, metric, place))
        yield Resolved(
            id=_identify(called, workload, values, varied, taken),
            used=used,
            workload=workload,
            values=values,
            own=own,
            metrics=metrics,
            metric=metric,
            also=also,
            kind=study.design.first,
            together=design.at_once(study.design.first) or concurrency == "together",
            memory_age=age,
        )


def _metrics(
    used: WorkloadUse, workload: Workload, values: Mapping[str, ParameterValue], place: Place
) -> tuple[Mapping[str, Metric], Metric]:
    """Return all metrics by name, and the one that is judged unless the machine is emulated. Raises StudyError."""
    named: tuple[Metric, ...] = ()
    if isinstance(workload, OutputParser):
        try:
            named = workload.named(values)
        except ValueError as error:
            raise place.at("parameters").wrong("names a metric wrongly", hint=str(error)) from None
    own = (*named, *workload.metrics)
    known = {metric.name: metric for metric in (*COMMON, *own)}
    for key, name in (("metric", used.metric), ("counted", used.counted)):
        if name is not None and name not in known:
            hint = keys.near(name, known, what="metrics")
            raise place.at(key).wrong(f"is not a metric of {workload.name}", name, hint=hint)
    could = {name for name, metric in known.items() if metric.emulated} | {"instructions"}
    if used.counted is not None and used.counted not in could:
        hint = f"one of {', '.join(sorted(could))}"
        raise place.at("counted").wrong("is nothing that emulation counts exactly", used.counted, hint=hint)
    return known, own[0] if used.metric is None else known[used.metric]


def _further(used: WorkloadUse, known: Mapping[str, Metric], metric: Metric, place: Place) -> Iterator[Metric]:
    place.at("also").once(used.also)
    for here, name in place.items("also", used.also):
        if name not in known:
            raise here.wrong(f"is not a metric of {used.name}", name, hint=keys.near(name, known, what="metrics"))
        if name == metric.name:
            raise here.wrong("is judged already", name, hint="remove it here: each metric is judged once")
        if known[name].better == "neutral":
            cure = "a report shows it beside the verdict, without one: remove it here"
            raise here.wrong("is neither better high nor low, so that nothing can be claimed of it", name, hint=cure)
        yield known[name]


def _identify(
    called: str,
    workload: Workload,
    values: Mapping[str, ParameterValue],
    varied: list[str],
    taken: set[str],
) -> str:
    """Return a readable id: the label and what is varied, with a hash where that is too long or already taken."""
    types = {parameter.name: parameter.type for parameter in workload.parameters}
    found = "-".join([called, *(f"{name}={_written(types[name], values[name])}" for name in varied)])
    if len(found) > _LONGEST_ID or found in taken:
        exact = msgspec.json.encode([called, values], order="deterministic")
        found = f"{found[: _LONGEST_ID - 9]}-{hashlib.sha256(exact).hexdigest()[:8]}"
    taken.add(found)
    return found


def _written(kind: str, value: ParameterValue) -> str:
    if isinstance(value, tuple):
        text = "_".join(value)
    elif kind == "size" and isinstance(value, int):
        text = format_size(value)
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return _UNSAFE.sub("_", text)[:40]
