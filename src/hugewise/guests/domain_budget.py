"""How often the guests of a domain's study boot: its method, and its blocks with their reason. Pure.

Emulated, their counts may be the same in every boot; under KVM times are judged, which never are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from hugewise.stats.exact import fewest, least_budget

__all__ = ["judged"]

_CONFIDENCE = 0.99  # what a study has that names none; written down, as the blocks follow from it
_SLACK = 2  # times the fewest blocks that can decide: a pair or two may point the other way
_WIDTH = 116


def judged(comparisons: int, asked: int | None) -> Iterator[str]:
    """The lines of the study: blocks enough for counts that repeat and for what varies; `asked`: so many instead."""
    share = (1 - _CONFIDENCE) / comparisons
    blocks = _SLACK * least_budget(share) if asked is None else asked
    least = fewest(share, blocks)
    several = "one comparison" if comparisons == 1 else f"{comparisons} comparisons together"
    if least.varied is None:
        coin = f"{blocks} blocks are too few for it, {least_budget(share)} the fewest."
    else:
        coin = f"after {least.varied} that all point one way, later where some do not."
    reason = (
        f"For {several}, at {_CONFIDENCE:.0%}. Counts that are the same in every boot are a verdict after"
        f" {least.differ} blocks where they differ, and {least.equal} where they do not. What varies, as times"
        f" under KVM, the sequential test judges: {coin}"
    )
    yield "# Counts may be the same in every boot, and are judged by that; what varies is judged by the coin alone."
    yield from ('method = "exact"', f"confidence = {_CONFIDENCE}", "")
    yield "[budget]"
    yield from (f"# {line}" for line in textwrap.wrap(reason, _WIDTH))
    yield from (f"blocks = {blocks}  # at most: what is decided is over", "")
