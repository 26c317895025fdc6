"""`hugewise verify`: what backs a program, a unit or a virtual machine that runs, beside what was promised."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hugewise.cli import options, request
from hugewise.errors import UserError
from hugewise.model.guest import Pages
from hugewise.model.host import Host
from hugewise.quantity import format_size, parse_share, readable_size
from hugewise.visible import printable, say, say_json

if TYPE_CHECKING:
    from hugewise.audit.audit import TrapFound
    from hugewise.guests.running import GuestVerified, RunningGuest
    from hugewise.inspection.verify import MappingSeen, Verified


_OPEN = (
    "call it as root, with debugfs mounted (mount -t debugfs none /sys/kernel/debug), outside of containers; KVM counts"
    " its pages on x86 alone, and a kernel that is locked down does not tell them"
)


def show_guest(machine: RunningGuest, host: Host, policy: str | None, share: float, *, as_json: bool) -> NoReturn:
    """Look, say what was found, and end with the exit status. Raises UserError."""
    from hugewise.cli.guest_study import vm_traps  # noqa: PLC0415  (only of a virtual machine)
    from hugewise.guests import running  # noqa: PLC0415

    found = running.verify(machine, host, _pages(policy), share)
    if as_json:
        say_json(found)
    else:
        huge = found.delivered and found.share is not None
        why = () if huge else vm_traps(running.as_domain(machine), host, running=True)
        for line in guest_lines(found, why):
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


def guest_lines(found: GuestVerified, why: tuple[TrapFound, ...]) -> Iterator[str]:
    """Yield the answer, then the backing of each piece of the guest's memory, and what takes huge pages from it."""
    from hugewise.guests.backing import UNKNOWN  # noqa: PLC0415

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
        yield "Settings here that take huge pages from such a machine:"
    for trap in why:
        yield f"  - {trap.severity}: {printable(trap.found)}: {trap.title} [{trap.rule}]"
        yield f"    cure: {trap.cure}"


_MOST_PROCESSES = 10
_SOURCES = {"kpageflags": "the kernel's page flags", "smaps": "smaps"}


class _Dashed(click.Command):
    # a command stands behind `--` alone
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        left = super().parse_args(ctx, args[:place])
        ctx.params["command"] = tuple(args[place + 1 :])
        return left


@click.command("verify", cls=_Dashed, short_help="Check that a running program has the promised pages.")
@click.argument("who", metavar="[PID|UNIT|DOMAIN] [-- COMMAND...]", required=False)
@click.option("--policy", metavar="NAME", help="The promised policy, such as thp.")
@click.option("--share", help="The share of memory that must have the pages (default: 95%).")
@click.option(
    "--memory",
    type=click.Choice(["all", "shared", "large"]),
    default="all",
    show_default=True,
    help="Look at all memory, the largest shared mapping (PostgreSQL), or private mappings of 32m and more.",
)
@options.STDIN
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(who: str | None, *, command: tuple[str, ...] = (), stdin: Path | None, as_json: bool, **asked: Any) -> None:
    """Check that a running program has the promised pages, and show why not.

    Looks once at the process PID and its descendants, or at all processes of UNIT, and changes nothing. An ordinary
    user can look at own processes only. A PID or UNIT needs --policy.

    verify --policy NAME -- COMMAND runs the command once, with the settings that are in force and without its output,
    and sees each of its processes at its exit and whenever it has grown.

    For a virtual machine (a running libvirt DOMAIN, or the PID of a QEMU) it looks at the guest's memory; without
    --policy the promise is what QEMU was asked for.

    Exit status 0: as promised; 1: not, or not proven; 2: there is nothing to look at, or no permission.
    """
    from hugewise.guests.running import running as guests_running  # noqa: PLC0415
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415
    from hugewise.inspection import targets  # noqa: PLC0415
    from hugewise.inspection import verify as inspection  # noqa: PLC0415

    share = inspection.SHARE
    if (text := asked.pop("share")) is not None:
        try:
            share = parse_share(text)
        except ValueError as error:
            raise UserError(f"--share {text}: {error}", hint="write for example --share 90%") from None
    host = LocalHost()
    if command:
        _check_command(who, asked)
        request.must_be_there(command, "hugewise verify --policy NAME --")
        path = request.standard_input(stdin)
        _show(inspection.verify_command(command, host, asked["policy"], stdin=path, share=share), as_json=as_json)
    if who is None:
        cure = "hugewise verify --policy NAME PID (or UNIT, or -- COMMAND), or: hugewise verify DOMAIN"
        raise UserError("nothing to verify", hint=cure)
    if stdin is not None:
        raise UserError("--stdin is for a command", hint="leave it out, or: hugewise verify --policy NAME -- COMMAND")
    if asked["memory"] == "all" and (machine := guests_running(who, host)) is not None:
        show_guest(machine, host, asked["policy"], share, as_json=as_json)
    if asked["policy"] is None:
        targets.subject(who, host)  # a name that means nothing is the first mistake
        cure = "hugewise verify WHO --policy thp (hugewise list policies); what backs a process: hugewise inspect PID"
        raise UserError("--policy is missing: what the program is promised", hint=cure)
    found = inspection.verify(who, host, asked["policy"], share=share, named=asked["memory"])
    _show(found, as_json=as_json)


