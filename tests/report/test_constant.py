"""Counts that do not vary: the words are exact, no interval of no width is shown, and the verdict is the method's."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from hugewise.model.results import Comparison
from hugewise.report import numbers
from hugewise.report.figures.effects import effects
from hugewise.report.figures.theme import colours
from hugewise.report.sections.effects import effects_table
from hugewise.report.sentences import effect_of, sentence
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import Sequential
from tests.build import known
from tests.build.booted import recorded
from tests.build.pages import scriptless
from tests.build.trials import LOWER, block, fed, pair
from tests.build.trials import attempt as one_attempt
from tests.report.told import page, terminal


def fixed(n: int, ratio: float = 1 / 16, planned: int = 12) -> Comparison:
    return fed([pair(k, ratio, baseline=65_536.0) for k in range(n)], planned=planned).comparison(0.01, 0.05)


def sequential(n: int, ratio: float = 1 / 16) -> Comparison:
    method = Sequential(Contrast("chase", "thp", "base", LOWER), planned=60, alpha=0.01, margin=0.005)
    for k in range(n):
        method.observe(pair(k, ratio, baseline=65_536.0))
    return method.comparison()


def finite(one: Comparison) -> bool:
    known = (one.ratio, one.low, one.high, one.p, one.change, one.ratio_all, one.evidence)
    return all(math.isfinite(value) for value in known if value is not None)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (
            fixed(3),
            "undecided",
            "thp against base is undecided: ns_per_load −93.75%, the same in all 3 blocks of 12 planned.",
        ),
        (
            fixed(3, planned=3),
            "undecided",
            "thp against base is undecided: ns_per_load −93.75%, the same in all 3 blocks.",
        ),
        (
            fixed(12),
            "better",
            "thp is better than base: ns_per_load 93.75% lower (a factor of 16), the same in all 12 blocks.",
        ),
        (
            fixed(12, 16.0),
            "worse",
            "thp is worse than base: ns_per_load 1,500% higher (a factor of 16), the same in all 12 ",
        ),
        (
            fixed(12, 1.0),
            "equivalent",
            "thp is equivalent to base within ±5%: ns_per_load 0%, the same in all 12 blocks.",
        ),
    ],
)
def test_fixed_n(found: Comparison, verdict: str, words: str) -> None:
    assert found.constant
    assert finite(found)
    assert found.verdict == verdict
    assert sentence(found, LOWER, 0.05).startswith(words)
    assert "interval −" not in sentence(found, LOWER, 0.05)


def test_three_blocks_do_not_decide_under_fixed_n() -> None:
    """All three on one side happen by the coins alone in one of four tosses."""
    found = fixed(3, planned=3)
    assert (found.p, found.low, found.high) == (0.25, None, None)
    assert "3 pairs are too few for an interval at this confidence" in found.reason


def test_sequential_decides_by_its_own_test_only() -> None:
    early, late = sequential(3), sequential(20)
    assert early.constant
    assert finite(early)
    assert (early.verdict, early.low, early.high) == ("undecided", None, None)
    assert late.constant
    assert finite(late)
    assert late.verdict == "better"
    assert 3 < late.n <= 20  # it stopped at its crossing
    assert effect_of(late) == f"−93.75%, the same in all {late.n} blocks"
    assert known(late.low) <= 1 / 16
    assert late.reason == f"the exact test crossed at pair {late.n}: in this campaign"
    assert f"From pair {late.n} on the difference is too consistent for chance." in sentence(late, LOWER, 0.005)


def test_sequential_on_no_difference_at_all() -> None:
    found = sequential(60, 1.0)
    assert found.constant
    assert finite(found)
    assert found.verdict == "equivalent"
    assert sentence(found, LOWER, 0.005).startswith(
        f"thp is equivalent to base within ±0.5%: ns_per_load 0%, the same in all {found.n} blocks"
    )


def test_one_block_or_a_failure_or_another_ratio_is_not_the_same_in_all() -> None:
    assert not fixed(1).constant
    assert not fed([pair(0, 0.5), pair(1, 0.5001)]).comparison(0.01, 0.05).constant
    failed = block(1, one_attempt("thp", None, block=1, state="failed"), one_attempt("base", 100.0, block=1))
    assert not fed([pair(0, 0.5), failed]).comparison(0.01, 0.05).constant


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1 / 16, "−93.75%"),
        (1.0, "0%"),
        (1 + 1e-9, "0%"),  # the rounding of a logarithm
        (1.5, "+50%"),
        (16.0, "+1,500%"),
        (0.001953125, "−99.8%"),
        (1.1043, "+10.43%"),
        (1.00000123, "+0.00012%"),
        (math.nan, "–"),
        (None, "–"),
    ],
)
def test_exact_changes(ratio: float | None, text: str) -> None:
    assert numbers.exact(ratio) == text


def test_an_interval_without_a_width_has_digits() -> None:
    assert numbers.effect(1 / 16, 1 / 16, 1 / 16) == "−93.75% (−93.75% to −93.75%)"
    assert numbers.ratio(1 / 16, 1 / 16, 1 / 16) == "0.0625"
    assert numbers.Scale(1.0, "faults").text(256.0, 0.0) == "256 faults"
    assert numbers.Scale(1.0, "ns").text(256.0) == "256.0 ns"


def test_the_recorded_run_reads_well_everywhere() -> None:
    results = recorded()
    (cell,) = results.cells
    assert [one.verdict for one in cell.comparisons] == ["undecided", "undecided"]
    assert all(one.constant for one in cell.comparisons)
    shown = {row[0]: row[2:4] for row in effects_table(cell).rows}
    assert shown == {
        "64k": ("−93.75%, the same in all 3 blocks", "0.0625"),
        "small-pages": ("0%, the same in all 3 blocks", "1.000"),
    }
    spec = known(effects(cell, colours(results), results.margin))
    assert "−93.75%, the same in all 3 blocks  ? undecided" in str(spec)
    assert "-93.75%" in terminal(results)
    for text in (terminal(results), scriptless(page(replace(results, disturbances=())))):
        assert "nan" not in text.lower().replace("nanosecond", "")
        assert "inf%" not in text
