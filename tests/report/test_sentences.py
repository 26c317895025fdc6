from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hugewise.model.results import Comparison
from hugewise.report.cell_answers import answers
from hugewise.report.document import Table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import change_of, effect_of, sentence, winners
from hugewise.report.summary import summary
from hugewise.visible import printable
from tests.build.results import FAULTS, HOSTILE, LATENCY, example, plain
from tests.report.told import blocks

RESULTS = plain()
FOUND = {(cell.workload, one.arm): one for cell in RESULTS.cells for one in cell.comparisons}


def said(workload: str, arm: str, **changes: object) -> str:
    comparison: Comparison = replace(FOUND[workload, arm], **changes)
    metric = LATENCY if workload == "chase" else FAULTS
    return sentence(comparison, metric, 0.005).replace("−", "-")


def test_better_and_worse_follow_the_direction_of_the_metric() -> None:
    assert said("chase", "thp") == (
        "thp is better than base: latency_ns 25.19% lower (95% interval -25.51% to -24.87%), from 20 blocks."
    )
    assert said("fault", "thp").startswith("thp is worse than base: faults_per_s 19.72% lower (95% interval ")


OPEN = {"verdict": "undecided", "reason": "", "low": None, "high": None, "change": None, "ratio": 0.6}


def test_a_provisional_interval_is_called_so_in_a_table_and_in_a_sentence() -> None:
    one: Comparison = replace(FOUND["chase", "thp"], **OPEN, provisional=(0.49, 0.79))
    assert effect_of(one) == "−40% (provisional: −51% to −21%)"
    assert said("chase", "thp", **OPEN, provisional=(0.49, 0.79)) == (
        "thp against base is undecided: latency_ns -40% (provisional 95% interval -51% to -21%), from 20 blocks."
    )
    assert effect_of(replace(one, provisional=None)) == "−40.0% (no interval yet)"
    assert "(no 95% interval yet)" in said("chase", "thp", **OPEN, provisional=None)


def test_a_provisional_interval_changes_no_verdict_and_no_answer() -> None:
    """It lies below 1 as a whole, and the comparison stays open."""
    (cell, _) = RESULTS.cells
    told = []
    for provisional in (None, (0.49, 0.79)):
        one = replace(FOUND["chase", "thp"], **OPEN, provisional=provisional)
        results = replace(RESULTS, cells=(replace(cell, comparisons=(one,)),))
        (found,) = answers(results)
        (table,) = blocks(summary(results), Table)
        told.append((found.state, found.setting, found.ratio, found.low, found.high, found.open, table.rows[0][3:]))
        assert summary(results).title.startswith("demo: 0 of 1 comparison decided")
    assert told[0] == told[1] == ("undecided", None, 0.6, None, None, ("thp",), ("20", "? undecided"))
    assert table.rows[0][2] == "−40% (provisional: −51% to −21%)"


def test_a_large_effect_is_also_given_as_a_factor() -> None:
    assert "89.0% lower (a factor of 9.09) (95% interval" in said("chase", "thp", ratio=0.11, low=0.1, high=0.12)


def test_equivalent_names_the_margin() -> None:
    assert said("fault", "mthp-64k") == (
        "mthp-64k is equivalent to base within ±0.5%: faults_per_s +0.08% "
        "(95% interval -0.08% to +0.24%), from 20 blocks."
    )


def test_undecided_says_why_and_what_is_still_possible() -> None:
    assert said("fault", "hugetlb-2m") == (
        "hugetlb-2m against base is undecided: faults_per_s -2.3% (95% interval -5.4% to +0.9%), "
        "from 18 blocks of 20 planned. The time budget was spent after 18 of 20 blocks. "
        "The largest effect still possible is 5.39%. Failures: 2 of hugetlb-2m, 0 of base."
    )


def test_an_interval_that_is_all_that_there_could_be_is_none_yet() -> None:
    wide = {"ratio": 0.67, "low": 1e-18, "high": 1e36, "n": 2, "n_all": 2, "change": 1e36, "reason": ""}
    assert said("fault", "hugetlb-2m", **wide, failures_arm=0) == (
        "hugetlb-2m against base is undecided: faults_per_s -33.0% (no 95% interval yet), from 2 blocks of 20 planned."
    )


def test_a_change_without_a_verdict_has_an_interval_or_says_that_it_has_none() -> None:
    assert change_of(0.67, 1e-18, 1e36) == "−33.0% (no interval)"
    assert change_of(0.9, 0.8, 1.1) == "−10% (−20% to +10%)"
    assert change_of(None, None, None) == NOTHING


def test_none_gives_the_reason() -> None:
    assert said("chase", "hugetlb-1g") == (
        "No verdict on hugetlb-1g against base. 15.0% of the attempts were not delivered (limit 1%): "
        "the pool was short by 12 pages. The largest effect still possible is 31.88%."
    )


def test_an_early_verdict_is_called_provisional() -> None:
    text = said("chase", "thp", final=False, n=7)
    assert "from 7 blocks of 20 planned. Provisional until" in text


def test_no_estimate_is_said_so() -> None:
    assert "has no estimate" in said("fault", "hugetlb-2m", ratio=None, low=None, high=None, change=None)


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()


def test_hostile_names_lose_their_escapes() -> None:
    cell = example().cells[2]
    assert "\x1b" in HOSTILE
    assert sentence(cell.comparisons[0], cell.metric, 0.005).isprintable()


def test_winners() -> None:
    assert [(cell.workload, one.arm) for cell, one, _ in winners(RESULTS)] == [
        ("chase", "mthp-64k"),
        ("chase", "thp"),
        ("chase", "hugetlb-2m"),
    ]


def test_a_setting_is_judged_as_such_with_what_was_delivered() -> None:
    told = said("chase", "thp", judged="setting", delivered_share=0.031)
    assert told.endswith("Judges the setting of thp: 3.1% of the named memory was backed as promised.")
    assert "the setting of thp: no share at a promised page size is known." in said("chase", "thp", judged="setting")
    told = said("chase", "thp", baseline_judged="setting", baseline_share=0.5)
    assert told.endswith("Held against the setting of base: 50.0% of the named memory was backed as promised.")
    assert "setting" not in said("chase", "thp")
