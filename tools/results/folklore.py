"""Common claims about page sizes, and the findings of the results pages: folklore.md.

A claim is *confirmed here* where comparisons decided for it and none against it; the reverse contradicts it, and both
make it *mixed here*. Which comparisons test it is in `published.claims`; nothing is chosen by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from hugewise import workloads
from hugewise.model.results import DECIDED, CellResult, Comparison, Results
from hugewise.plan.cells import Resolved, resolve
from hugewise.published import CommonClaim, claims
from hugewise.report import numbers
from hugewise.report.document import Document, Line, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import effect_of
from hugewise.study.load import at_scale
from hugewise.study.study import Study
from hugewise.study.workload import SMALL
from tools.results.answers import open_pairs, planned_words
from tools.results.claims import STANDINGS, Guests, Way, shipped_studies
from tools.results.data import PageData
from tools.results.runs import machine_in_short

NOT_TESTED = "not tested here"
_FEW = 4
"""Number of comparisons that are named."""
_HALF = 0.5

Side = tuple[str, str]
"""An arm's policy, and of guests the pages of the host that back it."""


class ClaimFound(NamedTuple):
    """Finding of the pages on a claim, in a word; the comparisons behind it; what a verdict would take, and the
    pages.
    """

    word: str
    told: str
    takes: str
    where: tuple[str, ...]


class _Vote(NamedTuple):
    """A comparison, where it was made, and what it says of the claim; `own`: the metric of its cell."""

    page: str
    data: PageData
    cell: str
    one: Comparison
    speaks: bool | None
    machine: str
    own: str


def folklore(pages: Mapping[str, PageData], studies: Sequence[Study] | None = None) -> Document:
    """Each common claim, who says it, what tests it, and what was found. `studies`: those that come with hugewise."""
    known = shipped_studies() if studies is None else studies
    rows = []
    for claim in claims():
        verdict = verdict_on(claim, pages, known)
        names = ", ".join(dict.fromkeys(test.study for test in claim.tested)) or "no study of hugewise"
        where = ", ".join(f"{name}.md" for name in verdict.where) or NOTHING
        rows.append((claim.says, "; ".join(claim.sources), names, verdict.word, verdict.told, verdict.takes, where))
    head = ("it is said", "by", "tested by", "here", "what was found", "what a verdict would take", "page")
    return Document(
        title="Folklore",
        lead=(
            Line(
                "This page lists common claims about page sizes, and what the studies found. A claim is confirmed here"
                " where comparisons decided for it and none against it; the reverse contradicts it; both make it mixed"
                " here. A claim of a difference is also contradicted by comparisons that found none."
            ),
            table("claims", head, rows, len(head), linked=(1, len(head) - 1)),
        ),
        sections=(),
    )


def verdict_on(claim: CommonClaim, pages: Mapping[str, PageData], studies: Sequence[Study] = ()) -> ClaimFound:
    """Return the finding of the pages on a claim; `studies` are those whose runs would test it. Raises StudyError."""
    votes = list(_votes(claim, pages))
    decided = [vote for vote in votes if vote.speaks is not None]
    where = tuple(dict.fromkeys(one.page for one in decided or votes))
    if not votes:
        told, where = _beside(claim, pages)
        return ClaimFound(NOT_TESTED, told, _takes(claim, studies), where)
    if not decided:
        told = f"{len(votes)} undecided: {_listed(votes)}"
        return ClaimFound(STANDINGS[2], told, _pairs(votes) or f"more pairs: {_takes(claim, studies)}", where)
    words = {True: STANDINGS[0], False: STANDINGS[1]}
    said = {bool(row.speaks) for row in decided}
    word = "mixed here" if len(said) == 2 else words[said.pop()]
    sides = [[vote for vote in decided if vote.speaks is speaks] for speaks in (True, False)]
    if all(sides):
        told = ". ".join(
            f"{name}: {_listed(votes, _FEW // 2)}" for name, votes in zip(("For", "Against"), sides, strict=True)
        )
    else:
        told = _listed(decided)
    return ClaimFound(word, told, NOTHING, where)


def reached(claim: CommonClaim, study: Study) -> Iterator[Way]:
    """The workloads of the study that compare what the claim compares, each at its least scale. Raises StudyError."""
    patterns = [test.cells for test in claim.tested if test.study == study.name]
    labels = tuple(use.called for use in study.workload)
    seen: set[str] = set()
    for scale in (SMALL, *sorted({*study.scales, *(name for use in study.workload for name in use.scales)})):
        there = at_scale(study, scale)
        for cell in resolve(there, workloads.discover()):
            label = cell.used.called
            if label in seen or not any(fnmatchcase(cell.id, pattern) for pattern in patterns):
                continue
            if (arm := _arm(claim, there, cell)) is not None:
                seen.add(label)
                timed: Guests = "emulated" if study.guest is not None and not claim.metrics else ""
                yield Way(study.name, label, labels, arm, scale, timed)


def _arm(claim: CommonClaim, study: Study, cell: Resolved) -> str | None:
    """Return the first arm of the cell that the claim speaks of, where what is judged there is what it claims."""
    if claim.metrics and not {cell.metric.name, *cell.used.also}.intersection(claim.metrics):
        return None
    named = cell.used.policies
    uses = {use.name: use for use in study.policies if named is None or use.name in named}
    backed: dict[str, Side] = {
        name: (one.registered, "" if study.guest is None else one.backed_by.pages) for name, one in uses.items()
    }
    against = backed.pop(study.compared_with, None)
    if against is None:
        return None
    return next((name for name, side in backed.items() if _side(claim, side, against)), None)


