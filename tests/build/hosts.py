"""Machines in a dictionary: files alone, or with the manners of sysfs: choices, EINVAL, pools that grant in part."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping

from hugewise.errors import StorageError
from hugewise.host.knob import NODES
from hugewise.host.ledger import JournalRecord
from hugewise.model.pages import HUGETLB, THP
from hugewise.processes import ProcessStat

BOOT_ID = "00000000-1111-2222-3333-444444444444"
MIN_FREE = "/proc/sys/vm/min_free_kbytes"
_TOP = ("always", "madvise", "never")
SIZED = ("always", "inherit", "madvise", "never")
_SHMEM = ("always", "within_size", "advise", "never", "deny", "force")
_SHMEM_SIZED = ("always", "inherit", "within_size", "advise", "never")
_DEFRAG = ("always", "defer", "defer+madvise", "madvise", "never")
_POOL = re.compile(r"(.*/hugepages-(\d+)kB)/nr_hugepages")


class Files:
    """A Host of these files that nothing is written to. `knobs`: they look as if root could write them."""

    name = "files"

    def __init__(self, files: Mapping[str, str] | None = None, *, root: bool = False, knobs: bool = False) -> None:
        self.files, self.root, self.knobs = dict(files or {}), root, knobs

    def privileged(self) -> bool:
        return self.root

    def read(self, path: str) -> str:
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, text: str) -> None:
        raise AssertionError(f"nothing is turned here: {path}")

    def writable(self, path: str) -> bool:
        return self.knobs and path in self.files

    def names(self, path: str) -> list[str]:
        return sorted({name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(f"{path}/")})


class Killed(BaseException):
    """The process dies here, as by SIGKILL: nothing may catch it but the test."""


class FakeHost:
    """A Host. `capacity` says how many pages each pool can have (by size in bytes); the machine has one NUMA node.

    `choices` and `numbers` hold the files that can be written, `fixed` those that cannot. `dies_at` is the number of
    the write at which the process is killed, before it takes effect.
    """

    def __init__(
        self,
        *,
        root: bool = True,
        mthp: tuple[int, ...] = (16, 64),
        capacity: Mapping[int, int] | None = None,
        nodes: bool = True,
        thp: bool = True,
    ) -> None:
        self.name = "fake"
        self.root = root
        self.capacity = {2 << 20: 1000, 1 << 30: 4} if capacity is None else dict(capacity)
        self.writes: list[tuple[str, str]] = []
        self.dies_at: int | None = None
        self.on_compact: Callable[[], None] = lambda: None
        self.choices: dict[str, tuple[tuple[str, ...], str]] = {}
        self.numbers: dict[str, int] = {}
        self.numbers[MIN_FREE] = 30000  # as an administrator chose it
        self.fixed = {
            "/proc/sys/kernel/random/boot_id": BOOT_ID,
            "/proc/meminfo": "MemTotal:       67108864 kB\nHugepagesize:       2048 kB\n",
            "/proc/buddyinfo": "Node 0, zone   Normal" + "      1" * 11 + "\n",  # up to 4 MiB
        }
        if thp:
            self._add_thp(mthp)
        for size in self.capacity:
            self._add_pool(size, nodes=nodes)

    def _add_thp(self, mthp: tuple[int, ...]) -> None:
        self.fixed[f"{THP}/hpage_pmd_size"] = str(2 << 20)
        self.choices[f"{THP}/enabled"] = (_TOP, "madvise")
        self.choices[f"{THP}/defrag"] = (_DEFRAG, "madvise")
        self.choices[f"{THP}/shmem_enabled"] = (_SHMEM, "never")
        self.numbers[f"{THP}/use_zero_page"] = 1
        self.numbers[f"{THP}/khugepaged/max_ptes_none"] = 511
        self.fixed[f"{THP}/khugepaged/full_scans"] = "7"
        for kilobytes in (*mthp, 2048):
            default = "inherit" if kilobytes == 2048 else "never"
            self.choices[f"{THP}/hugepages-{kilobytes}kB/enabled"] = (SIZED, default)
            self.choices[f"{THP}/hugepages-{kilobytes}kB/shmem_enabled"] = (_SHMEM_SIZED, default)
            self.fixed[f"{THP}/hugepages-{kilobytes}kB/stats/nr_anon"] = "0"
        self.choices[f"{THP}/hugepages-8kB/shmem_enabled"] = (_SHMEM_SIZED, "never")

    def _add_pool(self, size: int, *, nodes: bool) -> None:
        name = f"hugepages-{size >> 10}kB"
        for folder in [f"{HUGETLB}/{name}", *([f"{NODES}/node0/hugepages/{name}"] if nodes else [])]:
            for file in ("nr_hugepages", "free_hugepages", "surplus_hugepages"):
                self.numbers[f"{folder}/{file}"] = 0
        self.numbers[f"{HUGETLB}/{name}/resv_hugepages"] = 0
        self.numbers[f"{HUGETLB}/{name}/nr_overcommit_hugepages"] = 0

    def privileged(self) -> bool:
        return self.root

    def read(self, path: str) -> str:
        if path in self.fixed:
            return self.fixed[path]
        if path in self.numbers:
            return str(self.numbers[path])
        if path in self.choices:
            words, chosen = self.choices[path]
            return " ".join(f"[{word}]" if word == chosen else word for word in words)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def write(self, path: str, text: str) -> None:
        if not self.root:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if self.dies_at is not None and len(self.writes) >= self.dies_at:
            raise Killed
        self.writes.append((path, text))
        self.turn(path, text)

    def turn(self, path: str, text: str) -> None:
        """What the kernel does with a write, whoever it comes from."""
        if path == "/proc/sys/vm/compact_memory":
            self.on_compact()
        elif path in self.choices:
            words, _ = self.choices[path]
            if text not in words or self._clashes(path, text):
                raise OSError(errno.EINVAL, "Invalid argument", path)
            self.choices[path] = (words, text)
            if path == f"{THP}/enabled":
                self.numbers[MIN_FREE] = 19832 if text == "never" else 67584
        elif path in self.numbers and text.isdigit():
            if pool := _POOL.fullmatch(path):
                self._resize(int(pool[2]), int(text))
            else:
                self.numbers[path] = int(text)
        else:
            raise OSError(errno.EINVAL, "Invalid argument", path)

    def _clashes(self, path: str, text: str) -> bool:
        """A small size cannot inherit a shmem_enabled that is forced, and the other way round (mm/shmem.c)."""
        small = [name for name in self.choices if name.endswith("kB/shmem_enabled") and "2048" not in name]
        if path == f"{THP}/shmem_enabled":
            return text == "force" and any(self.choices[name][1] == "inherit" for name in small)
        return path in small and text == "inherit" and self.choices[f"{THP}/shmem_enabled"][1] == "force"

    def _resize(self, kilobytes: int, wanted: int) -> None:
        """Persistent pages become `wanted`, as far as there is memory; pages in use above that become surplus."""
        total = f"{HUGETLB}/hugepages-{kilobytes}kB"
        used = self.numbers[f"{total}/nr_hugepages"] - self.numbers[f"{total}/free_hugepages"]
        persistent = min(wanted, self.capacity[kilobytes << 10])
        self._set(kilobytes, "surplus_hugepages", max(0, used - persistent))
        self._set(kilobytes, "nr_hugepages", max(persistent, used))
        self._set(kilobytes, "free_hugepages", max(0, persistent - used))

    def _set(self, kilobytes: int, file: str, value: int) -> None:
        for folder in (HUGETLB, f"{NODES}/node0/hugepages"):
            if f"{folder}/hugepages-{kilobytes}kB/{file}" in self.numbers:
                self.numbers[f"{folder}/hugepages-{kilobytes}kB/{file}"] = value

    def use(self, kilobytes: int, pages: int) -> None:
        """Some program maps `pages` pages of a pool (or lets go of them, below 0)."""
        total = f"{HUGETLB}/hugepages-{kilobytes}kB"
        surplus = self.numbers[f"{total}/surplus_hugepages"]
        gone = min(surplus, -pages) if pages < 0 else 0
        self._set(kilobytes, "surplus_hugepages", surplus - gone)
        self._set(kilobytes, "nr_hugepages", self.numbers[f"{total}/nr_hugepages"] - gone)
        self._set(kilobytes, "free_hugepages", self.numbers[f"{total}/free_hugepages"] - pages - gone)

    def writable(self, path: str) -> bool:
        return path in self.choices or path in self.numbers

    def names(self, path: str) -> list[str]:
        files = (*self.choices, *self.numbers, *self.fixed)
        return sorted({name[len(path) + 1 :].split("/")[0] for name in files if name.startswith(f"{path}/")})

    def alive(self, pid: int, start: int, state: str = "S") -> None:
        """Let a process be seen in /proc, by its start time in ticks."""
        self.fixed[f"/proc/{pid}/stat"] = stat_text(pid, "a (b) c", state, starttime=start)


def stat_text(pid: int, comm: str = "x", state: str = "S", ppid: int = 1, **numbers: int) -> str:
    """/proc/PID/stat of such a process; `numbers` are fields of `hugewise.processes.ProcessStat`."""
    stat = ProcessStat(pid, comm, state, ppid, *(numbers.get(name, 0) for name in ProcessStat._fields[4:]))
    faults_and_times = " ".join(map(str, stat[5:13]))
    return (
        f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 {stat.flags} {faults_and_times} 20 0 {stat.num_threads}"
        f" 0 {stat.starttime} 4096 {stat.rss} 18446744073709551615 1 1 0\n"
    )


class Notes:
    """A journal in memory; `full` makes it refuse."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []
        self.full = False
        self.kept_open = False

    def keep_open(self) -> None:
        self.kept_open = True

    def append(self, record: JournalRecord, *, sync: bool = True) -> None:
        if self.full:
            raise StorageError("disk full")
        self.records.append(record)


class Unheld:
    """A lock that keeps nobody out."""

    def __init__(self, host: object, **_: object) -> None:
        self.host = host
        self.remarks = ()
        self.depth = 0
        self.taken = 0

    def __enter__(self) -> Unheld:
        self.taken += self.depth == 0
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1

    def expect_end(self, seconds: float) -> None:
        """Tell nobody."""
