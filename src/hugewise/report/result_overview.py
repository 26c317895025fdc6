"""What all pages of results say together: each published claim, and what is commonly said of page sizes.

    write(Path("docs/results"))   # overview.md and folklore.md, from the data of every page in the folder

A claim is *confirmed here*, *contradicted here* or *not decidable here*, by what the runs of its study found; nothing
is chosen by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from hugewise.files import write_whole
from hugewise.model.published_rows import PublishedFinding, PublishedPoint
from hugewise.model.results import CellResult, Comparison
from hugewise.published.folklore import CommonClaim, claims
from hugewise.report.document import Block, Document, Line, Section, table
from hugewise.report.markdown import markdown
from hugewise.report.numbers import NOTHING
from hugewise.report.result_claims import STANDINGS, Claimed, claim_line
from hugewise.report.result_page import MARK, RESERVED, PageData, claims_of, made_here, read, refuse_others, standing
from hugewise.report.sentences import effect_of

__all__ = ["check", "folklore", "overview", "pages", "verdict_on", "write"]

_NOT_TESTED = "not tested here"


def write(folder: Path) -> list[Path]:
    """overview.md and folklore.md of the pages in `folder`; their paths. Raises UserError where one is somebody's,
    RunError, OSError.
    """
    found = pages(folder)
    told = {folder / f"{name}.md": make(found) for name, make in zip(RESERVED, (overview, folklore), strict=True)}
    check(folder)
    for path, document in told.items():
        write_whole(path, MARK + markdown(document).encode())
    return list(told)


def check(folder: Path) -> None:
    """Raises UserError where overview.md or folklore.md are there and somebody's."""
    for name in RESERVED:
        refuse_others(folder / f"{name}.md")


def pages(folder: Path) -> dict[str, PageData]:
    """The data of every page in the folder, by name; other Parquet files are none. Raises RunError."""
    paths = sorted(folder.glob("*.parquet"), key=lambda path: path.stem)
    return {path.stem: read(path) for path in paths if made_here(path.with_suffix(".md"))}


def overview(found: Mapping[str, PageData]) -> Document:
    """A table of the publications, then of each its claims."""
    rows = []
    sections = []
    for name, data in found.items():
        results = data.runs[0].results
        decided = [one for _, found in standing(data) for cell in found.cells for one in cell.comparisons]
        told = claims_of(data)
        counts = Counter(one.standing for one in told)
        rows.append(
            (
                *(f"{name}.md", results.question, *(counts[word] for word in STANDINGS)),
                f"{sum(one.verdict in {'better', 'worse', 'equivalent'} for one in decided)} of {len(decided)}",
            )
        )
        if told:
            sections.append(Section(name, tuple(_claims(told))))
    head = ("page", "question", *STANDINGS, "comparisons decided")
    return Document(
        title="Results",
        lead=(
            Line(
                "What hugewise found when it made the published experiments again, on the machine that each page"
                " names. Machine, kernel and size differ from the published ones: a sign can be confirmed or"
                " contradicted here, and no more. Each page is made from the data beside it; nothing by hand."
            ),
            table("the studies, and what became of what was published", head, rows, 2),
        ),
        sections=tuple(sections),
    )


def _claims(told: list[Claimed]) -> Iterator[Block]:
    rows = [(word, claim_line(one.row), one.how) for word in STANDINGS[:2] for one in told if one.standing == word]
    if rows:
        yield table("decided", ("", "claim, and what was found", "how they agree"), rows, 3)
    open_: Counter[str] = Counter()
    for one in told:
        if one.standing == "not decidable here":
            open_[f"{one.how}{f': {why}' if (why := _why(one.row)) else ''}"] += 1
    if open_:
        yield table("not decidable here", ("why", "claims"), list(open_.items()), 1)


def _why(one: PublishedPoint | PublishedFinding) -> str:
    if one.reason or isinstance(one, PublishedPoint):
        return one.reason
    return next((level.reason for level in one.measured if level.reason), "")


def folklore(found: Mapping[str, PageData]) -> Document:
    """Each common claim, who says it, what tests it, and what was found."""
    rows = []
    for claim in claims():
        word, told = verdict_on(claim, found)
        studies = ", ".join(dict.fromkeys(one.study for one in claim.tested)) or "no study of hugewise"
        rows.append((claim.says, "; ".join(claim.sources), studies, word, told))
    head = ("it is said", "by", "tested by", "here", "what was found")
    return Document(
        title="Folklore",
        lead=(
            Line(
                "What is commonly said of page sizes, and what the studies found of it. A claim is confirmed here where"
                " comparisons decided for it and none against it; the reverse contradicts it; both make it mixed here."
            ),
            table("claims", head, rows, 5),
        ),
        sections=(),
    )


def verdict_on(claim: CommonClaim, found: Mapping[str, PageData]) -> tuple[str, str]:
    """What the pages make of a claim, in a word, and the comparisons that say so."""
    votes: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for test in claim.tested:
        if (data := found.get(test.study)) is None:
            continue
        for cell in (cell for run in data.runs for cell in run.results.cells):
            if fnmatchcase(cell.cell, test.cells):
                for one in (*cell.comparisons, *cell.end_points):
                    if one.metric == (claim.metric or cell.metric.name) and (side := _side(claim, cell, one)):
                        votes[_vote(claim, one, side)].append(f"{cell.cell}, {one.arm}: {one.metric} {effect_of(one)}")
    if not any(votes.values()):
        return _NOT_TESTED, NOTHING
    if votes[True] and votes[False]:
        return "mixed here", _listed(votes[True] + votes[False])
    if votes[True]:
        return STANDINGS[0], _listed(votes[True])
    if votes[False]:
        return STANDINGS[1], _listed(votes[False])
    return STANDINGS[2], f"{len(votes[None])} undecided: {_listed(votes[None])}"


def _side(claim: CommonClaim, cell: CellResult, one: Comparison) -> int:
    """1 where the comparison's arm is said to be better, -1 where its baseline is, 0 where it tests nothing of it."""
    policies = {arm.arm: arm.policy for arm in cell.arms}
    arm, baseline = policies.get(one.arm, ""), policies.get(one.baseline, "")
    if arm in claim.better and baseline in claim.worse:
        return 1
    return -1 if arm in claim.worse and baseline in claim.better else 0


def _vote(claim: CommonClaim, one: Comparison, side: int) -> bool | None:
    """Whether the comparison speaks for the claim; None where it is undecided."""
    if one.verdict in {"undecided", "none"}:
        return None
    if claim.expects == "equivalent":
        return one.verdict == "equivalent" or (one.verdict == "better") == (side > 0)
    return one.verdict == ("better" if side > 0 else "worse")


def _listed(lines: list[str]) -> str:
    few = lines[:4]
    return "; ".join(few) + (f"; and {len(lines) - len(few)} more" if len(lines) > len(few) else "")
