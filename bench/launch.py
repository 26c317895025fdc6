"""The launcher against its floor and its peer: vfork, exec and wait in C, and `hyperfine -N`.

All launch the same static program that only exits, with the same environment, in rounds that interleave them in
turning order, all on one CPU: a child that is placed on another, idle one costs half as much again to wake in a virtual
machine, and how often that happens depends on the neighbours. They are compared at p10; only ratios within one run mean
anything.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import HugewiseError
from hugewise.host import cgroup
from hugewise.machine import probe

HERE = Path(__file__).parent
BUILD = HERE.parent / ".bench"
ROUNDS = 12
RUNS = 250
FLOOR_TARGET = 1.2
PEER_TARGET = 0.7
FLOOR, PEER = "C vfork+exec+wait", "hyperfine -N"
BARE, COUNTED, GROUPED = "probe", "probe, 4 counters", "probe, own cgroup"

Launch = Callable[[int], list[float]]


class MissingError(Exception):
    """A program that the benchmark needs is not installed."""


@dataclass(frozen=True)
class Line:
    """One launcher: quantiles in microseconds, and their ratio to the floor's."""

    name: str
    p10: float
    p50: float
    to_floor: float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value with at least `share` of the values at or below it."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def compare(took: dict[str, list[float]]) -> list[Line]:
    """Return lines from nanoseconds by launcher, the floor among them."""
    floor = quantile(took[FLOOR], 0.1)
    return [
        Line(name, quantile(ns, 0.1) / 1e3, quantile(ns, 0.5) / 1e3, quantile(ns, 0.1) / floor)
        for name, ns in took.items()
    ]


def build() -> tuple[Path, Path]:
    """Compile the floor and the program that only exits. Raises MissingError without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise MissingError("cc (apt install gcc)")
    BUILD.mkdir(exist_ok=True)
    floor, leave = BUILD / "floor", BUILD / "leave"
    subprocess.run([compiler, "-O2", "-Wall", "-o", floor, HERE / "floor.c"], check=True)
    flags = ["-nostdlib", "-static", "-fno-stack-protector"]
    subprocess.run([compiler, "-O2", "-Wall", *flags, "-o", leave, HERE / "leave.c"], check=True)
    return floor, leave


def by_floor(floor: Path, program: Path) -> Launch:
    def launch(runs: int) -> list[float]:
        done = subprocess.run([floor, str(runs), program], check=True, capture_output=True, text=True)
        return [float(line) for line in done.stdout.split()]

    return launch


def by_probe(program: Path, *options: str) -> Launch:
    def launch(runs: int) -> list[float]:
        said = probe.ask("bench-launch", "--count", str(runs), *options, "--", str(program))
        assert isinstance(said, probe.Launches)
        return [float(ns) for ns in said.wall_ns]

    return launch


def by_hyperfine(program: Path) -> Launch:
    """Measure by hyperfine. Raises MissingError where it is not installed."""
    hyperfine = shutil.which("hyperfine")
    if hyperfine is None:
        raise MissingError("hyperfine (apt install hyperfine)")
    export = BUILD / "hyperfine.json"

    def launch(runs: int) -> list[float]:
        command = [hyperfine, "-N", "--style", "none", "--runs", str(runs), "--export-json", str(export), str(program)]
        # Its advice on outliers and very short commands goes to stderr.
        subprocess.run(command, check=True, capture_output=True)
        return [seconds * 1e9 for seconds in json.loads(export.read_text())["results"][0]["times"]]

    return launch


def measure(launchers: dict[str, Launch], rounds: int, runs: int) -> dict[str, list[float]]:
    """Nanoseconds by launcher; each round starts with another one."""
    took: dict[str, list[float]] = {name: [] for name in launchers}
    names = list(launchers)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took[name] += launchers[name](runs)
    return took


@contextmanager
def on_one_cpu() -> Iterator[int]:
    """Keep this process, and what it starts, on the last CPU that it may use."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield max(allowed)
    finally:
        os.sched_setaffinity(0, allowed)


def show(lines: Sequence[Line]) -> str:
    """Return the table and the two targets, at 80 columns."""
    text = [f"{'launcher':<22}{'p10 us':>9}{'p50 us':>9}{'p10 / floor':>13}{'added us':>10}"]
    by_name = {line.name: line for line in lines}
    floor, bare = by_name[FLOOR], by_name[BARE]
    for line in lines:
        added = line.p10 - floor.p10
        text.append(f"{line.name:<22}{line.p10:>9.1f}{line.p50:>9.1f}{line.to_floor:>13.2f}{added:>10.1f}")
    text.append(_judge(f"probe / {FLOOR}", bare.to_floor, FLOOR_TARGET))
    if PEER in by_name:
        text.append(_judge(f"probe / {PEER}", bare.p10 / by_name[PEER].p10, PEER_TARGET))
    return "\n".join(text)


def _judge(what: str, ratio: float, target: float) -> str:
    return f"{what}: {ratio:.2f} at p10, target at most {target} -> {'met' if ratio <= target else 'MISSED'}"


def main(rounds: int = ROUNDS, runs: int = RUNS) -> int:
    """Measure and print. Returns 1 where a requirement is missing, else 0: a busy machine is no failure."""
    print("Launching a program that only exits")
    try:
        floor, program = build()
    except MissingError as missing:
        print(f"requires: {missing}")
        return 1
    launchers = {FLOOR: by_floor(floor, program), BARE: by_probe(program), COUNTED: by_probe(program, "--counters")}
    absent = []
    try:
        launchers[PEER] = by_hyperfine(program)
    except MissingError as missing:
        absent.append(f"requires: {missing}")
    groups = None
    try:
        groups = cgroup.Hierarchy.open()
        files = groups.create("launch").procs_files
        launchers[GROUPED] = by_probe(program, *(word for file in files for word in ("--cgroup", str(file))))
    except HugewiseError as error:
        absent.append(f"requires: a cgroup of its own ({error})")
    try:
        with on_one_cpu() as cpu:
            took = measure(launchers, rounds, runs)
        print(f"{rounds} rounds of {runs} launches each, on CPU {cpu}")
        print(show(compare(took)))
    finally:
        if groups is not None:
            groups.remove()
    for line in absent:
        print(line)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
