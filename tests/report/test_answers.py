"""The answer of each cell."""

import html
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.analysis.earlier import together
from hugewise.model.cause import CellAnswer
from hugewise.model.metric import Metric
from hugewise.model.results import (
    EarlierComparison,
    Integrity,
    Results,
    Verdict,
)
from hugewise.report import document as doc
from hugewise.report.cell_answers import answers, joined, joint_confidence, not_compared, price, ranked, selection
from hugewise.report.data_files import report_json
from hugewise.report.numbers import room
from hugewise.report.remarks import earlier
from hugewise.report.sections.answer import answer as section
from hugewise.report.sections.answer import caveats, terms, top
from hugewise.report.write import report
from hugewise.stats.end_points import END_POINTS
from tests.build.results import comparison, plain
from tests.report.test_sentences import FAULTS_CAUSE
from tests.report.told import blocks, page, terminal, text
from tools.results.data import read

ARMS = ("mthp-64k", "thp", "hugetlb-2m")


def judged(*given: tuple[Verdict, float], low: float = 0.02, cell: int = 0, memory: int = 1 << 30) -> Results:
    """The plain results with one cell, whose arms have these verdicts and ratios, and as much memory each."""
    results = plain()
    was = results.cells[cell]
    known = {one.arm: one for one in was.comparisons}
    found = tuple(
        replace(
            known[name],
            verdict=verdict,
            ratio=ratio,
            low=ratio - low,
            high=ratio + low,
            method="sequential",
            reason="why",
        )
        for name, (verdict, ratio) in zip(ARMS, given, strict=False)
    )
    arms = tuple(
        replace(arm, pool_bytes=0, peak_bytes=memory if arm.arm == "thp" else 1 << 30)
        for arm in was.arms
        if arm.arm in ("base", *ARMS[: len(given)])
    )
    return replace(results, cells=(replace(was, comparisons=found, arms=arms),))


def only(results: Results) -> CellAnswer:
    (found,) = answers(results)
    return found


def test_the_best_is_chosen_by_its_effect_in_the_direction_of_the_metric() -> None:
    found = only(judged(("better", 0.9), ("better", 0.6), ("worse", 1.5)))
    assert (found.state, found.setting, found.ranked) == ("set", "thp", ("thp", "mthp-64k", "hugetlb-2m"))
    assert found.text == (
        "Set `thp`: latency_ns is 40.0% lower than with `base` (what was measured leaves room for 38.0% to 42.0% "
        "lower; 20 blocks)."
    )
    assert found.text == f"{found.what}: {found.found}."
    assert (found.ratio, found.n, found.beside) == (0.6, 20, ("mthp-64k",))


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (
            (("equivalent", 1.0), ("worse", 1.2)),
            "leave",
            "`mthp-64k` usually makes no difference above 0.5%, `thp` is worse",
        ),
        (
            (("equivalent", 1.0), ("undecided", 0.9)),
            "undecided",
            "whether `thp` is better than `base` cannot be told yet",
        ),
        ((("undecided", 1.0), ("undecided", 0.9)), "undecided", "whether `mthp-64k` or `thp` is better"),
        ((("undecided", 1.0), ("undecided", 0.9)), "undecided", "; `thp`: latency_ns is 10.0% lower"),
        ((("none", 0.5),), "none", "No answer: why."),
        ((), "none", "nothing was compared"),
        ((("better", 0.9), ("undecided", 0.5)), "set", "Set `mthp-64k`"),
    ],
)
def test_where_nothing_is_to_be_set_it_says_why(
    given: tuple[tuple[Verdict, float], ...], state: str, words: str
) -> None:
    found = only(judged(*given))
    assert found.state == state
    assert words in found.text
    assert found.setting == {"leave": "base", "set": "mthp-64k"}.get(state)


def test_more_memory_is_for_the_reader_to_weigh() -> None:
    cheap = only(judged(("better", 0.9), ("better", 0.6), memory=(1 << 30) + (100 << 20)))
    assert (cheap.state, price(cheap)) == ("set", "memory 1.10 GiB (+9.8%)")
    dear = only(judged(("better", 0.9), ("better", 0.6), memory=(1 << 30) + (110 << 20)))
    assert dear.state == "weigh"
    assert dear.text.startswith("Yours to weigh, as `thp` is better for 11% more memory: latency_ns is 40.0% lower")


