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
from hugewise.model.guest import PAGE_OF, Backing, BackingCell
from hugewise.model.host import Host
from hugewise.model.pages import THP
from hugewise.model.policy import Policy
from hugewise.plan.arms import Arm, Platform, offered
from hugewise.policies import discover
from hugewise.quantity import format_size
from hugewise.study.guest import GuestUse
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse

__all__ = ["GuestHouse", "Venue", "cannot_back", "in_guests", "laid_out", "margin", "on_host"]

_LEAST_MARGIN, _SHARE = 512 << 20, 0.1


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
    packages  whether the study itself names packages, of which nobody knows yet which programs they have
    within    meanwhile programs are looked for there
    """

    arm: Callable[[PolicyUse, Place], Arm | str]
    memory: int | None
    privileged: bool = True
    shared: int | None = None
    emulated: bool = False
    counting: bool = False
    pending: bool = False
    packages: bool = False
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
        packages=study.guest is not None and bool(study.guest.packages),
        within=guests.within,
    )


def margin(total: int) -> int:
    """Bytes that are left to the host itself: a tenth of its memory, and half a GiB at least."""
    return max(_LEAST_MARGIN, int(total * _SHARE))


def _in_guest(use: PolicyUse, place: Place, study: Study, guests: GuestHouse, host: Host) -> Arm | str:
    """The arm in a guest under its kernel: a kernel has page sizes of its own, and so policies of its own."""
    named = use.backed_by
    if all(each.backing is None for each in study.policies) and _not_transparent(host, share=named.share) is not None:
        named = msgspec.structs.replace(named, pages="base")  # no factor of this study, and this host gives no others
    backing = named if study.guest is None else laid_out(named, study.guest)
    if (refusal := cannot_back(backing, host)) is not None:
        return refusal
    kernel = study.kernel_of(use).name
    machine = guests.machine(kernel)
    if isinstance(machine, str):
        return machine
    arm = offered(use, place, discover(machine.sizes), machine)
    return arm if isinstance(arm, str) else msgspec.structs.replace(arm, kernel=kernel, backing=backing)


def laid_out(backing: Backing, guest: GuestUse) -> Backing:
    """The backing with the guest's NUMA nodes, where it has several."""
    if not guest.node:
        return backing
    cells = tuple(
        BackingCell(
            memory=node.memory,
            pages=backing.by_node[number] if backing.by_node else backing.pages,
            nodes=node.bind or backing.nodes,
            cpus=node.cpus or (),
        )
        for number, node in enumerate(guest.node)
    )
    return msgspec.structs.replace(backing, cells=cells)


def cannot_back(backing: Backing, host: Host) -> str | None:
    """Why this host cannot make a guest's memory of those pages, or on those nodes. What a pool has shows when it is
    filled.
    """
    known = host.names(NODES)
    for part in backing.parts(0):
        absent = [node for node in part.nodes or () if f"node{node}" not in known]
        if absent:
            return f"this host has no NUMA node {absent[0]} to bind a guest's memory to"
        if (size := PAGE_OF.get(part.pages)) is not None and (
            why := _no_pool(size, part.nodes or (None,), host)
        ) is not None:
            return why
    return _not_transparent(host, share=backing.share) if "thp" in backing.kinds else None


def _not_transparent(host: Host, *, share: bool) -> str | None:
    """Why QEMU's advice has no effect here.

    Memory of a file descriptor, as shared memory is, QEMU maps at a boundary of the file's pages (file_ram_alloc in its
    physmem.c), and no huge page fits: seen with QEMU 7.2 in 6 of 6 starts, with shmem_enabled = advise.
    """
    if share:
        return "QEMU maps shared memory at a boundary of base pages: no transparent huge page fits, whatever is set"
    try:
        chosen = host.read(f"{THP}/enabled")
    except OSError:
        return 'the kernel of this host has no transparent huge pages: write backing = "base", or a pool'
    if "[never]" not in chosen:
        return None
    return (
        f"{THP}/enabled of this host is never: QEMU's advice has no effect; echo madvise > {THP}/enabled (as root), or"
        ' write backing = "base"'
    )


def _no_pool(size: int, nodes: Sequence[int | None], host: Host) -> str | None:
    """Why a guest cannot have its memory from pools of this host with pages of `size` bytes, on `nodes`."""
    if not host.privileged():
        return "a guest's memory from a pool of this host needs root, which fills it"
    for node in nodes:
        if not host.writable(f"{pool_folder(size, node)}/nr_hugepages"):
            where = "this host" if node is None else f"NUMA node {node} of this host"
            return f"{where} has no pool of {format_size(size)} pages"
    return None
