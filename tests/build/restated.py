"""Runs made by hand that restate each of the five published studies: what stands beside the published figures."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hugewise import published
from hugewise.analysis.published import published_rows
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, LeftOut, Results, Verdict
from hugewise.model.trial import Attempt
from hugewise.study.study import Study
from hugewise.study.workload import WorkloadUse
from tests.build.results import attempt, cell_result, compare, plain, summary

TPS = Metric("tps", "tx/s", "higher", "transactions in a second")
OPS = Metric("ops_per_s", "ops/s", "higher", "operations in a second")
WALL = Metric("wall_s", "s", "lower", "elapsed time")
CALL = Metric("ns_per_call", "ns", "lower", "time of one call")
BLOCKS = 24

Levels = Mapping[str, tuple[float, Verdict]]
"""By arm: the level of the metric, and the verdict against the baseline (the first)."""


def cell(  # noqa: PLR0917
    name: str,
    workload: str,
    metric: Metric,
    parameters: Mapping[str, Any],
    levels: Levels,
    more: Mapping[str, Sequence[float | None]] | None = None,
    spread: float = 0.01,
    blocks: int = BLOCKS,
) -> tuple[CellResult, list[Attempt]]:
    """A cell of so many blocks; `more` gives other metrics, a level for each arm (None: absent, with a reason)."""
    rng = random.Random(name)  # noqa: S311  (not a secret)
    found = []
    for block in range(blocks):
        drift = math.exp(rng.gauss(0, spread / 2))
        for order, arm in enumerate(rng.sample(sorted(levels), len(levels))):
            value = levels[arm][0] * drift * math.exp(rng.gauss(0, spread))
            one = attempt(block, order, name, arm, metric=metric.name, value=value)
            place = list(levels).index(arm)
            numbers = {key: several[place] for key, several in (more or {}).items()}
            absent = {key: "this machine has no hardware counters" for key, number in numbers.items() if number is None}
            found.append(replace(one, metrics={**one.metrics, **numbers}, absent={**one.absent, **absent}))
    baseline = next(iter(levels))
    comparisons = [compare(arm, found, metric, levels[arm][1], baseline) for arm in levels if arm != baseline]
    arms = [summary(arm, found, metric.name) for arm in levels]
    return cell_result(name, workload, metric, parameters, arms, comparisons), found


def run(
    parts: Sequence[tuple[CellResult, list[Attempt]]], left_out: Sequence[LeftOut] = (), *, study: str = "restated"
) -> Results:
    """These cells as a whole run."""
    return replace(
        plain(),
        study=study,
        cells=tuple(one for one, _ in parts),
        attempts=tuple(one for _, found in parts for one in found),
        left_out=tuple(left_out),
        disturbances=(),
        host={"cpu": {"model": "Example 9000"}, "kernel": {"release": "6.18.0"}},
    )


def restated(source: str, uses: Sequence[tuple[str, str | None]], arms: Mapping[str, str], results: Results) -> Results:
    """The run with the published side, as the analysis of a run makes it."""
    return replace(results, beside=published_rows(published.load(source), uses, arms, results))


def lpc(stand_ins: tuple[str, ...] = ()) -> Results:
    """Key-value stores, a build and transcoding: figures, a rounded zero, and words. `stand_ins`: of memcached."""
    arms = {"base": "4K (4KPS)", "mthp-64k": "64K (4KPS)", "thp": "2M (4KPS)"}
    counters = {
        "p99_us": (880.0, 875.0, 620.0),
        "dtlb_walk_steps": (None, None, None),
        "page_faults": (9e5, 2.4e5, 1.1e5),
        "swap_bytes": (0.0, 0.0, 0.0),
    }
    files = Metric("files_per_s", "files/s", "higher", "files in a second")
    keys = {"keys": 2_000_000}
    stored: Levels = {"base": (4.1e5, "none"), "mthp-64k": (4.1e5, "undecided"), "thp": (4.6e5, "better")}
    again: Levels = {"base": (2.2e5, "none"), "mthp-64k": (2.1e5, "worse"), "thp": (2.2e5, "equivalent")}
    built: Levels = {"base": (61.0, "none"), "mthp-64k": (58.4, "better")}
    coded: Levels = {"base": (1.2, "none"), "mthp-64k": (1.2, "equivalent"), "thp": (1.25, "better")}
    first, attempts = cell("memcached", "memcached", OPS, keys, stored, counters)
    parts = [
        (replace(first, stand_ins=stand_ins), attempts),
        cell("redis", "redis", OPS, keys, again, counters),
        cell("kernel-build", "build", WALL, {}, built, {"system_s": (9.0, 6.5)}),
        cell("x264", "x264", files, {}, coded),
    ]
    uses = [("memcached", "memcached"), ("redis", "redis"), ("kernel-build", "kernel-build"), ("x264", "x264")]
    left_out = [LeftOut("kernel-build", "thp", "the tree is too large for this machine")]
    return restated("lpc-2024-mthp-arm64", uses, arms, run(parts, left_out))


def percona_2018() -> Results:
    """Clients x database size, fitting and spilled; the gain grows with clients, hugetlb-1g is left out."""
    parts = []
    for share, tps in ((0.4, 5200.0), (0.8, 3900.0), (1.5, 700.0)):
        for clients, gain in ((4, 1.01), (16, 1.04), (64, 1.09)):
            base = tps * clients**0.5
            name = f"pgbench-database_share={share}-clients={clients}"
            verdict: Verdict = "undecided" if gain < 1.02 else "better"
            levels: Levels = {
                "base": (base, "none"),
                "hugetlb-2m": (base * gain, verdict),
                "thp": (base * 1.001, "equivalent"),
            }
            parts.append(cell(name, "pgbench", TPS, {"database_share": share, "clients": clients}, levels))
    alone: Levels = {"base": (300.0, "none"), "hugetlb-2m": (310.0, "better")}
    parts.append(cell("spill", "pgbench", TPS, {"database_share": 1.5, "clients": 64}, alone))
    arms = {"base": "base4k", "hugetlb-2m": "hugetlb2m", "hugetlb-1g": "hugetlb1g"}
    left_out = [LeftOut("*", "hugetlb-1g", "the kernel granted 1 of 3 pages")]
    uses = [("pgbench", "pgbench"), ("spill", "pgbench")]
    return restated("percona-2018-hugepages-postgresql", uses, arms, run(parts, left_out))


def percona_2019() -> Results:
    """THP on and off under two benchmarks; the second was left out whole."""
    found: tuple[tuple[int, Verdict], ...] = ((2, "worse"), (4, "equivalent"))
    parts = []
    for n, verdict in found:
        levels: Levels = {"base": (3000.0 * n, "none"), "thp": (2950.0 * n, verdict)}
        parts.append(cell(f"tpcb-clients={n}", "pgbench", TPS, {"clients": n}, levels))
    arms = {"base": "thp_off", "thp": "thp_on"}
    left_out = [LeftOut("tpcc", "*", "go-tpc is not on the PATH")]
    uses = [("tpcb", "tpcb"), ("tpcc", "tpcc"), ("other", None)]
    return restated("percona-2019-thp-postgresql", uses, arms, run(parts, left_out))


def redhat() -> Results:
    """Two benchmarks with their own samples; the second under a metric that the source does not have."""
    bandwidth = Metric("sender_bits_per_s", "bit/s", "higher", "bandwidth at the sender")
    parts = [
        cell("sysbench-memory", "sysbench-memory", WALL, {}, {"thp": (12.0, "none"), "hugetlb-1g": (11.6, "better")}),
        cell("iperf3", "iperf3", bandwidth, {}, {"thp": (1.3e10, "none"), "hugetlb-1g": (1.28e10, "worse")}),
    ]
    arms = {"thp": "thp", "hugetlb-1g": "shp1g"}
    uses = [("sysbench-memory", "sysbench-memory"), ("iperf3", "iperf3"), ("build", "gdb-build")]
    return restated("redhat-2021-vm-1gib", uses, arms, run(parts))


def lkml() -> Results:
    """Page policies on the host: no arm stands for a kernel, the published counters are shown alone."""
    counters = {"instructions": (None, None), "context_switches": (91.0, 88.0), "page_faults": (55_945.0, 21_300.0)}
    levels: Levels = {"base": (900.0, "none"), "thp": (890.0, "undecided")}
    part = cell("mmap-perf", "mmap-perf", CALL, {"calls": 10**6}, levels, counters)
    return restated("lkml-2009-paravirt", [("mmap-perf", "mmap-perf")], {}, run([part]))


EVERY = {"lpc": lpc, "percona-2018": percona_2018, "percona-2019": percona_2019, "redhat": redhat, "lkml": lkml}


def beside_nothing(entry: str, studies: Sequence[Study]) -> list[Study]:
    """The studies, of which those with guests set the workloads of that entry beside nothing published."""

    def bare(use: WorkloadUse) -> WorkloadUse:
        return replace(use, published=None) if use.published == entry else use

    return [
        study if study.guest is None else replace(study, workload=tuple(map(bare, study.workload))) for study in studies
    ]