def _beside(claim: CommonClaim, found: Mapping[str, PageData]) -> tuple[str, tuple[str, ...]]:
    """Return the metrics by which its arms were judged, where runs compared them by others than the claimed; and the
    pages.
    """
    every = [vote for vote in _compared(claim, found) if vote.one.metric not in claim.metrics]
    if not claim.metrics or not every:
        return NOTHING, ()
    names = ", ".join(dict.fromkeys(vote.one.metric for vote in every))
    cells = ", ".join(dict.fromkeys(vote.cell for vote in every))
    pages = tuple(dict.fromkeys(vote.page for vote in every))
    return f"{cells}: judged by {names}, not by {' or '.join(claim.metrics)}", pages


def _votes(claim: CommonClaim, pages: Mapping[str, PageData]) -> Iterator[_Vote]:
    """Yield every comparison of the pages that tests the claim, with what it says of it."""
    return (vote for vote in _compared(claim, pages) if _is_of(claim, vote.own, vote.one))


def _compared(claim: CommonClaim, pages: Mapping[str, PageData]) -> Iterator[_Vote]:
    """Yield every comparison of the claim's sides on the pages, whatever it is judged by."""
    for test in claim.tested:
        for page, data in pages.items():
            for results in (run.results for run in data.runs if run.results.study == test.study):
                for cell in results.cells:
                    if fnmatchcase(cell.cell, test.cells):
                        yield from _of_cell(claim, page, data, results, cell)


def _of_cell(claim: CommonClaim, page: str, data: PageData, results: Results, cell: CellResult) -> Iterator[_Vote]:
    guests = {} if results.guests is None else {arm.arm: arm.backing.pages for arm in results.guests.arms}
    emulated = results.guests is not None and results.guests.accelerator == "tcg"
    if emulated and not claim.metrics:  # what is counted there is no speed
        return
    sides = {arm.arm: (arm.policy, guests.get(arm.arm, "")) for arm in cell.arms}
    nothing = ("", "")
    for comparison in cell.judged:
        side = _side(claim, sides.get(comparison.arm, nothing), sides.get(comparison.baseline, nothing))
        if side:
            yield _Vote(
                page,
                data,
                cell.cell,
                comparison,
                _speaks(claim, comparison, side),
                machine_in_short(results),
                cell.metric.name,
            )


def _is_of(claim: CommonClaim, own: str, comparison: Comparison) -> bool:
    """Return whether the comparison is of what is claimed: memory and the number of faults are no part of a claim that
    does not name them.
    """
    if claim.metrics:
        return comparison.metric in claim.metrics
    return comparison.metric == own or not comparison.metric.endswith(("_bytes", "_faults"))


def _side(claim: CommonClaim, arm: Side, baseline: Side) -> int:
    """1 where the arm is said to be better, -1 where its baseline is, 0 where the two test nothing of the claim.

    Guests whose own policy is the same are held against each other by what backs them.
    """
    one, other = (arm[1], baseline[1]) if arm[0] == baseline[0] else (arm[0], baseline[0])
    if one in claim.better and other in claim.worse:
        return 1
    return -1 if one in claim.worse and other in claim.better else 0


def _speaks(claim: CommonClaim, comparison: Comparison, side: int) -> bool | None:
    """Return whether the comparison speaks for the claim; None where it is undecided."""
    if comparison.verdict not in DECIDED:
        return None
    if claim.expects == "equivalent":
        return comparison.verdict == "equivalent" or (comparison.verdict == "better") == (side > 0)
    return comparison.verdict == ("better" if side > 0 else "worse")


def _listed(votes: Sequence[_Vote], most: int = _FEW) -> str:
    lines = [
        f"{vote.cell}, {vote.one.arm}: {vote.one.metric} {effect_of(vote.one)}, n {vote.one.n},"
        f" {_undelivered(vote.one)}{vote.machine}"
        for vote in votes
    ]
    more = f"; and {len(lines) - most} more" if len(lines) > most else ""
    return "; ".join(lines[:most]) + more


def _undelivered(one: Comparison) -> str:
    """`0% of the memory got its pages, `: of a setting that gave the program less than half of what it promises."""
    share = one.delivered_share
    if one.judged != "setting" or share is None or share >= _HALF:
        return ""
    return f"{numbers.share(share)} of the memory got its pages, "


def _pairs(votes: Sequence[_Vote]) -> str:
    """Return what the comparison nearest to a verdict takes, by its page's forecast; empty where there is none."""
    known = []
    for vote in votes:
        planned = open_pairs(vote.data, vote.cell, vote.one.arm, vote.one.metric)
        if planned is not None:
            row = planned[1]
            if row.needed is not None and row.seconds is not None and row.needed > row.pairs:
                known.append((row.needed * row.seconds, row, vote))
    if not known:
        return ""
    _, row, vote = min(known, key=lambda one: one[0])
    return f"{planned_words(row)} in {vote.cell}, {vote.one.arm}: {vote.one.metric}"


def _takes(claim: CommonClaim, studies: Sequence[Study]) -> str:
    """Return what a first verdict would take."""
    if not claim.tested:
        return claim.takes
    named = dict.fromkeys(test.study for test in claim.tested)
    every = [way for name in named for study in studies if study.name == name for way in reached(claim, study)]
    if every:
        return "; or ".join(way.words for way in every[:3])
    return f"a study of {', '.join(named)} that judges {' or '.join(claim.metrics) or 'it'}"
