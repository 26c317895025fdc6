"""`hugewise guest xml`: the memory backing of a libvirt domain as a study says it, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hugewise import reading
from hugewise.audit import machines
from hugewise.audit.audit import TrapFound
from hugewise.audit.facts import HostFacts
from hugewise.audit.root import Root
from hugewise.cli.doctor_machines import vm_traps_of
from hugewise.errors import UserError
from hugewise.guests import libvirt
from hugewise.host.local_host import LocalHost
from hugewise.machine import domain, domain_xml
from hugewise.machine.proc import meminfo
from hugewise.model.domain import Domain
from hugewise.model.guest import Backing
from hugewise.model.host import Host
from hugewise.study.backing import BACKING
from hugewise.study.keys import Place
from hugewise.visible import printable, say

__all__ = ["MOST", "main", "read", "traps_of", "vm_traps", "write"]

MOST = 8 << 20  # bytes of a domain's XML that are read


def read(file: Path, host: Host, expected: str | None = None, study: Path | None = None) -> tuple[str, tuple[str, ...]]:
    """The backing that the domain in `file` asks for, as TOML, and the warnings.

    `expected` is the backing that somebody wants, written as in a study; `study` one whose arms say it. Raises
    UserError, StudyError.
    """
    root = domain_xml.parse(_content(file), str(file))
    asked = libvirt.asked(root.first("domain") or root, str(file), meminfo(host).get("Hugepagesize"))
    wanted = [("--expect", _backing(expected, "--expect"))] if expected is not None else []
    wanted += _arms(study) if study is not None else []
    return libvirt.toml(asked.backing), (*asked.warnings, *_unlike(asked, wanted, str(file)))


def traps_of(file: Path, host: Host) -> Iterator[str]:
    """What takes huge pages from the machine in `file` on this host, with its cure. Raises UserError."""
    root = domain_xml.parse(_content(file), str(file))
    if root.tag != "memoryBacking":
        for trap in vm_traps(domain.read(root, str(file)), host):
            yield f"{trap.found} [{trap.rule}]: {trap.title}; cure: {trap.cure}"


def vm_traps(found: Domain, host: Host, *, running: bool = False) -> tuple[TrapFound, ...]:
    """What takes huge pages from the machine on this host, by the rules of `hugewise audit`."""
    here = Root(Path("/")) if isinstance(host, LocalHost) else None
    facts = HostFacts(domains=(found,)) if here is None else machines.about(here, found, running=running)
    return vm_traps_of(facts)


def _content(file: Path) -> bytes:
    try:
        return reading.content(file, MOST)
    except reading.UnreadableError as error:
        raise UserError(f"{file}: {error.reason}", hint="write it with: virsh dumpxml DOMAIN > FILE") from None


def write(backing: str) -> str:
    """The elements of a libvirt domain that ask for `backing`, which is written as in a study. Raises UserError."""
    return libvirt.element(_backing(backing, "--backing"))


def _backing(text: str, option: str) -> Backing:
    """A backing as a study has it: a kind of pages, or a table in braces. Raises UserError."""
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
    """That the domain asks for other pages than somebody wants: of several arms, than any of them.

    Without a size it asks for whatever this host's default is. Where an arm says 1 GiB that is told even if another arm
    says what the default happens to be: on a host with another default the same lines are another arm.
    """
    pages = asked.backing.pages
    missed = [each for each in wanted if each[1].pages != pages]
    if len(missed) < len(wanted):  # it is one of the arms
        missed = [each for each in missed if asked.bare is not None and each[1].pages == "hugetlb-1g"]
    if not missed:
        return
    said = ", ".join(f"{backing.pages} ({who})" for who, backing in missed)
    if asked.bare is None:
        yield f"{file}: asks for {pages}, and wanted is {said}"
    else:
        yield (
            f"{file}:{asked.bare}: <hugepages/> without a size is this host's default, {pages}, and wanted is {said}:"
            " name the size as in <page size='1' unit='GiB'/>, or boot the host with default_hugepagesz=1G"
        )


def main(file: Path | None, backing: str | None, expect: str | None, study: Path | None) -> None:
    """Print one for the other, and what is to be told of it. Raises UserError, StudyError."""
    if (file is None) == (backing is None):
        raise UserError("name a FILE, or a --backing", hint="hugewise guest xml domain.xml")
    if backing is not None:
        if expect is not None or study is not None:
            raise UserError("--expect and --study are of a FILE", hint="remove them, or --backing")
        say(write(backing).removesuffix("\n"))
        return
    assert file is not None
    found, warnings = read(file, LocalHost(), expect, study)
    for warning in (*warnings, *traps_of(file, LocalHost())):
        say(f"warning: {printable(warning)}", err=True)
    say(found.removesuffix("\n"))
