"""Closing a session: everything that was opened is put back, whoever presses Ctrl-C meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["close"]


def close(closing: ExitStack) -> None:
    """Close everything, also when another Ctrl-C comes just before the signals are blocked: it is raised afterwards."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            with _uninterrupted():
                closing.close()
            break
        except KeyboardInterrupt as error:
            interrupt = error  # what was closed is off the stack
    if interrupt is not None:
        raise interrupt


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not break off the restoring."""
    asking = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, asking)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, asking)
