"""What a reader sees: reports and figures as a browser lays them out, measured."""

import hashlib
import math
import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from hugewise.report import images
from hugewise.report.figures.theme import SIZE
from tests.browser import Browser
from tests.report.conftest import FLEET, REAL, Page, Pages

SHOWN = Path(__file__).with_name("shown.js").read_text(encoding="utf-8")
README = Path(__file__).parents[2] / "docs" / "figures" / "demo.svg"

Corners = list[list[float]]

TELEPHONE, DESK = 360, 1400  # CSS pixels
WIDTHS = [TELEPHONE, pytest.param(DESK, marks=pytest.mark.soak)]
DRAWN = ["what others published", FLEET, pytest.param("18 cells of 2 blocks", marks=pytest.mark.soak)]


def look(shown: Browser, path: Path, width: int = DESK) -> dict[str, Any]:
    shown.open(path, width=width)
    found: dict[str, Any] = shown.evaluate(SHOWN)
    assert {*found["faces"]} == {"Arimo loaded"}, path  # the widths below are those of the figures' own font
    return found


def common(one: Corners, other: Corners) -> float:
    """How deep two convex quadrangles lie in each other, in CSS pixels; negative: how far apart (separating axes)."""
    depths = []
    for (x, y), (to_x, to_y) in [*pairwise([*one, one[0]]), *pairwise([*other, other[0]])]:
        length = math.hypot(to_x - x, to_y - y)
        across = (to_y - y) / length, (x - to_x) / length
        mine, theirs = ([a * across[0] + b * across[1] for a, b in corners] for corners in (one, other))
        depths.append(min(max(mine), max(theirs)) - max(min(mine), min(theirs)))
    return min(depths)


