"""Micro-workloads of the probe, and what all of these share: the treatment reaches them by madvise or MAP_HUGETLB."""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.workload import Launch, Missing, Parameter, ParameterValue, RunsAs

WITHOUT_OTHERS = "it would fail where the kernel has no such page to give: it maps no others then"


def whole_pages(size: int, page: int) -> int:
    """`size` rounded up to whole pages of `page` bytes."""
    return -(-size // page) * page


class Micro:
    """A micro-workload of the probe that names its memory and holds it for the proof.

    A subclass gives name, description, parameters, metrics and `arguments`; parameters that the probe spells alike
    are passed on as `--name value`.

    prefilled  whether its memory is touched before the timed region
    """

    subcommand: str
    account: RunsAs = "unprivileged"
    delivered_share = 0.95
    prefilled = True

    def refuses(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> str | None:
        # the mapping is our own, so every treatment can be applied
        return None

    def missing(self, values: Mapping[str, ParameterValue]) -> tuple[Missing, ...]:
        return ()

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        argv = [self.subcommand]
        for name, value in values.items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                argv.append(option)
            elif value is not False:
                argv += [option, str(value)]
        if treatment.map_hugetlb is not None:
            argv += ["--map", f"hugetlb:{treatment.map_hugetlb}"]
        if treatment.surplus:
            argv.append("--or-base")
        if treatment.advice != "none":
            argv += ["--advice", treatment.advice]
        return Launch(argv=tuple(argv), micro=True, proof="ranges")

    def filled(self, values: Mapping[str, ParameterValue]) -> bool:
        return self.prefilled

    def memory(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return whole_pages(self.footprint(values), treatment.target.size)

    def pool(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        return self.memory(treatment, values) if treatment.map_hugetlb is not None else 0

    def footprint(self, values: Mapping[str, ParameterValue]) -> int:
        size = values["bytes"]
        assert isinstance(size, int)
        return size


class Chase(Micro):
    """Dependent loads in a random cycle, one node in each page, so that translation is what is timed."""

    name = subcommand = "chase"
    description = "dependent loads in one random cycle, one node a stride (latency, bound by TLB and caches)"
    parameters = (
        Parameter("bytes", "size", "1g", "memory that the cycle visits"),
        Parameter("stride", "size", "4k", "distance of two nodes; the same in every arm"),
        Parameter("loads", "integer", 2_000_000, "loads in the timed region"),
        Parameter("seed", "integer", 1, "seed of the cycle"),
    )
    metrics = (Metric("ns_per_load", "ns", "lower", "time of one dependent load"),)


class Fault(Micro):
    """First touch of fresh memory. The memory of the last round is held for the proof."""

    name = subcommand = "fault"
    prefilled = False
    description = "first touch of fresh memory: zeroing, allocation and page-table cost"
    parameters = (
        Parameter("bytes", "size", "128m", "memory touched in each round"),
        Parameter("rounds", "integer", 4, "rounds in the timed region"),
    )
    metrics = (
        Metric("ns_per_page", "ns", "lower", "time of the first touch, per base page touched"),
        Metric("bytes_per_s", "bytes/s", "higher", "memory made usable per second"),
    )


class Gups(Micro):
    """Independent 64-bit updates at pseudo-random places, after HPCC RandomAccess."""

    name = subcommand = "gups"
    description = "independent random 64-bit updates (throughput, bound by TLB and memory parallelism)"
    parameters = (
        Parameter("bytes", "size", "1g", "memory of the table"),
        Parameter("updates", "integer", 8_000_000, "updates in the timed region"),
        Parameter("seed", "integer", 1, "seed of the places"),
    )
    metrics = (Metric("gups", "10^9 updates/s", "higher", "updates per nanosecond"),)


class Spin(Micro):
    """No page size changes its time, which is proportional to the iterations: a planted effect is all that can."""

    name = subcommand = "spin"
    description = "a loop over a table in the first cache: for calibration, and for planted effects of a known size"
    parameters = (
        Parameter("iterations", "integer", 20_000_000, "iterations in the timed region"),
        Parameter("bytes", "size", "16k", "the table"),
    )
    metrics = (Metric("loop_cpu_s", "s", "lower", "CPU time of the loop"),)


class Stream(Micro):
    """The triad of STREAM (McCalpin 1995), a[i] = b[i] + s * c[i], bound by bandwidth."""

    name = subcommand = "stream"
    description = "STREAM's triad over three arrays (bandwidth; sequential)"
    parameters = (
        Parameter("bytes", "size", "768m", "memory of the three arrays together"),
        Parameter("rounds", "integer", 4, "passes in the timed region"),
    )
    metrics = (Metric("gib_per_s", "GiB/s", "higher", "bytes named by the triad (two reads, one write) per second"),)


WORKLOADS = (Chase(), Fault(), Gups(), Spin(), Stream())
