"""Page-size policies, found by being there; the protocol is `hugewise.model.policy.Policy`.

Imports `host` and what is below. A new policy goes here: what `policies(sizes)` of a file returns, one for each size of
the machine, and a row in docs/concepts/policies.md.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from types import ModuleType

from hugewise.model.pages import PageSizes
from hugewise.model.policy import Policy

__all__ = ["discover"]


def discover(sizes: PageSizes) -> dict[str, Policy]:
    """Return all policies for these page sizes, by name: sorted by the first word, and as their module has them."""
    found: dict[str, Policy] = {}
    for module in _modules():
        offered: Iterable[Policy] = module.policies(sizes)
        found.update({policy.name: policy for policy in offered})
    return dict(sorted(found.items(), key=lambda entry: entry[0].partition("-")[0]))


@cache
def _modules() -> list[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
