"""Compare interleaved with sequential blocks: the spread of their pairs, and the agreement of both effects.

    python -m bench.interleaved [--short] [--blocks N] [WORKLOAD ...]

Base pages against huge ones under redis, memcached, MariaDB and PostgreSQL, as far as they are installed. Both designs
have the same study but for its `[design]`, and take turns in one call: a few blocks of one, a few of the other, each
part a run of its own. The pairs of all parts are put together, so that both saw the same hours of the machine.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import fdtri

from hugewise.analysis.calibration import agreement
from hugewise.analysis.calibration import stream as figures_of
from hugewise.errors import HugewiseError
from hugewise.model.design import Kind
from hugewise.session import session
from hugewise.stats.method import Contrast
from hugewise.stats.paired import Student, deviation_freedom, paired
from hugewise.stats.pairs import Pairs
from hugewise.store.records import Run
from hugewise.study.load import parse
from hugewise.study.study import Study
from hugewise.workloads import discover

BUILD = Path(__file__).parent.parent / ".bench"
KINDS: tuple[Kind, Kind] = ("sequential", "interleaved")
BLOCKS, SHORT, PART = 13, 6, 4  # blocks a design: of the long form, of the short one, and of a run at the most
FEWEST = 6  # pairs without which nothing is said of their spread
TARGET = 1 / 3
BESIDE = "server_cpu_us"

# What is compared, and with which parameters: stores and buffers of 120 to 250 MB, measured for 2 s.
# pgbench's transactions wait for each other's wake-ups: with more clients, and for longer, a block has enough of them.
WORKLOADS: Mapping[str, tuple[str, str]] = {
    "redis": (
        "thp",
        'allocator = "libc", keys = 1_000_000, instances = 1, duration = "2s", lead = "300ms", connections = 4,'
        " pipeline = 16",
    ),
    "memcached": (
        "thp",
        'keys = 1_000_000, memory = "256m", instances = 1, duration = "2s", lead = "300ms", connections = 32,'
        " pipeline = 16",
    ),
    "mysql-ro": (
        "thp",
        'tables = 4, table_size = 250_000, buffer_pool = "320m", keep_thp = true, threads = 2, duration = "2s"',
    ),
    "pgbench": (  # its buffers are shared memory, which thp does not reach
        "hugetlb-2m",
        'mode = "select-only", shared_buffers = "160m", clients = 8, duration = "6s", lead = "3s"',
    ),
}

Say = Callable[[str], None]


class TooFewError(Exception):
    """A design has too few pairs to say anything of their spread."""


@dataclass
class Collected:
    """Measurements of a workload under one design.

    pairs    values of baseline and arm by metric, block by block
    seconds  of each complete block
    """

    pairs: defaultdict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)


class Line(NamedTuple):
    """A design's figures of one metric: `sd` is that of log(arm/baseline), the effect is arm/baseline - 1."""

    kind: Kind
    pairs: int
    sd: float
    effect: float
    low: float
    high: float
    seconds: float


class Finding(NamedTuple):
    """Both designs beside each other: sd of interleaved pairs over that of sequential ones, with a 95% interval."""

    lines: tuple[Line, Line]
    ratio: float
    low: float
    high: float
    agreement: str

    @property
    def sooner(self) -> float:
        """Factor by which interleaved blocks take less time for an interval as wide: fewer pairs, of other length."""
        one, other = self.lines
        return (one.sd / other.sd) ** 2 * one.seconds / other.seconds


