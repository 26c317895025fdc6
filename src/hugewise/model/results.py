"""Results of a run: the documented JSON (`report.json`), and the only source of reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from hugewise.model.cause import Cause
from hugewise.model.guest import Accelerator, Architecture, Backing, KernelRecord
from hugewise.model.metric import Metric
from hugewise.model.over_time import ArmFootprint, ArmOverTime, ArmStall, SamplerCost, TailQuantile
from hugewise.model.pages import MemoryAge
from hugewise.model.policy import Deployment, Mechanism
from hugewise.model.reason import Reason
from hugewise.model.trial import Attempt, Judged
from hugewise.published import Sample


class GuestArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm whose attempts ran in guests, as they were found to be (attempts that were rejected are not among them).

    attempts     how many tell of their guest
    policy       the page policy within the guest
    kernel, backing   the study's name of the kernel, and what the guest's memory was to be made of on the host
    release, sha256   of the kernel
    share        the smallest share of the guest's memory that was proven to be so backed; null without attempts
    kvm_share    the smallest share of what KVM mapped that it mapped by pages as promised; null where that is not
                 known, or nothing is mapped by KVM
    memory       bytes; image: its SHA-256, empty where there is nothing but the agent
    initramfs    SHA-256 of the agent with the kernel's modules; empty in runs that were made before it was kept
    varied       facts that should be the same in all attempts of the arm and were not, with their values
    """

    arm: str
    policy: str
    attempts: int
    kernel: str
    release: str
    sha256: str
    backing: Backing
    share: float | None
    proof: str
    accelerator: str
    cpu_model: str
    cpus: int | None
    memory: int | None
    qemu: str
    image: str
    initramfs: str = ""
    kvm_share: float | None = None
    varied: Mapping[str, tuple[str, ...]] = {}


class Guests(msgspec.Struct, frozen=True, kw_only=True):
    """The guests of a run. `why` says how the accelerator was chosen, `counting` whether instructions are counted.

    kernels       as they were when the run began, with the difference of their configurations from the baseline's
                  kernel; empty in runs that were made before it was kept
    shared_boots  how many boots of one guest the attempts share, in runs of earlier versions; 0: each has its own
    """

    arch: Architecture | None
    accelerator: Accelerator | None
    why: str
    counting: bool
    baseline: str
    arms: tuple[GuestArm, ...]
    kernels: tuple[KernelRecord, ...] = ()
    shared_boots: int = 0


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
    reason: Reason
    points: float | None = None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that a finding is held against; `value` is the level of the trend's parameter (empty without a trend)."""

    cell: str
    value: str
    measured: Measured | None
    reason: Reason


class PublishedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Statement of a source in words, without a table of figures, and the measurement beside it.

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
    reason: Reason


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Published source beside one run. Nothing of the published side is computed: it stands in the source's file.

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


Kind = Literal["sequential", "duet", "crossover", "resident", "interleaved"]
"""Layout of a block's arms (`hugewise.model.design`)."""
Verdict = Literal["better", "worse", "equivalent", "undecided", "none"]
DIRECTIONS: tuple[Verdict, ...] = ("better", "worse")
"""Verdicts that name a direction."""
DECIDED: tuple[Verdict, ...] = (*DIRECTIONS, "equivalent")
"""Verdicts that settle a comparison."""


class VerdictWords(NamedTuple):
    """Words and signs of a verdict.

    symbol    beside the word, as a verdict is never told by its colour alone
    shape     of its mark in a figure (Vega-Lite's name)
    colour    on a terminal
    relation  between a policy and its baseline
    plain     for readers who know no statistics
    """

    symbol: str
    shape: str
    colour: str
    relation: str
    plain: str


