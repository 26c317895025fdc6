"""Traces of a run on a machine (settings, mounts, cgroups, links, folders, processes), and its files.

All page settings are compared, also those that no run should touch: what it changes without knowing is what would be
missed. Of mounts, folders, groups and links those are compared that are named as runs name them, and every hugetlbfs:
others come and go on a machine that lives. The files are read here and nowhere else, so that a mistake of `host` is
not repeated.

This process adopts its orphans: so what a killed run leaves running is found by its parents alone, without trusting
cgroups, sessions or names. See proc(5).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.machine.proc import kernel_text, mounts
from hugewise.store import folder


def adopt() -> None:
    """Become the parent of descendants whose parents die. Raises HugewiseError."""
    try:
        processes.adopt()
    except OSError as error:
        raise HugewiseError(f"cannot adopt orphans: {error.strerror}") from None


def reap() -> None:
    """Take note of children that have ended: adopted ones, that nobody else waits for.

    To be called only while no process of `subprocess` is under way: it takes their exit statuses too.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants() -> dict[int, str]:
    """Return the names of living descendants by pid; those that have ended and were not waited for are left out."""
    parents: dict[int, tuple[int, str]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        if (stat := processes.stat(process)) is not None and not stat.has_ended:
            parents[stat.pid] = (stat.ppid, stat.comm)
    found: dict[int, str] = {}
    fresh = {os.getpid()}
    while fresh:
        fresh = {pid for pid, (parent, _) in parents.items() if parent in fresh and pid not in found}
        found |= {pid: parents[pid][1] for pid in fresh}
    return found


def end_all() -> None:
    """Kill every descendant, and wait for those that are children by now."""
    for pid in descendants():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reap()


# Counters and derived values; everything else must be unchanged.
_MOVING = ("stats", "full_scans", "pages_collapsed", "free_hugepages", "resv_hugepages", "surplus_hugepages", "demote")
_TREES = ("/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/hugepages", "/sys/kernel/mm/ksm")
_NODES = Path("/sys/devices/system/node")
_KSM = ("run", "pages_to_scan", "sleep_millisecs", "use_zero_pages", "merge_across_nodes")
_BESIDE = (
    "/proc/sys/vm/min_free_kbytes",
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/nr_overcommit_hugepages",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/hugetlb_shm_group",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/net/ipv4/ip_forward",
)
_PLACES = ("/dev/shm", "/run", "/tmp", "/var/tmp")  # noqa: S108  (looked at, never written)
_OF_OTHERS = ("folder ", "System V ")
_OWNED = re.compile(r"hugewise-(\d+)")
_SHARED = re.compile(r"hugewise|PostgreSQL")
_PAUSE_S = 0.02


def page_settings() -> dict[str, str]:
    """Path -> text of every readable setting below the folders of sysfs with page settings, and of some of sysctl."""
    found = {}
    for top in (*_TREES, *map(str, _NODES.glob("node*/hugepages"))):
        for path in sorted(Path(top).rglob("*")):
            moving = any(part in _MOVING for part in path.parts) or ("ksm" in path.parts and path.name not in _KSM)
            if path.is_file() and not moving:
                with suppress(OSError):
                    found[str(path)] = path.read_text().strip()
    for name in _BESIDE:
        with suppress(OSError):
            found[name] = Path(name).read_text().strip()
    return found


def look(but: Path | None = None) -> dict[str, str]:
    """Everything that is there now, by a name that says what it is. What lies below the folder `but` is left out, and
    so is what is named after another process that lives.
    """
    found = {f"setting {path}": text for path, text in page_settings().items()}
    for name, text in (*_mounts(), *_groups(), *_folders(), *_segments()):
        named = _OWNED.search(name)
        foreign = named is not None and _lives_elsewhere(int(named[1]))
        if not foreign and (but is None or str(but) not in name):
            found[name] = text
    found |= {f"link {path.name}": "there" for path in Path("/sys/class/net").glob("hw*")}
    found |= {f"process {pid} ({name})": "lives" for pid, name in descendants().items()}
    return found


def _lives_elsewhere(pid: int) -> bool:
    return Path("/proc", str(pid)).exists() and pid not in descendants() and pid != os.getpid()


def _mounts() -> Iterator[tuple[str, str]]:
    for mount in mounts(kernel_text(Path("/proc/self/mountinfo"))):
        if mount.kind == "hugetlbfs" or _OWNED.search(mount.point):
            yield f"mount {mount.point}", mount.kind


def _groups() -> Iterator[tuple[str, str]]:
    """Yield groups of runs in and above this process's own, and the controllers that these give to their children."""
    for own in cgroup.find().values():
        for group in (own, *own.parents):
            if not (group / "cgroup.procs").exists():
                break
            for path in group.glob("hugewise-*"):
                yield f"group {path}", "there"
            with suppress(OSError):
                yield f"group {group} gives", (group / "cgroup.subtree_control").read_text().strip()


def _folders() -> Iterator[tuple[str, str]]:
    for place in {*_PLACES, tempfile.gettempdir()}:
        for path in Path(place).glob("*"):
            if (_SHARED if place == "/dev/shm" else _OWNED).match(path.name):  # noqa: S108
                yield f"folder {path}", "there"


def _segments() -> Iterator[tuple[str, str]]:
    """Yield shared memory of System V whose maker has died, or descends from this process."""
    with suppress(OSError):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            _, number, _, _, maker, *_ = line.split()
            if not _lives_elsewhere(int(maker)):
                yield f"System V shared memory {number}", "there"


def differences(before: Mapping[str, str], but: Path | None = None) -> list[str]:
    """Return the differences from `before`, except missing items of `_OF_OTHERS`, which end when they like."""
    now = look(but)
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name}: was {before.get(name, 'not there')}, is {now.get(name, 'not there')}"
        for name in names
        if before.get(name) != now.get(name) and not (name.startswith(_OF_OTHERS) and name not in now)
    ]