def _show(found: Verified, *, as_json: bool) -> NoReturn:
    if as_json:
        say_json(found)
    else:
        for line in lines(found):
            say(line)
    sys.exit(0 if found.delivered else 1)


def _check_command(who: str | None, asked: Mapping[str, Any]) -> None:
    """Raise UserError for what does not go with a command."""
    if who is not None:
        raise UserError(f"{printable(who)} and a command: one thing is verified at a time", hint="leave one out")
    if asked["policy"] is None:
        cure = "hugewise verify --policy thp -- COMMAND (hugewise list policies)"
        raise UserError("--policy is missing: what a command is promised", hint=cure)
    if asked["memory"] != "all":
        cure = "leave it out: all memory of a command is looked at"
        raise UserError(f"--memory {asked['memory']} is for a process", hint=cure)


def lines(found: Verified) -> Iterator[str]:
    """Yield the answer first, then what backs it, why, and the rules."""
    verdict = {True: "as promised", False: "NOT as promised", None: "NOT PROVEN"}[found.delivered]
    yield f"{printable(found.subject)}: {verdict}: {found.said}"
    yield f"  promised by the policy {found.promise.policy}: {found.promise.text}"
    yield from (f"  note: {printable(note)}" for note in found.notes)
    yield ""
    yield f"Backed by (from {_SOURCES[found.source]}):"
    yield from _backed(found.coverage)
    if found.mappings:
        yield ""
        yield f"  {'memory':>10} {'huge':>10} {'pool':>10}  mapping"
        yield from map(_mapping, found.mappings)
    if found.processes:
        yield ""
        yield "Processes:"
    for one in found.processes[:_MOST_PROCESSES]:
        off = "; transparent huge pages are off for it" if one.thp_disabled else ""
        tunable = f"; glibc.malloc.hugetlb={one.tunable}" if one.tunable is not None else ""
        yield f"  {one.pid} {printable(one.command)[:80]} (allocator: {one.allocator}{tunable}{off})"
    if more := found.processes[_MOST_PROCESSES:]:
        yield f"  and {len(more)} more"
    if found.reasons:
        yield ""
        yield "Why:" if not found.delivered else "To be known:"
    for reason in found.reasons:
        yield f"  - {printable(reason.text)} [{reason.id}]"
        if reason.cure:
            yield f"    cure: {printable(reason.cure)}"
    yield ""
    yield "Rules in force now:"
    yield from (f"  {line}" for line in found.rules)


def _backed(coverage: Mapping[str, int]) -> Iterator[str]:
    whole = sum(coverage.values())
    for key, size in sorted(coverage.items(), key=lambda each: -each[1]):
        kind, _, page = key.partition(":")
        called = f"{kind} {format_size(int(page))}" if page else f"{kind} (base pages, or sizes between)"
        yield f"  {readable_size(size):>10} {size / whole:6.1%}  {called}"
    if not whole:
        yield "  nothing"


def _mapping(one: MappingSeen) -> str:
    text = {True: ", eligible", False: ", not eligible", None: ""}[one.eligible] + (", advised" if one.advised else "")
    where = f" at {one.start}" if one.start else ""
    sizes = " ".join(f"{readable_size(each) if each else '-':>10}" for each in (one.memory, one.huge, one.pool))
    return f"  {sizes}  {printable(one.name)[:60]}{where}{text}"
