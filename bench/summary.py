"""All figures of 10 million observations, against scipy's and numpy's nearest equivalents in the same run.

Each runs in a process of its own, which loads the same .npy or Parquet file; the time is that of the work, without
starting Python and importing; the memory is the peak of the whole process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

COUNT = 10_000_000
MOST_SECONDS = 10.0
MOST_BYTES = 2 << 30
REPEATS = 3


class Files(NamedTuple):
    """The same observations twice."""

    array: Path
    table: Path


def write(folder: Path, count: int) -> Files:
    """Write the same observations as an array and as a Parquet file: log-normal, autocorrelated, two arms."""
    import duckdb  # noqa: PLC0415

    rng = np.random.default_rng(1)
    values = rng.lognormal(0.0, 0.1, count) * (1 + 0.02 * np.sin(np.arange(count) / 1e5))
    array, table = folder / "values.npy", folder / "values.parquet"
    np.save(array, values)
    data = {"wall_s": values, "moment": np.arange(count), "arm": np.arange(count) % 2}
    with duckdb.connect() as connection:
        connection.register("data", data)
        connection.sql("select wall_s, moment, 'arm' || arm as arm from data").write_parquet(str(table))
    return Files(array, table)


def by_figures(files: Files) -> None:
    from hugewise.stats.classical import figures  # noqa: PLC0415

    figures(np.load(files.array), 0.9999)


def by_analyze(files: Files) -> None:
    from hugewise.external.analyze import analyze  # noqa: PLC0415
    from hugewise.external.reader import Ask  # noqa: PLC0415

    analyze([files.table], ask=Ask(value="wall_s", order="moment"))


def by_describe(files: Files) -> None:
    from scipy import stats  # noqa: PLC0415

    stats.describe(np.load(files.array))


def by_scipy(files: Files) -> None:
    """Compute the figures that scipy and numpy also offer: no effective n, no medians of k, no windows, no modes."""
    from scipy import signal, stats  # noqa: PLC0415

    values = np.load(files.array)
    told = stats.describe(values)
    np.quantile(values, [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999])
    stats.median_abs_deviation(values)
    np.histogram(values, 100)
    stats.probplot(values, fit=True)
    z = np.sort((values - told.mean) / np.sqrt(told.variance))
    ranks = np.arange(1, len(z) + 1)
    float(np.dot(2 * ranks - 1, stats.norm.logcdf(z) + stats.norm.logsf(z[::-1])))
    centred = values - told.mean
    signal.correlate(centred, centred[: 1 << 20], mode="valid", method="fft")


WAYS: dict[str, Callable[[Files], None]] = {
    "hugewise figures": by_figures,
    "hugewise analyze (Parquet)": by_analyze,
    "scipy.stats.describe alone": by_describe,
    "numpy and scipy, the same": by_scipy,
}
TARGETS = ("hugewise figures", "hugewise analyze (Parquet)")


def child(name: str, files: Files) -> None:
    """Do one of them and tell seconds and peak bytes."""
    import scipy.signal  # noqa: PLC0415
    import scipy.stats  # noqa: PLC0415, F401

    import hugewise.external.analyze  # noqa: PLC0415, F401

    began = time.perf_counter()
    WAYS[name](files)
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))


def measure(count: int, repeats: int) -> dict[str, tuple[float, int]]:
    """Measure the least seconds of `repeats`, taken in turns, and the highest peak, by way."""
    found: dict[str, tuple[float, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), count)
        for _ in range(repeats):
            for name in WAYS:
                command = [sys.executable, "-m", "bench.summary", "--child", name, str(files.array), str(files.table)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds, peak = json.loads(done.stdout.splitlines()[-1])
                known = found.get(name, (seconds, 0))
                found[name] = (min(known[0], seconds), max(known[1], int(peak)))
    return found


def show(found: dict[str, tuple[float, int]], count: int) -> str:
    """Return the table and the two targets, at 80 columns."""
    text = [f"{'all figures of ' + format(count, ','):<34}{'best s':>9}{'peak MiB':>10}"]
    for name, (seconds, peak) in found.items():
        text.append(f"{name:<34}{seconds:>9.2f}{peak / 2**20:>10,.0f}")
    for name in TARGETS:
        seconds, peak = found[name]
        met = seconds <= MOST_SECONDS and peak <= MOST_BYTES
        text.append(
            f"{name}: {seconds:.2f} s and {peak / 2**30:.2f} GiB, target at most {MOST_SECONDS:.0f} s and 2 GiB -> "
            f"{'met' if met else 'MISSED'}"
        )
    ratio = found["hugewise figures"][0] / found["numpy and scipy, the same"][0]
    text.append(f"hugewise figures / numpy and scipy: {ratio:.2f} of their time")
    return "\n".join(text)


def main(count: int = COUNT, repeats: int = REPEATS) -> int:
    """Measure and print. Always 0: a busy machine is no failure."""
    print(show(measure(count, repeats), count))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Files(Path(sys.argv[3]), Path(sys.argv[4])))
    else:
        sys.exit(main())
