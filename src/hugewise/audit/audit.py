"""A host audited: its settings, and the traps that the rules find."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from hugewise.audit.collect import collect
from hugewise.audit.facts import HostFacts
from hugewise.audit.inventory import SettingShown, inventory
from hugewise.audit.root import Root
from hugewise.audit.rules import SEVERITIES, Severity, discover
from hugewise.errors import UserError


class TrapFound(msgspec.Struct, frozen=True, kw_only=True):
    """A rule's fault on this host: the rule's id, severity, title, why, cure and sources; what was seen; whose service.

    unit   null for what concerns the whole host
    """

    rule: str
    severity: Severity
    title: str
    found: str
    why: str
    cure: str
    sources: tuple[str, ...]
    unit: str | None = None


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `hugewise audit --json`. `format` rises when a meaning changes; new keys may come without that.

    root      the folder whose files were read; units: the services that were asked for, none: all
    settings  those in force; with `units` those of these services and of the host
    traps     what the rules found, errors first
    unread    what could not be read, and why
    """

    format: int = 2
    host: str
    root: str
    kernel: str
    systemd: int | None
    glibc: str | None
    units: tuple[str, ...]
    settings: tuple[SettingShown, ...]
    traps: tuple[TrapFound, ...]
    unread: tuple[str, ...]

    def worst(self) -> Severity | None:
        """Return the gravest of the severities found."""
        severities = {trap.severity for trap in self.traps}
        return next((severity for severity in SEVERITIES if severity in severities), None)


def audit(root: Root, units: Sequence[str] = ()) -> AuditReport:
    """Audit the host below `root`; `units`: these services alone. Raises UserError for no such unit, or no host."""
    facts = collect(root, map(_service, units))
    named = units_named(facts, units)
    shown = tuple(one for one in inventory(facts) if not named or one.unit is None or one.unit in named)
    report = AuditReport(
        host=root.name,
        root=str(root.folder),
        kernel=facts.kernel,
        systemd=facts.systemd,
        glibc=None if facts.glibc is None else f"{facts.glibc[0]}.{facts.glibc[1]}",
        units=named,
        settings=_of_named(shown, facts, named),
        traps=tuple(trap for trap in traps(facts) if not named or trap.unit is None or trap.unit in named),
        unread=facts.unread,
    )
    return msgspec.convert(_encodable(msgspec.to_builtins(report)), AuditReport)


def _encodable(value: Any) -> Any:
    """Return the value with every text valid UTF-8: names of files may be invalid."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list | tuple) else value


def _of_named(shown: Sequence[SettingShown], facts: HostFacts, named: Sequence[str]) -> tuple[SettingShown, ...]:
    """Return the settings shown where services are named: without programs and servers of no service, and with a note
    for a service that is masked or has no setting of its own.
    """
    if not named:
        return tuple(shown)
    own = ("programs that run", "what their makers say", "settings of servers")
    kept = [one for one in shown if one.unit is not None or one.section not in own]
    for name in named:
        unit = facts.unit(name)
        if unit is not None and unit.masked:
            kept.append(SettingShown("services", name, "masked", unit.path, name))
        elif not any(one.unit == name and one.section == "services" for one in kept):
            where = "" if unit is None else unit.path
            kept.append(SettingShown("services", name, "nothing of pages", where, name))
    return tuple(kept)


def traps(facts: HostFacts) -> tuple[TrapFound, ...]:
    """Return the traps that the rules find, errors first, in the order of the rules. Pure."""
    found = [
        TrapFound(
            rule=rule.id,
            severity=rule.severity,
            title=rule.title,
            found=hit.said,
            why=rule.why,
            cure=rule.cure,
            sources=rule.sources,
            unit=hit.unit,
        )
        for rule in discover().values()
        for hit in rule.check(facts)
    ]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _service(text: str) -> str:
    """Return the full name of a service: `redis` is redis.service."""
    return text if re.search(r"\.[a-z]+$", text) else f"{text}.service"


def units_named(facts: HostFacts, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the services that are meant, by their own names: without `.service`, or by an alias. Raises UserError."""
    known = {unit.name for unit in facts.units} | {
        process.unit for process in facts.processes if process.unit is not None
    }
    named = []
    for text in asked:
        name = _service(text)
        name = facts.aliases.get(name, name)
        if name not in known:
            other = "only services are audited; " if not name.endswith(".service") else ""
            close = difflib.get_close_matches(name, sorted(known | facts.aliases.keys()), 3, 0.5)
            meant = f"one of these? {', '.join(close)}" if close else "see: systemctl list-unit-files --type=service"
            raise UserError(f"--unit {text}: there is no such service here", hint=f"{other}{meant}")
        named.append(name)
    return tuple(dict.fromkeys(named))
