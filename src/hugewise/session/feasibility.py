"""Feasibility of a study here: its plan on this machine, or in guests of it, with the policies and workloads known.

`provide` fetches, builds and boots what a study's guests need; all else here only looks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hugewise import policies, workloads
from hugewise.errors import UserError
from hugewise.host.journal import at_rest
from hugewise.host.local_host import LocalHost, must_enter
from hugewise.machine.proc import meminfo
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.policy import mechanism as mechanism_of
from hugewise.model.procedure import Staged
from hugewise.plan import memory
from hugewise.plan.arms import GuestHouse
from hugewise.plan.cells import NO_TURNS, TakesTurns, resolve
from hugewise.plan.plan import Plan, plan
from hugewise.store.records import Run
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.guests.resources import GuestResources, ImagePackages
    from hugewise.model.host import Check


_ONCE = "once, for every choice of its workloads (--only, --arms)"


def make_plan(
    study: Study,
    host: Host | None = None,
    guests: GuestHouse | None = None,
    in_turns: Mapping[str, TakesTurns] = NO_TURNS,
) -> Plan:
    """Plan `study` for this machine and this user: what can run, and what is left out and why. `in_turns`: the cells
    that take turns where the study leaves the design open.

    Arms that run in guests are planned in `guests`, or (None) with the images and kernels that exist already, without
    fetching anything. The plan's `first` lists what a run has to do before; kernels that were never booted are planned
    as if they had every page size. Raises StudyError, UserError.
    """
    host = host or at_rest(LocalHost())
    sizes = PageSizes.discover(host)
    first: tuple[str, ...] = ()
    if study.guest is not None and guests is None:
        from hugewise.guests import qemu, resources  # noqa: PLC0415  (only studies of guests need them)

        qemu.must_be_there()
        seen = resources.look(study)
        guests, first = seen, (*seen.first, *_image(study, seen))
    known, mechanism = policies.discover(sizes), mechanism_of(host)
    made = plan(study, known, workloads.discover(), host, sizes, mechanism, guests, in_turns)
    if guests is not None and guests.pending:
        first += tuple(_unseen(made, study, guests))
    return msgspec.structs.replace(made, first=(*first, *memory.costs(made.cells, host)))


def fitting(planned: Plan, run: Run | None, host: Host, peaks: Mapping[str, int]) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a session with as many arms in a block as the memory that is free now has room for, and what
    there is to tell of that; of a run that goes on, as many as when it began. `peaks`: bytes that a first attempt of a
    cell's command was seen to have. Raises HugewiseError.
    """
    if run is not None:
        return memory.as_begun(planned, {cell.id: (cell.at_most, cell.copies) for cell in run.opened.cells}), ()
    return memory.fitting(planned, meminfo(host).get("MemAvailable"), peaks)


def with_room(planned: Plan, host: Host, guest: int, privileged: bool) -> Plan:
    """Return the plan without the arms whose pools, or guests, there is no room for beside what this host is for.
    `guest`, `privileged`: as for `plan.memory.pool_pages`. Raises HugewiseError where nothing is left.
    """
    return memory.within(planned, memory.of_host(host), guest, privileged=privileged)


def must_have_cells(study: Study, planned: Plan) -> None:
    """Raise UserError, with the reasons, where nothing of the study can run."""
    if not planned.cells:
        reasons = "; ".join(dict.fromkeys(f"{left.what}: {left.reason}" for left in planned.left_out))
        raise UserError(f"nothing of {study.name} can run here: {reasons}", hint="see: hugewise doctor")


def must_begin(planned: Plan, folder: Path) -> None:
    """Raise UserError where a command of the user's begins in a `folder` that its account cannot enter."""
    for cell in planned.cells:
        workload = cell.workload
        begins = (workload.stage_account if isinstance(workload, Staged) else workload.account) == "caller"
        if begins and cell.account is not None:
            must_enter(cell.account, folder)


def provide(study: Study, say: Callable[[str], None]) -> GuestResources | None:
    """Provide for the guests of `study`: fetch, build and boot what they need. None where the study has no guests.

    Raises StudyError, UserError, HugewiseError.
    """
    if study.guest is None:
        return None
    from hugewise.guests import qemu, resources  # noqa: PLC0415

    qemu.must_be_there()
    return resources.provide(study, lambda bare: _for_image(study, bare), say)


def guest_checks(study: Study) -> tuple[Check, ...]:
    """Return which needs of the study's guests this host meets. Raises StudyError, UserError."""
    from hugewise.guests import resources  # noqa: PLC0415

    seen, host = resources.look(study), at_rest(LocalHost())
    packages = _for_image(study, dataclasses.replace(seen, pending=False)).whole
    # Packages that the image will bring are not missing: only this host's lacks remain.
    planned = make_plan(study, host, seen)
    beside = [left for left in planned.left_out if left.packages]
    refused = [left for left in planned.left_out if not left.packages]
    return (
        *resources.checks(study, packages, beside, privileged=host.privileged()),
        *resources.refusals(refused, nothing=not planned.cells),
    )


def _lacking(study: Study, bare: GuestHouse) -> tuple[str, ...]:
    left_out = make_plan(study, guests=bare).left_out
    return tuple(dict.fromkeys(package for left in left_out for package in left.packages))


def _for_image(study: Study, bare: GuestResources) -> ImagePackages:
    """Return the packages that guests without an image lack: those of this part of a study, and those of the whole.

    A part that needs no image has none. Any other part takes the image of the whole study: counts in a guest may depend
    on how its disk is laid out, so that part and whole compare better, and the image is made once. An image that
    another study left in the cache is not taken, though it may have all packages: the guest would then depend on what
    ran before.
    """
    from hugewise.guests.resources import ImagePackages  # noqa: PLC0415  (there: `bare` is)

    own = _lacking(study, bare)
    old = study.whole is None and bool(study.cells)  # a run that began before the whole was kept has its own image
    if old or bare.counting or not (own or bare.use.packages or bare.use.sources):
        return ImagePackages(own, own)
    whole, known = study.whole or study, workloads.discover()
    try:
        every = resolve(msgspec.structs.replace(whole, cells=()), known)
    except UserError:
        if study.whole is None:
            raise
        # An error of another workload, or an unknown one, is no reason against this one.
        return ImagePackages(own, own)
    # Programs of a cell do not depend on arms: the whole study's arms need no plan, and their kernels need not exist.
    with bare.within():
        lacking = [each.package for cell in every for each in cell.workload.missing(cell.values) if each.package]
    return ImagePackages(own, tuple(dict.fromkeys((*(name for one in lacking for name in one.split()), *own))))


def _image(study: Study, seen: GuestResources) -> Iterator[str]:
    """Tell that a run makes the image that its workloads need."""
    use = seen.use
    wanted = sorted({*use.packages, *_for_image(study, dataclasses.replace(seen, pending=False)).whole})
    if use.counting or not (wanted or use.sources):
        return
    sources = f", and the sources of {' '.join(use.sources)}" if use.sources else ""
    yield f"an image is made of Debian {use.suite}: {' '.join(wanted)}{sources}; {_ONCE}"


def _unseen(made: Plan, study: Study, seen: GuestHouse) -> Iterator[str]:
    """Tell that programs which the study names are looked up when the image exists."""
    assert study.guest is not None
    with seen.within():
        lacking = [each for cell in made.cells for each in cell.workload.missing(cell.values) if each.named]
    for name in dict.fromkeys(each.named for each in lacking):
        packages = " ".join(study.guest.packages)
        yield f"{name} is looked for in the image when it is made (of {packages}): without it nothing of its cells runs"
