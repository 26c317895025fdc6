"""How far a download has come, while a program that says nothing of it is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugewise.quantity import format_duration

__all__ = ["told"]

_EVERY_S = 15.0


@contextmanager
def told(paths: Sequence[Path], total: int, say: Callable[[str], None], *, every: float = _EVERY_S) -> Iterator[None]:
    """Meanwhile say every so many seconds how many of `total` bytes have come of the files that appear at `paths`."""
    over = threading.Event()

    def watch() -> None:
        seconds = every
        while not over.wait(every):
            have = sum(map(_size, paths))
            share = f" ({have / total:.0%})" if total else ""
            say(f"fetched {have / 1e6:.1f} of {total / 1e6:.1f} MB{share} in {format_duration(seconds)}")
            seconds += every

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _size(path: Path) -> int:
    """Bytes of a file that is there; apt keeps what is not whole in a folder beside it."""
    for each in (path, path.parent / "partial" / path.name):
        try:
            return each.lstat().st_size
        except OSError:
            continue
    return 0
