"""One run from its first record to its last: opens it, asks for block after block, closes it, whatever happens.

The conductor owns order and attempts. It asks `design` for block k when block k-1 is closed, the runner for one attempt
at a time, and the methods which comparisons remain. All state is in the run's folder: resuming is reading it.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hugewise.attempt import runner
from hugewise.attempt.underway import Bench, Disturbed
from hugewise.errors import HugewiseError, MachineError, ProbeError
from hugewise.machine.drift import Drift
from hugewise.model import coin
from hugewise.model.trial import Attempt, Block, BlockState, Trial, at_fault
from hugewise.plan.plan import Arm, Cell
from hugewise.session import progress
from hugewise.stats.method import Method
from hugewise.store import runlog
from hugewise.store.runlog import RunFolder
from hugewise.study.study import Study

__all__ = ["Conductor"]

# So many blocks in a row that do not count mean that somebody or something keeps interfering: stop and say so.
_PATIENCE = 5
_COUNTS = ("accepted", "failed")


@dataclass
class Conductor:
    """Asks for blocks until every comparison is decided or the time is up."""

    bench: Bench
    cells: Sequence[Cell]
    methods: Sequence[Method]
    seed: bytes
    listener: progress.Listener
    spent_before: float = 0.0
    clock: Callable[[], float] = time.time
    _start: float = 0.0
    _blocks: list[Block] = field(default_factory=list)
    _durations: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _tried: list[runlog.Record] = field(default_factory=list)  # tries of the open block, as recorded
    _open: runlog.BlockOpened | None = None

    @property
    def study(self) -> Study:
        """The study of this run."""
        return self.bench.study

    @property
    def folder(self) -> RunFolder:
        """Where everything goes."""
        return self.bench.folder

    def conduct(self) -> runlog.Closed | None:
        """Run blocks until nothing is open or the time is up; returns the last record (already written).

        None when the statistical session is over (the study's pairs per session) and the run goes on in a new one.
        """
        self._start = self.clock() - self.spent_before
        for block in self.folder.blocks():
            self._observe(block)
        planned = sum(self._remaining(cell) for cell in self.cells) + len(self._complete())
        self.listener(
            progress.Started(
                self.folder.run, str(self.folder.path), planned, len(self._complete()), self.study.budget.time
            )
        )
        left_open = self.folder.open_block()
        if left_open is not None:
            self._take_up(*left_open)
        useless = 0
        while cells := [cell for cell in self.cells if self._open_arms(cell)]:
            counts = Counter(block.cell for block in self._complete())
            chosen = coin.next_cell([cell.id for cell in cells], counts)
            cell = next(cell for cell in cells if cell.id == chosen)
            if self._late(cell):
                return self._close("time is up")
            if self._session_over(cell):
                return None
            block = self._new_block(cell)
            useless = 0 if block.state == "complete" else useless + 1
            if useless == _PATIENCE or (useless and not self._complete() and not self._remains()):
                raise HugewiseError(
                    f"{useless} blocks in a row do not count; the last: {block.reason}",
                    hint=f"end what interferes, then: hugewise resume {self.folder.path}",
                )
        return self._close("finished")

    def _remains(self) -> bool:
        """Whether any comparison asks for more blocks."""
        return any(self._open_arms(cell) for cell in self.cells)

    def _close(self, state: str) -> runlog.Closed:
        record = runlog.Closed(
            t=self.clock(), state="finished" if state == "finished" else "time is up", seed=self.seed.hex()
        )
        self.folder.append(record)
        return record

    def _session_over(self, cell: Cell) -> bool:
        """Whether the cell that is due has all its pairs of this session: then every open cell has, or has more."""
        pairs = self.study.sessions.pairs
        here = [b for b in self._complete() if b.cell == cell.id and b.attempts[0].session == self.bench.session]
        return pairs is not None and len(here) >= pairs

    def _complete(self) -> list[Block]:
        return [block for block in self._blocks if block.state == "complete"]

    def _open_arms(self, cell: Cell) -> list[Arm]:
        """Arms that are not decided yet."""
        return [arm for arm in cell.arms if arm.name in {method.contrast.arm for method in self._undecided(cell)}]

    def _undecided(self, cell: Cell) -> list[Method]:
        watching = [method for method in self.methods if method.contrast.cell == cell.id]
        return [method for method in watching if method.decision().status == "continue"]

    def _remaining(self, cell: Cell) -> int:
        done = sum(block.cell == cell.id for block in self._complete())
        return max(0, max((method.planned for method in self._undecided(cell)), default=0) - done)

    def _observe(self, block: Block) -> None:
        self._blocks.append(block)
        for method in self.methods:  # which look at its state themselves: a failure to start counts in any
            method.observe(block)
        if block.state != "complete":
            return
        ends = [attempt.ended for attempt in block.attempts]
        if ends and len({attempt.session for attempt in block.attempts}) == 1:  # no pause between its attempts
            self._durations[block.cell].append(max(ends) - min(attempt.started for attempt in block.attempts))

    def _expected(self, cell: Cell) -> float:
        """Seconds that the next block of `cell` will take, from those before; another cell's where it had none."""
        known = self._durations.get(cell.id) or [value for values in self._durations.values() for value in values]
        return fmean(known[-5:]) if known else 0.0

    def _time_left(self) -> float:
        """Seconds of the time budget that are left; without one there is no end."""
        budget = self.study.budget.time
        return math.inf if budget is None else max(0.0, budget - (self.clock() - self._start))

    def _late(self, cell: Cell) -> bool:
        return self._expected(cell) > self._time_left() or self._time_left() == 0

    def _left(self) -> float:
        wanted = sum(self._remaining(cell) * self._expected(cell) for cell in self.cells)
        return min(wanted, self._time_left())

    def _new_block(self, cell: Cell) -> Block:
        number = max((block.number for block in self._blocks), default=0) + 1
        undecided = {arm.name for arm in self._open_arms(cell)}
        wanted = [arm.name for arm in cell.arms if arm.name in undecided or arm.name == cell.baseline]
        arms = [trial.arm for trial in coin.order(self.seed, number, wanted)]
        self._open = runlog.BlockOpened(
            t=self.clock(), block=number, cell=cell.id, session=self.bench.session, arms=arms
        )
        self.folder.append(self._open)
        return self._run_block(number, cell, arms, [])

    def _take_up(self, opened: runlog.BlockOpened, attempts: list[Attempt]) -> None:
        """Go on with a block that was broken off, unless too long ago, or by a reboot: then it counts as incomplete."""
        self._open = opened
        self._tried = [record for record in self.folder.records() if _is_try_of(record, opened.block)]
        cell = next((cell for cell in self.cells if cell.id == opened.cell), None)
        last = max((attempt.ended for attempt in attempts), default=opened.t)
        pause = self.clock() - last
        reason = None
        if cell is None:
            reason = "its cell is no longer part of the plan"
        elif any(attempt.boot_id != self.bench.boot_id for attempt in attempts):
            reason = "the machine was rebooted"
        elif pause > self.study.window:
            reason = f"broken off for {pause:.0f} s (window: {self.study.window:g} s)"
        elif cell.together and any(attempt.state in _COUNTS for attempt in attempts):
            reason = "broken off between attempts that ran at the same time"
        turned = next((attempt.reason for attempt in attempts if attempt.state == "abandoned"), None)
        if turned is not None:
            self._end(opened.block, opened.cell, "disturbed", f"turned by somebody else: {turned}", attempts)
            return
        if reason is not None or cell is None:
            self._end(opened.block, opened.cell, "incomplete", reason, attempts)
            return
        self._run_block(opened.block, cell, list(opened.arms), attempts)

    def _run_block(self, number: int, cell: Cell, arms: Sequence[str], attempts: list[Attempt]) -> Block:
        state: BlockState = "complete"
        reason = None
        drift: list[Drift] = []
        given_up, _, _ = runlog.tries(self._tried, attempts)
        try:
            pad, layout = self.study.environment_pad, self.study.design
            places = max(1, len(layout.slots))
            trials = coin.order(self.seed, number, arms, places, pad_max=pad, cell=cell.id)
            if cell.together and not given_up:
                self._try_together(cell, trials, attempts)
            elif not cell.together:
                for trial in (trial for trial in trials if trial.arm not in given_up):
                    tries = [attempt for attempt in attempts if attempt.arm == trial.arm]
                    if not any(attempt.state in _COUNTS for attempt in tries):
                        # The highest number, not how many: a try that broke off in the probe left no attempt.
                        self._try(cell, trial, attempts, max((each.number for each in tries), default=0))
        except Disturbed as disturbed:
            state, reason = "disturbed", f"turned by somebody else: {disturbed}"
            self.listener(progress.Message(f"block {number} is disturbed: {disturbed}"))
            drift = disturbed.drift
        block = self._end(number, cell.id, state, reason, attempts)
        if drift:
            self._yield_to(drift)
        return block

    def _end(self, number: int, cell: str, state: BlockState, reason: str | None, attempts: list[Attempt]) -> Block:
        unstarted, _, _ = runlog.tries(self._tried, attempts)
        if unstarted:
            said = "; ".join(f"{arm} could not be started: {why}" for arm, why in unstarted.items())
            reason = f"{reason}; {said}" if reason else said
            if state == "complete" and not self._paired(cell, attempts):
                state = "incomplete"
            self.listener(progress.Message(f"block {number}: {said}"))
        end = runlog.BlockClosed(t=self.clock(), block=number, state=state, reason=reason)
        self.folder.append(end)
        assert self._open is not None
        block = runlog.closed(end, self._open, attempts, self._tried)
        self._tried, self._open = [], None
        self._observe(block)
        done = len(self._complete())
        planned = done + sum(self._remaining(each) for each in self.cells)
        self.listener(progress.BlockEnded(number, cell, state, done, planned, self._left()))
        return block

    def _paired(self, cell: str, attempts: Sequence[Attempt]) -> bool:
        """Whether an arm and the baseline are there."""
        counted = {attempt.arm for attempt in attempts if attempt.state in _COUNTS}
        baseline = next((each.baseline for each in self.cells if each.id == cell), "")
        return baseline in counted and len(counted) > 1

    def _record(self, record: runlog.Record) -> None:
        self.folder.append(record)
        self._tried.append(record)

    def _could_not_start(self, block: int, arms: Sequence[str], reason: str, *, given_up: bool) -> None:
        """Keep what is an arm's own doing, at once: however the run ends, it is not forgotten."""
        for arm in arms:
            record = runlog.Unstarted(t=self.clock(), block=block, arm=arm, reason=reason, given_up=given_up)
            self._record(record)

    def _yield_to(self, drifts: Sequence[Drift]) -> None:
        """Others have turned knobs, and it was said: go on from there. A change of a pool of ours ends the session."""
        self.bench.settings.acknowledge(drifts)
        ours = [f"/hugepages-{size >> 10}kB/nr_hugepages" for size in self.bench.pools]
        pools = [drift for drift in drifts if drift.path.endswith(tuple(ours))]
        if pools:
            raise HugewiseError(
                f"somebody else changed a pool of huge pages: {pools[0]}",
                hint=f"the pools are filled anew by: hugewise resume {self.folder.path}",
            )

    def _try(self, cell: Cell, trial: Trial, attempts: list[Attempt], tried: int) -> None:
        """Attempt a trial until it counts; only what failed before its timed region is tried again.

        When no try is left the block goes on without the arm: the others have their pairs, and its own comparison, or
        all of them if it is the baseline, keep this block as a failure to start.
        """
        arm = cell.arm(trial.arm)
        self.listener(progress.AttemptStarted(trial.block, cell.id, arm.name))
        problem = "no attempt left"
        for number in range(tried + 1, self.study.attempt.retries + 2):
            self._record(runlog.Begun(t=self.clock(), block=trial.block, arms=[arm.name], number=number))
            try:
                attempt = runner.attempt(self.bench, cell, arm, trial, number)
            except (ProbeError, MachineError) as error:
                problem = error.message
            else:
                attempts.append(attempt)
                if attempt.state in _COUNTS:
                    return
                problem = attempt.reason or problem
            self._could_not_start(trial.block, [arm.name], problem, given_up=False)
        self._could_not_start(trial.block, [arm.name], problem, given_up=True)

    def _try_together(self, cell: Cell, trials: Sequence[Trial], attempts: list[Attempt]) -> None:
        """Attempt all trials of a block at once, until they count.

        When no try is left, it is a failure to start of the arms that were at fault in any of them; of all, where a try
        does not tell.
        """
        arms = [(cell.arm(trial.arm), trial) for trial in trials]
        everyone = [trial.arm for trial in trials]
        block, layout = trials[0].block, self.study.design
        turns = None
        if layout.kind == "crossover":
            turns = coin.turns(self.seed, block, len(trials), layout.turns)
        self.listener(progress.AttemptStarted(block, cell.id, " + ".join(everyone)))
        problem, faulty = "no attempt left", dict.fromkeys(at_fault(attempts))
        tried = max((attempt.number for attempt in attempts), default=0)
        for number in range(tried + 1, self.study.attempt.retries + 2):
            self._record(runlog.Begun(t=self.clock(), block=block, arms=everyone, number=number))
            try:
                found = runner.together(self.bench, cell, arms, number, turns=turns)
            except (ProbeError, MachineError) as error:
                problem = error.message
                faulted = [error.arm] if isinstance(error, MachineError) and error.arm else everyone
            else:
                attempts.extend(found)
                if all(attempt.state in _COUNTS for attempt in found):
                    return
                faulted = at_fault(found) or everyone
                problem = next((one.reason for one in found if one.arm in faulted and one.reason), problem)
            faulty.update(dict.fromkeys(faulted))
            self._could_not_start(block, faulted, problem, given_up=False)
        self._could_not_start(block, list(faulty) or everyone, problem, given_up=True)


def _is_try_of(record: runlog.Record, block: int) -> bool:
    return isinstance(record, runlog.Begun | runlog.Unstarted) and record.block == block
