"""What was found, a file a case: so a torture that is killed goes on with the cases that are left."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from hugewise.errors import UserError
from hugewise.files import own, storing, write_whole

__all__ = ["Draws", "Findings", "Ordeal", "TortureRecord"]

T = TypeVar("T")


class Draws:
    """Random draws of one case, each by its name: the same for the same seed, whatever is drawn besides."""

    def __init__(self, seed: int, case: str) -> None:
        self._of = f"{seed}:{case}"

    def share(self, what: str) -> float:
        """Uniform from 0 to 1."""
        digest = hashlib.sha256(f"{self._of}:{what}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / (1 << 48)

    def between(self, what: str, low: float, high: float) -> float:
        """Uniform."""
        return low + (high - low) * self.share(what)

    def one_of(self, what: str, of: Sequence[T]) -> T:
        """One of them, each as likely."""
        return of[int(self.share(what) * len(of))]


class Ordeal(msgspec.Struct, kw_only=True):
    """One case and what became of it.

    name         its kind and number: with the seed, all that was drawn of it
    did          what was done, in words
    kills        runs that were killed, and of the recoveries after them
    turned       what the machine had that it had not before, when the run had ended and before anything was put back
    differences  what was still not as before when it had been put back: none, as promised
    resumed      whether the run was resumed
    kept         accepted attempts that it had before
    lost, repeated   of these: none, as promised
    broken       other promises that did not hold
    seconds      that it took
    """

    name: str
    did: str = ""
    kills: int = 0
    recovery_kills: int = 0
    turned: int = 0
    differences: list[str] = []
    resumed: bool = False
    kept: int = 0
    lost: list[str] = []
    repeated: list[str] = []
    broken: list[str] = []
    seconds: float = 0.0
    ended: float = 0.0

    @property
    def kind(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def faults(self) -> list[str]:
        """Every promise that it broke, in words."""
        return [*self.differences, *self.lost, *self.repeated, *self.broken]


class TortureRecord(msgspec.Struct, kw_only=True):
    """The torture that a folder holds. `lives`: seconds that an untouched run of each kind takes here."""

    seed: int
    machine: str
    kernel: str
    version: str
    cpus: int
    root: bool
    lives: dict[str, float] = {}
    left_out: dict[str, str] = {}


class Findings:
    """The folder of a torture: `torture.json`, `cases/NAME.json`, and `broken/NAME/` with all that such a case left."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        here = TortureRecord(
            seed=seed,
            machine=platform.node(),
            kernel=platform.release(),
            version=metadata.version("hugewise"),
            cpus=os.cpu_count() or 1,
            root=os.geteuid() == 0,
        )
        with storing(str(folder), hint="name another folder with --results"):
            own(folder, f"--results {folder.parent}")
            (folder / "cases").mkdir(parents=True, exist_ok=True)
            (folder / "broken").mkdir(exist_ok=True)
        self._path = folder / "torture.json"
        self.begun = here
        if self._path.exists():
            self.begun = msgspec.json.decode(self._path.read_bytes(), type=TortureRecord)
            self._check(here)

    def _check(self, here: TortureRecord) -> None:
        for name in ("seed", "machine", "kernel", "version", "root"):
            was, now = getattr(self.begun, name), getattr(here, name)
            if was != now:
                raise UserError(
                    f"{self.folder} has a torture of another {name} ({was}; here {now})",
                    hint="name another folder with --results, or another --seed",
                )

    def note(self) -> None:
        """Keep what is known of the whole."""
        _write(self._path, msgspec.json.format(msgspec.json.encode(self.begun), indent=1))

    def report(self, counted: object) -> None:
        """Keep what was counted."""
        _write(self.folder / "report.json", msgspec.json.format(msgspec.json.encode(counted), indent=1))

    def all(self) -> dict[str, Ordeal]:
        """The cases that are done, by name."""
        paths = sorted((self.folder / "cases").glob("[!.]*.json"))
        return {path.stem: msgspec.json.decode(path.read_bytes(), type=Ordeal) for path in paths}

    def keep(self, finding: Ordeal, work: Path) -> None:
        """A case is done; its folder `work` stays only where a promise was broken."""
        if finding.faults:
            kept = self.folder / "broken" / finding.name
            shutil.rmtree(kept, ignore_errors=True)
            work.rename(kept)
        _write(
            self.folder / "cases" / f"{finding.name}.json", msgspec.json.format(msgspec.json.encode(finding), indent=1)
        )


def _write(path: Path, content: bytes) -> None:
    with storing(str(path), hint="free space, and call it again: it goes on with what is left"):
        write_whole(path, content)