def ratio_of_deviations(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """sd(one)/sd(other) with its 95% interval, by the F distribution of the ratio of two variances.

    Its degrees of freedom are those that the kurtosis of each side leaves (Bonett 2006), at most n - 1: for normal
    differences it is the textbook's interval. With 13 values on each side it covered 96% of ratios of normal values and
    88% of those of t values (4 degrees of freedom), simulated. Of six values or more on each side, not all alike.
    """
    ratio = stdev(one) / stdev(other)
    freedom = deviation_freedom(one), deviation_freedom(other)
    low, high = (ratio / math.sqrt(float(fdtri(*freedom, p))) for p in (0.975, 0.025))
    return ratio, low, high


def found(metric: str, sequential: Collected, interleaved: Collected) -> Finding:
    """Hold the pairs of both designs against each other. Raises TooFewError."""
    streams, lines = [], []
    for kind, collected in zip(KINDS, (sequential, interleaved), strict=True):
        pairs, seconds = collected.pairs[metric], fmean(collected.seconds or [0.0])
        if len(pairs) < FEWEST:
            raise TooFewError(f"{metric}: {len(pairs)} usable pairs in {kind} blocks, and {FEWEST} are needed")
        figures = figures_of(kind, [one for one, _ in pairs], [other for _, other in pairs], [], seconds)
        tests = paired(figures.differences)
        if not isinstance(tests, Student):
            raise TooFewError(f"{metric}: the pairs of {kind} blocks are all alike")
        effect, low, high = (math.expm1(each) for each in (tests.centre, *tests.interval(0.05)))
        streams.append(figures)
        lines.append(Line(kind, figures.pairs, figures.sd, effect, low, high, seconds))
    one, other = streams
    ratio, low, high = ratio_of_deviations(other.differences, one.differences)
    held = agreement("arm", one, other)
    apart = f"the effects differ by {_percent(held.low or 0.0)} to {_percent(held.high or 0.0)} (95%)"
    return Finding((lines[0], lines[1]), ratio, low, high, apart)


def show(name: str, findings: Mapping[str, Finding]) -> str:
    """Return a table of a workload's metrics, at 80 columns."""
    text = [f"{name:<30}{'pairs':>6}{'sd':>9}{'effect (95%)':>26}{'s a block':>9}"]
    for metric, finding in findings.items():
        for line in finding.lines:
            effect = f"{_percent(line.effect)} ({_percent(line.low)} to {_percent(line.high)})"
            label = f"{metric}, {line.kind}"
            text.append(f"{label:<30}{line.pairs:>6}{line.sd:>9.4f}{effect:>26}{line.seconds:>9.1f}")
        word = "met" if finding.ratio <= TARGET else "MISSED"
        text.append(
            f"  interleaved / sequential sd: {finding.ratio:.2f} ({finding.low:.2f} to {finding.high:.2f}),"
            f" target at most {TARGET:.2f} -> {word}"
        )
        said = f"{finding.agreement}; {finding.sooner:.3g} times less time for as much precision"
        text += textwrap.wrap(said, 80, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(text)


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}%"


def parts(blocks: int) -> Iterator[tuple[Kind, int]]:
    """Yield the designs and their numbers of blocks: each begins a part as often as the other, A B B A A B."""
    count = -(-blocks // PART)
    sizes = [blocks * (number + 1) // count - blocks * number // count for number in range(count)]
    for number, size in enumerate(sizes):
        yield from zip(KINDS if number % 2 == 0 else reversed(KINDS), repeat(size))


def study(name: str, kind: Kind, blocks: int) -> Study:
    """Return the comparison of a workload under a design."""
    policy, parameters = WORKLOADS[name]
    return parse(
        f'format = 1\nname = "{name}-{kind}"\npolicies = ["base", "{policy}"]\nmethod = "fixed-n"\n'
        f'[[workload]]\nname = "{name}"\nparameters = {{ {parameters} }}\ndelivery = {{ share = 0.8 }}\n'
        f'[design]\nkind = "{kind}"\n[budget]\nblocks = {blocks}\n',
        "the benchmark of interleaved blocks",
    )


def take(run: Run, collected: Collected) -> None:
    """Add what a run measured: the usable pairs of the metric that it judges, and of the server's CPU time."""
    (cell,) = run.opened.cells
    arm = next(arm.name for arm in cell.arms if arm.name != cell.baseline)
    collected.seconds += [block.seconds for block in run.blocks if block.seconds and block.state == "complete"]
    beside = (each for each in discover()[cell.workload].metrics if each.name == BESIDE)
    for metric in (cell.metric, *beside):
        pairs = Pairs(Contrast(cell.id, arm, cell.baseline, metric, copies=cell.copies))
        collected.pairs[metric.name] += [
            (pair.baseline, pair.arm)
            for block in run.blocks
            for pair in pairs.take(block)
            if pair.baseline is not None and pair.arm is not None
        ]


def measure(name: str, blocks: int, results: Path, say: Say) -> dict[str, Finding]:
    """Run both designs in turns; what each metric shows. Raises HugewiseError, TooFewError, KeyboardInterrupt."""
    collected = {kind: Collected() for kind in KINDS}
    for kind, size in parts(blocks):
        folder = session.run(study(name, kind, size), results, calibrating=True)
        run = folder.read()
        if run.closed is None:  # the session took the interrupt for itself
            raise KeyboardInterrupt
        take(run, collected[kind])
        say(f"{name}: {size} {kind} blocks in {folder.path}")
    return {metric: found(metric, *collected.values()) for metric in collected[KINDS[0]].pairs}


def main(blocks: int = BLOCKS, names: Sequence[str] = tuple(WORKLOADS), results: Path = BUILD / "interleaved") -> int:
    """Measure and print. Returns 1 where nothing could be measured, else 0: a busy machine is no failure."""
    print(f"Pairs of interleaved blocks and of blocks in sequence, {blocks} of each, in turns")
    shown = 0
    for name in names:
        try:
            findings = measure(name, blocks, results, lambda text: print(text, file=sys.stderr))
        except (HugewiseError, TooFewError) as error:
            print(f"{name}: left out: {error}")
            continue
        print(show(name, findings), flush=True)
        shown += 1
    return 0 if shown else 1


def asked(argv: Sequence[str]) -> tuple[int, Sequence[str]]:
    """Return how many blocks a design gets, and the workloads."""
    parser = argparse.ArgumentParser(prog="python -m bench.interleaved")
    parser.add_argument("--short", action="store_true", help=f"{SHORT} blocks a design, for a look")
    parser.add_argument("--blocks", type=int, default=0, help=f"blocks a design ({FEWEST} or more; {BLOCKS})")
    parser.add_argument("workload", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (all)")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.workload if name not in WORKLOADS]:
        parser.error(f"{', '.join(unknown)}: known are {', '.join(WORKLOADS)}")
    blocks = given.blocks or (SHORT if given.short else BLOCKS)
    if blocks < FEWEST:
        parser.error(f"{blocks} blocks are too few: {FEWEST} or more")
    return blocks, given.workload or tuple(WORKLOADS)


if __name__ == "__main__":
    sys.exit(main(*asked(sys.argv[1:])))
