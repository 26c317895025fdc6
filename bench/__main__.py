"""`python -m bench`: every benchmark, one after the other. The status is that of the worst."""

import sys

from bench import (
    demo,
    fleet,
    growth,
    inspect,
    interleaved,
    launch,
    load,
    placement,
    report,
    sampler,
    statistics,
)

sys.exit(
    max(
        main()
        for main in (
            *(launch.main, load.main, statistics.main, growth.main, report.main, fleet.main),
            *(interleaved.main, placement.main, sampler.main, inspect.main, demo.main),
        )
    )
)
