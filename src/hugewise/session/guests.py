"""The guests' part of a session: what it makes for them and keeps of them. Where a study has none, there is nothing.

What knows QEMU is imported when there are guests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hugewise.errors import RunError
from hugewise.files import storing
from hugewise.host.ledger import Record
from hugewise.machine.machine import Contained
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Deployment
from hugewise.plan.plan import Arm
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.guests.boarding import Boarding
    from hugewise.guests.provided import Provided

__all__ = ["check", "deployment", "keep", "looking_in", "machine", "share", "versions"]


def share(
    study: Study,
    guests: Provided | None,
    contain: Callable[[str], Contained],
    closing: ExitStack,
    note: Callable[[Record], None],
    *,
    seed: bytes,
    privileged: bool,
) -> Boarding | None:
    """Make what the guests share on this host: sockets, a network, a folder that is served to them.

    `closing` undoes it, `note` (the journal) hears of it before; `seed` is the run's. Raises UserError.
    """
    if guests is None:
        return None
    from hugewise.guests.boarding import Boarding  # noqa: PLC0415

    return Boarding.open(study, guests, contain, closing, note, seed=seed, privileged=privileged)


def deployment(arm: Arm, pool: int, guests: Provided | None, host: Host) -> Deployment:
    """How an arm is deployed whose workload takes `pool` bytes of huge pages: where it ran, and below that."""
    if guests is None or arm.kernel is None or arm.backing is None:
        return arm.policy.deployment(PageSizes.discover(host), arm.treatment, pool)
    from hugewise.guests.deployment import deployed  # noqa: PLC0415

    machine = guests.machine(arm.kernel)
    assert not isinstance(machine, str)
    inside = arm.policy.deployment(machine.sizes, arm.treatment, pool)
    kernel = f"the kernel {arm.kernel}"
    return deployed(inside, kernel, machine.sizes.base, arm.backing, guests.memory, emulated=guests.emulated)


def versions(guests: Provided | None) -> Mapping[str, str]:
    """What takes part in a run because of its guests, by name."""
    return {} if guests is None else guests.versions()


def machine(arm: Arm, guests: Provided | None) -> Mapping[str, Any] | None:
    """What makes the guest that an arm runs in another machine than others; None where it runs on the host."""
    if guests is None or arm.kernel is None or arm.backing is None:
        return None
    return guests.identity(arm.kernel, arm.backing)


def keep(folder: Path, study: Study, guests: Provided | None) -> None:
    """Keep in the run's folder which kernels and accelerator its guests have, and how the kernels differ."""
    if guests is None:
        return
    from hugewise.model import guest_record  # noqa: PLC0415

    with storing(f"the run's folder {folder}"):
        guest_record.write(folder, guests.record(study))


def check(folder: Path, before: Mapping[str, str], guests: Provided | None) -> None:
    """One run has one accelerator, as figures under another are not of the same kind; and guests that count are all the
    same, as a count is of one of each. Raises RunError.

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


def looking_in(guests: Provided | None) -> AbstractContextManager[None]:
    """Meanwhile programs are looked for where the workloads run."""
    return nullcontext() if guests is None else guests.within()
