"""lat_mmap of lmbench, restated: map a shared file, touch a part of it, unmap."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.metric import Metric
from hugewise.policy import Treatment
from hugewise.workload import Parameter, ParameterValue
from hugewise.workloads._micro import Micro

__all__ = ["WORKLOAD"]


class LatMmap(Micro):
    """Cost of mapping, touching and unmapping a shared file (McVoy and Staelin, USENIX 1996)."""

    name = subcommand = "lat-mmap"
    description = "map, touch and unmap a shared memory file (lmbench's lat_mmap, restated)"
    parameters = (
        Parameter("bytes", "size", "64m", "size of the file; at least 320k"),
        Parameter("rounds", "integer", 200, "maps in the timed region"),
        Parameter("random", "flag", False, "touch everywhere at a long stride instead of the first tenth"),
    )
    metrics = (Metric("us_per_map", "µs", "lower", "time of one map, touch and unmap"),)
    delivered_share = 0.0

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """A shared file is not anonymous memory."""
        if treatment.map_hugetlb is not None:
            return "it maps a shared file, not a hugetlb pool"
        if treatment.advice != "none":
            return "madvise on each map would change what is measured"
        return None


WORKLOAD = LatMmap()
