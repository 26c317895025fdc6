"""Claims of publications: what sources say, which studies test it, and what became of each."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from hugewise import published
from hugewise.analysis.published import NONE_PUBLISHED, published_rows
from hugewise.model.metric import NOT_IN_EMULATION
from hugewise.model.reason import Known
from hugewise.model.results import CellResult, Guests, PublishedFinding, PublishedPoint, Results, Verdict
from hugewise.stats.evidence import Combined, CombinedDirection
from tests.build import known, restated
from tests.build.restated import EVERY, beside_nothing
from tools.results.claims import (
    OPEN,
    Claimed,
    SourceClaim,
    Way,
    beyond,
    claim_line,
    claim_lines,
    claim_of,
    claimed,
    claims_in,
    differing,
    in_emulation,
    measured_of,
    restating,
    shipped_studies,
    sizes,
    ways,
)

ARMS = {"base": "4K (4KPS)", "mthp-64k": "64K (4KPS)", "thp": "2M (4KPS)"}
USES = [("memcached", "memcached"), ("redis", "redis"), ("kernel-build", "kernel-build"), ("x264", "x264")]


def part(results: Results, entries: Sequence[str], arms: Mapping[str, str] = ARMS) -> Results:
    """A newer run of some of its workloads and policies, as `--only` and `--arms` make it."""

    def kept(cell: CellResult) -> CellResult:
        own = tuple(one for one in cell.comparisons if one.arm in arms)
        return replace(cell, arms=tuple(arm for arm in cell.arms if arm.arm in arms), comparisons=own)

    cells = tuple(kept(cell) for cell in results.cells if cell.cell in entries)
    newer = replace(results, run="newer", started=results.started + 60, cells=cells)
    uses = [(label, entry) for label, entry in USES if label in entries]
    return replace(newer, beside=published_rows(published.load(known(results.beside).name), uses, arms, newer))


def by_claim(found: Sequence[Claimed]) -> dict[tuple[str, ...], Claimed]:
    return {(*claim_of(one.row), one.row.policy, *(cell for cell, _ in measured_of(one.row))): one for one in found}


@pytest.mark.parametrize(
    ("entries", "arms"),
    [
        (["redis"], ARMS),
        (["memcached"], {arm: ARMS[arm] for arm in ("base", "thp")}),
        ([], ARMS),
        (["x264"], {"base": ARMS["base"]}),
    ],
    ids=["only", "only and arms", "nothing", "no arm"],
)
def test_a_newer_run_of_a_part_takes_no_claim_away(entries: list[str], arms: dict[str, str]) -> None:
    whole = restated.lpc()
    before, after = claimed([whole]), claimed([part(whole, entries, arms), whole])
    assert {one.standing for one in before} == {"confirmed here", "contradicted here", OPEN}
    assert by_claim(after) == by_claim(before)
    assert len(after) == len(before)


def test_a_claim_that_a_newer_run_did_not_measure_stands_as_it_was_found() -> None:
    """The pool's gain was found in cells that fit; the newer run has the cell that spills, of which nothing is said."""
    whole = restated.percona_2018()
    arms = {"base": "base4k", "hugetlb-1g": "hugetlb1g"}
    spilled = replace(whole, started=whole.started + 60, cells=whole.cells[-1:])
    newer = replace(
        spilled, beside=published_rows(published.load("percona-2018"), [("spill", "pgbench")], arms, spilled)
    )
    gains = [one for one in claimed([whole]) if one.standing == "confirmed here"]
    assert gains
    assert {OPEN} == {one.standing for one in claimed([newer])}
    after = by_claim(claimed([newer, whole]))
    assert [after[key] for key in by_claim(gains)] == gains
    lacking = [one.row for one in after.values() if not measured_of(one.row)]
    placed = {claim_of(one.row) for one in after.values() if measured_of(one.row)}
    assert placed.isdisjoint(map(claim_of, lacking))  # no row beside them says that nothing was measured


def test_every_cell_of_a_claim_in_words_stands_by_itself() -> None:
    told = [one for one in claimed([restated.percona_2018()]) if claim_of(one.row)[1] == "a performance gain"]
    rows = known(restated.percona_2018().beside).findings
    assert len(told) == len([row for row in rows if row.words == "a performance gain"])
    assert len({cell for one in told for cell, _ in measured_of(one.row)}) > 3


def open_twice(results: Results) -> tuple[Results, Results]:
    """Two runs that measured all and decided nothing."""
    cells = tuple(
        replace(cell, comparisons=tuple(replace(one, verdict="undecided") for one in cell.comparisons))
        for cell in results.cells
    )
    first = replace(results, cells=cells)
    first = replace(first, beside=published_rows(published.load(known(results.beside).name), USES, ARMS, first))
    return replace(first, run="second", started=first.started + 60), first


