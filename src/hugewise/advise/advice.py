"""Record of an advice: the question, and the result of each phase. Pure, except for the advice's folder.

Under sudo the folder above an advice belongs to the account that called, which also runs the measured program and could
put a link in its place. So root makes the folder, holds it by a descriptor, and writes below the descriptor alone.
"""

from __future__ import annotations

import os
import shlex
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from mmap import PAGESIZE
from pathlib import Path
from secrets import token_hex
from typing import Literal, TypeVar

import msgspec

from hugewise import reading
from hugewise.advise import decision
from hugewise.advise.candidates import LeftOutCandidate, SettingCandidate
from hugewise.advise.decision import FootprintChange, MeasuredSetting
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question
from hugewise.analysis import earlier
from hugewise.beneath import DirFd
from hugewise.errors import UserError
from hugewise.files import hand_over, made_folder, own, storing, write_whole
from hugewise.model.cause import Cause
from hugewise.model.design import Kind
from hugewise.model.metric import Metric
from hugewise.model.results import ArmSummary, CellResult, Comparison, Results, Verdict
from hugewise.report.reasons import in_words
from hugewise.report.remarks import of_all_runs
from hugewise.report.sentences import arm_of

Arrived = Literal["pilot", "screening", "confirmation", "finished"]
FORMAT = 4
"""Format of the record."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a screening.

    unsure     it was over before it was clear
    best       the best candidate, where an earlier one that may be as good was chosen
    estimates  ratio to as-is by candidate, None where there is none
    failed     arms of which runs failed, with how many
    left_out   candidates that could not be run here, and why
    runner_up  the candidate that is measured beside the chosen one; empty where all others were dropped
    measured   every arm, `as-is` first
    """

    folder: str
    chosen: str
    unsure: bool
    reason: str
    better: str
    estimates: dict[str, float | None]
    dropped: dict[str, str]
    best: str = ""
    failed: dict[str, str] = {}
    left_out: dict[str, str] = {}
    runner_up: str = ""
    measured: tuple[MeasuredSetting, ...] = ()


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the confirmation of the candidate against `as-is`. Shares 0 to 1.

    memory_before, memory_after  bytes at their most, with the pool that is reserved, used or not (`reserved` of the
                                 candidate's): resident memory has no page of a pool
    huge_before, huge_after  share of memory, but for files, in pages above the base size; None where it was not seen
    measured     every arm of its run: `as-is`, the candidate, and the runner-up where one was measured beside it
    ratio        with its interval; None where failures outweigh. `failed`: arms of which runs failed, with how many
    variables    of the candidate, where they are all that it needs: a user can try it by them
    cause        the evidence behind the verdict
    decisive     a sentence on another metric that is clear where this one is not
    fails        whether more of the candidate's failed than of the program as it is: nobody is told to set it then
    """

    folder: str
    candidate: str
    verdict: Verdict
    reason: str
    metric: str
    better: str
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    memory_before: int | None
    memory_after: int | None
    huge_before: float | None
    huge_after: float | None
    reserved: int = 0
    design: Kind = "sequential"
    measured: tuple[MeasuredSetting, ...] = ()
    cause: Cause | None = None
    failed: dict[str, str] = {}
    fails: bool = False
    variables: dict[str, str] = {}
    decisive: str = ""
    earlier: str = ""
    """The earlier runs of the same question, and what all say together; empty where there are none."""

    @property
    def most(self) -> float | None:
        """The largest gain (a share) that the interval leaves; None where it is not bounded."""
        bound = self.high if self.better == "higher" else self.low
        return None if bound is None else bound - 1 if self.better == "higher" else 1 - bound

    @property
    def seen(self) -> MeasuredSetting | None:
        """The candidate with its footprint; None in records from before there were any."""
        return next((one for one in self.measured if one.name == self.candidate), None)

    @property
    def change(self) -> FootprintChange | None:
        """Change of the footprint, with an interval; None where it is not known."""
        return None if self.seen is None else self.seen.growth

    @property
    def growth(self) -> float | None:
        """Growth of the program's memory, as a share: in the typical pair, else by the most of all runs."""
        if self.change is not None:
            return self.change.ratio - 1
        if not self.memory_before or self.memory_after is None:
            return None
        return self.memory_after / self.memory_before - 1


class Advice(msgspec.Struct, kw_only=True):
    """An advice, as far as it has come; folders are those of runs, `command` is the command line that asked for it."""

    format: int = FORMAT
    question: Question
    cwd: str = ""
    command: tuple[str, ...] = ()
    arrived: Arrived = "pilot"
    seconds: float = 0.0
    pilot_folder: str = ""
    pilot: ProgramAsIs | None = None
    remarks: tuple[str, ...] = ()
    time_remark: str = ""
    """A sentence on the change that the time shows."""
    more_time: str = ""
    """Time that decides an undecided answer, as the option --time takes it; empty where that is not known."""
    tried: tuple[SettingCandidate, ...] = ()
    left_out: tuple[LeftOutCandidate, ...] = ()
    time_for_all: str = ""
    """Time that has room for the late candidates, as the option --time takes it; empty where there are none."""
    screening_folder: str = ""
    screen: Screen | None = None
    chosen: str = ""
    beside: str | None = None
    """Candidate that the confirmation measures beside the chosen one; None before that is known, empty for none."""
    confirmation_folder: str = ""
    confirmed: Confirmed | None = None

    def candidate(self, name: str) -> SettingCandidate:
        """Return the candidate of that name. Raises UserError where it was never tried: the record was edited."""
        for each in self.tried:
            if each.name == name:
                return each
        raise UserError(f"the advice speaks of {name!r}, which it has not tried", hint="ask for a new one")


def confirmed(
    folder: str,
    cell: CellResult,
    comparison: Comparison,
    measured: tuple[MeasuredSetting, ...] = (),
    design: Kind = "sequential",
) -> Confirmed:
    """Return the confirmation's result: of the comparison that it judges, and of all arms, laid out by `design`."""
    before, after = arm_of(cell, comparison.baseline), arm_of(cell, comparison.arm)
    metric: Metric = cell.metric
    return Confirmed(
        folder=folder,
        candidate=comparison.arm,
        verdict=comparison.verdict,
        reason=in_words(comparison.reason),
        metric=metric.name,
        better=metric.better,
        n=comparison.n,
        ratio=decision.finite(comparison.ratio),
        low=decision.finite(comparison.low),
        high=decision.finite(comparison.high),
        confidence=comparison.confidence,
        memory_before=_memory(before),
        memory_after=_memory(after),
        huge_before=None if before is None else _huge(before.coverage),
        huge_after=None if after is None else _huge(after.coverage),
        reserved=0 if after is None else after.pool_bytes,
        design=design,
        measured=measured,
        cause=next((one for one in cell.causes if one.arm == comparison.arm), None),
        failed=decision.failures(cell),
        fails=decision.fails(comparison, cell),
    )


def with_earlier_runs(last: Confirmed, results: Results, cell: CellResult, comparison: Comparison) -> Confirmed:
    """Return the confirmation judged with the earlier runs of its question: without their direction, no verdict."""
    every = earlier.together(results).get((cell.cell, comparison.arm, comparison.metric))
    if every is None:
        return last
    told = f"{of_all_runs(every, last.verdict)}."
    if earlier.contradicted(results, cell, comparison) is None:
        return msgspec.structs.replace(last, earlier=told)
    return msgspec.structs.replace(last, earlier=told, verdict="undecided", reason=told)


def _memory(arm: ArmSummary | None) -> int | None:
    return None if arm is None or arm.peak_bytes is None else arm.peak_bytes + arm.pool_bytes


def _huge(coverage: Mapping[str, float]) -> float | None:
    memory = {name: share for name, share in coverage.items() if name.startswith(("anon:", "hugetlb:", "shmem:"))}
    total = sum(memory.values())
    huge = sum(share for name, share in memory.items() if int(name.partition(":")[2]) > PAGESIZE)
    return huge / total if total else None


RECORD = "advice.json"

_Record = TypeVar("_Record")


class _AnyFormat(msgspec.Struct):
    """Part of a record, of an advice or of a cell in a study's, that every format has."""

    format: int = 0
    confirmation_folder: str = ""
    advice: _AnyFormat | None = None
    cells: tuple[_AnyFormat, ...] = ()

    def runs(self) -> Iterator[str]:
        """Yield the runs of its confirmations."""
        if self.confirmation_folder:
            yield self.confirmation_folder
        for below in (*self.cells, *filter(None, (self.advice,))):
            yield from below.runs()


class AdviceFolder:
    """`path` is what people call it, `place` how it is reached. `above`: of a cell, the folder of its study's."""

    def __init__(self, path: Path, above: AdviceFolder | None = None) -> None:
        self.path = path
        self._above = above
        self._held: DirFd | None = None
        self._close: Callable[[], object] = lambda: None

    @classmethod
    def new(cls, results: Path) -> AdviceFolder:
        """Return a new folder of an advice below `results`, not made yet."""
        return cls(results / "advice" / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(2)}")

    @property
    def results(self) -> Path:
        """Results folder that the advice was begun in. Raises UserError where the advice was moved elsewhere."""
        path = self.path.resolve()
        if path.parent.name != "advice":
            raise UserError(f"{self.path}: not in the folder advice of its results", hint="move it back and resume it")
        return path.parents[1]

    @property
    def place(self) -> Path:
        """The held folder; its path where it is not held."""
        if self._held is not None:
            return self._held.place
        return self.path if self._above is None else self._above.place / self.path.name

    def hold(self) -> None:
        """Hold the folder open, as root. Raises OSError."""
        if os.geteuid() == 0 and self._held is None:
            self._held = DirFd.open(self.place, self.path)
            self._close = weakref.finalize(self, self._held.close)

    def read(self, name: str, kind: type[_Record], version: int) -> _Record:
        """Read the record and hold its folder. Raises UserError for no record, or a record of another version."""
        try:
            own(self.path, f"the advice {self.path}")
            self.hold()
            written = reading.stored(self.place / name, _AnyFormat)
            if written.format == version:
                return reading.stored(self.place / name, kind)
        except (OSError, reading.UnreadableError) as error:
            cure = "name the folder that `hugewise advise` told"
            raise UserError(f"{self.path}: no advice: {error}", hint=cure) from None
        reports = "; ".join(f"hugewise report {shlex.quote(run)} --output FILES" for run in written.runs())
        raise UserError(
            f"{self.path}: an advice of the format {written.format}, and this hugewise reads the format {version}",
            hint=f"its confirmation is read: {reports}" if reports else "ask for a new advice",
        )

    def make(self) -> None:
        """Make it where it is not there yet, and hold it. Raises OSError, and UserError where it is not root's own."""
        if self._held is not None:
            return self.must_be_own()
        if not self.place.is_dir():
            if self._above is None:
                made_folder(self.path.parent, theirs=True)
            made_folder(self.place)
        self.hold()
        return self.must_be_own()

    def must_be_own(self) -> None:
        """Raise UserError where root holds it, and another account could change what is in it."""
        if self._held is not None:
            self._held.must_be_roots("advice")

    def put(self, name: str, data: bytes) -> None:
        """Have a file in it, on disk. Raises StorageError, UserError."""
        with storing(f"{name} of the advice {self.path}"):
            self.make()
            write_whole(self.place / name, data)

    def has(self, name: str) -> bool:
        """Return whether the folder of the advice has a file `name`."""
        return (self.place / name).is_file()

    def hand_over(self) -> None:
        """Give the folder to the account that called sudo, when nothing is written any more. Raises StorageError."""
        with storing(f"the advice {self.path}"):
            if self._held is not None and self._held.status().st_uid == 0:
                hand_over(self.place)
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self._close()
        self._held = None
