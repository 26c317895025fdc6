"""Independent 64-bit updates at pseudo-random places, after HPCC RandomAccess."""

from __future__ import annotations

from hugewise.model.metric import Metric
from hugewise.model.workload import Parameter
from hugewise.workloads._micro import ResidentMicro


class Gups(ResidentMicro):
    """Random updates."""

    name = subcommand = "gups"
    description = "independent random 64-bit updates (throughput, bound by TLB and memory parallelism)"
    parameters = (
        Parameter("bytes", "size", "1g", "memory of the table"),
        Parameter("updates", "integer", 8_000_000, "updates in the timed region"),
        Parameter("seed", "integer", 1, "seed of the places"),
    )
    metrics = (Metric("gups", "10^9 updates/s", "higher", "updates per nanosecond"),)


WORKLOAD = Gups()
