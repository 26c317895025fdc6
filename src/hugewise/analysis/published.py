"""Published figures beside one's own: point by point where the source has numbers, sign or trend where it has words.

The published side is copied from the source's file and never computed. Signs are compared by verdicts: a measured sign
is one whose interval excludes no change. A trend is measured where the intervals of the first and the last level, which
hold together at the study's confidence, do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hugewise.analysis.changes import Change, Values, changes, known_metrics
from hugewise.model.reason import (
    Known,
    NoMetric,
    NotInCell,
    NotPlanned,
    OneLevel,
    OtherBaseline,
    Overlap,
    Reason,
)
from hugewise.model.results import Beside, CellResult, Level, Measured, PublishedFinding, PublishedPoint, Results
from hugewise.published import Claim, Published, Sample, SourceFinding
from hugewise.study.workload import cell_of


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Published figure, whichever form it is given in."""

    quantity: str
    unit: str
    arm: str
    baseline: str
    percent: float | None
    arm_sample: Sample | None = None
    baseline_sample: Sample | None = None
    confidence: float | None = None
    statistic: str


def figures(published: Published, entry: str) -> list[PublishedFigure]:
    """Return every published figure of an entry, in the source's order: quantity by quantity, arm by arm."""
    source, found = published.source, []
    runs = f"{source.statistic} of {source.runs} runs" if source.runs is not None and source.statistic else ""
    for table in published.tables:
        if table.name == entry:
            found += [
                PublishedFigure(
                    quantity=quantity, unit="", arm=arm, baseline=table.arms[0], percent=percent, statistic=runs
                )
                for quantity, percents in table.changes.items()
                for arm, percent in list(zip(table.arms, percents, strict=True))[1:]
            ]
    for counters in published.counters:
        if counters.name == entry:
            found += [
                PublishedFigure(
                    quantity=one.name,
                    unit=one.unit,
                    arm=counters.arms[1],
                    baseline=counters.arms[0],
                    percent=one.change_percent,
                    arm_sample=Sample(mean=one.values[1]),
                    baseline_sample=Sample(mean=one.values[0]),
                    statistic=counters.statistic,
                )
                for one in counters.counter
            ]
    for benchmark in published.benchmarks:
        if benchmark.name == entry:
            (baseline, first), (arm, second) = benchmark.pair
            found.append(
                PublishedFigure(
                    quantity=benchmark.metric,
                    unit=benchmark.unit,
                    arm=arm,
                    baseline=baseline,
                    # Sources print the size of an effect and call it faster or slower: the means have the sign.
                    percent=math.copysign(benchmark.published_effect_percent, second.mean - first.mean),
                    arm_sample=second,
                    baseline_sample=first,
                    confidence=benchmark.confidence,
                    statistic="means",
                )
            )
    return found


NOT_HERE = "not measured here"
BEYOND = "beyond what was published"
ROUNDED = "an effect here, and the published 0% is rounded: it has room for the least that our interval has"
NONE_PUBLISHED = "an effect here, none published"

Size = Literal["within", "rounded", "larger", "smaller"]
"""Place of a published change: within our interval, beyond it by no more than its rounding, or beyond all of it."""


def sign(value: float) -> int:
    """1, 0 or -1."""
    return (value > 0) - (value < 0)


def agreement(published: int | None, measured: Measured | None, ratio: float | None) -> str:
    """Return in words whether both have the same sign; `published` None: no change is printed."""
    if measured is None:
        return NOT_HERE
    match measured.verdict:
        case "not judged":
            return "not judged here"
        case "none":
            return "no verdict here"
        case "undecided":
            return "undecided here"
        case "equivalent":
            return "no effect in either" if published == 0 else "equivalent here"
    if published is None:
        return "no change published"
    if published == 0:
        return NONE_PUBLISHED
    return "same sign" if ratio is not None and sign(ratio - 1) == published else "opposite sign"


def agreement_of_change(percent: float | None, measured: Measured | None, ratio: float | None) -> str:
    """Return the same of a printed change in percent; a printed 0 is rounded and may be a small effect."""
    found = agreement(None if percent is None else sign(percent), measured, ratio)
    if percent == 0 and found == NONE_PUBLISHED and size(percent, measured) in {"within", "rounded"}:
        return ROUNDED
    return found


def _rounding(percent: float) -> float:
    return 0.5 * 10.0 ** -len(f"{percent:.12f}".rstrip("0").partition(".")[2])


