"""The results of a rich run made by hand, for figures and reports: every verdict, nulls, failures and hostile names."""

import math
import random
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from hugewise.deployment import configuration as host_files
from hugewise.model.metric import Metric
from hugewise.model.pages import HUGETLB, THP, PageTarget
from hugewise.model.policy import Deployment
from hugewise.model.results import ArmSummary, CellResult, Comparison, LeftOut, Results, Verdict
from hugewise.model.trial import Attempt, Delivery
from tests.build import trials

STARTED = 1_795_000_000.0
HOSTILE = '<script>alert("x")</script> & \x1b[31m]]> [bold] | `tick`'
EARLIER = "demo/20261119-180000-cd34"
BLOCKS = 20
K, M, G = 1 << 10, 1 << 20, 1 << 30

LATENCY = Metric("latency_ns", "ns", "lower", "time of one dependent load")
FAULTS = Metric("faults_per_s", "faults/s", "higher", "page faults handled in a second")

TARGETS = {
    "base": PageTarget("base", 4 * K),
    "thp": PageTarget("thp", 2 * M),
    "mthp-64k": PageTarget("mthp", 64 * K),
    "hugetlb-2m": PageTarget("hugetlb", 2 * M),
    "hugetlb-1g": PageTarget("hugetlb", G),
}
DEPLOYMENTS = {
    "thp": Deployment(
        files=(
            host_files.now({f"{THP}/enabled": "always"}),
            host_files.boot(("transparent_hugepage=always",), instead=True),
        ),
        note="the boot line goes on the kernel's command line",
    ),
    "hugetlb-2m": Deployment(
        files=(host_files.now({f"{HUGETLB}/hugepages-2048kB/nr_hugepages": "512"}), host_files.sysctl(512)),
        note="the program must map huge pages itself",
    ),
}


def coverage(arm: str, size: int, share: float) -> dict[str, int]:
    """Bytes by kind and page size for an arm, with the remainder on base pages."""
    if arm not in TARGETS:
        return {"unproven": size}
    target = TARGETS[arm]
    big = round(size * share)
    found = {f"{'hugetlb' if target.kind == 'hugetlb' else 'anon'}:{target.size}": big}
    if size > big:
        found["anon:4096"] = found.get("anon:4096", 0) + size - big
    return found


def attempt(
    block: int,
    order: int,
    cell: str,
    arm: str,
    *,
    metric: str,
    value: float | None,
    size: int = G,
    share: float | None = 1.0,
    delivered: bool | None = True,
    **changes: Any,
) -> Attempt:
    """One attempt, 3 s after the one before it; one that failed was killed."""
    started = STARTED + 5 + 60 * block + 3 * order
    target = TARGETS.get(arm, PageTarget("any", 4 * K))
    failed = changes.get("state") == "failed"
    fields: dict[str, Any] = {
        "run": "20261120-193000-ab12",
        "cell": cell,
        "order": order,
        "started": started,
        "ended": started + 2.5,
        "wall_s": None if value is None else 2.1,
        "cpu_s": None if value is None else 2.08,
        "overhead_s": 0.21,
        "steal_s": 0.01,
        "pressure": {"cpu_some_avg10": 1.5, "memory_some_avg10": None},
        "boot_id": "5b1f4a0e-0000-4000-8000-000000000000",
        "delivery": Delivery(
            target=target,
            delivered=delivered,
            share=share,
            coverage={} if share is None else coverage(arm, size, share),
            proof="ranges",
            source="kpageflags",
            reason="the pool was short by 12 pages" if delivered is False else None,
        ),
        "knobs": {"/sys/kernel/mm/transparent_hugepage/enabled": "madvise"},
        "metrics": {"wall_s": 2.1, metric: value, "page_faults": 262_144.0, "cycles": None},
        "absent": {"cycles": "this machine has no hardware counters"},
        "environment_pad": 128 * order,
        "peak_bytes": size + 2 * M,
        "pool_bytes": size if target.kind == "hugetlb" else 0,
        "exit_code": None if failed else 0,
        "signal": 9 if failed else None,
    }
    return trials.attempt(arm, value, block=block, **{**fields, **changes})


