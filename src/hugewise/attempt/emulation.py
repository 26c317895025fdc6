"""What may be said of an attempt on an emulated machine: counts and sizes, and never a time. Pure.

QEMU's TCG executes a guest's instructions exactly; it has no TLB, cache or pipeline of the guest's processor, and its
clock is the host's, or with `-icount shift=0` one nanosecond an instruction (QEMU, docs/devel/tcg-icount.rst).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hugewise.attempt import outcome
from hugewise.attempt.outcome import Outcome
from hugewise.machine import probe
from hugewise.model.metric import COMMON, NOT_IN_EMULATION, Metric

__all__ = ["exact", "instructions"]


def exact(found: Outcome, own: Sequence[Metric], counted: int | None = None) -> Outcome:
    """`found` with what emulation counts exactly; everything else is null, with that reason.

    `own` are the metrics of the workload beside the common ones; `counted` the instructions of the timed region where
    the guest counts them.
    """
    kept = {metric.name for metric in (*COMMON, *own) if metric.emulated}
    metrics = {name: value if name in kept else None for name, value in found.metrics.items()}
    absent = {name: why for name, why in found.absent.items() if name in kept}
    absent |= {name: NOT_IN_EMULATION for name in metrics if name not in kept}
    if counted is not None:
        metrics["instructions"] = counted
        absent.pop("instructions", None)
    return msgspec.structs.replace(found, metrics=metrics, absent=absent, cpu_s=None)


def instructions(events: Sequence[probe.Event]) -> int | None:
    """Instructions of a micro-workload's timed region, on a guest whose clock goes by them: its nanoseconds."""
    result = outcome.last(events, probe.Result)
    return None if result is None else result.wall_ns
