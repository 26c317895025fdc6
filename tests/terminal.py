"""A terminal that a test reads, or has as its input."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def as_input() -> Iterator[None]:
    """Meanwhile the standard input of this process is a terminal."""
    held = os.dup(0)
    ours, theirs = os.openpty()
    os.dup2(theirs, 0)
    try:
        yield
    finally:
        os.dup2(held, 0)
        for each in (held, ours, theirs):
            os.close(each)


def drained(descriptor: int) -> str:
    """All that was sent to a terminal that others have closed, or are about to; closes it."""
    told, reading = b"", True
    os.set_blocking(descriptor, False)
    while reading:
        try:
            told += (some := os.read(descriptor, 1 << 16))
            reading = bool(some)
        except OSError:  # of a terminal that has nothing more
            reading = False
    os.close(descriptor)
    return told.decode("utf-8", "replace")
