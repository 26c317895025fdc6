"""All pages of results together: each claim of every publication, and common claims about page sizes.

    write(Path("docs/results"))   # the pages of `RESERVED`, from the data of every page in the folder

A claim is *confirmed here*, *contradicted here* or *not decidable here*, by what the runs of its studies found; nothing
is chosen by hand, and none is left out because no run met it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from hugewise import published
from hugewise.files import write_whole
from hugewise.published import Published
from hugewise.report.document import Block, Document, Line, Points, Section, Table, some, table
from hugewise.report.numbers import NOTHING
from hugewise.report.write import held_folder, place_below
from hugewise.study.study import Study
from tools.results.answers import REASONS, ClaimAnswer, ClaimRow, WhyOpen, answer
from tools.results.claims import (
    OPEN,
    STANDINGS,
    SourceClaim,
    claim_of,
    claims_in,
    restating,
    shipped_studies,
    size_of,
    sizes,
    together,
    ways,
)
from tools.results.data import PageData, read
from tools.results.figure import published_beside_measured, rows_of
from tools.results.folklore import folklore
from tools.results.page import RESERVED, claims_of, drawn, made_here, refuse_others
from tools.results.programs import by_program, in_a_table
from tools.results.runs import counted, decided, decided_together, standing

_BECAUSE: Mapping[WhyOpen, str] = {
    "not run": "not run yet",
    "undecided or not judged": "without a verdict (too few pairs, or measured and not judged)",
    "no counter, or another machine": "not measurable on the machines of the runs",
    "no study": "that no study judges, or of which no change is printed",
}
_MEASURED: WhyOpen = "undecided or not judged"
_WITHIN = "published change within our interval, of those decided"
_IN_FULL = (
    ("programs.md", "each policy on each load: its gain, its price, and the commands that set it"),
    ("claims.md", "each claim of every publication, what was found, and what a verdict would take"),
    ("folklore.md", "common claims about page sizes"),
    ("lpc-2024-tlb.md", "page-walk steps and TLB misses of base pages and huge pages on Arm, predicted from a trace"),
)
Findings = dict[tuple[str, ...], list[ClaimRow]]
"""Findings of all pages on the claims of a source, by the claim's key."""
_CLAIM = ("claim", "here", "what was found, or why not", "what it would take", "page")


def write(folder: Path) -> list[Path]:
    """Write the pages that are made of all pages in `folder`; return their paths. Raises UserError where one is
    somebody's, RunError, StudyError, OSError.
    """
    found = pages(folder)
    makers: tuple[Callable[[Mapping[str, PageData]], Document], ...] = (overview, programs, claims, folklore)
    told = {folder / f"{name}.md": make(found) for name, make in zip(RESERVED, makers, strict=True)}
    check(folder)
    files = {name: content for path, document in told.items() for name, content in drawn(document, path.stem).items()}
    with held_folder(folder, "the overview") as held:
        for name, content in files.items():
            with place_below(held, name) as (place, owner):
                write_whole(place, content, owner=owner)
    return [folder / name for name in files]


def check(folder: Path) -> None:
    """Raises UserError where a page of `RESERVED` is there and somebody's."""
    for name in RESERVED:
        refuse_others(folder / f"{name}.md")


def pages(folder: Path) -> dict[str, PageData]:
    """Return the data of every page in the folder, by name; other Parquet files are none. Raises RunError."""
    paths = sorted(folder.glob("*.parquet"), key=lambda path: path.stem)
    return {path.stem: read(path) for path in paths if made_here(path.with_suffix(".md"))}


