"""Records of a run's log, as types, and the state that follows from them and the attempts. Pure.

`OpenBlock` decides what a block is when it is closed, for the conductor and for whoever reads the log again; `Run` is
all that a run's folder held when it was read. A `Stamp` of a file tells whether it was written since the last look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import stat_result
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import msgspec

from hugewise.model.design import Kind
from hugewise.model.guest import Backing, GuestsRecord
from hugewise.model.host import ClientHost, EpochSeconds
from hugewise.model.metric import Metric
from hugewise.model.pages import MemoryAge
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import EarlierComparison, LeftOut
from hugewise.model.trial import Attempt, Block, BlockState, DeliveryThreshold, Judged, at_fault
from hugewise.model.workload import ParameterValue
from hugewise.study.study import Study


class Stamp(NamedTuple):
    """Identity of a file's contents: tells it from another file, and from itself after a write."""

    inode: int
    size: int
    written_ns: int

    @classmethod
    def of(cls, status: stat_result) -> Self:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class ArmRecord(msgspec.Struct, frozen=True):
    """An arm as it was planned: its treatment is its identity, the mechanism included; of guests also their kernel, by
    its name in the study, and what their memory is made of. Studies give it a name of at most 64 characters.
    """

    name: Annotated[str, msgspec.Meta(max_length=256)]
    treatment: Treatment
    pool_bytes: int
    deployment: Deployment
    judged: Judged = "backing"
    kernel: str | None = None
    backing: Backing | None = None


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as it was planned: enough to analyse the run on any machine. `together`: its arms run at once; `kind`: how
    they are laid out, where it is not as the study says; `at_most`: so many take part in a block, where not all do;
    `apart`: its clients are on a host of their own; `memory_age`: what the host's memory has been through, and `memory`
    the limit of its programs in bytes, where that is part of it; `also`: the metrics that are judged beside `metric`;
    `copies`: attempts of each arm in a block.

    Raises ValueError where two arms have one name, or none is the baseline.
    """

    id: str
    workload: str
    values: Mapping[str, ParameterValue]
    metric: Metric
    baseline: str
    delivery: DeliveryThreshold
    arms: tuple[ArmRecord, ...]
    together: bool = False
    kind: Kind | None = None
    at_most: int | None = None
    apart: bool = False
    memory_age: MemoryAge = "fresh"
    memory: int | None = None
    also: tuple[Metric, ...] = ()
    copies: int = 1

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len({*names}) < len(names) or self.baseline not in names:
            raise ValueError(f"the cell {self.id} has the arms {names} and the baseline {self.baseline}")

    def metric_named(self, name: str) -> Metric:
        """Return the metric of that name, of those that are judged; the cell's own where none has it."""
        return next((metric for metric in self.also if metric.name == name), self.metric)


class _Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="record"):
    # `t` is UTC epoch seconds, for the reader; `up` seconds since that session's boot (`model.host`), None in runs that
    # were made before it was kept.

    t: EpochSeconds
    up: Annotated[float, msgspec.Meta(ge=0, lt=1e11)] | None = None


class Opened(_Record, frozen=True, kw_only=True, tag="opened"):
    """First record. A resumed run must find the same cells; `pools` are pages granted by page size in bytes.

    `withheld` says by cell why its comparisons get no verdict: decided before the first block, from the calibration.
    `cwd` is the folder in which commands run, wherever the run is resumed from.
    `format` is 2 where each line has a running hash (`store.log`), 1 in runs of before.
    `client` is the host of its own that clients are on. `command` is the command line that began the run, as words;
    empty where a program began it, and in runs that did not keep it.
    `earlier` are the runs with comparisons of this one on this host that were begun before it (`analysis.earlier`);
    None in runs that did not look for any. `earlier_shared` has these comparisons, by the run; None in runs that looked
    for the same study alone. `earlier_unread` counts the folders there that could not be read. `guests` is the
    SHA-256 of `guests.json`, where there is one, and `study_json` that of `study.json`; None in runs that did not keep
    it. `coins` is whether `fixed-n` asks the coins of the blocks too (`stats.fixed`): runs that did not are judged as
    they were. `blocks` are those that the test is declared for, where the run found that out itself.
    """

    format: int = 2
    run: str
    study: str
    digest: str
    seed_hash: str
    mechanism: str
    boot_id: str
    host: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    cells: tuple[CellRecord, ...]
    left_out: tuple[LeftOut, ...]
    pools: Mapping[int, int] = {}
    withheld: Mapping[str, str] = {}
    cwd: str = ""
    earlier: tuple[str, ...] | None = None
    earlier_shared: Mapping[str, tuple[EarlierComparison, ...]] | None = None
    earlier_unread: int = 0
    guests: str | None = None
    study_json: str | None = None
    client: ClientHost | None = None
    command: tuple[str, ...] = ()
    coins: bool = False
    blocks: int | None = None

    def __post_init__(self) -> None:
        if len({cell.id for cell in self.cells}) < len(self.cells):
            raise ValueError("two cells have one name")


