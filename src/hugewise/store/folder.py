"""A run's folder: its log, its attempts, and how both survive being killed at any moment.

    results/<study>/<run-id>/
      run.jsonl      what happened, a record a line, fsynced, with a running hash (`store.log`); the first carries the
                     hash of the seed, the last the seed, and each set of knobs stands there once, when it first came
      guests.json    of a study of guests: their kernels, and how these differ (`hugewise.model.guest`)
      study.json     the study as it was understood (and study.toml as it was written)
      seed           the run seed, readable by its owner only, until the last record reveals it
      attempts/b00007-2-thp-1/{attempt.json, samples.json.gz, spec.json, events.jsonl, stdout, stderr}
      attempts.parquet  of a run that has ended: every attempt.json, which is removed when it is there

An attempt is written into a hidden folder, whole and on disk; then a record with its digest makes it part of the run;
then its folder is renamed. Killed before the record there is no attempt, and after it the attempt is there under either
name. No other state exists.

The attempts of a run that has ended are gathered in one Parquet file: each record as it was, beside columns to choose
it by.

The records of a log, one after the other, and the attempts make the blocks (`in_blocks`). A record that cannot stand
where it does is an error that names its line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from hugewise import files, reading
from hugewise.beneath import DirFd, discard
from hugewise.errors import HugewiseError, RunError, StorageError, StudyError, UserError
from hugewise.files import made_folder, own, storing, sync, write_whole
from hugewise.model import guest
from hugewise.model.host import Clock
from hugewise.model.trial import Attempt, Block, commitment
from hugewise.store.log import ANEW, COPY, PERMISSIONS, LogContents, RunLog
from hugewise.store.records import (
    AttemptStored,
    Begun,
    BlockClosed,
    BlockOpened,
    Closed,
    KnobSet,
    Lost,
    OpenBlock,
    Opened,
    Record,
    Resumed,
    Run,
    Stamp,
    Unstarted,
)
from hugewise.study import study as stored_study
from hugewise.study.keys import Place
from hugewise.study.study import Study, stored_digest

_ROWS = """
select name, cast(record ->> '$.block' as integer) as block, record ->> '$.cell' as cell, record ->> '$.arm' as arm,
  cast(record ->> '$.number' as integer) as number, record ->> '$.state' as state, record
