"""Which processes are meant: one with all that descend from it, or those in the cgroup of a unit.

No bus of systemd is asked: where a unit's processes are stands in /proc/PID/cgroup, which everybody may read.

Source: proc(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from hugewise.deployment.quoting import unit_name
from hugewise.errors import UserError
from hugewise.machine import units
from hugewise.machine.proc import fields, living
from hugewise.model.host import Host, text_of

__all__ = ["Inspected", "subject"]

_NUMBER = re.compile(r"[0-9]{1,10}")
_STAT = re.compile(r"([0-9]{1,10}) \(.*\) (\S) ([0-9]{1,10}) ", re.DOTALL)


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: its name, its processes, and what the reader should know. `process` is the one that was named
    and is first; None for a unit.
    """

    name: str
    processes: tuple[int, ...]
    process: int | None = None
    notes: tuple[str, ...] = ()


def subject(text: str, host: Host) -> Inspected:
    """The processes that a PID or the name of a unit means. Raises UserError where there are none."""
    if text.isascii() and text.isdigit():
        return _process(text, host)
    return _unit(unit_name(text), host)


def _process(text: str, host: Host) -> Inspected:
    status = text_of(host, f"/proc/{int(text)}/status") if _NUMBER.fullmatch(text) else None
    if status is None:
        raise UserError(f"{text[:20]}: there is no such process", hint="name one that runs: pgrep -a NAME")
    found = fields(status)
    leader = found.get("Tgid", text).strip()
    notes: tuple[str, ...] = ()
    if leader != str(int(text)) and _NUMBER.fullmatch(leader):
        notes = (f"{text} is a thread of the process {leader}",)
        text = leader
    pid = int(text)
    if living(host, pid) is None:
        raise UserError(f"{pid}: the process has ended", hint="name one that runs: pgrep -a NAME")
    children: dict[int, list[int]] = {}
    for number, parent in _parents(host):
        children.setdefault(parent, []).append(number)
    tree, seen = [pid], {pid}
    for each in tree:
        below = [child for child in children.get(each, ()) if child not in seen]
        tree += below
        seen.update(below)
    return Inspected(name=f"process {pid}", processes=tuple(tree), process=pid, notes=notes)


def _parents(host: Host) -> Iterator[tuple[int, int]]:
    """Each process that is there, with its parent; those that have ended are left out."""
    for name in filter(_NUMBER.fullmatch, host.names("/proc")):
        stat = _STAT.match(text_of(host, f"/proc/{name}/stat") or "")
        if stat is not None and (stat[2] not in ("Z", "X") or living(host, int(name)) is not None):
            yield int(stat[1]), int(stat[3])


def _unit(name: str, host: Host) -> Inspected:
    groups: dict[str, list[int]] = {}
    own = {name, f"_{name}"}
    above = units.top(text_of(host, "/proc/1/cgroup") or "")
    for number in filter(_NUMBER.fullmatch, host.names("/proc")):
        for path in units.managed(text_of(host, f"/proc/{number}/cgroup") or ""):
            parts = path.split("/")
            place = next((at for at, part in enumerate(parts) if part in own), None)
            if place is not None:
                groups.setdefault("/".join(parts[: place + 1]), []).append(int(number))
                break
    others = {path for path in groups if not units.is_of_system(path, above)}
    notes: tuple[str, ...] = ()
    if others and (len(others) < len(groups) or host.privileged()):
        if len(others) == len(groups):
            path, pids = min(groups.items())
            raise UserError(
                f"{name}: the system has no unit of that name that runs; {path} is called so by who manages it",
                hint=f"if that is meant, name its first process: {pids[0]}",
            )
        # Whoever may make groups of their own can call one so: it says nothing of the unit.
        notes = (f"not looked at, for they are no units of the system's: {', '.join(sorted(others))}",)
        groups = {path: pids for path, pids in groups.items() if path not in others}
    if not groups:
        if "system" in host.names("/run/systemd"):  # sd_booted(3)
            raise UserError(
                f"{name}: no process is in a control group of that name", hint=f"is it running? systemctl status {name}"
            )
        raise UserError(
            f"{name}: systemd does not run here, so that there are no units", hint="name a process by its number"
        )
    if len(groups) > 1:
        notes = (*notes, f"several control groups are called so: {', '.join(sorted(groups))}")
    return Inspected(name=name, processes=tuple(sorted({pid for pids in groups.values() for pid in pids})), notes=notes)
