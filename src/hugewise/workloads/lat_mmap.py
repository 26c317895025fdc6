"""lat_mmap of lmbench, restated: map a shared file, touch a part of it, unmap."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.workload import Parameter, ParameterValue
from hugewise.workloads._micro import WITHOUT_OTHERS, Micro


class LatMmap(Micro):
    """Cost of mapping, touching and unmapping a shared file (McVoy and Staelin, USENIX 1996).

    The file is a memfd, which `enabled` never touches: under `thp` it has base pages, under `thp-shmem` huge ones. What
    is compared is the setting, and the coverage is reported. On hugetlb pages the memfd is one of hugetlbfs
    (MFD_HUGETLB), rounded up to whole pages of the pool, and touched at the same places.
    """

    name = subcommand = "lat-mmap"
    prefilled = False
    description = "map, touch and unmap a shared memory file (lmbench's lat_mmap, restated)"
    parameters = (
        Parameter("bytes", "size", "64m", "size of the file; at least 320k"),
        Parameter("rounds", "integer", 200, "maps in the timed region"),
        Parameter("random", "flag", False, "touch everywhere at a long stride instead of the first tenth"),
    )
    metrics = (
        Metric("us_per_map", "µs", "lower", "time of one map, touch and unmap"),
        Metric("maps_per_s", "maps/s", "higher", "maps a second, touched and unmapped"),
    )
    delivered_share = 0.0

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Advice on each map would be another workload; its file has the pages of a pool, or none."""
        if treatment.advice != "none":
            return "madvise on each map would change what is measured"
        if treatment.surplus:
            return WITHOUT_OTHERS
        return None


WORKLOAD = LatMmap()
