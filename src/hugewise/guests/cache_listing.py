"""What the cache holds, for the terminal, and the removal of what is not used any more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.guests import cache
from hugewise.guests.kernels import store
from hugewise.guests.survey import Survey
from hugewise.model.guest import Kernel
from hugewise.quantity import readable_size

_KINDS = ("apt", "images", "kernels", "packages", "surveys")
_UNFINISHED = "unfinished"
_LISTS = re.compile(r"^(?:Types|Suites|Architectures): (.*)$", re.MULTILINE)


class CacheEntry(msgspec.Struct, frozen=True):
    """One entry. `size` in bytes on the disk, `used` in seconds since the epoch; `paths` are removed together.

    What is `unfinished` is being made; when nobody else holds the cache, it is what a killed process left.
    """

    kind: str
    name: str
    size: int
    used: float
    paths: tuple[Path, ...]
    unfinished: bool = False


def entries() -> list[CacheEntry]:
    """What the cache holds, by kind and last use, the oldest first. Raises StorageError."""
    top = cache.folder()
    found = [each for kind in _KINDS if (top / kind).is_dir() for each in _of(top / kind)]
    return sorted(found, key=lambda each: (each.kind, each.used, each.name))


def remove_unused(seconds: float) -> list[CacheEntry]:
    """Remove what was not used for so long, and what killed processes left for so long; what was removed.

    Raises UserError where another process holds the cache, StorageError.
    """
    with cache.alone() as top:
        before = time.time() - seconds
        gone = [each for each in entries() if each.used <= before]
        for each in gone:
            for path in each.paths:
                cache.discard(path)
        for note in (top / store.KIND).glob("*.note"):
            if not store.kernel_folder(note).exists():
                cache.discard(note)
    return gone


def show(found: Iterable[CacheEntry], closing: str) -> None:
    """Print entries, and a line about how many and how large they are: `closing` with both in front."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    count = total = 0
    for each in found:
        count, total = count + 1, total + each.size
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used))
        table.add_row(each.kind, each.name, readable_size(each.size), when)
    console = TextConsole()
    if count:
        console.print(table)
    console.print(f"{count} {'entry' if count == 1 else 'entries'}, {readable_size(total)} {closing}", soft_wrap=True)


def _of(folder: Path) -> Iterator[CacheEntry]:
    """The entries of a kind: a log is its kernel's, and notes are found again by what they name."""
    groups: dict[str, list[Path]] = {}
    for path in folder.iterdir():
        if path.name.endswith((".lock", ".note")):
            continue
        hidden = path.name.startswith(".")
        groups.setdefault(path.name if hidden else path.name.partition(".")[0], []).append(path)
    for name, paths in groups.items():
        unfinished = name.startswith(".")
        made = folder / name.removeprefix(".").partition(".")[0]
        told = f"being made: {made.name[:8]}" if unfinished and cache.busy(made) else f"{_UNFINISHED} {name}"
        yield CacheEntry(
            kind=folder.name,
            name=told if unfinished else f"{_entry_names(folder / name)} ({name[:8]})",
            size=sum(map(_size, paths)),
            used=max(path.lstat().st_mtime for path in paths),
            paths=tuple(sorted(paths)),
            unfinished=unfinished,
        )


def _entry_names(path: Path) -> str:
    """What an entry is to a reader, as far as it says so itself."""
    try:
        match path.parent.name:
            case "kernels" if not path.exists():
                return "log of a build that is under way" if cache.busy(path) else "log of a build that failed"
            case "kernels":
                kernel = msgspec.json.decode((path / store.RECORD).read_bytes(), type=Kernel)
                return f"{kernel.name} {kernel.release}"
            case "packages":
                return " ".join(sorted(each.name for each in path.iterdir())) or "empty"
            case "surveys":
                return f"of {msgspec.json.decode(path.read_bytes(), type=Survey).release}"
            case "apt":
                return "lists of " + " ".join(_LISTS.findall((path / "main.sources").read_text(encoding="utf-8")))
            case _:
                return "image" if path.is_dir() else "initramfs"
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return "damaged"


def _size(path: Path) -> int:
    """Bytes on the disk of a file or of a folder with everything in it. What goes meanwhile is not counted."""
    total = 0
    try:
        total += path.lstat().st_blocks * 512
        if path.is_dir() and not path.is_symlink():
            with os.scandir(path) as below:
                total += sum(_size(Path(each.path)) for each in below)
    except FileNotFoundError:
        pass
    return total
