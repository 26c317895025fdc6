"""Every claim of a publication, whether a run has met it or not, and the studies that come with hugewise and test it.

What a source says is in `hugewise.published`; a study tests a claim where a workload of it names the claim's entry and
compares two policies that stand for its two arms, at one of its scales. Reads the studies' files; nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from hugewise import published, workloads
from hugewise.analysis.changes import known_metrics
from hugewise.analysis.published import PublishedFigure, figures
from hugewise.published import Published
from hugewise.report.sections.beside import change_as_printed
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.study.workload import SMALL, WorkloadUse, cell_of

Guests = Literal["", "emulated", "counting"]
_UNPRINTED = "no change printed"


class SourceClaim(NamedTuple):
    """A figure of two arms, or a claim in words.

    key         what rows of pages are matched by (`result_claims.claim_of`)
    said        the claim in words
    quantity    what it is of, in the source's word; null: whatever a study judges
    parameters  of a trend: it grows with one of these
    within      the largest levels of a workload's parameters that the source speaks of
    printed     the source prints a change, or says it in words: without, nothing can be held against it
    change      of a figure: what it prints, in a word
    """

    key: tuple[str, ...]
    entry: str
    said: str
    arm: str
    baseline: str
    quantity: str | None
    parameters: tuple[str, ...] = ()
    within: tuple[tuple[str, float], ...] = ()
    printed: bool = True
    change: str = ""


class Way(NamedTuple):
    """A study, and the workload of it, that compare what a claim compares.

    labels  of all workloads of the study
    scale   the least at which it does
    guests  emulated  its guests need a processor for this (KVM): emulated ones do not measure it
            counting  the study counts instructions, which nothing but emulation does
            empty     neither: it can be measured wherever the study runs
    lacks   the metric that tells it, where the workload does not judge that; empty where it does
    counts  what emulated guests are judged by in its place, where they do not measure it
    arch    of its guests; null: those of the machine
    beside  it is judged beside the metric of the cell, by whose forecast nothing is known of it
    """

    study: str
    label: str
    labels: tuple[str, ...]
    policy: str
    scale: str
    guests: Guests = ""
    lacks: str = ""
    counts: str = ""
    arch: str | None = None
    beside: bool = False

    @property
    def command(self) -> str:
        """What measures it."""
        at = "" if self.scale == SMALL else f" --scale {self.scale}"
        return f"hugewise run {self.study} --only {self.label}{at}"

    def has(self, cell: str) -> bool:
        """Whether it is a cell of that workload."""
        use = cell_of(self.labels, cell)
        return use is not None and self.labels[use] == self.label


@cache
def shipped_studies() -> tuple[Study, ...]:
    """The studies that come with hugewise, in order. Raises StudyError."""
    return tuple(load.load(load.folder() / f"{name}.toml") for name in load.names())


def restating(source: Published, studies: Sequence[Study]) -> list[Study]:
    """Those of the studies that restate the source."""
    known = ((study, study.published) for study in studies)
    return [study for study, name in known if name is not None and published.load(name).name == source.name]


def claims_in(source: Published) -> Iterator[SourceClaim]:
    """All of them, entry by entry, in the source's order."""
    for entry in source.entries:
        for figure in figures(source, entry):
            yield SourceClaim(
                key=(entry, figure.quantity, "", figure.arm, figure.baseline),
                entry=entry,
                said=_sentence(figure),
                arm=figure.arm,
                baseline=figure.baseline,
                quantity=figure.quantity,
                printed=figure.percent is not None,
                change=_UNPRINTED if figure.percent is None else change_as_printed(figure.percent),
            )
        for finding in source.findings:
            if entry in finding.entries:
                for one in finding.claim:
                    limited = f" ({one.condition})" if one.condition else ""
                    yield SourceClaim(
                        key=(entry, one.words, one.condition, one.arm, one.against),
                        entry=entry,
                        said=f"“{one.words}{limited}”: {one.arm} against {one.against}",
                        arm=one.arm,
                        baseline=one.against,
                        quantity=finding.metric,
                        parameters=one.parameters,
                        within=tuple(one.within.items()),
                    )


def together(claims: Sequence[SourceClaim]) -> str:
    """Claims in as few words: figures of one quantity as a list, `wall_s, against 4K: 16K −15%, 64K −16%`; of one arm
    alone likewise, `16K against 4K: wall_s −15%, cpu_s −3%`.
    """
    figures = [one for one in claims if one.change]
    words = [one.said for one in claims if not one.change]
    alike: dict[tuple[str, ...], list[SourceClaim]] = {}
    for one in figures:
        alike.setdefault((one.quantity or "", one.baseline), []).append(one)
    pairs = {(one.arm, one.baseline) for one in figures}
    if len(pairs) == 1 and len(figures) > 1:
        ((arm, baseline),) = pairs
        of_arm = ", ".join(f"{one.quantity} {one.change}" for one in figures)
        return "; ".join([f"{arm} against {baseline}: {of_arm}", *words])
    lists = [
        several[0].said
        if len(several) == 1
        else f"{several[0].quantity}, against {several[0].baseline}: "
        + ", ".join(f"{one.arm} {one.change}" for one in several)
        for several in alike.values()
    ]
    return "; ".join([*lists, *words])


