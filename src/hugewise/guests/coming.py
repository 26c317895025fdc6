"""How far a download or a file has come, while a program that says nothing of it is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugewise.quantity import format_duration

__all__ = ["EVERY_S", "told", "watched", "written"]

EVERY_S = 15.0


@contextmanager
def told(paths: Sequence[Path], total: int, say: Callable[[str], None], *, every: float = EVERY_S) -> Iterator[None]:
    """Meanwhile say every so many seconds how many of `total` bytes have come of the files that appear at `paths`."""
    with watched("fetched", lambda: sum(map(_size, paths)), total, say, every=every):
        yield


@contextmanager
def watched(
    done: str, have: Callable[[], int], total: int, say: Callable[[str], None], *, every: float = EVERY_S
) -> Iterator[None]:
    """Meanwhile say every so many seconds how many bytes there are (`have`, called by another thread) of `total`, which
    may be an estimate. `done`: what was done with them, in a word.
    """
    over = threading.Event()

    def watch() -> None:
        seconds = every
        while not over.wait(every):
            here = have()
            most = max(here, total)
            share = f" ({here / most:.0%})" if total else ""
            say(f"{done} {here / 1e6:.1f} of {most / 1e6:.1f} MB{share} in {format_duration(seconds)}")
            seconds += every

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def written(path: Path) -> int:
    """Bytes that a file takes on the disk: none of its holes, and none where it is not there."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _size(path: Path) -> int:
    """Bytes of a file that is there; apt keeps what is not whole in a folder beside it."""
    for each in (path, path.parent / "partial" / path.name):
        try:
            return each.lstat().st_size
        except OSError:
            continue
    return 0