VERDICTS: Mapping[str, VerdictWords] = {
    "better": VerdictWords("▲", "triangle-up", "green", "is better than", "better"),
    "worse": VerdictWords("▼", "triangle-down", "red", "is worse than", "worse"),
    "equivalent": VerdictWords("=", "square", "blue", "is equivalent to", "no difference that matters"),
    "undecided": VerdictWords("?", "circle", "yellow", "against", "undecided"),
    "none": VerdictWords("–", "cross", "bright_black", "against", "no answer"),
}
"""Every verdict with its words, in the order in which reports list them."""
Fact = str | int | float


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Arm of one cell, over its accepted attempts in complete blocks (in the metric's unit).

    quantiles   probability as text -> value, e.g. {"0.05": ...}
    margin      half-width of the mean's t interval at the study's confidence (None below two values)
    coverage    mean share of the named memory by `kind:page size` over those attempts
    delivered_share  mean share of it at the promised size
    judged      what verdicts on it speak of: its pages (backing; delivery required), or the setting as it was turned,
                whatever pages came of it (declared so, with a delivery share of 0, or a policy that promises nothing)
    first       value of the first complete block, to hold against the rest
    """

    arm: str
    policy: str
    mechanism: Mechanism
    n: int
    failed: int
    undelivered: int
    unproven: int
    mean: float | None
    sd: float | None
    min: float | None
    max: float | None
    median: float | None
    quantiles: Mapping[str, float]
    margin: float | None
    first: float | None
    coverage: Mapping[str, float]
    delivered_share: float | None
    proof: str
    peak_bytes: int | None
    pool_bytes: int
    treatment: str  # one line: what the policy did, for the reader
    deployment: Deployment | None
    judged: Judged = "backing"


Reach = Literal["this campaign", "campaign average", "beyond these sessions"]


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """Reach of a claim, and what the data show at that reach.

    this campaign          the policy matters on this host in this campaign: exact, by the coin alone
    campaign average       the mean effect over the runs that were made, however it drifted
    beyond these sessions  the mean over sessions like these (restarts, allocations, boots)

    `supported` False: the data cannot carry this tier, and `reason` says why. Ratios are arm/baseline.
    """

    name: Reach
    supported: bool
    ratio: float | None
    low: float | None
    high: float | None
    reason: Reason


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Difference in spread between the arm's values and the baseline's, by an exact test of the same coins.

    shown   wider or narrower: the test has crossed; null: it has not
    ratio   spread of the arm's values over that of the baseline's (interquartile ranges of the logarithms); null below
            10 values a side, or where the baseline's do not vary
    pairs   at which the test crossed, else null
    alpha   its error rate over the declared budget: outside the study's split, as it is a finding beside the verdict
    """

    shown: Literal["wider", "narrower"] | None
    ratio: float | None
    pairs: int | None
    alpha: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Arm against the baseline of its own blocks. All ratios are arm/baseline.

    ratio, low, high     the effect and its interval at `confidence` (after the multiplicity correction); an end is null
                         where the data do not bound the effect on that side; the ratio is null where there is no
                         finite one: no pairs, or failures outweigh
    provisional          ends of a t interval of the pairs at `confidence`, as ratios, from three pairs on and until the
                         method has an interval. It makes no verdict, and does not hold at every look
    change               the worst ratio still inside the interval for an undecided comparison, as |ratio-1|; null
                         unless both ends are there
    ratio_all, n_all     the same estimate with the blocks of undelivered treatment kept in
    final                False while the planned number of blocks is not reached: intervals are provisional
    estimand             what is estimated: declared before the first run; end_point: its name in the study's
                         `end_points`, empty of the ratio that every comparison has; design: how arms were laid out
    alpha, alpha_spent   the share of the study's error rate that this comparison has, and what it has spent so far
    evidence             e-value now against "no difference", two-sided (`hugewise.stats.evidence`); None where the
                         data allow no verdict, and for methods without. It has no part in this run's verdict: it is
                         what multiplies over runs. evidence_larger, evidence_smaller: for a ratio above 1, and below
    reach, tiers         how far the verdict reaches (sequential methods), and each tier with its interval
    warnings             what the reader should know beside the verdict; never changes it
    constant             every pair has the same ratio (two at least): counts that do not vary. There is no spread that
                         an interval could be made from; the verdict is the method's all the same
    judged               whether the verdict speaks of the arm's pages (backing) or of its setting; and the same of the
                         baseline. delivered_share, baseline_share: those of their `ArmSummary`
    unstarted_arm, unstarted_baseline   blocks in which that side could not be started at all: failures of that side in
                         the test of the kept-in pairs, and counted under the delivery rule
    corrected            the ratio corrected for having stopped when it looked decided (`hugewise.stats.stopping`); null
                         where the comparison did not stop at an early better or worse
    spread               whether the arm's values spread more or less widely than the baseline's; null for methods
                         without that test
    """

    arm: str
    baseline: str
    metric: str
    method: str
    n: int
    planned: int
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    p: float | None
    verdict: Verdict
    reason: Reason
    final: bool
    change: float | None
    n_all: int
    ratio_all: float | None
    failures_arm: int
    failures_baseline: int
    estimand: str = "ratio of geometric means"
    alpha: float | None = None
    alpha_spent: float | None = None
    reach: Reach | None = None
    tiers: tuple[Tier, ...] = ()
    warnings: tuple[Reason, ...] = ()
    evidence: float | None = None
    evidence_larger: float | None = None
    evidence_smaller: float | None = None
    constant: bool = False
    judged: Judged = "backing"
    delivered_share: float | None = None
    baseline_judged: Judged = "backing"
    baseline_share: float | None = None
    unstarted_arm: int = 0
    unstarted_baseline: int = 0
    corrected: float | None = None
    spread: Spread | None = None
    provisional: tuple[float, float] | None = None
    end_point: str = ""
    design: Kind = "sequential"


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Change of an arm's throughput within the measured part: median of the last third of its seconds, over that of the
    first third, less 1 (`hugewise.stats.changepoint`). A rule of thumb: it changes no verdict.

    change    median over n attempts; null with its reason where there is none (too few seconds, or it began at 0)
    settled   whether it is at most 10%, which a throughput that began at 0 is not; null where it cannot be told
    """

    arm: str
    n: int
    change: float | None
    settled: bool | None = None
    reason: Reason = ""


class FactDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which arms, or attempts of one arm, differ although they should not (`Attempt.facts`).

    values   by arm the distinct values of its accepted attempts; null for attempts that lack it
    """

    name: str
    values: Mapping[str, tuple[Fact | None, ...]]


class AgedArm(msgspec.Struct, frozen=True, kw_only=True):
    """State of the host's memory when the accepted attempts of an arm began, in a study with aged memory.

    n           attempts that tell of it
    huge_share  the most of the free memory that was in blocks which a huge page fits into, as a share; huge_bytes of it
    pinned      pages that could not be moved, median
    swapped     bytes that the host swapped out and in during an attempt, median; null where its cell has no pressure
    """

    arm: str
    n: int
    huge_share: float
    huge_bytes: int
    pinned: int
    swapped: int | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Each setting against itself: the two attempts of an arm in each block, which a coin told apart.

    n                 pairs of such attempts, of all arms
    ratio, low, high  typical ratio of the two, with Student's interval at `confidence`; None below two pairs
    deviation         standard deviation of their log-ratio; None below two pairs
    different         whether the exact test calls the two different: then the machine or its coins are not to be
                      trusted, or this is one of the runs (1 - confidence) in which chance does it
    """

    n: int
    ratio: float
    low: float | None
    high: float | None
    confidence: float
    deviation: float | None
    different: bool


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with its parameters, its arms and its comparisons.

    end_points   what else the study declared to judge of the metric on the same pairs, each with its own share of the
                 error rate
    also         the metrics that the study declared to judge beside `metric`; `declared` are their comparisons, each
                 with its own share too
    facts        what all accepted attempts have in common: hashes of data, versions, where the data lay
    differing    facts that differ although they should not
    steadiness   of each arm whose workload tells its throughput by the second
    tail         quantiles of the latency, where the workload tells them: paired over blocks, and never judged
    stalls       the slowest operations of each arm, with what the kernel did in the same seconds
    over_time    the middle attempt of each arm over time
    footprints   memory of each arm against the baseline's, where attempts have it; never judged
    sampler      what reading the machine's counters cost; null where they were not read
    memory_age   what the host's memory had been through before each attempt; `memory` the limit of its programs, where
                 that is part of it, and `aged` what the memory was, by arm
    stand_ins    what ran in place of what others publish figures of (MariaDB in place of MySQL), in words
    causes       what stands behind each of `comparisons`, in their order; empty in results that were made before there
                 were any
    copies       attempts of each arm in a block; where there are two, `control` holds those of each arm against each
                 other
    """

    cell: str
    workload: str
    parameters: Mapping[str, Any]
    metric: Metric
    baseline: str
    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]
    end_points: tuple[Comparison, ...] = ()
    also: tuple[Metric, ...] = ()
    declared: tuple[Comparison, ...] = ()
    facts: Mapping[str, Fact] = {}
    differing: tuple[FactDifference, ...] = ()
    steadiness: tuple[Steadiness, ...] = ()
    tail: tuple[TailQuantile, ...] = ()
    stalls: tuple[ArmStall, ...] = ()
    over_time: tuple[ArmOverTime, ...] = ()
    footprints: tuple[ArmFootprint, ...] = ()
    sampler: SamplerCost | None = None
    memory_age: MemoryAge = "fresh"
    memory: int | None = None
    aged: tuple[AgedArm, ...] = ()
    stand_ins: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    copies: int = 1
    control: Control | None = None

    @property
    def judged(self) -> tuple[Comparison, ...]:
        """Return all that is judged of it: its metric, the end points of that, and the metrics declared beside it."""
        return (*self.comparisons, *self.end_points, *self.declared)

    def metric_named(self, name: str) -> Metric:
        """Return the metric of that name, of those that are judged; the cell's own where none has it."""
        return next((metric for metric in self.also if metric.name == name), self.metric)


class LeftOut(msgspec.Struct, frozen=True):
    """A cell, an arm or a policy that the plan left out before anything ran, and why.

    `cell` is `*` for a policy that no cell has, `policy` is `*` for a cell that is left out whole. `packages` are the
    Debian packages that bring what was missing, where any do.
    """

    cell: str
    policy: str
    reason: str
    packages: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """Words for what was left out: `thp on chase`, `thp`, `chase`, or `everything`."""
        return " on ".join(part for part in (self.policy, self.cell) if part != "*") or "everything"


class Integrity(msgspec.Struct, frozen=True, kw_only=True):
    """Integrity of the run's folder: of its records, and of every value that they have a digest of.

    consistent       each record follows from the one before it, from the hash of the seed on, and each attempt is what
                     was stored
    unaltered        and the last running hash is the one that the reader had noted
    no running hash  the run was begun by a version that kept none

    hash   the last running hash, SHA-256 in hexadecimal; null where there is none
    left_out   always empty: what earlier versions salvaged
    """

    state: Literal["consistent", "unaltered", "no running hash"]
    hash: str | None
    left_out: tuple[str, ...] = ()


class EarlierComparison(msgspec.Struct, frozen=True):
    """A comparison of this run that a run before it had, too: of the same workload with the same parameters, policy,
    baseline and metric, by its names in this run, whatever its design.

    pairs, verdict    that it had there; null where that run could not be read
    larger, smaller   its e-values there, that the arm is larger, or smaller; null where it has none, or where they do
                      not count: of a pilot, of an advice's screening, and of a run whose seed another one of these had
    """

    cell: str
    arm: str
    metric: str
    pairs: int | None = None
    verdict: Verdict | None = None
    larger: float | None = None
    smaller: float | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Run, whole. `host` is the fingerprint, `versions` the programs used, `settings` the knobs before the run.

    guests   where the arms ran in guests: what these were; else null
    beside   the published experiment that the study restates beside what was measured; null where it names none
    attempts all that were made, for the reports; not in `report.json`: the run's folder and `hugewise.tables` have them
    earlier  runs on this host that were begun before this one and had any of its comparisons, the newest first: a
             reader who is shown one of them should know of the others; null for runs that were begun before these were
             looked for
    earlier_shared  which comparisons these were, by the run; null for runs whose version looked for the whole study
             alone, with the same cells and policies
    earlier_unread  folders beside them that could not be read, which may be such runs too
    integrity  whether the folder holds what was written; null where the results were not made from a folder
    command  the command line that began the run, as words; empty where a program began it, or it was not kept
    """

    format: int = 2
    run: str
    study: str
    question: str
    folder: str
    state: Literal["finished", "time is up", "running", "interrupted", "failed"]
    started: float
    ended: float
    seed_hash: str
    seed: str | None
    confidence: float
    margin: float
    mechanism: Mechanism
    host: Mapping[str, Any]
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    options: Mapping[str, Any]  # the study's other keys as used: budget, validity, between, window ...
    blocks_complete: int
    blocks_incomplete: int
    blocks_disturbed: int
    disturbances: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    cells: tuple[CellResult, ...]
    attempts: tuple[Attempt, ...] = ()
    guests: Guests | None = None
    beside: Beside | None = None
    earlier: tuple[str, ...] | None = None
    earlier_shared: Mapping[str, tuple[EarlierComparison, ...]] | None = None
    earlier_unread: int = 0
    integrity: Integrity | None = None
    command: tuple[str, ...] = ()
