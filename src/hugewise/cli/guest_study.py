"""`hugewise guest study`: from a libvirt domain to a study of its memory."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from hugewise import files, reading, workloads
from hugewise.cli.guest_xml import MOST, vm_traps
from hugewise.errors import UserError
from hugewise.guests import disks, domain_study, libvirt, virsh
from hugewise.guests.domain_text import remark
from hugewise.guests.qemu import PROGRAMS
from hugewise.host.knob import NODES
from hugewise.host.local_machine import LocalMachine
from hugewise.host.pool import available
from hugewise.machine import domain as domains
from hugewise.machine import domain_xml
from hugewise.machine.proc import meminfo
from hugewise.model.guest import Backing
from hugewise.model.host import Host
from hugewise.plan import cells, room, venue
from hugewise.quantity import format_size, readable_size
from hugewise.study.keys import near
from hugewise.study.study import Study
from hugewise.visible import printable, say

__all__ = ["main", "write"]

_WITHIN = "base,thp"
_NOT_HERE = {
    "command": "it names no command",
    "service": "a server of yours runs on this host, and not in guests",
}
_MOVED = (
    "the domain is of {}, and this is a study for this host: its CPUs, NUMA nodes and pools are meant, and the files of"
    " disks, kernel and QEMU by the same paths here"
)


def write(
    xml: bytes, file: str, wish: domain_study.StudyWish, host: Host, *, there: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """The study of the domain in `xml`, and what is to be told of it; `there`: the other host that it is a domain of.
    Raises UserError, StudyError.
    """
    from hugewise.study.load import parse  # noqa: PLC0415  (brings the published figures)

    _check_workload(wish)
    root = domain_xml.parse(xml, file)
    domain = domains.read(root, file)
    asked = libvirt.asked(root.first("domain") or root, file, meminfo(host).get("Hugepagesize"))
    made = domain_study.restate(domain, asked, wish, _offer(domain.memory, domain.emulator, host))
    traps = [f"{trap.found} [{trap.rule}]: {trap.title}; cure: {trap.cure}" for trap in vm_traps(domain, host)]
    text = made.text
    if traps:
        head = "# What takes huge pages from such a machine, on this host or in the domain:\n"
        text = head + "".join(map(remark, traps)) + text
    moved = () if there is None else (_MOVED.format(there),)
    text = "".join(map(remark, moved)) + text
    text += _judged(parse(text, "the study"))  # what was written is a study
    return text, (*moved, *asked.warnings, *made.notes, *traps)


def _check_workload(wish: domain_study.StudyWish) -> None:
    """Raise UserError where no guest can run it, which else a run alone would say."""
    known = workloads.discover()
    if (why := _NOT_HERE.get(wish.workload or "")) is not None:
        raise UserError(f"--workload {wish.workload}: {why}", hint="name a command in its place: --load 'app --bench'")
    if wish.workload is not None and wish.workload not in known:
        cure = f"{near(wish.workload, known.keys(), what='workloads')} See: hugewise list workloads"
        raise UserError(f"--workload {wish.workload}: is not a workload", hint=cure)
    if wish.values and not wish.load:
        cure = "leave it out, or name a command: --load; a workload has its own (hugewise list metrics)"
        raise UserError("--value is of a command's output", hint=cure)


def _judged(study: Study) -> str:
    """The line that says by what the arms are judged. Raises StudyError, where the workload cannot be so."""
    (cell, *_) = cells.resolve(study, workloads.discover())
    real, counted = (cell.judged(emulated=emulated, counting=False).name for emulated in (False, True))
    also = "" if real == counted else f" under KVM; where guests are emulated: {counted}"
    return f"# Judged: {real}{also}.\n"


def _offer(memory: int, emulator: str | None, host: Host) -> domain_study.HostOffer:
    nodes = [name.removeprefix("node") for name in host.names(NODES) if name.startswith("node")]
    return domain_study.HostOffer(
        backs=lambda backing: venue.cannot_back(backing, host) or _short(backing, memory, host),
        absent=disks.absent,
        held=disks.holder,
        cpus=tuple(LocalMachine().cpus()),
        nodes=tuple(int(number) for number in nodes if number.isdecimal()) or (0,),
        qemu=emulator if emulator is not None and _other(emulator) else None,
    )


def _other(emulator: str) -> bool:
    """Whether a domain's QEMU is here, and is not the one that is taken anyway."""
    usual = {shutil.which(name) for name in PROGRAMS.values()}
    return emulator.startswith("/") and emulator not in usual and os.access(emulator, os.X_OK)