def test_what_the_earlier_runs_do_not_bear_out_is_for_the_reader_to_weigh() -> None:
    alone = judged(("better", 0.6))
    (cell,) = alone.cells
    one = replace(cell.comparisons[0], evidence_larger=0.01, evidence_smaller=300.0)
    alone = replace(alone, cells=(replace(cell, comparisons=(one,)),), confidence=0.99)

    def after(*smaller: float | None, verdict: Verdict = "undecided") -> Results:
        shared = {
            f"demo/{n}": (EarlierComparison(cell.cell, one.arm, one.metric, 9, verdict, each and 1.0, each),)
            for n, each in enumerate(smaller)
        }
        return replace(alone, earlier=tuple(shared), earlier_shared=shared)

    assert only(alone).state == only(after(0.9)).state == "set"
    found = only(after(0.5, 0.5))
    assert (found.state, found.trade) == ("weigh", "earlier runs")
    assert found.text.startswith(
        "Yours to weigh, as `mthp-64k` is better but not together with the 2 earlier runs of the same question: "
    )
    assert earlier(after(0.5, 0.5)).endswith(
        f"mthp-64k on {cell.cell} by latency_ns, with 2 earlier runs of the same question (demo/0, demo/1): all"
        " together undecided (evidence 38 of 100), by this run alone better."
    )
    assert "all together" not in earlier(after(0.9))
    # one that claims nothing, such as a screening, has no part
    assert only(after(0.5, 0.5, verdict="none")).state == "set"
    # nor has one without e-values: a pilot, a run of a fixed number of pairs, the same coins again
    assert together(after(None, None)) == {}
    (with_pilot,) = together(after(0.9, None)).values()
    assert with_pilot.runs == ("demo/0",)
    fixed = replace(one, evidence_larger=None, evidence_smaller=None)
    assert together(replace(after(0.5, 0.5), cells=(replace(cell, comparisons=(fixed,)),))) == {}


def test_runs_that_failed_are_for_the_reader_to_weigh() -> None:
    results = judged(("better", 0.9), ("better", 0.6))
    (cell,) = results.cells

    def with_failures(**counts: int) -> CellAnswer:
        arms = tuple(replace(arm, failed=counts.get(arm.arm, 0)) for arm in cell.arms)
        return only(replace(results, cells=(replace(cell, arms=arms),)))

    dies = with_failures(thp=3, base=1)
    assert (dies.state, dies.failed) == ("weigh", 3)
    assert dies.text.startswith("Yours to weigh, as `thp` is better and 3 of its runs failed (`base`: 1): latency_ns")
    as_often = with_failures(thp=1, base=1)
    assert (as_often.state, as_often.failed) == ("set", 0)
    headings = [same.heading for same in joined([dies, as_often])]
    assert headings == ["Set `thp`", "Yours to weigh: `thp` is better, and runs of it failed"]


def test_arms_that_were_not_compared_with_one_another_are_said_so() -> None:
    near = only(judged(("better", 0.61), ("better", 0.6)))
    assert near.overlapping == ("mthp-64k",)
    assert "`thp` and `mthp-64k` were each compared with `base`, not with one another" in not_compared(near)
    assert "which of them is the better is open" in not_compared(near)
    results = judged(("better", 0.9), ("better", 0.6))
    assert only(results).overlapping == ()
    assert "overlaps with none of the others" in not_compared(only(results))
    assert not_compared(only(judged(("equivalent", 1.0), ("better", 0.6)))) == ""
    (cell,) = results.cells
    open_end = tuple(replace(one, high=None) if one.arm == "thp" else one for one in cell.comparisons)
    assert only(replace(results, cells=(replace(cell, comparisons=open_end),))).overlapping == ("mthp-64k",)


