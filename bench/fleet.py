"""The report of a fleet over millions of attempts: seconds and peak memory, from 200 hosts' runs with their Parquet.

Runs as hosts ship them, with logs under their hash chain and gathered attempts, are written once below .bench/fleet.
What is measured: what `hugewise fleet report` does when every run has a summary (every file of every run hashed,
summaries read, hosts pooled, the report written) in a process of its own, for several sizes; and what a run costs once,
in the first report: to be read under its hash chain, judged and summarised. The exponents say what ten times as much
would take.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bench import made_runs
from bench.made_runs import ATTEMPT
from hugewise.analysis.pooling import HostSummary, summarised
from hugewise.fleet import pooled
from hugewise.fleet.folder import FleetFolder
from hugewise.fleet.inventory import Stratum
from hugewise.fleet.protocol import FleetQuestion, Installed
from hugewise.fleet.records import Assigned, FleetClosed, FleetOpened, HostGreeted, RunShipped
from hugewise.model.metric import COMMON
from hugewise.store import folder
from hugewise.store.folder import RunFolder
from hugewise.study.load import parse
from hugewise.study.study import Study

HOSTS = 200
SIZES = (1_250, 6_250, 50_000)
"""Attempts of a host."""
KINDS = 2
"""Runs that are drawn; the other hosts have theirs under coins of their own."""
MOST_SECONDS, MOST_BYTES = 30.0, 2 << 30
PLACE = Path(".bench/fleet")
ARMS = ("base", "thp")
CELL = ATTEMPT.cell


class Cost(NamedTuple):
    """Cost of a process: seconds and peak bytes."""

    seconds: float
    peak: int


def study(pairs: int) -> Study:
    """Return a study with so many pairs declared."""
    return parse(
        f'format = 1\nname = "fleet"\npolicies = ["base", "thp"]\nmethod = "sequential"\nconfidence = 0.99\n'
        f'budget = {{ blocks = {pairs} }}\n[[workload]]\nname = "chase"\n',
        "fleet.toml",
    )


def fleet(attempts: int, hosts: int = HOSTS) -> Path:
    """Return a fleet's folder with so many attempts of each host; made where it is not there.

    The attempts of `KINDS` hosts are drawn, and those of the others are theirs under coins of their own: each log has
    its own chain.
    """
    done = PLACE / f"{attempts}-{hosts}"
    if (done / "path").exists():
        return Path((done / "path").read_text(encoding="utf-8"))
    shutil.rmtree(done, ignore_errors=True)
    of = study(attempts // 2)
    made = FleetFolder.new(done, of.name)
    made.make(study_toml="", hosts_toml="")
    names = [f"h{number:03d}" for number in range(hosts)]
    here = Installed(version="0", package="0" * 64, probe=None, probe_version=None, python="3", machine="x86_64")
    question = FleetQuestion(text="x")
    made.append(
        FleetOpened(
            t=0.0, fleet=made.fleet, study=of.name, digest=of.digest, question=question, hosts=tuple(names),
            installed=here,
        )
    )  # fmt: skip
    drawn = [Drawn.of(attempts, kind) for kind in range(KINDS)]
    for number, name in enumerate(names):
        kind = number % KINDS
        path = run(made.path / "hosts" / name, of, drawn[kind], number)
        told = Stratum(
            cpu=f"CPU {kind}", microcode="1", kernel="6", libc="g", pages="p", hypervisor="none", memory="fresh"
        )
        made.append(HostGreeted(t=0.0, host=name, stratum=told, machine=None, name=name, root=True, installed=here))
        made.append(Assigned(t=0.0, number=number, host=name, purpose="study"))
        folder = str(path.relative_to(made.path))
        made.append(RunShipped(t=0.0, number=number, folder=folder, digest="0" * 64, files=3, size=0))
    made.append(FleetClosed(t=0.0, reason="all have measured"))
    (done / "path").write_text(str(made.path), encoding="utf-8")
    return made.path


def summarise(path: Path) -> Cost:
    """Have the summaries of all hosts kept, as the first report does; what one costs.

    Those of `KINDS` hosts are made. The others' differ by their coins alone.
    """
    runs = sorted(path.glob("hosts/*/*/*"))
    costs = [timed("summary", one) for one in runs[:KINDS]]
    known = pooled.summaries(path, runs[:KINDS], jobs=1)
    for number, one in enumerate(runs):
        opened, place = RunFolder(one).opened(), pooled.summary_path(path, one)
        like = known[number % KINDS]
        assert isinstance(place, Path) and isinstance(like, HostSummary) and like.evidence is not None
        named = {"run": opened.run, "seed_hash": opened.seed_hash}
        evidence = msgspec.structs.replace(like.evidence, **named)
        pooled.keep_summary(place, msgspec.structs.replace(like, **named, evidence=evidence))
    return Cost(max(cost.seconds for cost in costs), max(cost.peak for cost in costs))


class Drawn(NamedTuple):
    """The file of a run's gathered attempts, and the lines of its log but for the first and the last."""

    gathered: Path
    lines: list[bytes]

    @classmethod
    def of(cls, attempts: int, kind: int) -> Drawn:
        # No effect, so that nothing stops early: the most that a summary can cost.
        levels = np.exp(0.02 * np.random.default_rng(kind).standard_normal((attempts // 2, 2)))
        texts = [_text(arm, order) for order, arm in enumerate(ARMS)]
        records: dict[str, str] = {}
        lines = [made_runs.knobs()]
        for block, values in enumerate(levels.tolist(), 1):
            filled = zip(ARMS, texts, values, strict=True)
            made = {
                arm: text.replace('"@block"', str(block)).replace('"@value"', repr(value))
                for arm, text, value in filled
            }
            stored = iter(made.values())
            for name, body in made_runs.events(block, CELL, made):
                if name:
                    records[name] = next(stored)
                lines.append(body)
        gathered = PLACE / f"{attempts}-{kind}.parquet"
        folder.write_compacted(gathered, records)
        return cls(gathered, lines)


def run(place: Path, of: Study, drawn: Drawn, number: int) -> Path:
    """Make an ended run: its log under a seed of its own, and the file that its attempts were gathered in."""
    place.mkdir(parents=True)
    cells, seed = (made_runs.cell(CELL, ARMS, {}),), number.to_bytes(16, "big")
    folder = made_runs.ended(place, of, seed=seed, host=place.name, cells=cells, bodies=drawn.lines)
    shutil.copyfile(drawn.gathered, folder.path / "attempts.parquet")
    return folder.path


def _text(arm: str, order: int) -> str:
    """Return the record of an attempt, with places for its block and its value."""
    made = made_runs.template(arm, ARMS[0], order)
    made["block"], made["metrics"][COMMON[0].name] = "@block", "@value"
    return json.dumps(made)


def child(what: str, path: Path) -> None:
    """Do it, and tell seconds and peak bytes."""
    began = time.perf_counter()
    if what == "summary":
        summarised(path)
    else:
        from hugewise.fleet.pooled import pooled_results  # noqa: PLC0415
        from hugewise.report.fleet import write  # noqa: PLC0415

        found = pooled_results(path)
        write(found, path)
        assert len(found.hosts) == len(list((path / "hosts").iterdir()))
    print(json.dumps([time.perf_counter() - began, peak()]))


def peak() -> int:
    """Return the peak bytes of this process alone; getrusage(2) would include those of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


def timed(what: str, path: Path) -> Cost:
    command = [sys.executable, "-m", "bench.fleet", what, str(path)]
    seconds, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Cost(seconds, peak)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of cost over size, in logarithms, between the last two."""
    return math.log(costs[-1] / costs[-2]) / math.log(sizes[-1] / sizes[-2])


def beyond(sizes: Sequence[float], costs: Sequence[float], times: float) -> float:
    """Return the cost at so many times the last size."""
    return float(costs[-1] * times ** max(0.0, exponent(sizes, costs)))


def straight(sizes: Sequence[float], costs: Sequence[float], times: float) -> float:
    """Extrapolate with the increase between the last two sizes, which has no fixed cost in it."""
    slope = (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
    return costs[-1] + max(0.0, slope) * (times - 1) * sizes[-1]


def show(hosts: int, sizes: Sequence[int], reports: Sequence[Cost], made: Sequence[Cost]) -> str:
    """Return the tables, at 80 columns."""
    lines = [f"{'attempts':>12}{'report s':>10}{'peak GiB':>10}{'a summary s':>13}{'peak GiB':>10}"]
    for size, report, summary in zip(sizes, reports, made, strict=True):
        lines.append(
            f"{size * hosts:>12,}{report.seconds:>10.1f}{report.peak / 2**30:>10.2f}"
            f"{summary.seconds:>13.1f}{summary.peak / 2**30:>10.2f}"
        )
    seconds, peaks = [one.seconds for one in reports], [float(one.peak) for one in reports]
    lines.append(
        f"ten times as much: {beyond(sizes, seconds, 10):.0f} s (exponent {exponent(sizes, seconds):.2f}), "
        f"{beyond(sizes, peaks, 10) / 2**30:.2f} GiB (exponent {exponent(sizes, peaks):.2f})"
    )
    lines.append(
        f"without what does not grow: {straight(sizes, seconds, 10):.0f} s, "
        f"{straight(sizes, peaks, 10) / 2**30:.2f} GiB"
    )
    most = reports[-1]
    word = "met" if most.seconds <= MOST_SECONDS and most.peak <= MOST_BYTES else "MISSED"
    lines.append(f"target at {sizes[-1] * hosts:,}: {MOST_SECONDS:g} s and {MOST_BYTES >> 30} GiB -> {word}")
    of_one = [one.seconds for one in made]
    lines.append(
        f"a summary is made once: exponent {exponent(sizes, of_one):.2f} in attempts; all {hosts} of the largest: "
        f"{of_one[-1] * hosts / 60:.0f} min of a CPU"
    )
    return "\n".join(lines)


def measure(sizes: Sequence[int] = SIZES, hosts: int = HOSTS) -> tuple[list[Cost], list[Cost]]:
    """Measure the cost of reports, and of making summaries."""
    reports, made = [], []
    for size in sizes:
        path = fleet(size, hosts)
        made.append(summarise(path))
        reports.append(timed("report", path))
    return reports, made


def main(sizes: Sequence[int] = SIZES, hosts: int = HOSTS) -> int:
    """Measure and print. Returns 0: a busy machine is no failure."""
    print(f"The report of a fleet of {hosts} hosts (the data are made once, below {PLACE})")
    print(show(hosts, sizes, *measure(sizes, hosts)))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        sys.exit(main())
