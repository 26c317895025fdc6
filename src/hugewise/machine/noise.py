"""Was the host quiet? Cheap counters before and after an attempt.

A snapshot reads about 50 small files of /proc and /sys and takes well under 2 ms. Rules that name
what disturbed an attempt are in `hugewise.attempt.recording`.

Sources: Documentation/filesystems/proc.rst, accounting/psi.rst, admin-guide/mm/transhuge.rst and
admin-guide/pm/cpufreq.rst of the Linux kernel.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar, cast

import msgspec

from hugewise.machine import proc
from hugewise.model.host import Host, number_of, text_of
from hugewise.model.pages import HUGETLB, THP, sizes_in
from hugewise.processes import TICK, ProcessStat, parse_stat
from hugewise.reading import UnreadableError, figure, shown, whole

CPU = "/sys/devices/system/cpu"
_CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

_KERNEL_THREADS = ("khugepaged", "kcompactd", "kswapd")
_BACKGROUND = (*_KERNEL_THREADS, "ksmd", "kworker/u")
_VMSTAT = re.compile(
    r"^(pswpin|pswpout|compact_(?:stall|fail|success|daemon_wake)|allocstall\w*|oom_kill"
    r"|thp_(?:fault_alloc|fault_fallback|collapse_alloc|collapse_alloc_failed|split_page)) (\d{1,18})$",
    re.MULTILINE | re.ASCII,
)
_HUGE = {"anon": "AnonHugePages", "shmem": "ShmemHugePages"}
FREQUENCY_FILES = (
    "scaling_driver",
    "scaling_governor",
    "scaling_min_freq",
    "scaling_max_freq",
    "energy_performance_preference",
)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one moment. Times in seconds, sizes in bytes; what the machine does not have is None or not listed.

    own_cpu_s       CPU time of hugewise and of its children that have ended
    pressure        `resource.some` or `.full` -> seconds stalled since boot (PSI)
    huge_in_use     `anon:SIZE` for each THP size (`anon` on kernels that know one size), `shmem` (PMD size),
                    `hugetlb:SIZE` -> bytes
    faults          page size -> anonymous faults served at that size, and those that fell back
    kernel_threads  name -> CPU time
    """

    monotonic_s: float
    cpus: int
    load: float | None
    busy_s: float
    steal_s: float
    own_cpu_s: float | None
    pressure: Mapping[str, float | None]
    vmstat: Mapping[str, int]
    throttles: Mapping[str, int]
    clock_source: str | None
    frequency: Mapping[str, str]
    memory_bytes: int | None
    huge_in_use: Mapping[str, int]
    faults: Mapping[int, tuple[int, int]]
    kernel_threads: Mapping[str, float]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Changes between two snapshots, in the snapshot's units.

    other_cpu_s  CPU time used by others: all busy time without hugewise, its children, and the memory kernel threads
    other_load   the part of the one-minute load average that is others', by their share of the CPU time
    swap_pages   pages swapped in and out
    throttles    the largest rise of a throttle counter (CPUs of a package show the same events)
    """

    before: Snapshot
    after: Snapshot
    elapsed_s: float
    steal_s: float
    own_cpu_s: float | None
    other_cpu_s: float | None
    other_load: float | None
    pressure: Mapping[str, float | None]
    vmstat: Mapping[str, int]
    swap_pages: int | None
    throttles: int | None
    huge_in_use: Mapping[str, int]
    faults_by_size: Mapping[int, tuple[int, int]]
    kernel_thread_cpu: Mapping[str, float]


class _Sources(msgspec.Struct, frozen=True):
    fault_stats: tuple[tuple[int, str], ...]
    pools: tuple[tuple[int, str], ...]
    throttles: tuple[str, ...]
    frequency: tuple[str, ...]
    kernel_threads: tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=8)
def _sources(key: Hashable) -> _Sources:
    host = cast(Host, key)
    stats = ((size, f"{THP}/hugepages-{size >> 10}kB/stats") for size in sizes_in(host, THP))
    pools = ((size, f"{HUGETLB}/hugepages-{size >> 10}kB") for size in sizes_in(host, HUGETLB))
    policies = [f"{CPU}/cpufreq/{name}" for name in host.names(f"{CPU}/cpufreq") if name.startswith("policy")]
    frequency = [f"{policy}/{name}" for policy in policies for name in FREQUENCY_FILES]
    frequency += [f"{CPU}/cpufreq/boost", f"{CPU}/intel_pstate/no_turbo"]
    throttles = [
        f"{folder}/{name}"
        for cpu in host.names(CPU)
        if re.fullmatch(r"cpu\d+", cpu)
        for folder in [f"{CPU}/{cpu}/thermal_throttle"]
        for name in host.names(folder)
        if name in ("core_throttle_count", "package_throttle_count")
    ]
    return _Sources(
        fault_stats=tuple(stat for stat in stats if host.names(stat[1])),
        pools=tuple(pools),
        throttles=tuple(throttles),
        frequency=tuple(path for path in frequency if text_of(host, path) is not None),
        kernel_threads=_threads(host),
    )


def _threads(host: Host) -> tuple[tuple[str, str], ...]:
    # Children of kthreadd (pid 2), as any program may take such a name.
    return tuple(
        sorted((stat.comm, path) for path, stat in _kernel_stats(host) if stat.comm.startswith(_KERNEL_THREADS))
    )


def _kernel_stats(host: Host) -> Iterator[tuple[str, ProcessStat]]:
    for name in host.names("/proc"):
        if name.isdigit() and (text := text_of(host, path := f"/proc/{name}/stat")) is not None:
            stat = _stat(text)
            if stat.ppid == 2:
                yield path, stat


def background(host: Host) -> Mapping[str, tuple[str, float]]:
    """Return kernel threads that work for all programs: name (a worker's ends in its last work) and CPU time."""
    found = ((path, stat) for path, stat in _kernel_stats(host) if stat.comm.startswith(_BACKGROUND))
    return {path: (stat.comm, (stat.utime + stat.stime) * TICK) for path, stat in found}


def background_s(
    before: Mapping[str, tuple[str, float]], after: Mapping[str, tuple[str, float]]
) -> Mapping[str, float]:
    """Return CPU time between two looks at `background`, by what worked; of workers those that wrote pages back."""
    spent: dict[str, float] = {}
    for path, (name, now) in after.items():
        then = before.get(path, (name, 0.0))
        writes = any("flush" in each or "writeback" in each for each in (name, then[0]))
        kind = "writeback" if writes else name.rstrip("0123456789")
        if (writes or not name.startswith("kworker")) and now > then[1]:
            spent[kind] = spent.get(kind, 0.0) + now - then[1]
    return spent


def snapshot(host: Host) -> Snapshot:
    """Return the host's counters now. The first call on a host also looks for the files (some milliseconds)."""
    sources = _sources(cast(Hashable, host))
    vmstat, memory = text_of(host, "/proc/vmstat") or "", proc.meminfo(host)
    source = text_of(host, _CLOCK_SOURCE)
    load = text_of(host, "/proc/loadavg")
    self_stat = text_of(host, "/proc/self/stat")
    cpus, busy, steal = _cpu_time(host.read("/proc/stat"))
    faults: dict[int, tuple[int, int]] = {}
    huge = {kind: memory[name] for kind, name in _HUGE.items() if name in memory}
    for size, folder in sources.fault_stats:
        allocated, fallback = (number_of(host, f"{folder}/anon_fault_{each}") for each in ("alloc", "fallback"))
        if allocated is not None and fallback is not None:
            faults[size] = (allocated, fallback)
        if (pages := number_of(host, f"{folder}/nr_anon")) is not None:
            huge[f"anon:{size}"] = pages * size
            huge.pop("anon", None)  # meminfo's figure says the same again, for the PMD size
    for size, folder in sources.pools:
        pages, free = number_of(host, f"{folder}/nr_hugepages"), number_of(host, f"{folder}/free_hugepages")
        if pages is not None and free is not None:
            huge[f"hugetlb:{size}"] = (pages - free) * size
    return Snapshot(
        monotonic_s=time.monotonic(),
        cpus=cpus,
        load=figure(load.split()[0], "/proc/loadavg") if load else None,
        busy_s=busy,
        steal_s=steal,
        own_cpu_s=_process_time(self_stat, children=True) if self_stat else None,
        pressure=_pressure(host),
        vmstat={name: int(value) for name, value in _VMSTAT.findall(vmstat)},
        throttles=_present(sources.throttles, lambda path: number_of(host, path)),
        clock_source=source,
        frequency=_present(sources.frequency, lambda path: text_of(host, path)),
        memory_bytes=memory.get("MemTotal"),
        huge_in_use=huge,
        faults=faults,
        kernel_threads={
            name: _process_time(stat) for name, path in sources.kernel_threads if (stat := text_of(host, path))
        },
    )


def difference(before: Snapshot, after: Snapshot) -> Difference:
    """Return the changes between `before` and `after`, two snapshots of one host and one boot."""
    own = None if before.own_cpu_s is None or after.own_cpu_s is None else after.own_cpu_s - before.own_cpu_s
    threads = _deltas(before.kernel_threads, after.kernel_threads)
    vmstat = _deltas(before.vmstat, after.vmstat)
    busy = after.busy_s - before.busy_s
    other = None if own is None else max(0.0, busy - own - sum(threads.values()))
    load = None if before.load is None or after.load is None else max(before.load, after.load)
    throttles = _deltas(before.throttles, after.throttles)
    return Difference(
        before=before,
        after=after,
        elapsed_s=after.monotonic_s - before.monotonic_s,
        steal_s=after.steal_s - before.steal_s,
        own_cpu_s=own,
        other_cpu_s=other,
        other_load=None if other is None or load is None else load * other / busy if busy > 0 else 0.0,
        pressure={
            name: None if value is None or (start := before.pressure.get(name)) is None else value - start
            for name, value in after.pressure.items()
        },
        vmstat=vmstat,
        swap_pages=vmstat["pswpin"] + vmstat["pswpout"] if {"pswpin", "pswpout"} <= vmstat.keys() else None,
        throttles=max(throttles.values(), default=None),
        huge_in_use=_deltas(before.huge_in_use, after.huge_in_use),
        faults_by_size={
            size: (allocated - before.faults[size][0], fallback - before.faults[size][1])
            for size, (allocated, fallback) in after.faults.items()
            if size in before.faults
        },
        kernel_thread_cpu=threads,
    )


def coverage_from_counters(change: Difference, faults: int | None, base_size: int) -> dict[str, int] | None:
    """Anonymous bytes by `anon:SIZE`, from the per-size fault counters around an attempt; None without them.

    The proof for memory too short-lived to be scanned. Each size's `anon_fault_alloc` counts faults that were served
    with one folio of that size; what remains of the attempt's own `faults` was served with a base page each. A kernel
    without per-size counters has the PMD size alone (`thp_fault_alloc`), which cannot tell base pages from mTHP: None.

    Limits, to be stated wherever the result is: the huge sizes are counted for the whole machine, so that another
    program's faults count too; `faults` includes file, shared and copy-on-write faults and program start-up, so that
    base is an upper bound; and pages collapsed later by khugepaged appear as they were first served.
    """
    sizes = change.faults_by_size
    if faults is None or not sizes:
        return None
    huge = {size: allocated for size, (allocated, _) in sizes.items() if size > base_size and allocated > 0}
    small = max(0, faults - sum(huge.values()))
    return {f"anon:{size}": count * size for size, count in sorted({base_size: small, **huge}.items()) if count}


def _cpu_time(stat: str) -> tuple[int, float, float]:
    times = [whole(each, "/proc/stat") for each in stat.split("\n", 1)[0].split()[1:9]]
    if len(times) < 8:
        raise UnreadableError(f"/proc/stat has {len(times)} times of a CPU, not 8")
    user, nice, system, _idle, _iowait, irq, softirq, steal = times
    cpus = len(re.findall(r"^cpu\d+ ", stat, re.MULTILINE))
    return cpus, (user + nice + system + irq + softirq) * TICK, steal * TICK


def _pressure(host: Host) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for resource in ("cpu", "memory", "io"):
        text = text_of(host, f"/proc/pressure/{resource}") or ""
        totals = dict(re.findall(r"^(some|full) .*total=(\d{1,18})$", text, re.MULTILINE | re.ASCII))
        for kind in ("some", "full"):
            found[f"{resource}.{kind}"] = int(totals[kind]) / 1e6 if kind in totals else None
    return found


def _stat(text: str) -> ProcessStat:
    stat = parse_stat(text)
    if stat is None:
        raise UnreadableError(f"/proc/PID/stat is {shown(text)}")
    return stat


def _process_time(text: str, *, children: bool = False) -> float:
    stat = _stat(text)
    return (stat.utime + stat.stime + (stat.cutime + stat.cstime if children else 0)) * TICK


_Number = TypeVar("_Number", int, float)
_Value = TypeVar("_Value")


def _deltas(before: Mapping[str, _Number], after: Mapping[str, _Number]) -> dict[str, _Number]:
    return {name: value - before[name] for name, value in after.items() if name in before}


def _present(paths: tuple[str, ...], read: Callable[[str], _Value | None]) -> dict[str, _Value]:
    return {path: value for path in paths if (value := read(path)) is not None}
