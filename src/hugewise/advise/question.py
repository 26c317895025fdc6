"""Question of an advice: the workload, the metric, the confidence and the time. Pure but for the workloads."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hugewise import workloads
from hugewise.advise.candidates import SettingCandidate
from hugewise.errors import UserError
from hugewise.model.metric import OPERATIONS
from hugewise.plan.cells import resolve
from hugewise.quantity import format_duration
from hugewise.study import load as studies
from hugewise.study.study import Study
from hugewise.study.tables import Between, Design, Validity
from hugewise.workloads._own_pool import without_pool

AS_IS = "as-is"
AGAIN = "again"
SCREENED = 0.9
"""One less the chance that a screening passes over a candidate that is better by more than the margin."""

_WORTH = 0.05  # gain for which a setting is worth its trouble

_PILOT_BLOCKS = 3
PILOT_SHARE = 1 / 8
"""Share of the time that the pilot has at most, but for the first block."""
FEWEST_SCREENED = 4
"""Blocks of a screening, at least: its choice of the narrowest candidate takes a standard error."""
LEAST_S = 10.0
"""Seconds in which nothing can be found."""
_SERVICE = "service"
_LONGEST = 180  # characters of a question
_READY_S = (5.0, 60.0)  # bounds on the time until a server is up; its share of the whole time:
_READY_SHARE = 1 / 12


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and what its user wants to know.

    workload    as a study's [[workload]] has it: its name, parameters, metric
    margin      a share: smaller differences make none
    confidence  of the verdict
    seconds     for all of it
    most        candidates beside `as-is`
    pool        hugetlb memory that the workload needs, in bytes; 0: as the pilot finds
    between, validity, design   tables of the study that it is asked of; None: the usual ones
    """

    workload: dict[str, Any]
    margin: float = 0.02
    confidence: float = 0.99
    seconds: float = 600.0
    most: int = 6
    pool: int = 0
    between: Between | None = None
    validity: Validity | None = None
    design: Design | None = None

    @property
    def of_service(self) -> bool:
        """True if the question is about a server of the user's under a load of theirs."""
        return self.workload.get("name") == _SERVICE

    @property
    def worth(self) -> float:
        """Gain (a share) that the time is used for: where it is ruled out, all is left as it is."""
        return max(_WORTH, self.margin)

    @property
    def copies(self) -> int:
        """Attempts of each setting in a block of the confirmation, where the memory has room."""
        return (self.design or Design(kind="auto")).copies_each


def command(
    argv: Sequence[str],
    *,
    metric: str | None = None,
    values: Sequence[str] = (),
    prepare: Sequence[str] = (),
    stdin: str = "",
) -> dict[str, Any]:
    """Return the table of a command; `values` are metrics in its output, `prepare` runs before each attempt."""
    parameters: dict[str, Any] = {"argv": list(argv)}
    parameters |= {"prepare": list(prepare)} if prepare else {}
    parameters |= {"values": list(values)} if values else {}
    parameters |= {"stdin": stdin} if stdin else {}
    return {"name": "command", "parameters": parameters} | ({"metric": metric} if metric is not None else {})


def service(
    server: Sequence[str], load: Sequence[str], *, seconds: float, metric: str | None = None, **given: Any
) -> dict[str, Any]:
    """Return the workload table of a server under a load; `given`: other parameters of the workload `service`."""
    least, most = _READY_S
    parameters = {
        "server": list(server),
        "load": list(load),
        "ready_within": f"{min(most, max(least, seconds * _READY_SHARE)):.0f}s",
        **{name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value},
    }
    return {"name": _SERVICE, "parameters": parameters} | ({"metric": metric} if metric is not None else {})


def command_of(asked: Question) -> tuple[str, ...]:
    """Return the words of the command that is asked about; none where it is another workload."""
    if asked.workload.get("name") != "command":
        return ()
    return tuple(asked.workload.get("parameters", {}).get("argv", ()))


def environment(asked: Question) -> Mapping[str, str] | None:
    """Return the variables that decide what a service's server loads; None of what has those of its caller."""
    if not asked.of_service:
        return None
    given = asked.workload.get("parameters", {}).get("environment", ())
    path = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    return path | dict(str(each).partition("=")[::2] for each in given)


def counted(asked: Question) -> bool:
    """Return whether the output is read for the number of operations."""
    given = asked.workload.get("parameters", {}).get("values", ())
    return any(str(each).partition(",")[0].strip() == OPERATIONS for each in given)