def test_how_sure_all_answers_are_together_is_said() -> None:
    sequential = judged(("better", 0.9), ("better", 0.6))
    (cell,) = sequential.cells
    said = "1 answer rests on 2 comparisons: the chance that any of their verdicts is wrong is at most 5%."
    assert joint_confidence(sequential) == said
    several = replace(sequential, confidence=0.99, cells=(cell, cell, cell))
    assert joint_confidence(several).startswith(
        "3 answers rest on 6 comparisons: the chance that any of their verdicts is wrong is"
    )
    assert joint_confidence(several).endswith(" at most 1%.")
    assert joint_confidence(judged(("better", 0.9))) == (
        "1 answer rests on 1 comparison: the chance that its verdict is wrong is at most 5%."
    )
    silent = replace(cell, comparisons=tuple(replace(one, verdict="none") for one in cell.comparisons))
    assert joint_confidence(replace(several, cells=(cell, silent))).startswith("1 answer rests on 4 comparisons: ")
    assert joint_confidence(replace(several, cells=(silent,))) == ""
    beside = tuple(replace(one, method="unjudged") for one in cell.comparisons)
    assert joint_confidence(replace(several, cells=(replace(cell, comparisons=beside), cell))).startswith(
        "1 answer rests on 2"
    )


def test_what_choosing_among_arms_does_is_said_by_the_method_that_corrects_for_it() -> None:
    sequential = judged(("better", 0.9), ("better", 0.6))
    assert "2 comparisons share the error rate of 5%, so that all their verdicts and intervals hold" in selection(
        sequential
    )
    assert "Holm" in selection(plain())
    assert "Each interval holds by itself" in selection(plain())
    assert selection(judged(("better", 0.9))) == "", "there was no choice"
    (cell,) = sequential.cells
    beside = tuple(replace(one, method="unjudged") if one.arm == "thp" else one for one in cell.comparisons)
    assert selection(replace(sequential, cells=(replace(cell, comparisons=beside),))) == "", "nothing is claimed of it"


def test_equal_answers_are_said_once_for_all_cells_that_they_hold_for() -> None:
    first = judged(("better", 0.9), ("better", 0.6)).cells[0]
    other = judged(("equivalent", 1.0)).cells[0]
    results = replace(plain(), cells=(replace(other, cell="b"), first, replace(first, cell="again")))
    found = answers(results)
    assert [(one.heading, [of.cell for of in one.answers]) for one in joined(found)] == [
        ("Set `thp`", ["chase bytes=1g", "again"]),
        ("Leave it at `base`", ["b"]),
    ]
    shown = [one for one in top(results) if isinstance(one, doc.Headline)]
    assert [one.text for one in shown] == ["Set `thp` (2 cells)", "Leave it at `base` (1 cell)"]
    assert shown[0].lines[1].startswith("again: ")
    assert "▲ Set `thp`, for chase bytes=1g, again\n" in terminal(results)
    assert "= Leave it at `base`, for b\n" in terminal(results)


def test_each_cell_has_a_panel_with_its_best_setting_first() -> None:
    results = judged(("worse", 1.1), ("better", 0.6), ("better", 0.5))
    cards = [one for one in section(results).blocks if isinstance(one, doc.Bundle) and one.kind == "card"]
    assert len(cards) == 1
    (verdicts,) = blocks(doc.Document("", tuple(cards), ()), doc.Verdicts)
    assert [one.arm for one in verdicts.verdicts] == ["hugetlb-2m", "thp", "mthp-64k"]
    assert [one.arm for one in ranked(results.cells[0])] == ["hugetlb-2m", "thp", "mthp-64k"]


def test_a_run_of_one_cell_is_told_without_its_name() -> None:
    results = judged(("better", 0.6))
    (headline,) = (one for one in top(results) if isinstance(one, doc.Headline))
    assert headline.text.startswith("Set `mthp-64k`")
    assert "chase" not in headline.text
    assert headline.lines[-1] == "Memory 1.00 GiB (0.0%)."
    assert "▲ Set `mthp-64k`\n" in terminal(results)


