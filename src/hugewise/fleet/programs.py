"""Programs that carry: the caller's own ssh, and sudo on a host. They are given bytes, and heard with limits."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from hugewise.errors import HostLostError, HugewiseError

__all__ = ["Talked", "talked"]

_CHUNK = 1 << 16
_MOST_ERRORS = 64 << 10


class Talked(msgspec.Struct, frozen=True):
    """What a program said to its end. `status` negative: the signal that ended it."""

    status: int
    said: bytes
    errors: str

    @property
    def why(self) -> str:
        """Its last words, or its exit status."""
        lines = [line for line in self.errors.strip().splitlines() if line.strip()]
        return lines[-1].strip()[:500] if lines else f"exit status {self.status}"


def talked(argv: Sequence[str], data: bytes, *, timeout: float, most: int) -> Talked:
    """Start a program, give it `data` on its standard input, and hear it to its end.

    It ends with this process group's Ctrl-C only by what it is given: it has a session of its own, so that an order
    that is under way is not torn. Raises HostLostError after `timeout` seconds, HugewiseError where it says more than
    `most` bytes or cannot be started.
    """
    try:
        running = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise HugewiseError(f"{argv[0]} cannot be started: {error.strerror or error}") from None
    feeding = threading.Thread(target=_feed, args=(running, data), daemon=True)
    feeding.start()
    try:
        said, errors = _heard(running, argv[0], timeout, most)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)  # of one that has ended: what it left
        running.wait()
        feeding.join()
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()
    return Talked(running.returncode, said, errors.decode(errors="replace"))


def _feed(running: subprocess.Popen[bytes], data: bytes) -> None:
    assert running.stdin is not None
    with suppress(OSError):  # it may end before it has heard all
        running.stdin.write(data)
    with suppress(OSError):
        running.stdin.close()


def _heard(running: subprocess.Popen[bytes], name: str, timeout: float, most: int) -> tuple[bytes, bytes]:
    assert running.stdout is not None
    assert running.stderr is not None
    end = time.monotonic() + timeout
    said = {running.stdout.fileno(): bytearray(), running.stderr.fileno(): bytearray()}
    out, errors = said
    with selectors.DefaultSelector() as waiting:
        for descriptor in said:
            waiting.register(descriptor, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:
                raise HostLostError(f"no answer within {timeout:g} s ({name})")
            for key, _ in ready:
                more = os.read(key.fd, _CHUNK)
                if not more:
                    waiting.unregister(key.fd)
                elif key.fd == out:
                    said[out] += more
                    if len(said[out]) > most:
                        raise HugewiseError(f"{name} says more than {most:,} bytes")
                else:
                    said[errors] = (said[errors] + more)[-_MOST_ERRORS:]
    try:
        running.wait(max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise HostLostError(f"no end within {timeout:g} s ({name})") from None
    return bytes(said[out]), bytes(said[errors])
