"""Arms of a study, on this machine or in its guests, or why the machine cannot offer them.

Pure but for the files that are read through `Host`.
"""

from __future__ import annotations

import re
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
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Mechanism, Policy, Treatment
from hugewise.model.trial import Judged
from hugewise.policies import discover
from hugewise.quantity import format_size, parse_size
from hugewise.study import keys
from hugewise.study.guest import GuestUse
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse

_SIZED = re.compile(r"(mthp|hugetlb|reserved|surplus)-(.+?)(-shmem)?")


class Arm(msgspec.Struct, frozen=True):
    """Policy within a cell. `name` is the study's; `policy` the registered one behind it.

    `judged` is what the study declares of it; see `Cell.threshold` for what that means. Of an arm in guests: the kernel
    that they boot, by its name in the study, and what their memory is made of.
    """

    name: str
    policy: Policy
    treatment: Treatment
    judged: Judged = "backing"
    kernel: str | None = None
    backing: Backing | None = None


class Platform(msgspec.Struct, frozen=True):
    """The machine's three sides: its files, its page sizes, and by what mechanism policies reach a program here."""

    host: Host
    sizes: PageSizes
    mechanism: Mechanism


def offered(use: PolicyUse, place: Place, policies: Mapping[str, Policy], machine: Platform) -> Arm | str:
    """Return the arm, or why this machine cannot offer it. Raises StudyError for a mistake of the study."""
    host, sizes, mechanism = machine.host, machine.sizes, use.mechanism or machine.mechanism
    registered = policies.get(use.registered)
    if registered is None:
        return _absent(use.registered, place, policies, sizes)
    if (use.changed or use.registered != use.name) and use.name in policies:
        raise place.at("name").wrong(
            "is the name of a registered policy, but it is changed here",
            use.name,
            hint="give the changed policy a name of its own",
        )
    reason = registered.missing(host, sizes, mechanism)
    if reason is not None:
        return reason
    treatment = registered.treatment(host, sizes, mechanism)
    if not use.changed:
        return Arm(use.name, registered, treatment, use.judged or "backing")
    if use.set and mechanism != "system":
        knobs = ", ".join(use.set)
        own = machine.mechanism == "system"  # the study's word, not the machine's
        return f"turning {knobs} needs " + ('mechanism = "system"' if own else "root")
    for knob, value in use.set.items():
        refusal = _knob_refuses(host, knob, value)
        if refusal is not None:
            return refusal
    if use.thp_disable:
        if treatment.map_hugetlb is not None:
            raise place.at("thp_disable").wrong(
                "does not reach pages of a pool", use.registered, hint="change a policy of transparent huge pages"
            )
        base = PageTarget("base", sizes.base)
        treatment = msgspec.structs.replace(treatment, thp_disable="all", advice="none", target=base)
    if use.layout:
        if not treatment.layout or treatment.target.kind == "hugetlb":
            hint = 'change one of those: from = "layout-thp", or from = "layout-base"'
            raise place.at("layout").wrong("is for the policies layout-thp and layout-base", use.layout, hint=hint)
        kind = use.layout.split(",")[0]
        # Pages of a part of the heap, or of the system's setting, are no promise for all of it.
        any_size = PageTarget("any", sizes.base)
        target = treatment.target if kind == treatment.layout else any_size
        treatment = msgspec.structs.replace(treatment, layout=use.layout, target=target)
    changed = msgspec.structs.replace(
        treatment,
        policy=use.name,
        knobs={**treatment.knobs, **{f"{THP}/{knob}": value for knob, value in use.set.items()}},
        environment={**treatment.environment, **use.environment},
    )
    return Arm(use.name, registered, changed, use.judged or "backing")