def _short(backing: Backing, memory: int, host: Host) -> str | None:
    """Why there is no room for a guest of so much memory, of its pool or beside it."""
    found = room.of_host(host)
    if found is None:
        return None
    if memory > found.total:
        return f"the guest has {readable_size(memory)}, and this host {readable_size(found.total)}"
    for (size, node), pages in backing.pool(memory).items():
        there = available(host, size, node)
        if pages > there and (pages - there) * size > found.usable:
            return f"it needs {pages} pages of {format_size(size)}, and {there} are free in the pool; {found}"
    return None


def main(  # noqa: PLR0917  (as click hands them over)
    file: str,
    connect: str | None,
    load: str | None,
    workload: str | None,
    metric: str | None,
    values: Sequence[str],
    packages: str | None,
    added: Sequence[str],
    kernel: str | None,
    modules: Path | None,
    name: str | None,
    resident: bool,
    policy: str | None,
    blocks: int | None,
    output: Path | None,
) -> None:
    """Write the study, and tell what is to be told of it. Raises UserError, StudyError, StorageError."""
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415

    if policy is not None and not resident:
        cure = "add --resident; else the arms are what the guests' memory can be made of"
        raise UserError("--policy is for a guest that stays", hint=cure)
    wish = domain_study.StudyWish(
        name=name,
        load=_words(load),
        workload=workload,
        metric=metric,
        values=tuple(values),
        packages=tuple(each.strip() for each in (packages or "").split(",") if each.strip()),
        files=dict(_pair(each) for each in added),
        kernel=None if kernel is None else str(Path(kernel).absolute()) if "/" in kernel else kernel,
        modules=None if modules is None else str(modules.absolute()),
        within=_policies(policy or _WITHIN) if resident else (),
        blocks=blocks,
    )
    xml, called = (_read(Path(file)), file) if connect is None else (virsh.dumpxml(connect, file), f"{file}.xml")
    there = None if connect is None else virsh.elsewhere(connect)
    text, told = write(xml, called, wish, LocalHost(), there=there)
    for each in told:
        say(f"note: {printable(each)}", err=True)
    if output is None:
        say(text.removesuffix("\n"))
        return
    if output.exists():
        raise UserError(f"--output {output}: there is something of that name already", hint="name another")
    with files.storing(str(output), "name a folder that can be written"):
        files.write_whole(output, text.encode(), owner=files.caller())
    say(f"written: {output}", err=True)
    say(f"next: hugewise doctor {shlex.quote(str(output))}; sudo hugewise run {shlex.quote(str(output))}", err=True)


def _read(path: Path) -> bytes:
    try:
        return reading.content(path, MOST)
    except reading.UnreadableError as error:
        cure = (
            "write it with: virsh dumpxml DOMAIN > FILE; or name a domain that libvirt runs: --connect qemu:///system"
        )
        raise UserError(f"{path}: {error.reason}", hint=cure) from None


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if len({*names} - {""}) < max(2, len(names)):
        raise UserError(f"--policy {text}: name at least two, each once", hint=f"write for example {_WITHIN}")
    return names


def _words(load: str | None) -> tuple[str, ...]:
    if load is None:
        return ()
    try:
        found = tuple(shlex.split(load))
    except ValueError as error:
        raise UserError(f"--load {load}: {error}", hint="quote it as for a shell") from None
    if not found:
        raise UserError("--load names no command", hint="write for example --load 'app --bench'")
    return found


def _pair(text: str) -> tuple[str, str]:
    path, equals, here = text.partition("=")
    if not equals or not path.startswith("/") or not here:
        raise UserError(f"--file {text}: is no PATH=FILE", hint="write for example --file /usr/local/bin/app=./app")
    return path, str(Path(here).absolute())
