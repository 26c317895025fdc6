"""The parameters of a workload as a study gives them: their types, and which of them are factors. Pure."""

from __future__ import annotations

import re

from hugewise.model.workload import Parameter, ParameterValue, Workload
from hugewise.study import keys
from hugewise.study.keys import Place
from hugewise.study.tables import PolicyUse
from hugewise.study.workload import ParameterInput, WorkloadUse

__all__ = ["factors", "is_factor", "own", "typed"]


def factors(used: WorkloadUse, workload: Workload, place: Place, scale: str) -> dict[str, tuple[ParameterValue, ...]]:
    """The levels of every parameter of the workload, in its own order, where `used` is at `scale`. Raises StudyError.

    `place` is the workload's table.
    """
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


def own(use: PolicyUse, workload: Workload, place: Place) -> dict[str, ParameterValue] | str:
    """The parameters that an arm has of its own, as the workload takes them, or why it cannot. Raises StudyError."""
    known = {parameter.name: parameter for parameter in workload.parameters}
    if absent := [name for name in use.parameters if name not in known]:
        return f"{workload.name} has no parameter {absent[0]}"
    return {name: typed(known[name], given, place.at(name)) for name, given in use.parameters.items()}


def is_factor(used: WorkloadUse, workload: Workload, name: str) -> bool:
    """Whether the study varies the parameter: a list of values, or of lists where the value is a list itself."""
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
    """The value as the workload takes it: sizes as bytes, durations as seconds. Raises StudyError."""
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
