"""What `--priority` asks of the metric: for the tail one that is an upper quantile. Pure but for the workloads."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hugewise import workloads
from hugewise.advise import question as questions
from hugewise.advise.question import Question
from hugewise.errors import UserError
from hugewise.plan.cells import resolve

__all__ = ["aimed", "is_tail"]

_TAIL = re.compile(r"(?:^|_)(?:p9\d{1,3}|max)(?:_|$)")
_BEST = ("p99", "p999", "p95", "p90")  # whom an advice looks at first


def is_tail(metric: str) -> bool:
    """Whether a metric of that name is an upper quantile, or the most: `p99_us`, `latency_p95_ms`, `max_ms`."""
    return _TAIL.search(metric) is not None


def aimed(asked: Question) -> Question:
    """The question with the metric that its priority is about. Raises UserError where there is none, StudyError.

    A run of a command has one time: a quantile over some dozens of runs is no tail of what its users wait for.
    """
    if asked.priority != "tail":
        return asked
    (cell,) = resolve(questions.pilot(asked), workloads.discover())
    given = asked.workload.get("metric")
    own = [name for name, metric in cell.metrics.items() if is_tail(name) and metric.better == "lower"]
    if given is not None:
        if given not in own:
            raise UserError(f"--priority tail: {given} is no upper quantile of which less is better", hint=_cure(own))
        return asked
    if not own:
        told = "its workload tells no upper quantile, and that of a few dozen runs is none of what its users wait for"
        raise UserError(f"--priority tail: {told}", hint=_cure(own))
    return msgspec.structs.replace(asked, workload={**asked.workload, "metric": _first(own)})


def _first(names: Sequence[str]) -> str:
    return next((name for best in _BEST for name in names if best in name.split("_")), names[0])


def _cure(own: Sequence[str]) -> str:
    if own:
        return f"name one of {', '.join(own)}"
    return (
        "name one in its output, such as --value 'p99_ms,lower,ms=regex:p99 ([0-9.]+)', or ask of a server under its"
        " load, whose generator tells p99"
    )