def combined(cell: str, arm: str, metric: str, direction: CombinedDirection, verdict: Verdict) -> Combined:
    return Combined(
        cell=cell, arm=arm, baseline="base", metric=metric, parts=(), larger=9.0, smaller=9.0, adjusted=900.0,
        direction=direction, verdict=verdict, reason="",
    )  # fmt: skip


def standing_of(found: Sequence[Claimed], entry: str, what: str, arm: str) -> Claimed:
    (one,) = (one for one in found if (one.row.entry, claim_of(one.row)[1], one.row.policy) == (entry, what, arm))
    return one


@pytest.mark.parametrize(
    ("direction", "verdict", "standing", "how"),
    [
        ("larger", "better", "confirmed here", "same sign, by 2 runs together"),
        ("smaller", "worse", "contradicted here", "opposite sign, by 2 runs together"),
        ("undecided", "undecided", OPEN, "undecided here"),
        ("refused", "none", OPEN, "undecided here"),
    ],
)
def test_runs_that_decide_nothing_alone_may_decide_together(
    direction: CombinedDirection, verdict: Verdict, standing: str, how: str
) -> None:
    runs = open_twice(restated.lpc())
    together = [combined("memcached", "thp", "ops_per_s", direction, verdict)]
    found = standing_of(claimed(runs, together), "memcached", "ops_per_s", "thp")
    assert (found.standing, found.how) == (standing, how)
    assert standing_of(claimed(runs, together), "redis", "ops_per_s", "thp").standing == OPEN
    alone = standing_of(claimed(runs[:1], together), "memcached", "ops_per_s", "thp")
    assert (alone.standing, alone.how) == (OPEN, "undecided here")


def test_words_without_a_figure_are_judged_together_by_better_and_worse() -> None:
    runs = open_twice(restated.lpc())
    found = claimed(runs, [combined("x264", "thp", "files_per_s", "larger", "better")])
    (one,) = (one for one in found if one.row.entry == "x264" and one.row.policy == "thp")
    assert isinstance(one.row, PublishedFinding)
    assert (one.standing, one.how) == ("contradicted here", "an effect here, none published, by 2 runs together")


@pytest.mark.parametrize(("margins", "standing"), [(0.5, OPEN), (2.0, "contradicted here")])
def test_an_effect_that_may_lie_within_the_margin_contradicts_no_words_of_none(margins: float, standing: str) -> None:
    results = restated.lpc()
    beside = known(results.beside)
    low = 1 + margins * results.margin

    def better(row: PublishedFinding) -> PublishedFinding:
        measured = [
            replace(known(one.measured), verdict="better", ratio=1.1, low=low, high=1.2) for one in row.measured
        ]
        levels = tuple(replace(one, measured=of) for one, of in zip(row.measured, measured, strict=True))
        return replace(row, measured=levels, agreement=NONE_PUBLISHED)

    rows = tuple(better(row) for row in beside.findings if row.entry == "x264" and row.policy == "thp")
    (one,) = claimed([replace(results, beside=replace(beside, points=(), findings=rows))])
    assert (one.standing, "may lie within the margin" in one.how) == (standing, standing == OPEN)


def test_one_run_of_several_that_decided_is_told_as_one() -> None:
    decided = restated.lpc()
    again, _ = open_twice(decided)
    found = standing_of(claimed([again, decided]), "memcached", "ops_per_s", "thp")
    assert (found.standing, found.how) == ("confirmed here", "same sign, by 1 of 2 runs")
    ((_, measured),) = measured_of(found.row)
    assert measured.verdict == "better"  # the figures are of the run that decides


def test_evidence_of_all_runs_against_one_of_them_leaves_it_open() -> None:
    decided = restated.lpc()
    again, _ = open_twice(decided)
    together = [combined("memcached", "thp", "ops_per_s", "smaller", "worse")]
    found = standing_of(claimed([again, decided], together), "memcached", "ops_per_s", "thp")
    assert (found.standing, found.how) == (
        OPEN,
        "undecided here; the runs together say otherwise: opposite sign",
    )


