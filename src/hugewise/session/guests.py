"""Guests of a run: deployment of its arms, identity of their machines, and checks that these are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hugewise.deployment.program import UnitFacts, unit_facts
from hugewise.errors import RunError
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Deployment
from hugewise.plan.arms import Arm
from hugewise.plan.deployment import GuestMemory, Planned
from hugewise.plan.deployment import deployment as made
from hugewise.plan.plan import Cell

if TYPE_CHECKING:
    from hugewise.guests.resources import GuestResources


def deployment(cell: Cell, arm: Arm, pool: int, guests: GuestResources | None, host: Host) -> Deployment:
    """Return the deployment of a cell's arm whose workload takes `pool` bytes of huge pages: in the guest and on its
    host.

    Never raises for the study's contents: a setting that no file can hold is told in the note.
    """
    try:
        return _deployment(cell, arm, pool, guests, host)
    except ValueError as error:
        return Deployment(note=f"there are no files: {error}")


def _deployment(cell: Cell, arm: Arm, pool: int, guests: GuestResources | None, host: Host) -> Deployment:
    planned = Planned(arm.treatment, cell.workload, cell.given(arm), pool)
    if guests is None or arm.kernel is None or arm.backing is None:
        return made(planned, arm.policy, PageSizes.discover(host), unit_facts(host))
    machine = guests.machine(arm.kernel)
    assert not isinstance(machine, str)
    inside = GuestMemory(arm.kernel, machine.sizes.base, arm.backing, guests.memory, guests.emulated)
    return made(planned, arm.policy, machine.sizes, UnitFacts(), inside)


def check(folder: Path, before: Mapping[str, str], guests: GuestResources | None) -> None:
    """Raise RunError where the accelerator changed, as figures under another are not of the same kind; or where
    counting guests differ, as a count is of one of each.

    `before` are the versions of the run's first record.
    """
    if guests is None:
        return
    now = guests.versions()
    began, here = (found.get("accelerator", "").partition(":")[0] for found in (before, now))
    if began != here:
        raise RunError(
            f"{folder}: its guests ran under {began}, and would run under {here} now",
            hint=f"see why: hugewise doctor; have {began} again, or start a new run of the study",
        )
    for name, value in now.items() if guests.counting else ():
        if name != "accelerator" and before.get(name) != value:
            raise RunError(
                f"{folder}: {name} of its guests is {value}, it was {before.get(name, 'not kept')} when the run began;"
                " a count is of one agent, QEMU, CPU model and kernel",
                hint="have that one again (an agent is named by HUGEWISE_GUEST_PROBE_X86_64 or _ARM64), or start a new"
                " run of the study",
            )
