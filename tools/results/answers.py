"""The answer to each published claim by all pages together: the best founded one, and what a verdict would take.

What is decided stands before what is not; of several that decide alike, the one at the highest confidence, then with
the most pairs. Where cells or pages decide in opposite ways nothing is decided. What is open says what it would take:
pairs and hours by the page's forecast, the command of a study that tests it, or the machine, the counter or the arm
that was not there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from hugewise.analysis.forecast import FEWEST, Forecast, Row
from hugewise.analysis.published import BEYOND, NOT_HERE, ROUNDED, Size
from hugewise.model.reason import Known, NoMetric, NotInCell, NotPlanned, OneLevel, OtherBaseline, Reason, ZeroMedian
from hugewise.model.results import Measured, PublishedFinding, PublishedPoint
from hugewise.quantity import format_duration
from hugewise.report import numbers
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words
from hugewise.stats.power import MOST
from tools.results.claims import (
    OPEN,
    STANDINGS,
    Claimed,
    SourceClaim,
    Standing,
    Way,
    found_here,
    measured_of,
    size_of,
    why_not,
)
from tools.results.data import PageData

WhyOpen = Literal["not run", "undecided or not judged", "no counter, or another machine", "no study"]
"""Reason why a claim is open: it was not run; the runs do not tell; the machine could not; or nothing tests it, or it
prints nothing that could be tested.
"""
REASONS: tuple[WhyOpen, ...] = ("not run", "undecided or not judged", "no counter, or another machine", "no study")

_DISAGREE = "a further run: those that there are disagree"
_UNPRINTED = "a published change: none is printed"
_MOST_NAMED = 3
_LACKING = (Known("no policy"), Known("no cell"), Known("one level"))
"""Reasons of `analysis.published` for an arm or cells that the run lacked, and another run may have."""
_BEST_FIRST = (
    *(ROUNDED, "equivalent here", "undecided here", "no verdict here", "not judged here", "no change published"),
    BEYOND,
)
"""Agreement of open rows, the best founded first."""


class ClaimRow(NamedTuple):
    """Finding of a page on a claim."""

    page: str
    data: PageData
    claimed: Claimed

    @property
    def reason(self) -> Reason:
        """Reason why nothing was measured, or why it cannot be compared with the published side."""
        row = self.claimed.row
        levels = row.measured if isinstance(row, PublishedFinding) else ()
        return row.reason or next((level.reason for level in levels if level.reason), "")

    @property
    def lacking(self) -> bool:
        """True if the run had no such arm or cell."""
        return self.reason in _LACKING or isinstance(self.reason, OtherBaseline | NotInCell | OneLevel)

    @property
    def disagreeing(self) -> bool:
        """True if runs of the page disagree."""
        return bool(self.claimed.against)

    @property
    def judged(self) -> bool:
        """True if the claim was judged within its conditions, without a verdict."""
        undecided = self.claimed.agreement in ("undecided here", "no verdict here")
        return bool(measured_of(self.claimed.row)) and (self.disagreeing or undecided)

    @property
    def weight(self) -> tuple[float, int]:
        """The highest confidence of what was measured, and the most pairs."""
        every = [measured for _, measured in measured_of(self.claimed.row)]
        confidence = max((measured.confidence or 0.0 for measured in every), default=0.0)
        return confidence, max((measured.n for measured in every), default=0)

    @property
    def rank(self) -> int:
        """Rank of an open row: from runs that disagree to those that measured nothing of it."""
        if self.disagreeing:
            return -1
        agreement = self.claimed.agreement
        return _BEST_FIRST.index(agreement) if agreement in _BEST_FIRST else len(_BEST_FIRST) + self.lacking

    @property
    def text(self) -> str:
        """Finding, its place, and its agreement; where nothing was measured, the reason."""
        found = found_here(self.claimed.row)
        if not measured_of(self.claimed.row):
            return why_not(self.claimed.row) or found
        where = f", {self.claimed.where}" if self.claimed.where else ""
        return f"{found}{where}: {self.claimed.agrees}"


class ClaimAnswer(NamedTuple):
    """Outcome of a claim.

    found    what was found, and how it agrees
    takes    what a verdict would take
    where    the names of the pages
    size     where the published change lies beside the interval of what was found; null where one of both is not there
    open     why it is not decidable here; null where it was decided
    in_part  whether another cell, in which it was judged as well, leaves open what this one decides
    """

    standing: Standing
    found: str
    takes: str
    where: tuple[str, ...]
    size: Size | None = None
    open: WhyOpen | None = None
    in_part: bool = False


def answer(claim: SourceClaim, rows: Sequence[ClaimRow], ways: Sequence[Way] = ()) -> ClaimAnswer:
    """Return the claim's answer by the `rows` of all pages. `ways`: studies that test it."""
    confirming, against, undecided = ([row for row in rows if row.claimed.standing == word] for word in STANDINGS)
    if confirming and against:
        pages = {row.page for row in (*confirming, *against)}
        both = f"confirmed in {_places(confirming, pages)}, contradicted in {_places(against, pages)}: here it depends"
        factor = "what the cells differ in, as a factor of one study"
        return ClaimAnswer(OPEN, both, factor, _pages([*confirming, *against]), open="undecided or not judged")
    if decided := confirming or against:
        return _decided(decided, undecided)
    untried = _unmeasured(rows, ways)
    if not undecided:
        found = "not run" if ways else "no study of hugewise has these arms on this workload"
        return ClaimAnswer(OPEN, found, _wanted(claim, untried, ways), (), open=_unmet(claim, untried))
    best = min(undecided, key=lambda row: (row.rank, -row.weight[1]))
    takes = _takes(claim, best, untried, ways) if claim.printed else _UNPRINTED
    return ClaimAnswer(OPEN, best.text, takes, (best.page,), size_of(best.claimed.row), _why_open(claim, best, untried))


