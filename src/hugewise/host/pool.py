"""The hugetlb pools of a run (filled once, watched, restored by what was added), and memory promised to guests.

Pages are added to what is there: the pages of others stay theirs. The kernel grants what it finds in one piece, so a
request is read back and tried again after compaction. Pages are given back per NUMA node, since that is how they came;
what is bound to a node is asked of that node, the rest of the machine, which spreads it over the nodes as it likes.

The end of a process is not always the end of its memory: whoever reads its /proc/PID/status, smaps or the like just
then (a monitor, `ps`) keeps the memory until the reading is done, and frees it. Measured with two busy readers beside
two CPUs: pages still in use up to 12 ms after their process was waited for, in 4 of 200 ends. So what was given back
is waited for.

A virtual machine of others takes its memory when it touches it, unless it was preallocated: what is free now is partly
theirs. Read from the command lines of QEMUs (`-m size=8388608k`, as libvirt writes it; `-m 8G`; `-m 8192` in MiB:
qemu(1)) and what each has (proc_pid_status(5): VmRSS, HugetlbPages).

Sources: Documentation/admin-guide/mm/hugetlbpage.rst of the Linux kernel; get_task_mm() and mmput() in kernel/fork.c.
"""

from __future__ import annotations

import itertools
import mmap
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from hugewise.errors import SettingError
from hugewise.host import knob
from hugewise.host.knob import NODES, Settings
from hugewise.host.ledger import Ledger, PoolGranted, PoolIntent, PoolReturn, Share
from hugewise.machine.machine import Drift
from hugewise.model.host import Host
from hugewise.model.pages import HUGETLB

Where = tuple[int, int | None]  # page size in bytes, and NUMA node; node None: the whole machine

_TRIES = 3
_PATIENCE_S = 5.0
_PAUSE_S = 0.001
_MAP_HUGETLB, _MAP_HUGE_SHIFT = 0x40000, 26  # <asm-generic/hugetlb_encode.h>: the same on x86-64 and arm64
_COMPACT = "/proc/sys/vm/compact_memory"


def pool_folder(size: int, node: int | None = None) -> str:
    """Return the sysfs folder of the pool with pages of `size` bytes, of the machine or of one node."""
    name = f"hugepages-{size >> 10}kB"
    return f"{HUGETLB}/{name}" if node is None else f"{NODES}/node{node}/hugepages/{name}"


def _number(host: Host, path: str) -> int:
    # 0 where this kernel or folder lacks the file (nodes do not tell what is reserved)
    try:
        return int(host.read(path))
    except FileNotFoundError:
        return 0


def available(host: Host, size: int, node: int | None = None) -> int:
    """Return pages that are free and promised to nobody: what a program can map now."""
    folder = pool_folder(size, node)
    return max(0, _number(host, f"{folder}/free_hugepages") - _number(host, f"{folder}/resv_hugepages"))


def hold(host: Host, size: int) -> mmap.mmap | None:
    """Map all free pages of the pool, untouched, so that others get surplus pages; or None. Raises SettingError."""
    pages = available(host, size)
    if not pages:
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB | (size.bit_length() - 1) << _MAP_HUGE_SHIFT
    try:
        return mmap.mmap(-1, pages * size, flags=flags)
    except OSError as error:
        raise SettingError(
            f"{pages} free pages of {size >> 10} kB, reserved for other arms, cannot be held back: {error.strerror}",
            hint="other programs take them meanwhile, or a hugetlb cgroup has a limit: see who, then run it again",
        ) from None


def in_use(host: Host, size: int, node: int | None = None) -> int:
    """Return pages that some program has mapped or reserved."""
    folder = pool_folder(size, node)
    taken = _number(host, f"{folder}/nr_hugepages") - _number(host, f"{folder}/free_hugepages")
    return taken + _number(host, f"{folder}/resv_hugepages")


def _parts(host: Host, size: int) -> list[str]:
    name = f"hugepages-{size >> 10}kB"
    nodes = [f"{NODES}/{each}/hugepages/{name}/nr_hugepages" for each in host.names(NODES)]
    return [path for path in nodes if host.writable(path)] or [f"{pool_folder(size)}/nr_hugepages"]