def summary(arm: str, attempts: Iterable[Attempt], metric: str, **changes: Any) -> ArmSummary:
    """The statistics of an arm's attempts, as the analysis would make them (t of 19 degrees, 95%)."""
    mine = [a for a in attempts if a.arm == arm]
    good = [a for a in mine if a.state == "accepted" and a.delivery.delivered is not False]
    values = [v for a in good if (v := a.metrics[metric]) is not None]
    sd = statistics.stdev(values) if len(values) > 1 else None
    ordered = sorted(values)
    bytes_by_kind: dict[str, float] = {}
    for one in good:
        total = sum(one.delivery.coverage.values())
        for key, count in one.delivery.coverage.items():
            bytes_by_kind[key] = bytes_by_kind.get(key, 0.0) + count / total / len(good)
    fields: dict[str, Any] = {
        "arm": arm,
        "policy": arm,
        "mechanism": "system",
        "n": len(values),
        "failed": sum(a.state == "failed" for a in mine),
        "undelivered": sum(a.delivery.delivered is False for a in mine),
        "unproven": sum(a.delivery.delivered is None for a in mine),
        "mean": statistics.fmean(values) if values else None,
        "sd": sd,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "median": statistics.median(values) if values else None,
        "quantiles": {
            q: ordered[round(float(q) * (len(ordered) - 1))] for q in ("0.05", "0.25", "0.75", "0.95") if values
        },
        "margin": 2.093 * sd / math.sqrt(len(values)) if sd is not None else None,
        "first": values[0] if values else None,
        "coverage": bytes_by_kind,
        "delivered_share": 0.998 if good else None,
        "proof": "kpageflags of the named ranges",
        "peak_bytes": max((a.peak_bytes or 0 for a in mine), default=None),
        "pool_bytes": max((a.pool_bytes for a in mine), default=0),
        "treatment": f"asks for {TARGETS[arm]}" if arm in TARGETS else "leaves everything as it is",
        "deployment": DEPLOYMENTS.get(arm),
    }
    return ArmSummary(**(fields | changes))


def comparison(arm: str, metric: str, verdict: Verdict, **changes: Any) -> Comparison:
    """One of `BLOCKS` planned blocks (fixed n, 95%), without an effect."""
    fields: dict[str, Any] = {
        "arm": arm,
        "baseline": "base",
        "metric": metric,
        "method": "paired log-ratio, fixed n, Holm",
        "n": 0,
        "planned": BLOCKS,
        "ratio": None,
        "low": None,
        "high": None,
        "confidence": 0.95,
        "p": None,
        "verdict": verdict,
        "reason": "",
        "final": True,
        "change": None,
        "n_all": 0,
        "ratio_all": None,
        "failures_arm": 0,
        "failures_baseline": 0,
    }
    return Comparison(**(fields | changes))


def compare(
    arm: str, attempts: Iterable[Attempt], metric: Metric, verdict: Verdict, baseline: str = "base", **changes: Any
) -> Comparison:
    """A paired log-ratio of `arm` to the baseline over their common blocks."""
    accepted = [a for a in attempts if a.state == "accepted"]
    base = {a.block: a.metrics[metric.name] for a in accepted if a.arm == baseline}
    logs = [
        math.log(value / other)
        for a in accepted
        if a.arm == arm and a.delivery.delivered is not False
        if (value := a.metrics[metric.name]) and (other := base.get(a.block))
    ]
    mean, half = statistics.fmean(logs), 2.093 * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - half), math.exp(mean + half)
    fields: dict[str, Any] = {
        "baseline": baseline,
        "n": len(logs),
        "ratio": math.exp(mean),
        "low": low,
        "high": high,
        "p": 0.00012 if verdict in {"better", "worse"} else 0.31,
        "change": max(abs(low - 1), abs(high - 1)) if verdict in {"undecided", "none"} else None,
        "n_all": len(logs),
        "ratio_all": math.exp(mean),
    }
    return comparison(arm, metric.name, verdict, **(fields | changes))


