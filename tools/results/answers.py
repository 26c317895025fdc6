"""The answer to a claim of a publication by all pages together: one, the best founded, with where it stands. Pure.

    answer(claim, told, ways, elsewhere, data)

`told` are the rows of the claim on all pages, whose `data` know hours. What is decided stands before what is not; of
several that decide alike, the one at the highest confidence, then with the most pairs. Where cells or pages decide in
opposite ways nothing is decided. What is open says what it would take: pairs and hours from the page's forecast, or the
machine, the counter or the arm that was not there.

The ways to test a claim that no run has taken: what to type, what it needs, and how long it takes. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from hugewise.analysis.forecast import TYPICAL, Forecast, Row
from hugewise.analysis.published import BEYOND, NOT_HERE, ROUNDED, Size
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.results import Measured, PublishedFinding, PublishedPoint
from hugewise.report import numbers, remarks
from hugewise.report.numbers import NOTHING
from hugewise.study.workload import SMALL
from tools.results import first_cells
from tools.results.claims import (
    OPEN,
    STANDINGS,
    Claimed,
    Guests,
    SourceClaim,
    Standing,
    Way,
    found_here,
    measured_of,
    size_of,
)
from tools.results.data import PageData

_NEEDS: Mapping[Guests, str] = {
    "": "",
    "emulated": " under KVM",
    "counting": " with guests under KVM that measure instead of counting instructions",
}


def way_words(way: Way, data: Sequence[PageData]) -> str:
    """What to type to take the way, what it needs, and how long it takes if a page knows that."""
    return ways_words([way], data)


def ways_words(ways: Sequence[Way], data: Sequence[PageData]) -> str:
    """As `way_words`, of several: what they need alike is told once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for way in ways:
        where = f"{_needs(way)}{_left_out(way, data)}"
        if way.lacks:
            quantity = "that quantity" if way.counts or way.guests else way.lacks
            cell = f"a cell {way.label} that judges {quantity} as well (key also)"
            alike.setdefault((cell, where), []).append(way.study)
        else:
            alike.setdefault(("", f"{where}{_hours(way, data)}"), []).append(way.command)
    return "; or ".join(_alike(cell, what, where) for (cell, where), what in alike.items())


def _alike(cell: str, what: Sequence[str], where: str) -> str:
    """A cell that studies lack, or commands, with what they need."""
    if cell:
        return f"{cell} in {' or '.join(what)}{where}"
    if where and len(what) > 1:
        return f"{' or '.join(what)}, each{where}"
    return f"{'; or '.join(what)}{where}"


def _needs(way: Way) -> str:
    """What its guests need, and of which architecture the machine then is."""
    machine = f" on an {way.arch} machine" if way.guests == "emulated" and way.arch is not None else ""
    return f"{machine}{_NEEDS[way.guests]}"


def _left_out(way: Way, data: Sequence[PageData]) -> str:
    """Why a run of it left the arm out, which another machine may not."""
    for results in (run.results for page in data for run in page.runs if run.results.study == way.study):
        for one in results.left_out:
            if one.policy == way.policy and (one.cell == "*" or way.has(one.cell)):
                return f" on a machine on which {way.policy} can run (left out here: {one.reason})"
    return ""


def _hours(way: Way, data: Sequence[PageData]) -> str:
    """What a verdict takes if it is as noisy as a measured neighbour, as the page of the study has it; of a metric
    beside the cell's own nothing is known.
    """
    for page in () if way.beside else data:
        newest = page.runs[0].results
        if (newest.study, newest.options.get("scale", SMALL)) == (way.study, way.scale):
            for one in page.unmeasured:
                if way.has(one.cell) and one.pairs is not None and one.seconds is not None:
                    told = f"{first_cells.pairs(one)} pairs, {first_cells.hours(one)}"
                    return f" ({told}, if as noisy as {first_cells.similar_cells(one)})"
    return ""


WhyOpen = Literal["not run", "undecided or not judged", "no counter, or another machine", "no study"]
"""Why a claim is open: no run was made of what tests it; the runs that were made do not tell; the machine could not; or
nothing that there is tests it, or it prints nothing that could be tested.
"""
REASONS: tuple[WhyOpen, ...] = ("not run", "undecided or not judged", "no counter, or another machine", "no study")

