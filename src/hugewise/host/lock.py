"""One run per host, for root and ordinary users alike.

The lock is an abstract unix socket named with the boot id: the kernel gives it back when its holder dies, however it
dies, and tells a second comer the holder's pid (SO_PEERCRED). Abstract names belong to a network namespace, so a
container with its own network is not seen. See unix(7).
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from types import TracebackType

from hugewise.errors import LockedError, UserError
from hugewise.model.host import Host

__all__ = ["HostLock", "boot_id", "peer"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TRIES = 20


def boot_id(host: Host) -> str:
    """The kernel's random name of this boot."""
    return host.read("/proc/sys/kernel/random/boot_id")


def peer(connected: socket.socket) -> int:
    """The process at the other end of a unix socket."""
    pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


class HostLock:
    """Context manager that holds the host. Entering raises LockedError(pid) when somebody else does."""

    def __init__(self, host: Host) -> None:
        self._name = f"\0hugewise-{boot_id(host)}"
        self._socket: socket.socket | None = None

    def __enter__(self) -> HostLock:
        """Take the lock."""
        for _ in range(_TRIES):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                listener.bind(self._name)
                # Who asks stays in the queue: nobody accepts. A long queue keeps the answer available.
                listener.listen(socket.SOMAXCONN)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                self._socket = listener
                return self
            if (pid := self._holder()) is not None:
                raise LockedError(pid)
            time.sleep(0.05)  # it is between bind and listen, or has just let go
        raise UserError("another hugewise run holds this host, and does not say its pid", hint="see: ss -xlp")

    def _holder(self) -> int | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            try:
                asking.connect(self._name)
            except (ConnectionRefusedError, BlockingIOError):
                return None
            return peer(asking)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
