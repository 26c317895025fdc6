"""Numbers as reports write them, with intervals of two ends, of one, and of no width."""

import csv as reading
import io
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from hugewise.model.reason import Crossed
from hugewise.model.results import Comparison, Results, Tier
from hugewise.report import images, numbers
from hugewise.report import terminal as renderer
from hugewise.report.data_files import comparisons_csv, report_json
from hugewise.report.document import table
from hugewise.report.figures.effects import overview
from hugewise.report.figures.theme import colours
from hugewise.report.sections.effects import changes_table, effects_table, reach_table
from hugewise.report.sentences import effect_of, sentence
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import Sequential
from tests.build import known
from tests.build.results import LATENCY, plain
from tests.build.trials import LOWER as LOWER_METRIC
from tests.build.trials import attempt as one_attempt
from tests.build.trials import block, fed, pair

MINUS = numbers.MINUS


@pytest.mark.parametrize(
    ("half_width", "expected"),
    [(1.3, 1), (13.0, 0), (0.013, 3), (0.0996, 2), (0.94, 2), (0.0, 0), (math.inf, 0), (1e-12, 6)],
)
def test_decimals_show_two_digits_of_the_half_width(half_width: float, expected: int) -> None:
    assert numbers.decimals(half_width) == expected


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
    assert numbers.scale("ns", [1234.5678]).text(1234.5678, 21.0) == "1.235 µs"
    plain_ns = numbers.Scale(1.0, "ns")
    assert (plain_ns.text(129.0456, 0.64), plain_ns.text(129.0456, 64.0)) == ("129.05 ns", "129 ns")
    assert (plain_ns.text(256.0, 0.0), plain_ns.text(256.0)) == ("256 ns", "256.0 ns")
    assert [numbers.percent(part) for part in (0.95, 0.005, 0.9875, None)] == ["95%", "0.5%", "98.75%", "–"]
    assert numbers.when(1_795_000_000.0) == "2026-11-18 11:06:40 UTC"


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.123, "+12.3%"), (0.7481, f"{MINUS}25.2%"), (0.99999, "0.0%"), (1.00001, "0.0%"), (13.0, "+1,200.0%")],
)
def test_change(ratio: float, expected: str) -> None:
    assert numbers.change(ratio) == expected


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


def test_an_interval_that_says_nothing_is_cut_off() -> None:
    for high in (1e36, math.inf):
        for low in (0.0, 1e-36):  # as of two blocks: −100% to >+1,000,000%
            assert numbers.effect(0.67, low, high) == "−33.0%"
            assert numbers.ratio(0.67, low, high) == "0.670"
        assert numbers.interval(0.67, 1e-36, high) == numbers.bound(0.67, 1e-36, high) == ""
        assert numbers.effect(0.67, 0.2, high) == "−33% (at least −80%)"
        assert numbers.ratio(0.67, 0.2, high) == "0.67 (at least 0.20)"
    assert numbers.largest(1e36) == numbers.largest(math.inf) == "above 1,000,000%"
    assert numbers.change(0.0) == "−100.0%"
    assert [numbers.bounded(change) for change in (None, 1e36, 0.0234)] == [False, False, True]
    assert [numbers.largest(change) for change in (0.0234, None)] == ["2.34%", numbers.NOTHING]
    assert numbers.effect(None, None, None) == numbers.ratio(math.nan) == numbers.NOTHING


