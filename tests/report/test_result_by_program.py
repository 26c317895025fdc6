"""What to set, program by program: the answer of each cell on the pages, its price, its runs, its machine."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hugewise.model.guest_results import Guests
from hugewise.model.metric import Metric
from hugewise.model.results import CellResult, Results, Verdict
from hugewise.report.document import Line, Table
from hugewise.report.markdown import markdown
from hugewise.report.result_by_program import by_program
from hugewise.report.result_data import PageData, PageRun
from hugewise.report.result_overview import overview
from hugewise.report.result_runs import named_stand_ins
from tests.build import known, restated
from tests.build.results import comparison

OWN_CLIENT = "hugewise's own load generator in place of memtier_benchmark"


def page(*runs: Results) -> PageData:
    """The runs, the newest first."""
    return PageData(runs=tuple(PageRun(results=one) for one in runs))


def rows(found: Mapping[str, PageData]) -> dict[str, dict[str, str]]:
    """By program."""
    (section,) = by_program(found)
    (told,) = (block for block in section.blocks if isinstance(block, Table))
    return {row[0]: dict(zip(told.head, row, strict=True)) for row in told.rows}


def with_verdicts(results: Results, of: str, verdicts: Mapping[str, Verdict], run: str = "") -> Results:
    """The run with these verdicts in that cell, by policy; a newer one, where a name is given."""

    def as_judged(cell: CellResult) -> CellResult:
        if cell.cell != of:
            return cell
        found = tuple(replace(one, verdict=verdicts[one.arm]) for one in cell.comparisons)
        return replace(cell, comparisons=found)

    results = replace(results, cells=tuple(map(as_judged, results.cells)))
    return replace(results, run=run, started=results.started + 60) if run else results


def judged(results: Results, of: str, verdict: Verdict) -> Results:
    """A newer run in which every policy of that cell has that verdict."""
    return with_verdicts(results, of, {"mthp-64k": verdict, "thp": verdict}, run="newer")


def test_each_measured_cell_has_a_row_and_what_is_to_be_set_stands_first() -> None:
    found = rows({"lpc-2024-mthp": page(restated.lpc()), "percona-2018-hugepages": page(restated.percona_2018())})
    cells = [cell for one in (restated.lpc(), restated.percona_2018()) for cell in one.cells]
    assert len(found) == len(cells)
    told = [row["what to set"] for row in found.values()]
    order = [["Set", "Yours", "Leave", "Undecided", "No"].index(one.split()[0]) for one in told]
    assert order == sorted(order)
    assert {0, 2, 3} <= {*order}
    memcached = found["memcached"]
    assert memcached["what to set"] == "Set thp"
    assert "ops_per_s +12" in memcached["what was found"] and "24 pairs at" in memcached["what was found"]
    assert memcached["runs that say so"] == "1 of 1"
    assert memcached["where"] == "on Example 9000"
    assert memcached["page"] == "lpc-2024-mthp.md"
    assert found["redis"]["what to set"] == "Leave it at base"
    assert "build: kernel-build" in found  # by its workload, where the cell's name does not begin with it
    assert not any("`" in text for row in found.values() for text in row.values())  # Markdown would show them


def test_the_table_of_programs_is_the_first_of_the_overviews_sections() -> None:
    told = overview({"lpc-2024-mthp": page(restated.lpc())})
    assert told.sections[0].title == "By program"
    assert "| memcached | Set thp |" in markdown(told)
    assert all(one.title != "By program" for one in overview({}).sections)


def test_runs_that_say_otherwise_are_counted() -> None:
    old = restated.lpc()
    found = rows({"a": page(judged(old, "memcached", "undecided"), old)})
    assert found["memcached"]["what to set"] == "Undecided"
    assert found["memcached"]["runs that say so"] == "1 of 2; others: 1 set thp"
    assert found["redis"]["runs that say so"] == "2 of 2"


def test_a_run_that_sets_another_policy_does_not_say_the_same() -> None:
    """The comparison that the newest rests on is equivalent in both; in the older another policy is better."""
    old = with_verdicts(restated.lpc(), "redis", {"mthp-64k": "equivalent", "thp": "better"})
    new = with_verdicts(old, "redis", {"mthp-64k": "equivalent", "thp": "equivalent"}, run="newer")
    row = rows({"a": page(new, old)})["redis"]
    assert row["what to set"] == "Leave it at base"
    assert row["runs that say so"] == "1 of 2; others: 1 set thp"


def test_what_an_older_run_alone_compared_stands_in_the_same_row() -> None:
    whole = restated.lpc()
    cells = tuple(
        replace(cell, comparisons=cell.comparisons[:1]) if cell.cell == "memcached" else cell for cell in whole.cells
    )
    new = replace(whole, run="newer", started=whole.started + 60, cells=cells)
    found = rows({"a": page(new, whole)})
    assert len(found) == len(whole.cells)
    row = found["memcached"]
    assert row["what to set"] == "Undecided; an older run: Set thp"
    assert "; an older run: ops_per_s +12" in row["what was found"]
    assert next(iter(found)) == "memcached"  # what is to be set stands first, whichever run found it


def test_what_an_older_run_alone_declared_is_no_answer_of_its_own() -> None:
    whole = restated.lpc()
    (first, *others), price = whole.cells, Metric("server_cpu_us", "us", "lower", "CPU time")
    dear = comparison("thp", price.name, "worse", ratio=1.3, low=1.2, high=1.4, n=20)
    old = replace(whole, cells=(replace(first, also=(price,), declared=(dear,)), *others))
    new = replace(whole, run="newer", started=whole.started + 60)
    row = rows({"a": page(new, old)})["memcached"]
    assert row["what to set"] == "Set thp"
    assert "an older run: declared beside it: thp worse in server_cpu_us +30%" in row["what was found"]
    assert "No answer" not in row["what to set"] and "nothing was compared" not in row["what was found"]


def test_a_setting_says_how_much_it_delivered_and_failures_are_counted() -> None:
    whole = restated.lpc()
    first, *others = whole.cells
    arms = tuple(
        replace(arm, judged="setting", delivered_share=0.04, failed=5) if arm.arm == "thp" else arm
        for arm in first.arms
    )
    row = rows({"a": page(replace(whole, cells=(replace(first, arms=arms), *others)))})["memcached"]
    assert row["what to set"] == "Yours to weigh, as thp is better and 5 of its runs failed (base: 0)"
    assert "thp is judged as a setting, of whose pages 4.0% were delivered" in row["what was found"]


def test_emulated_guests_set_nothing() -> None:
    guests = Guests(arch="arm64", accelerator="tcg", why="", counting=False, baseline="base", arms=())
    emulated = replace(restated.percona_2018(), guests=guests)
    found = {"b": page(emulated), "lpc-2024-mthp": page(restated.lpc())}
    assert {row["page"] for row in rows(found).values()} == {"lpc-2024-mthp.md"}
    (section,) = by_program(found)
    assert section.blocks[-1] == Line("In emulated guests, where counts were measured and no speed: b.md.")
    kvm = replace(emulated, guests=replace(guests, accelerator="kvm"))
    told = rows({**found, "b": page(kvm)})
    assert {row["page"] for row in told.values()} == {"b.md", "lpc-2024-mthp.md"}
    assert {row["where"] for row in told.values() if row["page"] == "b.md"} == {"in guests under KVM on Example 9000"}
    # Each run of a page by itself, the newest or not.
    older = replace(emulated, cells=tuple(replace(cell, cell=f"other {cell.cell}") for cell in emulated.cells))
    for several in (page(restated.percona_2018(), older), page(replace(older, run="newer"), restated.percona_2018())):
        assert set(rows({"b": several})) == set(rows({"b": page(restated.percona_2018())}))


def test_what_stands_in_for_what_is_told_of_runs_that_did_not_know_it() -> None:
    """A claim's answer names it as well, and a run keeps what a workload that is gone has said."""
    results = restated.lpc(stand_ins=("what it was called then",))
    first, second, *others = results.cells
    gone = replace(first, workload="gone")
    on_glibc = replace(second, parameters={**second.parameters, "allocator": "libc"})
    told = named_stand_ins(replace(results, cells=(gone, on_glibc, *others)))
    assert told.cells[0].stand_ins == ("what it was called then",)
    assert told.cells[1].stand_ins == (OWN_CLIENT, "glibc's malloc in place of redis's jemalloc")
    beside = [one.measured for one in known(told.beside).points if one.cell == "redis" and one.measured is not None]
    assert beside
    assert all(one.stand_ins == told.cells[1].stand_ins for one in beside)
    packaged = replace(second, parameters={**second.parameters, "allocator": "jemalloc"})
    as_packaged = named_stand_ins(replace(results, cells=(first, packaged, *others)))
    assert as_packaged.cells[1].stand_ins == (OWN_CLIENT,)
    named = rows({"a": page(told)})
    assert f"redis ({OWN_CLIENT}, glibc's malloc in place of redis's jemalloc)" in named
