"""The pages of runs that were really made, in windows of a telephone, a tablet and a desk, and on paper."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser import Browser
from tests.report.conftest import Page, Pages
from tests.report.test_browser import ONE_WIDTH, SHOWN, faults, ugly

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


@pytest.mark.parametrize("width", ONE_WIDTH)
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["light", "dark"])
def test_a_page_fits_its_window_and_no_text_of_a_figure_is_clipped_or_covered(
    shown: Browser, real: Page, width: int, dark: bool
) -> None:
    shown.open(real.path, width=width, dark=dark)
    found = shown.evaluate(SHOWN)
    assert found["prose"] > 100
    assert ugly(shown, found, width) == []
    assert set(found["keys"]) == real.figures != set()


@pytest.mark.parametrize("width", ONE_WIDTH)
def test_texts_that_cover_each_other_or_leave_the_window_are_found(shown: Browser, pages: Pages, width: int) -> None:
    """By the measurement of the test above, of pages that were made ugly."""
    page = pages.of("ended").path
    shown.open(page, width=width)
    shown.evaluate("void (document.querySelector('.top').style.marginTop = '-3rem')")
    assert any(" overlap" in one for one in shown.evaluate(SHOWN)["covered"])
    shown.open(page, width=width)
    shown.evaluate(
        "void Object.assign(document.querySelector('p.lead').style, {whiteSpace: 'nowrap', width: '9999px'})"
    )
    shown.evaluate("void (document.querySelector('p.lead').style.marginLeft = '-20px')")
    assert any(" is cut" in one for one in shown.evaluate(SHOWN)["covered"])


@pytest.mark.parametrize("width", ONE_WIDTH)
def test_rows_are_filtered_and_policies_left_out_by_keyboard(shown: Browser, small: Page, width: int) -> None:
    shown.open(small.path, width=width)
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


def test_what_is_wider_than_a_sheet_is_found(shown: Browser, pages: Pages) -> None:
    shown.open(pages.of("ended").path, width=PAPER, paper=True)
    shown.evaluate("document.querySelectorAll('table').forEach(one => { one.style.width = '900px'; })")
    found = shown.evaluate(SHOWN)
    assert any(one.startswith("TABLE") for one in found["beyond"])
    assert any(" is cut" in one for one in found["covered"])


def test_a_page_becomes_a_pdf_of_several_sheets(shown: Browser, small: Page) -> None:
    shown.open(small.path)
    printed = shown.printed(A4, MARGIN)
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) > 1
    assert shown.complaints == []
