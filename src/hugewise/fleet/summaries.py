"""The summaries of a fleet's runs, kept beside them: made once of each run, and used while its files stay.

    <fleet>/summaries/<digest>.json    a line with the SHA-256 of the next, and the summary

The digest is over the bytes of all that a summary is made from, and over the source of this hugewise: a run that was
changed, or another version, has another name there. So a report hashes files and reads small ones; only what is new is
read whole, under its hash chain.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

import hugewise
from hugewise import reading
from hugewise.analysis.host_summary import FORMAT, HostSummary, summarised
from hugewise.errors import HugewiseError, RunError, StorageError
from hugewise.files import made_folder, own, storing, write_whole
from hugewise.fleet.installation import package_digest
from hugewise.processes import die_with_parent, spawning

__all__ = ["keep", "place_of", "summaries", "summary"]

_FILES = ("run.jsonl", "study.json", "guests.json", "attempts.parquet")
_SUMMARY = msgspec.json.Decoder(HostSummary)
_MANY = 4  # runs from which processes of their own are worth their start


def summary(fleet: Path, run: Path) -> HostSummary:
    """That of the run's folder, kept in the fleet's. Raises RunError, UserError."""
    (found,) = summaries(fleet, [run], jobs=1)
    if isinstance(found, HugewiseError):
        raise found
    return found


def summaries(
    fleet: Path, runs: Sequence[Path], *, jobs: int | None = None, told: Callable[[int, int], object] | None = None
) -> list[HostSummary | HugewiseError]:
    """Of each run its summary, or why there is none. What was not kept is made in `jobs` processes (one a CPU).

    `told` hears how many of those that have to be made are there.
    """
    jobs = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(jobs) as pool:  # hashing lets go of the interpreter
        places = list(pool.map(functools.partial(place_of, fleet), runs))
    found = [one if isinstance(one, HugewiseError) else _kept(one) for one in places]
    missing = [at for at, one in enumerate(found) if one is None]
    made = _made(fleet, [runs[at] for at in missing], jobs, told)
    for at, one in zip(missing, made, strict=True):
        found[at] = one
    return [one for one in found if one is not None]


def place_of(fleet: Path, run: Path) -> Path | HugewiseError:
    """Where the summary of what now stands in the run's folder is."""
    running = hashlib.sha256(f"{FORMAT} {_source()}\n".encode())
    try:
        loose = sorted((run / "attempts").glob("*/attempt.json"))
        for path in (*(run / name for name in _FILES), *loose):
            if digest := _hashed(path):
                running.update(f"{path.relative_to(run)} {digest}\n".encode())
    except (OSError, reading.UnreadableError) as error:
        return RunError(f"{run}: {error}", hint="put a copy of it back")
    return fleet / "summaries" / f"{running.hexdigest()}.json"


@functools.cache
def _source() -> str:
    return package_digest(Path(hugewise.__file__).parent)


def _hashed(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None where there is none. Raises OSError, UnreadableError."""
    try:
        with reading.opened(path) as file:
            return reading.digest(file)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kept(place: Path) -> HostSummary | None:
    """None where there is none, or not what was written: it is made anew."""
    try:
        digest, _, text = reading.kept(place).partition(b"\n")
        if digest != hashlib.sha256(text).hexdigest().encode():
            return None
        return reading.decoded(_SUMMARY, text)
    except (OSError, reading.UnreadableError):
        return None


def keep(place: Path, summary: HostSummary) -> None:
    """On disk, where that can be: without it the next report takes longer."""
    with contextlib.suppress(StorageError), storing(str(place)):
        own(place.parent.parent, f"the fleet in {place.parent.parent}")
        made_folder(place.parent)
        text = msgspec.json.encode(summary)
        write_whole(place, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def _made(
    fleet: Path, runs: Sequence[Path], jobs: int, told: Callable[[int, int], object] | None
) -> list[HostSummary | HugewiseError]:
    found: list[HostSummary | HugewiseError] = []
    tell = told or (lambda _, __: None)
    one = functools.partial(_one, fleet)
    if len(runs) < _MANY or jobs < 2:
        for run in runs:
            found.append(one(run))
            tell(len(found), len(runs))
        return found
    try:
        spawn = multiprocessing.get_context("spawn")
        with (
            spawning(),
            ProcessPoolExecutor(
                min(jobs, len(runs)), mp_context=spawn, initializer=die_with_parent, initargs=(signal.SIGKILL,)
            ) as pool,
        ):
            for made in pool.map(one, runs):
                found.append(made)
                tell(len(found), len(runs))
    except BrokenProcessPool:
        raise HugewiseError(
            f"a process that was to read {runs[len(found)]} was killed",
            hint="free some memory, and ask again: what was read is kept",
        ) from None
    return found


def _one(fleet: Path, run: Path) -> HostSummary | HugewiseError:
    """Made, and kept where nothing was changed meanwhile."""
    try:
        before, made = place_of(fleet, run), summarised(run)
    except HugewiseError as error:
        return error
    if isinstance(before, Path) and before == place_of(fleet, run):
        keep(before, made)
    return made
