"""Targets of `hugewise inspect` and `verify`: process ids, a control group, a unit.

No bus of systemd is asked: where a unit's processes are stands in /proc/PID/cgroup, which everybody may read.

Sources: proc(5); cgroups(7); Documentation/admin-guide/cgroup-v2.rst of the Linux kernel ("threaded").
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from hugewise.deployment.quoting import unit_name
from hugewise.errors import UserError
from hugewise.inspection.inspected import ChargedToGroup
from hugewise.machine import proc
from hugewise.machine.proc import fields, living, mounts
from hugewise.model.host import Host, text_of
from hugewise.processes import parse_stat

_LONGEST_SHOWN = 100


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Requested target: its name, its processes (`process` first, if named), and notes for the reader."""

    name: str
    processes: tuple[int, ...]
    process: int | None = None
    notes: tuple[str, ...] = ()


def subject(text: str, host: Host) -> Inspected:
    """Return the processes that a PID or the name of a unit means. Raises UserError where there are none."""
    if text.isascii() and text.isdigit():
        return _process(text, host)
    if _is_file(text):
        hint = f"a captured smaps is read by: hugewise inspect --smaps {shlex.quote(text)}"
        raise UserError(f"{text[:_LONGEST_SHOWN]}: a file is neither a process nor a unit", hint=hint)
    return _unit(unit_name(text), host)


def _process(text: str, host: Host) -> Inspected:
    leader = of_numbers([text], host)
    (pid,) = leader.processes
    children: dict[int, list[int]] = {}
    for number, parent in _parents(host):
        children.setdefault(parent, []).append(number)
    tree, seen = [pid], {pid}
    for member in tree:
        below = [child for child in children.get(member, ()) if child not in seen]
        tree += below
        seen.update(below)
    return Inspected(name=f"process {pid}", processes=tuple(tree), process=pid, notes=leader.notes)


def _parents(host: Host) -> Iterator[tuple[int, int]]:
    """Yield each process with its parent; those that have ended are left out."""
    for name in filter(_NUMBER.fullmatch, host.names("/proc")):
        stat = parse_stat(text_of(host, f"/proc/{name}/stat") or "")
        if stat is not None and (not stat.has_ended or living(host, int(name)) is not None):
            yield stat.pid, stat.ppid


def _unit(name: str, host: Host) -> Inspected:
    groups: dict[str, list[int]] = {}
    own = {name, f"_{name}"}
    above = proc.top(text_of(host, "/proc/1/cgroup") or "")
    for number in filter(_NUMBER.fullmatch, host.names("/proc")):
        for path in proc.managed(text_of(host, f"/proc/{number}/cgroup") or ""):
            parts = path.split("/")
            place = next((at for at, part in enumerate(parts) if part in own), None)
            if place is not None:
                groups.setdefault("/".join(parts[: place + 1]), []).append(int(number))
                break
    others = {path for path in groups if not proc.is_of_system(path, above)}
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


_NUMBER = re.compile(r"[0-9]{1,10}")
_MOST_GROUPS = 100_000
_FIRST = ("cgroup2", "memory")  # of the hierarchies that have the path, the one that counts memory


def _is_file(text: str) -> bool:
    """Return whether somebody has named a file in place of a process."""
    try:
        return not _NUMBER.fullmatch(text) and Path(text).is_file()
    except (OSError, ValueError):
        return False


def of_numbers(texts: Sequence[str], host: Host) -> Inspected:
    """Return the processes of these numbers; of a thread its process. Raises UserError for one that is not there."""
    pids: list[int] = []
    notes: list[str] = []
    for text in texts:
        status = text_of(host, f"/proc/{int(text)}/status") if _NUMBER.fullmatch(text) else None
        if status is None:
            hint = "name one that runs: pgrep -a NAME"
            if _is_file(text):
                hint = f"a captured smaps is read by: hugewise inspect --smaps {shlex.quote(text)}"
            shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
            raise UserError(f"{shown}: there is no such process", hint=hint)
        leader = fields(status).get("Tgid", text)
        if leader != str(int(text)) and _NUMBER.fullmatch(leader):
            notes.append(f"{text} is a thread of the process {leader}")
        else:
            leader = str(int(text))
        if living(host, int(leader)) is None:
            raise UserError(f"{leader}: the process has ended", hint="name one that runs: pgrep -a NAME")
        if not _has_memory(host, int(leader)):
            message = f"{leader}: it is a thread of the kernel, which has no memory of its own"
            raise UserError(message, hint="name one that has: pgrep -a NAME")
        if int(leader) not in pids:
            pids.append(int(leader))
    name = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    return Inspected(name=name, processes=tuple(pids), process=pids[0] if len(pids) == 1 else None, notes=tuple(notes))


