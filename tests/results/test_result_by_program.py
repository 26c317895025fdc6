"""What to set, program by program: what each policy did to each load on the pages, its price, its runs, its machine."""

import re
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from hugewise.deployment import configuration as host_files
from hugewise.model.metric import Metric
from hugewise.model.pages import THP
from hugewise.model.policy import Deployment
from hugewise.model.results import CellResult, Comparison, EarlierComparison, Guests, Results, Verdict
from hugewise.report.document import Line, Section, Table
from hugewise.report.markdown import markdown
from hugewise.stats.evidence import Carried, RunEvidence
from tests.build import restated
from tests.build.results import comparison
from tools.results.data import PageData, PageRun
from tools.results.overview import overview
from tools.results.overview import programs as by_programs
from tools.results.page import document
from tools.results.programs import by_program, in_a_table, in_short


def page(*runs: Results) -> PageData:
    """The runs, the newest first, each with the evidence of its verdicts."""
    return PageData(runs=tuple(PageRun(results=with_evidence(one)) for one in runs))


def with_evidence(results: Results, much: float = 1e4) -> Results:
    def of(cell: CellResult, one: Comparison) -> Comparison:
        sign = {"better": 1, "worse": -1}.get(one.verdict, 0) * (1 if cell.metric.better == "higher" else -1)
        return replace(one, evidence_larger=much**sign, evidence_smaller=much**-sign)

    cells = tuple(replace(cell, comparisons=tuple(of(cell, one) for one in cell.comparisons)) for cell in results.cells)
    return replace(results, cells=cells)


def section_of(found: Mapping[str, PageData]) -> Section:
    (section,) = in_a_table(found)
    return section


def tables_of(found: Mapping[str, PageData]) -> list[Table]:
    """The table of all programs, and that of each."""
    blocks = (block for section in (*in_a_table(found), *by_program(found)) for block in section.blocks)
    return [block for block in blocks if isinstance(block, Table)]


def programs(found: Mapping[str, PageData]) -> dict[str, dict[str, str]]:
    """The first table: by workload."""
    told = tables_of(found)[0]
    return {row[0].partition(":")[0]: dict(zip(told.head, row, strict=True)) for row in told.rows}


def named(text: str) -> str:
    """Policies of a row of the first table without their changes: `thp (in a; ops_per_s +12%)` is `thp (in a)`."""
    change = r"\w+ [+−]?[\d.,]+%"
    return re.sub(rf" \({change}\)|{change}; |; {change}(?=\))", "", text)


def rows(found: Mapping[str, PageData]) -> dict[tuple[str, str], dict[str, str]]:
    """The tables of the programs: by load and policy, of which each has one baseline."""
    every = [(told, row) for told in tables_of(found)[1:] for row in told.rows]
    made = {(row[0], row[1].partition(" ")[0]): dict(zip(told.head, row, strict=True)) for told, row in every}
    assert len(made) == len(every)
    return made


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


def test_each_policy_on_each_load_has_a_row_and_what_is_to_be_set_stands_first() -> None:
    pages = {"lpc-2024-mthp": page(restated.lpc()), "percona-2018-hugepages": page(restated.percona_2018())}
    found = rows(pages)
    every = [one for run in (restated.lpc(), restated.percona_2018()) for cell in run.cells for one in cell.comparisons]
    assert len(found) == len(every)
    for told in tables_of(pages)[1:]:
        order = [["Set", "Yours", "Leave", "Open:"].index(row[2].split()[0]) for row in told.rows]
        assert order == sorted(order)
    memcached = found["memcached", "thp"]
    assert memcached["what to do"] == "Set it"
    assert memcached["found in its metric"].startswith("ops_per_s +12")
    assert ", 24 pairs at " in memcached["found in its metric"]
    assert (memcached["runs"], memcached["where"]) == (
        "better in 1 of 1 run; e-value 10,000",
        "on Example 9000",
    )
    assert memcached["page"] == "lpc-2024-mthp.md"
    assert found["memcached", "mthp-64k"]["what to do"] == "Open: undecided"
    assert found["redis", "mthp-64k"]["what to do"] == "Leave it: worse"
    assert found["redis", "thp"]["what to do"] == "Leave it: no difference above 0.5%"
    assert not any("`" in text for row in found.values() for text in row.values())  # Markdown would show them


