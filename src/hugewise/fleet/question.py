"""The study that a fleet asks, from what stands in an order: the same on the coordinator and on every host."""

from __future__ import annotations

from hugewise.fleet.orders import FleetQuestion
from hugewise.study import load
from hugewise.study.study import Study

__all__ = ["CHECK", "asked", "options"]

CHECK = """
format = 1
name = "fleet-check"
question = "Is the same called different on this host?"
policies = ["as-is", {{ name = "again", from = "as-is", environment = {{ HUGEWISE_AGAIN = "1" }} }}]
method = "sequential"
confidence = 0.999
budget = {{ blocks = {blocks} }}

[[workload]]
name = "spin"
metric = "loop_cpu_s"
timeout = "60s"
"""
"""The same against the same: a loop of about 100 ms in the first cache, under the settings as they are."""


def asked(question: FleetQuestion, file: str) -> Study:
    """The study as a host runs it; `file` is named in errors. Raises StudyError, UserError."""
    study = load.parse(question.text, file)
    if question.scale is not None:
        study = load.at_scale(study, question.scale)
    study = load.part(study, _names(question.only), _names(question.arms))
    return load.with_budget(study, None, question.time)


def _names(listed: str | None) -> list[str]:
    return [name.strip() for name in listed.split(",")] if listed else []


def options(question: FleetQuestion) -> list[str]:
    """What `hugewise run` is told beside the study."""
    named = {"scale": question.scale, "only": question.only, "arms": question.arms, "time": question.time}
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