def test_the_json_has_the_answers_beside_the_results() -> None:
    results = judged(("better", 0.9), ("better", 0.6))
    (told,) = json.loads(report_json(results))["answers"]
    assert (told["cell"], told["state"], told["setting"]) == ("chase bytes=1g", "set", "thp")
    assert told["ranked"] == ["thp", "mthp-64k"]


def test_an_arm_that_is_not_judged_is_no_choice_and_has_no_answer() -> None:
    results = judged(("equivalent", 1.0), ("none", 0.6))
    (cell,) = results.cells
    first, beside = cell.comparisons
    beside = replace(beside, method="unjudged", verdict="none")
    whole = replace(results, cells=(replace(cell, comparisons=(first, beside)),))
    assert only(whole).text == only(judged(("equivalent", 1.0))).text
    assert selection(whole) == ""
    better = replace(first, verdict="better", ratio=0.9)
    assert selection(replace(results, cells=(replace(cell, comparisons=(better, beside)),))) == ""


COST, FORK = Metric("server_cpu_us", "us", "lower", "CPU time"), Metric("fork_us", "us", "lower", "the fork")


def beside(results: Results, *given: tuple[Metric, str, Verdict, float]) -> Results:
    """The same, with these verdicts on metrics that were declared beside the cell's own."""
    (cell,) = results.cells
    declared = tuple(
        comparison(arm, metric.name, verdict, ratio=ratio, low=ratio - 0.02, high=ratio + 0.02, n=20)
        for metric, arm, verdict, ratio in given
    )
    also = tuple(dict.fromkeys(metric for metric, *_ in given))
    return replace(results, cells=(replace(cell, also=also, declared=declared),))


def test_what_was_declared_beside_the_metric_is_part_of_the_answer() -> None:
    """A p99 that is decided does not hide behind a p99.9 that is open."""
    results = beside(judged(("undecided", 0.9)), (COST, "mthp-64k", "worse", 1.6), (FORK, "mthp-64k", "better", 0.1))
    found = only(results)
    assert (found.state, found.setting) == ("undecided", None)
    assert found.text.endswith("; `mthp-64k` is worse in server_cpu_us, and better in fork_us.")
    shown = page(results)
    header = shown[: shown.index("<nav")]
    assert "better than <code>base</code> cannot be told yet.</strong>" in header
    assert "<code>mthp-64k</code> is worse in server_cpu_us, and better in fork_us." in header
    for verdict in ("worse", "better", "undecided"):
        assert re.search(rf'<li class="{verdict}"><span class="badge">. {verdict}</span> 1</li>', header)
    assert "No policy was better than its baseline, so there is nothing to set." in shown


def test_a_price_in_another_metric_is_for_the_reader_to_weigh() -> None:
    worse = only(beside(judged(("better", 0.6)), (COST, "mthp-64k", "worse", 1.6)))
    assert (worse.state, worse.setting, worse.trade) == ("weigh", "mthp-64k", "worse beside")
    assert worse.text.startswith(
        "Yours to weigh, as `mthp-64k` is better, but worse in server_cpu_us: latency_ns is 40.0% lower"
    )
    (same,) = joined([worse])
    assert same.heading == "Yours to weigh: `mthp-64k` is better, but worse in what was declared beside it"
    both = only(beside(judged(("better", 0.6), ("better", 0.7)), (COST, "thp", "worse", 1.6)))
    assert (both.state, both.setting) == ("set", "mthp-64k"), "of the arm that is set, not of any"


def test_what_makes_no_difference_may_be_better_in_another_metric() -> None:
    """Operations a second are the same, and the server needs less CPU time for them."""
    results = beside(judged(("equivalent", 1.0), ("equivalent", 1.01)), (COST, "thp", "better", 0.8))
    found = only(results)
    assert (found.state, found.setting, found.trade) == ("weigh", "thp", "better beside")
    said = (
        "Yours to weigh, as `thp` usually makes no difference above 0.5% in latency_ns and is better in server_cpu_us:"
        " server_"
    )
    assert found.text.startswith(said)
    assert "Better in what was declared beside the metric alone" in text(results)
    dear = beside(results, (COST, "thp", "better", 0.8), (FORK, "thp", "worse", 2.0))
    assert only(dear).state == "leave", "better in one and worse in another is no gain"
    assert "Better in what was declared" not in text(dear)