def cell_result(  # noqa: PLR0917
    name: str,
    workload: str,
    metric: Metric,
    parameters: Mapping[str, Any],
    arms: Iterable[ArmSummary],
    comparisons: Iterable[Comparison],
) -> CellResult:
    """What was found in a cell; its first arm is the baseline."""
    arms = tuple(arms)
    return CellResult(
        cell=name,
        workload=workload,
        parameters=parameters,
        metric=metric,
        baseline=arms[0].arm,
        arms=arms,
        comparisons=tuple(comparisons),
    )


def beyond(rng: random.Random) -> tuple[CellResult, list[Attempt]]:
    """A chase beyond TLB reach: huge pages win; 1 GiB pages are not always delivered, so they get no verdict."""
    cell, name = "chase bytes=1g", LATENCY.name
    levels = {"base": 128.4, "mthp-64k": 104.0, "thp": 96.2, "hugetlb-2m": 95.1, "hugetlb-1g": 88.0}
    found = []
    for block in range(BLOCKS):
        drift = 1 + 0.02 * (block == 0) + 0.0004 * block + rng.gauss(0, 0.004)
        for order, arm in enumerate(rng.sample(sorted(levels), len(levels))):
            lost = arm == "hugetlb-1g" and block in {4, 9, 13}
            value = levels[arm] * drift * math.exp(rng.gauss(0, 0.008)) * (1.4 if lost else 1)
            share = 0.5 if lost else 0.97 if arm == "thp" else 1.0
            struck = ("steal was 7% of the time (limit 5%)",) if (block, arm) == (6, "thp") else ()
            made = attempt(block, order, cell, arm, metric=name, value=value, share=share, delivered=not lost,
                           disturbances=struck)  # fmt: skip
            found.append(made)
    broken: dict[str, Any] = {"state": "abandoned", "reason": "the run was interrupted"}
    found.append(attempt(20, 0, cell, "base", metric=name, value=127.0, **broken))
    unproven: dict[str, Any] = {"share": None, "delivered": None, "state": "rejected", "reason": "no cgroup"}
    found.append(attempt(20, 1, cell, "thp", metric=name, value=None, **unproven))
    short = "15.0% of the attempts were not delivered (limit 1%): the pool was short by 12 pages"
    comparisons = [
        *(compare(arm, found, LATENCY, "better") for arm in ("mthp-64k", "thp", "hugetlb-2m")),
        compare("hugetlb-1g", found, LATENCY, "none", reason=short, n_all=20, ratio_all=0.728),
    ]
    parameters = {"bytes": G, "loads": 20_000_000, "advise": True}
    arms = [summary(arm, found, name) for arm in levels]
    return cell_result(cell, "chase", LATENCY, parameters, arms, comparisons), found


def faults(rng: random.Random) -> tuple[CellResult, list[Attempt]]:
    """Page-fault throughput: equivalent, worse, and undecided with its failures."""
    cell, name = "fault bytes=256m", FAULTS.name
    levels = {"base": 1.31e6, "mthp-64k": 1.3101e6, "thp": 1.05e6, "hugetlb-2m": 1.29e6}
    spread = {"base": 0.002, "mthp-64k": 0.002, "thp": 0.01, "hugetlb-2m": 0.06}
    killed = {"share": None, "delivered": None, "state": "failed", "reason": "killed by signal 9: out of memory"}
    found = []
    for block in range(BLOCKS):
        for order, arm in enumerate(rng.sample(sorted(levels), len(levels))):
            failed = arm == "hugetlb-2m" and block in {3, 11}
            value = None if failed else levels[arm] * math.exp(rng.gauss(0, spread[arm]))
            more: dict[str, Any] = killed if failed else {}
            found.append(attempt(block, order, cell, arm, metric=name, value=value, size=256 * M, **more))
    spent = "the time budget was spent after 18 of 20 blocks"
    comparisons = [
        compare("mthp-64k", found, FAULTS, "equivalent"),
        compare("thp", found, FAULTS, "worse"),
        compare("hugetlb-2m", found, FAULTS, "undecided", reason=spent, final=False, failures_arm=2),
    ]
    arms = [summary(arm, found, name) for arm in levels]
    return cell_result(cell, "fault", FAULTS, {"bytes": 256 * M}, arms, comparisons), found