_ANOTHER = "a run that measures it"
_DISAGREE = "a further run: those that there are disagree"
_UNPRINTED = "a published change: none is printed"
_MOST = 3
"""So many ways to test a claim are named."""
_LACKING = (
    "no policy of the study",
    "no cell of it",
    "the baseline ",
    *(" was not run in this cell", " was not compared in this cell", " is not varied here", " has one level here"),
)
"""Of the reasons of `analysis.published`: the run had no such arm or cells, which another run may have."""
_UNMEASURED = "no metric of this cell"
_OPEN = (
    ROUNDED,
    "equivalent here",
    "undecided here",
    "no verdict here",
    "not judged here",
    "no change published",
    BEYOND,
)
"""What is open, the best founded first."""


class ClaimTold(NamedTuple):
    """A row of a page."""

    page: str
    data: PageData
    claimed: Claimed


class ClaimAnswer(NamedTuple):
    """What became of a claim.

    found  what was found, and how it agrees
    takes  what a verdict would take
    where  the names of the pages
    size   where the published change lies beside the interval of what was found; null where one of both is not there
    open   why it is not decidable here; null where it was decided
    in_part  whether another cell, in which it was judged as well, leaves open what this one decides
    """

    standing: Standing
    found: str
    takes: str
    where: tuple[str, ...]
    size: Size | None = None
    open: WhyOpen | None = None
    in_part: bool = False


def answer(  # noqa: PLR0917
    claim: SourceClaim,
    told: Sequence[ClaimTold],
    ways: Sequence[Way] = (),
    elsewhere: Sequence[str] = (),
    data: Sequence[PageData] = (),
    near: Sequence[Way] = (),
) -> ClaimAnswer:
    """The claim's answer. `ways`: studies that test it; `elsewhere`: studies that have its arms on other workloads;
    `near`: those that have them on the workload, in a cell that is set beside nothing published.
    """
    by = {word: [one for one in told if one.claimed.standing == word] for word in STANDINGS}
    for_it, against, undecided = by.values()
    if for_it and against:
        pages = {one.page for one in (*for_it, *against)}
        both = f"confirmed in {_places(for_it, pages)}, contradicted in {_places(against, pages)}: here it depends"
        factor = "what the cells differ in, as a factor of one study"
        return ClaimAnswer(OPEN, both, factor, _pages([*for_it, *against]), open="undecided or not judged")
    if decided := for_it or against:
        best = max(decided, key=_weight)
        others = [one for one in decided if one is not best]
        also = f"; likewise in {_places(others, {one.page for one in decided})}" if others else ""
        still = [one for one in undecided if _judged(one)]
        also += f"; open in {_places(still, {one.page for one in (best, *still)})}" if still else ""
        takes = "; ".join(map(_further, still[:_MOST])) or NOTHING
        where = _pages([best, *others, *still])
        return ClaimAnswer(
            best.claimed.standing, f"{_found(best)}{also}", takes, where, _size(best), in_part=bool(still)
        )
    if undecided:
        best = min(undecided, key=lambda one: (_rank(one), -_weight(one)[1]))
        left = [one for one in ways if one not in _tried(told, ways)]
        untried = list(_untried(claim, left, ways or near, elsewhere, data))
        takes = "; or ".join(_takes(best, untried, ways)) if claim.printed else _UNPRINTED
        open_ = _open(best, left) if claim.printed else "no study"
        return ClaimAnswer(OPEN, _found(best), takes or _ANOTHER, _pages([best]), _size(best), open_)
    takes = "; or ".join(_untried(claim, ways or near, ways or near, elsewhere, data)) if claim.printed else _UNPRINTED
    return ClaimAnswer(
        OPEN, _not_run(ways, near), takes, (), open=_unmet(ways or near) if claim.printed else "no study"
    )


def _judged(one: ClaimTold) -> bool:
    """Whether what is open was judged where the source speaks of it, and no verdict came of that."""
    how = one.claimed.how
    return bool(measured_of(one.claimed.row)) and ("; " in how or how.startswith(("undecided here", "no verdict here")))


def _not_run(ways: Sequence[Way], near: Sequence[Way]) -> str:
    """Why there is nothing of a claim that no run has met."""
    if ways:
        return "not run"
    if not near:
        return "no study of hugewise has these arms on this workload"
    of = ", ".join(dict.fromkeys(way.study for way in near))
    counts = f", and judges {near[0].counts} where its guests are emulated" if near[0].counts else ""
    return f"not run: the cell {near[0].label} of {of} has the arms{counts}"


