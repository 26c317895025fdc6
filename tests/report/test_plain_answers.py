"""The first screen of a report: what to set, for a reader who knows no statistics, with its figures."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.analysis.analysis import analyze
from hugewise.model.results import Integrity, Results, Verdict
from hugewise.report.answer_text import caveats
from hugewise.report.numbers import room
from tests.build.few_blocks import demo, two_blocks
from tests.build.results import HOSTILE, example, plain
from tests.report.test_cell_answers import COST, beside, judged
from tests.report.told import page, terminal, text
from tools.results.data import read

RUNS = Path(__file__).parents[1] / "golden" / "runs"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
JARGON = re.compile(
    r"Holm|interval|confidence|alpha|e-value|margin|pairs at|error rate|hash|\bratios?\b|crossed|campaign|covariate|"
    r"knobs|equivalence|exact test|hold together|\d at \d|sign-flip|p-value|significan|strat(?:um|a)\b|estimand|"
    r"prior\b|geometric|typically",
)


def header(shown: str) -> str:
    """What a page shows above its sections, without what is behind a line."""
    (found,) = re.findall(r"<header>.*?<nav", shown, re.S)
    return re.sub(r"<details>.*?</details>|<p class=\"eyebrow\">.*?</h1>", "", found, flags=re.S)


def words(shown: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", shown)).split())


@pytest.mark.parametrize(
    "make",
    [plain, demo, two_blocks, lambda: judged(("better", 0.6), ("better", 0.61)), lambda: judged(("undecided", 0.9))],
)
def test_the_first_screen_has_no_word_of_statistics(make: object) -> None:
    assert callable(make)
    told = words(header(page(make())))
    assert JARGON.findall(told) == [], told
    assert "wrong is at most" in told


@pytest.mark.parametrize("verdict", ["better", "equivalent", "worse", "undecided", "none"])
@pytest.mark.parametrize("of", ["better", "worse", "undecided", "equivalent"])
def test_nor_has_what_was_declared_beside_its_metric(verdict: Verdict, of: Verdict) -> None:
    """Also where there is no interval of it, or no ratio."""
    results = beside(judged((verdict, 0.9)), (COST, "mthp-64k", of, 1.5))
    (cell,) = results.cells
    for changed in ({}, {"low": None, "high": None}, {"ratio": None, "low": None, "high": None}):
        without = replace(cell, declared=(replace(cell.declared[0], **changed),))
        for cells in ((without,), (without, replace(without, cell="again"))):
            told = words(header(page(replace(results, cells=cells))))
            assert JARGON.findall(told) == [], told
            assert "server_cpu_us" in told


@pytest.mark.parametrize("name", ["ended", "deployed", "guests"])
def test_nor_has_that_of_a_recorded_run(name: str, tmp_path: Path) -> None:
    told = words(header(page(analyze(shutil.copytree(RUNS / name, tmp_path / name)))))
    assert JARGON.findall(told) == [], told
    assert told.index("Run ") > 20, "the answer comes first"


@pytest.mark.parametrize("table", sorted(RESULTS.glob("*.parquet")), ids=lambda path: path.stem)
def test_nor_has_that_of_any_run_that_is_published_and_its_names_are_explained(table: Path) -> None:
    for run in read(table).runs:
        results = run.results
        told = words(header(page(results)))
        assert JARGON.findall(told) == [], told
        for cell in results.cells:
            if cell.comparisons and cell.metric.name in told:
                assert f"{cell.metric.name} is in {cell.metric.unit}, " in told
        if len(results.cells) > 1:
            assert "A cell is a workload with its parameters. In each of its blocks every policy ran once" in told


def test_the_answer_stands_above_the_run_and_the_list_of_sections() -> None:
    results = judged(("better", 0.6))
    shown = page(results)
    places = [shown.index(word) for word in ("Set <code>mthp-64k</code>", '<p class="lead">Run', "<nav", "<main")]
    assert places == sorted(places)
    in_text = text(results)
    assert in_text.index("Set `mthp-64k`".replace("`", "\\`")) < in_text.index("Run `")


def test_it_has_the_size_the_room_the_blocks_and_the_unit() -> None:
    told = words(header(page(judged(("better", 0.6)))))
    assert "Set mthp-64k: latency_ns is 40.0% lower than with base." in told
    assert (
        "mthp-64k and base both ran once in each of 20 blocks, in random order: what was measured leaves room for 38.0%"
        " to 42.0% lower."
    ) in told
    assert "latency_ns is in ns, lower is better: " in told
    assert (
        "The chance that any verdict of this run on its policies is wrong is at most 5%. That is said of this" in told
    )


def test_what_is_open_names_what_it_is_of_and_what_is_possible() -> None:
    told = words(header(page(judged(("undecided", 0.99), ("undecided", 1.01)))))
    assert "Undecided: whether mthp-64k or thp is better than base cannot be told yet." in told
    assert "mthp-64k and base both ran once in each of 20 blocks" in told
    assert "leaves room for 3.0% lower to 1.0% higher; the best estimate is 1.0% lower." in told


def test_whom_a_setting_reaches_and_what_the_program_needs_for_it_is_said() -> None:
    """`Set thp` alone would give a heap in small pieces nothing."""
    results = judged(("worse", 1.5), ("better", 0.6))
    (cell,) = results.cells
    (arm,) = (one for one in cell.arms if one.arm == "thp")
    assert arm.deployment is not None
    (host,) = (file for file in arm.deployment.files if file.scope == "host-now")
    launcher = replace(host, kind="launcher", scope="process", content="export GLIBC_TUNABLES=a=1:b=2\n")
    for files, said in (
        ((host,), "It is set for every program of the host."),
        (
            (host, launcher),
            "It is set for every program of the host, and the program is started with GLIBC_TUNABLES",
        ),
        ((launcher,), "The program is started with GLIBC_TUNABLES=a=1:b=2."),
    ):
        deployed = replace(arm, deployment=replace(arm.deployment, files=files))
        one = replace(cell, arms=tuple(deployed if each.arm == "thp" else each for each in cell.arms))
        assert said in words(header(page(replace(results, cells=(one,)))))
        told = words(header(page(replace(results, cells=(one, replace(one, cell="again"))))))
        assert f"; {said[0].lower()}{said[1:].rstrip('.')}" in told


def test_what_is_judged_as_a_setting_says_what_pages_came_of_it() -> None:
    results = judged(("undecided", 0.9))
    (cell,) = results.cells
    arms = tuple(replace(arm, judged="setting", delivered_share=0.0) for arm in cell.arms)
    told = words(header(page(replace(results, cells=(replace(cell, arms=arms),)))))
    assert "mthp-64k is judged as a setting, whatever pages come of it: 0% of the memory that it is about was" in told
    assert "judged as a setting" not in words(header(page(results)))


def test_the_exact_words_are_one_click_below() -> None:
    shown = page(judged(("better", 0.6), ("better", 0.61)))
    (exact,) = re.findall(r"<details><summary>The same in exact terms</summary>(.*?)</details>", shown, re.S)
    told = words(exact)
    assert "Set mthp-64k: latency_ns −40.0% (−42.0% to −38.0%), 20 pairs at 95%." in told
    assert "2 comparisons share the error rate of 5%" in told
    short = " ".join(terminal(judged(("better", 0.6), ("better", 0.61))).split())
    assert "The chance that any of these verdicts is wrong is at most 5%." in short


def test_several_cells_have_a_line_each() -> None:
    first = judged(("better", 0.9), ("better", 0.6)).cells[0]
    results = replace(plain(), cells=(first, replace(first, cell="again"), judged(("equivalent", 1.0)).cells[0]))
    told = words(header(page(results)))
    line = (
        "latency_ns is 40.0% lower than with base (what was measured leaves room for 38.0% to 42.0% lower; 20 blocks)"
    )
    assert f"Set thp (2 cells) chase bytes=1g: {line}" in told
    assert f"again: {line}" in told
    assert "mthp-64k makes no difference above 0.5%" in told


def test_that_the_best_was_chosen_is_said_where_there_was_a_choice() -> None:
    several, alone = judged(("better", 0.6), ("better", 0.7)), judged(("better", 0.6))
    assert sum("expect a little less" in one for one in caveats(several)) == 1
    assert sum("expect a little less" in one for one in caveats(alone)) == 0
    assert list(caveats(judged(("none", 1.0)))) == []


def test_counts_that_do_not_vary_and_runs_that_failed_are_said_so() -> None:
    def of(**changed: object) -> str:
        results = judged(("better", 0.6))
        (cell,) = results.cells
        one = replace(cell.comparisons[0], **changed)
        return words(header(page(replace(results, cells=(replace(cell, comparisons=(one,)),)))))

    assert "in random order: each time with the same difference." in of(constant=True)
    assert "latency_ns is 40% lower than with base." in of(constant=True)
    assert "so many runs failed that latency_ns has no size to compare" in of(ratio=0.0, low=None, high=0.5)
    assert "too little to say how far off the estimate may be" in of(low=None, high=None)
    assert "leaves room for at least 30% lower." in of(low=None, high=0.7)
    assert "in each of 20 blocks so far, of 40 planned" in of(final=False, planned=40)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.58, 0.62), "38.0% to 42.0% lower"),
        ((1.02, 1.08), "2.0% to 8.0% higher"),
        ((0.97, 1.05), "3.0% lower to 5.0% higher"),
        ((0.9, 1.0), "10.0% lower to no change"),
        ((1.5, 500.0), "50% higher to 500 times as high"),
        ((None, 0.7), "at least 30% lower"),
        ((None, None), ""),
    ],
)
def test_an_interval_in_words(ends: tuple[float | None, float | None], told: str) -> None:
    assert room(1.0 if ends[0] is None else ends[0], *ends) == told


def test_records_that_are_whole_are_told_behind_a_line_and_others_at_once() -> None:
    def of(results: Results) -> str:
        return header(page(results))

    whole = replace(plain(), integrity=Integrity(state="consistent", hash="feed5eed"))
    assert "feed5eed" not in of(whole)
    assert "feed5eed" in page(whole)
    assert "feed5eed" in of(replace(whole, state="interrupted"))
    left = replace(plain(), integrity=Integrity(state="salvaged", hash=None, left_out=("block 3",)))
    assert "block 3" in of(left)


def test_hostile_names_stay_text_on_the_first_screen() -> None:
    assert HOSTILE not in header(page(example()))
    assert "<script" not in header(page(example()))