from given
"""
_ROW = 100  # bytes in memory beside its texts
_ASKED = f"""
count(*), count(distinct name) filter (name is not null and record is not null),
max(strlen(name) + strlen(record)),
sum(strlen(name) + strlen(record) + {_ROW})
"""
_MOST = 1 << 30  # bytes of all records: one of a small workload has 2 KB, so those of 400,000 attempts
_ATTEMPTS, _FOR_A_RECORD = 1_000, 100  # attempts of a run at most: some, and for each record of its log
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "2GiB", "temp_directory": ""}
HEAD, TAIL = 4 << 20, 1 << 20  # bytes that are kept of a program's stdout or stderr
_STREAM = re.compile(r"(?:.*[.])?(?:probe-)?(?:stdout|stderr)(?:[-.].*)?", re.DOTALL)
_SHOWN = 100
_AT_ONCE = 2_000


def write_compacted(
    path: Path,
    records: Mapping[str, str],
    *,
    most: int | None = None,
    owner: tuple[int, int] | None = None,
    called: Path | None = None,
) -> None:
    """Keep `records` by folder name in one file. Raises StorageError; UserError for more than `most` bytes."""
    import duckdb  # noqa: PLC0415  (150 ms that only its users should pay)
    import numpy as np  # noqa: PLC0415

    called, draft = called or path, path.with_name(f".{path.name}")
    with storing(str(called)):
        try:
            draft.unlink(missing_ok=True)
            # DuckDB opens names through links: it is given the descriptor of a file that was not there before.
            with draft.open("xb") as file, duckdb.connect(config={"temp_directory": ""}) as connection:
                columns = {"name": list(records), "record": list(records.values())}
                connection.register("given", {name: np.array(each, dtype=object) for name, each in columns.items()})
                connection.execute(
                    f"copy ({_ROWS}) to '/proc/self/fd/{file.fileno()}' (format parquet, compression zstd,"
                    " use_tmp_file false)"
                )
                size = os.fstat(file.fileno()).st_size
                if most is not None and size > most:
                    raise UserError(
                        f"{called} would have {size:,} bytes, more than {most:,}", hint="keep fewer attempts in it"
                    )
                if owner is not None:
                    os.fchown(file.fileno(), *owner)
                sync(Path(f"/proc/self/fd/{file.fileno()}"))
            draft.replace(path)
            sync(path.parent)
        except duckdb.Error as error:
            raise StorageError(f"cannot write {called}: {_first_line(error)}") from None
        finally:
            draft.unlink(missing_ok=True)


def read_compacted(path: Path, most_rows: int = _MOST // _ROW) -> dict[str, bytes]:
    """Return the records by folder name, none without a file; rows are counted first. Raises OSError, RunError."""
    if not os.path.lexists(path):
        return {}
    try:
        with reading.opened(path) as file:
            if os.fstat(file.fileno()).st_size > reading.MOST:
                raise _unreadable(path, f"larger than {reading.MOST:,} bytes")
            return _records(path, file.fileno(), most_rows)
    except reading.UnreadableError as error:
        raise _unreadable(path, str(error)) from None


def _records(path: Path, descriptor: int, most_rows: int) -> dict[str, bytes]:
    import duckdb  # noqa: PLC0415

    try:
        with duckdb.connect(config=_CONFIG) as connection:
            # By descriptor: DuckDB takes a name for a pattern.
            table = connection.read_parquet(f"/proc/self/fd/{descriptor}").project("name, record")
            for column, kind in zip(table.columns, map(str, table.types), strict=True):
                if kind != "VARCHAR":
                    raise _unreadable(path, f"its column {column} is of {kind[:_SHOWN]}, not of texts")
            (rows,) = table.aggregate("count(*)").fetchone() or (0,)
            if rows > most_rows:
                raise _unreadable(path, f"{rows:,} attempts, more than the {most_rows:,} that there can be")
            rows, names, most, total = table.aggregate(_ASKED).fetchone() or (0, 0, 0, 0)
            if rows != names:
                raise _unreadable(path, "an attempt has no name, no record, or a name that another has")
            if (most or 0) > reading.MOST_JSON or (total or 0) > _MOST:
                raise _unreadable(path, f"{rows:,} attempts of {total:,} bytes, the largest of {most:,}, are too much")
            found: dict[str, bytes] = {}
            while some := table.fetchmany(_AT_ONCE):  # all at once would be there twice
                found.update((name, record.encode()) for name, record in some)
            return found
    except duckdb.Error as error:
        raise _unreadable(path, _first_line(error)) from None


def _unreadable(path: Path, why: str) -> RunError:
    return RunError(
        f"{path} cannot be read: {why}",
        hint="put a copy of it back; or, where every folder in attempts/ still has its attempt.json, remove it",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@dataclass
class Found:
    """The closed blocks in order, and the open one."""

    closed: list[Block] = field(default_factory=list)
    left_open: OpenBlock | None = None


class MisplacedRecordError(Exception):
    """A record that cannot stand at that line (0: none)."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line, self.why = line, why


def in_blocks(records: Sequence[tuple[int, Record]], attempts: Sequence[Attempt]) -> Found:
    """Group the records, each with its line number, and the attempts into blocks. Raises MisplacedRecordError."""
    made: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        made[attempt.block].append(attempt)
    found, last, ended = Found(), 0, False
    for line, record in records:
        wrong = _wrong(record, found.left_open, last, first=line == 1, ended=ended)
        if wrong is not None:
            raise MisplacedRecordError(line, wrong)
        block = found.left_open
        ended = ended or isinstance(record, Closed)
        if isinstance(record, BlockOpened):
            last = record.block
            found.left_open = block = OpenBlock(record, made[last])
        elif isinstance(record, BlockClosed) and block is not None:
            _close(found, block, record)
        elif isinstance(record, Resumed) and block is not None:
            block.paused = True
        elif isinstance(record, Begun | Unstarted | Lost) and block is not None:
            block.tried.append(record)
        if block is not None and isinstance(record, BlockOpened | AttemptStored) and record.up is not None:
            block.up = record.up
    return found


