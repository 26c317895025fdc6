"""The rules of the audit, one module a subject, found by being there. Pure."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from hugewise.audit.facts import HostFacts

# error    a setting is not in force, or ends the program
# warning  it costs memory or time here, or will be lost
# note     for information: only a run tells whether it matters
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

_SERVICE = re.compile(r"([A-Za-z0-9:_.\\@-]{1,240}\.service)(?:/|$)")


class Hit(msgspec.Struct, frozen=True):
    """A rule found its fault: what was seen and where, and the service that it belongs to (None: the host's)."""

    said: str
    unit: str | None = None


Looking = Callable[[HostFacts], Iterator[Hit]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A trap: its stable id, what is wrong in a sentence, why, where that is known from, and what cures it.

    check   the host's facts -> each place that has the fault
    """

    id: str
    title: str
    severity: Severity
    why: str
    sources: tuple[str, ...]
    cure: str
    check: Looking


_RULES: list[Rule] = []


def rule(
    id: str, severity: Severity, title: str, *, why: str, sources: tuple[str, ...], cure: str
) -> Callable[[Looking], Looking]:
    """Return a decorator that makes a rule of a check."""

    def take(check: Looking) -> Looking:
        _RULES.append(Rule(id=id, title=title, severity=severity, why=why, sources=sources, cure=cure, check=check))
        return check

    return take


def unit_of(group: str) -> str | None:
    """Return the service whose cgroup it is."""
    units = _SERVICE.findall(group)
    return units[-1] if units else None


def discover() -> dict[str, Rule]:
    """Return all rules by id, in the order of the modules' names and of each module."""
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(info.name)
    return {each.id: each for each in sorted(_RULES, key=lambda each: each.check.__module__)}
