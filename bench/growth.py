"""Measure the cost of an attempt in a run with few attempts, and in one with many: the CPU time of a block.

Two runs of recorded attempts, each conducted by a process of its own, take turns block by block. An attempt is drafted,
held against the earlier ones, stored, observed and shown as in any run. What is not measured is the workload, the
statistics (methods that never decide) and the opening of a session, which reads the run once.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import msgspec

from hugewise.attempt import runner
from hugewise.attempt.context import AttemptState, Group, RunContext
from hugewise.cli.progress import show_progress
from hugewise.model.metric import COMMON
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt, Block, DeliveryThreshold, Trial, commitment
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.session import progress
from hugewise.session.conductor import Conductor
from hugewise.stats.method import Contrast, Decision
from hugewise.store.folder import RunFolder
from hugewise.store.log import sealed
from hugewise.store.records import AttemptStored, Begun, BlockClosed, BlockOpened, Opened, Record
from hugewise.study.load import parse

FEW, MANY = 100, 20_000
ROUNDS, BLOCKS = 40, 4
TARGET = 1.1
ARMS = ("base", "thp")
SEED = bytes(16)
STUDY = 'format = 1\nname = "growth"\npolicies = ["base", "thp"]\n[[workload]]\nname = "chase"\n'
RECORDED = Path(__file__).parent / "recorded"
ATTEMPT = msgspec.json.decode((RECORDED / "attempt.json").read_bytes(), type=Attempt)
OUTPUTS = ("events.jsonl", "spec.json")
SAME = ("digest",)


class Costs(NamedTuple):
    """CPU milliseconds an attempt, by round."""

    few: list[float]
    many: list[float]


@dataclass
class Endless:
    """A method that never decides: statistics are not what is measured."""

    contrast: Contrast
    planned: int = 10**9
    name: str = "none"

    def observe(self, block: Block) -> Decision:
        return self.decision()

    def decision(self) -> Decision:
        return Decision("continue", None, "undecided", "")


def recorded(block: int, arm: str, order: int, moment: float) -> Attempt:
    """Return the recorded attempt, as if it had been made of `arm` in `block`. Its knobs are those of its arm."""
    knobs = {path: value if arm == "thp" else value.replace("always", "never") for path, value in ATTEMPT.knobs.items()}
    changes: dict[str, Any] = {"block": block, "arm": arm, "baseline": arm == "base", "policy": arm, "order": order}
    return msgspec.structs.replace(
        ATTEMPT, **changes, knobs=knobs, started=moment, ended=moment + 0.5, facts={"digest": "a"}
    )


def cell() -> Cell:
    def arm(name: str) -> Arm:
        treatment = Treatment(policy=name, mechanism="system", target=PageTarget("any", 4096))
        return Arm(name, cast("Any", None), treatment)

    return Cell(
        id=ATTEMPT.cell,
        workload=cast("Any", None),
        values={},
        metric=COMMON[0],
        baseline="base",
        arms=tuple(arm(name) for name in ARMS),
        timeout=1.0,
        delivery=DeliveryThreshold(0.95, 0.01),
        cpus=None,
    )


def write(results: Path, attempts: int) -> RunFolder:
    """Write a run with so many attempts, which was interrupted."""
    study = parse(STUDY, "growth.toml")
    folder = RunFolder.create(results, study.name, study_json=msgspec.json.encode(study), study_toml=None, seed=SEED)
    known: dict[str, Any] = {"host": {}, "versions": {}, "settings": {}, "cells": (), "left_out": ()}
    known |= {"run": folder.run, "study": study.name, "mechanism": "system", "boot_id": ATTEMPT.boot_id}
    folder.append(Opened(t=0.0, digest=study.digest, seed_hash=commitment(SEED), **known))
    head = RunFolder(folder.path).read().hash or ""
    with (folder.path / "run.jsonl").open("ab") as log:
        for block in range(1, attempts // 2 + 1):
            records: list[Record] = [BlockOpened(t=block, block=block, cell=ATTEMPT.cell, session=1, arms=ARMS)]
            for order, arm in enumerate(ARMS):
                place = folder.path / "attempts" / f"b{block:05d}-{order}-{arm}-1"
                place.mkdir()
                output(place)
                attempt = recorded(block, arm, order, block + order * 0.4)
                text = msgspec.json.format(msgspec.json.encode(attempt), indent=1)
                (place / "attempt.json").write_bytes(text)
                digest = hashlib.sha256(text).hexdigest()
                records += [
                    Begun(t=block, block=block, arms=[arm], number=1),
                    AttemptStored(t=attempt.ended, attempt=place.name, digest=digest),
                ]
            for record in (*records, BlockClosed(t=block + 0.9, block=block, state="complete")):
                line, head = sealed(msgspec.json.encode(record), head)
                log.write(line + b"\n")
    return folder


def output(place: Path) -> None:
    for name in OUTPUTS:
        shutil.copyfile(RECORDED / name, place / name)


def replayed(bench: RunContext, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
    """Do what `runner.attempt` does of a trial, without the machine's part."""
    work = AttemptState(arm, trial, number, bench.folder.draft(f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"))
    work.driver = cast("Any", SimpleNamespace(reading=SimpleNamespace(same=SAME)))
    output(work.draft)
    group = Group(bench, cell, [work])
    runner.store(group)
    return group.stored[0]


def work(path: Path, turns: Connection) -> None:
    """Conduct the run; after each message so many blocks, and what they cost is answered."""
    folder, whole = RunFolder(path), cell()
    run = folder.read()
    bench = RunContext(
        host=cast("Any", None),
        boarding=cast("Any", None),
        study=run.study,
        settings=cast("Any", None),
        folder=folder,
        session=1,
        boot_id=ATTEMPT.boot_id,
        pools={},
    )
    bench.earlier[whole.id] += run.attempts
    methods = [Endless(Contrast(whole.id, "thp", "base", COMMON[0]))]
    left, since = 0, 0.0
    made = {
        "attempt": replayed,
        "stored": lambda _, work: recorded(work.trial.block, work.arm.name, work.trial.order, time.time()),
    }
    with mock.patch.dict(vars(runner), made), show_progress(io.StringIO()) as show:

        def listener(event: progress.Event) -> None:
            nonlocal left, since
            show(event)
            if isinstance(event, progress.BlockEnded):
                left -= 1
                if left <= 0:
                    turns.send((time.process_time() - since) * 1e3)
                    left = turns.recv()
                    if not left:
                        raise SystemExit
                    since = time.process_time()

        Conductor(bench, run, [whole], methods, SEED, listener).conduct()


def measure(
    results: Path, few: int = FEW, many: int = MANY, rounds: int = ROUNDS, tell: Callable[[str], object] = print
) -> Costs:
    """Measure both runs in turns; the first round warms them up and is left out."""
    context, costs = get_context("spawn"), Costs([], [])
    pipes, workers = [], []
    for attempts in (few, many):
        tell(f"a run with {attempts:,} attempts is written and read")
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(write(results / str(attempts), attempts).path, theirs))
        worker.start()
        theirs.close()
        ours.recv()  # its first block is done
        pipes.append(ours)
        workers.append(worker)
    for turn in range(rounds + 1):
        for pipe, cost in list(zip(pipes, costs, strict=True))[:: 1 if turn % 2 else -1]:
            pipe.send(BLOCKS)
            took = pipe.recv()
            if turn:
                cost.append(took / BLOCKS / len(ARMS))
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(0)
        worker.join()
    return costs


def show(costs: Costs) -> str:
    """Return medians, the ratio by round with its spread, and the target, at 80 columns."""
    ratios = [many / few for few, many in zip(*costs, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    few, many = (statistics.median(cost) for cost in costs)
    word = "met" if ratio <= TARGET else "MISSED"
    return (
        f"CPU ms an attempt: {few:.3f} at {FEW:,} attempts, {many:.3f} at {MANY:,}\n"
        f"many / few: {ratio:.2f} (quartiles {low:.2f} to {high:.2f}), target at most {TARGET} -> {word}"
    )


def main() -> int:
    """Measure and print: a busy machine is no failure."""
    print("The cost of an attempt in a run that grows")
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        print(show(measure(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
