"""mmap-perf, restated from its description of 2009: pseudo-random mmap, munmap, mremap calls, touching now and then.

Source: Ingo Molnar, linux-kernel mailing list, January 2009 ("1 million mmap()/munmap()/mremap() calls").
"""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.workload import Parameter, ParameterValue
from hugewise.workloads._micro import WITHOUT_OTHERS, Micro, whole_pages

_SLOTS = 1024  # as in the probe


class MmapPerf(Micro):
    """Cost of the mapping calls themselves. Few maps are large enough for the pages that a policy allows, unless
    `huge_maps` makes them so: what is compared is the setting (intention to treat), and the coverage is reported, not
    demanded.

    On hugetlb pages it is the same sequence, each map as many whole pages of the pool as it needs. The kernel lets no
    such map grow by mremap (EINVAL): there it is mapped anew, what was written is copied, and the old one is unmapped.
    """

    name = subcommand = "mmap-perf"
    prefilled = False
    description = "pseudo-random mmap/munmap/mremap calls over 1,024 slots, touching now and then"
    parameters = (
        Parameter("calls", "integer", 1_000_000, "calls in the timed region"),
        Parameter("max_bytes", "size", "256k", "largest map"),
        Parameter("touch_chance", "share", 0.25, "chance that a map is touched after it was made or resized"),
        Parameter("huge_maps", "flag", False, "maps are multiples of the PMD size, so that huge pages fit"),
        Parameter("seed", "integer", 1, "seed of the sequence; its hash is in the result"),
    )
    metrics = (
        Metric("ns_per_call", "ns", "lower", "time of one call, touching included"),
        Metric("calls_per_s", "calls/s", "higher", "calls a second, touching included"),
    )
    delivered_share = 0.0

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        """Advice on each map would be another workload; its maps have the pages of a pool, or none."""
        if treatment.advice != "none":
            return "madvise on each of its maps would change the sequence of calls that is measured"
        if treatment.surplus:
            return WITHOUT_OTHERS
        return None

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        """Return the memory with every slot mapped at the average size, an upper limit: two thirds are mapped."""
        largest, chance, calls = values["max_bytes"], values["touch_chance"], values["calls"]
        assert isinstance(largest, int)
        assert isinstance(calls, int)
        assert isinstance(chance, int | float)
        if treatment.map_hugetlb is None:
            average = largest if values["huge_maps"] else largest / 2  # few multiples average more than the half
            return int(min(_SLOTS, calls) * average * min(1.0, 2 * chance))
        # Up to k pages of the pool: 1 to k are equally likely, but for the last one where it is cut short.
        pages = whole_pages(largest, treatment.map_hugetlb) // treatment.map_hugetlb
        return _SLOTS * (pages + 1) // 2 * treatment.map_hugetlb


WORKLOAD = MmapPerf()
