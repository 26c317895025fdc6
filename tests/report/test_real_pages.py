"""The pages of runs that were really made (tests/golden/runs), in windows of a telephone, a tablet and a desk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise import open_results
from hugewise.report.write import write
from tests.browser import Browser, browser
from tests.golden import GOLDEN
from tests.report.test_browser import SHOWN, faults

WIDTHS = (360, 800, 1400)  # CSS pixels


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module", params=["ended", "guests", "deployed", "interrupted"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(open_results(GOLDEN / "runs" / request.param), tmp_path_factory.mktemp("run"))["html"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_fits_its_window_and_no_text_of_a_figure_is_clipped_or_covered(
    shown: Browser, page: Path, width: int, dark: bool
) -> None:
    shown.open(page, width=width, dark=dark)
    found = shown.evaluate(SHOWN)
    assert found["figures"]
    assert [fault for figure in found["figures"] for fault in faults(figure)] == []
    assert found["broken"] == []
    assert found["prose"] > 100
    assert found["covered"] == []
    # What is wider than the window scrolls by itself, and the page never does.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_texts_that_cover_each_other_or_leave_the_window_are_found(shown: Browser, page: Path, width: int) -> None:
    """By the measurement of the test above, of pages that were made ugly."""
    shown.open(page, width=width)
    shown.evaluate("void (document.querySelector('.top').style.marginTop = '-3rem')")
    assert any(" overlap" in one for one in shown.evaluate(SHOWN)["covered"])
    shown.open(page, width=width)
    shown.evaluate(
        "void Object.assign(document.querySelector('p.lead').style, {whiteSpace: 'nowrap', width: '9999px'})"
    )
    shown.evaluate("void (document.querySelector('p.lead').style.marginLeft = '-20px')")
    assert any(" is cut" in one for one in shown.evaluate(SHOWN)["covered"])


def test_a_page_becomes_a_pdf_of_several_sheets(shown: Browser, page: Path) -> None:
    shown.open(page)
    printed = shown.printed()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) > 1
    assert shown.complaints == []
