"""Claims of publications, the studies that test them, and what became of each by the runs of a page.

A claim is confirmed, contradicted, or not decidable on the machine of the runs; where runs disagree none of it is. A
run that did not measure a claim says nothing of it; those that did are judged together by their e-values. What a source
says is in `hugewise.published`; a study tests a claim where a workload names the claim's entry and compares two
policies that stand for its two arms, at one of its scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from msgspec.structs import replace

from hugewise import published, workloads
from hugewise.analysis.changes import known_metrics
from hugewise.analysis.published import (
    BEYOND,
    NONE_PUBLISHED,
    PublishedFigure,
    Size,
    agreement,
    agreement_of_change,
    figures,
    size,
)
from hugewise.model.reason import Known, Reason, UnderDesign
from hugewise.model.results import DECIDED, DIRECTIONS, Measured, PublishedFinding, PublishedPoint, Results
from hugewise.published import Published
from hugewise.report.reasons import in_words
from hugewise.report.sections import beside
from hugewise.report.sections.beside import change_as_printed
from hugewise.report.sentences import effect_of
from hugewise.stats.evidence import TYPICAL, Combined
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.study.workload import SMALL, WorkloadUse, cell_of
from tools.results.runs import where_in_short

Guests = Literal["", "emulated", "counting"]
_UNPRINTED = "no change printed"
_NEEDS: Mapping[Guests, str] = {
    "": "",
    "emulated": " under KVM",
    "counting": " with guests under KVM that measure instead of counting instructions",
}


class SourceClaim(NamedTuple):
    """A figure of two arms, or a claim in words.

    key         what rows of pages are matched by (`claim_of`)
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
    arch    of its guests; null: those of the machine
    """

    study: str
    label: str
    labels: tuple[str, ...]
    policy: str
    scale: str
    guests: Guests = ""
    lacks: str = ""
    arch: str | None = None

    @property
    def command(self) -> str:
        """Command that measures it."""
        at = "" if self.scale == SMALL else f" --scale {self.scale}"
        return f"hugewise run {self.study} --only {self.label}{at}"

    @property
    def words(self) -> str:
        """The command, or the cell that lacks the metric, with what its guests need."""
        machine = f" on an {self.arch} machine" if self.guests == "emulated" and self.arch is not None else ""
        quantity = "that quantity" if self.guests else self.lacks
        cell = f"a copy of {self.study} whose {self.label} judges {quantity} as well (key also)"
        return f"{cell if self.lacks else self.command}{machine}{_NEEDS[self.guests]}"

    def has(self, cell: str) -> bool:
        """Return whether it is a cell of that workload."""
        use = cell_of(self.labels, cell)
        return use is not None and self.labels[use] == self.label


@cache
def shipped_studies() -> tuple[Study, ...]:
    """Return the studies that come with hugewise, in order. Raises StudyError."""
    return tuple(load.load(load.folder() / f"{name}.toml") for name in load.names())


def restating(source: Published, studies: Sequence[Study]) -> list[Study]:
    """Return the studies that restate the source."""
    known = ((study, study.published) for study in studies)
    return [study for study, name in known if name is not None and published.load(name).name == source.name]


def claims_in(source: Published) -> Iterator[SourceClaim]:
    """Yield all of them, entry by entry, in the source's order."""
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
    figures = [claim for claim in claims if claim.change]
    words = [claim.said for claim in claims if not claim.change]
    alike: dict[tuple[str, ...], list[SourceClaim]] = {}
    for one in figures:
        alike.setdefault((one.quantity or "", one.baseline), []).append(one)
    pairs = {(figure.arm, figure.baseline) for figure in figures}
    if len(pairs) == 1 and len(figures) > 1:
        ((arm, baseline),) = pairs
        of_arm = ", ".join(f"{figure.quantity} {figure.change}" for figure in figures)
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
    """Return how these studies can test the claim, each workload at its least sufficient scale: the workloads that name
    its entry, else others of the same kind that are judged by counts and stand beside nothing published.
    """
    every = [(study, use) for study in restating(source, studies) for use in study.workload]
    own = [(study, use) for study, use in every if use.published == claim.entry]
    names = {use.name for _, use in own}
    others = [(study, use) for study, use in every if use.published is None and use.counted and use.name in names]
    for several in (own, others):
        if found := [way for study, use in several for way in list(_ways(claim, source, study, use))[:1]]:
            return found
    return []


def _arms(study: Study) -> dict[str, str]:
    """Return the published arms by policy; none where the baseline stands for none."""
    return dict(study.published_arms) if study.compared_with in study.published_arms else {}