def several(*results: Results) -> Results:
    """One run with the cells of these."""
    cells = tuple(replace(one.cells[0], cell=f"cell-{number}") for number, one in enumerate(results))
    return replace(results[0], cells=cells)


def test_prices_are_all_named_and_the_gravest_is_told_apart() -> None:
    worse = beside(judged(("better", 0.9), ("better", 0.6), memory=3 << 30), (COST, "thp", "worse", 1.6))
    (cell,) = worse.cells
    arms = tuple(replace(arm, failed=4 if arm.arm == "thp" else 0) for arm in cell.arms)
    found = only(replace(worse, cells=(replace(cell, arms=arms),)))
    assert found.text.startswith(
        "Yours to weigh, as `thp` is better for 200% more memory, but worse in server_cpu_us and 4 of its runs failed "
        "(`base`: 0): latency_ns is 40.0% lower"
    )
    assert (found.trade, found.failed) == ("failures", 4)
    without = only(worse)
    assert (without.trade, without.failed) == ("worse beside", 0)


PEAK = Metric("charged_peak_bytes", "B", "lower", "charged_peak_bytes")


@pytest.mark.parametrize(
    ("verdict", "ratio", "price"),
    [
        ("worse", 1.4, "40% more memory"),
        ("equivalent", 1.01, None),  # one run alone had a high peak
        ("undecided", 1.01, "200% more memory"),
    ],
)
def test_memory_that_was_judged_pair_by_pair_is_the_price_and_not_the_highest_peak(
    verdict: Verdict, ratio: float, price: str | None
) -> None:
    found = only(beside(judged(("better", 0.9), ("better", 0.6), memory=3 << 30), (PEAK, "thp", verdict, ratio)))
    assert (found.state, found.setting) == ("set" if price is None else "weigh", "thp")
    assert (f"`thp` is better for {price}" in found.text) == (price is not None)
    assert ("more memory" in found.text) == (price is not None)


def test_who_weighs_a_price_is_told_what_has_none() -> None:
    results = beside(judged(("better", 0.6), ("better", 0.61)), (COST, "mthp-64k", "worse", 9.0))
    found = only(results)
    assert (found.state, found.setting) == ("weigh", "mthp-64k")
    assert "; without that price, `thp` is better too: latency_ns is 39.0% lower than with `base` (" in found.text
    both = beside(
        judged(("better", 0.6), ("better", 0.61)), (COST, "mthp-64k", "worse", 9.0), (COST, "thp", "worse", 8.0)
    )
    assert "without that price" not in only(both).text


def test_what_is_better_beside_has_its_price_and_its_gain() -> None:
    results = beside(judged(("equivalent", 1.0), ("equivalent", 1.0), memory=4 << 30), (COST, "thp", "better", 0.3))
    found = only(results)
    assert found.trade == "better beside"
    assert "is better in server_cpu_us for 300% more memory: server_cpu_us is 70.0% lower" in found.text
    (cell,) = results.cells
    arms = tuple(replace(arm, failed=5 if arm.arm == "thp" else 0) for arm in cell.arms)
    failing = replace(results, cells=(replace(cell, arms=arms),))
    assert only(failing).state == "leave", "its runs fail, and it makes no difference"
    assert "Better in what was declared" not in text(failing)


def test_what_is_open_in_the_metric_is_not_decided_by_another() -> None:
    results = beside(judged(("undecided", 0.9), ("equivalent", 1.0)), (COST, "thp", "better", 0.3))
    assert only(results).state == "undecided"
    assert "; `thp` is better in server_cpu_us" in only(results).text


def test_what_is_open_beside_is_told_where_nothing_else_is() -> None:
    results = beside(judged(("equivalent", 1.0)), (COST, "mthp-64k", "undecided", 0.5))
    found = only(results)
    assert found.state == "leave"
    assert found.text.endswith("; `mthp-64k` is open in server_cpu_us.")
    shown = page(several(results, judged(("better", 0.6))))
    assert "; <code>mthp-64k</code> is open in server_cpu_us." in shown[: shown.index("<nav")]


