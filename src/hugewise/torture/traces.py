"""What a run of hugewise can leave on a machine: page settings, mounts, cgroups, links, folders, shared memory.

All page settings are compared, also those that no run should touch: what it changes without knowing is what would be
missed. Of mounts, folders, groups and links those are compared that are named as runs name them, and every hugetlbfs:
others come and go on a machine that lives. The files are read here and nowhere else, so that a mistake of `host` is
not repeated.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hugewise.host import cgroup
from hugewise.machine.proc import kernel_text, mounts
from hugewise.torture import descent

__all__ = ["differences", "look", "page_settings", "remaining"]

# Counters and what follows from others; everything else must be as it was.
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
    found |= {f"process {pid} ({name})": "lives" for pid, name in descent.descendants().items()}
    return found


def _lives_elsewhere(pid: int) -> bool:
    return Path("/proc", str(pid)).exists() and pid not in descent.descendants() and pid != os.getpid()


def _mounts() -> Iterator[tuple[str, str]]:
    for one in mounts(kernel_text(Path("/proc/self/mountinfo"))):
        if one.kind == "hugetlbfs" or _OWNED.search(one.point):
            yield f"mount {one.point}", one.kind


def _groups() -> Iterator[tuple[str, str]]:
    """Groups of runs in and above this process's own, and the controllers that these give to their children."""
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
    """Shared memory of System V whose maker has died, or descends from this process."""
    with suppress(OSError):
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            _, number, _, _, maker, *_ = line.split()
            if not _lives_elsewhere(int(maker)):
                yield f"System V shared memory {number}", "there"


def differences(before: Mapping[str, str], but: Path | None = None) -> list[str]:
    """What is not as it was `before`. What of `_OF_OTHERS` is gone was of others, who end when they like."""
    now = look(but)
    names = [*before, *(name for name in now if name not in before)]
    return [
        f"{name}: was {before.get(name, 'not there')}, is {now.get(name, 'not there')}"
        for name in names
        if before.get(name) != now.get(name) and not (name.startswith(_OF_OTHERS) and name not in now)
    ]


def remaining(before: Mapping[str, str], but: Path | None = None, patience: float = 5.0) -> list[str]:
    """What is not as it was when `patience` seconds are over: processes take time to die, and others come and go."""
    return _until_none(lambda: differences(before, but), patience)


def _until_none(look_again: Callable[[], list[str]], patience: float) -> list[str]:
    end = time.monotonic() + patience
    while (found := look_again()) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return found