def _sentence(figure: PublishedFigure) -> str:
    if figure.percent is None:
        return f"{figure.arm} beside {figure.baseline}: {figure.quantity}, {_UNPRINTED}"
    changes = "changes" if figure.percent else "does not change"
    by = f" by {change_as_printed(figure.percent)}" if figure.percent else " (0%)"
    return f"{figure.arm} {changes} {figure.quantity}{by} against {figure.baseline}"


def ways(claim: SourceClaim, source: Published, studies: Sequence[Study]) -> list[Way]:
    """How the claim can be tested by these studies, each workload at its least scale that does."""
    found = []
    for study in restating(source, studies):
        for use in study.workload:
            if use.published == claim.entry:
                found += list(_ways(claim, source, study, use))[:1]
    return found


def ways_beside(claim: SourceClaim, source: Published, studies: Sequence[Study]) -> list[Way]:
    """As `ways`, of cells that compare these arms on a workload of the entry, and are set beside nothing published."""
    every = restating(source, studies)
    names = {use.name for study in every for use in study.workload if use.published == claim.entry}
    found = []
    for study in every:
        for use in study.workload:
            if use.published is None and use.name in names and use.counted is not None:
                found += list(_ways(claim, source, study, use))[:1]
    return found


def arms_elsewhere(claim: SourceClaim, source: Published, studies: Sequence[Study]) -> list[str]:
    """The studies of the source that have both arms, whatever they run on them."""
    return [
        study.name for study in restating(source, studies) if {claim.arm, claim.baseline} <= {*_arms(study).values()}
    ]


def _arms(study: Study) -> dict[str, str]:
    """The published arms by policy; none where the baseline stands for none."""
    return dict(study.published_arms) if study.compared_with in study.published_arms else {}


def _ways(claim: SourceClaim, source: Published, study: Study, use: WorkloadUse) -> Iterator[Way]:
    arms = _arms(study)
    if arms.get(study.compared_with) != claim.baseline:
        return
    for scale in (SMALL, *sorted({*study.scales, *use.scales})):
        there = use.at(scale)
        named = there.policies if there.policies is not None else tuple(one.name for one in study.policies)
        fitting = [name for name in named if arms.get(name) == claim.arm and name != study.compared_with]
        if fitting and study.compared_with in named and _speaks_of(claim, there):
            labels = tuple(one.called for one in study.workload)
            guests = _guests(claim, source, study, use)
            yield Way(
                *(study.name, use.called, labels, fitting[0], scale, guests),
                lacks=_lacks(claim, source, there, counted=study.guest is not None and not guests),
                counts=(use.counted or "") if guests == "emulated" else "",
                arch=None if study.guest is None else study.guest.arch,
                beside=_beside(claim, source, there),
            )


def _speaks_of(claim: SourceClaim, use: WorkloadUse) -> bool:
    """Whether the workload has a cell within what the source speaks of, and for a trend several of one parameter."""
    within = dict(claim.within)

    def levels(name: str) -> list[object]:
        given = use.parameters.get(name)
        every = list(given) if isinstance(given, tuple) else [given]
        most = within.get(name)
        return [one for one in every if most is None or not isinstance(one, int | float) or one <= most]

    if not all(levels(name) for name in within):
        return False
    return not claim.parameters or any(len(levels(name)) > 1 for name in claim.parameters)


def _lacks(claim: SourceClaim, source: Published, use: WorkloadUse, *, counted: bool) -> str:
    """The metric of the claim, where the workload judges none that tells it; `counted`: guests that are emulated do."""
    if claim.quantity is None:
        return ""
    names = _names(claim.quantity, source)
    own = [use.counted or "page_faults"] if counted else _own(use)
    if {*names} & {*own, *use.also}:
        return ""
    known = known_metrics(use.name)
    return next((name for name in names if name in known), claim.quantity)


def _beside(claim: SourceClaim, source: Published, use: WorkloadUse) -> bool:
    """Whether metrics that tell the claim are declared beside the workload's own, and that is none of them."""
    names = () if claim.quantity is None else _names(claim.quantity, source)
    return bool({*names} & {*use.also}) and not {*names} & {*_own(use)}


def _own(use: WorkloadUse) -> list[str]:
    """The metric that the workload judges where time is measured."""
    declared = workloads.discover().get(use.name)
    return [use.metric] if use.metric is not None else [one.name for one in (declared.metrics if declared else ())[:1]]


def _names(quantity: str, source: Published) -> tuple[str, ...]:
    """The metrics of ours that tell a quantity of the source."""
    return (*source.metrics.get(quantity, ()), quantity)


def _guests(claim: SourceClaim, source: Published, study: Study, use: WorkloadUse) -> Guests:
    if study.guest is None or claim.quantity is None:
        return ""
    known = known_metrics(use.name)
    names = _names(claim.quantity, source)
    if any(name in known and known[name].emulated for name in names):
        return ""
    if study.guest.counting:
        return "" if "instructions" in names else "counting"
    return "emulated"
