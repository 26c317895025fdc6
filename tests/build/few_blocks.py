"""Runs that are hard to draw: 18 cells of 2 blocks, whose intervals reach beyond everything; and the demo's cells."""

import math

from msgspec.structs import replace

from hugewise.model.results import ArmSummary, CellResult, Comparison, Results
from tests.build.restated import TPS, Levels, cell, run
from tests.build.results import FAULTS, LATENCY

# t quantiles at 99%: of 1 degree of freedom, and that of the examples of 20 blocks.
_WIDER = 63.657 / 2.093


def two_blocks() -> Results:
    """pgbench over three factors, 2 blocks each: most intervals of the means reach below zero."""
    parts = []
    for scale in (10, 100, 1000):
        for clients in (4, 16, 64):
            for share in (0.4, 1.5):
                base = 5200.0 * clients**0.5 / (scale**0.1 * share)
                levels: Levels = {
                    "base": (base, "none"),
                    "thp": (base * 1.07, "undecided"),
                    "mthp-64k": (base * 1.01, "undecided"),
                    "hugetlb-2m": (base * 1.12, "undecided"),
                }
                name = f"pgbench-scale={scale}-clients={clients}-database_share={share}"
                parameters = {"scale": scale, "clients": clients, "database_share": share}
                made, found = cell(name, "pgbench", TPS, parameters, levels, spread=0.05, blocks=2)
                parts.append((_of_two(made), found))
    return replace(run(parts, study="few-blocks"), confidence=0.99)


def demo(*only: str) -> Results:
    """The cells and arms of the demo; `only`: of these cells."""
    chase = {"base": 1.0, "thp": 0.72, "mthp-64k": 0.97, "hugetlb-2m": 0.71, "hugetlb-1g": 0.7}
    touched = {"base": 1.0, "thp": 0.13, "mthp-64k": 0.27}
    parts = []
    for name, metric, level, shares, spread in (
        ("chase-inside", LATENCY, 4.1, dict.fromkeys(chase, 1.0), 0.002),
        ("chase-around", LATENCY, 9.3, {arm: share**0.3 for arm, share in chase.items()}, 0.2),
        ("chase-far", LATENCY, 88.0, chase, 0.02),
        ("fault", FAULTS, 1.3e6, {arm: 1 / share for arm, share in touched.items()}, 0.03),
        ("mmap-perf", LATENCY, 900.0, {"base": 1.0, "thp": 0.999, "mthp-64k": 0.68}, 0.01),
    ):
        if only and name not in only:
            continue
        better = {arm: "undecided" if 0.9 < share < 1.1 else "better" for arm, share in shares.items()}
        levels: Levels = {arm: (level * share, better[arm]) for arm, share in shares.items()}  # type: ignore[misc]
        parts.append(cell(name, name.partition("-")[0], metric, {"bytes": 1 << 30}, levels, spread=spread))
    return run(parts, study="demo")


def _of_two(made: CellResult) -> CellResult:
    return replace(
        made,
        arms=tuple(map(_wide, made.arms)),
        comparisons=tuple(map(_wide_comparison, made.comparisons)),
    )


def _wide(arm: ArmSummary) -> ArmSummary:
    return replace(arm, margin=None if arm.margin is None else arm.margin * _WIDER)


def _wide_comparison(one: Comparison) -> Comparison:
    assert one.ratio is not None and one.low is not None and one.high is not None
    half = math.log(one.high / one.low) / 2 * _WIDER
    low, high = one.ratio * math.exp(-half), one.ratio * math.exp(half)
    return replace(one, low=low, high=high, confidence=0.99, planned=2, change=max(abs(low - 1), abs(high - 1)))