def _ways(claim: SourceClaim, source: Published, study: Study, use: WorkloadUse) -> Iterator[Way]:
    arms = _arms(study)
    if arms.get(study.compared_with) != claim.baseline:
        return
    for scale in (SMALL, *sorted({*study.scales, *use.scales})):
        there = use.at(scale)
        named = there.policies if there.policies is not None else tuple(use.name for use in study.policies)
        fitting = [name for name in named if arms.get(name) == claim.arm and name != study.compared_with]
        if fitting and study.compared_with in named and _speaks_of(claim, there):
            labels = tuple(use.called for use in study.workload)
            guests = _guests(claim, source, study, use)
            yield Way(
                *(study.name, use.called, labels, fitting[0], scale, guests),
                lacks=_lacks(claim, source, there, counted=study.guest is not None and not guests),
                arch=None if study.guest is None else study.guest.arch,
            )


def _speaks_of(claim: SourceClaim, use: WorkloadUse) -> bool:
    """Return whether the workload has a cell within the source's conditions, and for a trend several of one
    parameter.
    """
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


def _own(use: WorkloadUse) -> list[str]:
    """Return the metric that the workload judges where time is measured."""
    declared = workloads.discover().get(use.name)
    return [use.metric] if use.metric is not None else [one.name for one in (declared.metrics if declared else ())[:1]]


def _names(quantity: str, source: Published) -> tuple[str, ...]:
    """Return the metrics of ours that tell a quantity of the source."""
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


Standing = Literal["confirmed here", "contradicted here", "not decidable here"]
OPEN: Standing = "not decidable here"
STANDINGS: tuple[Standing, ...] = ("confirmed here", "contradicted here", OPEN)
_STANDING: Mapping[str, Standing] = {
    "same sign": "confirmed here",
    "same trend": "confirmed here",
    "no effect in either": "confirmed here",
    "opposite sign": "contradicted here",
    "opposite trend": "contradicted here",
    "equivalent here": "contradicted here",
    NONE_PUBLISHED: "contradicted here",
}

Row = PublishedPoint | PublishedFinding


class Claimed(NamedTuple):
    """A published figure or finding beside what a run found of it, and what became of it over all runs.

    row   of the newest run that decides it as it stands, else of the newest that measured it
    agreement  how the two agree, as `analysis.published` says it; `small`: what was published is within the margin
    by, against   where one run is not all that there is, by how many it is so, and which runs speak against it
    slight  an effect where none was published, which may lie within the margin of the run
    size  where a published change lies beside the interval of that run, and what else differs where it is beyond it
    where  that run was made: its machine in short, and that its guests were emulated
    """

    row: Row
    standing: Standing
    agreement: str
    size: str = ""
    where: str = ""
    small: bool = False
    slight: bool = False
    by: str = ""
    against: str = ""

    @property
    def how(self) -> str:
        """Agreement of the two, in words."""
        small = ", and what was published is within that margin" if self.small else ""
        small += ", and it may lie within the margin" if self.slight else ""
        return "; ".join(filter(None, (f"{self.agreement}{small}{self.by}", self.against)))

    @property
    def agrees(self) -> str:
        """Agreement in sign and in size."""
        return "; ".join(filter(None, (self.how, self.size)))


def claimed(runs: Iterable[Results], together: Sequence[Combined] = ()) -> list[Claimed]:
    """Return every figure and finding that a run has beside its own, cell by cell; `runs`: the newest first,
    `together`: what their e-values say. Where runs disagree, nothing is decided: a later run does not undo an earlier
    one.
    """
    told: dict[tuple[str, ...], list[Claimed]] = {}
    for results in runs:
        for row in _rows(results):
            small, slight = _small(row, results.margin), _slight(row, results.margin)
            standing = OPEN if small or slight else _STANDING.get(row.agreement, OPEN)
            one = Claimed(row, standing, row.agreement, _size(row, results), where_in_short(results), small, slight)
            told.setdefault(_key(row), []).append(one)
    joint: dict[tuple[str, ...], Combined] = {
        (one.cell, one.arm, one.baseline, one.metric): one for one in together if one.end_point == TYPICAL
    }
    found = [_joined(several, joint) for several in told.values()]
    placed = {claim_of(one.row) for one in found if _placed(one.row)}
    return [one for one in found if _placed(one.row) or claim_of(one.row) not in placed]


def claim_of(row: Row) -> tuple[str, ...]:
    """Return the claim of the row, whichever cell and policy of ours stands beside it."""
    of = (row.quantity, "") if isinstance(row, PublishedPoint) else (row.words, row.condition)
    return (row.entry, *of, row.arm, row.baseline)


def measured_of(row: Row) -> list[tuple[str, Measured]]:
    """Return the cells that were measured of it, each with what was found there."""
    if isinstance(row, PublishedPoint):
        return [] if row.measured is None else [(row.cell, row.measured)]
    return [(level.cell, level.measured) for level in row.measured if level.measured is not None]