class Pools:
    """The pools that a run fills. `settings` holds what was found at the start, the journal and the ledger."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._host = settings.host
        self._granted: dict[Where, int] = {}  # node None: on all nodes together
        self.others: dict[int, int] = {}  # pages that others had mapped or reserved when the pool was filled

    def fill(self, plan: Mapping[int, int]) -> dict[int, int]:
        """Reserve `plan[size]` pages for each size in bytes, on any node; returns what can be mapped of them."""
        granted = self.fill_nodes({(size, None): pages for size, pages in plan.items()})
        return {size: pages for (size, _), pages in granted.items()}

    def fill_nodes(self, plan: Mapping[Where, int]) -> dict[Where, int]:
        """Reserve `plan[size, node]` pages, the largest size first; return how many can be mapped there. An ordinary
        user gets what is free already. Raises SettingError.
        """
        granted: dict[Where, int] = {}
        for size in sorted({size for size, _ in plan}, reverse=True):
            # Requests for any node come last: they take what is left.
            nodes = sorted((node for each, node in plan if each == size), key=lambda node: (node is None, node))
            granted |= self._reserve(size, {node: plan[size, node] for node in nodes})
        return granted

    def _reserve(self, size: int, wanted: Mapping[int | None, int]) -> dict[Where, int]:
        """Add pages of one size where root may; return how many can be mapped, by size and node."""
        host = self._host
        for node in (None, *wanted):
            if not host.writable(f"{pool_folder(size, node)}/nr_hugepages"):
                which = "this machine" if node is None else f"NUMA node {node} of this machine"
                raise SettingError(f"{which} has no pool of {size >> 10} kB pages", hint="see: hugewise doctor")
        self.others[size] = in_use(host, size)
        if host.privileged() and any(wanted.values()):
            self._add(size, wanted)
        left, granted = available(host, size), dict[Where, int]()
        for node, pages in wanted.items():
            granted[size, node] = min(pages, left, available(host, size, node))
            left -= granted[size, node]
        self._granted |= granted
        self._granted[size, None] = sum(granted.values())
        return granted

    def _add(self, size: int, wanted: Mapping[int | None, int]) -> None:
        host, settings = self._host, self._settings
        parts = _parts(host, size)
        expected = {
            path: value
            for path in {f"{pool_folder(size)}/nr_hugepages", *parts}
            if (value := settings.expected(path)) is not None
        }
        for drift in knob.differing_knobs(host, expected):
            raise SettingError(f"somebody else changed a pool: {drift}", hint="see who, then run it again")
        taken = [path for path in parts if path in settings.ledger.pools]
        if taken:
            raise SettingError(f"{taken[0]} was filled already: pools are filled once per run")
        before = {path: int(knob.read(host, path)) for path in parts}
        surplus = {path: found for path in parts if (found := knob.surplus(host, path))}
        settings.note(PoolIntent(before, sum(wanted.values()), surplus))
        try:
            for node, pages in wanted.items():
                if pages:
                    _grow(host, f"{pool_folder(size, node)}/nr_hugepages", pages)
        finally:
            added = {path: max(0, int(knob.read(host, path)) - had) for path, had in before.items()}
            settings.note_return(PoolGranted(added))
            settings.expect({path: knob.read(host, path) for path in expected})

    def verify(self) -> list[Drift]:
        """Pools that others changed, or whose pages others use, seen while no attempt runs."""
        shares = self._settings.ledger.pools
        expected = {path: str(share.before + (share.added or 0)) for path, share in shares.items()}
        differing = knob.differing_knobs(self._host, expected)
        for (size, node), granted in self._granted.items():
            path = f"{pool_folder(size, node)}/free_hugepages"
            if (free := available(self._host, size, node)) < granted:
                differing.append(Drift(path, f"{granted} or more unreserved", str(free)))
        return differing

    def restore(self) -> list[Drift]:
        """Give back what was added and wait until it is free; return pools that others shrank, and pages in use."""
        settings = self._settings
        with settings.closing_only_when_done():
            back, left = give_back(self._host, settings.ledger, settings.note_return)
            left += in_use_still(self._host, settings.ledger)
        settings.expect({path: str(pages) for path, pages in back.items()})
        totals = {f"{pool_folder(size)}/nr_hugepages" for size, _ in self._granted}
        settings.expect({path: knob.read(self._host, path) for path in totals if settings.expected(path)})
        return left


def _grow(host: Host, total: str, pages: int) -> None:
    goal = int(knob.read(host, total)) + pages
    for attempt in range(_TRIES):
        if attempt:
            with suppress(OSError):  # a kernel without compaction has no such file
                host.write(_COMPACT, "1")
        try:
            host.write(total, str(goal))
        except OSError:  # such as gigantic pages that this kernel gives at boot only: nothing is granted
            return
        if int(knob.read(host, total)) >= goal:
            return


def give_back(host: Host, ledger: Ledger, note: Callable[[PoolReturn], None]) -> tuple[dict[str, int], list[Drift]]:
    """Give back the added pages; return new sizes by path, and pools that others shrank. Raises SettingError."""
    back: dict[str, int] = {}
    left: list[Drift] = []
    refused: list[SettingError] = []
    for path, share in reversed(ledger.pools.items()):
        try:
            current = int(knob.read(host, path))
            goal = _after_return(share, current)
            if goal is None:
                left.append(Drift(path, str(share.before + (share.added or 0)), str(current)))
            elif goal != current:
                note(PoolReturn(path, current, goal))
                knob.turn(host, {path: str(goal)})
                back[path] = goal
        except SettingError as error:
            refused.append(error)
        except OSError as error:
            refused.append(SettingError(f"{path}: {error.strerror}"))
    if refused:
        raise refused[0]
    return back, left


def in_use_still(host: Host, ledger: Ledger) -> list[Drift]:
    """Wait until what was given back is free, up to 5 s for all pools; what programs still use is left to them."""
    left: list[Drift] = []
    end = time.monotonic() + _PATIENCE_S
    for path, share in ledger.pools.items():
        if share.returned is not None and (held := _held(host, path, share.surplus, end)) is not None:
            left.append(held)
    return left


def _held(host: Host, path: str, surplus: int, end: float) -> Drift | None:
    while (found := knob.surplus(host, path)) > surplus:
        if time.monotonic() > end:
            return Drift(f"{path.removesuffix('nr_hugepages')}surplus_hugepages", str(surplus), str(found))
        time.sleep(_PAUSE_S)
    return None


def _after_return(share: Share, found: int) -> int | None:
    if share.returned is not None:  # done before, unless the kill came between the record and the write
        return share.returned.wrote if found == share.returned.found else found
    if share.added is None:  # killed while it was filled: new pages are ours, up to the request
        return found - min(max(0, found - share.before), share.wanted)
    if found >= share.before + share.added:
        return found - share.added
    return found if found == share.before else None


PROGRAM = re.compile(r"qemu-system-\w+|qemu-kvm|kvm")
"""Names of QEMU programs that run machines: upstream and Debian, RHEL, Proxmox."""

_SIZE = re.compile(r"(?:size=)?(\d{1,15})([bkmgtBKMGT]?)")
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_HAS = re.compile(r"^(?:VmRSS|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)


def not_taken_yet(host: Host) -> int:
    """Return the bytes that the QEMUs of this host may still take. Processes that cannot be read count nothing."""
    return sum(_lacking(host))


def _lacking(host: Host) -> Iterator[int]:
    for name in host.names("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            words = host.read(f"/proc/{name}/cmdline").split("\0")
            program = words[0].rpartition("/")[2]
            if PROGRAM.fullmatch(program) is None or (promised := _promised(words)) is None:
                continue
            has = sum(int(size) << 10 for size in _HAS.findall(host.read(f"/proc/{name}/status")))
            yield max(0, promised - has)


def _promised(words: Sequence[str]) -> int | None:
    promised = None
    for option, value in itertools.pairwise(words):
        match = _SIZE.fullmatch(value.partition(",")[0]) if option in ("-m", "--m") else None
        if match is not None:
            promised = int(match[1]) * _UNITS[(match[2] or "m").lower()]
    return promised