class Resumed(_Record, frozen=True, kw_only=True, tag="resumed"):
    """A later statistical session of the same run.

    `settings` are the knobs that it found; None in older runs. `earlier` and the two beside it are as in `Opened`, as
    this session found them: other runs may have been begun since. None in runs that looked when they began alone.
    """

    session: int
    boot_id: str
    settings: Mapping[str, str] | None = None
    earlier: tuple[str, ...] | None = None
    earlier_shared: Mapping[str, tuple[EarlierComparison, ...]] | None = None
    earlier_unread: int = 0


class BlockOpened(_Record, frozen=True, kw_only=True, tag="block_opened"):
    """A coin was tossed: the order of the arms in this block, by their labels, and of their `turns`
    (`trial.draw_turns`).
    """

    block: int
    cell: str
    session: int
    arms: Sequence[str]
    turns: str = ""


class BlockClosed(_Record, frozen=True, kw_only=True, tag="block_closed"):
    """The block's end; only `complete` ones count."""

    block: int
    state: BlockState
    reason: str | None = None


class Begun(_Record, frozen=True, kw_only=True, tag="begun"):
    """Attempt `number` of these arms is about to begin: without a stored attempt or failure, a kill interrupted it."""

    block: int
    arms: Sequence[str]
    number: int


class Unstarted(_Record, frozen=True, kw_only=True, tag="unstarted"):
    """A try that could not start `arm` in this block; `given_up`: no try is left."""

    block: int
    arm: str
    reason: str
    given_up: bool


class Lost(_Record, frozen=True, kw_only=True, tag="lost"):
    """An attempt of `arm` of which nobody can tell whether its clock ran: it is not made again in this block."""

    block: int
    arm: str
    reason: str


class AttemptStored(_Record, frozen=True, kw_only=True, tag="stored"):
    """An attempt is part of the run, by folder name and SHA-256: on disk before the folder has its name."""

    attempt: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_=-][A-Za-z0-9._=-]*\Z")]
    digest: str


class KnobSet(_Record, frozen=True, kw_only=True, tag="knob_set"):
    """Values that attempts had for their knobs, kept once: an attempt names them by `id`, a digest of the values."""

    id: str
    values: Mapping[str, str]


class Noted(_Record, frozen=True, kw_only=True, tag="noted"):
    """Something that the reader of the report should know."""

    text: str


class Closed(_Record, frozen=True, kw_only=True, tag="closed"):
    """Last record: nothing can be added after it, so the seed is revealed. `early`: why the run ended before its
    time.
    """

    state: Literal["finished", "time is up"]
    seed: str
    early: str = ""


Record = (
    Opened | Resumed | BlockOpened | BlockClosed | Begun | Unstarted | Lost | AttemptStored | KnobSet | Noted | Closed
)


