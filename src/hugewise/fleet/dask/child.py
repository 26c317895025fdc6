"""The process of Dask's scheduler, as the coordinator has it."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from typing import Final

import msgspec

from hugewise.errors import HugewiseError
from hugewise.fleet.certificates import Identity
from hugewise.fleet.dask.scheduler import SchedulerSettings

__all__ = ["SchedulerChild"]

_MODULE: Final = "hugewise.fleet.dask.scheduler"


class SchedulerChild:
    """Started, and at `address` (tls://...) when this returns. Raises HugewiseError where it is not."""

    def __init__(self, identity: Identity, address: str, port: int | None) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],  # of no folder that the coordinator is in
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            start_new_session=True,
        )
        told = SchedulerSettings(identity=identity, address=address, port=port)
        assert self._running.stdin is not None and self._running.stdout is not None
        with suppress(OSError):  # it has ended: what it said tells why
            self._running.stdin.write(msgspec.json.encode(told) + b"\n")
            self._running.stdin.flush()
        said = self._running.stdout.readline().decode(errors="replace").strip()
        word, _, rest = said.partition(" ")
        if word != "at":
            self.end()
            raise HugewiseError(
                f"Dask's scheduler cannot listen at {address}{'' if port is None else f' port {port}'}:"
                f" {rest or 'it ended without a word'}",
                hint="[fleet] address is one of this machine's own, and port a free one",
            )
        self.address = rest

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running.pid

    def ended(self) -> str | None:
        """How it ended; None while it lives."""
        status = self._running.poll()
        if status is None:
            return None
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        """End it: it keeps nothing."""
        self._running.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
