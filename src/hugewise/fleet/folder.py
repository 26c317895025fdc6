"""The folder of a fleet: what the coordinator keeps, and where shipped runs lie.

    results/fleets/<study>/<fleet>/
      log.jsonl      what was decided and what came of it (`records`), fsynced line by line
      study.toml     the study, as every host runs it
      hosts.toml     the inventory
      hosts/NAME/RUN the run of a host, as its own `results/STUDY/RUN`: any verb that takes a run takes it
      checks/NAME/RUN  its comparison of the same with the same, before
      late/NAME/RUN  what came of a host after another took its place
      lock           held by the one coordinator that works on it

A run that is being brought is in `.NUMBER.part` beside its place until every file of it is there and has its hash.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import LockedError, RunError
from hugewise.files import made_folder, own, storing, sync, write_whole
from hugewise.fleet.records import FleetOpened, FleetRecord

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_MOST_LOG = 1 << 30
_RECORD: msgspec.json.Decoder[FleetRecord] = msgspec.json.Decoder(FleetRecord)
RESUME = "free some space; what was shipped is kept: hugewise fleet resume"


class FleetFolder:
    """One fleet on disk. `make` begins it, `records` says what its log holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    @classmethod
    def new(cls, results: Path, study: str) -> FleetFolder:
        """One that is not there yet, below `results/fleets/STUDY`."""
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
        return cls(results / "fleets" / _UNSAFE.sub("-", study) / name)

    def make(self, *, study_toml: str, hosts_toml: str) -> None:
        """Make it. Raises StorageError, and UserError where others could change it."""
        with storing(f"the fleet's folder {self.path}", RESUME):
            results = self.path.parents[2]
            own(results, f"results = {str(results)!r}")
            made_folder(self.path.parent)
            made_folder(self.path)
            for below in ("hosts", "checks", "late"):
                (self.path / below).mkdir()
            write_whole(self.path / "study.toml", study_toml.encode())
            write_whole(self.path / "hosts.toml", hosts_toml.encode())
            write_whole(self.path / "lock", b"")

    @property
    def fleet(self) -> str:
        """The identity of a fleet that is to be made: its folder's name. Later that may be another one, or a link leads
        there: what was begun is `FleetOpened.fleet`.
        """
        return self.path.absolute().name

    def hold(self) -> None:
        """Be the one coordinator of it. Raises LockedError while another one is, RunError where there is no fleet."""
        try:
            own(self.path, f"the fleet in {self.path}")
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a fleet's folder (no lock)", hint="see: ls results/fleets/*") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockedError(None) from None
        self._lock = descriptor

    def close(self) -> None:
        """Let go of it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def append(self, record: FleetRecord) -> None:
        """Add a record; on disk when this returns. Raises StorageError, and leaves no half line where it can."""
        path = self.path / "log.jsonl"
        with storing(str(path), RESUME):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                end = _whole(descriptor)
                try:
                    _written(descriptor, msgspec.json.encode(record) + b"\n")
                except OSError:
                    os.ftruncate(descriptor, end)
                    raise
                if not end:
                    sync(path.parent)
            finally:
                os.close(descriptor)

    def records(self) -> Sequence[FleetRecord]:
        """All of them; what a kill tore at the end is passed over. Raises RunError."""
        path = self.path / "log.jsonl"
        try:
            lines = reading.kept(path, _MOST_LOG).split(b"\n")[:-1]
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{self.path} is not a fleet's folder (no log.jsonl)", hint="see: ls results/fleets/*"
            ) from None
        except (OSError, reading.UnreadableError) as error:
            raise RunError(f"{path}: {error}", hint="check its permissions, or put a copy of it back") from None
        found: list[FleetRecord] = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(reading.decoded(_RECORD, line))
            except reading.UnreadableError as error:
                raise RunError(f"{path}, line {number}: {error}", hint="put a copy of it back") from None
        if not found or not isinstance(found[0], FleetOpened):
            raise RunError(f"{path} has no first record", hint="start the fleet anew: hugewise fleet run")
        return found


def _written(descriptor: int, line: bytes) -> None:
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _whole(descriptor: int) -> int:
    """Where the last whole line ends; what stands behind it was torn by a kill, and is cut off."""
    size = os.fstat(descriptor).st_size
    end = size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        end -= 1
    if end < size:
        os.ftruncate(descriptor, end)
    return end
