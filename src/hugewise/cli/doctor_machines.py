"""The virtual machines of this host, as `hugewise doctor` has them: who is there, and what takes huge pages from them.

The rules are the audit's (`vm-*`), on the domains that libvirt's system daemon keeps. A machine that was started
without libvirt has no file: `hugewise verify PID` looks at its process.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.audit.audit import TrapFound, traps
from hugewise.audit.facts import HostFacts
from hugewise.model.check import Check

__all__ = ["VM_RULES", "machine_checks", "vm_traps_of"]

VM_RULES = "vm-"
"""How the ids of the audit's rules begin that are about virtual machines."""
_SECTION = "virtual machines"
_MOST_NAMED = 8


def vm_traps_of(facts: HostFacts) -> tuple[TrapFound, ...]:
    """What takes huge pages from the machines in `facts`, errors first. Pure."""
    return tuple(trap for trap in traps(facts) if trap.rule.startswith(VM_RULES))


def machine_checks(facts: HostFacts) -> Iterator[Check]:
    """The section of the report. Pure."""
    for line in facts.unread:
        yield Check(_SECTION, "not read", "limited", line, "sudo hugewise doctor")
    if not facts.domains:
        if not facts.unread:
            finding = "libvirt keeps none here; one that was started without it: hugewise verify PID"
            yield Check(_SECTION, "domains", "ok", finding)
        return
    names = [f"{one.name}{' (runs)' if one.name in facts.running else ''}" for one in facts.domains]
    more = len(names) - _MOST_NAMED
    told = f"{', '.join(names[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
    yield Check(_SECTION, "domains", "ok", f"{told}; hugewise verify DOMAIN: what backs one that runs")
    for trap in vm_traps_of(facts):
        name, finding = trap.rule.removeprefix(VM_RULES), f"{trap.found}: {trap.title}"
        if trap.severity == "note":
            yield Check(_SECTION, name, "ok", finding)
        else:
            yield Check(_SECTION, name, "limited", finding, trap.cure)