def test_an_end_point_is_part_of_the_answer() -> None:
    results = judged(("better", 0.6))
    (cell,) = results.cells
    slow = comparison("mthp-64k", "latency_ns", "worse", n=20, estimand=END_POINTS["slow"].estimand, end_point="slow")
    results = replace(results, cells=(replace(cell, end_points=(slow,)),))
    found = only(results)
    assert found.trade == "worse beside"
    assert "but worse in rate of slow runs by latency_ns: " in found.text


def test_the_verdicts_beside_stand_in_every_format_and_a_metric_is_explained_where_it_is_judged() -> None:
    results = beside(judged(("undecided", 0.9)), (COST, "mthp-64k", "worse", 1.6))
    sentence_ = "server_cpu_us: mthp-64k is worse than base"
    shown = page(results)
    assert sentence_ in re.sub(r"<[^>]*>", "", shown[shown.index("<main") :])
    assert sentence_ in text(results).replace("\\", "").replace("`", "")
    (figure,) = (one for one in blocks(report(results), doc.Figure) if one.key == "overview")
    assert "server_cpu_us" in json.dumps(figure.spec)
    explained = list(terms(several(results, judged(("better", 0.6)))))
    assert "server_cpu_us is in us, lower is better: CPU time." in explained[1]
    (cell,) = results.cells
    unjudged = replace(results, cells=(replace(cell, also=(*cell.also, FORK)),))
    assert "fork_us" not in " ".join(terms(unjudged))


def test_settings_that_have_a_price_say_so() -> None:
    """A worse one that is better in something else is none; what is to be weighed is not told as what to set."""
    worse = beside(judged(("worse", 1.5)), (COST, "mthp-64k", "better", 0.5))
    assert "Better in what was declared" not in text(worse)
    assert "To set it: " not in terminal(replace(worse, study="mine"))
    priced = beside(judged(("worse", 1.5), ("better", 0.6)), (COST, "thp", "worse", 1.6))
    assert "▲ Yours to weigh" in terminal(priced)
    assert "To set it: " in terminal(replace(priced, study="mine"))
    assert "(yours to weigh)" in text(priced)
    same = beside(judged(("worse", 1.5), ("equivalent", 1.0)), (COST, "thp", "better", 0.5))
    assert "▲ Yours to weigh" in terminal(same)
    assert "Yours to weigh" not in terminal(judged(("worse", 1.5), ("better", 0.6)))


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


@pytest.mark.parametrize("verdict", ["better", "equivalent", "worse", "undecided", "none"])
@pytest.mark.parametrize("of", ["better", "worse", "undecided", "equivalent"])
def test_the_first_screen_has_no_word_of_statistics(verdict: Verdict, of: Verdict) -> None:
    """Also where there is no interval of it, or no ratio."""
    results = beside(judged((verdict, 0.9)), (COST, "mthp-64k", of, 1.5))
    (cell,) = results.cells
    for changed in ({}, {"low": None, "high": None}, {"ratio": None, "low": None, "high": None}):
        without = replace(cell, declared=(replace(cell.declared[0], **changed),))
        for cells in ((without,), (without, replace(without, cell="again"))):
            told = words(header(page(replace(results, cells=cells))))
            assert JARGON.findall(told) == [], told
            assert "server_cpu_us" in told


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
            assert "A cell is a workload with its parameters. In each of its blocks " in told


def test_the_answer_stands_above_the_run_and_the_list_of_sections() -> None:
    results = judged(("better", 0.6))
    shown = page(results)
    places = [shown.index(word) for word in ("Set <code>mthp-64k</code>", '<p class="lead">Run', "<nav", "<main")]
    assert places == sorted(places)
    in_text = text(results)
    assert in_text.index("Set `mthp-64k`") < in_text.index("Run `")


