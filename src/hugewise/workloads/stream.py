"""The triad of STREAM (McCalpin 1995): a[i] = b[i] + s * c[i] over three arrays, bound by bandwidth."""

from __future__ import annotations

from hugewise.model.metric import Metric
from hugewise.model.workload import Parameter
from hugewise.workloads._micro import ResidentMicro


class Stream(ResidentMicro):
    """Sequential bandwidth."""

    name = subcommand = "stream"
    description = "STREAM's triad over three arrays (bandwidth; sequential)"
    parameters = (
        Parameter("bytes", "size", "768m", "memory of the three arrays together"),
        Parameter("rounds", "integer", 4, "passes in the timed region"),
    )
    metrics = (Metric("gib_per_s", "GiB/s", "higher", "bytes named by the triad (two reads, one write) per second"),)


WORKLOAD = Stream()
