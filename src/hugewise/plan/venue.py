"""Where the arms of a study run, as far as a plan asks: this machine, or guests of it.

Pure but for the files that are read through `Host`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import msgspec

from hugewise.host.knob import NODES
from hugewise.host.pool import pool_folder
from hugewise.machine.proc import meminfo
from hugewise.model.guest import PAGE_OF, Backing
from hugewise.model.host import Host
from hugewise.model.pages import THP
from hugewise.model.policy import Policy
from hugewise.plan.arms import Arm, Platform, offered
from hugewise.policies import discover
from hugewise.quantity import format_size
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse

__all__ = ["GuestHouse", "Venue", "in_guests", "on_host"]


@dataclass(frozen=True)
class Venue:
    """Where arms run.

    arm       the arm of a policy there, or why there can be none; raises StudyError for a mistake of the study
    memory    of each machine there, in bytes; None where it does not say
    privileged  whether programs there can be run as somebody else
    shared    the host's memory, in bytes, which guests that run at once share; None for arms on the host itself
    emulated  its clock means nothing
    counting  its instructions are counted
    pending   packages that a workload lacks will be there when it runs
    within    meanwhile programs are looked for there
    """

    arm: Callable[[PolicyUse, Place], Arm | str]
    memory: int | None
    privileged: bool = True
    shared: int | None = None
    emulated: bool = False
    counting: bool = False
    pending: bool = False
    within: Callable[[], AbstractContextManager[None]] = nullcontext


class GuestHouse(Protocol):
    """What a plan asks of the guests that a study's arms run in; `hugewise.guests.provided` answers."""

    @property
    def emulated(self) -> bool:
        """Whether the guests' clock means nothing."""
        ...

    @property
    def counting(self) -> bool:
        """Whether their instructions are counted."""
        ...

    @property
    def pending(self) -> bool:
        """Whether their image is still to be made: packages that a workload lacks will be in it."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of memory of each guest."""
        ...

    def machine(self, kernel: str) -> Platform | str:
        """A guest under the study's kernel of that name, as its survey found it, or why there can be none."""
        ...

    def within(self) -> AbstractContextManager[None]:
        """Meanwhile programs are looked for in the guests' image."""
        ...


def on_host(policies: Mapping[str, Policy], machine: Platform) -> Venue:
    """This machine, with the policies of its page sizes."""
    return Venue(
        arm=lambda use, place: offered(use, place, policies, machine),
        memory=meminfo(machine.host).get("MemTotal"),
        privileged=machine.mechanism == "system",
    )


def in_guests(study: Study, guests: GuestHouse, host: Host) -> Venue:
    """The guests of `study`, on this host."""
    return Venue(
        arm=lambda use, place: _in_guest(use, place, study, guests, host),
        memory=guests.memory,
        shared=meminfo(host).get("MemTotal"),
        emulated=guests.emulated,
        counting=guests.counting,
        pending=guests.pending,
        within=guests.within,
    )


def _in_guest(use: PolicyUse, place: Place, study: Study, guests: GuestHouse, host: Host) -> Arm | str:
    """The arm in a guest under its kernel: a kernel has page sizes of its own, and so policies of its own."""
    backing = use.backed_by
    if (refusal := _cannot_back(backing, host)) is not None:
        return refusal
    kernel = study.kernel_of(use).name
    machine = guests.machine(kernel)
    if isinstance(machine, str):
        return machine
    arm = offered(use, place, discover(machine.sizes), machine)
    return arm if isinstance(arm, str) else msgspec.structs.replace(arm, kernel=kernel, backing=backing)


def _cannot_back(backing: Backing, host: Host) -> str | None:
    """Why this host cannot make a guest's memory of those pages, or on those nodes. What a pool has shows when it is
    filled.
    """
    known = host.names(NODES)
    absent = [node for node in backing.nodes or () if f"node{node}" not in known]
    if absent:
        return f"this host has no NUMA node {absent[0]} to bind a guest's memory to"
    if (size := PAGE_OF.get(backing.pages)) is not None:
        return _no_pool(size, backing.nodes or (None,), host)
    if backing.pages == "base":
        return None
    try:
        enabled = host.read(f"{THP}/enabled")
    except OSError:
        return "the kernel of this host has no transparent huge pages"
    return f"{THP}/enabled of this host is never: QEMU's advice has no effect" if "[never]" in enabled else None


def _no_pool(size: int, nodes: Sequence[int | None], host: Host) -> str | None:
    """Why a guest cannot have its memory from pools of this host with pages of `size` bytes, on `nodes`."""
    if not host.privileged():
        return "a guest's memory from a pool of this host needs root, which fills it"
    for node in nodes:
        if not host.writable(f"{pool_folder(size, node)}/nr_hugepages"):
            where = "this host" if node is None else f"NUMA node {node} of this host"
            return f"{where} has no pool of {format_size(size)} pages"
    return None