def _unmet(ways: Sequence[Way]) -> WhyOpen:
    """What a claim is waiting for that none of these has met."""
    judging = [way for way in ways if not way.lacks]
    if not judging:
        return "no study"
    return "no counter, or another machine" if all(way.guests for way in judging) else "not run"


def _open(best: ClaimTold, left: Sequence[Way]) -> WhyOpen:
    """Why a claim that runs have met is open; `left`: ways that none has taken."""
    reason = _reason(best.claimed.row)
    if measured_of(best.claimed.row) and best.claimed.how != NOT_HERE:
        return "undecided or not judged"
    if any(part in reason for part in _LACKING) or reason.startswith(_UNMEASURED):
        return _unmet(left)
    return "no counter, or another machine"


def open_pairs(data: PageData, cell: str, arm: str, metric: str) -> tuple[Forecast, Row] | None:
    """The forecast of a comparison in one metric by the newest run that has one with its pairs."""
    key = (cell, arm, metric, TYPICAL)
    for run in data.runs:
        if run.forecast is not None:
            for row in run.forecast.rows:
                if (row.cell, row.arm, row.metric, row.end_point) == key and row.needed is not None:
                    return run.forecast, row
    return None


def _weight(one: ClaimTold) -> tuple[float, int]:
    found = [measured for _, measured in measured_of(one.claimed.row)]
    return max((each.confidence or 0.0 for each in found), default=0.0), max((each.n for each in found), default=0)


def _rank(one: ClaimTold) -> int:
    """How well an open row is founded: from runs that disagree to those that measured nothing of it."""
    how = one.claimed.how
    if "; " in how:
        return -1
    lacking = any(part in _reason(one.claimed.row) for part in _LACKING)  # a run that had its arm tells more
    return next((place for place, word in enumerate(_OPEN) if how.startswith(word)), len(_OPEN) + lacking)


def _places(told: Sequence[ClaimTold], pages: Collection[str]) -> str:
    """`cell, policy`, each with its page where there are several `pages`."""
    named = []
    for one in told:
        cells = [f"{cell}, {measured.arm}" for cell, measured in measured_of(one.claimed.row)]
        place = f"{cells[0]} to {cells[-1]}" if len(cells) > 1 else "".join(cells)
        named.append(f"{place} ({one.page})" if len(pages) > 1 else place)
    return "; ".join(dict.fromkeys(named))


def _size(one: ClaimTold) -> Size | None:
    return size_of(one.claimed.row)


def _pages(told: Sequence[ClaimTold]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.page for one in told))


def _found(one: ClaimTold) -> str:
    """What was found, where, and how it agrees; where nothing was measured, why not."""
    found = found_here(one.claimed.row)
    if not measured_of(one.claimed.row):
        return found.removeprefix("nothing; ")
    where = f", {one.claimed.where}" if one.claimed.where else ""
    return f"{found}{where}: {one.claimed.agrees}"


def _reason(row: PublishedPoint | PublishedFinding) -> str:
    levels = row.measured if isinstance(row, PublishedFinding) else ()
    return row.reason or next((level.reason for level in levels if level.reason), "")


def _takes(best: ClaimTold, untried: Sequence[str], ways: Sequence[Way]) -> Iterator[str]:
    """What would decide it, one or the other; `untried`: what no run has tried; `ways`: all that there are."""
    row, how = best.claimed.row, best.claimed.how
    found = measured_of(row)
    if not found or how == NOT_HERE:
        yield from _obstacle(best, untried, ways)
    elif "within that margin" in how and isinstance(row, PublishedPoint):
        yield f"a margin below {abs(row.percent or 0):g}%"
    elif "; " in how:
        yield _DISAGREE
    elif how.startswith(ROUNDED):
        yield "a published change with more digits"
    elif how == BEYOND:
        yield f"a cell of what is said{f': {row.condition}' if isinstance(row, PublishedFinding) else ''}"
    elif how == "not judged here":
        yield _judging(best, found[0][0], found[0][1].metric, ways)
    else:
        yield _further(best)


def _judging(best: ClaimTold, cell: str, metric: str, ways: Sequence[Way]) -> str:
    """What judges a metric that was measured beside what its run judged: the study by now, or none."""
    own = [way for way in ways if way.study == best.data.runs[0].results.study and way.has(cell)]
    now = next((way for way in own if not way.lacks), None)
    if now is None:
        return f"a cell that judges {metric} as well (key also): here it was measured beside what is judged"
    return f"{now.command}, which judges {metric} by now"