def _rows(results: Results) -> list[Row]:
    return [] if results.beside is None else [*results.beside.points, *results.beside.findings]


def _cells(row: Row) -> tuple[str, ...]:
    return (row.cell,) if isinstance(row, PublishedPoint) else tuple(level.cell for level in row.measured)


def _placed(row: Row) -> bool:
    """Return whether the row is of a cell of ours: others tell why there is none, for their own run alone."""
    return any(_cells(row))


def _key(row: Row) -> tuple[str, ...]:
    return (*claim_of(row), row.policy, *_cells(row))


def _joined(several: Sequence[Claimed], joint: Mapping[tuple[str, ...], Combined]) -> Claimed:
    """Return the results of the runs for one claim in one cell, the newest first."""
    told = [one for one in several if measured_of(one.row)] or several[:1]
    told = [one for one in told if any(found.verdict != "not judged" for _, found in measured_of(one.row))] or told
    newest = told[0]
    decided = [one for one in told if one.standing != OPEN]
    if len({row.standing for row in decided}) > 1:
        says = "an earlier run says otherwise" if newest.standing != OPEN else "earlier runs disagree"
        return newest._replace(standing=OPEN, against=says)
    if len(told) == 1:
        return newest
    agreed = "" if newest.slight else _together(newest.row, joint)
    standing = _STANDING.get(agreed, OPEN)
    if standing != OPEN:
        if decided and decided[0].standing != standing:
            return newest._replace(standing=OPEN, against=f"the runs together say otherwise: {agreed}")
        first = decided[0] if decided else newest
        return first._replace(standing=standing, agreement=agreed, small=False, by=f", by {len(told)} runs together")
    if decided and len(decided) < len(told):
        return decided[0]._replace(by=f", by {len(decided)} of {len(told)} runs")
    return decided[0] if decided else newest


def _together(row: Row, joint: Mapping[tuple[str, ...], Combined]) -> str:
    """Return how the claim agrees with the e-values of several runs together; empty where they say nothing.

    Of a trend they never do: it is a matter of intervals, which are not multiplied.
    """
    if row.agreement == BEYOND or (isinstance(row, PublishedFinding) and row.effect == "grows"):
        return ""
    found = measured_of(row)
    if len(found) != 1:
        return ""
    ((cell, measured),) = found
    one = joint.get((cell, measured.arm, measured.baseline, measured.metric))
    if one is None or one.verdict not in DIRECTIONS:
        return ""
    judged = replace(measured, verdict=one.verdict)
    if isinstance(row, PublishedPoint):
        return agreement_of_change(row.percent, judged, 2.0 if one.direction == "larger" else 0.5)
    # Of words only better and worse are known, so that the verdict is what is compared.
    said = {"better": 1, "worse": -1}.get(row.effect, 0)
    return agreement(said, judged, 2.0 if one.verdict == "better" else 0.5)


def _small(row: Row, margin: float) -> bool:
    """Return whether the published change is within the margin of a run that found no effect."""
    if row.agreement != "equivalent here" or not isinstance(row, PublishedPoint):
        return False
    return row.percent is not None and abs(row.percent) / 100 <= margin


def _slight(row: Row, margin: float) -> bool:
    """Return whether there is an effect where none was published, and its interval is not beyond the margin."""
    if row.agreement != NONE_PUBLISHED:
        return False
    for _, found in measured_of(row):
        near = found.low if (found.ratio or 0.0) > 1 else found.high
        if near is not None and 1 / (1 + margin) <= near <= 1 + margin:
            return True
    return False


def _size(row: Row, results: Results) -> str:
    """Return the place of the published change beside the interval; beyond it, other differences that may explain
    it.
    """
    said = beside.published_size(row)
    if not beyond(row):
        return said
    others = [what for what, _ in _others(results)]
    others += ["stand-in"] if any(measured.stand_ins for _, measured in measured_of(row)) else []
    return f"{said} (other here: {', '.join(others)})" if others else said


def beyond(row: Row) -> bool:
    """Return whether the published change lies outside of our interval."""
    return size_of(row) in {"larger", "smaller"}


def size_of(row: Row) -> Size | None:
    """Return the place of the published change beside our interval; null where one of both is missing."""
    return size(row.percent, row.measured) if isinstance(row, PublishedPoint) else None


def sizes(every: Iterable[Size | None]) -> str:
    """Return how many published changes lie within our interval, up to rounding, of those that stand beside one: `1 of
    3`; else empty.
    """
    known = [one for one in every if one is not None]
    return f"{sum(one in {'within', 'rounded'} for one in known)} of {len(known)}" if known else ""


