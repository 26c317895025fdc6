"""All checks, in processes side by side.

The result is printed as a table for each check at 80 columns, and a line with the outcome.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TextIO

import msgspec
from rich import box
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.processes import spawning
from tools.verification import (
    blocks,
    copies,
    coverage,
    dispersion,
    edges,
    enumeration,
    fleets,
    futility,
    metamorphic,
    orders,
    planning,
    power,
    replay,
    reruns,
    screenings,
    selftest,
    stopping,
)
from tools.verification.candidate import PUBLIC, Candidate, CheckResult, Task

_TASKS: dict[str, Callable[[Options, Candidate], list[Task]]] = {
    "size": lambda of, candidate: enumeration.size_tasks(candidate, of.seed, of.lengths),
    "ledger": lambda of, candidate: enumeration.ledger_tasks(candidate, of.seed, of.ledger),
    "e-process": lambda of, _: enumeration.e_process_tasks(of.seed, 10),
    "replay": lambda of, candidate: replay.tasks(candidate, of.seed, of.streams * (4 if of.long else 1), of.pairs),
    "coverage": lambda of, _: coverage.tasks(of.seed, max(of.repeats, 1000) if of.long else of.repeats),
    "metamorphic": lambda of, candidate: metamorphic.tasks(candidate, of.seed, of.relations),
    "coins": lambda of, _: orders.tasks(of.seed, of.run),
    "self-test": lambda of, candidate: selftest.tasks(candidate, of.seed),
    "blocks": lambda of, _: blocks.tasks(of.seed, of.blocks * (5 if of.long else 1), long=of.long),
    "copies": lambda of, _: copies.tasks(of.seed, 3 * of.blocks * (5 if of.long else 1)),
    "edges": lambda of, _: edges.tasks(of.seed, 3 * of.blocks * (5 if of.long else 1)),
    "stopping": lambda of, _: stopping.tasks(of.seed, max(of.stops, 1000) if of.long else of.stops),
    "spread": lambda of, _: dispersion.tasks(of.seed, of.spreads * (4 if of.long else 1)),
    "planning": lambda of, _: planning.tasks(of.seed, max(of.pilots, 1000) if of.long else of.pilots),
    "screening": lambda of, _: screenings.tasks(of.seed, 2 * of.blocks * (10 if of.long else 1)),
    "futility": lambda of, _: futility.tasks(of.seed, of.blocks * (10 if of.long else 1)),
    "fleet": lambda of, _: fleets.tasks(of.seed, of.fleets * (10 if of.long else 1)),
    "reruns": lambda of, _: reruns.tasks(of.seed, max(of.reruns, 1000) if of.long else of.reruns),
    "power": lambda of, candidate: power.tasks(candidate, of.seed, of.replays * (2 if of.long else 1)),
}
CHECKS = tuple(_TASKS)
PieceListener = Callable[[str, int, int], None]
"""Called with what was done last, how many pieces are done, and of how many."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Checks to do, and how much of each.

    seed      of all random streams; the same seed gives the same figures
    streams   null streams of each family
    pairs     in each null stream
    replays   of each published benchmark
    repeats   of each coverage case
    lengths   of the vectors whose sign vectors are all tried
    ledger    pairs of the vectors whose ledger is recomputed
    relations streams of each family for the metamorphic checks
    blocks    streams of closed blocks of each case that are played through the whole method; three times as many
              of copies and edges, twice as many screenings; futility has as many
    stops     streams of each case of the correction for stopping
    spreads   streams of each case of the test of spread
    pilots    simulated pilots of each case of planning
    fleets    simulated fleets of 10 hosts of each case of pooling
    reruns    sequences of runs begun anew, overviews, and couples of runs compared, of each case
    long      twice the replays, four times the streams and spreads, five times the blocks, ten times the screenings,
              futility and fleets, 1,000 stops, pilots, repeats and reruns, and what needs 20,000 pairs: hours of CPU
    run       a finished run's folder, for the coins
    jobs      processes; 1: this one
    """

    checks: tuple[str, ...] = CHECKS
    seed: int = 1
    streams: int = 500
    pairs: int = replay.PAIRS
    replays: int = 200
    repeats: int = 200
    lengths: tuple[int, ...] = (8, 12, 16)
    ledger: int = 1000
    relations: int = 20
    blocks: int = 100
    stops: int = 500
    spreads: int = 100
    pilots: int = 300
    fleets: int = 100
    reruns: int = 300
    long: bool = False
    run: Path | None = None
    jobs: int = 0


class SuiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the checks. `seconds` is the wall time."""

    passed: bool
    seed: int
    seconds: float
    findings: tuple[CheckResult, ...]