def _obstacle(best: ClaimTold, untried: Sequence[str], ways: Sequence[Way]) -> Iterator[str]:
    """What was in the way of a measurement."""
    reason = _reason(best.claimed.row)
    if reason.startswith("left out: "):
        yield _had(best.data, reason.removeprefix("left out: "))
    elif reason == NOT_IN_EMULATION:
        if not untried:
            yield "a processor's own clock and counters (KVM)"
    elif reason.startswith(_UNMEASURED):
        if lacks := next((way.lacks for way in ways if way.lacks), ""):
            yield f"a machine that measures {lacks}, and a cell that judges it (key also): none does"
            return
        yield "a run that measures it in that cell"
    elif not any(part in reason for part in _LACKING):
        lacking = reason == "0 in both" or reason.endswith(" is 0")
        yield "a cell in which it is not 0" if lacking else f"another machine or hypervisor{_unjudged(ways)}"
        return  # a run of other cells would lack it too
    yield from untried


def _unjudged(ways: Sequence[Way]) -> str:
    """That no cell judges it, wherever it is measured."""
    lacks = next((way.lacks for way in ways if way.lacks), "")
    return f", and a cell that judges {lacks} (key also)" if lacks and all(way.lacks for way in ways) else ""


def _further(one: ClaimTold) -> str:
    """What would decide it where it was judged: in its cell, or in the first and the last of a trend."""
    if "; " in one.claimed.how:
        return _DISAGREE
    found = measured_of(one.claimed.row)
    ends = found if len(found) < 3 else (found[0], found[-1])
    return "; ".join(_more(one.data, cell, measured) for cell, measured in ends)


def _more(data: PageData, cell: str, measured: Measured) -> str:
    """How many pairs a verdict takes, by the page's forecast."""
    known = open_pairs(data, cell, measured.arm, measured.metric)
    if known is None:
        return f"more than {measured.n} pairs in {cell}: from so few there is no forecast"
    forecast, row = known
    return f"{planned_words(row)} in {cell}, for a change of {numbers.percent(forecast.effect)}"


def planned_words(row: Row) -> str:
    """The pairs of a forecast, with what few pairs leave open, and their time."""
    count, _, few = remarks.pairs(row).partition(" (")
    time = "" if row.seconds is None else f", {remarks.hours(row)}"
    return f"{count} pairs{f' ({few}' if few else ''}{time}"


def _had(data: PageData, reason: str) -> str:
    left = (one for run in data.runs for one in run.results.left_out if one.reason == reason)
    packages = dict.fromkeys(name for one in left for name in one.packages)
    return (
        f"the packages {', '.join(packages)}"
        if packages
        else f"a machine on which it can run (left out here: {reason})"
    )


def _untried(
    claim: SourceClaim,
    untried: Sequence[Way],
    ways: Sequence[Way],
    elsewhere: Sequence[str],
    data: Sequence[PageData],
) -> Iterator[str]:
    """The ways that no run has taken, those on the host first; where there are no ways at all, what a study needs."""
    named = sorted(untried, key=lambda one: (bool(one.lacks), bool(one.guests)))[:_MOST]
    if named:
        yield ways_words(named, () if claim.parameters else data)  # a trend takes more than the verdicts of its ends
    if not ways:
        limits = ", ".join(f"{name} up to {most:g}" for name, most in claim.within)
        grows = f" and several levels of {' or '.join(claim.parameters)}" if claim.parameters else ""
        have = f" (the arms are in {', '.join(elsewhere)})" if elsewhere else ""
        needs = f"{grows}{f', {limits},' if limits else ''}"
        yield f"a study with an arm for {claim.arm} against {claim.baseline}{needs} on this workload{have}"


def _tried(told: Sequence[ClaimTold], ways: Sequence[Way]) -> list[Way]:
    """The ways of which a run has all that the study gives: its cell and its arm, measured or with no value there."""
    found = []
    for one in told:
        row = one.claimed.row
        cells = [row.cell] if isinstance(row, PublishedPoint) else [level.cell for level in row.measured]
        if not any(part in _reason(row) for part in _LACKING):
            own = [way for way in ways if way.study == one.data.runs[0].results.study]
            if _reason(row) == NOT_IN_EMULATION:  # what needs a processor is taken where guests have one
                own = [way for way in own if not way.guests]
            found += [way for way in own if any(map(way.has, cells))]
    return found