def size(percent: float | None, measured: Measured | None) -> Size | None:
    """Return whether the published change (known to half a unit of its last digit) lies in the measured interval, or
    beyond it; None without one of both. A missing end bounds nothing.
    """
    if percent is None or measured is None or (measured.low is None and measured.high is None):
        return None
    low = -math.inf if not measured.low else math.log(measured.low)
    high = math.inf if measured.high is None else math.log(measured.high) if measured.high else -math.inf
    if low <= _log(percent) <= high:
        return "within"
    least, most = (_log(percent + side * _rounding(percent)) for side in (-1, 1))
    if low <= most and least <= high:
        return "rounded"
    return "larger" if (least > high) == ((percent or low) > 0) else "smaller"


def _log(percent: float) -> float:
    return math.log1p(percent / 100) if percent > -100 else -math.inf


def trend(levels: Sequence[Level], better: str) -> tuple[str, Reason]:
    """Return in words whether the gain grows from the first level to the last, and why where that is undecided."""
    first, last = levels[0].measured, levels[-1].measured
    if len(levels) < 2 or first is None or last is None:
        ends = (levels[0], levels[-1])
        return NOT_HERE, next((level.reason for level in ends if level.reason), Known("one level"))
    before, after = _gain(first, better), _gain(last, better)
    if before is None or after is None:
        judged = "not judged" not in {first.verdict, last.verdict}
        return ("no verdict here", Known("interval missing")) if judged else ("not judged here", "")
    if after[0] > before[1]:
        return "same trend", ""
    if after[1] < before[0]:
        return "opposite trend", ""
    return "undecided here", Overlap(levels[0].value, levels[-1].value)


def _gain(measured: Measured, better: str) -> tuple[float, float] | None:
    """Return the interval of the gain as a ratio: above 1 is better, whichever direction the metric has.

    An end that is not there is 0 or infinity; None where both are.
    """
    low, high = measured.low or 0.0, math.inf if measured.high is None else measured.high
    if measured.verdict in {"none", "not judged"} or (low <= 0 and math.isinf(high)):
        return None
    if better == "lower":
        return 1 / high, 1 / low if low > 0 else math.inf
    return low, high


def published_rows(
    published: Published, uses: Sequence[tuple[str, str | None]], arms: Mapping[str, str], results: Results
) -> Beside:
    """Return the rows. `uses`: label and entry of every workload of the study; `arms`: policy -> published arm."""
    one = _Beside(published, uses, arms, results)
    source, host = published.source, results.host
    entries = tuple(dict.fromkeys(entry for _, entry in uses if entry))
    said = [finding.text for finding in published.findings if set(finding.entries) & set(entries)]
    points = tuple(one.points(entries))
    every = [figure for entry in entries for figure in figures(published, entry)]
    known = {arm for figure in every for arm in (figure.arm, figure.baseline)}
    shown = {arm for point in points for arm in (point.arm, point.baseline)}
    return Beside(
        name=published.name,
        title=source.title,
        publisher=source.publisher,
        date=source.date,
        machine=published.machine,
        kernel=published.kernel,
        here_machine=_machine(results) or _text(host, "cpu", "model"),
        here_kernel=_kernels(results) or _text(host, "kernel", "release") or _text(host, "kernel"),
        runs=source.runs,
        statistic=source.statistic,
        missing=source.missing,
        texts=tuple(dict.fromkeys(said)),
        elsewhere=tuple(arm for arm in published.arms if arm in known - shown),
        points=points,
        findings=tuple(one.findings(entries)),
        caveats=source.caveats,
    )


