"""The overview: every claim of the five publications once, with the best-founded answer, where, and what it takes."""

import re
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hugewise import published
from hugewise.analysis.forecast import Forecast, Row
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.reason import Known, NotInCell
from hugewise.model.results import LeftOut, PublishedPoint, Results
from hugewise.report.document import Figure, Line, Table
from hugewise.report.markdown import markdown
from hugewise.study.study import Study
from tests.build import known, restated
from tools.results.answers import ClaimAnswer, ClaimRow, answer
from tools.results.claims import (
    OPEN,
    STANDINGS,
    Claimed,
    SourceClaim,
    claim_of,
    claimed,
    claims_in,
    shipped_studies,
    ways,
)
from tools.results.data import PageData, PageRun
from tools.results.figure import published_beside_measured, rows_of
from tools.results.overview import claims, overview
from tools.results.page import claims_of

LPC = "lpc-2024-mthp-arm64"
STUDIES = shipped_studies()


def page(results: Results, study: str, planned: Forecast | None = None) -> PageData:
    return PageData(runs=(PageRun(results=replace(results, study=study), forecast=planned),))


PAGES = {
    "lpc-2024-mthp": page(restated.lpc(), "lpc-2024-mthp"),
    "percona-2018-hugepages": page(restated.percona_2018(), "percona-2018-hugepages"),
    "redhat-2021": page(restated.redhat(), "redhat-2021"),
}


def publications(found: dict[str, PageData]) -> tuple[Table, Table]:
    """The table of the publications, and that of the pages."""
    (section,) = (one for one in overview(found, STUDIES).sections if one.title == "The publications")
    first, second = (block for block in section.blocks if isinstance(block, Table))
    return first, second


def tables(source: str, found: dict[str, PageData], studies: Sequence[Study] = STUDIES) -> dict[str, Table]:
    """The tables of a publication's section by their captions."""
    title = published.load(source).source.title
    (section,) = (one for one in claims(found, studies).sections if one.title.startswith(title))
    return {block.caption: block for block in section.blocks if isinstance(block, Table)}


@pytest.mark.parametrize("found", [{}, PAGES], ids=["no page", "pages"])
def test_every_claim_of_every_publication_stands_there_once(found: dict[str, PageData]) -> None:
    told = claims(found, STUDIES)
    assert len(told.sections) == len(published.names()) == 5
    head, _ = publications(found)
    for name, row in zip(published.names(), head.rows, strict=True):
        source = published.load(name)
        every = list(claims_in(source))
        rows = [line for entry, of in tables(name, found).items() if entry in source.entries for line in of.rows]
        alone, part = ", the sign alone", ", in part"  # a size beyond the interval; another cell leaves it open
        assert {line[1].removesuffix(alone).removesuffix(part) for line in rows} <= set(STANDINGS)
        assert all((alone in line[1]) == ("confirmed" in line[1] and "than all of our" in line[2]) for line in rows)
        assert any("in part" in text for text in row[2:4]) == any(part in line[1] for line in rows)
        # Each is decided, or open for one of four reasons.
        assert int(row[1]) == len(every) == sum(int(text.partition(" ")[0]) for text in row[2:8])
        # What is open says what it would take; what is decided says where.
        assert all((line[3] != "–") == (line[1] == OPEN or part in line[1]) for line in rows)
        assert all(line[4] != "–" for line in rows if line[1] != OPEN)
    text = markdown(told)
    for name in published.names():
        for finding in published.load(name).findings:
            assert text.replace("\\", "").count(f"“{finding.text}”") == 1