def in_emulation(runs: Iterable[Results]) -> str:
    """Return what measures the quantities that emulated guests did not; empty where nothing was missed for that."""
    for results in runs:
        guests = results.guests
        if guests is None or not any(row.reason == Known("emulated") for row in _rows(results)):
            continue
        do = "measure the quantities that emulated guests do not"
        if guests.counting:
            how = "counting guests count instructions, not time"
            return f"Guests under KVM (/dev/kvm) {do}, in a copy of the study without counting = true: {how}."
        told = f"Guests under KVM (/dev/kvm) on a machine of {guests.arch} {do}: hugewise run {results.study}."
        base_pages = guests.arch == "arm64"
        return f"{told} TLB misses of their page sizes are predicted: hugewise predict." if base_pages else told
    return ""


def differing(results: Results) -> str:
    """Return the differences from the published experiment beside the effect, in a sentence; empty where nothing is
    known.
    """
    texts = [f"the {what} ({how})" for what, how in _others(results)]
    texts += [
        f"a stand-in ({words})" for words in dict.fromkeys(one for cell in results.cells for one in cell.stand_ins)
    ]
    if not texts:
        return ""
    what = "Where a published change is beyond our interval, what else is other here may be behind it"
    return f"{what}: {'; '.join(texts)}."


def _others(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the differences of machine, kernel and sizes, each with its values."""
    found = results.beside
    if found is None:
        return
    sides = (("machine", found.machine, found.here_machine), ("kernel", found.kernel, found.here_kernel))
    for what, theirs, mine in sides:
        if theirs != mine:
            yield what, f"published {theirs or 'not told'}; here {mine or 'not told'}"
    scale = results.options.get("scale", SMALL)
    if scale != "published":
        yield "scale", f"sizes of the scale {scale} here"


def claim_line(row: Row) -> str:
    """Return a line: what the source says, what was found, and why they cannot be held against each other."""
    if isinstance(row, PublishedPoint):
        text = f"{row.entry}, {row.quantity}: {row.arm} against {row.baseline} {_change(row)}"
    else:
        text = f"{row.entry}: “{beside.published_words(row)}” ({row.arm} against {row.baseline})"
    return f"{text}. Here: {found_here(row)}"


def _change(point: PublishedPoint) -> str:
    return "(no change printed)" if point.percent is None else beside.published_change(point)


def claim_lines(found: Sequence[Claimed]) -> tuple[str, ...]:
    """Return a line for each, once; figures of one entry that were not measured for one reason in one line."""
    told: dict[tuple[str, ...], dict[str, PublishedPoint]] = {}
    for one in found:
        line, row = f"{claim_line(one.row)} ({one.agrees})", one.row
        if isinstance(row, PublishedPoint) and row.measured is None:
            told.setdefault((row.entry, row.baseline, found_here(row), one.agrees), {})[line] = row
        else:
            told.setdefault((line,), {})
    return tuple(_alike(key, several) for key, several in told.items())


def _alike(key: tuple[str, ...], several: Mapping[str, PublishedPoint]) -> str:
    if len(several) < 2:
        return next(iter(several), key[0])
    entry, baseline, why, agrees = key
    by: dict[str, list[str]] = {}
    for row in several.values():
        by.setdefault(row.quantity, []).append(f"{row.arm} {_change(row)}")
    figures = "; ".join(f"{quantity}: {', '.join(each)}" for quantity, each in by.items())
    return f"{entry}, {len(several)} against {baseline}: {figures}. Here: {why} ({agrees})"


def found_here(row: Row) -> str:
    """Return the findings, cell by cell, and why they cannot be compared with the published side."""
    found = [_found(cell, measured) for cell, measured in measured_of(row)]
    return "; ".join(filter(None, ("; ".join(found) or "nothing", why_not(row))))


def why_not(row: Row) -> str:
    """Return why it cannot be compared with the published side; empty where nothing is known against that."""
    found = measured_of(row)
    trend = isinstance(row, PublishedFinding) and row.effect == "grows"
    if found and not trend and all(measured.verdict in DECIDED for _, measured in found):
        return ""
    reasons = {row.reason} if isinstance(row, PublishedPoint) else {row.reason, *(each.reason for each in row.measured)}
    return "; ".join(sorted(in_words(_without_design(each)) for each in reasons if each))


def _without_design(reason: Reason) -> Reason:
    """Return the reason without the words on turns, which the page of claims says once."""
    return reason.rest if isinstance(reason, UnderDesign) and reason.boots is None else reason


def _found(cell: str, measured: Measured) -> str:
    effect = f"{cell}, {measured.arm}: {measured.metric} {effect_of(measured)}, n {measured.n}"
    text = effect if measured.verdict == "not judged" else f"{effect}, {measured.verdict}"
    return f"{text}, {words}" if (words := ", ".join(measured.stand_ins)) else text