def test_a_published_size_stands_beside_the_sign() -> None:
    """The store gains as much as was published, the build less; what else is other there is named, and no cause."""
    results = restated.lpc(stand_ins=("a client of ours",))
    sizes = {(one.row.entry, claim_of(one.row)[1], one.row.policy): one for one in claimed([results])}
    gain = sizes["memcached", "ops_per_s", "thp"]
    point = gain.row
    assert isinstance(point, PublishedPoint)
    measured = known(point.measured)
    for low, high, size, more in (
        (1.10, 1.20, "published change within our interval", ""),
        (1.10, 1.15, "published change larger than all of our interval", "machine, kernel, scale, stand-in"),
        (1.20, 1.25, "published change smaller than all of our interval", "machine, kernel, scale, stand-in"),
    ):
        there = replace(point, measured=replace(measured, low=low, high=high))
        shown = replace(results, beside=replace(known(results.beside), points=(there,), findings=()))
        (one,) = claimed([shown])
        assert one.size == (f"{size} (other here: {more})" if more else size)
        assert one.agrees == f"same sign; {one.size}"
        assert beyond(one.row) == bool(more)
    assert sizes["memcached", "p99_latency", "thp"].size == ""  # of medians there is no interval
    published_scale = replace(shown, options={"scale": "published"})
    assert claimed([published_scale])[0].size.endswith("(other here: machine, kernel, stand-in)")


def test_what_was_not_measured_for_one_reason_stands_in_one_line() -> None:
    """A page of emulated guests had a line for each of 60 figures."""
    results = restated.lpc()
    points = [replace(one, measured=None, agreement="not measured here", reason=Known("emulated"))
              for one in known(results.beside).points if one.entry == "memcached"]  # fmt: skip
    shown = replace(results, beside=replace(known(results.beside), points=tuple(points), findings=()))
    found = claimed([shown])
    assert len(found) == len(points) > 3
    (line,) = claim_lines(found)
    assert line.startswith(f"memcached, {len(points)} against 4K (4KPS): ops_per_s: ")
    assert line.endswith(f"Here: nothing; {NOT_IN_EMULATION} (not measured here)")
    assert all(f"{one.arm} " in line and one.quantity in line for one in points)
    assert claim_lines(found[:1]) == (f"{claim_line(found[0].row)} ({found[0].agrees})",)
    unprinted = replace(points[0], percent=None)
    assert "against 4K (4KPS) (no change printed). Here" in claim_line(unprinted)
    # And what measures it is said once.
    guests = Guests(arch="arm64", accelerator="tcg", why="", counting=False, baseline="base", arms=())
    assert in_emulation([replace(shown, guests=guests)]).endswith(
        f"on a machine of arm64 measure the quantities that emulated guests do not: hugewise run {shown.study}."
        " TLB misses of their page sizes are predicted: hugewise predict."
    )
    assert "a copy of the study without counting" in in_emulation(
        [replace(shown, guests=replace(guests, counting=True))]
    )
    assert in_emulation([shown]) == in_emulation([replace(results, guests=guests)]) == ""


def test_sizes_are_counted_where_there_is_one() -> None:
    assert sizes([None, "within", "larger", "smaller"]) == "1 of 3"
    assert sizes([None]) == sizes([]) == ""


def test_what_is_other_here_is_what_the_page_knows() -> None:
    said = differing(restated.lpc(stand_ins=("a client of ours",)))
    for words in ("published Ampere Altra", "here Example 9000", "here 6.18.0", "scale small", "a client of ours"):
        assert words in said
    assert differing(replace(restated.lpc(), beside=None)) == ""


STUDIES = shipped_studies()


def claim(source: str, *parts: str) -> SourceClaim:
    """The one claim whose words and key have all of these."""
    found = [one for one in claims_in(published.load(source)) if all(part in (*one.key, one.said) for part in parts)]
    assert len(found) == 1, [one.said for one in found]
    return found[0]


def told(source: str, one: SourceClaim) -> list[tuple[str, str, str, str, str]]:
    return [(w.study, w.label, w.policy, w.scale, w.guests) for w in ways(one, published.load(source), STUDIES)]


@pytest.mark.parametrize("name", published.names())
def test_every_figure_and_every_claim_of_a_source_is_there_once(name: str) -> None:
    source = published.load(name)
    every = list(claims_in(source))
    assert len({one.key for one in every}) == len(every)
    figures = sum(len(table.changes) * (len(table.arms) - 1) for table in source.tables)
    figures += sum(len(one.counter) for one in source.counters) + len(source.benchmarks)
    words = sum(len(finding.entries) * len(finding.claim) for finding in source.findings)
    assert len(every) == figures + words > 0
    assert {one.entry for one in every} == set(source.entries)
    assert restating(source, STUDIES)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_rows_of_a_page_are_of_claims_that_the_source_makes(make: object) -> None:
    results = make()  # type: ignore[operator]
    known = {one.key for one in claims_in(published.load(results.beside.name))}
    rows = {claim_of(one.row) for one in claimed([results])}
    assert rows and rows <= known


