"""`python -m bench`: every benchmark, one after the other. The status is that of the worst."""

import sys

from bench import demo, fleet, inspect, interleaved, placement, predict, report, statistics

sys.exit(
    max(
        main()
        for main in (
            *(statistics.main, report.main, fleet.main, interleaved.main),
            *(placement.main, inspect.main, predict.main, demo.main),
        )
    )
)
