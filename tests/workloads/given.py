"""What the tests of workloads share: parameters as a study's reader gives them, treatments, and what a role used."""

from __future__ import annotations

from typing import Any

from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.scene import Places, RoleUse
from hugewise.model.workload import ParameterValue
from hugewise.plan.parameters import typed
from hugewise.study.keys import Place

__all__ = ["BASE", "GIB", "MIB", "PLACES", "POOL", "given", "treatment", "used"]

MIB, GIB = 1 << 20, 1 << 30
PLACES = Places(data="/d", run="/r", ports=(), sut=(0,), client=(1,))


def given(workload: Any, **parameters: Any) -> dict[str, ParameterValue]:
    """All parameters of the workload, as they are where nothing else is said."""
    assert set(parameters) <= {parameter.name for parameter in workload.parameters}
    return {
        parameter.name: typed(parameter, value, Place("test.toml"))
        for parameter in workload.parameters
        if (value := parameters.get(parameter.name, parameter.default)) is not None
    }


def treatment(kind: Any, size: int, **more: Any) -> Treatment:
    """A treatment as root."""
    return Treatment(policy=kind, mechanism="system", target=PageTarget(kind, size), **more)


BASE = treatment("base", 4096)
POOL = treatment("hugetlb", 2 * MIB, map_hugetlb=2 * MIB, environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"})


def used(cpu: float | None) -> RoleUse:
    """A role that used so much CPU time, in seconds."""
    return RoleUse(cpu_s=cpu, user_s=None, system_s=None, faults=3)
