"""The report of one large run: seconds, peak memory, the size of what it writes and how soon a browser shows it, by the
number of attempts.

Runs of several cells with three arms and fifty metrics an attempt, under their hash chain and gathered, are written
once below .bench/report. What is measured is what `hugewise report RUN` does (the run read, judged and told in every
format), in a process of its own, and then how long a headless Chromium takes from asking for the page until it is laid
out with its fonts and painted. No cell has an effect, so that nothing stops early: the most that a run can cost.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import made_runs
from bench.fleet import exponent, peak
from bench.made_runs import ATTEMPT
from hugewise import processes
from hugewise.store.folder import write_compacted
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.browser import browser

CELLS, ARMS, METRICS = 8, ("base", "thp", "mthp-64k"), 50
SIZES = (999, 6_000, 24_000, 99_999)
"""Attempts of a run, a third of them of each arm."""
AT, MOST_SECONDS, MOST_BYTES, MOST_PAGE, MOST_OPENS = 24_000, 10.0, 512 << 20, 15_000_000, 2.0
MOST_EXPONENT = 1.1
"""Limit on the exponent of seconds and of memory over all sizes; MOST_LAST limits it over the last two, of which one
run each is timed.
"""
MOST_LAST = 1.2
LOOKS = 3
PLACE = Path(".bench/report")


class Cost(NamedTuple):
    """Cost of a process that reports a run: seconds, peak bytes with those of processes that it starts (`proportional`:
    shared libraries count once), bytes of report.html and of report.json; and the seconds until a browser shows the
    page, where there is one.
    """

    seconds: float
    peak: int
    page: int
    data: int
    opens: float | None = None


def study(blocks: int) -> Study:
    """Return the study of such a run: so many blocks of each cell, all of which it has."""
    policies = ", ".join(f'"{arm}"' for arm in ARMS)
    return parse(
        f'format = 1\nname = "report"\npolicies = [{policies}]\nbaseline = "base"\n'
        f'method = "sequential"\nconfidence = 0.99\n[budget]\nblocks = {blocks}\n[[workload]]\nname = "chase"\n',
        "report.toml",
    )


def run(attempts: int, place: Path = PLACE, number: int = CELLS) -> Path:
    """Return the folder of a run with so many attempts in this `number` of cells; made where it is not there."""
    done = place / f"{attempts}-in-{number}"
    if (done / "path").exists():
        return Path((done / "path").read_text(encoding="utf-8"))
    shutil.rmtree(done, ignore_errors=True)
    cells = tuple(made_runs.cell(f"chase-{at}", ARMS, {"size": at}) for at in range(number))
    all_blocks = attempts // len(ARMS)
    random = np.random.default_rng(attempts)
    texts = [_text(arm, order) for order, arm in enumerate(ARMS)]
    records: dict[str, str] = {}
    bodies = [made_runs.knobs()]
    for block in range(1, all_blocks + 1):
        of_cell = cells[block % number].id
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
    folder = made_runs.ended(
        done, study(math.ceil(all_blocks / number)), seed=bytes(16), host="bench", cells=cells, bodies=bodies
    )
    write_compacted(folder.path / "attempts.parquet", records)
    (done / "path").write_text(str(folder.path), encoding="utf-8")
    return folder.path


def _names() -> list[str]:
    own = list(ATTEMPT.metrics)
    return [*own, *(f"counter_{number:02d}" for number in range(METRICS - len(own)))]


def _text(arm: str, order: int) -> str:
    """Return the record of an attempt, with places for its block, its cell and its values."""
    made = made_runs.template(arm, ARMS[0], order)
    return json.dumps(made | {"block": "@block", "cell": "@cell", "metrics": "@metrics", "absent": {}})


def child(path: Path) -> None:
    """Tell the run, and say what that took."""
    began = time.perf_counter()
    from hugewise.analysis.analysis import analyze  # noqa: PLC0415
    from hugewise.report.write import write  # noqa: PLC0415

    with watched() as memory:
        paths = write(analyze(path), path)
    took = time.perf_counter() - began
    sizes = [paths[kind].stat().st_size for kind in ("html", "json")]
    print(json.dumps([took, max(peak(), *memory), *sizes]))


@contextmanager
def watched(every: float = 0.2) -> Iterator[list[int]]:
    """Meanwhile the bytes that this process and those that it has started hold together, every so many seconds, of the
    times at which it may be the most: their `resident` bytes, which cost less to ask for, are never below that.
    """
    found, over = [proportional()], threading.Event()

    def look() -> None:
        while not over.wait(every):
            if resident() > max(found):
                found.append(proportional())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def resident() -> int:
    """Resident bytes of this process and of its children that live; pages that they share count in each."""
    return sum(stat.rss for stat in _family()) * resource.getpagesize()


def proportional() -> int:
    """Return bytes of this process and of its children that live, a page that several have shared out among them: Pss
    of /proc/PID/smaps_rollup (proc(5)).
    """
    total = 0
    for stat in _family():
        with suppress(OSError):  # the process has ended
            for line in Path(f"/proc/{stat.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) << 10
    return total


def _family() -> Iterator[processes.ProcessStat]:
    """Yield this process and its children."""
    for folder in Path("/proc").glob("[0-9]*"):
        stat = processes.stat(folder)
        if stat is not None and os.getpid() in (stat.pid, stat.ppid):
            yield stat


def opened(page: Path) -> float | None:
    """Measure the seconds until a running browser has laid out and painted the page: the median of some, or None."""
    if shutil.which("chromium") is None:
        return None
    took = []
    with (
        tempfile.TemporaryDirectory(prefix="bench", ignore_cleanup_errors=True) as folder,
        browser(Path(folder, "browser")) as one,
    ):
        for _ in range(LOOKS):
            began = time.perf_counter()
            one.open(page)
            one.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true))))")
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def measure(sizes: Sequence[int] = SIZES) -> list[Cost]:
    """Measure the cost of each size, in a process of its own."""
    costs = []
    for size in sizes:
        path = run(size)
        command = [sys.executable, "-m", "bench.report", str(path)]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        costs.append(Cost(*told)._replace(opens=opened(path / "report.html")))
    return costs


def fitted(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of cost over size, in logarithms, by least squares over all of them."""
    slope, _ = statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs])
    return slope


