"""Deployment of an arm, from its policy's name and figures, when it is planned and whenever a run is read.

Nothing that somebody else wrote becomes a line, a command or a word of a file: a run may be another's, or forged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from hugewise import policies
from hugewise.deployment.program import Destination, UnitFacts, for_program
from hugewise.deployment.runtimes import VARIABLES
from hugewise.model.guest import Backing
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Deployment, Policy, Treatment
from hugewise.model.workload import MARKS, Configuration, Configured, ParameterValue, Workload
from hugewise.plan.guest_deployment import deployed

_KNOB = re.compile(r"/sys/kernel/mm/(?:transparent_hugepage|hugepages|ksm)(?:/[A-Za-z0-9_-]{1,64}){1,4}")
_VALUE = re.compile(r"[A-Za-z0-9_+-]{1,64}")
_VARIABLE = re.compile(
    r"GLIBC_TUNABLES|MALLOC_[A-Z_]{1,40}|MIMALLOC_[A-Z_]{1,40}|PYTHONMALLOC|[A-Z_]{1,40}HUGE_?PAGES?"
)
_TEXT = re.compile(r"[A-Za-z0-9_.,:=+%-]{0,4096}")
_BASES = (4096, 16384, 65536)
_POOLS = tuple(1 << power for power in range(15, 35))


class GuestMemory(NamedTuple):
    """Guest as a deployment needs it: its kernel by its name in the study, its base page, its backing, and its size."""

    kernel: str
    base: int
    backing: Backing
    memory: int
    emulated: bool


class Planned(NamedTuple):
    """An arm: its treatment, the workload with its values, and the bytes that it takes from a pool."""

    treatment: Treatment
    workload: Workload
    values: Mapping[str, ParameterValue]
    pool: int


def deployment(
    arm: Planned, policy: Policy, sizes: PageSizes, facts: UnitFacts, guest: GuestMemory | None = None
) -> Deployment:
    """Return the deployment of the arm, where it ran, and below. Raises ValueError for what no file can say."""
    found = _with_program(
        policy.deployment(sizes, arm.treatment, arm.pool), arm, policy, facts, inside=guest is not None
    )
    if guest is None:
        return found
    kernel, base, backing, memory, emulated = guest
    return deployed(found, f"the kernel {kernel}", base, backing, memory, emulated=emulated)


def _with_program(policy: Deployment, arm: Planned, by: Policy, facts: UnitFacts, *, inside: bool) -> Deployment:
    """Return the policy's settings of the host behind the files of the program alone."""
    values, workload, treatment = arm.values, arm.workload, arm.treatment
    argv = values.get({"command": "argv", "service": "server"}.get(workload.name, ""))
    words = argv if isinstance(argv, tuple) and not any(mark in word for word in argv for mark in MARKS) else ()
    given: Configuration = (treatment.environment, ())
    if words and "/" in words[0] and not inside:  # a unit, or who calls the script, begins in another folder
        words = (str(Path(words[0]).absolute()), *words[1:])
    variables, files = workload.configuration(treatment, values) if isinstance(workload, Configured) else given
    # An arm that a study made of a policy has a name of its own, which no other machine knows.
    name = "base" if treatment.target.kind == "base" else by.name
    where = Destination(policy=name, words=words, environment=variables, facts=facts)
    own = for_program(treatment, where, arm.pool)
    return msgspec.structs.replace(policy, files=(*files, *own, *policy.files))


def made_again(
    arm: Planned, registered: str, recorded: Deployment, sizes: object, guest: GuestMemory | None = None
) -> Deployment:
    """Return the deployment of an arm of a run that is read: by today's code, without the command, whose words are the
    run's. `registered` names its policy.

    `recorded` tells alone whether the units of its host know MemoryTHP=; `sizes` are what the run says of its host.
    Never raises: what cannot be made is told in the note.
    """
    try:
        treatment = _checked(arm.treatment)
        known = _sizes(sizes, None if guest is None else guest.base)
        policy = policies.discover(known).get(registered)
        if policy is None:
            return Deployment(note="there are no files: no policy of this version of hugewise has its name")
        thp = any(file.kind == "unit" and "MemoryTHP=" in file.content for file in recorded.files)
        values = {name: value for name, value in arm.values.items() if name not in ("argv", "server")}
        if isinstance(arm.workload, Configured):
            _variables(arm.workload.configuration(treatment, values)[0])
        own = arm._replace(treatment=treatment, values=values)
        return deployment(own, policy, known, UnitFacts(_MEMORY_THP if thp else None), guest)
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        return Deployment(note=f"there are no files: {error}")


_MEMORY_THP = 260  # the first systemd with it


def _checked(treatment: Treatment) -> Treatment:
    """Return the treatment if it has only what a policy or an arm of a study can have. Raises ValueError."""
    for path, value in treatment.knobs.items():
        if not (_KNOB.fullmatch(path) and _VALUE.fullmatch(value)):
            raise ValueError("it turns what is no page setting")
    _variables(treatment.environment)
    if not _TEXT.fullmatch(treatment.layout):
        raise ValueError("its layout is none")
    return treatment


def _variables(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if VARIABLES.get(name) != value and not (_VARIABLE.fullmatch(name) and _TEXT.fullmatch(value)):
            raise ValueError("it sets a variable that is no allocator's")


def _sizes(said: object, base: int | None) -> PageSizes:
    """Return all sizes that a machine of that base page can have; of the run's own host the default pool."""
    told = said if isinstance(said, Mapping) else {}
    base = told.get("base") if base is None else base
    base = base if base in _BASES else _BASES[0]
    pmd, default = base * (base // 8), told.get("default")
    orders = tuple(base << order for order in range(1, 14) if base << order < pmd)
    return PageSizes(base, pmd, orders, _POOLS, orders, default if default in _POOLS else None)
