"""`hugewise guest study`: a study of a libvirt domain's memory."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from hugewise import files, reading, workloads
from hugewise.audit import collect
from hugewise.audit.audit import TrapFound, traps
from hugewise.audit.facts import HostFacts
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.guests import disks, domain_study
from hugewise.guests.domain_study import remark
from hugewise.guests.qemu import PROGRAMS
from hugewise.host.journal import RestoredView, at_rest
from hugewise.host.knob import NODES
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.host.pool import available
from hugewise.machine import domain as domains
from hugewise.machine.proc import meminfo
from hugewise.model.guest import Backing, Domain
from hugewise.model.host import Host
from hugewise.plan import arms, cells
from hugewise.plan.memory import of_host
from hugewise.quantity import format_size, readable_size
from hugewise.study.keys import near
from hugewise.study.study import Study
from hugewise.visible import printable, say

MOST = 8 << 20  # bytes of a domain's XML that are read


def trap_line(trap: TrapFound) -> str:
    """Return the trap in one line, which begins with its severity as in `hugewise audit`."""
    return f"{trap.severity}: {trap.found} [{trap.rule}]: {trap.title}; cure: {trap.cure}"


def vm_traps(domain: Domain, host: Host, *, running: bool = False) -> tuple[TrapFound, ...]:
    """Return the traps that cost the machine huge pages on this host, by the rules of `hugewise audit`."""
    here = Root(Path("/")) if isinstance(host, LocalHost | RestoredView) else None
    facts = HostFacts(domains=(domain,)) if here is None else collect.about(here, domain, running=running)
    return vm_traps_of(facts)


def vm_traps_of(facts: HostFacts) -> tuple[TrapFound, ...]:
    """Return the traps that cost the machines in `facts` huge pages, errors first. Pure."""
    return tuple(trap for trap in traps(facts) if trap.rule.startswith("vm-"))


_NOT_HERE = {
    "command": "it names no command",
    "service": "a server of yours runs on this host, and not in guests",
}


def write(xml: bytes, file: str, wish: domain_study.StudyRequest, host: Host) -> tuple[str, tuple[str, ...]]:
    """Return the study of the domain in `xml`, and lines on it that begin with a severity. Raises UserError."""
    from hugewise.study.load import parse  # noqa: PLC0415  (brings the published figures)

    _check_workload(wish)
    domain = domains.read(domains.parse(xml, file), file)
    asked = domain_study.domain_backing(domain, meminfo(host).get("Hugepagesize"))
    made = domain_study.restate(domain, asked, wish, _offer(domain.memory, domain.emulator, host))
    traps = [trap_line(trap) for trap in vm_traps(domain, host)]
    text = made.text
    if traps:
        head = "# Settings of this host or of the domain that take huge pages from such a machine:\n"
        text = head + "".join(map(remark, traps)) + text
    text += _judged(parse(text, "the study"))  # the text is a valid study
    return text, (*traps, *(f"note: {note}" for note in made.notes))


def _check_workload(wish: domain_study.StudyRequest) -> None:
    """Raise UserError where no guest can run the workload, which otherwise only a run would tell."""
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
    """Return the line that says by what the arms are judged. Raises StudyError where that is impossible."""
    (cell, *_) = cells.resolve(study, workloads.discover())
    real, counted = (cell.judged(emulated=emulated, counting=False).name for emulated in (False, True))
    also = "" if real == counted else f" under KVM; where guests are emulated: {counted}"
    return f"# Judged: {real}{also}.\n"


def _offer(memory: int, emulator: str | None, host: Host) -> domain_study.HostOffer:
    nodes = [name.removeprefix("node") for name in host.names(NODES) if name.startswith("node")]
    return domain_study.HostOffer(
        backs=lambda backing: arms.cannot_back(backing, host) or _short(backing, memory, host),
        absent=disks.absent,
        held=disks.writer_of,
        cpus=tuple(LocalMachine().cpus()),
        nodes=tuple(int(number) for number in nodes if number.isdecimal()) or (0,),
        qemu=emulator if emulator is not None and _other(emulator) else None,
    )


def _other(emulator: str) -> bool:
    """Return whether a domain's QEMU is here, and is not the default one."""
    usual = {shutil.which(name) for name in PROGRAMS.values()}
    return emulator.startswith("/") and emulator not in usual and os.access(emulator, os.X_OK)


def _short(backing: Backing, memory: int, host: Host) -> str | None:
    """Return why there is no room for a guest of so much memory, in its pool or beside it, or None."""
    found = of_host(host)
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
    load: str | None,
    workload: str | None,
    metric: str | None,
    values: Sequence[str],
    packages: str | None,
    added: Sequence[str],
    kernel: str | None,
    modules: Path | None,
    name: str | None,
    policy: str | None,
    blocks: int | None,
    output: Path | None,
) -> None:
    """Write the study, and tell what is to be told of it. Raises UserError, StudyError, StorageError."""
    wish = domain_study.StudyRequest(
        name=name,
        load=_words(load),
        workload=workload,
        metric=metric,
        values=tuple(values),
        packages=tuple(each.strip() for each in (packages or "").split(",") if each.strip()),
        files=dict(_pair(each) for each in added),
        kernel=None if kernel is None else str(Path(kernel).absolute()) if "/" in kernel else kernel,
        modules=None if modules is None else str(modules.absolute()),
        within=() if policy is None else _policies(policy),
        blocks=blocks,
    )
    text, lines = write(_read(Path(file)), file, wish, at_rest(LocalHost()))
    for line in lines:
        say(printable(line), err=True)
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
        raise UserError(f"{path}: {error.reason}", hint="write it with: virsh dumpxml DOMAIN > FILE") from None


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if len({*names} - {""}) < max(2, len(names)):
        raise UserError(f"--policy {text}: name at least two, each once", hint="write for example base,thp")
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
