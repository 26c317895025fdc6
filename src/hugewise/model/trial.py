"""Trials, attempts and blocks as they are stored.

    planned -> running -> accepted                the attempt counts
                       -> failed                  the workload failed or timed out: counts, as the worst
                       -> rejected                hugewise or the host failed before the timed region, or a
                                                  guest's emulator: retried
                       -> abandoned               its block was disturbed or closed incomplete: kept, counts in no pair

An attempt's folder is written beside its place and renamed into it, so that it is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from hugewise.model.host import Moment
from hugewise.model.over_time import SamplerUse, Stall
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Mechanism
from hugewise.model.workload import Proof

AttemptState = Literal["accepted", "failed", "rejected", "abandoned"]
BlockState = Literal["complete", "incomplete", "disturbed"]

# What a verdict on an arm speaks of:
#   setting   the effect of turning the knobs, whatever pages came of it (intention to treat)
#   backing   the effect of the promised pages: attempts that did not get them do not count
Judged = Literal["setting", "backing"]


class Trial(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A planned run of one arm in one block. `order` counts from 0 within the block."""

    block: int
    cell: str
    arm: str
    order: int
    slot: int
    environment_pad: int  # bytes added to the environment: stack layout is a known confounder


class DeliveryThreshold(msgspec.Struct, frozen=True):
    """Least share at the promised size; largest share above the base size where base pages are promised.

    A share of 0 demands nothing: the setting is judged (intention to treat).
    """

    share: float
    base_above: float

    def of(self, judged: Judged) -> DeliveryThreshold:
        """What holds for an arm that is declared so."""
        return self if judged == "backing" else DeliveryThreshold(0.0, self.base_above)


class Delivery(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whether the pages that the policy promises really backed the attempt. `delivered` None: it could not be proven.

    coverage  bytes by `kind:page size`, e.g. {"anon:65536": 1048576, "unproven": 4096}
    share     of the named memory at the promised size (None when nothing could be scanned)
    source    kpageflags, smaps, or counters
    """

    target: PageTarget
    delivered: bool | None
    share: float | None
    coverage: Mapping[str, int]
    proof: Proof
    source: str
    reason: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One physical try at a trial: the content of `attempt.json`. Seconds; `started` and `ended` are UTC epoch s.

    overhead_s  of hugewise: from the first step of the attempt to its record, less the time of its command. Null, as
                wall_s and cpu_s are, of an emulated guest: its clock is not this host's
    covariates  what was measured of the host before the treatment was applied (`attempt.runner`); empty in runs
                that were made before there were any
    series      throughput in each whole second of the measured part, where the workload can say it (work a second)
    facts       what was done besides: hashes of data and work, versions, where the data lay
    begun       what a command began: `forked` processes that went on with a copy of their parent's memory, programs
                that others than the first process `executed`, `threads`; empty where nobody followed it. Of servers
                those that are there when their memory is looked at, how many had children that have `ended`, and of a
                service the `shared_bytes` of the largest shared mapping
    laid        what the layout library did, where it was loaded: sums over `processes` (`attempt.context`)
    aged        what the host's memory was when it began, in studies with aged memory: bytes that were `free` and
                `free_huge` (in blocks that a huge page fits into; `free_huge_after` when its command had ended), pages
                `pinned`, the `seconds` that this took; and `swapped` bytes, out and in, where its cell has pressure
    knobs_as    where it is stored: the record of the run's log that has its knobs, which are empty here; null once
                it was read
    sampled     the machine's counters over time (`samples.json.gz` in its folder); null where they were not read, and
                `unsampled` says why
    stalls      the slowest operations, where a load generator tells them, with what the kernel did in the same seconds
    guest       of an attempt in a guest: its kernel, image, QEMU and accelerator, and what backed its memory
    """

    format: int = 1
    run: str
    session: int
    block: int
    cell: str
    arm: str
    baseline: bool
    policy: str
    mechanism: Mechanism
    order: int
    slot: int
    number: int
    state: AttemptState
    reason: str | None
    started: Moment
    ended: Moment
    wall_s: float | None
    cpu_s: float | None
    overhead_s: float | None
    steal_s: float
    pressure: Mapping[str, float | None]
    boot_id: str
    delivery: Delivery
    knobs: Mapping[str, str]
    metrics: Mapping[str, float | None]
    absent: Mapping[str, str]  # why a metric is null
    disturbances: tuple[str, ...]
    environment_pad: int
    peak_bytes: int | None
    pool_bytes: int
    exit_code: int | None
    signal: int | None
    covariates: Mapping[str, float] = {}
    series: tuple[float, ...] = ()
    facts: Mapping[str, str | int | float] = {}
    guest: Mapping[str, str | int | float] = {}
    begun: Mapping[str, int] = {}
    laid: Mapping[str, int | str] = {}
    sampled: SamplerUse | None = None
    unsampled: str = ""
    stalls: tuple[Stall, ...] = ()
    aged: Mapping[str, int | float] = {}
    knobs_as: str | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A closed block: what a statistical method observes. Only `complete` blocks give measurements.

    arms       those whose order its coin drew; empty in blocks made by hand, for all that it names
    unstarted  arms that no try could start, with the reason: an arm's own doing, which counts in a block of any state
    late       arms that started after a try of theirs had failed to
    redone     arms whose attempt was under way when hugewise itself ended, and was made anew
    lost       arms with an attempt of which nobody can tell whether its clock ran, with the reason: not made again
    seconds    from its opening to its end; None where a pause lies between
    """

    number: int
    cell: str
    state: BlockState
    reason: str | None
    attempts: tuple[Attempt, ...]
    unstarted: Mapping[str, str] = {}
    late: tuple[str, ...] = ()
    redone: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    lost: Mapping[str, str] = {}
    seconds: float | None = None


BESIDE = " beside it was rejected: "
"""In the reason of an attempt that is to be made again for the sake of one that ran with it."""


def at_fault(attempts: Iterable[Attempt]) -> list[str]:
    """Which arms are, or were, to be tried again for a reason of their own."""
    return list(
        dict.fromkeys(one.arm for one in attempts if one.state == "rejected" and BESIDE not in (one.reason or ""))
    )
