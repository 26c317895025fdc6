"""What a workload's functions are given: parameters, treatments, and what an attempt left behind, without one."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from hugewise.model.pages import PageKind, PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Part, Places, RoleUse
from hugewise.model.workload import Parameter, ParameterValue
from hugewise.plan.cells import typed
from hugewise.study.keys import Place

MIB, GIB = 1 << 20, 1 << 30
PLACES = Places(data="/d", run="/r", ports=(), sut=(0,), client=(1,))


class Parametrised(Protocol):
    """A workload, as far as its parameters go."""

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...


def given(workload: Parametrised, **parameters: Any) -> dict[str, ParameterValue]:
    """The workload's parameters as a plan has them: these, and the others' defaults."""
    assert set(parameters) <= {parameter.name for parameter in workload.parameters}
    return {
        parameter.name: typed(parameter, value, Place("test.toml"))
        for parameter in workload.parameters
        if (value := parameters.get(parameter.name, parameter.default)) is not None
    }


def treatment(kind: PageKind, size: int, **more: Any) -> Treatment:
    """Of the system, with pages of that kind and size in bytes."""
    return Treatment(**{"policy": kind, "mechanism": "system", "target": PageTarget(kind, size), **more})


BASE, HUGE = treatment("base", 4096), treatment("thp", 2 << 20)
POOL = treatment(
    "hugetlb",
    2 << 20,
    policy="hugetlb-2m",
    map_hugetlb=2 << 20,
    environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"},
)

GIGANTIC = treatment(
    "hugetlb",
    GIB,
    policy="hugetlb-1g",
    map_hugetlb=GIB,
    environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1073741824"},
)


def use(cpu_s: float | None = None, user_s: float | None = None, system_s: float | None = None) -> RoleUse:
    """What one side took."""
    return RoleUse(cpu_s=cpu_s, user_s=user_s, system_s=system_s, faults=None if cpu_s is None else 9)


NOT_COUNTED = use()


class Said:
    """Texts by step (`timed` is the timed command), and files of `places.run` by name. `turns`: what counts."""

    def __init__(
        self,
        stdout: Mapping[str, str],
        *,
        stderr: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        sut: RoleUse = NOT_COUNTED,
        client: RoleUse = NOT_COUNTED,
        seconds: float = 1.0,
    ) -> None:
        self.steps, self._stderr, self._files = dict(stdout), stderr or {}, files or {}
        self.begin, self.end = 1000.0, 1000.0 + seconds
        self.turns: tuple[Part, ...] = ()
        self.sut, self.client = sut, client

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.turns or (Part(self.begin, self.end),)

    def stdout(self, step: str = "timed") -> str:
        return self.steps[step]

    def stderr(self, step: str = "timed") -> str:
        return self._stderr.get(step, "")

    def files(self, pattern: re.Pattern[str]) -> Iterable[bytes]:
        return [self._files[name] for name in sorted(self._files) if pattern.fullmatch(name)]