def remaining(before: Mapping[str, str], but: Path | None = None, patience: float = 5.0) -> list[str]:
    """Return the differences left after `patience` seconds: processes take time to die, and others come and go."""
    return _until_none(lambda: differences(before, but), patience)


def _until_none(look_again: Callable[[], list[str]], patience: float) -> list[str]:
    end = time.monotonic() + patience
    while (found := look_again()) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return found


_RECORD = "attempt.json"


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt that is stored; `digest` is over its record and every other file of its folder."""

    block: int
    arm: str
    state: str
    digest: str


def only_run(results: Path) -> Path | None:
    """Return the folder of the only run there, beside the data of workloads; None before it was made."""
    found = [path.parent for path in results.glob("*/*/study.json") if path.parent.parent.name != "data"]
    assert len(found) <= 1, found
    return found[0] if found else None


def resumable(run: Path | None) -> bool:
    """Return whether the run has begun, by its first record, and has not ended."""
    records = list(_records(run)) if run is not None else []
    return bool(records) and records[0].get("record") == "opened" and not _ended(records)


def _ended(records: list[dict[str, Any]]) -> bool:
    return any(record.get("record") == "closed" for record in records)


def _records(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the log; a line that a kill has torn is passed over."""
    with suppress(FileNotFoundError):
        for line in (run / "run.jsonl").read_bytes().split(b"\n"):
            with suppress(ValueError):
                yield json.loads(line)


def stored(run: Path | None) -> dict[str, StoredAttempt]:
    """Return the attempts by the name of their folder, wherever their records lie."""
    if run is None:
        return {}
    records = {path.parent.name: path.read_bytes() for path in (run / "attempts").glob(f"[!.]*/{_RECORD}")}
    records = folder.read_compacted(run / "attempts.parquet") | records
    found = {}
    for name, record in sorted(records.items()):
        digest = hashlib.sha256(record)
        for path in sorted((run / "attempts" / name).rglob("*")):
            if path.is_file() and path.name != _RECORD:
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
        said = json.loads(record)
        found[name] = StoredAttempt(said["block"], said["arm"], said["state"], digest.hexdigest())
    return found


def accepted(attempts: Mapping[str, StoredAttempt]) -> int:
    """Return how many of the attempts are accepted."""
    return sum(attempt.state == "accepted" for attempt in attempts.values())


def missing(before: Mapping[str, StoredAttempt], now: Mapping[str, StoredAttempt]) -> list[str]:
    """Return attempts that were there `before`, and are gone or changed."""
    lost = [f"{name} is gone" for name in before if name not in now]
    return lost + [f"{name} is not what it was" for name in before if name in now and now[name] != before[name]]


def whole(run: Path, before: Mapping[str, StoredAttempt]) -> tuple[list[str], list[str], list[str]]:
    """Return what a resumed run lost of its attempts `before`, what it made twice, and other broken promises."""
    now, records = stored(run), list(_records(run))
    lost = missing(before, now)
    opened = {record["block"]: record for record in records if record.get("record") == "block_opened"}
    closed = {record["block"]: record["state"] for record in records if record.get("record") == "block_closed"}
    lost += [
        f"block {block} was closed as {state}, with accepted attempts in it"
        for block, state in closed.items()
        if state != "complete" and any(one.block == block and one.state == "accepted" for one in now.values())
    ]
    made = Counter((one.block, one.arm) for one in now.values() if one.state in ("accepted", "failed"))
    repeated = [f"block {block} has {n} attempts of {arm}" for (block, arm), n in made.items() if n > 1]
    # Another number of the same block and arm is not another attempt where the first one was accepted.
    other = [
        f"block {block} is complete without an attempt of {arm}"
        for block, state in closed.items()
        if state == "complete"
        for arm in opened[block]["arms"]
        if made[block, arm] == 0
    ]
    if not _ended(records):
        other.append("the run has not ended")
    return lost, repeated, other
