"""Streams of closed blocks in which things go wrong, for the method that users get: `Sequential`.

In each, every attempt would have taken the same whatever label the coin had given it (Fisher's sharp null), but where
it is said otherwise. What goes wrong (pages that are not delivered, a start that fails, a value that is absent) may
hang on label and place together: that is what makes a selection of the pairs that are left. A pair has two places; one
of them may be slow, and a fair coin says which one the arm gets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
from numpy.random import Generator

from hugewise.external import compare
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Attempt, Block, Delivery
from hugewise.stats.method import Contrast

CONTRAST = Contrast("cell", "arm", "base", Metric("wall_s", "s", "lower", "time"))


Fate = Literal[
    "undelivered",
    "unproven",
    "absent",
    "unstarted",
    "unstarted alone",
    "late",
    "redone",
    "both",
    "failed",
    "incomplete",
]
"""Failure of a side. unstarted alone: nothing of the other side is kept either, as in a duet; both: a guest that is
gone takes its neighbour with it; redone: hugewise ended under it, and it is made anew.
"""

_DELIVERED = Delivery(
    target=PageTarget("thp", 2 << 20), delivered=True, share=1.0, coverage={}, proof="ranges", source="kpageflags"
)
_PROOFS = {
    None: _DELIVERED,
    "undelivered": msgspec.structs.replace(_DELIVERED, delivered=False, share=0.0, reason="no room"),
    "unproven": msgspec.structs.replace(_DELIVERED, delivered=None, share=None, reason="no proof"),
}
_ATTEMPT = msgspec.structs.replace(
    compare.ATTEMPT, run="r", session=1, cell=CONTRAST.cell, delivery=_DELIVERED, exit_code=0
)


class BlockScene(NamedTuple):
    """Places of a pair that are slow, and what befalls which label in them.

    share   of places that are slow
    slower  their log-time above the others'
    sd      of the noise of one attempt's log-time
    fate    what befalls; arm, baseline: the chances of it for that label in a slow place
    anyhow  the chance of it for either label in any place
    """

    share: float = 0.0
    slower: float = 0.0
    sd: float = 0.03
    fate: Fate = "undelivered"
    arm: float = 0.0
    baseline: float = 0.0
    anyhow: float = 0.0

    def blocks(self, random: Generator, count: int) -> Iterator[Block]:
        """Yield a stream of `count` blocks."""
        slow = random.random((count, 2)) < self.share
        times = self.sd * random.standard_normal((count, 2)) + self.slower * slow
        arms = random.integers(0, 2, count)
        luck = random.random((count, 2))
        for number in range(count):
            at = int(arms[number]), 1 - int(arms[number])
            fates = [
                self.fate if luck[number, k] < (chance if slow[number, at[k]] else 0.0) + self.anyhow else None
                for k, chance in enumerate((self.arm, self.baseline))
            ]
            took = [float(times[number, place]) for place in at]
            for k, fate in enumerate(fates):
                if fate in ("late", "redone"):  # retry until the place is as the others
                    took[k] -= self.slower * bool(slow[number, at[k]])
            yield pair(number + 1, took[0], took[1], (fates[0], fates[1]))


def attempt(name: str, log_time: float, fate: Fate | None = None) -> Attempt:
    """Return an attempt of exp(`log_time`) seconds, or what its fate made of it."""
    value = None if fate in ("absent", "failed", "both") else math.exp(log_time)
    return msgspec.structs.replace(
        _ATTEMPT,
        arm=name,
        baseline=name == CONTRAST.baseline,
        state="failed" if fate in ("failed", "both") else "accepted",
        delivery=_PROOFS.get(fate, _DELIVERED),
        metrics={CONTRAST.metric.name: value},
    )


def pair(
    number: int,
    arm: float,
    baseline: float,
    fates: tuple[Fate | None, Fate | None] = (None, None),
) -> Block:
    """Return the closed block of an arm and its baseline, from their log-times."""
    fates = ("both", "both") if "both" in fates else fates
    names = CONTRAST.arm, CONTRAST.baseline
    sides = zip(names, (arm, baseline), fates, strict=True)
    lost = {
        name: "no room" for name, fate in zip(names, fates, strict=True) if fate in ("unstarted", "unstarted alone")
    }
    ran = [attempt(name, time, fate) for name, time, fate in sides if name not in lost]
    broken = "incomplete" in fates
    return Block(
        number=number,
        cell=CONTRAST.cell,
        state="incomplete" if broken or "unstarted alone" in fates else "complete",
        reason=None,
        attempts=() if "unstarted alone" in fates else tuple(ran),
        unstarted=lost,
        late=tuple(name for name, fate in zip(names, fates, strict=True) if fate == "late"),
        redone=tuple(name for name, fate in zip(names, fates, strict=True) if fate == "redone"),
        arms=names,
    )