def test_the_first_table_has_a_program_in_a_row_and_each_policy_in_its_column() -> None:
    pages = {"lpc-2024-mthp": page(restated.lpc()), "percona-2018-hugepages": page(restated.percona_2018())}
    told = programs(pages)
    assert {*told} == {"memcached", "build", "x264", "pgbench", "redis"}
    in_full = "pgbench: PostgreSQL under pgbench: TPC-B (read and write), look-ups alone, or analytic queries"
    assert told["pgbench"]["program"] == in_full
    assert [*told][-1] == "redis"  # those with something to set first
    assert re.fullmatch(r"thp \(ops_per_s \+[\d.]+%\)", told["memcached"]["set"])
    assert [named(told["memcached"][stands]) for stands in ("set", "yours to weigh", "leave", "open")] == [
        *("thp", "–", "–", "mthp-64k"),
    ]
    assert named(told["redis"]["leave"]) == "mthp-64k (worse); thp (no difference above 0.5%)"
    by_load = "hugetlb-2m (pgbench-database_share=0.4-clients=16; better for "
    assert by_load in named(told["pgbench"]["yours to weigh"])  # several loads: by their names
    headings = [section.title for section in by_program(pages)][1:]
    assert in_full in headings


def test_policies_that_their_names_do_not_tell_apart_have_baseline_metric_or_page() -> None:
    """Two studies have a cell of one name."""
    first = restated.lpc().cells[0]
    one = replace(restated.lpc(), cells=(first,))
    assert named(programs({"a": page(one), "b": page(one)})["memcached"]["set"]) == "thp (in a); thp (in b)"
    p99 = Metric("p99_us", "us", "lower", "latency")
    by_p99 = replace(first, metric=p99, comparisons=tuple(replace(each, metric="p99_us") for each in first.comparisons))
    other = replace(one, cells=(by_p99,))
    told = programs({"a": page(one), "b": page(other)})
    assert re.fullmatch(r"thp \(ops_per_s \S+%\); thp \(p99_us \S+%\)", told["memcached"]["set"])
    arms = tuple(replace(arm, arm="as-is") if arm.arm == "base" else arm for arm in first.arms)
    against = replace(
        first,
        baseline="as-is",
        arms=arms,
        comparisons=tuple(replace(each, baseline="as-is") for each in first.comparisons),
    )
    found = {"a": page(one), "b": page(replace(one, cells=(against,)))}
    assert named(programs(found)["memcached"]["set"]) == "thp; thp against as-is"
    assert {row[1] for told in tables_of(found)[1:] for row in told.rows} >= {"thp against base", "thp against as-is"}


def test_the_programs_are_the_first_of_the_overviews_sections() -> None:
    found = {"lpc-2024-mthp": page(restated.lpc())}
    assert overview(found).sections[0].title == "The programs"
    assert "| memcached | thp against base | Set it |" in markdown(by_programs(found))
    assert all(one.title != "The programs" for one in overview({}).sections)
    assert by_programs({}).sections == ()


def test_a_page_begins_with_what_it_says_to_set() -> None:
    told = list(in_short(page(restated.lpc())))
    assert [line.split(":")[0] for line in told[:3]] == ["Set", "Leave", "Open"]
    assert told[3:] == [
        "A setting stands under Set only on strong evidence: the product of the e-values of all runs of its question on"
        " its host, with those that were broken off. On average at most 5% of the settings under Set are wrong, over 7"
        " rows (e-BH)."
    ]
    assert told[0].startswith("Set: thp on memcached, ops_per_s +12")
    assert "mthp-64k on redis, ops_per_s " in told[1] and "(worse)" in told[1]
    assert told[2] == "Open: mthp-64k on memcached."
    first = document(page(restated.lpc())).lead[0]
    assert isinstance(first, Line) and first.text == told[0]


def test_the_baseline_and_the_commands_are_told() -> None:
    whole = restated.lpc()
    deployed = Deployment(files=(host_files.now({f"{THP}/enabled": "never"}),), note="")
    first, *others = whole.cells
    arms = tuple(replace(arm, deployment=deployed) if arm.arm == "base" else arm for arm in first.arms)
    found = {"a": page(replace(whole, cells=(replace(first, arms=arms), *others)))}
    lines = [block.text for block in next(by_program(found)).blocks if isinstance(block, Line)]
    assert f"Compared with base, of memcached (a.md), which is: echo never > {THP}/enabled." in lines
    how = rows(found)["memcached", "thp"]["how it is set"]
    assert how == f"echo always > {THP}/enabled. The setting reaches every program of the host"
    assert rows(found)["memcached", "mthp-64k"]["how it is set"] == "–"  # nothing is to be set