def of_group(text: str, host: Host) -> tuple[Inspected, str]:
    """Return all processes in a control group and the groups below it, and its folder. Raises UserError for none."""
    folder = group_folder(text, host)
    pids: set[int] = set()
    notes: tuple[str, ...] = ()
    for at, below in enumerate(_below(folder, host)):
        if at >= _MOST_GROUPS:
            notes = (f"only the first {_MOST_GROUPS:,} groups below it were looked into",)
            break
        pids.update(_members(below, host))
    alive = tuple(pid for pid in sorted(pids) if pid != os.getpid() and _has_memory(host, pid))
    if not alive:
        raise UserError(f"--cgroup {text}: no process is in it, or below it", hint=f"see: cat {folder}/cgroup.procs")
    return Inspected(name=f"cgroup {folder}", processes=alive, notes=notes), folder


def group_folder(text: str, host: Host) -> str:
    """Return the folder of a control group, given as folder or as a path of /proc/PID/cgroup. Raises UserError."""
    if ".." in PurePosixPath(text).parts:
        raise UserError(f"--cgroup {text}: a group is named without ..", hint=_HINT)
    hierarchies = []
    for mount in mounts(text_of(host, "/proc/self/mountinfo") or ""):
        if mount.kind in ("cgroup", "cgroup2"):
            words = [mount.kind, *mount.options.split(",")]
            rank = next((at for at, word in enumerate(_FIRST) if word in words), len(_FIRST))
            hierarchies.append((rank, mount.point))
    inside = text.lstrip("/")
    given = [text] if any(f"{text}/".startswith(f"{point}/") for _, point in hierarchies) else []
    for folder in (*given, *(f"{point}/{inside}".rstrip("/") for _, point in sorted(hierarchies))):
        if text_of(host, f"{folder}/cgroup.procs") is not None or "cgroup.threads" in host.names(folder):
            return folder.rstrip("/")
    raise UserError(f"--cgroup {text}: there is no such control group", hint=_HINT)


_HINT = "write its folder, or its path as in /proc/PID/cgroup: --cgroup /system.slice/redis-server.service"


def charged(folder: str, host: Host) -> ChargedToGroup | None:
    """Read the group's memory.stat; None where that controller does not count it."""
    stat = text_of(host, f"{folder}/memory.stat")
    if stat is None:
        return None
    counters = dict(line.split(" ", 1) for line in stat.split("\n") if " " in line)

    def number(*names: str) -> int | None:
        return next((int(counters[name]) for name in names if counters.get(name, "").isdigit()), None)

    return ChargedToGroup(
        path=folder,
        anonymous=number("anon", "total_rss"),
        anonymous_huge=number("anon_thp", "total_rss_huge"),
        file_huge=number("file_thp"),
        shmem_huge=number("shmem_thp"),
    )


def _below(folder: str, host: Host) -> Iterator[str]:
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        yield path
        # The other entries of a group are files, not folders.
        waiting += [f"{path}/{name}" for name in host.names(path) if "cgroup.procs" in host.names(f"{path}/{name}")]


def _members(folder: str, host: Host) -> Iterator[int]:
    text = text_of(host, f"{folder}/cgroup.procs")
    if text is None:  # for a threaded group the kernel lists the threads alone
        for word in (text_of(host, f"{folder}/cgroup.threads") or "").split():
            leader = fields(text_of(host, f"/proc/{word}/status") or "").get("Tgid", "")
            if _NUMBER.fullmatch(leader):
                yield int(leader)
        return
    yield from (int(word) for word in text.split() if _NUMBER.fullmatch(word) and word != "0")


def _has_memory(host: Host, pid: int) -> bool:
    # threads of the kernel, and ended processes, have none; where the first thread has ended, another one tells
    status = text_of(host, f"/proc/{pid}/status")
    if status is None:
        return False
    status_fields = fields(status)
    return "VmRSS" in status_fields or (
        status_fields.get("State", "")[:1] in ("Z", "X") and living(host, pid) is not None
    )
