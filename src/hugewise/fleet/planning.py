"""How many hosts of a class the question of a study takes, said before hours are spent.

Nothing is measured yet, so all is said in parts of the effect. A host that ends by its own verdict knows its effect to
about a third of it (`ERROR`: simulated, 0.24 to 0.5 from large effects to small ones; `stats.pooling`); by how much
hosts of a class differ is a guess (`stats.fleet_size.TAUS`) until the first fleet has shown it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hugewise.stats import fleet_size
from hugewise.stats.heterogeneity import FEWEST
from hugewise.study.study import Study

__all__ = ["ERROR", "needed"]

ERROR = 0.35
"""Of a host that ended by its own verdict, as a part of the effect."""


def needed(study: Study, classes: int, comparisons: int) -> Iterator[str]:
    """Lines on what each of so many classes takes, with so many comparisons of the study on each."""
    level = (1 - study.confidence) / max(1, classes * comparisons)
    low, high = (fleet_size.hosts_for_verdict(1.0, tau, ERROR, level) for tau in fleet_size.TAUS)
    spread = fleet_size.hosts_for_spread(fleet_size.TAUS[1], ERROR)
    if low is None or high is None or spread is None:
        return
    shares = " to ".join(f"{tau:.0%}" for tau in fleet_size.TAUS)
    hours = ""
    if (budget := study.budget.time) is not None:
        hours = f" ({low * budget / 3600:.2g} to {high * budget / 3600:.2g} host-hours at most)"
    yield (
        f"a verdict on a class at {100 * study.confidence:.6g}% takes {low} to {high} of its hosts{hours}, "
        f"if they differ by {shares} of the effect"
    )
    yield (
        f"the next host of a class is spoken of from {FEWEST} hosts on; how far they differ is known to within twice "
        f"from {spread} on"
    )
