"""The rules, one module a subject, found by being there: each module has its `RULES`."""

from __future__ import annotations

import importlib
import pkgutil

from hugewise.audit.rule import Rule

__all__ = ["discover"]


def discover() -> dict[str, Rule]:
    """Return all rules by id, in the order of the modules' names and of each module."""
    found: dict[str, Rule] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")):
        rules: list[Rule] = importlib.import_module(f"{__name__}.{module}").RULES
        found.update({rule.id: rule for rule in rules})
    return found