@pytest.mark.parametrize(
    ("ratio", "low", "high", "shown", "words", "as_ratio"),
    [
        (0.55, None, 0.7, "−45% (at most −30%)", "at least 30% lower", "0.55 (at most 0.70)"),
        (1.5, 1.12, None, "+50% (at least +12%)", "at least 12% higher", "1.50 (at least 1.12)"),
        (1.01, None, 1.04, "+1.0% (at most +4.0%)", "at most 4.0% higher", "1.010 (at most 1.040)"),
        (0.99, 0.97, None, "−1.0% (at least −3.0%)", "at most 3.0% lower", "0.990 (at least 0.970)"),
        (0.55, 0.0, 0.7, "−45% (at most −30%)", "at least 30% lower", "0.55 (at most 0.70)"),
        (1.5, 1.12, math.inf, "+50% (at least +12%)", "at least 12% higher", "1.50 (at least 1.12)"),
        (0.67, 1e-36, 0.9, "−33% (at most −10%)", "at least 10% lower", "0.67 (at most 0.90)"),
        (0.7, 1.0, None, "−30% (at least 0%)", "not lower", "0.70 (at least 1.00)"),
        (1.5, 20_000, None, "+50% (>+1,000,000%)", ">1,000,000% higher", "1.50 (>10,000)"),
        (0.889, None, 0.99996, "−11% (at most −0.004%)", "at least 0.004% lower", "0.88900 (at most 0.99996)"),
        (0.9, 0.9, None, "−10.0% (at least −10.0%)", "at most 10.0% lower", "0.900 (at least 0.900)"),
        (0.9, None, None, "−10.0%", "", "0.900"),
        (0.9, 0.8, 1.1, "−10% (−20% to +10%)", "", "0.90 (0.80 to 1.10)"),
        (0.7481, 0.7449, 0.7513, "−25.19% (−25.51% to −24.87%)", "", "0.7481 (0.7449 to 0.7513)"),
        (0.977, 0.946, 1.009, "−2.3% (−5.4% to +0.9%)", "", "0.977 (0.946 to 1.009)"),
        (2e-5, 1e-5, 3e-5, "−99.9980% (−99.9990% to −99.9970%)", "", "0.000020 (0.000010 to 0.000030)"),
        (0.67, 0.0004, 500, "−33% (−99.96% to ×500)", "", "0.67 (0.00 to 500.00)"),
        (0.67, 0.004, 500, "−33% (−99.6% to ×500)", "", "0.67 (0.00 to 500.00)"),
        # An end just beside no change is not rounded onto it; an interval may have no width.
        (0.889, 0.828, 0.99963, "−11.1% (−17.2% to −0.04%)", "", "0.8890 (0.8280 to 0.9996)"),
        (0.996, 0.9, 0.9999, "−0.4% (−10.0% to −0.01%)", "", "0.9960 (0.9000 to 0.9999)"),
        (0.889, 0.828, 1.0, "−11.1% (−17.2% to 0.0%)", "", "0.889 (0.828 to 1.000)"),
        (1 / 16, 1 / 16, 1 / 16, "−93.75% (−93.75% to −93.75%)", "", "0.0625"),
        (0.0, None, None, "no finite ratio, as failures outweigh", "", "0"),
    ],
)
def test_an_interval_has_two_ends_one_or_none(  # noqa: PLR0917
    ratio: float, low: float | None, high: float | None, shown: str, words: str, as_ratio: str
) -> None:
    assert numbers.effect(ratio, low, high) == shown
    assert numbers.bound(ratio, low, high) == words
    assert numbers.ratio(ratio, low, high) == as_ratio


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
    Console(file=out, width=80).print(*renderer._table(made))
    assert len(out.getvalue().splitlines()) == 3


BOTH = plain().cells[0].comparisons[0]
LOWER = replace(BOTH, ratio=0.55, low=None, high=0.7, change=None)
HIGHER = replace(BOTH, arm="thp", ratio=1.5, low=1.12, high=None, verdict="worse", change=None)
FAILING = replace(BOTH, arm="hugetlb-2m", ratio=math.inf, low=1.12, high=None, verdict="worse", failures_arm=15)
UNKNOWN = replace(BOTH, arm="hugetlb-1g", ratio=0.97, low=None, high=None, verdict="undecided", change=None)


def run(*comparisons: Comparison) -> Results:
    whole = plain()
    return replace(whole, cells=(replace(whole.cells[0], comparisons=comparisons),))


@pytest.fixture(scope="module")
def results() -> Results:
    return run(LOWER, HIGHER, FAILING, UNKNOWN)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (LOWER, "latency_ns 45% lower (95% interval: at least 30% lower), from 20 blocks."),
        (HIGHER, "latency_ns 50% higher (95% interval: at least 12% higher), from 20 blocks."),
        (replace(UNKNOWN, high=1.04), "latency_ns −3.0% (95% interval: at most 4.0% higher), from 20 blocks."),
        (replace(UNKNOWN, low=0.96), "latency_ns −3.0% (95% interval: at most 4.0% lower), from 20 blocks."),
        (UNKNOWN, "latency_ns −3.0% (no 95% interval yet), from 20 blocks."),
        (replace(LOWER, high=None), "latency_ns 45.0% lower (no 95% interval), from 20 blocks."),
        (FAILING, "latency_ns has no finite ratio, as failures outweigh (95% interval: at least 12.0% higher), from"),
        (
            replace(FAILING, verdict="undecided"),
            "latency_ns has no finite ratio, as failures outweigh (95% interval: at",
        ),
        (replace(LOWER, ratio=0.0), "latency_ns has no finite ratio, as failures outweigh (95% interval: at least 30"),
        (replace(LOWER, ratio=None, high=None), "latency_ns changed (no 95% interval), from 20 blocks."),
    ],
)
def test_sentences(one: Comparison, said: str) -> None:
    told = sentence(one, LATENCY, 0.005)
    assert said in told
    assert "None" not in told
    assert "inf" not in told


