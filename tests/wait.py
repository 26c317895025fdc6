"""Waiting for a condition: a test that waits in vain says for what, and what was there at the last look."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hugewise import processes

__all__ = ["has_ended", "until"]

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T], what: str, seconds: float = 60, *, seen: Callable[[], object] | None = None
) -> _T:
    """The first value of `condition` that is true; it is asked again and again. `what` is a text: "the server answers".

    Raises AssertionError after `seconds`, with what `seen` returns then, or without it the last value of `condition`.
    """
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end  # before the look: this process may itself have stood still
        if value := condition():
            return value
        assert not late, f"not within {seconds:g} s: {what}; last seen: {seen() if seen else value!r}"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Whether the process has ended: it is gone, or a zombie. Init reaps an orphan when it likes."""
    stat = processes.stat(Path(f"/proc/{pid}"))
    return stat is None or stat.has_ended
