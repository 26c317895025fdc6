"""Facts and steadiness in words, in Markdown, HTML and on the terminal."""

from __future__ import annotations

import html
import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from hugewise.model.results import CellResult, Difference, Results, Steadiness
from hugewise.report import terminal
from hugewise.report.within import common, remarks
from hugewise.report.write import write
from tests.build.results import HOSTILE, plain


@pytest.fixture
def results() -> Results:
    return plain()


def changed(results: Results, cell: CellResult) -> Results:
    return replace(results, cells=(cell, *results.cells[1:]))


def test_what_all_attempts_share_is_one_line(results: Results) -> None:
    facts = {
        "data_sha256": "1791566411b72023" * 4,
        "data_bytes": 404_079_760,
        "storage": "/dev/shm (tmpfs)",
        "scale": 12,
        "keys": 6_200_000,
        "moved_mib": 2048.5,
        "grid": "x" * 200,
    }
    line = common(replace(results.cells[0], facts=facts))
    assert line == (
        "The same in every attempt: data SHA-256 1791566411b7…, data bytes 385 MiB, storage /dev/shm (tmpfs), "
        f"scale 12, keys 6,200,000, moved MiB 2,048.5, grid {'x' * 79}…."
    )
    assert common(results.cells[0]) == ""


def test_an_arm_that_had_not_settled_is_a_remark(results: Results) -> None:
    cell = replace(
        results.cells[0],
        steadiness=(
            Steadiness(arm="base", n=8, change=-0.14, settled=False),
            Steadiness(arm="thp", n=8, change=0.02, settled=True),
            Steadiness(arm="mthp-64k", n=1, change=2.5, settled=False),
            Steadiness(arm="hugetlb-2m", n=2, change=None, settled=False, reason="no work was done in its first third"),
            Steadiness(arm="hugetlb-1g", n=0, change=None, reason="2 whole seconds at most: 6 are needed"),
        ),
    )
    assert list(remarks(cell)) == [
        "Throughput of base fell by 14% within the measured part (last third of its seconds against the first; median "
        "of 8 attempts): it had not settled.",
        "Throughput of mthp-64k rose by 250% within the measured part (last third of its seconds against the first; "
        "median of 1 attempt): it had not settled.",
        "Throughput of hugetlb-2m rose from nothing within the measured part (median of 2 attempts): it had not "
        "settled.",
    ]


def test_facts_that_differ_are_named_with_their_arms(results: Results) -> None:
    differing = (
        Difference(name="data_sha256", values={"base": ("ab" * 32,), "thp": ("cd" * 32,)}),
        Difference(name="storage", values={"base": ("a", "b", "c", "d", None), "thp": (None,)}),
        Difference(name="database_bytes", values={"base": (1_073_741_824,), "thp": (1_073_741_825,)}),
    )
    assert list(remarks(replace(results.cells[0], differing=differing))) == [
        "Data SHA-256 differs between arms, which should have it in common: base abababababab…, thp cdcdcdcdcdcd….",
        "Storage differs between attempts, which should have it in common: base a and b and c and 2 more, thp none.",
        "Database bytes differs between arms, which should have it in common: base 1,073,741,824, thp 1,073,741,825.",
    ]


def test_every_report_has_them_and_escapes(results: Results, tmp_path: Path) -> None:
    cell = replace(
        results.cells[0],
        facts={"storage": HOSTILE, "<b>": 1},
        differing=(Difference(name=HOSTILE, values={HOSTILE: (HOSTILE,), "thp": (None,)}),),
        steadiness=(Steadiness(arm=HOSTILE, n=3, change=-0.2, settled=False),),
    )
    paths = write(changed(results, cell), tmp_path)
    page, text = (paths[key].read_text(encoding="utf-8") for key in ("html", "markdown"))
    assert "<script" not in page
    assert "<b>" not in page
    assert "<script" not in text.replace("\\<script", "")
    for whole in (page, text):
        assert "\x1b" not in whole
        assert "The same in every attempt: storage " in whole
        assert "fell by 20% within the measured part" in whole
        assert "which should have it in common" in whole
    assert html.escape(common(cell), quote=False).replace('"', "&#34;") in page


def test_the_terminal_tells_the_remarks(results: Results) -> None:
    cell = replace(results.cells[0], steadiness=(Steadiness(arm="base", n=8, change=-0.14, settled=False),))
    console = Console(file=io.StringIO(), width=100)
    terminal.show(changed(results, cell), console=console)
    assert isinstance(console.file, io.StringIO)
    assert "note: Throughput of base fell by 14% within" in " ".join(console.file.getvalue().split())
