"""Measure the cost of reading the machine's counters over time for the workload beside it: on against off, in pairs.

The launcher starts the same micro-workload with its sampler and without, in an order by a coin, under base pages and
under THP each (by madvise, so that no setting of the machine is turned). The time of the timed region with it over that
without has a paired interval; beside it stands what the sampler's own thread took of the workload's CPU time (rusage),
by which attempts are marked. It fails where a whole interval lies above 1 + 0.5%, or a median share above 0.5%.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hugewise.errors import HugewiseError
from hugewise.machine import probe
from hugewise.model.over_time import MOST_SHARE

PAIRS, PERIOD_S = 20, 1.0
WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "chase": ("chase", "--bytes", "256m", "--loads", "8000000"),
    "fault": ("fault", "--bytes", "256m", "--rounds", "12"),
}
PAGES: Mapping[str, str] = {"base": "nohuge", "THP": "huge"}


@dataclass(frozen=True)
class Cost:
    """Cost for one workload under one kind of pages: each pair's time with the sampler over that without, and of each
    attempt with it the share of the workload's CPU time that the sampler's thread took.
    """

    name: str
    ratios: tuple[float, ...]
    shares: tuple[float, ...]


def interval(ratios: Sequence[float], level: float = 0.99) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and Student's interval of it."""
    from scipy.stats import ttest_1samp  # noqa: PLC0415

    logs = [math.log(ratio) for ratio in ratios]
    low, high = ttest_1samp(logs, 0).confidence_interval(level)
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


def measured(words: Sequence[str], sample: float | None, folder: Path) -> tuple[float, float | None]:
    """Measure the seconds of the timed region, and the sampler's share of its CPU time; None where it was off."""
    spec = probe.Spec(
        argv=tuple(words), micro=True, env={}, stdout=str(folder / "out"), stderr=str(folder / "err"), timeout_s=120.0
    )
    told = folder / "spec.json"
    job = probe.Job(spec, told, folder / "events", folder / "errors")
    job.tell(spec if sample is None else msgspec.structs.replace(spec, sample=sample))
    done = subprocess.run([probe.find(), "run", "--spec", str(told)], check=True, capture_output=True)
    said: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    result = next(each for each in said if each["ev"] == "result")
    series = next((each for each in said if each["ev"] == "series"), None)
    return result["wall_ns"] / 1e9, None if series is None else _share(said, result, series)


def _share(said: Sequence[Mapping[str, Any]], result: Mapping[str, Any], series: Mapping[str, Any]) -> float:
    ends = {each["name"]: each["t_ns"] for each in said if each["ev"] == "phase"}
    inside = [place for place, t in enumerate(series["t_ns"][:-1]) if ends["timed"] <= t < ends["held"]]
    used = sum(series["cpu_ns"][place + 1] - series["cpu_ns"][place] for place in inside)
    return float(used / 1e9 / (result["facts"]["user_s"] + result["facts"]["system_s"]))


def cost(name: str, words: Sequence[str], pairs: int, period: float = PERIOD_S, seed: int = 1) -> Cost:
    """Measure pairs of attempts, the order of each by a coin."""
    coin, ratios, shares = random.Random(seed), [], []  # noqa: S311
    with tempfile.TemporaryDirectory() as place:
        for _ in range(pairs):
            took: dict[bool, float] = {}
            for on in coin.sample((True, False), 2):
                took[on], share = measured(words, period if on else None, Path(place))
                if share is not None:
                    shares.append(share)
            ratios.append(took[True] / took[False])
    return Cost(name, tuple(ratios), tuple(shares))


def failed(one: Cost) -> bool:
    """Return whether the sampler is shown to cost more than it may."""
    _, low, _ = interval(one.ratios)
    return low > 1 + MOST_SHARE or statistics.median(one.shares) > MOST_SHARE


def told(one: Cost) -> str:
    """Return a line."""
    typical, low, high = interval(one.ratios)
    return (
        f"  {one.name:<14}{typical - 1:+8.2%}  ({low - 1:+.2%} to {high - 1:+.2%} at 99%, {len(one.ratios)} pairs); "
        f"its thread {statistics.median(one.shares):.3%} of the CPU time, at most {max(one.shares):.3%}"
    )


def main(pairs: int = PAIRS) -> int:
    """Print the table; 1 where a target is missed."""
    print(f"sampler: a reading every {PERIOD_S:g} s against none; at most {MOST_SHARE:.1%} is aimed at")
    status = 0
    for workload, words in WORKLOADS.items():
        for pages, advice in PAGES.items():
            try:
                one = cost(f"{workload}, {pages}", [*words, "--advice", advice], pairs)
            except (HugewiseError, subprocess.CalledProcessError, OSError) as error:
                print(f"  {workload}, {pages}: not measured: {error}", file=sys.stderr)
                return 1
            print(told(one), flush=True)
            status |= failed(one)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
