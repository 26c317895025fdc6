"""Measure the time and the answers of advices, files included: for programs with a clear effect, and one without.

    python -m bench.advise [--runs N] [PROGRAM ...]

gains   temporary buffers of 64 MiB, filled and given back one after the other: some 1 s, most of it page faults
null    a loop in the first cache: nothing to gain
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import hugewise
from hugewise.advise import advise as phases
from hugewise.advise.question import Question, command
from hugewise.advise.text import answer
from hugewise.errors import HugewiseError
from hugewise.report.deployed import write_files

BUILD = Path(__file__).parent.parent / ".bench"
RUNS = 5
TARGETS: Mapping[str, tuple[float, float]] = {"gains": (180.0, 240.0), "null": (600.0, 600.0)}
"""Seconds: at the median, and at worst."""

_GAINS = r"""
#include <stdlib.h>
#include <string.h>
int main(void) {
  unsigned long sum = 0;
  for (int round = 0; round < 24; round++) {
    const size_t size = 64ul << 20;
    volatile char *buffer = malloc(size);
    memset((void *)buffer, round, size);
    for (size_t at = 0; at < size; at += 4099) sum += buffer[at];
    free((void *)buffer);
  }
  return sum == 42;
}
"""
_NULL = r"""
int main(void) {
  volatile unsigned long sum = 0;
  for (unsigned long i = 0; i < 3200000000ul; i++) sum += i;
  return sum == 42;
}
"""
PROGRAMS: Mapping[str, str] = {"gains": _GAINS, "null": _NULL}


class Taken(NamedTuple):
    """One advice: its seconds, and its sentence."""

    seconds: float
    answer: str


def built(name: str, folder: Path) -> Path:
    """Build the program. Raises HugewiseError where there is no compiler."""
    source, program = folder / f"{name}.c", folder / name
    source.write_text(PROGRAMS[name])
    try:
        subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise HugewiseError(f"{name} cannot be compiled: {error}", hint="apt install gcc libc6-dev") from None
    program.chmod(0o755)
    return program


def advised(program: Path, results: Path) -> Taken:
    """Run one advice with its files. Raises HugewiseError."""
    began = time.monotonic()
    found, _ = phases.advise(Question(workload=command((str(program),))), results)
    if found.confirmed is not None and found.confirmed.verdict == "better":
        with tempfile.TemporaryDirectory(prefix="hugewise-advise-") as output:
            write_files(hugewise.open_results(found.confirmation_folder), Path(output) / "deploy")
    return Taken(time.monotonic() - began, answer(found))


def show(name: str, taken: Sequence[Taken]) -> str:
    """Return the times of a program's runs, against the targets."""
    seconds = [each.seconds for each in taken]
    middle, worst = TARGETS[name]
    word = "met" if median(seconds) <= middle and max(seconds) <= worst else "MISSED"
    listed = ", ".join(f"{second:.0f}" for second in seconds)
    head = f"{name}: {listed} s; median {median(seconds):.0f}, worst {max(seconds):.0f}"
    return f"{head}; at most {middle:.0f} and {worst:.0f} -> {word}"


def main(runs: int = RUNS, names: Sequence[str] = tuple(PROGRAMS), results: Path = BUILD / "advise") -> int:
    """Measure and print. Returns 1 where nothing could be measured."""
    shown = 0
    with tempfile.TemporaryDirectory(prefix="hugewise-advise-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        for name in names:
            try:
                program = built(name, Path(made))
                taken = []
                for _ in range(runs):
                    taken.append(advised(program, results))
                    print(f"  {name}: {taken[-1].seconds:.0f} s: {taken[-1].answer}", flush=True)
            except HugewiseError as error:
                print(f"{name}: left out: {error}")
                continue
            print(show(name, taken), flush=True)
            shown += 1
    return 0 if shown else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.advise")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"advices of each program ({RUNS})")
    parser.add_argument("program", nargs="*", choices=[[], *PROGRAMS], help="gains or null (both)")
    given = parser.parse_args()
    sys.exit(main(given.runs, given.program or tuple(PROGRAMS)))
