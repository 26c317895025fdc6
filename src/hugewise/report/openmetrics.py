"""A run as OpenMetrics text (github.com/prometheus/OpenMetrics, specification 1.0): the run, verdicts, every value.

A family for each metric, `hugewise_attempt_NAME`, of type gauge; a sample for each attempt, with the time at which it
ended. Values are as they were measured, so the unit is a label; UNIT is said where the name ends with it, as the format
wants. What has no value has no sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hugewise.model.results import Results
from hugewise.visible import printable

__all__ = ["AttemptSample", "lines"]

_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
_VERDICTS = ("better", "worse", "equivalent", "undecided", "none")
_KNOWN_UNITS = ("bytes",)


class AttemptSample(NamedTuple):
    """A value of an attempt; `ended` is UTC epoch seconds."""

    run: str
    cell: str
    arm: str
    policy: str
    block: int
    number: int
    state: str
    metric: str
    unit: str | None
    value: float
    ended: float


def lines(
    results: Results,
    metrics: Iterable[str],
    help_: Mapping[str, str],
    samples: Callable[[Sequence[str]], Iterator[AttemptSample]],
) -> Iterator[str]:
    """The text by lines. `samples` gives those of the metrics that share a family."""
    kernel = results.host.get("kernel")
    about = {
        "run": results.run,
        "study": results.study,
        "state": results.state,
        "host": str(results.host.get("name") or ""),
        "kernel": str(kernel.get("release") or "") if isinstance(kernel, Mapping) else "",
    }
    yield from _head("hugewise_run", "info", "the run that all of this is of")
    yield f"hugewise_run_info{_labels(about)} 1\n"
    yield from _verdicts(results)
    families: dict[str, list[str]] = {}
    for name in metrics:
        families.setdefault(f"hugewise_attempt_{_UNFIT.sub('_', name)}", []).append(name)
    for family, several in families.items():
        unit = next((unit for unit in _KNOWN_UNITS if family.endswith(f"_{unit}")), "")
        yield from _head(family, "gauge", help_.get(several[0], ""), unit)
        for one in samples(several):
            named = {name: getattr(one, name) for name in ("run", "cell", "arm", "policy", "block", "number", "state")}
            told = _labels({**named, "metric": one.metric, "unit": one.unit or ""})
            yield f"{family}{told} {one.value!r} {one.ended:.3f}\n"
    yield "# EOF\n"


def _verdicts(results: Results) -> Iterator[str]:
    found = [
        (_about(results, cell.cell, one.arm, one.baseline, one.metric, one.estimand), one)
        for cell in results.cells
        for one in cell.judged
    ]
    yield from _head("hugewise_verdict", "stateset", "what the run says of an arm against its baseline")
    for about, one in found:
        for state in _VERDICTS:
            yield f"hugewise_verdict{_labels(about | {'hugewise_verdict': state})} {int(one.verdict == state)}\n"
    for name, what in (("ratio", "arm over baseline"), ("low", "its interval's low end"), ("high", "its high end")):
        yield from _head(f"hugewise_effect_{name}", "gauge", what)
        for about, one in found:
            value = getattr(one, name)
            if value is not None:
                yield f"hugewise_effect_{name}{_labels(about)} {_number(value)}\n"


def _about(results: Results, *named: str) -> dict[str, str]:  # of one comparison
    return dict(zip(("run", "cell", "arm", "baseline", "metric", "estimand"), (results.run, *named), strict=True))


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else repr(float(value))


def _head(name: str, kind: str, help_: str, unit: str = "") -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n"
    if unit:
        yield f"# UNIT {name} {unit}\n"
    if help_:
        yield f"# HELP {name} {_escaped(help_)}\n"


def _labels(values: Mapping[str, object]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{told}}}"


def _escaped(value: object) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')