def test_it_has_the_size_the_room_the_blocks_and_the_unit() -> None:
    told = words(header(page(judged(("better", 0.6)))))
    assert "Set mthp-64k Latency_ns is 40.0% lower than with base (what was measured leaves room for 38.0% to" in told
    assert "42.0% lower; 20 blocks)." in told
    assert "In each block every policy ran once, in random order." in told
    assert "latency_ns is in ns, lower is better: " in told
    assert (
        "The chance that any verdict of this run on its policies is wrong is at most 5%. The chance is that of" in told
    )


def test_blocks_that_have_no_room_for_every_policy_are_said_to() -> None:
    results = judged(("better", 0.6), ("worse", 1.5))
    one = results.attempts[0]
    turns = (("base", 0), ("mthp-64k", 0), ("base", 1), ("thp", 1))
    cell = results.cells[0].cell
    ran = tuple(replace(one, cell=cell, block=block, arm=arm) for arm, block in turns)
    told = words(header(page(replace(results, attempts=ran))))
    assert "In each block each policy ran at most once, in random order." in told


def test_whom_a_setting_reaches_and_what_the_program_needs_for_it_is_said() -> None:
    """`Set thp` alone would give a heap in small pieces nothing."""
    results = judged(("worse", 1.5), ("better", 0.6))
    (cell,) = results.cells
    (arm,) = (one for one in cell.arms if one.arm == "thp")
    assert arm.deployment is not None
    (host,) = (file for file in arm.deployment.files if file.scope == "host-now")
    launcher = replace(host, kind="launcher", scope="process", content="export GLIBC_TUNABLES=a=1:b=2\n")
    for files, said in (
        ((host,), "The setting reaches every program of the host."),
        (
            (host, launcher),
            "The setting reaches every program of the host, and the program is started with GLIBC_TUNABLES",
        ),
        ((launcher,), "The program is started with GLIBC_TUNABLES=a=1:b=2."),
    ):
        deployed = replace(arm, deployment=replace(arm.deployment, files=files))
        one = replace(cell, arms=tuple(deployed if each.arm == "thp" else each for each in cell.arms))
        assert said in words(header(page(replace(results, cells=(one,)))))
        told = words(header(page(replace(results, cells=(one, replace(one, cell="again"))))))
        assert f"; {said[0].lower()}{said[1:].rstrip('.')}" in told


def test_what_stands_behind_a_verdict_and_in_for_a_program_is_told_and_what_was_not_compared() -> None:
    results = judged(("better", 0.6), ("better", 0.61))
    cell = replace(results.cells[0], causes=(FAULTS_CAUSE,), stand_ins=("a client of ours",))
    told = words(page(replace(results, cells=(cell,))))
    assert "1 answer rests on 2 comparisons: the chance that any of their verdicts is wrong is at most 5%." in told
    assert "2 comparisons share the error rate of 5%" in told
    assert "The gain is mostly page faults" in told
    assert "Stand-in: a client of ours." in told
    assert " were each compared with base, not with one another" in told


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

    assert "(each time with the same difference; 20 blocks)" in of(constant=True)
    assert "Latency_ns is 40% lower than with base (" in of(constant=True)
    assert "o many runs failed that latency_ns has no size to compare" in of(ratio=0.0, low=None, high=0.5)
    assert "too little to say how far off the estimate may be" in of(low=None, high=None)
    assert "leaves room for at least 30% lower; 20 blocks)" in of(low=None, high=0.7)
    assert "; 20 blocks so far, of 40 planned)" in of(final=False, planned=40)


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


def test_cells_of_servers_tell_tails_stalls_pages_the_memory_s_age_and_what_reading_counters_cost() -> None:
    servers = read(RESULTS / "mthp-pressure.parquet").runs[0].results
    captions = {one.caption.partition(":")[0] for one in blocks(report(servers), doc.Table)}
    assert {"the tail", "the worst stalls, of different attempts", "share of the named memory by page size"} <= captions
    assert {"memory that has aged", "ledger of alpha"} <= captions
    assert "| p99.9 |" in text(servers)
    assert "Reading the machine's counters over time took " in text(servers)
