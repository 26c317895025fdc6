"""Closing a session: everything that was opened is put back, whoever presses Ctrl-C meanwhile."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from hugewise.errors import HugewiseError
from hugewise.store.folder import RunFolder

__all__ = ["close", "gather"]


def close(closing: ExitStack) -> None:
    """Close everything, also when another Ctrl-C comes just before the signals are blocked: it is raised afterwards.

    A step that fails keeps no other from being done. What failed is raised as one error, which tells all of it.
    """
    before = sys.exception()  # an exit stack forgets it
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            with _uninterrupted():
                closing.close()
            break
        except KeyboardInterrupt as error:
            interrupt = error  # what was closed is off the stack
        except HugewiseError as error:
            _tell_all(error, before)
            raise
    if interrupt is not None:
        raise interrupt


def gather(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Gather the attempts of a run that has ended; where there is no room for it, they stay in their folders."""
    try:
        folder.compact()
    except HugewiseError as error:
        say(f"the attempts stay in their folders: {error}")


def _tell_all(error: HugewiseError, before: BaseException | None) -> None:
    """Have the message of the last error tell what went wrong before, in its order."""
    found, causes = [], set()
    for first in (error, before):
        each = first
        while each is not None:
            if isinstance(each, HugewiseError) and each not in causes and each.message not in found:
                found.append(each.message)
            causes.add(each.__cause__)
            each = each.__context__
    error.message = "\n  ".join(reversed(found))
    error.args = (error.message,)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not break off the restoring."""
    asking = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, asking)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, asking)
