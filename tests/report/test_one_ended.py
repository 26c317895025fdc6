"""Intervals with one end, or none: in every format the end that is known is told, and that the other is open."""

from __future__ import annotations

import csv as reading
import io
import math
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.model.results import Comparison, Results, Tier
from hugewise.report import csv, images, json
from hugewise.report.figures.effects import effects, overview
from hugewise.report.figures.theme import colours
from hugewise.report.sections.changes import changes_table
from hugewise.report.sections.effects import effects_table, reach_table
from hugewise.report.sentences import effect_of, sentence
from tests.build import known
from tests.build.results import LATENCY, plain
from tests.report.told import page, terminal

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


def test_short_forms() -> None:
    assert effect_of(LOWER) == "−45% (at most −30%)"
    assert effect_of(HIGHER) == "+50% (at least +12%)"
    assert effect_of(UNKNOWN) == "−3.0% (no interval yet)"
    assert effect_of(replace(UNKNOWN, verdict="none")) == "−3.0%"
    assert effect_of(replace(UNKNOWN, ratio=None)) == "–"


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


def test_the_terminal_keeps_to_80_columns(results: Results) -> None:
    assert re.search(r"-45% \(at most -30%\) +20 +▲ better", terminal(results))
    assert not re.search(r"\b(nan|None|inf)\b", page(results).partition("How to read this")[0])


def test_csv_and_json_leave_the_open_end_out(results: Results) -> None:
    rows = list(reading.DictReader(io.StringIO(csv.comparisons(results))))
    assert [(row["low"], row["high"]) for row in rows] == [("", "0.7"), ("1.12", ""), ("1.12", ""), ("", "")]
    read = msgspec.json.decode(json.encode(results), type=Results)
    assert [(one.low, one.high) for one in read.cells[0].comparisons] == [
        *((None, 0.7), (1.12, None), (1.12, None), (None, None))
    ]


def layers(spec: Any) -> list[Any]:
    found: list[Any] = spec["layer"] if "layer" in spec else spec["spec"]["layer"]
    return found


def test_an_open_end_reaches_to_the_edge_with_an_arrow(results: Results) -> None:
    (cell,) = results.cells
    palette = colours(results)
    for spec in (effects(cell, palette, results.margin), overview(results, palette)):
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


def test_intervals_with_both_ends_have_no_arrow() -> None:
    results = run(BOTH)
    spec = effects(results.cells[0], colours(results), results.margin)
    assert not [layer for layer in layers(spec) if "shape" in layer["mark"]]


def test_nothing_finite_is_not_drawn() -> None:
    results = run(replace(FAILING, low=None))
    assert effects(results.cells[0], colours(results), results.margin) is None
