"""The traced run of `hugewise predict` against valgrind's cachegrind on the same programs.

hugewise simulates 16 configurations of TLBs and page-walk caches, cachegrind one of data and instruction caches.
CPU seconds of the whole process, user and system; ratios within one round, the middle of the rounds, and the geometric
mean over the programs. Target: at least as fast. Beside it, how many times as long as the program itself.

Not compared: DynamoRIO's drcachesim, which neither Debian 12 nor PyPI, npm or crates.io has (November 2026).
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hugewise.errors import UserError
from hugewise.predict import machines, trace

ROUNDS = 3
TARGET = 1.0
BYTES = 8_000_000
PYTHON = "d = {i * 2654435761 % 2**32: i for i in range(300_000)}; print(len(sorted(d)))"
Took = Mapping[str, Sequence[float]]


def programs(data: Path) -> dict[str, list[str]]:
    """Return the programs that are here, by name; `data`: a file of lines of text."""
    commands = {
        "python": [str(Path(sys.executable).resolve()), "-S", "-c", PYTHON],
        "sort": ["sort", "--parallel=1", str(data)],
        "gzip": ["gzip", "-c", str(data)],
        "xz": ["xz", "-1", "-T1", "-c", str(data)],
    }
    return {name: command for name, command in commands.items() if shutil.which(command[0])}


def cpu_s(command: Sequence[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def asked() -> dict[str, object]:
    described = [machines.load(name) for name in machines.DEFAULT]
    every = [machine.configuration(page) for machine in described for page in machine.page]
    return {"configurations": every, "sizes": [21, 25, 29, 30]}


def traced(command: Sequence[str], folder: Path) -> list[str]:
    """Return the command of the traced run."""
    return trace.program(command).traced(folder, asked())


def show(name: str, took: Took) -> str:
    peer = statistics.median(theirs / ours for theirs, ours in zip(took["cachegrind"], took["predict"], strict=True))
    slower = statistics.median(ours / alone for alone, ours in zip(took["alone"], took["predict"], strict=True))
    return (
        f"  {name:<8} {statistics.median(took['predict']):>6.2f} CPU s   {peer:>5.2f}x the speed of cachegrind   "
        f"{slower:>5.1f} times the program alone"
    )


def verdict(every: Mapping[str, Took]) -> tuple[bool, str]:
    """Return whether the target is met, and its line."""
    ratios = [
        statistics.median(theirs / ours for theirs, ours in zip(took["cachegrind"], took["predict"], strict=True))
        for took in every.values()
    ]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    met = mean >= TARGET
    return met, f"  geometric mean {mean:.2f}x, target at least {TARGET:g} -> {'met' if met else 'MISSED'}"


def main() -> int:
    print("predict: 16 configurations in one traced run, and cachegrind", flush=True)
    try:
        trace.program(["true"])
    except UserError as error:
        print(f"  left out: {error.message} ({error.hint})")
        return 0
    if shutil.which("valgrind") is None:
        print("  left out: valgrind is not there (apt install valgrind)")
        return 0
    every: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as made:
        data = Path(made, "lines")
        data.write_text("".join(f"{at * 2654435761 % 2**32:x} {at}\n" for at in range(BYTES // 15)))
        for name, command in programs(data).items():
            ways = {
                "alone": command,
                "predict": traced(command, Path(made)),
                "cachegrind": [
                    "valgrind",
                    "--tool=cachegrind",
                    "--cache-sim=yes",
                    "--cachegrind-out-file=/dev/null",
                    *command,
                ],
            }
            took = every.setdefault(name, {way: [] for way in ways})
            for _ in range(ROUNDS):
                for way, words in ways.items():
                    took[way].append(cpu_s(words))
            print(show(name, took), flush=True)
    met, line = verdict(every)
    print(line)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