def test_what_some_of_the_runs_decided_is_not_simply_to_be_set() -> None:
    old = restated.lpc()
    data = page(judged(old, "memcached", "undecided"), old)
    row = rows({"a": data})["memcached", "thp"]
    assert row["what to do"] == "Yours to weigh: better in 1 of 2 runs"
    assert row["runs"] == "undecided in 1 of 2 runs, better in 1; e-value 10,000"
    assert row["found in its metric"].count("24 pairs") == 2 and "; an older run: " in row["found in its metric"]
    assert "echo always" in row["how it is set"]
    weighed = programs({"a": data})["memcached"]["yours to weigh"]
    assert named(weighed) == "thp (better in 1 of 2 runs)"
    other = next(one for one in data.runs[0].results.cells[0].comparisons if one.arm == "thp")
    slower = replace(other, ratio=1.01, low=0.99, high=1.03)
    first = replace(data.runs[0].results, cells=(replace(data.runs[0].results.cells[0], comparisons=(slower,)),))
    again = page(first, data.runs[1].results)
    assert programs({"a": again})["memcached"]["yours to weigh"] == weighed, (
        "the change is that of the run that decided"
    )
    (told,) = (line for line in in_short(data) if line.startswith("Yours to weigh: "))
    assert told.endswith("(better in 1 of 2 runs).")
    assert rows({"a": data})["redis", "thp"]["runs"] == "no difference in 2 of 2 runs"


def test_a_run_of_too_few_pairs_for_any_verdict_takes_nothing_from_one_that_decided() -> None:
    old = restated.lpc()
    new = judged(old, "memcached", "undecided")
    cell, *others = new.cells

    def changed(**changes: object) -> Results:
        comparisons = tuple(replace(one, low=None, high=None, **changes) for one in cell.comparisons)
        return replace(new, cells=(replace(cell, comparisons=comparisons), *others))

    row = rows({"a": page(changed(n=4), old)})["memcached", "thp"]
    assert row["what to do"] == "Set it"
    assert row["runs"] == "better in 1 of 2 runs, too few pairs for a verdict in 1; e-value 10,000"
    alone = rows({"a": page(changed(n=4))})["memcached", "thp"]
    assert (alone["what to do"], alone["runs"]) == ("Open: undecided", "too few pairs for a verdict in 1 of 1 run")
    # A run that has no interval for its failures is one that decided nothing.
    row = rows({"a": page(changed(failures_arm=3, failures_baseline=3), old)})["memcached", "thp"]
    assert row["what to do"] == "Yours to weigh: better in 1 of 2 runs"


def test_the_first_sentence_has_the_effect_of_a_run_that_shows_it() -> None:
    old = restated.lpc()
    new = judged(old, "memcached", "undecided")
    cell, *others = new.cells
    near = tuple(replace(one, ratio=1.0, low=0.99, high=1.01, n=77) for one in cell.comparisons)
    data = page(replace(new, cells=(replace(cell, comparisons=near), *others)), old)
    (told,) = (line for line in in_short(data) if line.startswith("Yours to weigh: "))
    assert "77 pairs" not in told and "24 pairs" in told and "by an older run (better in 1 of 2 runs)" in told


def evidence(run: str, larger: float) -> RunEvidence:
    """Of thp on memcached; 500 is the least e-value that decides one of its kind alone at 99%."""
    carried = Carried(
        cell="memcached", arm="thp", baseline="base", metric="ops_per_s", higher_is_better=True,
        end_point="typical ratio", identity={"design": "d"}, larger=larger, smaller=0.01, pairs=10,
    )  # fmt: skip
    return RunEvidence(run=run, seed_hash=run * 8, host="h", comparisons=(carried,))


def together(verdict: Verdict, *, larger: float = 100.0) -> dict[str, PageData]:
    """A page of two runs with that verdict each on memcached, whose e-values decide for it together."""
    old = with_verdicts(restated.lpc(), "memcached", {"mthp-64k": "undecided", "thp": verdict})
    new = judged(old, "memcached", verdict)
    runs = (
        PageRun(results=new, evidence=evidence("new", larger)),
        PageRun(results=old, evidence=evidence("old", larger)),
    )
    return {"a": PageData(runs=runs)}


