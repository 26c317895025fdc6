from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hugewise.report import numbers, terminal
from hugewise.report.document import table

MINUS = numbers.MINUS


@pytest.mark.parametrize(
    ("half_width", "expected"),
    [(1.3, 1), (13.0, 0), (0.013, 3), (0.0996, 2), (0.94, 2), (0.0, 0), (math.inf, 0), (1e-12, 6)],
)
def test_decimals_show_two_digits_of_the_half_width(half_width: float, expected: int) -> None:
    assert numbers.decimals(half_width) == expected


@given(st.floats(1e-4, 1e6))
def test_decimals_never_show_less_than_two_digits_of_a_small_width(half_width: float) -> None:
    shown = f"{half_width:.{numbers.decimals(half_width)}f}".replace(".", "").lstrip("0")
    assert len(shown) >= 2 or half_width >= 1


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        ("ns", [128.4, 96.1, None], "128.4 ns"),
        ("s", [0.0123], "12.30 ms"),
        ("faults/s", [1.31e6], "1.310 M faults/s"),
        ("bytes/s", [3.5 * 2**30], "3.500 GiB/s"),
        ("calls", [17.0], "17.00 calls"),
        ("", [2.0], "2.000"),
        ("s", [], numbers.NOTHING),
    ],
)
def test_scale(unit: str, values: list[float | None], expected: str) -> None:
    scale = numbers.scale(unit, values)
    assert scale.text(values[0] if values else None) == expected


def test_a_value_has_the_digits_of_its_interval() -> None:
    scale = numbers.scale("ns", [1234.5678])
    assert scale.text(1234.5678, 21.0) == "1.235 µs"
    assert numbers.Scale(1.0, "ns").text(129.0456, 0.64) == "129.05 ns"
    assert numbers.Scale(1.0, "ns").text(129.0456, 64.0) == "129 ns"


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.123, "+12.3%"), (0.7481, f"{MINUS}25.2%"), (0.99999, "0.0%"), (1.00001, "0.0%"), (13.0, "+1,200.0%")],
)
def test_change(ratio: float, expected: str) -> None:
    assert numbers.change(ratio) == expected


def test_effect() -> None:
    assert numbers.effect(0.7481, 0.7449, 0.7513) == f"{MINUS}25.19% ({MINUS}25.51% to {MINUS}24.87%)"
    assert numbers.effect(0.977, 0.946, 1.009) == f"{MINUS}2.3% ({MINUS}5.4% to +0.9%)"
    assert numbers.effect(1.5, None, None) == "+50.0%"
    assert numbers.effect(None, None, None) == numbers.NOTHING


def test_ratio() -> None:
    assert numbers.ratio(0.7481, 0.7449, 0.7513) == "0.7481 (0.7449 to 0.7513)"
    assert numbers.ratio(0.7481) == "0.748"
    assert numbers.ratio(math.nan) == numbers.NOTHING


@pytest.mark.parametrize(
    ("part", "expected"),
    [(1.0, "100%"), (1.0000000000002, "100%"), (0.99999, "99.9%"), (0.97, "97.0%"), (0.0, "0%"), (1e-6, "<0.1%")],
)
def test_a_share_is_whole_only_when_it_is(part: float, expected: str) -> None:
    assert numbers.share(part) == expected
    assert numbers.share(None) == numbers.NOTHING


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2**30, "1.00 GiB"), (258 * 2**20, "258 MiB"), (0, "none"), (100, "100 bytes"), (None, numbers.NOTHING)],
)
def test_size(count: int | None, expected: str) -> None:
    assert numbers.size(count) == expected


def test_percent_and_time() -> None:
    assert [numbers.percent(part) for part in (0.95, 0.005, 0.9875, None)] == ["95%", "0.5%", "98.75%", "–"]
    assert numbers.when(1_795_000_000.0) == "2026-11-18 11:06:40 UTC"


def test_an_interval_that_says_nothing_is_cut_off() -> None:
    for high in (1e36, math.inf):
        assert numbers.effect(0.67, 0.0, high) == "−33.0%"
        assert numbers.ratio(0.67, 0.0, high) == "0.670"
        assert numbers.effect(0.67, 1e-36, high) == "−33.0%", "as of two blocks: −100% to >+1,000,000%"
        assert numbers.ratio(0.67, 1e-36, high) == "0.670"
        assert numbers.interval(0.67, 1e-36, high) == numbers.bound(0.67, 1e-36, high) == ""
        assert numbers.effect(0.67, 0.2, high) == "−33% (at least −80%)"
        assert numbers.ratio(0.67, 0.2, high) == "0.67 (at least 0.20)"
    assert numbers.effect(0.67, 1e-36, 0.9) == "−33% (at most −10%)"
    assert numbers.effect(2e-5, 1e-5, 3e-5) == "−99.9980% (−99.9990% to −99.9970%)"
    assert numbers.largest(1e36) == numbers.largest(math.inf) == "above 1,000,000%"
    assert numbers.effect(0.67, 0.0004, 500) == "−33% (−99.96% to ×500)"
    assert numbers.effect(0.67, 0.004, 500) == "−33% (−99.6% to ×500)"
    assert numbers.change(0.0) == "−100.0%"
    assert [numbers.bounded(change) for change in (None, 1e36, 0.0234)] == [False, False, True]
    assert numbers.largest(0.0234) == "2.34%"
    assert numbers.largest(None) == numbers.NOTHING


