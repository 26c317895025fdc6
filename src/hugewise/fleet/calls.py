"""Calls to many hosts at once: each in a thread of its own, which nobody waits for when the coordinator ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["Calls", "at_once"]

_Key = TypeVar("_Key", bound=Hashable)
_Found = TypeVar("_Found")


class Calls(Generic[_Key, _Found]):
    """Functions that are under way, by what they are called for. At most `most` of them."""

    def __init__(self, most: int = 32) -> None:
        self.most, self.under_way = most, 0
        self._came: queue.SimpleQueue[tuple[_Key, _Found | BaseException]] = queue.SimpleQueue()

    @property
    def free(self) -> int:
        """How many more may be under way."""
        return self.most - self.under_way

    def start(self, key: _Key, function: Callable[[], _Found]) -> None:
        """Have it called."""

        def work() -> None:
            try:
                found: _Found | BaseException = function()
            except BaseException as error:  # whatever it is, it is raised where it is waited for
                found = error
            self._came.put((key, found))

        self.under_way += 1
        threading.Thread(target=work, daemon=True).start()

    def came(self, seconds: float) -> tuple[_Key, _Found | BaseException] | None:
        """The next that has returned or raised; None after so many seconds."""
        try:
            found = self._came.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        self.under_way -= 1
        return found


def at_once(
    function: Callable[[_Key], _Found], keys: Iterable[_Key], most: int = 32
) -> dict[_Key, _Found | BaseException]:
    """What a function returns, or raises, for each key."""
    calls: Calls[_Key, _Found] = Calls(most)
    found: dict[_Key, _Found | BaseException] = {}
    left = list(keys)[::-1]
    wanted = len(left)
    while len(found) < wanted:
        while left and calls.free:
            key = left.pop()
            calls.start(key, lambda key=key: function(key))  # type: ignore[misc]
        if (one := calls.came(1.0)) is not None:
            found[one[0]] = one[1]
    return found