def test_what_the_runs_decide_together_stands_and_says_so() -> None:
    row = rows(together("undecided"))["memcached", "thp"]
    assert row["what to do"] == (
        "Yours to weigh: better by the runs together, which do not tell by how much, on too little evidence among"
        " these rows"
    )
    assert row["runs"] == "undecided in 2 of 2 runs; together better; e-value 1.0"
    mixed = together("undecided")["a"]
    first, second = mixed.runs
    better = replace(first, results=judged(first.results, "memcached", "better"))
    row = rows({"a": replace(mixed, runs=(better, second))})["memcached", "thp"]
    assert row["what to do"].startswith("Yours to weigh: better in 1 of 2 runs, and by them together")
    worse = replace(first, results=judged(first.results, "memcached", "worse"))
    row = rows({"a": replace(mixed, runs=(worse, second))})["memcached", "thp"]
    assert row["what to do"] == "Open: the runs decided differently"  # one of them, and all together
    assert rows(together("undecided", larger=2.0))["memcached", "thp"]["what to do"] == "Open: undecided"


def test_a_price_that_any_of_the_runs_saw_is_one() -> None:
    """Failures leave a run undecided: the run that decides is the one without them."""
    data = together("undecided")["a"]
    newest, older = data.runs
    cell, *others = newest.results.cells
    arms = tuple(replace(arm, failed=5, peak_bytes=3 << 30) if arm.arm == "thp" else arm for arm in cell.arms)
    for place in (0, 1):
        runs = [newest, older]
        runs[place] = replace(
            runs[place], results=replace(runs[place].results, cells=(replace(cell, arms=arms), *others))
        )
        row = rows({"a": PageData(runs=tuple(runs))})["memcached", "thp"]
        assert row["what to do"].startswith("Yours to weigh: better by the runs together")
        assert "more memory" in row["what to do"] and "5 of its runs failed (base: 0)" in row["what to do"]
        assert (" in another run" in row["what to do"]) == bool(place)
    peak = Metric("charged_peak_bytes", "B", "lower", "memory")
    same = comparison("thp", peak.name, "equivalent", ratio=1.001, low=0.999, high=1.003, n=20)
    known = replace(cell, also=(*cell.also, peak), declared=(*cell.declared, same))
    runs[0] = replace(newest, results=replace(newest.results, cells=(known, *others)))
    told = rows({"a": PageData(runs=tuple(runs))})["memcached", "thp"]["what to do"]
    assert "more memory" not in told and "5 of its runs failed" in told, "its pairs tell how much memory it takes"


def memcached(**evidence: float | None) -> CellResult:
    """The first cell, with this evidence on thp."""
    cell = restated.lpc().cells[0]
    return replace(cell, comparisons=tuple(replace(one, **evidence) for one in cell.comparisons if one.arm == "thp"))


def of_evidence(run: str, larger: float, verdict: Verdict = "better", **changes: object) -> PageRun:
    """A run of thp on memcached alone."""
    cell = memcached(verdict=verdict, evidence_larger=larger, evidence_smaller=0.01)  # type: ignore[arg-type]
    return PageRun(results=replace(restated.lpc(), run=run, cells=(cell,), confidence=0.99, **changes))


def stands(*pages: PageData) -> list[str]:
    found = {str(at): one for at, one in enumerate(pages)}
    return [row[2] for told in tables_of(found)[1:] for row in told.rows]


THIN = "Yours to weigh: better, on too little evidence among these rows"


def test_what_is_to_be_set_rests_on_all_runs_of_the_question_whatever_the_page() -> None:
    """A run begun anew until it says better: those that were broken off before count by their evidence."""
    better = of_evidence("last", 300.0)
    few = {"n": 4, "low": None, "high": None}
    assert stands(PageData(runs=(better,))) == ["Set it"]
    off = of_evidence("first", 0.5, "undecided")
    cell = replace(off.results.cells[0], comparisons=(replace(off.results.cells[0].comparisons[0], **few),))
    off = replace(off, results=replace(off.results, cells=(cell,)))
    (row,) = tables_of({"a": PageData(runs=(better, off))})[1].rows
    assert row[2] == THIN and "e-value 150" in row[7]
    assert stands(PageData(runs=(better,)), PageData(runs=(better,))) == ["Set it"] * 2  # one run on two pages
    elsewhere = replace(off, results=replace(off.results, host={**off.results.host, "machine": "other"}))
    assert stands(PageData(runs=(better, elsewhere))) == ["Set it"]
    renamed = replace(off, results=replace(off.results, cells=(replace(cell, cell="by another name"),)))
    assert sorted(stands(PageData(runs=(better,)), PageData(runs=(renamed,)))) == ["Open: undecided", THIN]


