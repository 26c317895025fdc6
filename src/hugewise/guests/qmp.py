"""QEMU's monitor, asked and answered one command at a time. The only module that knows qemu.qmp.

The library is an extra of the package: what needs no monitor works without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from hugewise.errors import MachineError, UserError

LACKING, CURE = "guests need the Python package qemu.qmp", "pip install 'hugewise[vm]'"
_PATIENCE_S = 30.0
_T = TypeVar("_T")


def missing() -> bool:
    """Whether the library is not there."""
    try:
        return importlib.util.find_spec("qemu.qmp") is None
    except ModuleNotFoundError:  # nor anything else of `qemu`
        return True


def must_be_there() -> None:
    """Raise UserError, with the cure, where the library is missing."""
    if missing():
        raise UserError(LACKING, hint=CURE)


class Qmp:
    """A monitor over a connected socket, which it takes over. Its event loop turns only while it is asked."""

    def __init__(self, connected: socket.socket, patience: float = _PATIENCE_S) -> None:
        """Hear QEMU's greeting. Raises MachineError, and UserError where the library is missing."""
        must_be_there()
        from qemu.qmp import QMPClient, QMPError  # noqa: PLC0415  (an extra)

        self._error = QMPError
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
        except (self._error, OSError, EOFError) as error:
            raise MachineError(f"QEMU's monitor: {error}") from None

    def close(self) -> None:
        """Let go of it; QEMU goes on. Nothing happens the second time."""
        if self._loop.is_closed():
            return
        with suppress(Exception):  # a connection that is lost already is told again here
            self._loop.run_until_complete(asyncio.wait_for(self._client.disconnect(), 1.0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