def _decided(decided: Sequence[ClaimRow], undecided: Sequence[ClaimRow]) -> ClaimAnswer:
    best = max(decided, key=lambda row: row.weight)
    others = [row for row in decided if row is not best]
    left = [row for row in undecided if row.judged]
    found = best.text
    found += f"; likewise in {_places(others, {row.page for row in decided})}" if others else ""
    found += f"; open in {_places(left, {row.page for row in (best, *left)})}" if left else ""
    takes = "; ".join(map(_further, left[:_MOST_NAMED])) or NOTHING
    size = size_of(best.claimed.row)
    return ClaimAnswer(best.claimed.standing, found, takes, _pages([best, *others, *left]), size, in_part=bool(left))


def _places(rows: Sequence[ClaimRow], pages: Collection[str]) -> str:
    """`cell, policy`, each with its page where there are several `pages`."""
    named = []
    for row in rows:
        cells = [f"{cell}, {measured.arm}" for cell, measured in measured_of(row.claimed.row)]
        place = f"{cells[0]} to {cells[-1]}" if len(cells) > 1 else "".join(cells)
        named.append(f"{place} ({row.page})" if len(pages) > 1 else place)
    return "; ".join(dict.fromkeys(named))


def _pages(rows: Sequence[ClaimRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.page for row in rows))


def _unmet(claim: SourceClaim, ways: Sequence[Way]) -> WhyOpen:
    """Return what a claim is waiting for that no run has met."""
    judging = [way for way in ways if not way.lacks]
    if not judging or not claim.printed:
        return "no study"
    return "no counter, or another machine" if all(way.guests for way in judging) else "not run"


def _why_open(claim: SourceClaim, best: ClaimRow, untried: Sequence[Way]) -> WhyOpen:
    """Return why a claim that runs have met is open."""
    if not claim.printed:
        return "no study"
    if measured_of(best.claimed.row) and best.claimed.agreement != NOT_HERE:
        return "undecided or not judged"
    if best.lacking or isinstance(best.reason, NoMetric):
        return _unmet(claim, untried)
    return "no counter, or another machine"


def _takes(claim: SourceClaim, best: ClaimRow, untried: Sequence[Way], ways: Sequence[Way]) -> str:
    """Return what would decide a claim that runs have met."""
    row, how = best.claimed.row, best.claimed.agreement
    measured = measured_of(row)
    if not measured or how == NOT_HERE:
        return _obstacle(claim, best, untried, ways)
    if best.claimed.small and isinstance(row, PublishedPoint):
        return f"a margin below {abs(row.percent or 0):g}%"
    if best.disagreeing or how not in {"not judged here", BEYOND, ROUNDED}:
        return _further(best)
    if how == BEYOND:
        return f"a cell of what is said{f': {row.condition}' if isinstance(row, PublishedFinding) else ''}"
    if how == "not judged here":
        (cell, found), *_ = measured
        own = [way for way in ways if way.study == best.data.runs[0].results.study and way.has(cell)]
        now = next((way for way in own if not way.lacks), None)
        here = f"a cell that judges {found.metric} as well (key also): here it was measured beside what is judged"
        return here if now is None else f"{now.command}, which judges {found.metric} by now"
    return "a published change with more digits"


def _obstacle(claim: SourceClaim, best: ClaimRow, untried: Sequence[Way], ways: Sequence[Way]) -> str:
    """Return the obstacle to a measurement, or else what measures it."""
    reason, others = best.reason, _wanted(claim, untried, ways)
    lacks = next((way.lacks for way in ways if way.lacks), "")
    judge = f", and a cell that judges {lacks} (key also)" if lacks else ""
    if isinstance(reason, NotPlanned):
        return f"{_needed(best.data, reason.why)}; or {others}"
    if reason == Known("emulated"):
        return others if untried or not ways else "a processor's own clock and counters (KVM)"
    if isinstance(reason, NoMetric) and lacks:
        return f"a machine that measures {lacks}, and a cell that judges it (key also)"
    if isinstance(reason, NoMetric) or best.lacking:
        return others
    zero = reason == Known("zero") or isinstance(reason, ZeroMedian)
    return "a cell in which it is not 0" if zero else f"another machine or hypervisor{judge}"