def check(asked: Question) -> None:
    """Raise StudyError or UserError for what is wrong with the question, before anything is begun."""
    (cell,) = resolve(pilot_study(asked), workloads.discover())
    if cell.metric.better == "neutral":
        told = f"--metric {cell.metric.name}: it is neither better high nor low, so that no setting is better by it"
        raise UserError(told, hint="name one with a direction, such as wall_s or cpu_s")


def pilot_study(asked: Question) -> Study:
    """Return the study of the program as it is, twice under two names. Raises StudyError, UserError."""
    if asked.seconds < LEAST_S:
        told = f"--time {format_duration(asked.seconds)}: nothing can be found in less than {LEAST_S:g} s"
        raise UserError(told, hint="leave it out for 10 minutes")
    again = {"name": AGAIN, "from": AS_IS, "environment": {"HUGEWISE_AGAIN": "1"}}
    budget = {"blocks": _PILOT_BLOCKS, "time": f"{max(1.0, asked.seconds * PILOT_SHARE):.0f}s"}
    once: dict[str, Any] = {"attempt": {"retries": 0}} if asked.of_service else {}  # an error is reported at once
    # The confidence has no part in it; it is here so that one that cannot be is told at once.
    return _study("advise-pilot", asked, [AS_IS, again], budget, method="fixed-n", confidence=asked.confidence, **once)


def screening(asked: Question, chosen: Sequence[SettingCandidate], pool: int, seconds: float, declared: int) -> Study:
    """Return the study that drops candidates others beat, in so many seconds and `declared` pairs."""
    time, uses = f"{max(1.0, seconds):.0f}s", [AS_IS, *(each.use for each in chosen)]
    budget = {"blocks": declared, "time": time, "futility": asked.worth}
    return _study("advise-screening", asked, uses, budget, method="screening", pool=pool, confidence=SCREENED)


def confirmation(
    asked: Question,
    chosen: SettingCandidate,
    pool: int,
    seconds: float,
    declared: int,
    *,
    beside: SettingCandidate | None = None,
) -> Study:
    """Return the study of the advice's verdict: `chosen` against what is there, for `declared` pairs; `beside` claims
    nothing.
    """
    budget = {"blocks": declared, "time": f"{max(1.0, seconds):.0f}s", "futility": asked.worth}
    uses = [AS_IS, chosen.use, *([beside.use] if beside is not None else [])]
    how: dict[str, Any] = {"method": "sequential", "confidence": asked.confidence}
    how |= {"unjudged": [beside.name]} if beside is not None else {}
    return _study("advise-confirmation", asked, uses, budget, pool=pool, **how)


def _takes_pool(workload: str) -> bool:
    known = workloads.discover().get(workload)
    return known is not None and any(each.name == "pool_bytes" for each in known.parameters)


def asks(study: Study) -> tuple[object, ...]:
    """Return what a phase's run must share with its study; time left, and policies for host settings, may differ."""
    asked = [(use.name, use.parameters) for use in study.workload]
    return (
        study.name,
        [use.name for use in study.policies],
        msgspec.json.encode(asked, order="deterministic"),
    )  # read again, a tuple is a list


def _question(parameters: Mapping[str, Any]) -> str:
    words = parameters.get("argv") or parameters.get("server") or ()
    told = shlex.join(map(str, words))[:_LONGEST].translate(dict.fromkeys((*range(32), 127), " "))
    return f"What to set for: {told}" if told else ""


def _study(
    name: str,
    asked: Question,
    policies: Sequence[str | Mapping[str, Any]],
    budget: Mapping[str, Any],
    *,
    pool: int = 0,
    **how: Any,
) -> Study:
    parameters = {**asked.workload.get("parameters", {})}
    if (asked.pool or pool) and _takes_pool(asked.workload["name"]):
        parameters["pool_bytes"] = asked.pool or pool
    if any(not isinstance(use, str) and use.get("parameters", {}).get("own_pool") for use in policies):
        # The pool is there for all arms of a run, and PostgreSQL takes pages that it finds.
        parameters["server"] = list(without_pool(tuple(map(str, parameters.get("server", ())))))
    timeout = f"{max(1.0, asked.seconds / 4):.0f}s"
    workload = {"delivery": {"share": 0.0}, "timeout": timeout, **asked.workload, "parameters": parameters}
    if asked.design is None:
        how = {"design": {"kind": "auto"}, **how}
    data = {
        "format": 1,
        "name": name,
        "question": _question(parameters),
        "policies": list(policies),
        "baseline": AS_IS,
        "margin": asked.margin,
        "budget": dict(budget),
        "workload": [workload],
        **how,
    }
    tables = {"between": asked.between, "validity": asked.validity, "design": asked.design}
    given = {key: table for key, table in tables.items() if table is not None}
    return msgspec.structs.replace(studies.read(data, "command line"), **given)
