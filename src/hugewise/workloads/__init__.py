"""Workloads, one a file, found by being there; the protocols are in `hugewise.model.workload` and `model.procedure`.

Imports `machine` and the model. A new workload goes here: a file with a `WORKLOAD`, and a row in
docs/reference/workloads.md. What several share is in files that begin with an underscore: `_micro` for those of the
probe, with the simplest of these, `_staged` for those with data, servers or outputs.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from hugewise.model.workload import Workload
from hugewise.workloads import _micro

__all__ = ["discover"]


def discover() -> dict[str, Workload]:
    """Return all workloads by name, sorted."""
    return {workload.name: workload for workload in _every()}


@cache
def _every() -> list[Workload]:
    modules = [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]
    loaded = [importlib.import_module(f"{__name__}.{module}").WORKLOAD for module in modules]
    loaded += _micro.WORKLOADS
    return sorted(loaded, key=lambda each: str(each.name))
