"""What a machine says that is not ours: a guest, whose kernel and whose agent may say anything.

Its texts (/proc, /sys, control groups) are read by the same functions as those of this host. Whatever these raise for a
text that no kernel writes becomes a MachineError here, at the boundary, so that an attempt ends and not a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hugewise.errors import MachineError
from hugewise.reading import UnreadableError, believing
from hugewise.visible import printable

__all__ = ["heard", "plain"]

_LONGEST = 300


def plain(text: str) -> str:
    """A foreign text for an error: without line breaks and what a terminal obeys, and not long."""
    return printable(text[:_LONGEST])


@contextmanager
def heard(name: str, what: str) -> Iterator[None]:
    """Read `what` of the guest `name`. Raises MachineError for whatever is wrong with it, an OSError included."""
    try:
        with believing(what):
            yield
    except UnreadableError as error:
        raise MachineError(f"{name}: {what}: this makes no sense ({plain(error.reason)})") from error
