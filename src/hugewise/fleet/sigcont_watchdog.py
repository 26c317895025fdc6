"""Watchdog program on a host: continues an engine's worker that was stopped and that nobody holds any more.

A keeper that has the worker stopped holds an abstract socket named after the worker (`held_by`), which the kernel
releases when the keeper dies. This program checks every few seconds whether the worker is stopped. If it is, the
program waits for the end of the socket's holder, and continues a worker that is still stopped then. It sleeps while an
attempt is measured.

The worker starts it as a program of its own: it has none of the worker's keys, and imports nothing of hugewise. See
unix(7), proc_pid_stat(5), pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

_LOOK_S = 5.0
_START = 19  # index behind the name in /proc/PID/stat: field 22


def held_by(pid: int, start: int) -> str:
    """Return the name of the socket that marks a process as held stopped; `start` in clock ticks since boot."""
    return f"\0hugewise-fleet-holds-{pid}-{start}"


def start_watchdog(pid: int, start: int, look: float = _LOOK_S) -> subprocess.Popen[bytes]:
    """Start it for that process; it ends with it. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__)), str(pid), str(start), str(look)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _stopped(pid: int, start: int) -> bool | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if int(fields[_START]) != start or fields[0] in (b"Z", b"X"):
        return None
    return fields[0] == b"T"


def _held(pid: int, start: int, process: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.connect(held_by(pid, start))
        except OSError:
            return False
        select.select([holder.fileno(), process], [], [])  # nothing is ever said: it can be read when it is over
        return True


def main(pid: int, start: int, look: float) -> None:
    """Watch until that process has ended."""
    process = os.pidfd_open(pid)
    while (stopped := _stopped(pid, start)) is not None:
        if stopped and not _held(pid, start, process) and _stopped(pid, start):
            signal.pidfd_send_signal(process, signal.SIGCONT)
        if select.select([process], [], [], look)[0]:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