def _needed(data: PageData, reason: str) -> str:
    """Return the packages for want of which a policy was left out, or else the machine."""
    left = (part for run in data.runs for part in run.results.left_out if part.reason == reason)
    packages = dict.fromkeys(name for part in left for name in part.packages)
    if packages:
        return f"the packages {', '.join(packages)}"
    return f"a machine on which it can run (left out here: {reason})"


def _wanted(claim: SourceClaim, untried: Sequence[Way], ways: Sequence[Way]) -> str:
    """The ways that no run has taken, those on the host first; where there are none at all, the lacking study."""
    if not claim.printed:
        return _UNPRINTED
    named = sorted(untried, key=lambda way: (bool(way.lacks), bool(way.guests)))[:_MOST_NAMED]
    if named:
        return "; or ".join(way.words for way in named)
    if ways:
        return "a run that measures it"
    levels = f" and several levels of {' or '.join(claim.parameters)}" if claim.parameters else ""
    return f"a study with an arm for {claim.arm} against {claim.baseline}{levels} on this workload"


def _unmeasured(rows: Sequence[ClaimRow], ways: Sequence[Way]) -> list[Way]:
    """The ways of which no run has all that the study gives: its cell and its arm, measured or with no value there."""
    tried = []
    for claim_row in rows:
        row = claim_row.claimed.row
        cells = [row.cell] if isinstance(row, PublishedPoint) else [level.cell for level in row.measured]
        if not claim_row.lacking:
            own = [way for way in ways if way.study == claim_row.data.runs[0].results.study]
            if claim_row.reason == Known("emulated"):  # what needs a processor is measured where guests have one
                own = [way for way in own if not way.guests]
            tried += [way for way in own if any(map(way.has, cells))]
    return [way for way in ways if way not in tried]


def open_pairs(data: PageData, cell: str, arm: str, metric: str) -> tuple[Forecast, Row] | None:
    """Return the forecast of a comparison in one metric by the newest run that has one with its pairs."""
    key = (cell, arm, metric)
    for run in data.runs:
        if run.forecast is not None:
            for row in run.forecast.rows:
                if (row.cell, row.arm, row.metric) == key and row.needed is not None:
                    return run.forecast, row
    return None


def planned_words(row: Row) -> str:
    """Return the pairs of a forecast, with what few pairs leave open, and their time."""
    time = "" if row.seconds is None or _made(row) else f", {hours_of(row)}"
    return f"{pairs_of(row, ' pairs')}{time}"


def pairs_of(row: Row | None, unit: str = "") -> str:
    """Return the pairs of a forecast, with a unit. Earlier versions planned from few, and told their spread."""
    if row is None:
        return "no forecast: too few pairs, or no method that could be planned"
    if row.needed is None and row.reason is not None:
        return f"no forecast: {in_words(row.reason)}"
    if _made(row):
        return f"no forecast: {row.needed:,} were forecast, and {row.pairs:,} did not decide"
    few = ""
    if row.pairs < FEWEST and row.sd is not None:
        ends = f"{_count(row.needed_low)} to {_count(row.needed_high)}"
        sd, low, high = (_change(value) for value in (row.sd, row.sd_low, row.sd_high))
        few = f" ({ends}: {row.pairs} pairs alone tell the spread, {sd} ({low} to {high}))"
    return f"{_count(row.needed)}{unit}{few}"


def hours_of(row: Row | None) -> str:
    """Return the time of these pairs."""
    if row is None or row.needed is None or row.seconds is None or _made(row):
        return "unknown"
    return format_duration(row.needed * row.seconds)


def _made(row: Row) -> bool:
    """Return whether as many pairs as forecast were made, and did not decide."""
    return row.needed is not None and row.needed <= row.pairs


def _count(needed: int | None) -> str:
    return f"more than {MOST:,}" if needed is None else f"{needed:,}"


def _change(sd: float | None) -> str:
    return NOTHING if sd is None else numbers.share(math.expm1(sd))


def _further(row: ClaimRow) -> str:
    """Return what would decide a row that was judged: pairs in its cell, or in the first and the last of a trend."""
    if row.disagreeing:
        return _DISAGREE
    if row.claimed.slight:
        margin = numbers.percent(row.data.runs[0].results.margin)
        return f"more pairs in {measured_of(row.claimed.row)[0][0]}: the interval reaches into the margin of {margin}"
    measured = measured_of(row.claimed.row)
    ends = measured if len(measured) < 3 else (measured[0], measured[-1])
    return "; ".join(_pairs(row.data, cell, found) for cell, found in ends)


def _pairs(data: PageData, cell: str, measured: Measured) -> str:
    """Return how many pairs a verdict takes, by the page's forecast."""
    known = open_pairs(data, cell, measured.arm, measured.metric)
    if known is None:
        return f"more than {measured.n} pairs in {cell}: from so few there is no forecast"
    forecast, row = known
    return f"{planned_words(row)} in {cell}, for a change of {numbers.percent(forecast.effect)}"
