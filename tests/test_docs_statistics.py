"""The figures in the documents on statistics are those of the functions that they speak of."""

import contextlib
import io
import math
import re
from pathlib import Path

import pytest

from hugewise import published
from hugewise.analysis.forecast import replan
from hugewise.quantity import format_duration
from hugewise.stats import paired, power, sessions
from hugewise.stats.campaign import FEWEST

CONCEPTS = Path(__file__).parents[1] / "docs/concepts"


def test_the_example_prints_what_the_page_shows() -> None:
    page = (CONCEPTS / "sequential.md").read_text(encoding="utf-8")
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "sequential.md", "exec"), {})  # noqa: S102  (our own page)
    assert printed.getvalue() == shown
    shift = math.log(1.01) / math.hypot(0.01, 0.01)
    half, most = (
        power.pairs_for_assurance(shift, power.KNOWN, 0.01, chance=chance, budget=150) for chance in (0.5, 0.9)
    )
    assert f"by pair {half}, nine in ten by pair {most}" in page.replace("\n", " ")


def test_the_floor_of_pairs_on_the_page() -> None:
    page = (CONCEPTS / "sequential.md").read_text(encoding="utf-8")
    one, strict = power.least_pairs(0.01, 2000), power.least_pairs(1e-4, 2000)
    assert f"{one} pairs for one comparison at 99% with 2,000 declared, {strict} at" in page
    assert f"{sessions.needed(0.05)} sessions at 95%, {sessions.needed(1e-4)} at 99.99%" in page
    assert f"from {FEWEST} pairs" in page


def test_a_tenth_of_the_error_costs_a_third_more_pairs() -> None:
    for shift in (0.2, 0.4):
        one = power.pairs_for_assurance(shift, power.KNOWN, 0.01, budget=2000)
        shared = power.pairs_for_assurance(shift, power.KNOWN, 0.001, budget=2000)
        assert one is not None and shared is not None
        assert 1.25 < shared / one < 1.5


def test_what_a_pilots_error_costs() -> None:
    page = " ".join((CONCEPTS / "planning.md").read_text(encoding="utf-8").split())
    known = power.pairs_for_assurance(0.4, power.KNOWN, 0.01, budget=2000)
    assert known is not None
    for pairs, more in ((20, 1.25), (40, 1.125), (6, 2.5)):
        asked = power.pairs_for_assurance(0.4, paired.freedom(pairs), 0.01, budget=2000)
        assert asked is not None and asked / known == pytest.approx(more, rel=0.06)
    assert "From 20 pairs, about a quarter more pairs" in page
    assert "from 40, an eighth; from 6, two and a half times as many" in page
    assert f"a deviation with {paired.freedom(2):g} (n - 1) degrees of freedom" in page


def test_the_published_builds_on_the_page() -> None:
    page = (CONCEPTS / "planning.md").read_text(encoding="utf-8")
    (builds,) = [
        comparison for comparison in replan(published.load("redhat-2021")).comparisons if comparison.name == "gdb-build"
    ]
    for row in builds.assumed:
        assert row.hours is not None and row.median is not None and row.pairs is not None
        time = format_duration(row.hours * 3600) if row.hours < 48 else f"{row.hours / 24:.1f} days"
        assert f"| {row.correlation:g} | {row.median:,} | {row.pairs:,} | {time} |" in page
    for name in published.names():
        assert any(name.startswith(short) for short in re.findall(r"`([a-z]+-\d{4})`", page)), name