def faults(figure: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a figure: texts outside of it, over each other or of another size, marks outside of plots."""
    left, top, right, bottom = figure["box"]
    for text in figure["texts"]:
        if not all(left <= x <= right and top <= y <= bottom for x, y in text["corners"]):
            yield f"{figure['name']}: {text['text']!r} is clipped"
        if text["size"] != pytest.approx(SIZE):
            yield f"{figure['name']}: {text['text']!r} has letters of {text['size']} px"
    for one, other in combinations(figure["texts"], 2):
        if common(one["corners"], other["corners"]) > 1:  # the lines of one title touch
            yield f"{figure['name']}: {one['text']!r} and {other['text']!r} overlap"
    for mark in figure["marks"]:
        (left, top, right, bottom), plot = mark["box"], mark["plot"]
        if left < plot[0] - 1 or top < plot[1] - 1 or right > plot[2] + 1 or bottom > plot[3] + 1:
            yield f"{figure['name']}: a mark leaves its plot: {mark}"


def ugly(shown: Browser, found: dict[str, Any], width: int) -> list[str]:
    """All that is wrong with the page that is shown, of which `found` was measured in a window of this width.

    What is wider than the window scrolls by itself, and the page never does.
    """
    across = shown.evaluate("document.documentElement.scrollWidth")
    return [
        *(fault for figure in found["figures"] for fault in faults(figure)),
        *(f"{word} is broken" for word in found["broken"]),
        *(f"{one} is wider than the window" for one in found["beyond"]),
        *([f"the page is {across} px wide in a window of {width}"] if across > width else []),
        *found["covered"],
        *shown.complaints,
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_its_window_and_no_text_of_it_is_clipped_covered_or_broken(
    shown: Browser, real: Page, width: int
) -> None:
    found = look(shown, real.path, width)
    assert all(figure["texts"] for figure in found["figures"])
    assert found["prose"] > 100
    assert ugly(shown, found, width) == []
    assert {key.removesuffix("-narrow") for key in found["keys"]} == real.figures != set()


@pytest.mark.parametrize("name", DRAWN)
def test_nor_of_a_figure_that_is_a_file_and_no_mark_leaves_its_plot(
    shown: Browser, pages: Pages, name: str, tmp_path: Path
) -> None:
    """One of them as the file that it is; all on one page, as to open each of 40 takes a browser ten times as long."""
    files = pages.of(name).files
    (alone,) = look(shown, files[0])["figures"]
    every = tmp_path / "every.html"
    every.write_text("\n".join(["<!DOCTYPE html>", *(path.read_text("utf-8") for path in files)]), "utf-8")
    figures = look(shown, every)["figures"]
    assert len(figures) == len(files) > 0
    assert len(figures[0]["marks"]) == len(alone["marks"])
    for path, figure in zip([*files, "alone"], [*figures, alone], strict=True):
        assert figure["marks"], path
        assert list(faults(figure)) == [], path


def test_nor_of_the_figure_in_the_readme(shown: Browser) -> None:
    (figure,) = look(shown, README)["figures"]
    assert figure["marks"]
    assert list(faults(figure)) == []
    assert images.font_face() in README.read_text(encoding="utf-8")


_ZERO = """
(() => [...document.querySelectorAll('figure .narrow svg')].filter(one => one.checkVisibility()).map(svg => {
  const zero = [...svg.querySelectorAll('text')].filter(text => text.textContent === '0%');
  return [svg, ...zero].map(one => { const {left, right} = one.getBoundingClientRect(); return [left, right]; });
}))()
"""


@pytest.mark.parametrize("name", DRAWN)
def test_zero_is_on_the_screen_of_a_telephone(shown: Browser, pages: Pages, name: str) -> None:
    """The figures of effects were cut at -30%, so that an interval across zero looked better as a whole."""
    path = pages.of(name).path
    look(shown, path, TELEPHONE)
    figures: list[list[list[float]]] = shown.evaluate(_ZERO)
    assert figures
    for whole, *zeros in figures:
        assert zeros, "no axis has a label of none"
        for left, right in (whole, *zeros):
            assert 0 <= left < right <= TELEPHONE
    assert shown.evaluate("[...document.querySelectorAll('figure .wide')].some(one => one.checkVisibility())") is False
    look(shown, path)
    assert shown.evaluate(_ZERO) == []


def test_what_the_measurement_finds() -> None:
    """Two texts over each other, one of them clipped and too small, and a mark that leaves its plot."""
    square = [[0.0, 0.0], [20.0, 0.0], [20.0, 10.0], [0.0, 10.0]]
    turned = [[10.0, -6.0], [26.0, 10.0], [21.0, 15.0], [5.0, -1.0]]
    beside = [[24.0, -3.0], [40.0, 13.0], [35.0, 18.0], [19.0, 2.0]]
    assert common(square, turned) > 1
    texts = [
        {"text": "one", "corners": square, "size": SIZE},
        {"text": "other", "corners": turned, "size": SIZE - 1},
    ]
    marks = [{"box": [0, 0, 9, 30], "plot": [0, 0, 20, 20]}, {"box": [0, 0, 9, 9], "plot": [0, 0, 20, 20]}]
    told = list(faults({"name": "figure", "box": [0, 0, 40, 40], "texts": texts, "marks": marks}))
    assert [fault.partition(": ")[2].partition(":")[0] for fault in told] == [
        *("'other' is clipped", "'other' has letters of 11 px", "'one' and 'other' overlap", "a mark leaves its plot")
    ]
    assert common(square, [[x + 40, y] for x, y in beside]) < 0


AXE = Path(__file__).with_name("axe")
HASHES = {
    "LICENSE-3RD-PARTY.txt": "4f8563870d0fca38bbc3e00b6f670cb7fa9f380ba9f26a7f7d1184a6b18b1653",
    "axe.min.js": "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb",
    "LICENSE": "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
}
QUICK = {("deployed", False), ("recorded guests", True)}
"""Pages, and whether they are dark, of which axe takes a few seconds."""
RULES = "{ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }"
TOLD = "found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.target} ${node.failureSummary}`))"


def violations(shown: Browser, part: str = "html") -> list[str]:
    """What axe finds wrong with a part of the page that is shown, all of its folded parts open."""
    shown.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    shown.evaluate((AXE / "axe.min.js").read_text(encoding="utf-8") + "; true")
    found: list[str] = shown.evaluate(f"axe.run({part!r}, {RULES}).then(found => {TOLD})")
    return found


def test_axe_is_what_was_published_and_may_be_given_on() -> None:
    found = {name: hashlib.sha256((AXE / name).read_bytes()).hexdigest() for name in HASHES}
    assert found == HASHES
    assert "Mozilla Public License" in (AXE / "LICENSE").read_text(encoding="utf-8")


# The large one has the same elements, and so many of them that axe takes half a minute.
@pytest.mark.parametrize(
    ("name", "dark"),
    [
        pytest.param(name, dark, marks=[] if (name, dark) in QUICK else pytest.mark.soak)
        for name in REAL
        if name != "large"
        for dark in (False, True)
    ],
)
def test_a_page_keeps_the_rules(shown: Browser, pages: Pages, name: str, dark: bool) -> None:
    shown.open(pages.of(name).path, dark=dark)
    assert violations(shown) == []


def test_a_fault_that_is_planted_is_found(shown: Browser, pages: Pages) -> None:
    """By axe, of which a page without faults says nothing."""
    shown.open(pages.of("deployed").path)
    shown.evaluate("document.querySelector('h1').style.color = '#ddd'")
    assert any(each.startswith("color-contrast: h1") for each in violations(shown, "h1"))


A4, MARGIN = (8.27, 11.69), 0.4  # inches; the margin that browsers leave
PAPER = round((A4[0] - 2 * MARGIN) * 96)  # CSS pixels across a sheet

# The first table with a field to filter it by, what its rows are, and those that are seen.
FILTERED = """(() => {
  document.querySelectorAll('details').forEach(one => { one.open = true; });
  const field = document.querySelector('.filter input');
  const table = field?.closest('p').nextElementSibling.querySelector('table');
  const rows = table ? [...table.tBodies[0].rows] : [];
  return {
    most: Math.max(...[...document.querySelectorAll('tbody')].map(body => body.rows.length)),
    rows: rows.map(row => row.textContent),
    seen: rows.filter(row => row.getClientRects().length).map(row => row.textContent),
    said: field?.nextElementSibling.textContent,
  };
})()"""


def test_texts_that_cover_each_other_or_leave_the_window_are_found(shown: Browser, pages: Pages) -> None:
    """By the measurement of the tests above, of pages that were made ugly."""
    page = pages.of("ended").path
    shown.open(page, width=TELEPHONE)
    shown.evaluate("void (document.querySelector('.top').style.marginTop = '-3rem')")
    assert any(" overlap" in one for one in shown.evaluate(SHOWN)["covered"])
    shown.open(page, width=TELEPHONE)
    shown.evaluate(
        "void Object.assign(document.querySelector('p.lead').style, {whiteSpace: 'nowrap', width: '9999px'})"
    )
    shown.evaluate("void (document.querySelector('p.lead').style.marginLeft = '-20px')")
    assert any(" is cut" in one for one in shown.evaluate(SHOWN)["covered"])


def test_rows_are_filtered_and_policies_left_out_by_keyboard(shown: Browser, small: Page) -> None:
    shown.open(small.path, width=TELEPHONE)
    before: dict[str, Any] = shown.evaluate(FILTERED)
    if before["rows"]:
        shown.evaluate("document.querySelector('.filter input').focus()")
        shown.press("1", "1")
        after = shown.evaluate(FILTERED)
        assert after["seen"] == [row for row in before["rows"] if "11" in row]
        few, all_ = len(after["seen"]), len(before["rows"])
        assert after["said"] == (f"{few} of {all_} rows" if few < all_ else "")
    else:
        assert before["most"] <= 9
    shown.evaluate("[...document.querySelectorAll('.tools input')].at(-1).focus()")
    arm = shown.evaluate("document.activeElement.value")
    shown.press(" ")
    off = "[...document.querySelectorAll('svg [data-off], tr[data-off]')].map(one => one.dataset.arm).filter(Boolean)"
    assert set(shown.evaluate(off)) >= {arm}
    assert shown.evaluate(f"document.querySelectorAll('[data-arm={arm}]:not([data-off])').length") == 0
    assert shown.complaints == []


def test_nothing_is_cut_at_the_edge_of_a_sheet(shown: Browser, small: Page) -> None:
    shown.open(small.path, width=PAPER, paper=True)
    found = shown.evaluate(SHOWN)
    assert [found["covered"], found["beyond"]] == [[], []]
    assert shown.evaluate("document.documentElement.scrollWidth") <= PAPER
    # Figures are smaller there, as a whole.
    smaller = [one for figure in found["figures"] for one in faults(figure) if "has letters of" not in one]
    assert smaller == []


def test_a_page_becomes_a_pdf_of_several_sheets(shown: Browser, small: Page) -> None:
    shown.open(small.path)
    printed = shown.printed(A4, MARGIN)
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) > 1
    assert shown.complaints == []
