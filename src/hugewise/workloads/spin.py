"""A loop over a table in the first cache: no page size changes its time, so a planted effect is all that can."""

from __future__ import annotations

from hugewise.model.metric import Metric
from hugewise.model.workload import Parameter
from hugewise.workloads._micro import ResidentMicro


class Spin(ResidentMicro):
    """Arithmetic in the first cache; time is proportional to the iterations."""

    name = subcommand = "spin"
    description = "a loop over a table in the first cache: for calibration, and for planted effects of a known size"
    parameters = (
        Parameter("iterations", "integer", 20_000_000, "iterations in the timed region"),
        Parameter("bytes", "size", "16k", "the table"),
    )
    metrics = (Metric("loop_cpu_s", "s", "lower", "CPU time of the loop"),)


WORKLOAD = Spin()
