"""Whether the pairs of a run speak for a study, and whether those of two runs can be put together. Pure.

A run that measured something else is another study's; runs on different machines have no spread in common.
"""

from __future__ import annotations

from hugewise.store.records import Opened
from hugewise.study.study import Study

__all__ = ["comparable", "unlike"]

# What the studies of two runs must share; name, budget, margin, confidence and method change no pair.
_SAME = ("policies", "workload", "between", "design", "guest", "kernel")
_OF_GUESTS = ("accelerator", "cpu model")


def comparable(study: Study, other: Study) -> str | None:
    """The key in which `other` measures something else than `study`, or None: its pairs speak for the study."""
    if study.compared_with != other.compared_with:
        return "baseline"
    for name in _SAME:
        if getattr(study, name, None) != getattr(other, name, None):
            return name
    return None


def unlike(run: Opened, first: Opened) -> str | None:
    """In what the machine of `run` differs from that of `first`, or None: their pairs can be put together.

    That is the host, the mechanism, and of guests the accelerator, the CPU model and the content of the kernels.
    """
    here, there = _machine(run), _machine(first)
    for name in dict.fromkeys((*there, *here)):
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'none')}, there {there.get(name, 'none')}"
    return None


def _machine(opened: Opened) -> dict[str, str]:
    """What ran, by name. Of the accelerator the reason after its name does not count."""
    found = {"host": str(opened.host.get("machine") or opened.host.get("name")), "mechanism": opened.mechanism}
    for name, version in opened.versions.items():
        if name in _OF_GUESTS or name.startswith("kernel "):
            found[name] = version.partition(":")[0] if name == "accelerator" else version
    return found
