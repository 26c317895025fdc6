"""Dependent loads in a random cycle over the footprint: one node in each page, so that translation is what is timed."""

from __future__ import annotations

from hugewise.model.metric import Metric
from hugewise.model.workload import Parameter
from hugewise.workloads._micro import ResidentMicro


class Chase(ResidentMicro):
    """Pointer chase."""

    name = subcommand = "chase"
    description = "dependent loads in one random cycle, one node a stride (latency, bound by TLB and caches)"
    parameters = (
        Parameter("bytes", "size", "1g", "memory that the cycle visits"),
        Parameter("stride", "size", "4k", "distance of two nodes; the same in every arm"),
        Parameter("loads", "integer", 2_000_000, "loads in the timed region"),
        Parameter("seed", "integer", 1, "seed of the cycle"),
    )
    metrics = (Metric("ns_per_load", "ns", "lower", "time of one dependent load"),)


WORKLOAD = Chase()
