"""Power replay: how many pairs the method needs for what one article found with thousands of samples of each arm.

The pairs come from generators matched to the published figures, with the article's own effect; the declared budget is
the article's n, one comparison, one end point, two-sided alpha 1e-4, looked at after every pair. The within-pair
correlation was not published: 0.8 is what adjacent short runs on a shared host had, 0.95 is a quiet one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tools.verification.candidate import Candidate, CheckResult, Task
from tools.verification.generators import generator, log_ratios
from tools.verification.matched import OTHER_SHAPES, MatchedBenchmark, benchmarks

ALPHA = 1e-4
MOST: Mapping[float, Mapping[str, int]] = {
    0.8: {"sysbench-memory": 31, "gdb-build": 680, "iperf3": 2150},
    0.95: {"sysbench-memory": 21, "gdb-build": 175, "iperf3": 505},
}
"""Most pairs at the median, by within-pair correlation and benchmark."""
RATIO: Mapping[float, float] = {0.8: 45, 0.95: 130}
"""Least geometric mean of the article's n over the median pairs."""


def stops(
    candidate: Candidate, benchmark: MatchedBenchmark, rho: float, seed: int, replays: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return pairs to the verdict (the budget where none falls), and the verdicts, of each replay."""
    pairs, verdicts = [], []
    for number in range(replays):
        random = generator(seed, "power", benchmark.name, rho, number)
        differences = log_ratios(benchmark.draw(random, 1, benchmark.n, rho))[0]
        stopped, verdict = candidate.stop(differences, ALPHA, benchmark.n)
        pairs.append(stopped)
        verdicts.append(verdict)
    return pairs, verdicts


def power(candidate: Candidate, rho: float, seed: int, replays: int) -> Sequence[CheckResult]:
    """Measure the three benchmarks at one within-pair correlation."""
    findings = []
    logs, wrong, none = [], 0, 0
    known = [(benchmark, MOST[rho][benchmark.name]) for benchmark in benchmarks()]
    for benchmark, most in [*known, *((benchmark, None) for benchmark in benchmarks(OTHER_SHAPES))]:
        pairs, verdicts = stops(candidate, benchmark, rho, seed, replays)
        median, late = np.median(pairs), np.quantile(pairs, 0.9)
        wrong += verdicts.count(-benchmark.direction)
        none += verdicts.count(0)
        what = f"{benchmark.name}, rho {rho:g}"
        what += ": as published too" if most is None else f", of {benchmark.n}: median"
        required = "not judged" if most is None else f"<= {most}"
        passed = most is None or bool(median <= most)
        findings.append(CheckResult("power", what, f"{median:g} (90%: {late:.0f})", required, passed))
        if most is not None:
            logs.append(math.log(benchmark.n / median))
    ratio, total = math.exp(sum(logs) / len(logs)), replays * (len(logs) + len(OTHER_SHAPES))
    over = f"article's n over median pairs, geometric mean, rho {rho:g}"
    seen = f"{wrong} of {total} ({none} without verdict)"
    return [
        *findings,
        CheckResult("power", over, f"{ratio:.0f}", f">= {RATIO[rho]:g}", ratio >= RATIO[rho]),
        CheckResult("power", f"verdicts of the wrong sign, rho {rho:g}", seen, "none", wrong == 0),
    ]


def tasks(candidate: Candidate, seed: int, replays: int) -> list[Task]:
    """Return one task a within-pair correlation."""
    return [Task(f"power: rho {rho:g}", power, (candidate, rho, seed, replays)) for rho in MOST]
