"""mmap-perf, restated from its description of 2009: pseudo-random mmap, munmap, mremap calls, touching now and then.

Source: Ingo Molnar, linux-kernel mailing list, January 2009 ("1 million mmap()/munmap()/mremap() calls").
"""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.metric import Metric
from hugewise.policy import Treatment
from hugewise.workload import Parameter, ParameterValue
from hugewise.workloads._micro import Micro

__all__ = ["WORKLOAD"]


class MmapPerf(Micro):
    """Cost of the mapping calls themselves. Few maps are large enough for the pages that a policy allows: what is
    compared is the setting (intention to treat), and the coverage is reported, not demanded.
    """

    name = subcommand = "mmap-perf"
    description = "pseudo-random mmap/munmap/mremap calls over 1,024 slots, touching now and then"
    parameters = (
        Parameter("calls", "integer", 1_000_000, "calls in the timed region"),
        Parameter("max_bytes", "size", "256k", "largest map"),
        Parameter("touch_chance", "share", 0.25, "chance that a map is touched after it was made or resized"),
        Parameter("seed", "integer", 1, "seed of the sequence; its hash is in the result"),
    )
    metrics = (Metric("ns_per_call", "ns", "lower", "time of one call, touching included"),)
    delivered_share = 0.0

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Anonymous maps of odd sizes cannot come from a hugetlb pool; advice on each map would be another workload."""
        if treatment.map_hugetlb is not None:
            return "its maps are smaller than a huge page of the pool"
        if treatment.advice != "none":
            return "madvise on each of its maps would change the sequence of calls that is measured"
        return None

    def footprint(self, values: Mapping[str, ParameterValue]) -> int:
        """At most every slot touched in full."""
        largest = values["max_bytes"]
        assert isinstance(largest, int)
        return 1024 * largest


WORKLOAD = MmapPerf()