def test_each_claim_with_a_number_that_was_judged_stands_in_the_figure() -> None:
    (section,) = (one for one in overview(PAGES, STUDIES).sections if one.title == "The publications")
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    drawn = {(value["name"], value["kind"]): value for value in figure.spec["data"]["values"]}
    theirs, ours = (
        drawn["memcached, ops_per_s: thp", "as published"],
        drawn["memcached, ops_per_s: thp", "measured here"],
    )
    assert theirs["ratio"] == theirs["low"] == theirs["high"] == pytest.approx(1.17)
    points = [
        row for row in (claim.row for claim in claims_of(PAGES["lpc-2024-mthp"])) if isinstance(row, PublishedPoint)
    ]
    measured = [(row.cell, row.measured) for row in points if row.measured is not None]
    (one,) = (of for cell, of in measured if (cell, of.arm, of.metric) == ("memcached", "thp", "ops_per_s"))
    assert (ours["ratio"], ours["low"], ours["high"]) == (one.ratio, one.low, one.high)
    judged = {f"{cell}, {of.metric}: {of.arm}" for cell, of in measured if of.verdict != "not judged" and of.ratio}
    assert judged and judged <= {name for name, _ in drawn}
    assert not any(isinstance(block, Figure) for one in overview({}, STUDIES).sections for block in one.blocks)


def test_each_answer_of_pages_that_disagree_stands_in_the_figure() -> None:
    page = PAGES["lpc-2024-mthp"]
    one = next(claim for claim in claims_of(page) if isinstance(claim.row, PublishedPoint) and claim.row.measured)
    confirmed, contradicted, undecided = (ClaimRow(word, page, one._replace(standing=word)) for word in STANDINGS)
    assert [row.page for row in rows_of("", [[contradicted, confirmed, undecided]])] == [
        "contradicted here",
        "confirmed here",
    ]
    assert [row.page for row in rows_of("", [[undecided, confirmed], [undecided]])] == ["", ""]
    figure = published_beside_measured(rows_of("", [[confirmed, contradicted]]))
    assert figure is not None
    names = {value["name"] for value in figure.spec["data"]["values"]}
    assert {name.rpartition(" (")[2] for name in names} == {"confirmed here)", "contradicted here)"}


def test_what_no_run_met_says_which_would() -> None:
    """Entries that --only left out, and publications without a page."""
    entry = tables(LPC, PAGES)["specint"]
    ((said, standing, why, takes, where),) = entry.rows
    assert said.startswith("“a gain under 4% for some benchmarks”")
    assert (standing, why, where) == (OPEN, "not run", "–")
    assert takes == "hugewise run lpc-2024-mthp --only integer-set"
    of = tables("percona-2019", PAGES)
    assert [row[2:] for row in of["tpcc"].rows] == [("not run", "hugewise run percona-2019-thp --only tpcc", "–")]
    studies = of["the studies that restate it"].rows
    assert [row[2] for row in studies] == ["not run: hugewise run percona-2019-thp"]
    assert [row[2] for row in tables("redhat-2021", PAGES)["the studies that restate it"].rows] == [
        "redhat-2021.md",
        "not run: hugewise run redhat-2021-vm",
    ]


def test_a_claim_that_nothing_tests_is_counted_by_what_it_waits_for() -> None:
    told = claims(PAGES, STUDIES)
    head, _ = publications(PAGES)
    lpc = dict(zip(head.head, next(row for row in head.rows if row[0].startswith("Multi-sized")), strict=True))
    assert lpc["open: no study"] != "0" and lpc["open: no counter, or another machine"] != "0"
    title = published.load("percona-2019").source.title
    (section,) = (one for one in told.sections if one.title.startswith(title))
    assert section.blocks[0] == Line("Of its 2 claims, none was measured here. Not measured: 2 not run yet.")


def test_an_arm_that_no_study_has_is_named() -> None:
    claim = GAIN._replace(arm="1G (4KPS)")
    found = answer(claim, ())
    assert (found.found, found.open) == ("no study of hugewise has these arms on this workload", "no study")
    assert found.takes == "a study with an arm for 1G (4KPS) against 4K (4KPS) on this workload"


def test_names_of_pages_are_links_and_texts_are_not() -> None:
    assert set(re.findall(r"\]\(([^)]*)\)", markdown(claims(PAGES, STUDIES)))) == {f"{name}.md" for name in PAGES}
    hostile = page(replace(restated.lpc(), question="see [x](http://evil) evil.md"), "lpc-2024-mthp")
    assert "](http" not in markdown(overview({"a b.md](c": hostile, "x": hostile}, STUDIES)).replace("\\]", "")