def test_earlier_runs_that_no_page_has_count_too() -> None:
    def after(larger: float | None, verdict: Verdict = "undecided", study: str = "lpc") -> str:
        known = EarlierComparison("memcached", "thp", "ops_per_s", 5, verdict, larger, larger)
        (row,) = stands(PageData(runs=(of_evidence("last", 300.0, earlier_shared={f"{study}/gone": (known,)}),)))
        return row

    assert after(0.9) == "Set it" and after(0.5) == THIN
    assert after(None) == "Yours to weigh: better, and an earlier run of it is not published"
    assert after(None, "none") == "Set it"  # it claims nothing
    assert after(None, study="lpc-pilot") == after(None, study="advise-screening") == "Set it"


def test_what_another_run_knows_of_an_earlier_one_counts_and_the_newest_is_right() -> None:
    def after(newest: float | None, other: float | None) -> str:
        runs = []
        for run, started, larger in (("other", 1.0, other), ("newest", 2.0, newest)):
            known = EarlierComparison("memcached", "thp", "ops_per_s", 5, "undecided", larger, larger)
            made = of_evidence(run, 20.0, earlier_shared={"lpc/gone": (known,)})
            runs.append(replace(made, results=replace(made.results, started=started)))
        rows = stands(*(PageData(runs=(run,)) for run in runs))
        assert len({*rows}) == 1
        return rows[0]

    assert after(0.9, None) == after(None, 0.9) == after(0.9, 0.1) == "Set it"
    assert after(0.1, 0.9) == THIN
    assert after(None, None).endswith(", and an earlier run of it is not published")


def test_the_more_rows_the_more_evidence_it_takes() -> None:
    def page_of(number: int, larger: float) -> PageData:
        run = of_evidence(str(number), larger)
        cell = replace(run.results.cells[0], parameters={"keys": number})
        return PageData(runs=(replace(run, results=replace(run.results, cells=(cell,))),))

    assert stands(page_of(0, 301.0), *(page_of(n, 1.0) for n in range(1, 15))).count("Set it") == 1
    assert stands(page_of(0, 301.0), *(page_of(n, 1.0) for n in range(1, 16))).count("Set it") == 0
    assert stands(*(page_of(n, 301.0) for n in range(2)), *(page_of(n, 1.0) for n in range(2, 30))).count("Set it") == 2


def test_rows_that_cannot_be_set_make_it_no_easier_for_others() -> None:
    """A share of all rejected rows bounds nothing of those that a filter leaves."""

    def page_of(number: int, larger: float, **price: object) -> PageData:
        run = of_evidence(str(number), larger)
        cell = replace(run.results.cells[0], parameters={"keys": number})
        arms = tuple(replace(arm, **price) if arm.arm == "thp" else arm for arm in cell.arms)
        return PageData(runs=(replace(run, results=replace(run.results, cells=(replace(cell, arms=arms),))),))

    priced = [page_of(n, 1e6, failed=5) for n in range(1, 20)]
    assert stands(page_of(0, 399.0), *priced).count(THIN) == 1
    assert stands(page_of(0, 401.0), *priced).count("Set it") == 1
    assert all("too little evidence" not in row for row in stands(*priced))


@pytest.mark.parametrize("newest", ["worse", "better"])
def test_runs_that_decided_differently_leave_it_open(newest: Verdict) -> None:
    other: Verdict = "better" if newest == "worse" else "worse"
    old = with_verdicts(restated.lpc(), "memcached", {"mthp-64k": "undecided", "thp": other})
    found = {"a": page(judged(old, "memcached", newest), old)}
    row = rows(found)["memcached", "thp"]
    assert row["what to do"] == "Open: the runs decided differently"
    assert (row["runs"], row["how it is set"]) == (f"{newest} in 1 of 2 runs, {other} in 1", "–")
    assert "thp (the runs decided differently)" in programs(found)["memcached"]["open"]
    assert "thp on memcached (the runs decided differently)" in " ".join(in_short(found["a"]))


