"""What a check found: one line of the report each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

__all__ = ["CheckResult", "Task"]


class CheckResult(msgspec.Struct, frozen=True):
    """One thing checked.

    check     the check's name
    case      what it was tried on
    seen      what came out, in words and figures
    required  what it must be
    passed    whether it is
    """

    check: str
    case: str
    seen: str
    required: str
    passed: bool


class Task(msgspec.Struct, frozen=True):
    """A piece of a check that runs in a process of its own: a module-level function and its arguments."""

    name: str
    function: Callable[..., Sequence[CheckResult]]
    arguments: tuple[Any, ...]

    def run(self) -> Sequence[CheckResult]:
        """The findings of this piece."""
        return self.function(*self.arguments)