# Answers.


def one_claim(entry: str, what: str, arm: str) -> SourceClaim:
    (found,) = (one for one in claims_in(published.load(LPC)) if one.key[:2] == (entry, what) and one.arm == arm)
    return found


GAIN = one_claim("memcached", "ops_per_s", "2M (4KPS)")


def told(name: str, data: PageData, claim: SourceClaim = GAIN) -> list[ClaimRow]:
    return [ClaimRow(name, data, one) for one in claims_of(data) if claim_of(one.row) == claim.key]


def turned(agreement: str, confidence: float = 0.99, **changes: object) -> PageData:
    """A page on which the gain of memcached agrees so."""
    results = restated.lpc()
    points = tuple(
        replace(one, agreement=agreement, measured=replace(one.measured, confidence=confidence, **changes))
        if claim_of(one) == GAIN.key and one.measured is not None
        else one
        for one in known(results.beside).points
    )
    return page(replace(results, beside=replace(known(results.beside), points=points)), "lpc-2024-mthp")


def answered(*pages: tuple[str, PageData]) -> ClaimAnswer:
    rows = [one for name, data in pages for one in told(name, data)]
    return answer(GAIN, rows, ways(GAIN, published.load(LPC), STUDIES))


def test_the_best_founded_of_several_answers_stands_for_all() -> None:
    plain, sure = turned("same sign"), turned("same sign", 0.9999)
    undecided, open_ = turned("undecided here", verdict="undecided"), turned("not judged here", verdict="not judged")
    best = answered(("a", open_), ("b", plain), ("c", sure))
    assert best.standing == "confirmed here"
    assert best.where == ("c", "b")
    assert best.found.endswith("; likewise in memcached, thp (b)")
    assert best.takes == "–"
    left = answered(("a", open_), ("b", undecided))
    assert (left.standing, left.where) == (OPEN, ("b",))
    assert "undecided here" in left.found
    by_now = answered(("a", open_))
    assert by_now.takes == "hugewise run lpc-2024-mthp --only memcached, which judges ops_per_s by now"
    rows, of = told("a", open_), ways(GAIN, published.load(LPC), STUDIES)
    none = answer(GAIN, rows, [one._replace(lacks="ops_per_s") for one in of])
    assert none.takes.startswith("a cell that judges ops_per_s as well (key also): here it was measured beside")


def test_what_another_cell_leaves_open_is_decided_in_part() -> None:
    plain = turned("same sign")
    undecided, open_ = turned("undecided here", verdict="undecided"), turned("not judged here", verdict="not judged")
    assert not answered(("b", plain), ("c", open_)).in_part  # that cell did not judge it
    part = answered(("a", undecided), ("b", plain))
    assert part.in_part and part.standing == "confirmed here"
    assert part.found.endswith("; open in memcached, thp (a)")
    assert part.takes == "more than 24 pairs in memcached: from so few there is no forecast"
    assert part.where == ("b", "a")


def test_opposite_answers_decide_nothing() -> None:
    split = answered(("a", turned("same sign")), ("b", turned("opposite sign")))
    assert split.standing == OPEN
    assert split.where == ("a", "b")
    assert split.found.startswith("confirmed in memcached, thp (a), contradicted in memcached, thp (b)")
    apart = page(restated.lpc(), "lpc-2024-mthp")
    runs = replace(apart, runs=(*turned("same sign").runs, *turned("opposite sign").runs))
    both = answered(("a", runs))
    assert (both.standing, both.takes) == (OPEN, "a further run: those that there are disagree")


def forecast(rows: Sequence[Row]) -> Forecast:
    return Forecast(
        study="s", method="sequential", runs=(), effect=0.01, margin=0.01, chance=0.9, alpha=0.01, level=0.01,
        comparisons=1, blocks=40, time=None, time_blocks=None, least=13, seconds=None,
        rows=tuple(rows),
    )  # fmt: skip