def test_an_end_just_beside_no_change_is_not_rounded_onto_it() -> None:
    assert numbers.effect(0.889, 0.828, 0.99963) == "−11.10% (−17.20% to −0.04%)"
    assert numbers.effect(0.889, 0.828, 1.0) == "−11.1% (−17.2% to 0.0%)"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "shown", "words", "as_ratio"),
    [
        (0.55, None, 0.7, "−45% (at most −30%)", "at least 30% lower", "0.55 (at most 0.70)"),
        (1.5, 1.12, None, "+50% (at least +12%)", "at least 12% higher", "1.50 (at least 1.12)"),
        (1.01, None, 1.04, "+1.0% (at most +4.0%)", "at most 4.0% higher", "1.010 (at most 1.040)"),
        (0.99, 0.97, None, "−1.0% (at least −3.0%)", "at most 3.0% lower", "0.990 (at least 0.970)"),
        (0.55, 0.0, 0.7, "−45% (at most −30%)", "at least 30% lower", "0.55 (at most 0.70)"),
        (1.5, 1.12, math.inf, "+50% (at least +12%)", "at least 12% higher", "1.50 (at least 1.12)"),
        (0.7, 1.0, None, "−30% (at least 0%)", "not lower", "0.70 (at least 1.00)"),
        (1.5, 20_000, None, "+50% (>+1,000,000%)", ">1,000,000% higher", "1.50 (>10,000)"),
        (0.889, None, 0.99996, "−11.100% (at most −0.004%)", "at least 0.004% lower", "0.88900 (at most 0.99996)"),
        (0.9, 0.9, None, "−10.0% (at least −10.0%)", "at most 10.0% lower", "0.900 (at least 0.900)"),
        (0.9, None, None, "−10.0%", "", "0.900"),
        (0.9, 0.8, 1.1, "−10% (−20% to +10%)", "", "0.90 (0.80 to 1.10)"),
    ],
)
def test_an_interval_may_have_one_end(  # noqa: PLR0917
    ratio: float, low: float | None, high: float | None, shown: str, words: str, as_ratio: str
) -> None:
    assert numbers.effect(ratio, low, high) == shown
    assert numbers.bound(ratio, low, high) == words
    assert numbers.ratio(ratio, low, high) == as_ratio


def test_where_failures_outweigh_there_is_no_finite_ratio() -> None:
    assert numbers.effect(math.inf, 1.12, None) == "no finite ratio, as failures outweigh (at least +12.0%)"
    assert numbers.effect(0.0, None, None) == "no finite ratio, as failures outweigh"
    assert numbers.ratio(math.inf, 1.12, None) == "∞ (at least 1.120)"
    assert numbers.ratio(0.0) == "0"


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_only_end_keeps_its_side_of_no_change(ratio: float, end: float) -> None:
    for low, high in ((end, None), (None, end)):
        text = numbers.interval(ratio, low, high)
        assert text.startswith("at least " if high is None else "at most ")
        assert ("+" in text) <= (end > 1)
        assert (MINUS in text) <= (end < 1)
        assert ("higher" in numbers.bound(ratio, low, high)) <= (end >= 1)


def test_a_wide_interval_leaves_a_table_of_80_columns_its_rows() -> None:
    """As of two blocks: nine digits of percent broke the row in two."""
    wide = numbers.effect(12.268, 0.0002, 9000.0)
    assert (wide, len(wide) < 30) == ("+1,127% (−99.98% to ×9,000)", True)
    assert numbers.interval(0.5, 0.2, 99.9) == "−80% to +9,890%"
    assert numbers.interval(0.5, 0.2, None) == "at least −80%"
    rows = [["mthp-64k", "3,226,810", wide, "? undecided", "99.95%", "1.2 GiB"]]
    made = table("", ("policy", "mean", "change (interval)", "verdict", "deliv.", "memory"), rows)
    out = io.StringIO()
    Console(file=out, width=80).print(*terminal._table(made))
    assert len(out.getvalue().splitlines()) == 3