def test_a_claim_is_tested_where_a_workload_names_it_and_has_both_arms() -> None:
    lpc = "lpc-2024-mthp-arm64"
    figure = claim(lpc, "redis", "ops_per_s", "2M (4KPS)")
    assert figure.said == "2M (4KPS) changes ops_per_s by +16% against 4K (4KPS)"
    assert claim(lpc, "redis", "p99_latency", "64K (4KPS)").said == (
        "64K (4KPS) does not change p99_latency (0%) against 4K (4KPS)"
    )
    assert claim("lkml-2009", "mmap-perf", "cpu-migrations").said == (
        "paravirt beside native: cpu-migrations, no change printed"
    )
    assert told(lpc, figure) == [
        ("lpc-2024-base-pages", "redis", "4k-2m", "published", "emulated"),
        ("lpc-2024-base-pages-debian", "redis", "debian-4k-2m", "published", "emulated"),
        ("lpc-2024-mthp", "redis", "thp", "small", ""),
        ("lpc-2024-mthp", "redis-libc", "thp", "small", ""),
    ]
    other = claim(lpc, "redis", "ops_per_s", "16K (16KPS)")
    assert {way[0] for way in told(lpc, other)} == {"lpc-2024-base-pages", "lpc-2024-base-pages-debian"}


def test_guests_count_what_needs_no_clock_and_nothing_else() -> None:
    lpc = "lpc-2024-mthp-arm64"
    of = {
        quantity: {one[0]: one[4] for one in told(lpc, claim(lpc, "kernel-build", quantity, "64K (64KPS)"))}
        for quantity in ("page_faults", "real_time")
    }
    assert of == {"page_faults": {"lpc-2024-base-pages": ""}, "real_time": {"lpc-2024-base-pages": "emulated"}}
    lkml = "lkml-2009-paravirt"
    of = {
        quantity: {one[0]: one[4] for one in told(lkml, claim(lkml, "mmap-perf", quantity, "paravirt"))}
        for quantity in ("instructions", "cycles")
    }
    assert of == {"instructions": {lkml: ""}, "cycles": {lkml: "counting"}}


def test_a_trend_wants_several_levels() -> None:
    source = "percona-2018-hugepages-postgresql"
    trends = [one for one in claims_in(published.load(source)) if one.parameters == ("clients",)]
    assert [told(source, one)[0][:2] for one in trends] == [("percona-2018-hugepages", "tpcb")] * 2
    sizes = [one for one in claims_in(published.load(source)) if "database_share" in one.parameters]
    # One of the two sizes fits into the buffers, and of the other the source does not say this.
    assert [told(source, one) for one in sizes] == [[], []]


def test_a_claim_is_not_tested_beyond_what_the_source_speaks_of() -> None:
    source = "percona-2018-hugepages-postgresql"
    gains = [one for one in claims_in(published.load(source)) if not one.parameters]
    assert [one.arm for one in gains] == ["hugetlb2m", "hugetlb1g"]
    assert {way[1] for way in told(source, gains[0])} == {"tpcb", "select-only"}  # the spill does not fit
    assert {way[1] for way in told(source, gains[1])} == {"tpcb", "spill"}  # look-ups have no arm of 1 GiB


def test_a_command_names_the_scale_where_the_study_as_written_does_not_do() -> None:
    way = Way("s", "redis", ("redis", "redis-sla"), "thp", "small")
    assert way.command == "hugewise run s --only redis"
    assert way._replace(scale="published").command == "hugewise run s --only redis --scale published"
    assert way.has("redis") and way.has("redis-keys=1") and not way.has("redis-sla")


def test_a_way_says_which_metric_its_cell_does_not_judge() -> None:
    lpc = "lpc-2024-mthp-arm64"
    source = published.load(lpc)
    lacks = {
        quantity: {way.lacks for way in ways(claim(lpc, "memcached", quantity, "2M (4KPS)"), source, STUDIES)}
        for quantity in ("ops_per_s", "p99_latency", "ipc_user", "dtlb_walk_steps_pki")
    }
    assert lacks == {
        "ops_per_s": {""},
        "p99_latency": {"", "p99_us"},  # declared beside it, but not where guests count faults
        "ipc_user": {"ipc_user"},
        "dtlb_walk_steps_pki": {"walk_steps_pki"},
    }


def test_arms_of_a_cell_that_is_set_beside_nothing_are_known() -> None:
    lpc = "lpc-2024-mthp-arm64"
    source = published.load(lpc)
    near = ways(claim(lpc, "redis", "ops_per_s", "16K (16KPS)"), source, beside_nothing("redis", STUDIES))
    assert [(one.study, one.label, one.lacks, one.guests, one.arch) for one in near] == [
        (study, "redis", "", "emulated", "arm64") for study in ("lpc-2024-base-pages", "lpc-2024-base-pages-debian")
    ]
