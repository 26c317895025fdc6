"""What the guests of a run are to it: how its arms are deployed, which machines they are, whether they still are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hugewise.attempt.context import Boarding
from hugewise.deployment.program import Destination, UnitFacts, for_program, unit_facts
from hugewise.errors import RunError
from hugewise.host.ledger import JournalRecord
from hugewise.machine.machine import Contained
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Deployment
from hugewise.model.workload import MARKS, Configuration, Configured
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.study.study import Study

if TYPE_CHECKING:
    from hugewise.guests.resources import GuestResources


def deployment(cell: Cell, arm: Arm, pool: int, guests: GuestResources | None, host: Host) -> Deployment:
    """How an arm of the cell is deployed whose workload takes `pool` bytes of huge pages: where it ran, and below.

    Never raises for what a study has in it: what no file can say is told in the note.
    """
    try:
        return _deployment(cell, arm, pool, guests, host)
    except ValueError as error:
        return Deployment(note=f"there are no files: {error}")


def _deployment(cell: Cell, arm: Arm, pool: int, guests: GuestResources | None, host: Host) -> Deployment:
    if guests is None or arm.kernel is None or arm.backing is None:
        policy = arm.policy.deployment(PageSizes.discover(host), arm.treatment, pool)
        return _with_program(policy, cell, arm, pool, unit_facts(host))
    from hugewise.guests.libvirt import deployed  # noqa: PLC0415

    machine = guests.machine(arm.kernel)
    assert not isinstance(machine, str)
    policy = arm.policy.deployment(machine.sizes, arm.treatment, pool)
    inside = _with_program(policy, cell, arm, pool, UnitFacts(), inside=True)
    kernel = f"the kernel {arm.kernel}"
    return deployed(inside, kernel, machine.sizes.base, arm.backing, guests.memory, emulated=guests.emulated)


def _with_program(
    policy: Deployment, cell: Cell, arm: Arm, pool: int, facts: UnitFacts, *, inside: bool = False
) -> Deployment:
    """The policy's settings of the host behind the files of the program alone."""
    values, workload = cell.given(arm), cell.workload
    argv = values.get({"command": "argv", "service": "server"}.get(workload.name, ""))
    words = argv if isinstance(argv, tuple) and not any(mark in word for word in argv for mark in MARKS) else ()
    given: Configuration = (arm.treatment.environment, ())
    if words and "/" in words[0] and not inside:  # a unit, or who calls the script, begins in another folder
        words = (str(Path(words[0]).absolute()), *words[1:])
    variables, files = workload.configuration(arm.treatment, values) if isinstance(workload, Configured) else given
    # An arm that a study made of a policy has a name of its own, which no other machine knows.
    name = "base" if arm.treatment.target.kind == "base" else arm.policy.name
    where = Destination(policy=name, words=words, environment=variables, facts=facts)
    own = for_program(arm.treatment, where, pool)
    return msgspec.structs.replace(policy, files=(*files, *own, *policy.files))


def machine(arm: Arm, guests: GuestResources | None) -> Mapping[str, Any] | None:
    """What makes the guest that an arm runs in another machine than others; None where it runs on the host."""
    if guests is None or arm.kernel is None or arm.backing is None:
        return None
    return guests.identity(arm.kernel, arm.backing)


class ForGuests(NamedTuple):
    """What a session has for its guests: makes cgroups, undoes at its end, journals; the run's seed; is root."""

    contain: Callable[[str], Contained]
    closing: ExitStack
    note: Callable[[JournalRecord], None]
    seed: bytes
    privileged: bool


class OfRun(NamedTuple):
    """Of which run it is: the cells of its plan, the number of the session, the run's folder."""

    cells: Sequence[Cell]
    session: int
    folder: str


def boarding(study: Study, guests: GuestResources, held: ForGuests, run: OfRun) -> Boarding:
    """Gives each attempt a guest of its own, or all of the session one. Raises UserError."""
    from hugewise.guests.boarding import GuestBoarding  # noqa: PLC0415  (knows QEMU)

    contain, closing, note, seed, privileged = held
    each = GuestBoarding.open(study, guests, contain, closing, note, seed=seed, privileged=privileged)
    if not guests.resident:
        return each
    from hugewise.guests.boarding import ResidentBoarding  # noqa: PLC0415

    stays = ResidentBoarding(each, run.cells, run.session, run.folder)
    closing.callback(stays.end)
    return stays


def check(folder: Path, before: Mapping[str, str], guests: GuestResources | None) -> None:
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
