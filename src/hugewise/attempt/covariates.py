"""What is measured of the host just before an attempt, for a study that names it as its covariate.

Each is taken before the knobs of the attempt's treatment are turned, so that its own treatment cannot have moved it.
What the attempt before it left behind can be in it: the second arm of a block is measured after the first. A study that
names a covariate therefore washes out before it: a pause, then loops that are thrown away. That makes such a mark
smaller and proves nothing; what is left of it is bounded by `hugewise.stats.covariate`.
"""

from __future__ import annotations

import contextlib
import time

from hugewise.model.host import Host

__all__ = ["measure"]

_TURNS = 20_000  # 1.3 ms of one 2.1 GHz core under CPython 3.11
_PAUSE, _DISCARDED = 0.05, 8  # of the wash-out: seconds without work, and loops (some 10 ms) to warm up again


def measure(host: Host, *, wash_out: bool = False) -> dict[str, float]:
    """Every covariate that this host has, by name. Takes about 1.5 ms; allocates no memory worth a page.

    With `wash_out` some 60 ms more, the same before every attempt: short marks of the one before it (a frequency that
    is still low or high, cold caches, work that is left to the kernel) have then passed.
    """
    if wash_out:
        time.sleep(_PAUSE)
        for _ in range(_DISCARDED):
            _canary()
    found = {"canary": _canary()}
    with contextlib.suppress(OSError, ValueError, IndexError):  # then not listed: it is missing, not 0
        found["load_before"] = float(host.read("/proc/loadavg").split()[0])
    return found


def _canary() -> float:
    """Seconds of wall time, so that a stolen or shared CPU shows as well as a slow one."""
    state, started = 1, time.perf_counter()
    for _ in range(_TURNS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return time.perf_counter() - started