def test_an_open_answer_has_the_pairs_and_hours_of_the_forecast() -> None:
    undecided = turned("undecided here", verdict="undecided")
    assert answered(("a", undecided)).takes.startswith("more than 24 pairs in memcached")
    row = Row(
        cell="memcached", arm="thp", baseline="base", metric="ops_per_s", pairs=24, failures=0,
        needed=1200, seconds=9.0,
    )  # fmt: skip
    rows = [replace(row, metric="p99_us", needed=86), row]  # each metric has its own
    planned = replace(undecided, runs=(replace(undecided.runs[0], forecast=forecast(rows)),))
    assert answered(("a", planned)).takes == "1,200 pairs, 3 h 00 min in memcached, for a change of 1%"


def test_what_was_in_the_way_is_what_it_takes() -> None:
    (walks,) = told("a", PAGES["lpc-2024-mthp"], claim := one_claim("redis", "dtlb_walk_steps", "2M (4KPS)"))
    found = answer(claim, [walks], ways(claim, published.load(LPC), STUDIES))
    assert found.found == "this machine has no hardware counters"
    assert found.takes == "another machine or hypervisor, and a cell that judges dtlb_walk_steps (key also)"
    results = restated.percona_2019()
    out = LeftOut("tpcc", "*", "go-tpc is not on the PATH", ("golang",))
    data = page(replace(results, left_out=(out,)), "percona-2019-thp")
    source = published.load("percona-2019")
    tpcc = next(one for one in claims_in(source) if one.entry == "tpcc")
    rows = told("p", data, tpcc)
    assert answer(tpcc, rows).takes.startswith("the packages golang; or ")
    none = page(results, "percona-2019-thp")
    assert answer(tpcc, told("p", none, tpcc)).takes.startswith(
        "a machine on which it can run (left out here: go-tpc is not"
    )


def emulated(results: Results, study: str) -> PageData:
    """A page of guests without a clock, on which nothing of the gain was measured."""
    points = tuple(
        replace(one, measured=None, agreement="not measured here", reason=Known("emulated"))
        if claim_of(one) == GAIN.key
        else one
        for one in known(results.beside).points
    )
    return page(replace(results, beside=replace(known(results.beside), points=points)), study)


def test_what_emulated_guests_did_not_measure_takes_the_same_run_under_kvm() -> None:
    of = ways(GAIN, published.load(LPC), STUDIES)
    at = "lpc-2024-base-pages-debian"
    found = answer(GAIN, told("a", emulated(restated.lpc(), at)), [one for one in of if one.study == at])
    assert found.open == "no counter, or another machine"
    assert found.takes == (f"hugewise run {at} --only memcached --scale published on an arm64 machine under KVM")
    nothing = answer(GAIN, told("a", emulated(restated.lpc(), at)))
    assert nothing.takes.startswith("a study with an arm for")


def test_a_page_that_had_the_arm_answers_before_one_that_had_not() -> None:
    """`a run that measures it` was said of a claim that another page's guests would measure."""
    without = turned("not measured here", verdict="not judged")
    points = tuple(
        replace(one, measured=None, agreement="not measured here", reason=NotInCell("thp", "run"))
        if claim_of(one) == GAIN.key
        else one
        for one in known(without.runs[0].results.beside).points
    )
    results = without.runs[0].results
    lacking = page(replace(results, beside=replace(known(results.beside), points=points)), "lpc-2024-mthp")
    guests = emulated(restated.lpc(), "lpc-2024-base-pages-debian")
    for pages in (("a", lacking), ("b", guests)), (("b", guests), ("a", lacking)):
        found = answered(*pages)
        assert (found.found, found.where) == (NOT_IN_EMULATION, ("b",))


def test_a_size_is_that_of_the_row_that_answers() -> None:
    best = answered(("a", turned("same sign", low=1.01, high=1.05)))
    assert best.size == "larger"
    assert answered(("a", turned("not judged here", verdict="not judged", low=None, high=None))).size is None
    every = claimed([restated.lpc()])
    assert all(isinstance(one, Claimed) for one in every)
