"""Who goes on after a screening: whom the confirmation is about, and who is measured beside it.

For speed and the tail the method `screening` decides. For memory each arm has a fixed number of blocks and estimates
decide: a screening drops whoever is slower than another, and the smallest may be. That has no error rate: what is said
in the end is the confirmation's.
"""

from __future__ import annotations

import msgspec

from hugewise.advise import decision
from hugewise.advise.advice import Advice, Screen
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import AS_IS
from hugewise.model.results import CellResult, Results
from hugewise.stats import power
from hugewise.store.folder import RunFolder

__all__ = ["beside", "estimates", "for_memory", "with_runner_up"]

_ROOM = 2  # times the fewest pairs of a verdict: with less time the chosen one has all of it
_MORE = 1.5  # times as long takes a block of three attempts as one of two


def for_memory(folder: RunFolder, found: Results) -> Screen:
    """What the fixed blocks say of memory. `chosen` is `as-is` where nothing takes less."""
    run = folder.read()
    (cell,) = found.cells
    seen = decision.measured(found, cell)
    chosen, second = decision.smallest(seen[1:], cell.metric.better, found.margin)
    blocks = found.blocks_complete
    reason = f"nothing takes less memory, by estimates of {blocks} blocks"
    if chosen:
        reason = f"it takes least of those that are fast enough, by estimates of {blocks} blocks"
    elif not any(one.growth is not None and one.ratio is not None for one in seen[1:]):
        chosen, reason = seen[1].name, "it reaches least, and nothing is known of any"
    return Screen(
        folder=str(folder.path),
        chosen=chosen or AS_IS,
        unsure=found.state != "finished",
        reason=reason,
        better=cell.metric.better,
        estimates=estimates(cell),
        failed=decision.failures(cell),
        dropped={},
        left_out={left.policy: left.reason for left in run.opened.left_out},
        runner_up=second,
        measured=seen,
    )


def estimates(cell: CellResult) -> dict[str, float | None]:
    """The ratio of each arm to as-is; None where nothing is known of it, or failures outweigh."""
    return {one.arm: decision.finite(one.ratio) for one in cell.comparisons}


def with_runner_up(screen: Screen, found: Results, chosen: str) -> Screen:
    """The screening's record with every arm's figures, and the best of those that were neither chosen nor dropped."""
    (cell,) = found.cells
    out = {AS_IS, *screen.dropped, *screen.left_out}
    second = decision.runner_up(screen.estimates, screen.better, chosen, out)
    return msgspec.structs.replace(screen, runner_up=second, measured=decision.measured(found, cell))


def beside(advice: Advice, pilot: ProgramAsIs, seconds: float) -> str:
    """Whom the confirmation measures beside the chosen one: the runner-up, where the time allows; else nobody.

    Its attempts make each block longer by half: where so many blocks would hardly be enough for a verdict it is left
    out.
    """
    if advice.screen is None or not advice.screen.runner_up:
        return ""
    least = power.least_pairs(1 - advice.question.confidence, pilot.declared(seconds))
    if least is None or pilot.pairs_in(seconds / _MORE) < _ROOM * least:
        return ""
    return advice.screen.runner_up
