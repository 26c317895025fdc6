"""What the servers of a system under test have begun, as the kernel says it while they are there.

Nobody follows a server, as a tracer would slow it. But the kernel keeps of each process whether it goes on with a copy
of its parent's memory (PF_FORKNOEXEC, of one that was forked and has executed nothing since), and of each parent the
page faults of the children that it has waited for: no child lives without one. What such a child was nobody can tell
any more. Children that are ignored (SIGCHLD) and have ended leave nothing behind; then nothing is known.

Source: proc_pid_stat(5), proc_pid_status(5); PF_FORKNOEXEC of the kernel's include/linux/sched.h; wait(2).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from hugewise.machine import proc
from hugewise.model.host import Host, text_of

__all__ = ["begotten"]

_STAT = re.compile(r"\d{1,10} \(.*\) (\S) ([-0-9 ]{1,2000})\s*", re.DOTALL)
_FLAGS, _CHILDREN_MINOR, _CHILDREN_MAJOR, _THREADS = 5, 7, 9, 16  # among the numbers behind the state
_COPY = 0x40
_SIGCHLD = 1 << 16


def begotten(host: Host, pids: Sequence[int], roots: Collection[int]) -> Mapping[str, int]:
    """Of the processes `pids`, of which `roots` were started as servers: those that are `forked` (copies of their
    parent), others that `executed` a program, `threads` beside the first ones, and those whose children have `ended`.
    Nothing where nothing is known of one of them.
    """
    forked = executed = threads = ended = 0
    for pid in pids:
        stat, status = (text_of(host, f"/proc/{pid}/{name}") for name in ("stat", "status"))
        said = None if stat is None else _STAT.fullmatch(stat)
        numbers = [] if said is None else [int(word) for word in said[2].split()]
        if status is None or len(numbers) <= _THREADS or _ignores_children(status):
            return {}
        copy = bool(numbers[_FLAGS] & _COPY)
        forked += copy
        executed += not copy and pid not in roots
        threads += max(0, numbers[_THREADS] - 1)
        ended += numbers[_CHILDREN_MINOR] + numbers[_CHILDREN_MAJOR] > 0
    return {"forked": forked, "executed": executed, "threads": threads, "ended": ended} if pids else {}


def _ignores_children(status: str) -> bool:
    """Whether its children vanish when they end, without anybody waiting for them."""
    said = proc.fields(status).get("SigIgn", "")
    return re.fullmatch(r"[0-9a-f]{1,32}", said) is None or bool(int(said, 16) & _SIGCHLD)