def overview(found: Mapping[str, PageData], studies: Sequence[Study] | None = None) -> Document:
    """Return three tables: the programs, the publications and the pages. Raises StudyError."""
    rows, drawn_rows = [], []
    for source, findings, answers in _by_source(found, studies):
        counts = Counter(one.standing for one in answers.values())
        in_part = Counter(one.standing for one in answers.values() if one.in_part)
        within = sizes(one.size for one in answers.values() if one.standing != OPEN) or NOTHING
        reasons = Counter(one.open for one in answers.values())
        settled = [f"{counts[word]}{_of_these(counts[word], in_part[word])}" for word in STANDINGS if word != OPEN]
        rows.append((_title(source), len(answers), *settled, *(reasons[word] for word in REASONS), within))
        drawn_rows += rows_of(f"{source.source.publisher}, {source.source.date}", findings.values())
    head = (
        *("publication", "claims", *(word for word in STANDINGS if word != OPEN)),
        *(*(f"open: {why}" for why in REASONS), _WITHIN),
    )
    return Document(
        title="Results",
        lead=(
            Line(
                "hugewise repeated published experiments on other machines, kernels and sizes; each page names its own."
                " A claim is confirmed here where the change has the published sign, or where neither has an effect; it"
                " is contradicted where the sign is the other, or one of both has an effect beyond the margin. A"
                " verdict holds for its run, not for other days or machines."
            ),
            table("in full", ("page", "what it has"), _IN_FULL, 2, linked=(0,)),
        ),
        sections=(
            *in_a_table(found),
            Section(
                "The publications",
                some(
                    table("the publications, and what became of their claims", head, rows, 1),
                    published_beside_measured(drawn_rows),
                    _pages(found),
                ),
            ),
        ),
    )


def programs(found: Mapping[str, PageData]) -> Document:
    """Return each program with a row for each policy on each of its loads."""
    return Document(title="Settings by program", lead=(), sections=tuple(by_program(found)))


def claims(found: Mapping[str, PageData], studies: Sequence[Study] | None = None) -> Document:
    """Return of each publication every claim, also those that no run has met.

    `studies` are those that come with hugewise: what of a publication no page has, they would test. Raises StudyError.
    """
    known = shipped_studies() if studies is None else studies
    return Document(
        title="Claims of the publications",
        lead=(
            Line(
                "Every claim stands here, also those that no run has met, with what a verdict would take. “Under KVM”"
                " is where /dev/kvm is: guests that are emulated measure no time. Arms of interleaved runs took turns"
                " of some milliseconds, side by side."
            ),
        ),
        sections=tuple(
            Section(_title(source), (Line(_outcome(answers.values())), *_source(source, answers, found, known)))
            for source, _, answers in _by_source(found, known)
        ),
    )


def _by_source(
    found: Mapping[str, PageData], studies: Sequence[Study] | None
) -> Iterator[tuple[Published, Findings, dict[SourceClaim, ClaimAnswer]]]:
    """Yield each source, the findings on its claims, and its claims with their answers."""
    known = shipped_studies() if studies is None else studies
    for source in map(published.load, published.names()):
        told = _findings(source, found)
        yield (
            *(source, told),
            {claim: answer(claim, told.get(claim.key, ()), ways(claim, source, known)) for claim in claims_in(source)},
        )


def _of_these(count: int, in_part: int) -> str:
    """Return how many of a count are in part; empty where none is."""
    if not in_part:
        return ""
    return " (in part)" if in_part == count else f" ({in_part} of them in part)"


def _outcome(answers: Collection[ClaimAnswer]) -> str:
    """Return the outcome of a publication's claims, in two sentences: of those that were measured, and of the
    others.
    """
    counts, reasons = Counter(one.standing for one in answers), Counter(one.open for one in answers)
    in_part = Counter(one.standing for one in answers if one.in_part)
    texts = [
        f"{counts[word]} {word}{_of_these(counts[word], in_part[word])}"
        for word in STANDINGS
        if word != OPEN and counts[word]
    ]
    texts += [f"{reasons[_MEASURED]} {_BECAUSE[_MEASURED]}"] if reasons[_MEASURED] else []
    others = {why: reasons[why] for why in REASONS if why != _MEASURED and reasons[why]}
    met = len(answers) - sum(others.values())
    of = f"Of its {len(answers)} claim{'' if len(answers) == 1 else 's'}"
    told_ = f": {', '.join(texts)}" if texts else ""
    measured = f"{of}, {met or 'none'} {'was' if met < 2 else 'were'} measured here{told_}."
    without = ", ".join(f"{count} {_BECAUSE[why]}" for why, count in others.items())
    return f"{measured} Not measured: {without}." if without else measured


