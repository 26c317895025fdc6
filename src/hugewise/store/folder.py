"""A run's folder: its log, its attempts, and how both survive being killed at any moment.

    results/<study>/<run-id>/
      run.jsonl      what happened, a record a line, fsynced; the first carries the hash of the seed, the last the seed,
                     and each set of knobs stands there once, when it first came
      guests.json    of a study of guests: their kernels, and how these differ (`hugewise.model.guest_record`)
      study.json     the study as it was understood (and study.toml as it was written)
      seed           the run seed, readable by its owner only, until the last record reveals it
      attempts/b00007-2-thp-1/{attempt.json, spec.json, events.jsonl, stdout, stderr}
      attempts.parquet  of a run that has ended: every attempt.json, which is removed when it is there

An attempt is written into a hidden folder and renamed: it is there whole or not at all. No other state exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from hugewise.errors import RunError
from hugewise.files import made_folder, storing, sync, write_whole
from hugewise.model.coin import commitment
from hugewise.model.trial import Attempt, Block
from hugewise.store import compacted
from hugewise.store.records import (
    Begun,
    BlockClosed,
    BlockOpened,
    Closed,
    KnobSet,
    OpenBlock,
    Opened,
    Record,
    Run,
    Unstarted,
)
from hugewise.study.study import Study, stored_digest

__all__ = ["RunFolder"]

_ANEW = "start a new run of its study"
_PERMISSIONS = "check its permissions"
_RECORD = msgspec.json.Decoder(Record)
_ATTEMPT = msgspec.json.Decoder(Attempt)
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")


class RunFolder:
    """One run on disk. `create` starts a new one, `read` says what is there.

    In memory are only the names of the knobs that its log has: what is not known to be there is written once more.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = path / "run.jsonl"
        self._compacted = path / "attempts.parquet"
        self._knobs: set[str] = set()

    @classmethod
    def create(cls, results: Path, study: str, *, study_json: bytes, study_toml: str | None, seed: bytes) -> RunFolder:
        """A new folder `results/<study>/<run-id>/`. Raises StorageError."""
        run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        folder = cls(results / _UNSAFE.sub("-", study) / run)
        with storing(f"the run's folder {folder.path}"):
            made_folder(folder.path / "attempts")
            write_whole(folder.path / "study.json", study_json)
            if study_toml is not None:
                write_whole(folder.path / "study.toml", study_toml.encode())
            write_whole(folder.path / "seed", seed.hex().encode(), 0o600)
        return folder

    @property
    def run(self) -> str:
        """The run's identity: its folder's name."""
        return self.path.resolve().name  # as `.` it has none

    def append(self, record: Record) -> None:
        """Add a record; on disk when this returns. Raises StorageError. A torn line of a killed run is ended first."""
        line = msgspec.json.encode(record) + b"\n"
        with storing(str(self._log)):
            descriptor = os.open(self._log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
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
        attempt = self._with_knobs_kept(attempt)
        with storing(f"the attempt {final}"):
            (draft / "attempt.json").write_bytes(msgspec.json.format(msgspec.json.encode(attempt), indent=1))
            for file in draft.iterdir():
                sync(file)
            sync(draft)
            draft.rename(final)
            sync(final.parent)
        return final

    def _with_knobs_kept(self, attempt: Attempt) -> Attempt:
        """`attempt` as it is stored: its knobs are in the log before it is, and only if they are not there already."""
        name = hashlib.sha256(msgspec.json.encode(attempt.knobs, order="deterministic")).hexdigest()[:12]
        if name not in self._knobs:
            self.append(KnobSet(t=attempt.ended, id=name, values=attempt.knobs))
            self._knobs.add(name)
        return msgspec.structs.replace(attempt, knobs={}, knobs_as=name)

    def discard_drafts(self) -> None:
        """Remove what a killed run left half written."""
        for draft in (self.path / "attempts").glob(".*"):
            shutil.rmtree(draft, ignore_errors=True)

    def opened(self) -> Opened:
        """The first record; no more of the log is read. Raises RunError."""
        with self._log_opened() as file:
            return self._first(_records(file))

    def study(self, opened: Opened) -> Study:
        """The study as the run began with it. Raises RunError when it is missing, or is not that study any more."""
        path = self.path / "study.json"
        with _reading(path, hint=_ANEW):
            text = path.read_bytes()
            study = msgspec.json.decode(text, type=Study)
        if stored_digest(text) != opened.digest:
            raise RunError(f"{path} was changed since the run began", hint=_ANEW)
        return study

    def seed(self, run: Run) -> bytes:
        """The run seed of a run that has not ended. Raises RunError."""
        # The record decides, not the file: a run killed between its last record and the removal has ended too.
        if run.closed is not None:
            raise RunError(f"{self.path} has ended: its seed is revealed", hint=_ANEW)
        path, seed = self.path / "seed", b""
        with _reading(path, hint="resume it as the user who began it"), contextlib.suppress(ValueError):
            seed = bytes.fromhex(path.read_text(encoding="ascii"))
        if commitment(seed) != run.opened.seed_hash:
            raise RunError(f"{path} is not the seed that the run began with", hint=_ANEW)
        return seed

    def read(self, known: Run | None = None) -> Run:
        """All of the run, parsed once; lines torn by a kill or a full disk are passed over.

        `known`, where nothing was added since it was read. Raises RunError where a file is unreadable, and where an
        attempt of a complete block is gone: what was measured cannot be left out unseen.
        """
        with contextlib.suppress(OSError):  # it is said below
            here = self._log.stat().st_size, len(self.attempt_files())
            if known is not None and (known.size, len(known.attempts)) == here:
                return known
        with self._log_opened() as file:
            size, records = os.fstat(file.fileno()).st_size, tuple(_records(file))
        study, attempts = self.study(self._first(iter(records))), []
        knobs = {record.id: record.values for record in records if isinstance(record, KnobSet)}
        self._knobs.update(knobs)
        for name, record in self._attempt_records().items():
            with _reading(self.path / "attempts" / name / "attempt.json", hint=_ANEW):
                attempts.append(self._with_knobs(_ATTEMPT.decode(record), knobs))
        attempts.sort(key=lambda attempt: attempt.started)
        blocks, left_open = self._blocks(records, attempts)
        return Run(self.path, records, study, tuple(attempts), tuple(blocks), left_open, size)

    def _with_knobs(self, stored: Attempt, knobs: Mapping[str, Mapping[str, str]]) -> Attempt:
        if stored.knobs_as is None:  # of a run that kept them with each attempt
            return stored
        if stored.knobs_as not in knobs:
            raise RunError(
                f"{self._log}: the knobs {stored.knobs_as} of attempts are gone",
                hint=f"put the record back, or {_ANEW}",
            )
        return msgspec.structs.replace(stored, knobs=knobs[stored.knobs_as], knobs_as=None)

    def compact(self) -> None:
        """Gather the attempts of a run that has ended in one file. Raises StorageError and RunError.

        What else is in their folders stays there. Killed at any moment, each attempt is in the file or in its folder.
        """
        files, records = self.attempt_files(), self._attempt_records()
        if not compacted.read(self._compacted).keys() >= records.keys():
            compacted.write(self._compacted, {name: record.decode() for name, record in records.items()})
        kept = compacted.read(self._compacted)
        with storing(str(self.path / "attempts")):
            for path in files:
                if kept[path.parent.name] == records[path.parent.name]:
                    path.unlink()
                    with contextlib.suppress(OSError):  # there is more in it
                        path.parent.rmdir()

    def _attempt_records(self) -> dict[str, bytes]:
        """What is stored of each attempt, by the name of its folder, wherever it lies. Raises RunError."""
        found = {}
        for path in self.attempt_files():
            with _reading(path, hint=_PERMISSIONS), contextlib.suppress(FileNotFoundError):  # it is below by now
                found[path.parent.name] = path.read_bytes()
        with _reading(self._compacted, hint=_PERMISSIONS):
            found |= compacted.read(self._compacted)
        return dict(sorted(found.items()))

    def attempt_files(self) -> list[Path]:
        """The records of attempts that lie in folders of their own."""
        return sorted((self.path / "attempts").glob("[!.]*/attempt.json"))

    def _blocks(self, records: Sequence[Record], attempts: Sequence[Attempt]) -> tuple[list[Block], OpenBlock | None]:
        """The closed blocks, and the one that is still open."""
        made: dict[int, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            made[attempt.block].append(attempt)
        begun: dict[int, OpenBlock] = {}
        closed: list[Block] = []
        left_open = None
        for record in records:
            if isinstance(record, BlockOpened):
                left_open = begun[record.block] = OpenBlock(record, made[record.block])
            elif isinstance(record, Begun | Unstarted) and record.block in begun:
                begun[record.block].tried.append(record)
            elif isinstance(record, BlockClosed):
                closed.append(self._closed(record, begun.get(record.block)))
                left_open = None
        return closed, left_open

    def _closed(self, end: BlockClosed, begun: OpenBlock | None) -> Block:
        if begun is None:
            raise RunError(
                f"{self._log}: block {end.block} is closed and was never opened",
                hint=f"put the record back, or {_ANEW}",
            )
        block = begun.closed(end)
        gone = sorted(set(block.arms) - {attempt.arm for attempt in block.attempts} - set(block.unstarted))
        if end.state == "complete" and gone:
            raise RunError(
                f"{self.path}/attempts: block {end.block} is complete, but its attempt of {gone[0]} is gone",
                hint=f"put it back, or {_ANEW}",
            )
        return block

    def _first(self, records: Iterator[Record]) -> Opened:
        first = next(records, None)
        if not isinstance(first, Opened):
            raise RunError(f"{self._log} has no first record", hint=_ANEW)
        return first

    @contextlib.contextmanager
    def _log_opened(self) -> Iterator[BinaryIO]:
        try:
            with self._log.open("rb") as file:
                yield file
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run's folder (no run.jsonl)", hint="see: ls results/*") from None
        except OSError as error:
            raise RunError(f"{self._log}: {error.strerror}", hint=_PERMISSIONS) from None


def _records(log: BinaryIO) -> Iterator[Record]:
    for line in log:
        with contextlib.suppress(msgspec.DecodeError):
            yield _RECORD.decode(line)


@contextlib.contextmanager
def _reading(path: Path, hint: str) -> Iterator[None]:
    """What cannot be read is a RunError; `hint` is the cure where the system refuses."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint=hint) from None
    except msgspec.DecodeError as error:
        raise RunError(f"{path} cannot be read: {error}", hint=_ANEW) from None
