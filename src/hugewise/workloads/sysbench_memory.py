"""sysbench's memory test: fixed work, threads that write a block of memory again and again.

As published: `sysbench memory --memory-block-size=64M --memory-total-size=4096G --time=500 --threads=14 run`, the block
shared by all threads (sysbench's own default). Without a total size the tool runs for a fixed time instead, and what
is compared is no longer the same work: an attempt that the time limit ended fails.

Source: sysbench 1.0.20, src/tests/memory/sb_memory.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Outputs, Places, Procedure, Reading
from hugewise.model.workload import Launch, Parameter
from hugewise.reading import figure, whole
from hugewise.workloads._micro import WITHOUT_OTHERS, whole_pages
from hugewise.workloads._staged import StagedWorkload, Values, integer

_VERSION = re.compile(r"^sysbench (\S+)", re.MULTILINE)
_THREADS = re.compile(r"^Number of threads: (\d+)$", re.MULTILINE)
_MOVED = re.compile(r"^([\d.]+) MiB transferred \(([\d.]+) MiB/sec\)$", re.MULTILINE)
_TIME = re.compile(r"^ *total time: +([\d.]+)s$", re.MULTILINE)
_P95 = re.compile(r"^ *95th percentile: +([\d.]+)$", re.MULTILINE)

# malloc maps blocks larger than 128 KiB separately, from base pages where they are smaller than a page of the pool
# (glibc 2.36, malloc/malloc.c, sysmalloc): without such maps the block is in the heap, which grows by pages of the
# pool.
_INTO_THE_HEAP = "glibc.malloc.mmap_max=0"
_HEAP = 16 << 20  # bytes that are in that heap besides, with room


class SysbenchMemory(StagedWorkload):
    """Process. The policy is about its block: all of the process's memory but some MiB.

    hugetlb of the default huge page size: sysbench's own `--memory-hugetlb=on`, a System V segment. Such a segment
    needs root, or a group that vm.hugetlb_shm_group names (else errno 1): as root, it runs as root in every arm. Of
    another size: malloc's, of which the block is a part (`_INTO_THE_HEAP`).
    """

    name = "sysbench-memory"
    description = "sysbench memory: threads write one block again and again, a fixed amount of it"
    account = "root"
    programs = (("sysbench", "sysbench"),)
    parameters = (
        Parameter("block", "size", "64m", "the block of memory"),
        Parameter("total", "size", "40g", "bytes to write, by all threads together"),
        Parameter("threads", "integer", 0, "threads; 0: one for each CPU"),
        Parameter("limit", "duration", 500, "sysbench's time limit; an attempt that reaches it fails"),
    )
    metrics = (
        Metric("total_time_s", "s", "lower", "sysbench's total time"),
        Metric("mib_per_s", "MiB/s", "higher", "memory written a second"),
        Metric("latency_p95_ms", "ms", "lower", "95th percentile of the time to go through the block"),
    )
    # Seen at 64 MiB: 95% under thp (the block is not aligned), 98% under mthp-64k and hugetlb-2m; the rest is LuaJIT.
    delivered_share = 0.9

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if treatment.surplus:
            return WITHOUT_OTHERS
        if treatment.target.kind == "hugetlb":
            if _tunable(treatment) is None:
                return "neither its own option nor malloc was told to take pages of a pool: hugetlb-SIZE does"
            if treatment.mechanism == "process" and _own(treatment):
                return "its segment of hugetlb pages needs root, or your group in /proc/sys/vm/hugetlb_shm_group"
        return super().refuses(treatment, values)

    def memory(self, treatment: Treatment, values: Values) -> int:
        block = integer(values, "block")
        if treatment.target.kind == "hugetlb" and not _own(treatment):
            # A block smaller than a page lies in the first one, beside the rest; a larger one is mapped behind it.
            size = treatment.target.size
            return size if block + _HEAP <= size else size + whole_pages(block + _HEAP, size)
        return whole_pages(block, treatment.target.size)

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        argv = [
            "sysbench",
            "memory",
            f"--memory-block-size={values['block']}",
            f"--memory-total-size={values['total']}",
            f"--threads={values['threads'] or len(places.sut)}",
            f"--time={values['limit']:g}",
            f"--memory-hugetlb={'on' if _own(treatment) else 'off'}",
            "run",
        ]
        timed = Launch(argv=tuple(argv), proof="exit", environment=_environment(treatment))
        return Procedure(timed=timed)

    def read(self, outputs: Outputs, values: Values) -> Reading:
        said, total = outputs.stdout(), integer(values, "total")
        moved, time, p95 = _MOVED.search(said), _TIME.search(said), _P95.search(said)
        version, threads = _VERSION.search(said), _THREADS.search(said)
        if moved is None or time is None or p95 is None or version is None or threads is None:
            raise ValueError(f"sysbench's summary is not as expected: {said[-300:]!r}")
        done = figure(moved[1], "what was moved")
        problem = None
        if done < total / (1 << 20) - 1:
            problem = f"the time limit ended it after {done:g} of {total / (1 << 20):g} MiB: raise limit"
        return Reading(
            metrics={
                "total_time_s": figure(time[1], "the total time"),
                "mib_per_s": figure(moved[2], "the bandwidth"),
                "latency_p95_ms": figure(p95[1], "the 95th percentile"),
            },
            facts={"sysbench": version[1], "threads": whole(threads[1], "the threads", low=1), "moved_mib": done},
            problem=problem,
        )


def _tunable(treatment: Treatment) -> str | None:
    # the last word counts, as for glibc
    words = treatment.environment.get("GLIBC_TUNABLES", "").split(":")
    return dict(word.split("=", 1) for word in words if "=" in word).get("glibc.malloc.hugetlb")


def _own(treatment: Treatment) -> bool:
    # sysbench's own option knows the default huge page size alone
    return treatment.target.kind == "hugetlb" and _tunable(treatment) == "2"


def _environment(treatment: Treatment) -> Mapping[str, str]:
    # where sysbench's own option takes pool pages, malloc shall not
    if treatment.target.kind != "hugetlb":
        return treatment.environment
    if _own(treatment):
        return {}
    return {**treatment.environment, "GLIBC_TUNABLES": f"{treatment.environment['GLIBC_TUNABLES']}:{_INTO_THE_HEAP}"}


WORKLOAD = SysbenchMemory()
