"""A terminal that a test reads."""

import os


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