def read_before(records: Sequence[Record], known: Run) -> dict[str, Attempt]:
    """Return the attempts of `known` by folder name, where these records continue the same log."""
    if not known.chained or tuple(records[: len(known.records)]) != known.records:
        return {}
    names = dict.fromkeys(record.attempt for record in known.records if isinstance(record, AttemptStored))
    return dict(zip(names, known.attempts, strict=True))


def _wrong(record: Record, block: OpenBlock | None, last: int, *, first: bool, ended: bool) -> str | None:
    number = None if block is None else block.opened.block
    if ended:
        return "nothing comes after the last record"
    match record:
        case Opened() if not first:
            return "a run begins once"
        case BlockOpened() if number is not None:
            return f"block {record.block} is opened and block {number} was never closed"
        case BlockOpened() if record.block != last + 1:
            return f"block {record.block} is opened after block {last}"
        case BlockClosed() if record.block != number:
            return f"block {record.block} is closed and was never opened"
        case Begun() | Unstarted() | Lost() if record.block != number:
            return f"an attempt of block {record.block}, which is not open"
        case Closed() if number is not None:
            return f"the run ends and block {number} was never closed"
        case _:
            return None


def _close(found: Found, block: OpenBlock, end: BlockClosed) -> None:
    closed = block.closed(end)
    there = {attempt.label for attempt in closed.attempts}
    gone = sorted(set(closed.arms) - there - set(closed.unstarted) - set(closed.lost))
    if end.state == "complete" and gone:
        raise MisplacedRecordError(0, f"block {end.block} is complete, but its attempt of {gone[0]} is gone")
    found.closed.append(closed)
    found.left_open = None


_ATTEMPT = msgspec.json.Decoder(Attempt)
_STUDY = msgspec.json.Decoder(Study)
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_Kind = TypeVar("_Kind", bound=Record)


def _named(study: str) -> str:
    return _UNSAFE.sub("-", study)


