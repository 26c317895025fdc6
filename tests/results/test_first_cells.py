"""The list of what is measured first, and what its page says of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hugewise import workloads
from hugewise.analysis.forecast import Forecast, Row
from hugewise.errors import StudyError
from hugewise.model.results import LeftOut, Results, Verdict
from hugewise.plan.cells import Resolved, resolve
from hugewise.report.document import Table
from hugewise.study import load
from tests.build import restated
from tests.build.results import example
from tools.results import page
from tools.results.data import PageData, PageRun, read
from tools.results.first_cells import (
    NAME,
    TITLE,
    CellList,
    First,
    Unmeasured,
    beside,
    first_cells_section,
    of_study,
    read_cell_list,
)

COMMITTED = Path(__file__).parents[2] / "docs" / "results" / NAME
STUDIES = {name: load.load(load.folder() / f"{name}.toml") for name in load.names()}
CELLS: dict[str, list[Resolved]] = {name: resolve(study, workloads.discover()) for name, study in STUDIES.items()}


def committed() -> CellList:
    return read_cell_list(COMMITTED)


def answered(cell: Resolved) -> set[str]:
    """The entry of the publication that the cell stands beside."""
    return {cell.used.published} if cell.used.published else set()


def test_the_list_names_cells_and_arms_that_there_are() -> None:
    """`of_study` refuses what its study has not."""
    listed = committed()
    assert listed.pairs >= 12
    found = [(name, first) for name, study in STUDIES.items() for first in of_study(listed, study)]
    assert {name for name, _ in found} == {entry.study for entry in listed.cell}, "no study of another name"
    assert len({(name, first.cell) for name, first in found}) == len(found), "no cell stands twice"
    for name, first in found:
        (cell,) = [one for one in CELLS[name] if one.id == first.cell]
        assert first.arms and STUDIES[name].compared_with not in first.arms
        assert {*first.claims} <= answered(cell), f"{first.cell} of {name} stands beside others"


def test_every_published_entry_that_a_study_restates_has_a_cell_in_the_list() -> None:
    restates = {
        (study.published, use.published)
        for study in STUDIES.values()
        for use in study.workload
        if study.published and use.published
    }
    listed = {(STUDIES[entry.study].published, claim) for entry in committed().cell for claim in entry.claims}
    assert len(restates) > 10
    assert listed == restates


@pytest.mark.parametrize(
    ("more", "key", "why"),
    [
        ('only = ["iperf4"]', "cell[1].only[1]", "is no label and no cell of redhat-2021"),
        ('only = ["iperf3"]\narms = ["hugetlb-2m"]', "cell[1].arms[1]", "is not judged in iperf3"),
        ('only = ["iperf3"]\narms = ["thp"]', "cell[1].arms[1]", "is not judged in iperf3"),
        ('only = "iperf3"', "cell[1].only", "must be a list"),
        ('only = ["iperf3"]\narm = ["thp"]', "cell[1].arm", "unknown key"),
    ],
)
def test_a_wrong_list_says_where_and_the_cure(more: str, key: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(f'format = 1\npairs = 12\n[[cell]]\nstudy = "redhat-2021"\n{more}\n')
    with pytest.raises(StudyError, match=why) as error:
        of_study(read_cell_list(path), STUDIES["redhat-2021"])
    assert (error.value.file, error.value.key) == (str(path), key)
    assert error.value.hint
    with pytest.raises(StudyError, match="not TOML"):
        path.write_text("x")
        read_cell_list(path)


def test_a_label_stands_for_all_of_its_cells_and_no_arms_for_all_that_are_judged(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(
        'format = 1\npairs = 9\n[[cell]]\nstudy = "lpc-2024-mthp"\nonly = ["x264"]\n'
        '[[cell]]\nstudy = "lpc-2024-mthp"\nscale = "published"\nonly = ["memcached"]\narms = ["mthp-1m"]\n'
    )
    assert beside(tmp_path / "any.parquet") == read_cell_list(path)
    assert beside(tmp_path / "elsewhere" / "any.parquet") is None
    found = of_study(read_cell_list(path), STUDIES["lpc-2024-mthp"])
    assert [one.cell for one in found] == ["x264-profile=upload", "x264-profile=vod"]
    assert {(one.arms, one.pairs) for one in found} == {(("mthp-64k", "thp", "hugetlb-2m"), 9)}
    large = load.at_scale(STUDIES["lpc-2024-mthp"], "published")
    assert [(one.cell, one.arms) for one in of_study(read_cell_list(path), large)] == [("memcached", ("mthp-1m",))]


def told(
    listed: list[First],
    runs: list[Results],
    together: dict[tuple[str, str, str], Verdict],
    planned: dict[tuple[str, str, str], Row],
    others: list[Unmeasured],
) -> list[tuple[str, ...]]:
    (section,) = first_cells_section(listed, runs, together, planned, others)
    return [row for block in section.blocks if isinstance(block, Table) for row in block.rows]


def first(cell: str, *arms: str, pairs: int = 12) -> First:
    return First(cell=cell, arms=arms, claims=("said",), pairs=pairs)


def planned(cell: str, arm: str, needed: int) -> Row:
    return Row(
        cell=cell, arm=arm, baseline="base", metric="tps", pairs=20, failures=0, sessions=1, needed=needed, seconds=60.0
    )  # fmt: skip


def test_each_cell_has_its_pairs_and_its_verdict_or_what_it_needs() -> None:
    results = restated.percona_2018()
    by = {(cell.cell, one.arm, one.metric): one for cell in results.cells for one in cell.comparisons}
    decided = next(key for key, one in by.items() if one.verdict == "better")
    open_ = next(key for key, one in by.items() if one.verdict == "undecided")
    rows = told(
        [first(decided[0], decided[1]), first(open_[0], open_[1], pairs=1000)],
        [results, results],
        {},
        {open_: planned(*open_[:2], 300)},
        [],
    )
    assert rows[0] == (*decided[:2], "said", "tps", f"{2 * by[decided].n}", "yes", "▲ better")
    needs = "? undecided; pairs: 300; time: 5 h 00 min"
    assert rows[1] == (*open_[:2], "said", "tps", f"{2 * by[open_].n}", "no", needs)
    (row,) = told([first(*open_[:2])], [results], {open_: "worse"}, {}, [])
    assert row[-1] == "▼ worse", "what the runs say together"


def test_fewer_pairs_that_were_planned_are_said_to_be() -> None:
    """A study that is judged once, after 3 blocks, had a verdict and a bare `no` beside it."""
    results = restated.percona_2018()
    cell = results.cells[0]
    one = cell.comparisons[0]

    def enough(**options: object) -> str:
        ((*_, word, _verdict),) = told([first(cell.cell, one.arm, pairs=1000)], [changed(**options)], {}, {}, [])
        return word

    def changed(**options: object) -> Results:
        return msgspec.structs.replace(results, options=options)

    planned_ = {"blocks": one.n, "time": None, "width": None}
    assert enough(method="fixed-n", budget=planned_) == f"no: {one.n} were planned"
    assert enough(method="sequential", budget=planned_) == "no"
    assert enough(method="fixed-n", budget={**planned_, "blocks": one.n + 1}) == "no"
    assert enough() == "no"


def test_fewer_pairs_that_were_enough_for_a_verdict_are_said_to_be() -> None:
    """A run that is judged after every pair ends when all is decided."""
    results = restated.percona_2018()
    cell = next(cell for cell in results.cells if any(one.verdict == "better" for one in cell.comparisons))
    one = next(one for one in cell.comparisons if one.verdict == "better")
    ((*_, word, _),) = told([first(cell.cell, one.arm, pairs=1000)], [results], {}, {}, [])
    assert word == f"decided after {one.n}"


def test_runs_that_disagree_have_no_verdict() -> None:
    results = restated.percona_2018()
    cell = results.cells[0]
    one = cell.comparisons[0]

    def of(verdict: str) -> Results:
        turned = msgspec.structs.replace(one, verdict=verdict, reason="withheld")
        return msgspec.structs.replace(results, cells=(msgspec.structs.replace(cell, comparisons=(turned,)),))

    def last(*verdicts: str) -> str:
        ((*_, word),) = told([first(cell.cell, one.arm)], [of(each) for each in verdicts], {}, {}, [])
        return word

    assert last("better", "worse") == "the runs disagree: better, worse"
    assert last("undecided", "worse") == "▼ worse"
    assert last("none") == "– none: withheld"


def test_what_was_not_run_says_so_with_the_reason_or_the_hours_of_a_neighbour() -> None:
    results = msgspec.structs.replace(
        restated.percona_2018(), left_out=(LeftOut("gone", "*", "no disk"), LeftOut("*", "hugetlb-1g", "no such page"))
    )
    there = results.cells[0].cell
    rows = told(
        [first("gone", "hugetlb-2m"), first("other", "hugetlb-1g"), first("far", "thp"), first(there, "mthp-64k")],
        [results],
        {},
        {(there, "hugetlb-2m", "tps"): planned(there, "hugetlb-2m", 30)},
        [Unmeasured(cell="far", neighbour="near", arm="thp", pairs=20, seconds=120.0)],
    )
    assert [row[-1] for row in rows] == [
        "not run: no disk",
        "not run: no such page",
        "not run: if as noisy as near, thp: 20 pairs, 2 min 00 s",
        "not run: if as noisy as hugetlb-2m there: 30 pairs, 30 min 00 s",
    ]
    assert {row[3:6] for row in rows} == {("–", "0", "no")}
    alone = told([first("far", "thp")], [results], {}, {}, [Unmeasured(cell="far", reason="nothing was measured")])
    assert alone[0][-1] == "not run: nothing was measured"


def test_an_arm_that_only_an_older_run_has_is_forecast_by_that_run() -> None:
    """It said that nothing was measured in pairs, beside their number."""
    results = restated.percona_2018()
    cell = results.cells[0]
    one = cell.comparisons[0]
    open_ = msgspec.structs.replace(cell, comparisons=(msgspec.structs.replace(one, verdict="undecided"),))
    older = msgspec.structs.replace(results, cells=(open_,), run="older", started=results.started - 60)
    newer = msgspec.structs.replace(results, cells=(msgspec.structs.replace(open_, comparisons=()),))
    row = msgspec.structs.replace(planned(cell.cell, one.arm, 300), metric=one.metric)
    runs = (PageRun(results=newer, forecast=foreseen()), PageRun(results=older, forecast=foreseen(row)))
    data = PageData(runs=runs, first=(first(cell.cell, one.arm),))
    shown = page.render(data, "page")["page.md"].decode()
    listed = shown.partition(f"## {TITLE}")[2].partition("\n## ")[0]
    assert "? undecided; pairs: 300; time: 5 h 00 min" in listed


def foreseen(*rows: Row) -> Forecast:
    return Forecast(
        study="s", method="sequential", runs=(), effect=0.01, margin=0.01, chance=0.9, alpha=0.01, level=0.01,
        comparisons=1, blocks=40, time=None, time_blocks=None, least=13, session_cost=60.0, seconds=None,
        rows=rows,
    )  # fmt: skip


def test_a_page_keeps_its_part_of_the_list_in_its_data(tmp_path: Path) -> None:
    path = tmp_path / "page.parquet"
    cell = example().cells[0]
    data = PageData(runs=(PageRun(results=example()),), first=(first(cell.cell, cell.comparisons[0].arm),))
    page.write(path, data)
    assert read(path) == data
    shown = path.with_suffix(".md").read_text()
    assert f"## {TITLE}" in shown
    assert TITLE not in page.render(msgspec.structs.replace(data, first=()), "page")["page.md"].decode()
    lpc = PageData(runs=(PageRun(results=restated.lpc()),))
    listed = page.renewed(lpc, STUDIES["lpc-2024-mthp"], committed()).first
    assert listed == of_study(committed(), STUDIES["lpc-2024-mthp"])
    assert [one.cell for one in listed][:2] == ["redis-libc", "memcached"]
