"""What a reader sees: reports and figures as a browser lays them out, measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from hugewise.model.results import Results
from hugewise.report import fleet, images
from hugewise.report.figures.backed import backed
from hugewise.report.figures.tail import of_operations
from hugewise.report.figures.theme import SIZE, colours
from hugewise.report.write import write
from tests.browser import Browser
from tests.build.few_blocks import demo, two_blocks
from tests.build.operations import with_operations
from tests.build.restated import lkml, lpc
from tests.report.conftest import without_png
from tests.report.test_fleet import of_many_hosts

SHOWN = Path(__file__).with_name("shown.js").read_text(encoding="utf-8")
README = Path(__file__).parents[2] / "docs" / "figures" / "demo.svg"

Corners = list[list[float]]

WIDTHS = (360, 800, 1400)  # CSS pixels: of a telephone, a tablet and a desk
ONE_WIDTH = [WIDTHS[0], *(pytest.param(width, marks=pytest.mark.soak) for width in WIDTHS[1:])]


def of_run(made: Callable[[], Results]) -> Callable[[Path], dict[str, Path]]:
    return lambda folder: write(made(), folder)


LARGEST = "18 cells of 2 blocks"
REPORTS: dict[str, Callable[[Path], dict[str, Path]]] = {
    LARGEST: of_run(two_blocks),
    "demo": of_run(demo),
    # The smallest, those that reach furthest, and those of which more is better, with fewer arms.
    "three cells of the demo": of_run(lambda: demo("chase-inside", "chase-around", "fault")),
    "what others published": of_run(lpc),
    "counters side by side": of_run(lkml),
    "a fleet": lambda folder: fleet.write(of_many_hosts(), folder),
}


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(name, marks=pytest.mark.soak) for name in list(REPORTS)[:2]), *list(REPORTS)[2:]],
)
def paths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    with without_png():
        return REPORTS[request.param](tmp_path_factory.mktemp("run"))


def look(shown: Browser, path: Path, width: int = WIDTHS[-1]) -> dict[str, Any]:
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


@pytest.mark.parametrize("width", ONE_WIDTH)
def test_no_text_of_a_page_is_clipped_covered_broken_or_of_another_size(
    shown: Browser, paths: dict[str, Path], width: int
) -> None:
    found = look(shown, paths["html"], width)
    assert len(found["figures"]) == sum(key.endswith(".svg") for key in paths)
    assert all(figure["texts"] for figure in found["figures"])
    assert found["words"] > 500
    assert found["prose"] > 100
    assert ugly(shown, found, width) == []


def test_nor_of_a_figure_that_is_a_file_and_no_mark_leaves_its_plot(
    shown: Browser, paths: dict[str, Path], tmp_path: Path
) -> None:
    """One of them as the file that it is; all on one page, as to open each of 40 takes a browser ten times as long."""
    files = {key: path for key, path in paths.items() if key.endswith(".svg")}
    (alone,) = look(shown, next(iter(files.values())))["figures"]
    every = tmp_path / "every.html"
    every.write_text("\n".join(["<!DOCTYPE html>", *(path.read_text("utf-8") for path in files.values())]), "utf-8")
    figures = look(shown, every)["figures"]
    assert len(figures) == len(files) > 0
    assert len(figures[0]["marks"]) == len(alone["marks"])
    for key, figure in zip([*files, "alone"], [*figures, alone], strict=True):
        assert figure["marks"], key
        assert list(faults(figure)) == [], key


def test_nor_of_a_gain_against_its_pages_or_of_the_tail_of_operations(shown: Browser, tmp_path: Path) -> None:
    """Figures that no recorded run has: with long names, far ends, and ends that are not known."""
    points: list[dict[str, float | None]] = [
        {"share": 0.0, "change": 0.0, "low": 0.0, "high": 0.0},
        {"share": 4.5, "change": -31.5, "low": None, "high": None},
        {"share": 50.0, "change": 120.0, "low": -20.0, "high": 4000.0},
        {"share": 100.0, "change": 131.0, "low": 110.0, "high": 150.0},
    ]
    gain = backed(
        points, [(0.0, 0.0), (50.0, 120.0), (100.0, 131.0)], (50.0, 4.5, 99.5), metric="requests_per_s", confidence=0.99
    )
    results = demo()
    tail = of_operations(with_operations(results.cells[0]), colours(results))
    assert tail is not None
    for name, spec in (("gain", gain), ("tail", tail)):
        path = tmp_path / f"{name}.svg"
        path.write_text(images.standalone(images.render(spec)), encoding="utf-8")
        (figure,) = look(shown, path)["figures"]
        assert len(figure["marks"]) >= 5 and len(figure["texts"]) >= 8
        assert list(faults(figure)) == []


def test_nor_of_the_figure_in_the_readme(shown: Browser) -> None:
    (figure,) = look(shown, README)["figures"]
    assert figure["marks"]
    assert list(faults(figure)) == []
    assert images.font_face() in README.read_text(encoding="utf-8")


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