def test_tables(results: Results) -> None:
    (cell,) = results.cells
    rows = {row[0]: row for row in effects_table(cell).rows}
    assert rows["mthp-64k"][2:4] == ("−45% (at most −30%)", "0.55 (at most 0.70)")
    assert rows["thp"][2:4] == ("+50% (at least +12%)", "1.50 (at least 1.12)")
    assert rows["hugetlb-2m"][2:4] == ("no finite ratio, as failures outweigh (at least +12.0%)", "∞ (at least 1.120)")
    assert rows["hugetlb-1g"][2] == "−3.0% (no interval yet)"
    assert rows["hugetlb-1g"][-1] == "no bound yet"
    table = known(changes_table(results, cell))
    assert "▲ better: −45% (at most −30%), n 20" in table.rows[0]
    assert "? undecided: −3.0% (no interval yet), n 20" in table.rows[0]
    tier = Tier(name="this campaign", supported=True, ratio=0.55, low=None, high=0.7, reason="exact")
    reach = known(reach_table(replace(cell, comparisons=(replace(LOWER, tiers=(tier,)),))))
    assert reach.rows == (("mthp-64k", "this campaign (typical ratio)", "−45% (at most −30%)", "exact"),)


def test_csv_and_json_leave_the_open_end_out(results: Results) -> None:
    rows = list(reading.DictReader(io.StringIO(comparisons_csv(results))))
    assert [(row["low"], row["high"]) for row in rows] == [("", "0.7"), ("1.12", ""), ("1.12", ""), ("", "")]
    read = msgspec.json.decode(report_json(results), type=Results)
    assert [(one.low, one.high) for one in read.cells[0].comparisons] == [
        *((None, 0.7), (1.12, None), (1.12, None), (None, None))
    ]


def layers(spec: Any) -> list[Any]:
    found: list[Any] = spec["layer"] if "layer" in spec else spec["spec"]["layer"]
    return found


def test_an_open_end_reaches_to_the_edge_with_an_arrow(results: Results) -> None:
    spec = overview(results, colours(results))
    assert spec is not None
    rows = {row["arm"]: row for row in spec["data"]["values"]}
    low, high = layers(spec)[0]["encoding"]["x"]["scale"]["domain"]
    assert low < rows["mthp-64k"]["low"] < 0.55
    assert rows["mthp-64k"]["high"] == 0.7
    assert 1.5 < rows["thp"]["high"] < high
    assert [(row["under"], row["over"]) for row in rows.values()] == [
        *((True, False), (False, True), (False, True), (False, False))
    ]
    assert rows["hugetlb-2m"]["ratio"] is None  # drawn without a point
    assert rows["hugetlb-2m"]["low"] == 1.12
    assert rows["hugetlb-1g"]["low"] == rows["hugetlb-1g"]["high"] == 0.97
    arrows = [layer for layer in layers(spec) if "shape" in layer["mark"]]
    assert [(one["mark"]["shape"], one["transform"][0]["filter"]) for one in arrows] == [
        ("triangle-left", "datum.under"),
        ("triangle-right", "datum.over"),
    ]
    drawn = images.render(spec)
    assert "−45% (at most −30%)" in drawn
    assert "NaN" not in drawn


def test_nothing_finite_is_not_drawn() -> None:
    results = run(replace(FAILING, low=None))
    assert overview(results, colours(results)) is None


def fixed(n: int, ratio: float = 1 / 16, planned: int = 12) -> Comparison:
    return fed([pair(k, ratio, baseline=65_536.0) for k in range(n)], planned=planned).comparison(0.01, 0.05)


def sequential(n: int, ratio: float = 1 / 16) -> Comparison:
    method = Sequential(Contrast("chase", "thp", "base", LOWER_METRIC), planned=60, alpha=0.01, margin=0.005)
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
    assert sentence(found, LOWER_METRIC, 0.05).startswith(words)
    assert "interval −" not in sentence(found, LOWER_METRIC, 0.05)


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
    assert late.reason == Crossed(late.n)
    assert f"From pair {late.n} on the difference is too consistent for chance; this" in sentence(
        late, LOWER_METRIC, 0.005
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
