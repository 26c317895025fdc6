"""A run's folder: its log, its attempts, and how both survive being killed at any moment.

    results/<study>/<run-id>/
      run.jsonl      what happened, a record a line, fsynced; the first carries the hash of the seed, the last the seed
      guests.json    of a study of guests: their kernels, and how these differ (`hugewise.model.guest_record`)
      study.json     the study as it was understood (and study.toml as it was written)
      seed           the run seed, readable by its owner only, until the last record reveals it
      attempts/b00007-2-thp-1/{attempt.json, spec.json, events.jsonl, stdout, stderr}

An attempt is written into a hidden folder and renamed: it is there whole or not at all. No other state exists.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from hugewise.errors import RunError
from hugewise.files import storing
from hugewise.model.coin import commitment
from hugewise.model.guest import Backing
from hugewise.model.metric import Metric
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import LeftOut
from hugewise.model.trial import Attempt, Block, BlockState, DeliveryThreshold, Judged, at_fault
from hugewise.model.workload import ParameterValue
from hugewise.study.study import Study, stored_digest

__all__ = [
    "ArmRecord",
    "Begun",
    "BlockClosed",
    "BlockOpened",
    "CellRecord",
    "Closed",
    "Noted",
    "Opened",
    "Record",
    "Resumed",
    "RunFolder",
    "Unstarted",
    "closed",
    "tries",
]


class ArmRecord(msgspec.Struct, frozen=True):
    """An arm as it was planned: its treatment is its identity, the mechanism included; of guests also their kernel, by
    its name in the study, and what their memory is made of.
    """

    name: str
    treatment: Treatment
    pool_bytes: int
    deployment: Deployment
    judged: Judged = "backing"
    kernel: str | None = None
    backing: Backing | None = None


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as it was planned: enough to analyse the run on any machine. `together`: its arms run at once."""

    id: str
    workload: str
    values: Mapping[str, ParameterValue]
    metric: Metric
    baseline: str
    delivery: DeliveryThreshold
    arms: tuple[ArmRecord, ...]
    together: bool = False


class _Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    t: float


class Opened(_Record, frozen=True, kw_only=True, tag="opened"):
    """First record. A resumed run must find the same cells; `pools` are pages granted by page size in bytes.

    `withheld` says by cell why its comparisons get no verdict: decided before the first block, from the calibration.
    `cwd` is the folder in which commands run, wherever the run is resumed from.
    `earlier` are the runs of the same study on this host that were begun before it (`analysis.earlier`); None in runs
    that did not look for any.
    """

    format: int = 1
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


class Resumed(_Record, frozen=True, kw_only=True, tag="resumed"):
    """A later statistical session of the same run."""

    session: int
    boot_id: str


class BlockOpened(_Record, frozen=True, kw_only=True, tag="block_opened"):
    """A coin was tossed: the order of the arms in this block."""

    block: int
    cell: str
    session: int
    arms: Sequence[str]


class BlockClosed(_Record, frozen=True, kw_only=True, tag="block_closed"):
    """The block's end; only `complete` ones count."""

    block: int
    state: BlockState
    reason: str | None = None


class Begun(_Record, frozen=True, kw_only=True, tag="begun"):
    """Attempt `number` of these arms of the block is about to begin: one that leaves neither an attempt nor a record of
    its failure was under way when hugewise ended, and whose it was is known.
    """

    block: int
    arms: Sequence[str]
    number: int


class Unstarted(_Record, frozen=True, kw_only=True, tag="unstarted"):
    """A try that could not start `arm` in this block: written when it happens, so that no way of ending the run loses
    it. `given_up`: no try is left, and the block goes on without the arm.
    """

    block: int
    arm: str
    reason: str
    given_up: bool


class Noted(_Record, frozen=True, kw_only=True, tag="noted"):
    """Something that the reader of the report should know."""

    text: str


class Closed(_Record, frozen=True, kw_only=True, tag="closed"):
    """Last record: nothing can be added after it, so the seed is revealed."""

    state: Literal["finished", "time is up"]
    seed: str


Record = Opened | Resumed | BlockOpened | BlockClosed | Begun | Unstarted | Noted | Closed

