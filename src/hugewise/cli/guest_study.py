"""`hugewise guest study` makes a study of a libvirt domain's memory, `hugewise guest xml` translates its backing."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from hugewise import files, reading, workloads
from hugewise.audit import collect
from hugewise.audit.audit import TrapFound, traps
from hugewise.audit.facts import HostFacts
from hugewise.audit.root import Root
from hugewise.errors import UserError
from hugewise.guests import disks, domain_study, libvirt
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
from hugewise.plan.guest_deployment import element
from hugewise.plan.memory import of_host
from hugewise.quantity import format_size, readable_size
from hugewise.study.keys import Place, near
from hugewise.study.study import Study
from hugewise.study.tables import BACKING
from hugewise.visible import printable, say

MOST = 8 << 20  # bytes of a domain's XML that are read


def read(file: Path, host: Host, expected: str | None = None, study: Path | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the backing that the domain in `file` asks for, as TOML, and the warnings.

    `expected` is the backing that somebody wants, written as in a study; `study` one whose arms say it. Raises
    UserError, StudyError.
    """
    root = domains.parse(_content(file), str(file))
    asked = libvirt.requested_backing(root.first("domain") or root, str(file), meminfo(host).get("Hugepagesize"))
    wanted = [("--expect", _backing(expected, "--expect"))] if expected is not None else []
    wanted += _arms(study) if study is not None else []
    return libvirt.toml(asked.backing), (*asked.warnings, *_unlike(asked, wanted, str(file)))


def traps_of(file: Path, host: Host) -> Iterator[str]:
    """Yield the traps that cost the machine in `file` huge pages on this host, with the cure. Raises UserError."""
    root = domains.parse(_content(file), str(file))
    if root.tag != "memoryBacking":
        yield from map(trap_line, vm_traps(domains.read(root, str(file)), host))


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


def _content(file: Path) -> bytes:
    try:
        return reading.content(file, MOST)
    except reading.UnreadableError as error:
        raise UserError(f"{file}: {error.reason}", hint="write it with: virsh dumpxml DOMAIN > FILE") from None


def write_xml(backing: str) -> str:
    """The elements of a libvirt domain that ask for `backing`, which is written as in a study. Raises UserError."""
    return element(_backing(backing, "--backing"))


def _backing(text: str, option: str) -> Backing:
    """Parse a backing as a study has it: a kind of pages, or a table in braces. Raises UserError."""
    value: object = text
    if text.strip().startswith("{"):
        try:
            value = reading.toml(f"backing = {text}")["backing"]
        except reading.UnreadableError as error:
            cure = "write for example '{ pages = \"hugetlb-2m\", nodes = [0] }'"
            raise UserError(f"{option} {reading.shown(text)}: {error.reason}", hint=cure) from None
    found: Backing = BACKING.read(value, Place("command line", option))
    return found


def _arms(path: Path) -> list[tuple[str, Backing]]:
    from hugewise.study.load import load  # noqa: PLC0415  (only with --study: it brings the published figures)

    loaded = load(path)
    if loaded.guest is None:
        raise UserError(f"{path}: is a study without guests", hint="name one with a table [guest]")
    return [(f"arm {use.name} of {path}", use.backed_by) for use in loaded.policies]


def _unlike(asked: libvirt.DomainMemory, wanted: list[tuple[str, Backing]], file: str) -> Iterator[str]:
    """Yield that the domain asks for other pages than the arms, if it differs from all of them.

    Without a size it asks for whatever this host's default is. Where an arm says 1 GiB that is told even if another arm
    says what the default happens to be: on a host with another default the same lines are another arm.
    """
    pages = asked.backing.pages
    missed = [each for each in wanted if each[1].pages != pages]
    if len(missed) < len(wanted):  # it is one of the arms
        missed = [each for each in missed if asked.bare is not None and each[1].pages == "hugetlb-1g"]
    if not missed:
        return
    text = ", ".join(f"{backing.pages} ({who})" for who, backing in missed)
    if asked.bare is None:
        yield f"{file}: asks for {pages}, and wanted is {text}"
    else:
        yield (
            f"{file}:{asked.bare}: <hugepages/> without a size is this host's default, {pages}, and wanted is {text}:"
            " name the size as in <page size='1' unit='GiB'/>, or boot the host with default_hugepagesz=1G"
        )


def print_xml(file: Path | None, backing: str | None, expect: str | None, study: Path | None) -> None:
    """Print one for the other, and what is to be told of it. Raises UserError, StudyError."""
    if (file is None) == (backing is None):
        raise UserError("name a FILE, or a --backing", hint="hugewise guest xml domain.xml")
    if backing is not None:
        if expect is not None or study is not None:
            raise UserError("--expect and --study are of a FILE", hint="remove them, or --backing")
        say(write_xml(backing).removesuffix("\n"))
        return
    assert file is not None
    found, warnings = read(file, at_rest(LocalHost()), expect, study)
    for line in (*(f"warning: {one}" for one in warnings), *traps_of(file, at_rest(LocalHost()))):
        say(printable(line), err=True)
    say(found.removesuffix("\n"))


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
    xml: bytes, file: str, wish: domain_study.StudyRequest, host: Host, *, there: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """Return the study of the domain in `xml`, and lines on it that begin with a severity; `there`: the other host
    that it is a domain of. Raises UserError, StudyError.
    """
    from hugewise.study.load import parse  # noqa: PLC0415  (brings the published figures)

    _check_workload(wish)
    root = domains.parse(xml, file)
    domain = domains.read(root, file)
    asked = libvirt.requested_backing(root.first("domain") or root, file, meminfo(host).get("Hugepagesize"))
    made = domain_study.restate(domain, asked, wish, _offer(domain.memory, domain.emulator, host))
    traps = [trap_line(trap) for trap in vm_traps(domain, host)]
    text = made.text
    if traps:
        head = "# What takes huge pages from such a machine, on this host or in the domain:\n"
        text = head + "".join(map(remark, traps)) + text
    moved = () if there is None else (_MOVED.format(there),)
    text = "".join(map(remark, moved)) + text
    text += _judged(parse(text, "the study"))  # the text is a valid study
    warnings = (f"warning: {one}" for one in asked.warnings)
    return text, (*warnings, *traps, *(f"note: {one}" for one in (*moved, *made.notes)))


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
    if policy is not None and not resident:
        cure = "add --resident; else the arms are what the guests' memory can be made of"
        raise UserError("--policy is for a guest that stays", hint=cure)
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
        within=_policies(policy or _WITHIN) if resident else (),
        blocks=blocks,
    )
    xml, called = (_read(Path(file)), file) if connect is None else (domain_study.dumpxml(connect, file), f"{file}.xml")
    there = None if connect is None else domain_study.elsewhere(connect)
    text, told = write(xml, called, wish, at_rest(LocalHost()), there=there)
    for each in told:
        say(printable(each), err=True)
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