@dataclass
class OpenBlock:
    """A block that is not closed: its attempts so far, and the records of its tries.

    up      of the end of its last attempt, or of its opening
    paused  whether a session ended in it: how long it took is not known then
    """

    opened: BlockOpened
    attempts: list[Attempt] = field(default_factory=list)
    tried: list[Begun | Unstarted | Lost] = field(default_factory=list)
    up: float | None = None
    paused: bool = False

    @property
    def unstarted(self) -> dict[str, str]:
        """The arms that were given up, with the reason."""
        return {
            attempt.arm: attempt.reason for attempt in self.tried if isinstance(attempt, Unstarted) and attempt.given_up
        }

    @property
    def lost(self) -> dict[str, str]:
        """The arms with an attempt of which nobody can tell whether its clock ran, with the reason."""
        return {attempt.arm: attempt.reason for attempt in self.tried if isinstance(attempt, Lost)}

    def closed(self, end: BlockClosed) -> Block:
        """Return the ended block; attempts of an incomplete one are `abandoned`, a lost try is failed."""
        attempts, unstarted, lost = self.attempts, self.unstarted, self.lost
        records = [attempt.arm for attempt in self.tried if isinstance(attempt, Unstarted)]
        failed = dict.fromkeys([*at_fault(attempts), *records])
        if end.state != "complete":
            attempts = [msgspec.structs.replace(attempt, state="abandoned") for attempt in attempts]
        return Block(
            number=end.block,
            cell=self.opened.cell,
            state=end.state,
            reason=end.reason,
            attempts=tuple(attempts),
            arms=tuple(self.opened.arms),
            turns=self.opened.turns,
            unstarted=unstarted,
            lost=lost,
            late=tuple(arm for arm in failed if arm not in unstarted and arm not in lost),
            redone=tuple(arm for arm in dict.fromkeys(self.broken_off()) if arm not in failed and arm not in lost),
            seconds=self._seconds(end),
        )

    def _seconds(self, end: BlockClosed) -> float | None:
        if self.opened.up is not None:
            return None if self.paused or end.up is None else end.up - self.opened.up
        # For a run that kept no other clock.
        if not self.attempts or len({attempt.session for attempt in self.attempts}) > 1:
            return None
        return max(attempt.ended for attempt in self.attempts) - min(attempt.started for attempt in self.attempts)

    def broken_off(self) -> list[str]:
        """Return the arms of which an attempt was under way when hugewise ended."""
        kept = {(attempt.label, attempt.number) for attempt in self.attempts}
        found: list[str] = []
        for one, after in pairwise([*self.tried, None]):
            if isinstance(one, Begun) and not isinstance(after, Unstarted | Lost):
                # The same attempt once more: a resumed run gives it the number that it had.
                again = isinstance(after, Begun) and (one.arms, one.number) == (after.arms, after.number)
                found += [arm for arm in one.arms if again or (arm, one.number) not in kept]
        return found


@dataclass(frozen=True)
class Run:
    """Contents of a run's folder when it was read.

    path        the folder
    records     of its log, in order
    opened      the first record
    closed      the last record, None while there may be more
    study       the study as the run began with it
    attempts    all that are there, in the order in which they were stored
    blocks      those that were closed, in order
    left_open   the block that a killed run left open
    guests      what is kept of its guests; None of a run without any
    stamp       what the system said of the log before it was read
    hash        the last running hash (`store.log`); None of a run without
    chained     whether it has running hashes
    torn        whether something that is no record stands at the end of the log
    """

    path: Path
    records: tuple[Record, ...]
    study: Study
    attempts: tuple[Attempt, ...]
    blocks: tuple[Block, ...]
    left_open: OpenBlock | None
    guests: GuestsRecord | None
    stamp: Stamp
    hash: str | None = None
    chained: bool = False
    torn: bool = False

    @property
    def opened(self) -> Opened:
        first = self.records[0]
        assert isinstance(first, Opened)
        return first

    def goes_on_from(self, earlier: Run) -> bool:
        """Return whether this run continues `earlier`: the earlier records and closed blocks come first here."""
        return (
            (self.chained and earlier.chained)
            and self.records[: len(earlier.records)] == earlier.records
            and self.blocks[: len(earlier.blocks)] == earlier.blocks
        )

    @property
    def closed(self) -> Closed | None:
        return next((record for record in self.records if isinstance(record, Closed)), None)

    @property
    def sessions(self) -> int:
        return 1 + sum(isinstance(record, Resumed) for record in self.records)

    def began(self, session: int) -> Opened | Resumed:
        """Return the record with which that session began, counted from 1; that of the first where there is none."""
        found = (record for record in self.records if isinstance(record, Resumed) and record.session == session)
        return next(found, self.opened)

    @property
    def looked_last(self) -> Opened | Resumed:
        """Return the record of the last session that looked for earlier runs."""
        looked = (one for one in reversed(self.records) if isinstance(one, Resumed) and one.earlier is not None)
        return next(looked, self.opened)

    @property
    def active_seconds(self) -> float:
        """Return the seconds between begin and end of sessions; of a killed one until its last record or attempt."""
        starts = [place for place, one in enumerate(self.records) if isinstance(one, Opened | Resumed)]
        return sum(
            self._spent(number, self.records[start:end])
            for number, (start, end) in enumerate(pairwise([*starts, len(self.records)]), 1)
        )

    def _spent(self, session: int, records: Sequence[Record]) -> float:
        if (began := records[0].up) is not None:
            return max(record.up for record in records if record.up is not None) - began
        # For a session that kept only the wall clock.
        ends = [attempt.ended for attempt in self.attempts if attempt.session == session]
        return max(*(record.t for record in records), *ends, records[0].t) - records[0].t