def hostile() -> tuple[CellResult, list[Attempt]]:
    """A command whose every text attacks the reader, with one value for the baseline and none for the other arm."""
    metric = Metric("wall_s", "s", "lower", HOSTILE)
    arm = f"arm {HOSTILE}"
    found = [
        attempt(0, 0, HOSTILE, "base", metric="wall_s", value=0.0123, share=None, delivered=None),
        attempt(0, 1, HOSTILE, arm, metric="wall_s", value=None, delivered=None, state="failed", reason=HOSTILE),
    ]
    arms = [
        summary("base", found, "wall_s", coverage={"unproven": 1.0}, delivered_share=None),
        summary(arm, found, "wall_s", coverage={}, peak_bytes=None, treatment=HOSTILE),
    ]
    comparisons = [comparison(arm, "wall_s", "none", reason=HOSTILE, final=False, failures_arm=1)]
    parameters = {"argv": ["sh", "-c", HOSTILE], HOSTILE: None}
    return cell_result(HOSTILE, "command", metric, parameters, arms, comparisons), found


def example() -> Results:
    """The whole run, the same at each call."""
    rng = random.Random(2)  # noqa: S311  (not a secret)
    parts = [beyond(rng), faults(rng), hostile()]
    return Results(
        run="20261120-193000-ab12",
        study="demo",
        question="Which page size should these programs run with?",
        folder="results/demo/20261120-193000-ab12",
        state="time is up",
        started=STARTED,
        ended=STARTED + 1322.5,
        seed_hash="9f2c1d" * 10 + "ab12",
        seed="0123456789abcdef",
        confidence=0.95,
        margin=0.005,
        mechanism="system",
        host={
            "hostname": "example",
            "kernel": "6.18.0",
            "cpu": {"model": "Example 9000", "count": 2, "tlb": [{"level": 2, "entries": 3072}]},
            "memory_bytes": 24 * G,
            "hostile": HOSTILE,
            "hypervisor": None,
        },
        versions={"hugewise": "0.1.0", "hugewise-probe": "0.1.0", "python": "3.11.7"},
        settings={
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0",
        },
        options={"blocks": BLOCKS, "time": "5m", "window": "5m", "between": {"settle": "50ms"}},
        blocks_complete=41,
        blocks_incomplete=1,
        blocks_disturbed=1,
        disturbances=(
            "block 6 of chase bytes=1g: steal was 7% of the time (limit 5%)",
            f"block 7: {HOSTILE}",
        ),
        left_out=(
            LeftOut("fault bytes=256m", "hugetlb-1g", "the region is smaller than one 1 GiB page"),
            LeftOut(HOSTILE, "thp", HOSTILE),
        ),
        cells=tuple(cell for cell, _ in parts),
        attempts=tuple(one for _, found in parts for one in found),
        earlier=(EARLIER, f"demo/{HOSTILE}"),
    )


def plain() -> Results:
    """The same run without its hostile part, for output that people read."""
    whole = example()
    return replace(
        whole,
        cells=whole.cells[:2],
        attempts=tuple(a for a in whole.attempts if a.cell != HOSTILE),
        host={key: value for key, value in whole.host.items() if key != "hostile"},
        disturbances=whole.disturbances[:1],
        left_out=whole.left_out[:1],
        earlier=(EARLIER,),
    )