_DECODER = msgspec.json.Decoder(Record)
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RunFolder:
    """One run on disk. `create` starts a new one, `open` reads an old one; neither shares state with another."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, results: Path, study: str, *, study_json: bytes, study_toml: str | None, seed: bytes) -> RunFolder:
        """A new folder `results/<study>/<run-id>/`. Raises StorageError."""
        run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        folder = cls(results / _UNSAFE.sub("-", study) / run)
        with storing(f"the run's folder {folder.path}"):
            (folder.path / "attempts").mkdir(parents=True)
            (folder.path / "study.json").write_bytes(study_json)
            if study_toml is not None:
                (folder.path / "study.toml").write_text(study_toml, encoding="utf-8")
            descriptor = os.open(folder.path / "seed", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(seed.hex())
        return folder

    @property
    def run(self) -> str:
        """The run's identity: its folder's name."""
        return self.path.resolve().name  # as `.` it has none

    def seed(self) -> bytes:
        """The run seed of a run that has not ended. Raises RunError."""
        path = self.path / "seed"
        # The record decides, not the file: a run killed between its last record and the removal has ended too.
        if any(isinstance(record, Closed) for record in self.records()):
            raise RunError(f"{self.path} has ended: its seed is revealed", hint="start a new run of its study")
        try:
            seed = bytes.fromhex(path.read_text(encoding="ascii"))
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}", hint="resume it as the user who began it") from None
        except ValueError:
            seed = b""
        if commitment(seed) != self.opened().seed_hash:
            raise RunError(f"{path} is not the seed that the run began with", hint="start a new run of its study")
        return seed

    def study(self) -> Study:
        """The study as the run began with it. Raises RunError when it is missing, or is not that study any more."""
        path = self.path / "study.json"
        try:
            text = path.read_bytes()
            study = msgspec.json.decode(text, type=Study)
        except OSError as error:
            raise RunError(f"{path}: {error.strerror}", hint="start a new run of its study") from None
        except msgspec.DecodeError as error:
            raise RunError(f"{path} cannot be read: {error}", hint="start a new run of its study") from None
        if stored_digest(text) != self.opened().digest:
            raise RunError(f"{path} was changed since the run began", hint="start a new run of its study")
        return study

    def append(self, record: Record) -> None:
        """Add a record; on disk when this returns. Raises StorageError. A torn line of a killed run is ended first."""
        line = msgspec.json.encode(record) + b"\n"
        path = self.path / "run.jsonl"
        with storing(str(path)):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                end = os.lseek(descriptor, 0, os.SEEK_END)
                if end and os.pread(descriptor, 1, end - 1) != b"\n":
                    line = b"\n" + line
                if os.write(descriptor, line) != len(line):
                    raise OSError(28, "No space left on device")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if isinstance(record, Closed):
            (self.path / "seed").unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """All records; lines torn by a kill or a full disk are passed over. Raises RunError where none is readable."""
        found = list(self._read())
        self._first(iter(found))
        return found

    def opened(self) -> Opened:
        """The first record; no more of the log is read. Raises RunError."""
        return self._first(self._read())

    def _first(self, records: Iterator[Record]) -> Opened:
        first = next(records, None)
        if not isinstance(first, Opened):
            raise RunError(f"{self.path}/run.jsonl has no first record", hint="start a new run of its study")
        return first

    def _read(self) -> Iterator[Record]:
        try:
            with (self.path / "run.jsonl").open("rb") as file:
                for line in file:
                    with contextlib.suppress(msgspec.DecodeError):
                        yield _DECODER.decode(line)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run's folder (no run.jsonl)", hint="see: ls results/*") from None
        except OSError as error:
            raise RunError(f"{self.path}/run.jsonl: {error.strerror}", hint="check its permissions") from None

    def draft(self, name: str) -> Path:
        """A fresh hidden folder for an attempt that is not there yet. Raises StorageError."""
        path = self.path / "attempts" / f".{_UNSAFE.sub('-', name)}"
        with storing(f"the attempt's folder {path}"):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        return path

    def accept(self, draft: Path, attempt: Attempt) -> Path:
        """Make a draft part of the run: whole, on disk, by one rename. Raises StorageError."""
        final = draft.with_name(draft.name.removeprefix("."))
        with storing(f"the attempt {final}"):
            (draft / "attempt.json").write_bytes(msgspec.json.format(msgspec.json.encode(attempt), indent=1))
            for file in draft.iterdir():
                _sync(file)
            _sync(draft)
            draft.rename(final)
            _sync(final.parent)
        return final

    def attempts(self) -> list[Attempt]:
        """All attempts that are there, in the order in which they started. Raises RunError where one is unreadable."""
        decoder = msgspec.json.Decoder(Attempt)
        found = []
        for path in (self.path / "attempts").glob("[!.]*/attempt.json"):
            try:
                found.append(decoder.decode(path.read_bytes()))
            except OSError as error:
                raise RunError(f"{path}: {error.strerror}", hint="check its permissions") from None
            except msgspec.DecodeError as error:
                raise RunError(f"{path} cannot be read: {error}", hint="start a new run of its study") from None
        return sorted(found, key=lambda attempt: attempt.started)

    def discard_drafts(self) -> None:
        """Remove what a killed run left half written."""
        for draft in (self.path / "attempts").glob(".*"):
            shutil.rmtree(draft, ignore_errors=True)

    def blocks(self) -> list[Block]:
        """All closed blocks in order. Attempts of a block that was not completed are `abandoned`.

        Raises RunError where an attempt of a complete block is gone: what was measured cannot be left out unseen.
        """
        records = self.records()
        opened = {record.block: record for record in records if isinstance(record, BlockOpened)}
        tried: dict[int, list[Record]] = {}
        for record in records:
            if isinstance(record, Begun | Unstarted):
                tried.setdefault(record.block, []).append(record)
        by_block: dict[int, list[Attempt]] = {}
        for attempt in self.attempts():
            by_block.setdefault(attempt.block, []).append(attempt)
        found = []
        for record in records:
            if not isinstance(record, BlockClosed):
                continue
            if record.block not in opened:
                raise RunError(
                    f"{self.path}/run.jsonl: block {record.block} is closed and was never opened",
                    hint="put the record back, or start a new run of its study",
                )
            attempts, order = by_block.get(record.block, []), opened[record.block]
            block = closed(record, order, attempts, tried.get(record.block, ()))
            gone = sorted(set(order.arms) - {attempt.arm for attempt in attempts} - set(block.unstarted))
            if record.state == "complete" and gone:
                raise RunError(
                    f"{self.path}/attempts: block {record.block} is complete, but its attempt of {gone[0]} is gone",
                    hint="put it back, or start a new run of its study",
                )
            found.append(block)
        return found

    def open_block(self) -> tuple[BlockOpened, list[Attempt]] | None:
        """The block that a killed run left open, with the attempts that it has, or None."""
        opened: BlockOpened | None = None
        for record in self.records():
            if isinstance(record, BlockOpened):
                opened = record
            elif isinstance(record, BlockClosed):
                opened = None
        if opened is None:
            return None
        return opened, [attempt for attempt in self.attempts() if attempt.block == opened.block]

    def active_seconds(self) -> float:
        """Seconds that the run has spent running, pauses between its sessions left out.

        A session that was killed lasted at least to the end of its last attempt.
        """
        marks = [(record.t, isinstance(record, Opened | Resumed)) for record in self.records()]
        marks += [(attempt.ended, False) for attempt in self.attempts()]
        spent, start, last = 0.0, 0.0, 0.0
        for t, begins in sorted(marks):
            if begins:
                spent += last - start
                start = t
            last = t
        return spent + last - start


def closed(end: BlockClosed, opened: BlockOpened, attempts: Sequence[Attempt], tried: Iterable[Record]) -> Block:
    """The block of these records and attempts. Attempts of one that was not completed are `abandoned`."""
    unstarted, late, redone = tries(tried, attempts)
    if end.state != "complete":
        attempts = [msgspec.structs.replace(attempt, state="abandoned") for attempt in attempts]
    return Block(
        number=end.block,
        cell=opened.cell,
        state=end.state,
        reason=end.reason,
        attempts=tuple(attempts),
        arms=tuple(opened.arms),
        unstarted=unstarted,
        late=late,
        redone=redone,
    )


def tries(
    tried: Iterable[Record], attempts: Sequence[Attempt]
) -> tuple[Mapping[str, str], tuple[str, ...], tuple[str, ...]]:
    """Of the tries of one block: the arms that were given up, with the reason; those that started at a later try; and
    those of which an attempt was under way when hugewise ended.

    A try that was rejected counts as one that failed even where its record is missing: hugewise may have been killed
    between the two, and older runs have none.
    """
    unstarted: dict[str, str] = {}
    failed, under_way = dict.fromkeys(at_fault(attempts)), dict[str, None]()
    known = {(attempt.arm, attempt.number) for attempt in attempts}
    pending: Begun | None = None
    for record in tried:
        if isinstance(record, Begun):
            # The same attempt once more: a resumed run gives it the number that it had.
            again = pending is not None and (pending.arms, pending.number) == (record.arms, record.number)
            under_way.update(dict.fromkeys(record.arms if again else _lost(pending, known)))
            pending = record
        elif isinstance(record, Unstarted):
            pending = None
            failed[record.arm] = None
            if record.given_up:
                unstarted[record.arm] = record.reason
    under_way.update(dict.fromkeys(_lost(pending, known)))
    late = tuple(arm for arm in failed if arm not in unstarted)
    return unstarted, late, tuple(arm for arm in under_way if arm not in failed)


def _lost(begun: Begun | None, known: Container[tuple[str, int]]) -> list[str]:
    return [] if begun is None else [arm for arm in begun.arms if (arm, begun.number) not in known]
