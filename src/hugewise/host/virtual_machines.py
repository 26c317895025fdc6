"""Memory that virtual machines of others were promised on this host, and do not have yet.

A guest takes its memory when it touches it, unless it was preallocated: what is free now is partly theirs. Read from
the command lines of QEMUs (`-m size=8388608k`, as libvirt writes it; `-m 8G`; `-m 8192` in MiB: qemu(1)) and what each
has (proc_pid_status(5): VmRSS, HugetlbPages).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hugewise.model.host import Host

__all__ = ["PROGRAM", "not_taken_yet"]

PROGRAM = re.compile(r"qemu-system-\w+|qemu-kvm|kvm")
"""What QEMUs that run machines are called: upstream and Debian, RHEL, Proxmox."""

_SIZE = re.compile(r"(?:size=)?(\d{1,15})([bkmgtBKMGT]?)")
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_HAS = re.compile(r"^(?:VmRSS|HugetlbPages):\s+(\d+) kB$", re.MULTILINE)


def not_taken_yet(host: Host) -> int:
    """Bytes that the QEMUs of this host may still take. Processes that cannot be looked at count nothing."""
    return sum(_lacking(host))


def _lacking(host: Host) -> Iterator[int]:
    for name in host.names("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):
            words = host.read(f"/proc/{name}/cmdline").split("\0")
            program = words[0].rpartition("/")[2]
            if PROGRAM.fullmatch(program) is None or (promised := _promised(words)) is None:
                continue
            has = sum(int(size) << 10 for size in _HAS.findall(host.read(f"/proc/{name}/status")))
            yield max(0, promised - has)


def _promised(words: Sequence[str]) -> int | None:
    """Bytes after the last `-m`; None where there is none that is understood."""
    found = None
    for option, value in itertools.pairwise(words):
        match = _SIZE.fullmatch(value.partition(",")[0]) if option in ("-m", "--m") else None
        if match is not None:
            found = int(match[1]) * _UNITS[(match[2] or "m").lower()]
    return found