def verify(options: Options, listener: PieceListener | None = None, candidate: Candidate = PUBLIC) -> SuiteReport:
    """Run the checks; findings come in the order of `CHECKS`. Raises UserError for a bad option, vector or run."""
    started = time.monotonic()
    listener = listener or _silent
    pieces = _tasks(options, candidate)
    jobs = options.jobs or os.cpu_count() or 1
    found = _alone(pieces, listener) if jobs == 1 else _together(pieces, jobs, listener)
    findings = tuple(finding for some in found for finding in some)
    return SuiteReport(
        passed=all(finding.passed for finding in findings),
        seed=options.seed,
        seconds=time.monotonic() - started,
        findings=findings,
    )


def _silent(name: str, done: int, of: int) -> None:
    del name, done, of


def _tasks(options: Options, candidate: Candidate) -> list[Task]:
    unknown = set(options.checks) - set(CHECKS)
    if unknown:
        raise UserError(f"no check is called {min(unknown)}", hint=f"one of: {', '.join(CHECKS)}")
    for name in ("seed", "jobs"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name} {getattr(options, name)}: below 0", hint="give a whole number from 0 on")
    for name in (
        "streams",
        "replays",
        "repeats",
        "relations",
        "blocks",
        "stops",
        "spreads",
        "pilots",
        "fleets",
        "reruns",
    ):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: below 1", hint="give a whole number from 1 on")
    if options.run is not None:
        orders.of_run(options.run)  # errors of the folder are reported before minutes have gone by
    return [task for check in CHECKS if check in options.checks for task in _TASKS[check](options, candidate)]


def _alone(pieces: Sequence[Task], listener: PieceListener) -> list[Sequence[CheckResult]]:
    found = []
    for number, task in enumerate(pieces, 1):
        found.append(task.run())
        listener(task.name, number, len(pieces))
    return found


def _together(pieces: Sequence[Task], jobs: int, listener: PieceListener) -> list[Sequence[CheckResult]]:
    """Run the pieces in spawned processes, which share no state; the longest kinds of piece begin first."""
    begun_first = sorted(
        range(len(pieces)), key=lambda place: not pieces[place].name.startswith(("reruns", "edges", "power", "null"))
    )
    with spawning(), ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        places = {pool.submit(pieces[place].run): place for place in begun_first}
        found: dict[int, Sequence[CheckResult]] = {}
        left = set(places)
        try:
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    found[places[future]] = future.result()
                    listener(pieces[places[future]].name, len(found), len(pieces))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[place] for place in range(len(pieces))]


_MOST = 100


def show(report: SuiteReport, file: TextIO | None = None) -> None:
    """Print the report; at most 100 columns."""
    console = TextConsole(file)
    width = min(console.width, _MOST)
    for check in dict.fromkeys(finding.check for finding in report.findings):
        table = Table(title=check, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, width=width)
        for head, ratio in (("case", 37), ("seen", 20), ("required", 13)):
            table.add_column(head, ratio=ratio, overflow="fold")
        table.add_column(width=4, no_wrap=True)
        for finding in (finding for finding in report.findings if finding.check == check):
            table.add_row(finding.case, finding.seen, finding.required, "ok" if finding.passed else "FAIL")
        console.print(table, width=width)
    failed = sum(not finding.passed for finding in report.findings)
    total = len(report.findings)
    outcome = "all as required" if not failed else f"{failed} NOT as required"
    console.print(f"{total} findings, {outcome} (seed {report.seed}, {report.seconds:.0f} s)", soft_wrap=True)


def progress(file: TextIO) -> PieceListener:
    """Return a listener that prints a line for every tenth of the work."""
    console = TextConsole(file)

    def tenth(name: str, done: int, of: int) -> None:
        if done * 10 // of > (done - 1) * 10 // of:
            console.print(f"{done} of {of} done, {name} the last", soft_wrap=True)
            file.flush()

    return tenth
