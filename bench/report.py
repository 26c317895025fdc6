"""The report of one large run: seconds, peak memory and the size of what it writes, by the number of attempts.

Runs of several cells with three arms and fifty metrics an attempt, under their hash chain and gathered, are written
once below .bench/report. What is measured is what `hugewise report RUN` does (the run read, judged and told in every
format), in a process of its own. No cell has an effect, so that nothing stops early: the most that a run can cost.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import made_runs
from bench.fleet import exponent, peak
from bench.made_runs import ATTEMPT
from hugewise.store import compacted
from hugewise.study.load import parse
from hugewise.study.study import Study

CELLS, ARMS, METRICS = 8, ("base", "thp", "mthp-64k"), 50
SIZES = (1_200, 6_000, 24_000, 96_000)
"""Attempts of a run."""
AT, MOST_SECONDS, MOST_BYTES, MOST_PAGE = 24_000, 10.0, 512 << 20, 15_000_000
PLACE = Path(".bench/report")


class Cost(NamedTuple):
    """Of a process that tells a run: seconds, peak bytes, bytes of report.html and of report.json."""

    seconds: float
    peak: int
    page: int
    data: int


def study() -> Study:
    """What such a run was to measure."""
    policies = ", ".join(f'"{arm}"' for arm in ARMS)
    return parse(
        f'format = 1\nname = "report"\npolicies = [{policies}]\nbaseline = "base"\n'
        'method = "sequential"\nconfidence = 0.99\n[[workload]]\nname = "chase"\n',
        "report.toml",
    )


def run(attempts: int, place: Path = PLACE) -> Path:
    """The folder of a run with so many attempts; made where it is not there."""
    done = place / str(attempts)
    if (done / "path").exists():
        return Path((done / "path").read_text(encoding="utf-8"))
    shutil.rmtree(done, ignore_errors=True)
    cells = tuple(made_runs.cell(f"chase-{number}", ARMS, {"size": number}) for number in range(CELLS))
    random = np.random.default_rng(attempts)
    texts = [_text(arm, order) for order, arm in enumerate(ARMS)]
    records: dict[str, str] = {}
    bodies = [made_runs.knobs()]
    for block in range(1, attempts // len(ARMS) + 1):
        of_cell = cells[block % CELLS].id
        made: dict[str, str] = {}
        for arm, text in zip(ARMS, texts, strict=True):
            values = np.exp(0.02 * random.standard_normal(METRICS)).tolist()
            metrics = json.dumps(dict(zip(_names(), values, strict=True)))
            filled = text.replace('"@block"', str(block)).replace("@cell", of_cell)
            made[arm] = filled.replace('"@metrics"', metrics)
        stored = iter(made.values())
        for name, body in made_runs.events(block, of_cell, made):
            if name:
                records[name] = next(stored)
            bodies.append(body)
    folder = made_runs.ended(done, study(), seed=bytes(16), host="bench", cells=cells, bodies=bodies)
    compacted.write(folder.path / "attempts.parquet", records)
    (done / "path").write_text(str(folder.path), encoding="utf-8")
    return folder.path


def _names() -> list[str]:
    own = list(ATTEMPT.metrics)
    return [*own, *(f"counter_{number:02d}" for number in range(METRICS - len(own)))]


def _text(arm: str, order: int) -> str:
    """The record of an attempt, with places for its block, its cell and its values."""
    made = made_runs.template(arm, ARMS[0], order)
    return json.dumps(made | {"block": "@block", "cell": "@cell", "metrics": "@metrics", "absent": {}})


def child(path: Path) -> None:
    """Tell the run, and say what that took."""
    began = time.perf_counter()
    from hugewise.analysis.analysis import analyze  # noqa: PLC0415
    from hugewise.report.write import write  # noqa: PLC0415

    paths = write(analyze(path), path)
    took = time.perf_counter() - began
    sizes = [paths[kind].stat().st_size for kind in ("html", "json")]
    print(json.dumps([took, peak(), *sizes]))


def measure(sizes: Sequence[int] = SIZES) -> list[Cost]:
    """What each size costs, in a process of its own."""
    costs = []
    for size in sizes:
        command = [sys.executable, "-m", "bench.report", str(run(size))]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        costs.append(Cost(*told))
    return costs


def show(sizes: Sequence[int], costs: Sequence[Cost]) -> str:
    """The table, at 80 columns, with its targets."""
    lines = [f"{'attempts':>10}{'seconds':>10}{'peak MiB':>10}{'report.html MB':>16}{'report.json MB':>16}"]
    for size, one in zip(sizes, costs, strict=True):
        lines.append(
            f"{size:>10,}{one.seconds:>10.1f}{one.peak / 2**20:>10.0f}{one.page / 1e6:>16.2f}{one.data / 1e6:>16.2f}"
        )
    for what, told in (("seconds", [c.seconds for c in costs]), ("peak", [float(c.peak) for c in costs])):
        lines.append(f"{what}: exponent {exponent(sizes, told):.2f} over the last two sizes (linear: 1)")
    if AT in sizes:
        at = costs[list(sizes).index(AT)]
        met = at.seconds <= MOST_SECONDS and at.peak <= MOST_BYTES and at.page <= MOST_PAGE
        limits = f"{MOST_SECONDS:g} s, {MOST_BYTES >> 20} MiB, a page of {MOST_PAGE / 1e6:g} MB"
        lines.append(f"target at {AT:,}: {limits} -> {'met' if met else 'MISSED'}")
    return "\n".join(lines)


def main(sizes: Sequence[int] = SIZES) -> int:
    """Measure and print. Returns 0: a busy machine is no failure."""
    print(f"The report of a run of {METRICS} metrics an attempt (the data are made once, below {PLACE})")
    print(show(sizes, measure(sizes)))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 2:
        child(Path(sys.argv[1]))
    else:
        sys.exit(main())