class RunFolder:
    """Run on disk. `create` starts a new one, `read` says what is there.

    `path` is what people call it, and `place` is how it is reached to write in it: see `hold`.

    In memory are only the names of the knobs that its log has: what is not known to be there is written once more.
    `clock` says when and how long of what is added; without one, records have no time since boot.
    """

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.clock = clock
        self._log = RunLog(path / "run.jsonl")
        self._compacted = path / "attempts.parquet"
        self.place = path
        self._held: Callable[[], object] = lambda: None
        self._knobs: set[str] = set()

    @classmethod
    def create(
        cls,
        results: Path,
        study: str,
        *,
        study_json: bytes,
        study_toml: str | None,
        seed: bytes,
        clock: Clock | None = None,
    ) -> RunFolder:
        """Make a new folder `results/<study>/<run-id>/`. Raises StorageError, UserError."""
        # Hosts of a fleet begin in the same second, and two runs of one name pass for copies.
        run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"
        folder = cls(results / _named(study) / run, clock)
        with storing(f"the run's folder {folder.path}"):
            own(results, f"results = {str(results)!r}")
            made_folder(folder.path.parent, theirs=True)
            made_folder(folder.path)
            folder.hold()
            (folder.place / "attempts").mkdir()
            own(folder.path / "attempts", f"results = {str(results)!r}")
            write_whole(folder.place / "study.json", study_json)
            if study_toml is not None:
                write_whole(folder.place / "study.toml", study_toml.encode())
            write_whole(folder.place / "seed", seed.hex().encode(), 0o600)
        return folder

    def results(self, study: str) -> Path | None:
        """Return the folder that runs of the study were begun in; None where this run was moved elsewhere."""
        path = self.path.resolve()
        return path.parents[1] if path.parent.name == _named(study) else None

    def hold(self) -> None:
        """Whatever becomes of its path, what is written from now on is written in this very folder: as root.

        The account that called sudo may own the folders above, and the workload runs as that account: it could put
        another folder here, with links in it. What is root's own below a descriptor it cannot change. The probes reach
        the folder through this process. Raises OSError, and UserError where the folder is not root's own.
        """
        if os.geteuid() != 0:
            return
        held = DirFd.open(self.path)
        self._held = weakref.finalize(self, held.close)
        held.must_be_roots("run")
        self.place = held.place
        self._log = RunLog(self.path / "run.jsonl", self.place / "run.jsonl")

    def hand_over(self) -> None:
        """Give the whole ended run to the account that called sudo. Raises OSError."""
        if self.place != self.path:
            files.hand_over(self.place)

    def close(self) -> None:
        self._log.close()
        self._held()
        self.place = self.path
        self._log = RunLog(self.path / "run.jsonl")

    def named(self, text: str) -> str:
        """`text` with the path of the folder, for people, where it has the place."""
        return text.replace(f"{self.place}/", f"{self.path}/")

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Errors call the files of the folder by its path."""
        try:
            yield
        except HugewiseError as error:
            error.message, error.hint = self.named(error.message), error.hint and self.named(error.hint)
            error.args = (error.message,)
            raise

    @property
    def run(self) -> str:
        return self.path.resolve().name  # the path `.` has no name

    def append(self, record: _Kind) -> _Kind:
        """Add a record; on disk when this returns, and returned as it stands there. Raises StorageError."""
        if self.clock is not None:
            record = msgspec.structs.replace(record, up=self.clock.up())
        self._log.append(record)
        if isinstance(record, Closed):
            (self.place / "seed").unlink(missing_ok=True)
        return record

    def draft(self, name: str) -> Path:
        """Return a fresh hidden folder for an attempt that is not there yet. Raises StorageError."""
        path = self.place / "attempts" / f".{_UNSAFE.sub('-', name)}"
        with self.naming(), storing(f"the attempt's folder {path}"):
            discard(path)
            path.mkdir()
        return path

    def accept(self, draft: Path, attempt: Attempt) -> Path:
        """Make a draft part of the run: whole, on disk, by one record. Raises StorageError."""
        attempt = self._with_knobs_kept(attempt)
        stored = self.named(msgspec.json.format(msgspec.json.encode(attempt), indent=1).decode()).encode()
        with self.naming(), storing(f"the attempt {self._named(draft)}"):
            (draft / "attempt.json").write_bytes(stored)
            for file in draft.iterdir():
                _shorten(file)
                sync(file)
            sync(draft)
            sync(draft.parent)
        if self._log.chained():
            self.append(AttemptStored(t=attempt.ended, attempt=self._named(draft).name, digest=_digest(stored)))
        return self._renamed(draft)

    @staticmethod
    def _named(draft: Path) -> Path:
        return draft.with_name(draft.name.removeprefix("."))

    def _renamed(self, draft: Path) -> Path:
        final = self._named(draft)
        with self.naming(), storing(f"the attempt {final}"):
            draft.rename(final)
            sync(final.parent)
        return self.path / "attempts" / final.name

    def _with_knobs_kept(self, attempt: Attempt) -> Attempt:
        # an attempt's knobs are in the log before it is stored, and only if they are not there already
        name = reading.key_digest(attempt.knobs)[:12]
        if name not in self._knobs:
            self.append(KnobSet(t=attempt.ended, id=name, values=attempt.knobs))
            self._knobs.add(name)
        return msgspec.structs.replace(attempt, knobs={}, knobs_as=name)

    def discard_drafts(self, run: Run) -> None:
        """Remove what a killed run left half written, and rename what it had stored. Raises StorageError."""
        stored = {record.attempt for record in run.records if isinstance(record, AttemptStored)}
        for draft in (self.place / "attempts").glob(".*"):
            if self._named(draft).name in stored and not self._named(draft).exists():
                self._renamed(draft)
            else:
                with self.naming(), storing(f"the attempt's folder {draft}"):
                    discard(draft)

    def opened(self) -> Opened:
        """Return the first record; no more of the log is read. Raises RunError."""
        return self._log.first()

    def study(self, opened: Opened) -> Study:
        """Return the study as the run began with it. Raises RunError when it is missing or changed."""
        path = self.path / "study.json"
        with _reading(path, hint=ANEW):
            text = reading.kept(path)
            study = reading.decoded(_STUDY, text)
        if stored_digest(text) != opened.digest or opened.study_json not in (None, _digest(text)):
            raise RunError(f"{path} was changed since the run began", hint=ANEW)
        try:
            stored_study.check(study, Place(str(path)))
        except StudyError as error:
            raise RunError(error.message, hint=ANEW) from None
        return study if opened.blocks is None else study.declared(opened.blocks)

    def study_json(self) -> str:
        """Return the SHA-256 of `study.json` as it stands. Raises RunError."""
        with _reading(self.path / "study.json"):
            return _digest(reading.kept(self.path / "study.json"))

    def seed(self, run: Run) -> bytes:
        """Return the run seed of a run that has not ended. Raises RunError."""
        # The record decides, not the file: a run killed between its last record and the removal has ended too.
        if run.closed is not None:
            raise RunError(f"{self.path} has ended: its seed is revealed", hint=ANEW)
        path, seed = self.path / "seed", b""
        with _reading(path, hint="resume it as the user who began it"), contextlib.suppress(ValueError):
            seed = bytes.fromhex(reading.kept(path).decode("ascii"))
        if commitment(seed) != run.opened.seed_hash:
            raise RunError(f"{path} is not the seed that the run began with", hint=ANEW)
        return seed

    def read(self, known: Run | None = None) -> Run:
        """Read the whole run but for a torn end; `known`: as read before. Raises RunError."""
        files = self.attempt_files()  # before the log: each of them has its record there
        with contextlib.suppress(OSError):  # the error is reported below
            same = known is not None and known.stamp == Stamp.of(self._log.path.stat())
            if known is not None and same and len(known.attempts) == len(files):
                return known
        contents = self._log.read()
        records = tuple(record for _, record in contents.records)
        opened = contents.opened
        study = self.study(opened)
        knobs = {record.id: record.values for record in records if isinstance(record, KnobSet)}
        self._knobs.update(knobs)
        before = read_before(records, known) if known is not None and contents.chained else {}
        attempts = list(before.values())
        stored = self._stored(contents, files, before.keys())
        for name in tuple(stored):
            with _reading(f"{self.path}/attempts/{name}/attempt.json"):
                attempts.append(self._with_knobs(reading.decoded(_ATTEMPT, stored.pop(name)), knobs))
        if not contents.chained:
            attempts.sort(key=lambda attempt: attempt.started)
        try:
            found = in_blocks(contents.records, attempts)
        except MisplacedRecordError as error:
            where = f"{self._log.path}, line {error.line}" if error.line else f"{self.path}/attempts"
            raise RunError(f"{where}: {error.why}", hint=COPY) from None
        return Run(
            path=self.path,
            records=records,
            study=study,
            attempts=tuple(attempts),
            blocks=tuple(found.closed),
            left_open=found.left_open,
            guests=guest.read(self.path, opened.guests, demanded=contents.chained),
            stamp=contents.stamp,
            hash=contents.hash,
            chained=contents.chained,
            torn=contents.torn,
        )

    def _stored(self, contents: LogContents, files: Sequence[Path], but: Collection[str]) -> dict[str, bytes]:
        most = _ATTEMPTS + _FOR_A_RECORD * len(contents.records)
        records = self._attempt_records([file for file in files if file.parent.name not in but], most)
        there = {name: text for name, text in records.items() if name not in but}
        if not contents.chained:
            return there
        found: dict[str, bytes] = {}
        # Without attempt folders, the attempts of an ended run were gathered.
        ended = any(isinstance(record, Closed) for _, record in contents.records)
        gone = f"{self._compacted}, which has all attempts of the run," if ended and not there else None
        stored = [record for _, record in contents.records if isinstance(record, AttemptStored)]
        for name, digest in {one.attempt: one.digest for one in stored if one.attempt not in but}.items():
            text = there.pop(name, None) or self._not_yet_named(name)
            if text is None:
                raise RunError(f"{gone or f'{self.path}/attempts/{name}'} is gone", hint=COPY)
            if _digest(text) != digest:
                where = f"{self.path}/attempts/{name}: attempt.json"
                raise RunError(f"{where} is not what was stored: it was changed", hint=COPY)
            found[name] = text
        for name in there:
            where = f"{self.path}/attempts/{name}"
            raise RunError(f"{where} has no record in run.jsonl: it was added", hint=f"take it away: rm -r {where}")
        return found

    def _not_yet_named(self, name: str) -> bytes | None:
        # the attempt was stored and not renamed, or is being renamed now
        for folder in (f".{name}", name):
            path = self.path / "attempts" / folder / "attempt.json"
            with contextlib.suppress(FileNotFoundError), _reading(path, hint=PERMISSIONS, but=FileNotFoundError):
                return reading.kept(path)
        return None

    def _with_knobs(self, stored: Attempt, knobs: Mapping[str, Mapping[str, str]]) -> Attempt:
        if stored.knobs_as is None:  # a run that kept the knobs with each attempt
            return stored
        if stored.knobs_as not in knobs:
            raise RunError(f"{self._log.path}: the knobs {stored.knobs_as} of attempts are gone", hint=COPY)
        return msgspec.structs.replace(stored, knobs=knobs[stored.knobs_as], knobs_as=None)

    def compact(self) -> None:
        """Gather the attempts of an ended run in one file, killable at any moment. Raises RunError."""
        files = self.attempt_files()
        records = self._attempt_records(files)
        if not read_compacted(self._compacted).keys() >= records.keys():
            with self.naming():
                text = {name: record.decode() for name, record in records.items()}
                write_compacted(self.place / self._compacted.name, text)
        kept = read_compacted(self._compacted)
        with storing(str(self.path / "attempts")):
            for path in files:
                if kept[path.parent.name] == records[path.parent.name]:
                    there = self.place / "attempts" / path.parent.name
                    (there / path.name).unlink()
                    with contextlib.suppress(OSError):  # the folder is not empty
                        there.rmdir()

    def _attempt_records(self, files: Sequence[Path], most: int = _MOST // _ROW) -> dict[str, bytes]:
        found = {}
        for path in files:
            with contextlib.suppress(FileNotFoundError), _reading(path, hint=PERMISSIONS, but=FileNotFoundError):
                found[path.parent.name] = reading.kept(path)  # or it is below by now
        with _reading(self._compacted, hint=PERMISSIONS):
            found |= read_compacted(self._compacted, most)
        return dict(sorted(found.items()))

    def attempt_files(self) -> list[Path]:
        return sorted((self.path / "attempts").glob("[!.]*/attempt.json"))


def _shorten(file: Path) -> None:
    # Endless output fills no disk.
    if not _STREAM.fullmatch(file.name) or (size := file.stat().st_size) <= HEAD + TAIL:
        return
    with file.open("r+b") as held:
        held.seek(-TAIL, os.SEEK_END)
        tail = held.read()
        held.seek(HEAD)
        held.write(b"\n[hugewise left out %d bytes here]\n" % (size - HEAD - TAIL) + tail)
        held.truncate()


def _digest(stored: bytes) -> str:
    return hashlib.sha256(stored).hexdigest()


@contextlib.contextmanager
def _reading(path: Path | str, hint: str = ANEW, *, but: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint=hint) from None
    except reading.UnreadableError as error:
        raise RunError(f"{path} cannot be read: {error}", hint=f"put a copy of it back, or {ANEW}") from None