def _pages(found: Mapping[str, PageData]) -> Table:
    rows = []
    for name, data in found.items():
        counts = Counter(claim.standing for claim in claims_of(data))
        rows.append(
            (
                *(f"{name}.md", data.runs[0].results.question, *(counts[word] for word in STANDINGS)),
                sizes(size_of(claim.row) for claim in claims_of(data) if claim.standing != OPEN) or NOTHING,
                _decided(data),
            )
        )
    head = ("page", "question", *STANDINGS, _WITHIN, "comparisons decided")
    return table("the pages, and what became of what was published, cell by cell", head, rows, 2, linked=(0,))


def _decided(data: PageData) -> str:
    """Return how many comparisons were decided, by one run each and by several together; for emulated guests by which
    counts.
    """
    what, several = counted(data.runs[0].results), decided_together(data)
    text = f"{decided(found for _, found in standing(data))}{f', of {what}' if what else ''}"
    return f"{text}; by runs together {several}" if several else text


def _title(source: Published) -> str:
    return f"{source.source.title} ({source.source.publisher}, {source.source.date})"


def _findings(source: Published, found: Mapping[str, PageData]) -> Findings:
    """Return the findings of all pages on each claim of the source, by the claim's key."""
    told: Findings = {}
    for name, data in found.items():
        if _source_of(data) == source.name:
            for one in claims_of(data):
                told.setdefault(claim_of(one.row), []).append(ClaimRow(name, data, one))
    return told


def _source_of(data: PageData) -> str | None:
    return next((run.results.beside.name for run in data.runs if run.results.beside is not None), None)


def _source(
    source: Published,
    answers: Mapping[SourceClaim, ClaimAnswer],
    found: Mapping[str, PageData],
    studies: Sequence[Study],
) -> Iterator[Block]:
    rows = list(_studies(source, found, studies))
    if rows:
        yield table("the studies that restate it", ("study", "question", "page"), rows, 3, linked=(2,))
    for entry in dict.fromkeys(claim.entry for claim in answers):
        alike: dict[ClaimAnswer, list[SourceClaim]] = {}
        for claim, one in answers.items():
            if claim.entry == entry:
                alike.setdefault(one, []).append(claim)
        of_entry = [
            (together(every), _standing(one), one.found, one.takes, _linked(one)) for one, every in alike.items()
        ]
        yield table(entry, _CLAIM, of_entry, len(_CLAIM), linked=(len(_CLAIM) - 1,))
    classified = tuple(f"“{finding.text}”" for finding in source.findings if finding.claim)
    if classified:
        yield Line("In the source's own words, from which the claims above are taken:")
        yield Points(classified)
    alone = tuple(f"“{finding.text}”" for finding in source.findings if not finding.claim)
    if alone:
        yield Line(f"Said in words that no comparison of two arms tests, and {OPEN}:")
        yield Points(alone)


def _standing(one: ClaimAnswer) -> str:
    """Confirmed of the sign alone where the size is beyond our interval, and in part where a cell leaves it open."""
    beyond = one.standing == STANDINGS[0] and one.size in {"larger", "smaller"}
    text = f"{one.standing}, in part" if one.in_part else one.standing
    return f"{text}, the sign alone" if beyond else text


def _linked(one: ClaimAnswer) -> str:
    return ", ".join(f"{name}.md" for name in one.where) or NOTHING


def _studies(
    source: Published, found: Mapping[str, PageData], studies: Sequence[Study]
) -> Iterator[tuple[str, str, str]]:
    """Each study of the source with its pages, or that it was not run."""
    for study in restating(source, studies):
        names = [f"{name}.md" for name, data in found.items() if data.runs[0].results.study == study.name]
        yield study.name, study.question, ", ".join(names) or f"not run: hugewise run {study.name}"
