"""The process that keeps the free memory of this host in pieces, by the probe's `fragment`.

It pins a page in each free block that a huge page fits into. The memory is its own: it is free again when it ends, and
it ends with this process, whatever ends that (its parent-death signal, and the end of its stdin). What other programs
have allocated meanwhile lies scattered, so memory is compacted afterwards.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

from hugewise.errors import ProbeError
from hugewise.host.ledger import Fragmenting
from hugewise.machine import probe
from hugewise.machine.proc import start_time
from hugewise.model.host import Host, text_of

__all__ = ["COMPACT", "Fragmenter", "compact", "end"]

COMPACT = "/proc/sys/vm/compact_memory"

_PATIENCE_S = 3600.0  # some ms a block: of a machine with TiB there are a million
_GONE_S = 10.0
_COMM = "hugewise-probe"


class Fragmenter:
    """A running fragmenter; `close` undoes what it did. `note` (the journal) hears of it before it takes anything."""

    def __init__(self, host: Host, floor: int, note: Callable[[Fragmenting], None], *options: str) -> None:
        """Start one that leaves `floor` bytes of available memory to others. Raises ProbeError, StorageError."""
        self._host = host
        self._process = subprocess.Popen(
            [probe.find(), "fragment", "--floor", str(floor), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            note(Fragmenting(self._process.pid, start_time(host, self._process.pid) or 0))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it is there: the kernel ends it first where memory is short."""
        return self._process.poll() is None

    def hold(self, most: int) -> probe.Fragmented:
        """Have at most `most` bytes in free blocks that a huge page fits into, after compaction, as far as it can be
        had; what there is. Raises ProbeError.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.write(f"{most}\n".encode())
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], _PATIENCE_S)[0]:
            raise ProbeError(f"memory is not fragmented after {_PATIENCE_S:g} s")
        found = next(probe.decode([self._process.stdout.readline()]), None)
        if isinstance(found, probe.Fragmented):
            return found
        raise ProbeError(f"memory cannot be fragmented: {self._complaint()}")

    def close(self) -> None:
        """End it, whatever it does: its memory is free when this returns."""
        probe.put_away(self._process)

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip()
        return said or f"the probe ended with {self._process.wait()}, and said nothing"


def compact(host: Host) -> None:
    """Have the kernel put together what can be moved. A kernel without compaction has no such file."""
    with suppress(OSError):
        host.write(COMPACT, "1")


def end(host: Host, one: Fragmenting) -> bool:
    """End the fragmenter of a dead run, if it is still that process; whether it was there."""
    alive = start_time(host, one.pid) == one.pid_start
    if not alive or text_of(host, f"/proc/{one.pid}/comm") != _COMM:
        return False
    with suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    give_up = time.monotonic() + _GONE_S
    while start_time(host, one.pid) == one.pid_start and time.monotonic() < give_up:
        time.sleep(0.01)
    return True
