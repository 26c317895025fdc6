"""Rules of the audit, found by being there: a module of checks for each subject, and its texts in a TOML file. Pure."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import resources
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


class RuleText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts of a rule: what is wrong in a sentence, why, where that is known from, and what cures it."""

    title: str
    severity: Severity
    why: str
    sources: tuple[str, ...]
    cure: str


class Rule(RuleText, frozen=True, kw_only=True):
    """A trap with its stable id; `check` yields each place of the host's facts that has the fault."""

    id: str
    check: Looking


_RULES: list[Rule] = []


def rule(id: str) -> Callable[[Looking], Looking]:
    """Return a decorator that makes a rule of a check, with the texts beside the check's module."""

    def take(check: Looking) -> Looking:
        text = _texts(check.__module__.rpartition(".")[2])[id]
        _RULES.append(Rule(id=id, check=check, **msgspec.structs.asdict(text)))
        return check

    return take


@functools.cache
def _texts(module: str) -> dict[str, RuleText]:
    data = resources.files(__package__).joinpath(f"{module}.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, RuleText])


def unit_of(group: str) -> str | None:
    """Return the service whose cgroup it is."""
    units = _SERVICE.findall(group)
    return units[-1] if units else None


def discover() -> dict[str, Rule]:
    """Return all rules by id, in the order of the modules' names and of each module."""
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(info.name)
    return {each.id: each for each in sorted(_RULES, key=lambda each: each.check.__module__)}