class _Beside:
    """The study's side of it: which cells an entry has, and what was measured there."""

    def __init__(
        self, published: Published, uses: Sequence[tuple[str, str | None]], arms: Mapping[str, str], results: Results
    ) -> None:
        self._published, self._arms, self._results = published, arms, results
        self._uses = uses
        self._foreign = _foreign(results)
        self._changes = {
            cell.cell: {
                (one.metric, one.arm): one for one in reversed(changes(cell, Values.of(cell, results.attempts)))
            }
            for cell in results.cells
        }

    def points(self, entries: Sequence[str]) -> Iterator[PublishedPoint]:
        """Every figure for every policy that stands for its arm; all figures of an entry that no policy stands for."""
        for entry in entries:
            shown = figures(self._published, entry)
            policies = self._standing_for([figure.arm for figure in shown])
            for cell in (self._cells(entry) if policies else []) or (None,):
                for figure in shown:
                    if policies:
                        named = [policy for policy in policies if self._arms[policy] == figure.arm]
                        yield from (self._point(entry, cell, figure, policy) for policy in named)
                    else:
                        yield self._point(entry, cell, figure, "")

    def findings(self, entries: Sequence[str]) -> Iterator[PublishedFinding]:
        """Yield every claim for every policy that stands for its arm; one row where nothing of it was measured."""
        for entry in entries:
            for finding in self._published.findings:
                if entry not in finding.entries:
                    continue
                for claim in finding.claim:
                    for policy in self._standing_for([claim.arm]) or [""]:
                        row = PublishedFinding(
                            entry=entry,
                            words=claim.words,
                            condition=claim.condition,
                            figures=finding.figures,
                            effect=claim.effect,
                            arm=claim.arm,
                            baseline=claim.against,
                            policy=policy,
                            parameter="",
                            measured=(),
                            agreement=NOT_HERE,
                            reason="",
                        )
                        make = self._trends if claim.effect == "grows" else self._signs
                        rows = list(make(row, finding, claim))
                        lacking = all(level.measured is None for row in rows for level in row.measured)
                        if lacking and len({row.reason for row in rows}) == 1:
                            rows = [msgspec.structs.replace(rows[0], measured=())]
                        yield from rows

    def _standing_for(self, arms: Sequence[str]) -> list[str]:
        return [policy for policy, arm in self._arms.items() if arm in arms]

    def _cells(self, entry: str) -> list[CellResult]:
        return [cell for cell in self._results.cells if self._entry_of(cell.cell) == entry]

    def _use_of(self, cell: str) -> int | None:
        return cell_of([label for label, _ in self._uses], cell)

    def _entry_of(self, cell: str) -> str | None:
        use = self._use_of(cell)
        return None if use is None else self._uses[use][1]

    def _point(self, entry: str, cell: CellResult | None, figure: PublishedFigure, policy: str) -> PublishedPoint:
        measured, reason = self._measured(entry, cell, policy, figure.baseline, figure.quantity)
        return PublishedPoint(
            cell=cell.cell if cell is not None else "",
            entry=entry,
            quantity=figure.quantity,
            unit=figure.unit,
            arm=figure.arm,
            baseline=figure.baseline,
            percent=figure.percent,
            arm_sample=figure.arm_sample,
            baseline_sample=figure.baseline_sample,
            confidence=figure.confidence,
            statistic=figure.statistic,
            policy=policy,
            measured=measured,
            agreement=agreement_of_change(figure.percent, measured, measured.ratio if measured is not None else None),
            reason=reason,
            points=_points(cell, figure.percent, measured),
        )

    def _signs(self, row: PublishedFinding, finding: SourceFinding, claim: Claim) -> Iterator[PublishedFinding]:
        for cell in self._cells(row.entry) or (None,):
            measured, reason = self._measured(row.entry, cell, row.policy, claim.against, finding.metric)
            # Of words only better and worse are known, so that the verdict is what is compared.
            said = {"better": 1, "worse": -1}.get(claim.effect, 0)
            here = {"better": 2.0, "worse": 0.5}.get(measured.verdict) if measured is not None else None
            yield msgspec.structs.replace(
                row,
                measured=(Level(cell=cell.cell, value="", measured=measured, reason=reason),) if cell else (),
                agreement=agreement(said, measured, here) if _within(claim, cell) else BEYOND,
                reason=reason,
            )

    def _trends(self, row: PublishedFinding, finding: SourceFinding, claim: Claim) -> Iterator[PublishedFinding]:
        cells = self._cells(row.entry)
        parameter = next((name for name in claim.parameters if len({_level(cell, name) for cell in cells}) > 1), None)
        if parameter is None:
            called = claim.parameters[0]
            why = OneLevel(called, within=False) if cells else self._absent(row.entry, row.policy)
            yield msgspec.structs.replace(row, parameter=called, reason=why)
            return
        row = msgspec.structs.replace(row, parameter=parameter)
        groups: dict[str, list[CellResult]] = {}
        for cell in cells:
            if _level(cell, parameter) is not None and _within(claim, cell):
                others = {name: value for name, value in cell.parameters.items() if name != parameter}
                groups.setdefault(repr((self._use_of(cell.cell), sorted(others.items(), key=str))), []).append(cell)
        several = [group for group in groups.values() if len(group) > 1]
        if not several:
            yield msgspec.structs.replace(row, reason=OneLevel(parameter, within=True))
        for group in several:
            group.sort(key=lambda cell: _level(cell, parameter) or 0.0)
            levels = []
            for cell in group:
                measured, reason = self._measured(row.entry, cell, row.policy, claim.against, finding.metric)
                value = str(cell.parameters[parameter])
                levels.append(Level(cell=cell.cell, value=value, measured=measured, reason=reason))
            agreed, reason = trend(levels, group[0].metric.better)
            yield msgspec.structs.replace(row, measured=tuple(levels), agreement=agreed, reason=reason)

    def _measured(
        self, entry: str, cell: CellResult | None, policy: str, against: str, quantity: str | None
    ) -> tuple[Measured | None, Reason]:
        if not policy:
            return None, Known("no policy")
        if cell is None:
            return None, self._absent(entry, policy)
        stands_for = self._arms.get(cell.baseline)
        if stands_for != against:
            return None, OtherBaseline(cell.baseline, stands_for, against)
        if all(arm.arm != policy for arm in cell.arms):
            return None, self._left_out(cell.cell, policy) or NotInCell(policy, "run")
        found, reason = self._change(cell, policy, quantity)
        if found is None:
            return None, reason
        if policy in self._foreign and found.metric.endswith("_bytes"):
            return None, Known("other family")
        return Measured(
            arm=found.arm,
            baseline=found.baseline,
            metric=found.metric,
            n=found.n,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            confidence=found.confidence,
            verdict=found.verdict or "not judged",
            estimand=found.estimand,
            judged=found.judged,
            delivered_share=found.delivered_share,
            constant=found.constant,
            provisional=found.provisional,
            stand_ins=cell.stand_ins,
        ), found.reason

    def _change(self, cell: CellResult, policy: str, quantity: str | None) -> tuple[Change | None, Reason]:
        known = self._changes[cell.cell]
        if quantity is None:
            judged = known.get((cell.metric.name, policy))
            return judged, "" if judged is not None else NotInCell(policy, "compared")
        wanted = tuple(dict.fromkeys([*self._published.metrics.get(quantity, ()), quantity]))
        found = [known[name, policy] for name in wanted if (name, policy) in known]
        found.sort(key=lambda one: one.verdict is None)  # what is judged stands first
        for one in found:
            if one.ratio is not None or one.verdict is not None:
                return one, ""
        return None, found[0].reason if found else NoMetric(wanted)

    def _absent(self, entry: str, policy: str) -> Reason:
        for one in self._results.left_out:
            if one.policy == "*" and self._entry_of(one.cell) == entry:
                return NotPlanned(one.reason)
        return Known("no cell" if policy else "no policy")

    def _left_out(self, cell: str, policy: str) -> Reason | None:
        of_policy = [one for one in self._results.left_out if one.policy == policy and one.cell in {cell, "*"}]
        return NotPlanned(of_policy[0].reason) if of_policy else None