def _absent(name: str, place: Place, policies: Mapping[str, Policy], sizes: PageSizes) -> str:
    """Return why a policy that is not registered here is left out. Raises StudyError where no machine would have it."""
    if (name == "thp" or name.startswith("thp-")) and sizes.pmd is None:
        return "the kernel has no transparent huge pages"
    sized = _SIZED.fullmatch(name)
    size = _power_of_two(sized[2]) if sized else None
    if sized is None or size is None:
        raise place.wrong("is not a policy", name, hint=keys.near(name, policies.keys(), what="policies"))
    shared = sized[3] or ""
    canonical = f"{sized[1]}-{format_size(size)}{shared if sized[1] == 'mthp' else ''}"
    if canonical in policies or (shared and sized[1] != "mthp"):
        raise place.wrong("is not a policy", name, hint=f"did you mean {canonical}?")
    here = sizes.hugetlb if sized[1] != "mthp" else sizes.shmem if shared else sizes.mthp
    words = "transparent huge pages (mTHP)" if sized[1] == "mthp" else "pool of hugetlb pages"
    words += " for shared memory" if shared else ""
    offered = ", ".join(format_size(known) for known in here) or "none"
    return f"the kernel has no {words} of {format_size(size)} (it has: {offered})"


def _power_of_two(text: str) -> int | None:
    try:
        size = parse_size(text)
    except ValueError:
        return None
    return size if size > 0 and size & (size - 1) == 0 else None


def _knob_refuses(host: Host, knob: str, value: str) -> str | None:
    path = f"{THP}/{knob}"
    try:
        now = host.read(path)
    except OSError:
        return f"the kernel has no {path}"
    offered = now.replace("[", "").replace("]", "").split()
    if "[" in now and value not in offered:
        return f"{path} does not take {value!r} (it takes: {', '.join(offered)})"
    return None


_LEAST_MARGIN, _SHARE = 512 << 20, 0.1


@dataclass(frozen=True)
class Venue:
    """Machine or guests that arms run on.

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
    """Guests of a study's arms, as far as a plan needs them; `hugewise.guests.resources` has the implementation."""

    @property
    def emulated(self) -> bool:
        """True if the guests' clock means nothing."""
        ...

    @property
    def counting(self) -> bool:
        """True if the guests' instructions are counted."""
        ...

    @property
    def pending(self) -> bool:
        """True if the guests' image is still to be made: packages that a workload lacks will be in it."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of memory of each guest."""
        ...

    def machine(self, kernel: str) -> Platform | str:
        """Return a guest under the study's kernel of that name, as its survey found it, or why there can be none."""
        ...

    def within(self) -> AbstractContextManager[None]:
        """Meanwhile programs are looked for in the guests' image."""
        ...


def on_host(policies: Mapping[str, Policy], machine: Platform) -> Venue:
    """Return this machine as a venue, with the policies of its page sizes."""
    return Venue(
        arm=lambda use, place: offered(use, place, policies, machine),
        memory=meminfo(machine.host).get("MemTotal"),
        privileged=machine.mechanism == "system",
    )


def in_guests(study: Study, guests: GuestHouse, host: Host) -> Venue:
    """Return the guests of `study`, on this host."""
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
    """Return the bytes that are left to the host itself: a tenth of its memory, and half a GiB at least."""
    return max(_LEAST_MARGIN, int(total * _SHARE))


def _in_guest(use: PolicyUse, place: Place, study: Study, guests: GuestHouse, host: Host) -> Arm | str:
    # a kernel has page sizes of its own, and so policies of its own
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
    """Return the backing with the guest's NUMA nodes, where it has several."""
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
    """Return why this host cannot make a guest's memory so; the size of a pool shows when it is filled."""
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
    """Return why QEMU's advice has no effect here, or None.

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
    """Return why pools of this host with pages of `size` bytes cannot give a guest its memory on `nodes`, or None."""
    if not host.privileged():
        return "a guest's memory from a pool of this host needs root, which fills it"
    for node in nodes:
        if not host.writable(f"{pool_folder(size, node)}/nr_hugepages"):
            where = "this host" if node is None else f"NUMA node {node} of this host"
            return f"{where} has no pool of {format_size(size)} pages"
    return None
