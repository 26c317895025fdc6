"""The page's script as its reader meets it: by pointer and keyboard, with a link to what is shown, and without it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.report.write import write
from hugewise.visible import printable
from tests.browser import Browser
from tests.build.few_blocks import demo
from tests.build.results import HOSTILE, example

SEEN = Path(__file__).with_name("seen.js").read_text(encoding="utf-8")
# Tables of a cell, by words of their captions.
MEANS, CHANGES = "change from the median", "in percent"
ARMS = ["base", "thp", "mthp-64k", "hugetlb-2m", "hugetlb-1g"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = demo("chase-inside", "fault")
    counters = {f"counter_{number}": float(number + 1) for number in range(9)}  # enough rows for a field to filter by
    attempts = tuple(replace(one, metrics={**one.metrics, **counters}) for one in results.attempts)
    return write(replace(results, attempts=attempts), tmp_path_factory.mktemp("run"))["html"]


@pytest.fixture
def opened(shown: Browser, page: Path) -> Iterator[Browser]:
    shown.open(page)
    yield shown
    assert shown.complaints == []


def see(shown: Browser, expression: str) -> Any:
    """The value of an expression in the words of `seen.js`."""
    return shown.evaluate(f"(() => {{ {SEEN}; return {expression}; }})()")


def rows(shown: Browser, caption: str, column: int = 0) -> list[str]:
    found: list[str] = see(shown, f"column({caption!r}, {column})")
    return found


def focus(shown: Browser, expression: str) -> None:
    """Go to an element as the tabulator key does: it must be one that takes the focus."""
    assert see(shown, f"(one => {{ one.focus(); return document.activeElement === one; }})({expression})"), expression


def place(shown: Browser) -> str:
    return str(shown.evaluate("decodeURIComponent(location.hash)"))


def test_a_page_without_its_script_has_everything_and_no_empty_tool(shown: Browser, page: Path) -> None:
    shown.open(page, script=False)
    assert not see(shown, "seen(document.querySelector('.tools'))")
    assert shown.evaluate("document.querySelectorAll('[data-off], .sort, .filter, .tip').length") == 0
    assert rows(shown, MEANS) == ARMS
    assert len(rows(shown, CHANGES)) > 9
    # A browser itself shows the titles of marks under the pointer.
    assert shown.evaluate("document.querySelector('#cell-1 figure svg path > title').textContent").startswith("base: ")


def test_a_value_stands_under_the_pointer_and_goes_with_it(opened: Browser) -> None:
    opened.point(*see(opened, "mark()"))
    assert see(opened, "tip().textContent").startswith("base: 4.")
    assert opened.evaluate("document.querySelectorAll('[data-lit]').length") == 1
    opened.point(2, 2)
    assert not see(opened, "seen(tip())")


def test_values_are_read_by_keyboard(opened: Browser) -> None:
    focus(opened, "document.querySelector('#cell-1 figure .scroll')")
    told = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End"):
        opened.press(key)
        told.append(see(opened, "tip().textContent"))
    first, second, again, last = told
    assert first == again and len({first, second, last}) == 3
    opened.press("Escape")
    assert not see(opened, "seen(tip())")


def test_a_policy_is_left_out_by_keyboard_and_its_marks_fade(opened: Browser) -> None:
    focus(opened, "document.querySelector('.tools input[value=thp]')")
    opened.press(" ")
    assert rows(opened, MEANS) == [arm for arm in ARMS if arm != "thp"]
    assert place(opened) == "#?without=thp"
    assert "thp" not in see(opened, "arms('.verdicts li')")
    assert set(see(opened, "arms('svg [data-off]')")) == {"thp"}
    # Its column of a table goes as well.
    assert not any(see(opened, f"[...table({CHANGES!r}).rows].map(row => seen(row.cells[2]))"))
    opened.press(" ")
    assert rows(opened, MEANS) == ARMS
    assert place(opened) == ""


def test_a_table_is_sorted_by_keyboard_up_down_and_back(opened: Browser) -> None:
    focus(opened, f"table({MEANS!r}).querySelectorAll('.sort')[2]")
    orders = []
    for _ in range(3):
        opened.press("Enter")
        state = see(opened, f"table({MEANS!r}).querySelector('[aria-sort]')?.getAttribute('aria-sort')")
        orders.append((state, [float(one) for one in rows(opened, MEANS, 2)]))
    (up, rising), (down, falling), (none, first) = orders
    assert (up, down, none) == ("ascending", "descending", None)
    assert rising == sorted(first)
    assert falling == rising[::-1]
    assert rising != first


def test_sizes_and_times_are_sorted_by_what_they_are(opened: Browser) -> None:
    written = ["1.2 ms", "–", "900 µs", "−3.2%", "1,000 s"]
    see(opened, f"[...table({MEANS!r}).tBodies[0].rows].forEach((row, at) => row.cells[1].textContent = {written}[at])")
    see(opened, f"table({MEANS!r}).querySelectorAll('.sort')[1].click()")
    assert rows(opened, MEANS, 1) == ["−3.2%", "900 µs", "1.2 ms", "1,000 s", "–"]


def test_rows_are_filtered_by_keyboard_and_the_address_is_a_link_to_that(opened: Browser, page: Path) -> None:
    every = rows(opened, CHANGES)
    focus(opened, f"field({CHANGES!r})")
    opened.press("p", "a", "g", "e")
    kept = rows(opened, CHANGES)
    assert 0 < len(kept) < len(every)
    assert see(opened, f"field({CHANGES!r}).nextElementSibling.textContent") == f"{len(kept)} of {len(every)} rows"
    opened.evaluate("document.querySelector('nav a[href=\"#cell-1\"]').click()")
    opened.evaluate("new Promise(done => setTimeout(done, 50))")
    link = place(opened).removeprefix("#")
    assert link.startswith("cell-1?t")
    assert link.endswith("=page")
    opened.open(page, place=link)
    assert rows(opened, CHANGES) == kept
    assert abs(opened.evaluate("document.getElementById('cell-1').getBoundingClientRect().top")) < 60
    assert place(opened) == f"#{link}"


def test_paper_has_what_the_screen_leaves_out(shown: Browser, page: Path) -> None:
    shown.open(page, place="?without=thp&metric=page_faults")
    assert "thp" not in rows(shown, MEANS)
    shown.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert rows(shown, MEANS) == ARMS
        assert len(rows(shown, CHANGES)) > 1
        assert shown.evaluate("getComputedStyle(document.querySelector('svg [data-off]')).opacity") != "0.07"
        assert not see(shown, "seen(document.querySelector('.tools'))")
    finally:
        shown.send("Emulation.setEmulatedMedia", media="")


MARKUP = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"


@pytest.mark.parametrize("link", [f"?without={MARKUP}&t1={MARKUP}&s1=99&s2=-7&__proto__=x", "nowhere?", "%E0?="])
def test_no_link_breaks_a_page_or_runs_anything(shown: Browser, page: Path, link: str) -> None:
    shown.open(page, place=link)
    assert shown.complaints == []
    assert shown.evaluate("document.images.length") == 0
    assert shown.evaluate("document.scripts.length") == 1


def test_names_with_markup_stay_names(shown: Browser, tmp_path: Path) -> None:
    """The arm, the cell, the metric and what failed are called `<script>alert("x")</script> & ...`."""
    page = write(example(), tmp_path)["html"]
    shown.open(page)
    name = printable(f"arm {HOSTILE}")
    focus(shown, "[...document.querySelectorAll('.tools input')].at(-1)")
    assert shown.evaluate("document.activeElement.value") == name
    shown.press(" ")
    assert shown.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('without')") == name
    shown.open(page, place=shown.evaluate("location.hash.slice(1)"))
    off = shown.evaluate("[...document.querySelectorAll('tr[data-off]')].map(one => one.dataset.arm)")
    assert set(off) == {name}
    assert shown.evaluate("document.scripts.length") == 1
    assert shown.complaints == []


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("<script>null.x</script>", "TypeError"),
        ("<script>console.error('so')</script>", "so"),
        (
            "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><script>1</script>",
            "Security Policy",
        ),
    ],
)
def test_what_a_page_complains_of_is_heard(shown: Browser, tmp_path: Path, text: str, heard: str) -> None:
    """Else no test would see that a report's script fails, or that it loads something."""
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><title>x</title>{text}", encoding="utf-8")
    shown.open(tmp_path / "page.html")
    assert heard in shown.complaints[0]
