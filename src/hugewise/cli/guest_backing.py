"""`hugewise verify DOMAIN`: what the memory of a virtual machine is made of, and what was promised."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from hugewise.errors import UserError
from hugewise.model.guest import Pages
from hugewise.model.host import Host
from hugewise.quantity import readable_size
from hugewise.visible import printable, say, say_json

if TYPE_CHECKING:
    from hugewise.audit.audit import TrapFound
    from hugewise.guests.running import GuestVerified, RunningGuest

__all__ = ["lines", "show"]

_OPEN = (
    "call it as root, with debugfs mounted (mount -t debugfs none /sys/kernel/debug), outside of containers; KVM counts"
    " its pages on x86 alone, and a kernel that is locked down does not tell them"
)


def show(machine: RunningGuest, host: Host, policy: str | None, share: float, *, as_json: bool) -> NoReturn:
    """Look, say what was found, and end with the exit status. Raises UserError."""
    from hugewise.cli.guest_xml import vm_traps  # noqa: PLC0415  (only of a virtual machine)
    from hugewise.guests import running  # noqa: PLC0415

    found = running.verify(machine, host, _pages(policy), share)
    if as_json:
        say_json(found)
    else:
        huge = found.delivered and found.share is not None
        why = () if huge else vm_traps(running.as_domain(machine), host, running=True)
        for line in lines(found, why):
            say(line)
    sys.exit(0 if found.delivered else 1)


def _pages(policy: str | None) -> Pages | None:
    known: tuple[Pages, ...] = typing.get_args(Pages)
    for pages in known:
        if pages == policy:
            return pages
    if policy is None:
        return None
    raise UserError(f"--policy {policy}: not what a guest's memory is made of", hint=f"choose from: {', '.join(known)}")


def lines(found: GuestVerified, why: tuple[TrapFound, ...]) -> Iterator[str]:
    """The answer first, then what each piece of the guest's memory is made of, and what takes huge pages from it."""
    from hugewise.guests.kvm import UNKNOWN  # noqa: PLC0415

    verdict = {True: "as promised", False: "NOT as promised", None: "NOT PROVEN"}[found.delivered]
    if found.delivered is None and found.host:
        verdict += f", {UNKNOWN}"
    yield f"{printable(found.subject)}: {verdict}: {printable(found.said)}"
    yield f"  promised by {found.promised}"
    yield from (f"  note: {printable(note)}" for note in found.notes)
    yield ""
    yield f"The guest's memory (from smaps of process {found.pid}):"
    for one in found.memory:
        made = ", ".join(f"{readable_size(size)} {kind}" for kind, size in sorted(one.bytes.items())) or "nothing yet"
        yield f"  {printable(one.id)}: {readable_size(one.size)}, promised {one.promised or 'nothing'}: {made}"
    if found.kvm is not None:
        told = {True: "as promised", False: "NOT as promised", None: "not judged"}[found.kvm.delivered]
        yield ""
        yield f"What KVM maps of it, as far as the guest has touched it ({told}):"
        yield f"  {printable(found.kvm.said)}"
        if found.kvm.bytes is None:
            yield f"  cure: {_OPEN}"
    if why:
        yield ""
        yield "What takes huge pages from such a machine here:"
    for trap in why:
        yield f"  - {printable(trap.found)}: {trap.title} [{trap.rule}]"
        yield f"    cure: {trap.cure}"