def _within(claim: Claim, cell: CellResult | None) -> bool:
    if cell is None:
        return True
    found = {name: _level(cell, name) for name in claim.within}
    return all(level is None or level <= claim.within[name] for name, level in found.items())


def _level(cell: CellResult, name: str) -> float | None:
    value = cell.parameters.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _points(cell: CellResult | None, percent: float | None, measured: Measured | None) -> float | None:
    """Return the distance of a count from the published one: no clock enters it, so that its size can be compared, not
    its sign alone.
    """
    if cell is None or percent is None or measured is None or measured.ratio is None:
        return None
    metric = known_metrics(cell.workload).get(measured.metric)
    counted = measured.metric == "instructions" or (metric is not None and metric.emulated)
    return round((measured.ratio - 1) * 100 - percent, 6) if counted else None


def _foreign(results: Results) -> frozenset[str]:
    if results.guests is None:
        return frozenset()
    had = {kernel.name: kernel.had for kernel in results.guests.kernels}
    of_baseline = had.get(results.guests.baseline)
    return frozenset(arm.arm for arm in results.guests.arms if had.get(arm.kernel) != of_baseline)


def _machine(results: Results) -> str | None:
    guests = results.guests
    if guests is None:
        return None
    model = next((arm.cpu_model for arm in guests.arms if arm.cpu_model), "not told")
    how = {"tcg": "emulated", "kvm": "under KVM", None: "by QEMU"}[guests.accelerator]
    return f"guests {how} ({guests.arch or 'architecture not told'}, CPU model {model})"


def _kernels(results: Results) -> str | None:
    if results.guests is None:
        return None
    return ", ".join(dict.fromkeys(arm.release for arm in results.guests.arms if arm.release)) or None


def _text(facts: Mapping[str, Any], *keys: str) -> str | None:
    found: Any = facts
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None