class Target(NamedTuple):
    """Target, whether it was met (None: it was not measured), and the measured value."""

    words: str
    met: bool | None
    seen: str

    def line(self) -> str:
        word = "not measured" if self.met is None else "met" if self.met else "MISSED"
        return f"{self.words}: {self.seen} -> {word}"


def targets(sizes: Sequence[int], costs: Sequence[Cost]) -> Iterator[Target]:
    """Yield the targets of the size AT, where it was measured, and of the growth."""
    if AT in sizes:
        at, of = costs[list(sizes).index(AT)], f"at {AT:,}"
        yield Target(f"{of} within {MOST_SECONDS:g} s", at.seconds <= MOST_SECONDS, f"{at.seconds:.1f} s")
        yield Target(f"{of} within {MOST_BYTES >> 20} MiB", at.peak <= MOST_BYTES, f"{at.peak / 2**20:.0f} MiB")
        yield Target(f"{of} a page of at most {MOST_PAGE / 1e6:g} MB", at.page <= MOST_PAGE, f"{at.page / 1e6:.2f} MB")
        opens = f"{of} it opens within {MOST_OPENS:g} s"
        if at.opens is None:
            yield Target(opens, None, "there is no Chromium (apt install chromium)")
        else:
            yield Target(opens, at.opens <= MOST_OPENS, f"{at.opens:.2f} s")
    for what, told in (("seconds", [cost.seconds for cost in costs]), ("peak", [float(one.peak) for one in costs])):
        over, last = fitted(sizes, told), exponent(sizes, told)
        yield Target(f"{what} grow as n^{MOST_EXPONENT:g} at most over all sizes", over <= MOST_EXPONENT, f"{over:.2f}")
        yield Target(f"{what}: n^{MOST_LAST:g} at most over the last two", last <= MOST_LAST, f"{last:.2f}")


def show(sizes: Sequence[int], costs: Sequence[Cost]) -> str:
    """Return the table, at 80 columns, with its targets."""
    head = ("attempts", "seconds", "peak MiB", "report.html MB", "report.json MB", "opens in s")
    lines = ["".join(f"{name:>{width}}" for name, width in zip(head, _WIDTHS, strict=True))]
    for size, one in zip(sizes, costs, strict=True):
        opens = "-" if one.opens is None else f"{one.opens:.2f}"
        row = (
            *(f"{size:,}", f"{one.seconds:.1f}", f"{one.peak / 2**20:.0f}"),
            *(f"{one.page / 1e6:.2f}", f"{one.data / 1e6:.2f}", opens),
        )
        lines.append("".join(f"{entry:>{width}}" for entry, width in zip(row, _WIDTHS, strict=True)))
    return "\n".join([*lines, *(target.line() for target in targets(sizes, costs))])


_WIDTHS = (10, 9, 10, 16, 16, 12)


def main(sizes: Sequence[int] = SIZES) -> int:
    """Measure and print. Returns 1 where a target was missed or not measured."""
    print(f"The report of a run of {METRICS} metrics an attempt (the data are made once, below {PLACE})")
    costs = measure(sizes)
    print(show(sizes, costs))
    return 0 if all(target.met for target in targets(sizes, costs)) else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        child(Path(sys.argv[1]))
    else:
        sys.exit(main())
