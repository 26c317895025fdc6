"""One run, block after block, to its last record, whatever happens.

The conductor decides the order of blocks and attempts. It calls `draw_order` for block k when block k-1 is closed, the
runner for one attempt at a time, and the methods for the comparisons that remain. All state is in the run's folder, and
resuming reads it.

A comparison has no verdict before a number of pairs that follows from its share of the error rate (`stats.power`).
Where the time does not suffice for so many pairs of every open comparison, the last ones of the study wait until the
others are decided. The choice depends on the total time of blocks and their counts alone, never on the times of a
single arm or their spread: the time of a block is the same whichever label each of its attempts has, so that the coin's
test of each comparison stays exact. A comparison that waits keeps its share of the error rate, and is undecided unless
its turn comes again.

Cells in which no attempt ever succeeds are given up: they tell nothing of the policies, and take others' time.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hugewise.analysis.budget import more_time
from hugewise.attempt import runner
from hugewise.attempt.context import Disturbed, RunContext
from hugewise.errors import AttemptLostError, HugewiseError, MachineError, ProbeError
from hugewise.machine.machine import Drift
from hugewise.model.design import interleaved
from hugewise.model.host import CLOCK, Clock
from hugewise.model.results import DECIDED
from hugewise.model.trial import (
    Attempt,
    Block,
    BlockState,
    Trial,
    arm_of,
    at_fault,
    draw_order,
    draw_some,
    draw_turns,
    labels,
)
from hugewise.plan.arms import Arm
from hugewise.plan.memory import due
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration
from hugewise.session import progress
from hugewise.session.identity import differing
from hugewise.stats.fixed import FixedN
from hugewise.stats.method import Method
from hugewise.stats.power import least_pairs
from hugewise.stats.screening import Screened
from hugewise.stats.sequential import Sequential
from hugewise.store.folder import RunFolder
from hugewise.store.records import Begun, BlockClosed, BlockOpened, Closed, Lost, Noted, OpenBlock, Run, Unstarted
from hugewise.study.study import Study

_SETTLED = 3  # blocks of each cell after which the time of a block is known
_SLOW = 1.25  # times the usual time of a block: first blocks start programs and fill caches
_UNKNOWN = 2.0  # the same while the blocks of a cell are not measured, and taken for those of the others
_SPARE = 1  # pairs beyond the least: the scores of real data can take one more
_RECENT = 5  # blocks of a cell that its time is known from


class Open(NamedTuple):
    """A comparison without a verdict: `arm` against the baseline of `cell`, which have `pairs` complete pairs."""

    cell: Cell
    arm: str
    pairs: int


class _Took(NamedTuple):
    seconds: float
    attempts: int


@dataclass
class BudgetCheck:
    """Takes in every closed block. `asked`: whether a command line began the run, so that its options are the cure."""

    study: Study
    methods: Sequence[Method]
    asked: bool
    _took: defaultdict[str, deque[_Took]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=_RECENT)))
    _told: bool = False

    def observe(self, block: Block) -> None:
        """Take in the time of a complete block."""
        if block.state == "complete" and block.seconds is not None and block.attempts:
            self._took[block.cell].append(
                _Took(block.seconds, len(block.arms) or len({a.label for a in block.attempts}))
            )

    def measured(self, cell: Cell) -> bool:
        """Tell whether a block of this cell has been timed."""
        return cell.id in self._took

    def seconds(self, cell: Cell, arms: int) -> float:
        """Estimate the seconds of a block with the baseline and `arms` arms, from the last blocks of the cell, or of
        all cells while the cell has none; 0.0 before any block.
        """
        known = self._took.get(cell.id) or [one for several in self._took.values() for one in several]
        if not known:
            return 0.0
        total = sum(one.seconds for one in known)
        if cell.together and not interleaved(cell.kind):  # all arms run at once
            return total / len(known)
        attempts = cell.copies * (1 + arms if cell.at_most is None else min(1 + arms, cell.at_most))
        return total / sum(one.attempts for one in known) * attempts

    def waiting(self, comparisons: Sequence[Open], left: float) -> tuple[Open, ...]:
        """Return the open `comparisons` that wait because the `left` seconds do not suffice for verdicts on all: the
        last in the study's order. Empty where there is room for all, or for none.
        """
        if self.study.method != "sequential" or self.study.budget.time is None or self.least() is None:
            return ()
        kept, room = [*comparisons], left * self._doubt(comparisons)
        while kept and self._needed(kept) > room:
            kept.pop()
        return tuple(comparisons[len(kept) :]) if kept else ()

    def least(self, cell: Cell | None = None) -> int | None:
        """Return the fewest pairs after which any comparison, or any of the `cell`, is decided; None where that is not
        known, or never.
        """
        if self.study.method not in ("sequential", "fixed-n"):
            return None
        every = [
            least_pairs(method.alpha, method.planned, method.contrast.copies)
            if isinstance(method, Sequential)
            else method.planned
            for method in self.methods
            if isinstance(method, Sequential | FixedN) and method.contrast.metric.better != "neutral"
            if cell is None or method.contrast.cell == cell.id
        ]
        return min((one for one in every if one is not None), default=None)

    def told(self, comparisons: Sequence[Open], late: Sequence[Open], left: float) -> str | None:
        """Return a line, once, with the time that would do: which of the open `comparisons` wait (`late`), or that the
        `left` seconds suffice for none. None where there is room for all.
        """
        least, time = self.least(), self.study.budget.time
        if time is None or least is None or self._told or not comparisons:
            return None
        if late:
            self._told = True
            names = ", ".join(f"{one[0].cell.id} ({', '.join(each.arm for each in one)})" for one in _by_cell(late))
            return (
                f"the time of {format_duration(time)} has no room for verdicts on all comparisons: {names}"
                f" {'waits' if len(late) == 1 else 'wait'} until the others are decided"
                f" (for all: {more_time(time - left + self._needed(comparisons), asked=self.asked)})"
            )
        first = comparisons if self.study.method == "fixed-n" else comparisons[:1]
        if not any(self.measured(one.cell) for one in first) or self._needed(first, 0) <= left * self._doubt(
            comparisons
        ):
            return None
        self._told = True
        round_, done = self._round(comparisons), max(one.pairs for one in comparisons)
        pairs = done + int(left / round_) * comparisons[0].cell.copies
        several = f"{pairs} pair{'' if pairs == 1 else 's'}"
        needed = time - left + math.ceil((least - done) / comparisons[0].cell.copies) * round_
        fits = f"about {several} of each comparison fit into the time of {format_duration(time)}"
        return f"{fits}, and a verdict takes at least {least}: {more_time(needed, asked=self.asked)}"

    def _doubt(self, comparisons: Sequence[Open]) -> float:
        # factor by which a block may turn out faster than the first blocks
        fewest = min((len(self._took.get(one.cell.id, ())) for one in comparisons), default=0)
        return _UNKNOWN if fewest == 0 else _SLOW if fewest < _SETTLED else 1.0

    def _round(self, comparisons: Sequence[Open]) -> float:
        return sum(self.seconds(several[0].cell, len(several)) for several in _by_cell(comparisons))

    def _needed(self, comparisons: Sequence[Open], spare: int = _SPARE) -> float:
        """Return the seconds until each of these comparisons has the pairs that a verdict takes."""
        total = 0.0
        for several in _by_cell(comparisons):
            cell = several[0].cell
            arms = len(several) + sum(arm.name in self.study.unjudged for arm in cell.arms)
            pairs = max(0, (self.least(cell) or 0) + spare - min(one.pairs for one in several))
            share = 1.0 if cell.at_most is None else max(1.0, arms / (cell.at_most - 1))  # blocks that a pair takes
            total += math.ceil(pairs / cell.copies) * share * self.seconds(cell, arms)
        return total


def _by_cell(comparisons: Sequence[Open]) -> list[list[Open]]:
    found: dict[str, list[Open]] = {}
    for one in comparisons:
        found.setdefault(one.cell.id, []).append(one)
    return list(found.values())


_MOST_FAILURES = 3
"""Number of blocks with only failed attempts after which a cell counts as unmeasurable here."""


@dataclass
class Failing:
    """Successes of cells in any block of the run, and failures since the session began: a resumed run tries again. A
    cell that has had a success is never given up: an outage ends.
    """

    _succeeded: set[str] = field(default_factory=set)
    _blocks: Counter[str] = field(default_factory=Counter)
    _arms: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # arms that were tried
    _last: dict[str, str] = field(default_factory=dict)  # failure of each cell
    _given_up: dict[str, str] = field(default_factory=dict)  # cells, each with why
    _least: dict[str, int] = field(default_factory=dict)  # blocks of cells that were tried once more, with those

    def __contains__(self, cell: str) -> bool:
        """Return whether the cell is given up."""
        return cell in self._given_up

    def observe(self, block: Block, *, now: bool) -> None:
        """Take a block into account; `now`: it was made in this session, and not read of the run before."""
        counted = [attempt for attempt in block.attempts if attempt.state in {"accepted", "failed"}]
        if any(attempt.state == "accepted" for attempt in counted):
            self._succeeded.add(block.cell)
        if not now or block.state != "complete":
            return
        self._blocks[block.cell] += 1
        for attempt in counted:
            self._arms[block.cell].add(attempt.arm)
            self._last[block.cell] = attempt.reason or "no reason is known"

    def give_up(self, cell: str, arms: Iterable[str]) -> str | None:
        """Return why the cell is given up, or None. A cell is given up when each of these arms failed whenever
        tried.
        """
        hopeless = self._blocks[cell] >= self._least.get(cell, _MOST_FAILURES) and {*arms} <= self._arms[cell]
        if not hopeless or cell in self._succeeded:
            return None
        told = f"every attempt failed in the {self._blocks[cell]} blocks of {cell}; the last: {self._last[cell]}"
        self._given_up[cell] = told
        return told

    def again(self) -> bool:
        """Give each cell that was given up one more block, once, as the cause may be over; return whether any has
        one.
        """
        if self._least or not self._given_up:
            return False
        self._least = {cell: self._blocks[cell] + 1 for cell in self._given_up}
        self._given_up.clear()
        return True

    def told(self) -> str:
        """Return each cell that is given up, and why."""
        return "; ".join(self._given_up.values())


# After this many blocks in a row that do not count, something keeps interfering: the run stops and says so.
_PATIENCE = 5
_COUNTS = ("accepted", "failed")


@dataclass
class Conductor:
    """Asks for blocks until every comparison is decided or the time is up. `run` is what there is of it already."""

    bench: RunContext
    run: Run
    cells: Sequence[Cell]
    methods: Sequence[Method]
    seed: bytes
    listener: progress.Listener
    # Sums that the next block is decided from, so that a block costs the same however many were before it.
    _start: float = 0.0
    _last: int = 0
    _cure: str | None = None  # for the last failure to start
    _complete: Counter[str] = field(default_factory=Counter)
    _pairs: Counter[tuple[str, str]] = field(default_factory=Counter)  # by cell and arm
    _waiting: frozenset[tuple[str, str]] = frozenset()  # cell and arm
    _failing: Failing = field(default_factory=Failing)
    _in_session: Counter[str] = field(default_factory=Counter)
    _budget: BudgetCheck = field(init=False)

    def __post_init__(self) -> None:
        self._budget = BudgetCheck(self.study, self.methods, asked=bool(self.run.opened.command))

    @property
    def study(self) -> Study:
        """The study of this run."""
        return self.bench.study

    @property
    def folder(self) -> RunFolder:
        return self.bench.folder

    @property
    def clock(self) -> Clock:
        """Wall time for display, and time since boot for budgets and pauses."""
        return self.folder.clock or CLOCK

    def conduct(self) -> Closed | None:
        """Run blocks until nothing is open or the time is up; returns the last record (already written).

        None when the statistical session is over (the study's pairs per session) and the run goes on in a new one.
        """
        self._start = self.clock.up() - self.run.active_seconds
        for block in self.run.blocks:
            self._observe(block, now=False)
        done, planned = self._progress()
        time, decided = self.study.budget.time, self._decided()
        self.listener(progress.Started(self.folder.run, str(self.folder.path), planned, done, time, *decided))
        if self.run.left_open is not None:
            self._take_up(self.run.left_open)
        useless = 0
        while cells := self._open_cells():
            cell = due(cells, {cell.id: cell.copies * self._complete[cell.id] for cell in cells})
            if self._late(cell):
                return self._close("time is up")
            if self._futile():
                spared = format_duration(self._time_left())
                told = f"ended {spared} before its time: the pairs that fit into it would hardly change the answer"
                self.listener(progress.Message(told))
                return self._close("finished", told)
            if all(map(self._session_over, cells)):
                return None
            block = self._new_block(cell)
            if self._undecided(cell) and (why := self._failing.give_up(cell.id, (arm.name for arm in cell.arms))):
                self._note(f"{why}: the cell is given up")
            useless = 0 if block.state == "complete" else useless + 1
            hopeless = useless and not self._complete and not any(self._open_arms(each) for each in self.cells)
            if useless == _PATIENCE or hopeless:
                cure = "end what interferes" if self._cure is None or block.state == "disturbed" else self._cure
                raise HugewiseError(
                    f"{useless} blocks in a row do not count; the last: {block.reason}",
                    hint=f"{cure}; then: hugewise resume {self.folder.path}"
                    + ("" if cure != self._cure else ", or a new run where that changes the study"),
                )
        if self.cells and all(cell.id in self._failing for cell in self.cells):
            raise HugewiseError(
                self._failing.told(),
                hint=f"mend it; then: hugewise resume {self.folder.path}, or a new run where that changes the study",
            )
        return self._close("finished")

    def _close(self, state: Literal["finished", "time is up"], early: str = "") -> Closed:
        if self.bench.backing is not None and (cost := self.bench.backing.said()) is not None:
            self._note(cost)
        record = Closed(t=self.clock.wall(), state=state, seed=self.seed.hex(), early=early)
        self.folder.append(record)
        return record

    def _session_over(self, cell: Cell) -> bool:
        pairs = self.study.sessions.pairs
        return pairs is not None and self._in_session[cell.id] * cell.copies >= pairs

    def _open_cells(self) -> list[Cell]:
        """Return the cells that are not decided; when none is left, once more those that were given up."""
        self._share_time()
        cells = [cell for cell in self.cells if self._open_arms(cell)]
        if cells or all(cell.id in self._failing for cell in self.cells) or not self._failing.again():
            return cells
        self._share_time()
        return [cell for cell in self.cells if self._open_arms(cell)]

    def _open_arms(self, cell: Cell) -> list[Arm]:
        """Return the undecided arms that do not wait for others; unjudged arms only beside a judged one."""
        open_ = {method.contrast.arm for method in self._undecided(cell)}
        arms = [arm for arm in cell.arms if arm.name in open_ and (cell.id, arm.name) not in self._waiting]
        judged = any(arm.name not in self.study.unjudged for arm in arms)
        return arms if judged or not self._waiting else []

    def _undecided(self, cell: Cell) -> list[Method]:
        if cell.id in self._failing:
            return []
        watching = [method for method in self.methods if method.contrast.cell == cell.id]
        return [method for method in watching if method.decision().status == "continue"]

    def _remaining(self, cell: Cell) -> int:
        pairs = max((method.planned for method in self._undecided(cell)), default=0)
        return max(0, math.ceil(pairs / cell.copies) - self._complete[cell.id])

    def _progress(self) -> tuple[int, int]:
        """Return the blocks that count, and those that are planned in all, as far as the time has room for them."""
        done, left = self._complete.total(), sum(self._remaining(cell) for cell in self.cells)
        wanted = sum(self._remaining(cell) * self._expected(cell) for cell in self.cells)
        if done and wanted > self._time_left():
            left = math.ceil(left * self._time_left() / wanted)
        return done, done + left

    def _observe(self, block: Block, *, now: bool = True) -> None:
        self._last = max(self._last, block.number)
        for method in self.methods:  # methods check the block's state themselves: a failure to start counts in any
            method.observe(block)
        self._failing.observe(block, now=now)
        if block.state != "complete":
            return
        self._complete[block.cell] += 1
        self._in_session[block.cell] += block.attempts[0].session == self.bench.session
        self._pairs.update((block.cell, attempt.arm) for attempt in block.attempts if attempt.state in _COUNTS)
        self._budget.observe(block)

    def _expected(self, cell: Cell) -> float:
        """Return the seconds expected for the next block of `cell`, from earlier blocks, or from another cell's."""
        return self._budget.seconds(cell, len(self._open_arms(cell)))

    def _time_left(self) -> float:
        budget = self.study.budget.time
        return math.inf if budget is None else max(0.0, budget - (self.clock.up() - self._start))

    def _late(self, cell: Cell) -> bool:
        return self._expected(cell) > self._time_left() or self._time_left() == 0

    def _futile(self) -> bool:
        """Return whether the time that is left will hardly change any comparison (the study's `futility`)."""
        worth = self.study.budget.futility
        if worth is None or math.isinf(self._time_left()) or any(cell.id in self._failing for cell in self.cells):
            return False
        open_ = False
        for cell in self.cells:
            for method in self._undecided(cell):
                if method.contrast.arm in self.study.unjudged:
                    continue
                seconds = self._expected(cell)
                if not isinstance(method, Sequential | Screened) or seconds <= 0:
                    return False
                planned = method.planned - self._pairs[cell.id, method.contrast.arm]
                if not method.futile(max(0, min(int(self._time_left() / seconds) * cell.copies, planned)), worth):
                    return False
                open_ = True
        return open_

    def _to_decide(self) -> list[Open]:
        return [
            Open(cell, arm.name, self._pairs[cell.id, arm.name])
            for cell in self.cells
            for arm in cell.arms
            if arm.name not in self.study.unjudged
            and any(one.contrast.arm == arm.name and one.decision().verdict != "none" for one in self._undecided(cell))
        ]

    def _share_time(self) -> None:
        """Have the last comparisons wait where the time does not suffice for verdicts on all; report that once."""
        comparisons, left = self._to_decide(), self._time_left()
        late = self._budget.waiting(comparisons, left)
        self._waiting = frozenset((one.cell.id, one.arm) for one in late)
        if (why := self._budget.told(comparisons, late, left)) is not None:
            self.listener(progress.BudgetMessage(why))

    def _note(self, text: str) -> None:
        self.folder.append(Noted(t=self.clock.wall(), text=text))
        self.listener(progress.Message(text))

    def _left(self) -> float:
        wanted = sum(self._remaining(cell) * self._expected(cell) for cell in self.cells)
        return min(wanted, self._time_left())

    def _new_block(self, cell: Cell) -> Block:
        number = self._last + 1
        wanted = [arm.name for arm in self._open_arms(cell) if arm.name != cell.baseline]
        if cell.at_most is not None:
            wanted = draw_some(self.seed, number, wanted, cell.at_most - 1)
        wanted.append(cell.baseline)
        drawn = labels(wanted, cell.copies)
        opened = self.folder.append(
            BlockOpened(
                t=self.clock.wall(),
                block=number,
                cell=cell.id,
                session=self.bench.session,
                arms=[trial.label for trial in draw_order(self.seed, number, drawn)],
                turns=draw_turns(self.seed, number, len(drawn)) if interleaved(cell.kind) else "",
            )
        )
        return self._run_block(OpenBlock(opened), cell)

    def _take_up(self, block: OpenBlock) -> None:
        """Continue a block that was interrupted. It counts as incomplete if too much time has passed, after a reboot,
        or under other page settings.
        """
        opened, attempts = block.opened, block.attempts
        cell = next((cell for cell in self.cells if cell.id == opened.cell), None)
        began, here = self.run.began(opened.session), self.bench.boot_id
        pause, block.paused = self._pause(block), True
        turned = next((attempt.reason for attempt in attempts if attempt.state == "abandoned"), None)
        if turned is not None:
            self._end(block, "disturbed", f"turned by somebody else: {turned}")
        elif cell is None:
            self._end(block, "incomplete", "its cell is no longer part of the plan")
        elif any(boot != here for boot in (began.boot_id, *(attempt.boot_id for attempt in attempts))):
            self._end(block, "incomplete", "the machine was rebooted")
        elif changed := [*differing(began.settings, self.bench.settings.initial)]:
            self._replace(block, f"page settings were changed before it went on: {'; '.join(changed)}")
        elif not 0 <= pause <= self.study.window:  # a clock that stands before the block tells nothing
            told = f"for {pause:.0f} s" if pause >= 0 else "for an unknown time: the clock is behind its records"
            self._end(block, "incomplete", f"broken off {told} (window: {self.study.window:g} s)")
        elif cell.together and any(attempt.state in _COUNTS for attempt in attempts):
            self._end(block, "incomplete", "broken off between attempts that ran at the same time")
        else:
            self._run_block(block, cell)

    def _pause(self, block: OpenBlock) -> float:
        """Return the seconds since the block's last record, in the same boot."""
        if block.up is not None:
            return self.clock.up() - block.up
        # For a run that kept no other clock.
        return self.clock.wall() - max((attempt.ended for attempt in block.attempts), default=block.opened.t)

    def _replace(self, block: OpenBlock, why: str) -> None:
        """End a block that is replaced: it is lost to the arms of which an attempt was under way."""
        for labelled in dict.fromkeys(block.broken_off()):
            self._lost(block, labelled, f"it was under way when hugewise ended, and {why}")
        self._end(block, "incomplete", why)

    def _lost(self, block: OpenBlock, labelled: str, reason: str) -> None:
        self._record(block, Lost(t=self.clock.wall(), block=block.opened.block, arm=labelled, reason=reason))

    def _run_block(self, block: OpenBlock, cell: Cell) -> Block:
        number, given_up = block.opened.block, {*block.unstarted, *block.lost}
        try:
            pad, layout = self.study.environment_pad, self.study.design
            places = max(1, len(layout.slots))
            trials = draw_order(self.seed, number, block.opened.arms, places, pad_max=pad, cell=cell.id)
            if cell.together and not given_up:
                self._try_together(block, cell, trials)
            elif not cell.together:
                for trial in (trial for trial in trials if trial.label not in given_up):
                    self._try(block, cell, trial)
        except Disturbed as disturbed:
            self.listener(progress.Message(f"block {number} is disturbed: {disturbed}"))
            ended = self._end(block, "disturbed", f"turned by somebody else: {disturbed}")
            self._yield_to(disturbed.drift)
            return ended
        return self._end(block, "complete", None)

    def _end(self, block: OpenBlock, state: BlockState, reason: str | None) -> Block:
        number, cell = block.opened.block, block.opened.cell
        if without := [*block.unstarted.items(), *block.lost.items()]:
            same: dict[tuple[str, str], list[str]] = {}  # the arms that one sentence is said of
            for arm, why in without:
                same.setdefault(("is lost" if arm in block.lost else "could not be started", why), []).append(
                    arm_of(arm)
                )
            said = "; ".join(f"{' and '.join(dict.fromkeys(arms))} {what}: {why}" for (what, why), arms in same.items())
            reason = f"{reason}; {said}" if reason else said
            if state == "complete" and not self._paired(cell, block.attempts):
                state = "incomplete"
            self.listener(progress.Message(f"block {number}: {said}"))
        end = self.folder.append(BlockClosed(t=self.clock.wall(), block=number, state=state, reason=reason))
        closed = block.closed(end)
        self._observe(closed)
        done, planned = self._progress()
        new = sum(not self._budget.measured(each) and self._remaining(each) > 0 for each in self.cells)
        open_ = functools.partial(_open, [method for method in self.methods if method.contrast.cell == cell])
        self.listener(
            progress.BlockEnded(number, cell, state, done, planned, self._left(), new, *self._decided(), open_)
        )
        return closed

    def _decided(self) -> tuple[int, int]:
        """Return the comparisons that are decided, and all that get a verdict."""
        verdicts = [verdict for method in self.methods if (verdict := method.decision().verdict) != "none"]
        return sum(verdict in DECIDED for verdict in verdicts), len(verdicts)

    def _paired(self, cell: str, attempts: Sequence[Attempt]) -> bool:
        counted = {(attempt.arm, attempt.copy) for attempt in attempts if attempt.state in _COUNTS}
        baseline = next((each.baseline for each in self.cells if each.id == cell), "")
        return any((baseline, copy) in counted for arm, copy in counted if arm != baseline)

    def _record(self, block: OpenBlock, record: Begun | Unstarted | Lost) -> None:
        self.folder.append(record)
        block.tried.append(record)

    def _could_not_start(self, block: OpenBlock, arms: Iterable[str], reason: str, *, given_up: bool = False) -> None:
        # recorded at once, so that it is kept however the run ends
        for arm in arms:
            number = block.opened.block
            self._record(block, Unstarted(t=self.clock.wall(), block=number, arm=arm, reason=reason, given_up=given_up))

    def _yield_to(self, drifts: Sequence[Drift]) -> None:
        """Accept knobs that others have changed and that were reported; a changed pool of ours ends the session."""
        self.bench.settings.acknowledge(drifts)
        ours = [f"/hugepages-{size >> 10}kB/nr_hugepages" for size in self.bench.pools]
        pools = [drift for drift in drifts if drift.path.endswith(tuple(ours))]
        if pools:
            raise HugewiseError(
                f"somebody else changed a pool of huge pages: {pools[0]}",
                hint=f"the pools are filled anew by: hugewise resume {self.folder.path}",
            )

    def _numbers(self, block: OpenBlock, arms: Sequence[str]) -> Iterator[int]:
        """Yield the tries that are left to these labels, each recorded before it is made."""
        # Numbers go on after the highest, not after the count: a try that broke off in the probe left no attempt.
        tried = max((attempt.number for attempt in block.attempts if attempt.label in arms), default=0)
        for number in range(tried + 1, self.study.attempt.retries + 2):
            self._record(block, Begun(t=self.clock.wall(), block=block.opened.block, arms=arms, number=number))
            yield number

    def _try(self, block: OpenBlock, cell: Cell, trial: Trial) -> None:
        """Attempt a trial until it counts; only what failed before its timed region is tried again. When no try is left
        the block goes on without the arm. Its own comparison, or all comparisons if it is the baseline, keep this block
        as a failure to start; the other arms have their pairs.
        """
        if any(attempt.label == trial.label and attempt.state in _COUNTS for attempt in block.attempts):
            return
        self.listener(progress.AttemptStarted(trial.block, cell.id, trial.arm))
        problem = "no attempt left"
        for number in self._numbers(block, [trial.label]):
            try:
                attempt = runner.attempt(self.bench, cell, cell.arm(trial.arm), trial, number)
            except AttemptLostError as error:
                self._lost(block, trial.label, error.message)
                return
            except (ProbeError, MachineError) as error:
                problem = self._told(error)
            else:
                block.attempts.append(attempt)
                if attempt.state in _COUNTS:
                    return
                problem = attempt.reason or problem
            self._could_not_start(block, [trial.label], problem)
        self._could_not_start(block, [trial.label], problem, given_up=True)

    def _told(self, error: HugewiseError) -> str:
        # the cure is also told if the run ends by this error
        self._cure = error.hint
        first, *rest = error.message.split("\n")
        return "\n".join([f"{first} ({error.hint})" if error.hint else first, *rest])

    def _try_together(self, block: OpenBlock, cell: Cell, trials: Sequence[Trial]) -> None:
        """Attempt all trials of a block at once, until they count. When no try is left, the block is a failure to start
        of the arms that were at fault in any try; of all arms, where a try does not tell.
        """
        arms = [(cell.arm(trial.arm), trial) for trial in trials]
        everyone = [trial.label for trial in trials]
        together = " + ".join(dict.fromkeys(trial.arm for trial in trials))
        self.listener(progress.AttemptStarted(block.opened.block, cell.id, together))
        problem, faulty = "no attempt left", dict.fromkeys(at_fault(block.attempts))
        for number in self._numbers(block, everyone):
            try:
                turns = draw_turns(self.seed, block.opened.block, len(trials)) if interleaved(cell.kind) else ""
                found = runner.run_together(self.bench, cell, arms, number, turns=turns)
            except AttemptLostError as error:
                for arm in [error.arm] if error.arm else everyone:
                    self._lost(block, arm, error.message)
                return
            except (ProbeError, MachineError) as error:
                problem = self._told(error)
                faulted = [error.arm] if isinstance(error, MachineError) and error.arm else everyone
            else:
                block.attempts.extend(found)
                if all(attempt.state in _COUNTS for attempt in found):
                    return
                faulted = at_fault(found) or everyone
                problem = next((one.reason for one in found if one.label in faulted and one.reason), problem)
            faulty.update(dict.fromkeys(faulted))
            self._could_not_start(block, faulted, problem)
        self._could_not_start(block, faulty or everyone, problem, given_up=True)


def _open(methods: Iterable[Method]) -> tuple[progress.OpenComparison, ...]:
    # a method of a fixed number of pairs has an interval only at its end
    going = [one for one in methods if isinstance(one, Sequential) and one.decision().status == "continue"]
    return tuple(
        progress.OpenComparison(
            *(one.contrast.arm, one.contrast.baseline, one.contrast.metric.name),
            *((None, None, None) if found is None else (found.ratio, found.low, found.high)),
        )
        for one in going
        for found in (one.effect(),)
    )
