"""Which runs of a study this host has seen before: a reader who is shown one of several should know of all.

Whoever runs a study until it comes out as wished, and shows that run, has no error rate. So every run names those
that were begun before it, also the ones that were broken off. A run that measured something else is another study's;
the pairs of runs on different machines have no spread in common.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hugewise.errors import UserError
from hugewise.store.folder import RunFolder
from hugewise.store.records import Opened
from hugewise.study.study import Study

__all__ = ["called", "comparable", "earlier_runs", "of_study", "unlike"]

# What the studies of two runs must share; name, budget, margin, confidence and method change no pair.
_SAME = ("policies", "workload", "cells", "between", "design", "guest", "kernel")
_OF_GUESTS = ("accelerator", "cpu model")


def earlier_runs(study: Study, opened: Opened, results: Path) -> tuple[tuple[str, ...], int]:
    """The runs below the folder `results` that measure what `study` does, on the host of the run that begins with
    `opened`: their folders as `STUDY/RUN`, the newest first; and how many folders cannot be read, which may be more.

    A run counts from its first record on.
    """
    found, unread = _seen(study, results)
    named = tuple(
        folder.path.relative_to(results).as_posix()
        for first, folder in found
        if first.run != opened.run and unlike(first, opened) is None
    )
    return named, unread


def of_study(study: Study, results: Path) -> list[tuple[Opened, RunFolder]]:
    """The runs and pilots below `results` that measure what `study` does, on any host, the newest first.

    Folders that cannot be read are passed over. Of each only the first record and the study are read, so that long runs
    cost no more than short ones.
    """
    return _seen(study, results)[0]


def called(names: Collection[str], results: Path) -> list[RunFolder]:
    """The runs below `results` whose studies have one of these names, whatever part of them was measured, the newest
    first. Folders that cannot be read are passed over.
    """
    found = []
    for place in (place for name in names for place in _listed(results / name)):
        with suppress(OSError, UserError):
            (place / "run.jsonl").lstat()
            found.append((RunFolder(place).opened().t, place))
    return [RunFolder(place) for _, place in sorted(found, reverse=True)]


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _seen(study: Study, results: Path) -> tuple[list[tuple[Opened, RunFolder]], int]:
    """The runs of the study, and the number of folders that cannot be read."""
    found = []
    places, unread = _folders(results)
    for place in places:
        folder = RunFolder(place)
        try:
            (place / "run.jsonl").lstat()
            first = folder.opened()
            if comparable(study, folder.study(first)) is None:
                found.append((first, folder))
        except (FileNotFoundError, NotADirectoryError):
            continue  # no run
        except (OSError, UserError):
            unread += 1
    return sorted(found, key=lambda each: (each[0].t, each[1].path), reverse=True), unread


def _folders(results: Path) -> tuple[list[Path], int]:
    """What lies in the folders of `results`, and the number of those that cannot be listed."""
    found, unread = [], 0
    for study in results.iterdir() if results.is_dir() else ():
        try:
            found += list(study.iterdir())
        except NotADirectoryError:
            continue
        except OSError:
            unread += 1
    return found, unread


def comparable(study: Study, other: Study) -> str | None:
    """The key in which `other` measures something else than `study`, or None: its pairs speak for the study."""
    if study.compared_with != other.compared_with:
        return "baseline"
    for name in _SAME:
        if getattr(study, name, None) != getattr(other, name, None):
            return name
    return None


def unlike(run: Opened, first: Opened) -> str | None:
    """In what the machine of `run` differs from that of `first`, or None: their pairs can be put together.

    That is the host, the mechanism, and of guests the accelerator, the CPU model and the content of the kernels.
    """
    here, there = _machine(run), _machine(first)
    for name in dict.fromkeys((*there, *here)):
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'none')}, there {there.get(name, 'none')}"
    return None


def _machine(opened: Opened) -> dict[str, str]:
    """What ran, by name. Of the accelerator the reason after its name does not count."""
    found = {"host": str(opened.host.get("machine") or opened.host.get("name")), "mechanism": opened.mechanism}
    for name, version in opened.versions.items():
        if name in _OF_GUESTS or name.startswith("kernel "):
            found[name] = version.partition(":")[0] if name == "accelerator" else version
    return found
