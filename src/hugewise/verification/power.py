"""Power replay: how many pairs the method needs for what one article found with thousands of samples of each arm.

The pairs come from generators matched to the published figures, with the article's own effect; the declared budget is
the article's n, one comparison, one end point, two-sided alpha 1e-4, looked at after every pair. The within-pair
correlation was not published: 0.8 is what adjacent short runs on a shared host had, 0.95 is a quiet one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hugewise.verification.candidate import Candidate
from hugewise.verification.finding import Finding, Task
from hugewise.verification.generators import generator, log_ratios
from hugewise.verification.matched import OTHER_SHAPES, Benchmark, benchmarks

__all__ = ["ALPHA", "MOST", "RATIO", "power", "stops", "tasks"]

ALPHA = 1e-4
MOST: Mapping[float, Mapping[str, int]] = {
    0.8: {"sysbench-memory": 31, "gdb-build": 680, "iperf3": 2150},
    0.95: {"sysbench-memory": 21, "gdb-build": 175, "iperf3": 505},
}
"""Most pairs at the median, by within-pair correlation and benchmark."""
RATIO: Mapping[float, float] = {0.8: 45, 0.95: 130}
"""Least geometric mean of the article's n over the median pairs."""


def stops(
    candidate: Candidate, benchmark: Benchmark, rho: float, seed: int, replays: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Pairs to the verdict (the budget where none falls), and the verdicts, of each replay."""
    pairs, verdicts = [], []
    for number in range(replays):
        random = generator(seed, "power", benchmark.name, rho, number)
        differences = log_ratios(benchmark.draw(random, 1, benchmark.n, rho))[0]
        stopped, verdict = candidate.stop(differences, ALPHA, benchmark.n)
        pairs.append(stopped)
        verdicts.append(verdict)
    return pairs, verdicts


def power(candidate: Candidate, rho: float, seed: int, replays: int) -> Sequence[Finding]:
    """The three benchmarks at one within-pair correlation."""
    findings = []
    logs, wrong, none = [], 0, 0
    for benchmark in benchmarks():
        pairs, verdicts = stops(candidate, benchmark, rho, seed, replays)
        median, late = np.median(pairs), np.quantile(pairs, 0.9)
        logs.append(math.log(benchmark.n / median))
        wrong += verdicts.count(-benchmark.direction)
        none += verdicts.count(0)
        most = MOST[rho][benchmark.name]
        findings.append(
            Finding(
                check="power",
                case=f"{benchmark.name}, rho {rho:g}, of {benchmark.n}: median",
                seen=f"{median:g} (90%: {late:.0f})",
                required=f"<= {most}",
                passed=bool(median <= most),
            )
        )
    for benchmark in benchmarks(OTHER_SHAPES):
        pairs, verdicts = stops(candidate, benchmark, rho, seed, replays)
        wrong += verdicts.count(-benchmark.direction)
        none += verdicts.count(0)
        findings.append(
            Finding(
                check="power",
                case=f"{benchmark.name}, rho {rho:g}: as published too",
                seen=f"{np.median(pairs):g} (90%: {np.quantile(pairs, 0.9):.0f})",
                required="not judged",
                passed=True,
            )
        )
    ratio = math.exp(sum(logs) / len(logs))
    findings.append(
        Finding(
            check="power",
            case=f"article's n over median pairs, geometric mean, rho {rho:g}",
            seen=f"{ratio:.0f}",
            required=f">= {RATIO[rho]:g}",
            passed=ratio >= RATIO[rho],
        )
    )
    findings.append(
        Finding(
            check="power",
            case=f"verdicts of the wrong sign, rho {rho:g}",
            seen=f"{wrong} of {replays * (len(logs) + len(OTHER_SHAPES))} ({none} without verdict)",
            required="none",
            passed=wrong == 0,
        )
    )
    return findings


def tasks(candidate: Candidate, seed: int, replays: int) -> list[Task]:
    """One task a within-pair correlation."""
    return [Task(f"power: rho {rho:g}", power, (candidate, rho, seed, replays)) for rho in MOST]
