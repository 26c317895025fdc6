"""The statistics against their targets, and against what scipy has nearest, on the same data in the same run.

scipy has no test that may be looked at after every pair: its tests are one look at all pairs. What one look with them
costs is shown beside all looks with ours. Each time is the best of some repeats, as neighbours only ever slow one down.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from hugewise.stats import inversion, signflip
from hugewise.stats.classical import figures
from hugewise.stats.signflip import Boundary

ALPHA = 1e-4
RESOLUTION = 1e-4  # of a log-ratio: 0.01 percentage points
FLIPS = 9999  # the fewest that can show a p of 1e-4
OBSERVATIONS = 10_000_000
SIZES = ((5_000, 0.1, 1.0), (24_000, 1.0, 6.0))  # pairs, seconds for the boundary, seconds for the interval

Row = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """Seconds of one task, its target, and those of scipy's nearest."""

    task: str
    seconds: float
    target: float
    peer: str
    peer_seconds: float


def best(work: Callable[[], object], repeats: int) -> float:
    """Measure the seconds of the fastest of `repeats` calls."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def pairs(count: int) -> Row:
    """Log-ratios with heavy tails and an effect so small that nothing stops early."""
    return np.random.default_rng(2021).standard_t(4, count) * 0.04 + 1e-4


def boundary(differences: Row) -> Boundary:
    law = Boundary(ALPHA, len(differences))
    for magnitude in signflip.magnitudes(differences).tolist():
        law.step(magnitude)
    return law


def flips(differences: Row) -> object:
    return stats.permutation_test(
        (differences,),
        lambda values, axis: np.mean(values, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=FLIPS,
        batch=200,
        rng=np.random.default_rng(1),
    )


def resamples(differences: Row) -> object:
    return stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=FLIPS,
        batch=200,
        confidence_level=1 - ALPHA,
        method="percentile",
        rng=np.random.default_rng(1),
    )


def of_pairs(count: int, boundary_target: float, interval_target: float, repeats: int) -> list[Timing]:
    values = pairs(count)
    listed = values.tolist()
    wilcoxon = best(lambda: stats.wilcoxon(values), repeats)
    return [
        Timing(
            f"boundary, {count:,} pairs",
            best(lambda: boundary(values), repeats),
            boundary_target,
            f"permutation_test, {FLIPS:,} flips",
            best(lambda: flips(values), 1),
        ),
        Timing(
            f"test after every pair, {count:,}",
            best(lambda: signflip.verdict(listed, ALPHA, count), repeats),
            boundary_target,
            "wilcoxon, one look",
            wilcoxon,
        ),
        Timing(
            f"interval, {count:,} pairs",
            best(lambda: inversion.interval(values, ALPHA, count, RESOLUTION), repeats),
            interval_target,
            f"bootstrap, {FLIPS:,} resamples",
            best(lambda: resamples(values), 1),
        ),
    ]


def one_more(count: int, repeats: int) -> Timing:
    """Return a pair after `count` others; scipy has to start again."""
    values = pairs(count + repeats)
    test = signflip.run(values[:count].tolist(), ALPHA, count + repeats)
    rest = iter(values[count:].tolist())
    ours = best(lambda: test.add(next(rest)), repeats)
    return Timing(
        f"one more pair after {count:,}", ours, 0.005, "wilcoxon, one look", best(lambda: stats.wilcoxon(values), 3)
    )


def summarise(count: int) -> dict[str, float]:
    """Return all figures of so many observations: seconds, and the most memory of this process in GiB by then."""
    values = np.random.default_rng(7).lognormal(0, 0.1, count)
    took = best(lambda: figures(values), 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": took, "gib": peak, "describe": best(lambda: stats.describe(values), 1)}


def show(timings: list[Timing]) -> str:
    """Return the table, at 110 columns."""
    lines = [f"{'task':<34}{'ms':>9}{'target':>9}  {'':<7}{'scipy':<31}{'ms':>9}{'ours/':>8}"]
    for line in timings:
        verdict = "met" if line.seconds <= line.target else "MISSED"
        lines.append(
            f"{line.task:<34}{line.seconds * 1e3:>9.2f}{line.target * 1e3:>9.0f}  {verdict:<7}"
            f"{line.peer:<31}{line.peer_seconds * 1e3:>9.2f}{line.seconds / line.peer_seconds:>8.2f}"
        )
    return "\n".join(lines)


def main(repeats: int = 3, observations: int = OBSERVATIONS) -> int:
    """Measure and print. Returns 0: a busy machine is no failure."""
    print(f"Statistics at alpha {ALPHA:g}, best of {repeats}")
    timings = [line for size in SIZES for line in of_pairs(*size, repeats)]
    timings.append(one_more(SIZES[-1][0], 50))
    # A process of its own, so that its memory is its own.
    command = [sys.executable, "-m", "bench.statistics", "summarise", str(observations)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    task = f"all figures, {observations:,}"
    timings.append(Timing(task, said["seconds"], 10.0, "describe", said["describe"]))
    print(show(timings))
    print(f"memory for {task}: {said['gib']:.2f} GiB, target 2: {'met' if said['gib'] <= 2 else 'MISSED'}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["summarise"]:
        print(json.dumps(summarise(int(sys.argv[2]))))
    else:
        sys.exit(main())