def test_a_run_of_another_policy_says_nothing_of_this_one() -> None:
    """A newer run that compared mthp-64k alone neither stands before the older one of thp nor counts among its runs."""
    whole = restated.lpc()
    cells = tuple(
        replace(cell, comparisons=cell.comparisons[:1]) if cell.cell == "memcached" else cell for cell in whole.cells
    )
    new = replace(whole, run="newer", started=whole.started + 60, cells=cells)
    found = rows({"a": page(new, whole)})
    row = found["memcached", "thp"]
    assert (row["what to do"], row["runs"]) == ("Set it", "better in 1 of 1 run; e-value 10,000")
    assert found["memcached", "mthp-64k"]["runs"] == "undecided in 2 of 2 runs"


def test_of_runs_with_other_parameters_or_another_treatment_the_newest_stand_whatever_they_found() -> None:
    whole = restated.lpc()
    first, *others = whole.cells
    arms = tuple(replace(arm, treatment="as it was set then") if arm.arm == "thp" else arm for arm in first.arms)
    for was in (replace(first, parameters={"keys": 1}), replace(first, arms=arms)):
        old = with_verdicts(replace(whole, cells=(was, *others)), "memcached", {"mthp-64k": "worse", "thp": "worse"})
        for newest, older, stands in ((whole, old, "Set it"), (old, whole, "Leave it: worse")):
            tables = tables_of({"a": page(newest, older)})[1:]
            told = [row for table in tables for row in table.rows if row[0] == "memcached"]
            assert [row[2] for row in told if row[1] == "thp against base"] == [stands]


def declaring(results: Results, verdict: Verdict, ratio: float) -> Results:
    """The run, with that of thp in a metric declared beside that of its first cell."""
    (first, *others), price = results.cells, Metric("server_cpu_us", "us", "lower", "CPU time")
    one = comparison("thp", price.name, verdict, ratio=ratio, low=ratio - 0.1, high=ratio + 0.1, n=20)
    return replace(results, cells=(replace(first, also=(price,), declared=(one,)), *others))


def test_what_any_run_judged_beside_the_metric_is_a_price() -> None:
    worse, new = declaring(restated.lpc(), "worse", 1.3), replace(restated.lpc(), run="newer")
    for newest, older in (
        (new, worse),
        (declaring(new, "undecided", 1.1), worse),
        (worse, declaring(new, "better", 0.7)),
    ):
        for first, second in ((newest, older), (older, newest)):
            row = rows({"a": page(first, second)})["memcached", "thp"]
            assert row["what to do"] == "Yours to weigh: better, but worse in server_cpu_us"
            assert row["judged beside it"].startswith("worse in server_cpu_us +30%")


def test_what_was_judged_beside_the_metric_is_told_of_what_is_open_or_makes_no_difference() -> None:
    found = {"a": page(judged(declaring(restated.lpc(), "worse", 1.3), "memcached", "undecided"))}
    assert rows(found)["memcached", "thp"]["what to do"] == "Open: worse in server_cpu_us"
    assert "thp (worse in server_cpu_us)" in programs(found)["memcached"]["open"]
    assert "thp on memcached (worse in server_cpu_us)" in " ".join(in_short(found["a"]))
    alike = with_verdicts(restated.lpc(), "memcached", {"mthp-64k": "worse", "thp": "equivalent"})
    row = rows({"a": page(declaring(alike, "better", 0.7))})["memcached", "thp"]
    assert row["what to do"] == "Yours to weigh: no difference above 0.5%; better in server_cpu_us"


def test_emulated_guests_set_nothing() -> None:
    guests = Guests(arch="arm64", accelerator="tcg", why="", counting=False, baseline="base", arms=())
    emulated = replace(restated.percona_2018(), guests=guests)
    found = {"b": page(emulated), "lpc-2024-mthp": page(restated.lpc())}
    assert {row["page"] for row in rows(found).values()} == {"lpc-2024-mthp.md"}
    assert section_of(found).blocks[-1] == Line("In emulated guests, where counts were measured and no speed: b.md.")
    kvm = replace(emulated, guests=replace(guests, accelerator="kvm"))
    told = rows({**found, "b": page(kvm)})
    assert {row["page"] for row in told.values()} == {"b.md", "lpc-2024-mthp.md"}
    assert {row["where"] for row in told.values() if row["page"] == "b.md"} == {"in guests under KVM on Example 9000"}
    # Each run of a page by itself, the newest or not.
    older = replace(emulated, cells=tuple(replace(cell, cell=f"other {cell.cell}") for cell in emulated.cells))
    for several in (page(restated.percona_2018(), older), page(replace(older, run="newer"), restated.percona_2018())):
        assert set(rows({"b": several})) == set(rows({"b": page(restated.percona_2018())}))
