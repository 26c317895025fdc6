"""Page-fault throughput: map, touch every base page once, unmap, again and again."""

from __future__ import annotations

from hugewise.model.metric import Metric
from hugewise.model.workload import Parameter
from hugewise.workloads._micro import Micro


class Fault(Micro):
    """First touch of fresh memory. The memory of the last round is held for the proof."""

    name = subcommand = "fault"
    description = "first touch of fresh memory: zeroing, allocation and page-table cost"
    parameters = (
        Parameter("bytes", "size", "128m", "memory touched in each round"),
        Parameter("rounds", "integer", 4, "rounds in the timed region"),
    )
    metrics = (
        Metric("ns_per_page", "ns", "lower", "time of the first touch, per base page touched"),
        Metric("bytes_per_s", "bytes/s", "higher", "memory made usable per second"),
    )


WORKLOAD = Fault()
