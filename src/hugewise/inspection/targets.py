"""Which processes `hugewise inspect` is asked for: some numbers, those of a control group, those of a command.

Sources: proc(5); cgroups(7); Documentation/admin-guide/cgroup-v2.rst of the Linux kernel ("threaded").

Which processes are meant: one with all that descend from it, or those in the cgroup of a unit.

No bus of systemd is asked: where a unit's processes are stands in /proc/PID/cgroup, which everybody may read.

Source: proc(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import msgspec

from hugewise.deployment.quoting import unit_name
from hugewise.errors import UserError
from hugewise.inspection.inspected import ChargedToGroup
from hugewise.machine import proc
from hugewise.machine.proc import fields, living, mounts
from hugewise.model.host import Host, text_of

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
_FIRST = ("cgroup2", "memory")  # of the hierarchies in which a path is there, the one that counts memory


def of_numbers(texts: Sequence[str], host: Host) -> Inspected:
    """The processes of these numbers; of a thread its process. Raises UserError for one that is not there."""
    pids: list[int] = []
    notes: list[str] = []
    for text in texts:
        status = text_of(host, f"/proc/{int(text)}/status") if _NUMBER.fullmatch(text) else None
        if status is None:
            raise UserError(f"{text[:20]}: there is no such process", hint="name one that runs: pgrep -a NAME")
        leader = fields(status).get("Tgid", text)
        if leader != str(int(text)) and _NUMBER.fullmatch(leader):
            notes.append(f"{text} is a thread of the process {leader}")
        else:
            leader = str(int(text))
        if living(host, int(leader)) is None:
            raise UserError(f"{leader}: the process has ended", hint="name one that runs: pgrep -a NAME")
        if not _has_memory(host, int(leader)):
            raise UserError(f"{leader}: it is a thread of the kernel, which has no memory of its own")
        if int(leader) not in pids:
            pids.append(int(leader))
    name = f"process {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    return Inspected(name=name, processes=tuple(pids), process=pids[0] if len(pids) == 1 else None, notes=tuple(notes))


def of_command(name: str, host: Host) -> Inspected:
    """All processes whose name, program or first word is `name`, but for this one. Raises UserError for none."""
    found = [pid for pid in _numbers(host) if pid != os.getpid() and name in _names(host, pid)]
    alive = tuple(pid for pid in found if _has_memory(host, pid) and living(host, pid) is not None)
    if not alive:
        raise UserError(f"--command {name}: no process of that name runs", hint=f"see: pgrep -l {name}")
    return Inspected(name=f"command {name}", processes=alive)


def of_group(text: str, host: Host) -> tuple[Inspected, str]:
    """All processes in a control group and the groups below it, and its folder. Raises UserError for none."""
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
    """The folder of a control group: as it was given, or of a path as /proc/PID/cgroup has it. Raises UserError."""
    if ".." in PurePosixPath(text).parts:
        raise UserError(f"--cgroup {text}: a group is named without ..", hint=_HINT)
    hierarchies = []
    for one in mounts(text_of(host, "/proc/self/mountinfo") or ""):
        if one.kind in ("cgroup", "cgroup2"):
            words = [one.kind, *one.options.split(",")]
            rank = next((at for at, word in enumerate(_FIRST) if word in words), len(_FIRST))
            hierarchies.append((rank, one.point))
    inside = text.lstrip("/")
    given = [text] if any(f"{text}/".startswith(f"{point}/") for _, point in hierarchies) else []
    for folder in (*given, *(f"{point}/{inside}".rstrip("/") for _, point in sorted(hierarchies))):
        if text_of(host, f"{folder}/cgroup.procs") is not None or "cgroup.threads" in host.names(folder):
            return folder.rstrip("/")
    raise UserError(f"--cgroup {text}: there is no such control group", hint=_HINT)


_HINT = "write its folder, or its path as in /proc/PID/cgroup: --cgroup /system.slice/redis-server.service"


def charged(folder: str, host: Host) -> ChargedToGroup | None:
    """What the group's memory.stat says; None where that controller does not count it."""
    stat = text_of(host, f"{folder}/memory.stat")
    if stat is None:
        return None
    said = dict(line.split(" ", 1) for line in stat.split("\n") if " " in line)

    def number(*names: str) -> int | None:
        return next((int(said[name]) for name in names if said.get(name, "").isdigit()), None)

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
        one = waiting.pop()
        yield one
        # What a group has besides groups are files, of which no folder can be read.
        waiting += [f"{one}/{name}" for name in host.names(one) if "cgroup.procs" in host.names(f"{one}/{name}")]


def _members(folder: str, host: Host) -> Iterator[int]:
    said = text_of(host, f"{folder}/cgroup.procs")
    if said is None:  # of a threaded group the kernel lists the threads alone
        for word in (text_of(host, f"{folder}/cgroup.threads") or "").split():
            leader = fields(text_of(host, f"/proc/{word}/status") or "").get("Tgid", "")
            if _NUMBER.fullmatch(leader):
                yield int(leader)
        return
    yield from (int(word) for word in said.split() if _NUMBER.fullmatch(word) and word != "0")


def _numbers(host: Host) -> Iterator[int]:
    return (int(name) for name in host.names("/proc") if _NUMBER.fullmatch(name))


def _names(host: Host, pid: int) -> set[str]:
    """What a process is called: as the kernel has it (15 characters), and as it was started."""
    name = fields(text_of(host, f"/proc/{pid}/status") or "").get("Name", "")
    first = (text_of(host, f"/proc/{pid}/cmdline") or "").partition("\0")[0]
    said = {name, first, first.rpartition("/")[2]}
    # A long name is cut by the kernel, and what it was cut from stands in its first word.
    return {one for one in said if one}


def _has_memory(host: Host, pid: int) -> bool:
    """Threads of the kernel, and what has ended, have none; of a process whose first thread has ended another knows."""
    status = text_of(host, f"/proc/{pid}/status")
    if status is None:
        return False
    found = fields(status)
    return "VmRSS" in found or (found.get("State", "")[:1] in ("Z", "X") and living(host, pid) is not None)
