"""QEMU's monitor, asked and answered one command at a time. The only module that knows qemu.qmp."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from qemu.qmp import QMPClient, QMPError

from hugewise.errors import MachineError

__all__ = ["Qmp"]

_PATIENCE_S = 30.0
_T = TypeVar("_T")


class Qmp:
    """A monitor over a connected socket, which it takes over. Its event loop turns only while it is asked."""

    def __init__(self, connected: socket.socket, patience: float = _PATIENCE_S) -> None:
        """Hear QEMU's greeting. Raises MachineError."""
        self._loop = asyncio.new_event_loop()
        self._client = QMPClient("hugewise")
        # That QEMU went away is told by who asks; the library also logs it.
        self._client.logger.setLevel(logging.CRITICAL)
        try:
            self._do(self._client.connect(connected), patience)
        except BaseException:
            connected.close()
            self.close()
            raise

    def execute(self, command: str, patience: float = _PATIENCE_S, **arguments: object) -> Any:
        """Give a command and return what it returns, as plain JSON values. Raises MachineError."""
        return self._do(self._client.execute(command, arguments or None), patience)

    def _do(self, work: Coroutine[Any, Any, _T], patience: float) -> _T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, patience))
        except TimeoutError:
            raise MachineError(f"QEMU's monitor does not answer within {patience:g} s") from None
        except (QMPError, OSError, EOFError) as error:
            raise MachineError(f"QEMU's monitor: {error}") from None

    def close(self) -> None:
        """Let go of it; QEMU goes on. Nothing happens the second time."""
        if self._loop.is_closed():
            return
        with suppress(Exception):  # a connection that is lost already is told again here
            self._loop.run_until_complete(asyncio.wait_for(self._client.disconnect(), 1.0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
