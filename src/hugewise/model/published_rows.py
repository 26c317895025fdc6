"""What was published beside what was measured, as rows: part of `report.json`. Made by `hugewise.analysis.beside`."""

from __future__ import annotations

from typing import Literal

import msgspec

from hugewise.model.trial import Judged
from hugewise.published import Sample

__all__ = ["APART", "Beside", "Level", "Measured", "PublishedFinding", "PublishedPoint"]


APART = 5.0  # percentage points: a count that differs by more is marked, and is to be explained


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One's own side: `ratio` is arm/baseline of `metric`, `n` the pairs (not judged: the attempts of the arm).

    Not judged: a ratio of medians, without interval. `judged`: whether a verdict speaks of the arm's pages (backing) or
    of its setting, of whose pages `delivered_share` were delivered. `constant`: every pair has the same ratio.
    `provisional`: as `Comparison` has it.
    `stand_ins`: what ran in its cell in place of what, as `CellResult` has them.
    """

    arm: str
    baseline: str
    metric: str
    n: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float | None
    verdict: Literal["better", "worse", "equivalent", "undecided", "none", "not judged"]
    estimand: str
    judged: Judged
    delivered_share: float | None
    constant: bool = False
    provisional: tuple[float, float] | None = None
    stand_ins: tuple[str, ...] = ()


class PublishedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure, and what stands beside it.

    cell                the measured cell; empty where none was
    entry, quantity     the source's table or benchmark, and its word for what was measured
    arm, baseline       the published ones, in the source's words
    percent             the change as published, positive where the arm's value is larger; null: none is printed
    arm_sample, baseline_sample   both arms' figures in `unit` where the source gives them, at its `confidence`
    statistic           what a published figure is made of
    policy              the study's arm that stands for the published one; empty: none
    measured            null: nothing stands beside it, for the `reason`
    points              of a count or a size: measured change less published change, in percentage points; null for
                        what depends on the machine's speed, and where one of the two is not there
    agreement           same sign, opposite sign, undecided here, ...
    """

    cell: str
    entry: str
    quantity: str
    unit: str
    arm: str
    baseline: str
    percent: float | None
    arm_sample: Sample | None
    baseline_sample: Sample | None
    confidence: float | None
    statistic: str
    policy: str
    measured: Measured | None
    agreement: str
    reason: str
    points: float | None = None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that a finding is held against; `value` is the level of the trend's parameter (empty without a trend)."""

    cell: str
    value: str
    measured: Measured | None
    reason: str


class PublishedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a source says in words, without a table of figures, and what stands beside it.

    words, condition    the claim, and what the source limits it to
    figures             which figures it gives
    effect              better, worse, none (no noticeable effect), or grows: the effect grows with `parameter`
    measured            the cells that it is held against: one, or for a trend a cell for each level
    """

    entry: str
    words: str
    condition: str
    figures: str
    effect: Literal["better", "worse", "none", "grows"]
    arm: str
    baseline: str
    policy: str
    parameter: str
    measured: tuple[Level, ...]
    agreement: str
    reason: str


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One published source beside one run. Nothing of the published side is computed: it stands in the source's file.

    machine, kernel     the published ones; `here_machine`, `here_kernel` this run's; null where it is not told
    runs, statistic     what a published figure is made of, where the source says
    missing             what the source does not give
    caveats             what must be known before its figures are compared with those of today
    texts               what it says in words of the entries that the study names
    elsewhere           published arms that no policy of the study stands for
    """

    name: str
    title: str
    publisher: str
    date: str
    machine: str | None
    kernel: str | None
    here_machine: str | None
    here_kernel: str | None
    runs: int | None
    statistic: str | None
    missing: tuple[str, ...]
    texts: tuple[str, ...]
    elsewhere: tuple[str, ...]
    points: tuple[PublishedPoint, ...]
    findings: tuple[PublishedFinding, ...]
    caveats: tuple[str, ...] = ()
