"""Names that mean something to an engine: JavaScript's, SVG's, HTML's, Markdown's, rich's. Every format says them."""

import csv
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.external.analyze import analyze
from hugewise.external.reader import Ask
from hugewise.model.results import Results
from hugewise.report.external import report
from hugewise.report.external import write as write_external
from hugewise.report.summary import summary
from hugewise.report.terminal import show
from hugewise.report.write import write
from hugewise.visible import printable
from tests.build.pages import scriptless
from tests.build.results import plain

NAMES = (
    *("constructor", "__proto__", "hasOwnProperty", "toString", "valueOf", "isPrototypeOf", "__defineGetter__"),
    *("url(#x)", "url(#clip0)", "#gradient_0", 'it\'s "so"', "<script>alert(1)</script>", "</svg>", "&amp;", "]]>"),
    *("[red]x[/red]", "[/]", ":smile:", "a|b", "`x`", "$x$", "\\", "datum.arm", "1", "null", "NaN", "=1+1", "-rf"),
    *("\x1b[31mred", "a\u202eb", "ä漢", "x" * 256),
)


def renamed(results: Results, names: dict[str, str]) -> Results:
    """The same results, with other names of arms, cells and metrics wherever they stand."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {of(key): each if key == "kind" else of(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [of(each) for each in value]
        return names.get(value, value) if isinstance(value, str) else value

    return msgspec.convert(of(msgspec.to_builtins(results)), Results)


def texts(svg: Path) -> str:
    return " ".join("".join(one.itertext()) for one in ET.fromstring(svg.read_bytes()).iter())  # noqa: S314  (our own)


def one_cell() -> Results:
    """Of one cell, which has a figure of each kind, and all arms."""
    whole = plain()
    name = whole.cells[0].cell
    return replace(whole, cells=whole.cells[:1], attempts=tuple(one for one in whole.attempts if one.cell == name))


ARMS = ("base", "thp", "mthp-64k", "hugetlb-2m", "hugetlb-1g")
FIVES = [NAMES[at : at + 5] for at in range(0, len(NAMES), 5)]


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """How often each of five ordinary names stands in each figure."""
    names = {arm: f"qz{number}z" for number, arm in enumerate(ARMS)}
    paths = write(renamed(one_cell(), names), tmp_path_factory.mktemp("ordinary"))
    return {
        key: [texts(path).count(name) for name in names.values()] for key, path in paths.items() if key.endswith(".svg")
    }


@pytest.mark.parametrize("five", FIVES, ids=[ascii(five[0])[:40] for five in FIVES])
def test_arms_of_any_names_are_in_every_report(
    five: tuple[str, ...], ordinary: dict[str, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = renamed(one_cell(), dict(zip(ARMS, five, strict=False)))
    paths = write(results, tmp_path)
    page = paths["html"].read_text(encoding="utf-8")
    scriptless(page)
    for key in ("html", "markdown", "json", "attempts", "comparisons"):
        written = paths[key].read_text(encoding="utf-8")
        assert [one for one in written if not one.isprintable() and one not in "\n\r\t"] == [], key
    drawn = {key: texts(path) for key, path in paths.items() if key.endswith(".svg")}
    assert drawn.keys() == ordinary.keys() and any(map(any, ordinary.values()))
    for key, counts in ordinary.items():
        for name, count in zip(five, counts, strict=False):
            shown = printable(name)
            assert drawn[key].count(shown if len(shown) < 30 else "x" * 12) >= count, (key, name)
    show(summary(results))
    assert "\x1b" not in capsys.readouterr().out


def test_all_names_of_a_cell_may_be_such(tmp_path: Path) -> None:
    whole = one_cell()
    cell = whole.cells[0]
    names = {cell.cell: "__proto__", cell.workload: "toString", cell.metric.name: "url(#x)", "base": "constructor"}
    paths = write(renamed(whole, names), tmp_path)
    assert "__proto__" in texts(paths["overview.svg"])
    assert any(key.endswith(".svg") for key in paths)


EIGHTS = [NAMES[at : at + 8] for at in range(0, len(NAMES), 8)]


@pytest.mark.parametrize("eight", EIGHTS, ids=[ascii(eight[0])[:40] for eight in EIGHTS])
def test_a_file_whose_arms_have_any_names_is_analysed(eight: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["round", "arm", "seconds"])
        rows.writerows([number, arm, 1 + number % 7 / 10] for number in range(12) for arm in eight)
    results = analyze([path], ask=Ask(value="seconds"))
    paths = write_external(results, report(results), tmp_path / "out")
    scriptless(paths["html"].read_text(encoding="utf-8"))
    drawn = " ".join(texts(path) for key, path in paths.items() if key.endswith(".svg"))
    for name in eight:
        assert printable(name)[:12] in drawn, name
