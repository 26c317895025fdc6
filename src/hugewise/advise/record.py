"""The folder of an advice: held from when it was made, so that what root writes, and gives away, is that very folder.

Under sudo the folder above it belongs to who called, and the program that is measured runs as that account: it could
put a link to something of root's in the place of an advice that is under way. So root makes it, holds it by a
descriptor, and writes below that alone. As an ordinary user it is a path like any other.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Protocol, TypeVar

from hugewise import reading
from hugewise.beneath import Folder
from hugewise.errors import UserError
from hugewise.files import hand_over, made_folder, own, storing, write_whole

__all__ = ["RECORD", "AdviceFolder"]

RECORD = "advice.json"

_OTHERS_WRITE = 0o022


class _Versioned(Protocol):
    format: int


_Record = TypeVar("_Record", bound=_Versioned)


class AdviceFolder:
    """`path` is what people call it, `place` how it is reached. `above`: of a cell, the folder of its study's."""

    def __init__(self, path: Path, above: AdviceFolder | None = None) -> None:
        self.path = path
        self._above = above
        self._held: Folder | None = None
        self._close: Callable[[], object] = lambda: None

    @classmethod
    def new(cls, results: Path) -> AdviceFolder:
        """One that is not there yet, below `results`."""
        return cls(results / "advice" / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(2)}")

    @property
    def place(self) -> Path:
        """The held folder; its path where it is not held."""
        if self._held is not None:
            return Path(f"/proc/{os.getpid()}/fd/{self._held.fileno()}")
        return self.path if self._above is None else self._above.place / self.path.name

    def hold(self) -> None:
        """As root, hold the one that is there. Raises OSError."""
        if os.geteuid() == 0 and self._held is None:
            self._held = Folder.open(self.place)
            self._close = weakref.finalize(self, self._held.close)

    def read(self, name: str, kind: type[_Record], version: int) -> _Record:
        """What stands in it, held from here on. Raises UserError where that is no record, or one of another version."""
        try:
            own(self.path, f"the advice {self.path}")
            self.hold()
            found = reading.stored(self.place / name, kind)
        except (OSError, reading.UnreadableError) as error:
            cure = "name the folder that `hugewise advise` told"
            raise UserError(f"{self.path}: no advice: {error}", hint=cure) from None
        if found.format != version:
            raise UserError(f"{self.path}: an advice of the format {found.format}", hint="ask for a new advice")
        return found

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
        if self._held is None:
            return
        found = self._held.status()
        if found.st_uid != 0 or found.st_mode & _OTHERS_WRITE:
            raise UserError(
                f"{self.path} is not root's own: its account could lead root elsewhere from there",
                hint="go on as the account that began the advice, or ask for a new one",
            )

    def put(self, name: str, data: bytes) -> None:
        """Have a file in it, on disk. Raises StorageError, UserError."""
        with storing(f"{name} of the advice {self.path}"):
            self.make()
            write_whole(self.place / name, data)

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.place / name).is_file()

    def hand_over(self) -> None:
        """Give it to who called sudo, when nothing is written any more. Raises StorageError."""
        with storing(f"the advice {self.path}"):
            if self._held is not None and self._held.status().st_uid == 0:
                hand_over(self.place)
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self._close()
        self._held = None
