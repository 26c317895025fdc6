"""A document in each format: HTML, Markdown, a terminal."""

import io
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from hugewise.errors import RunError
from hugewise.report import document as doc
from hugewise.report.html import coded, html, whole
from hugewise.report.markdown import escape, markdown
from hugewise.report.sentences import Finding
from hugewise.report.summary import summary
from hugewise.report.terminal import show
from hugewise.store.folder import RunFolder
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build.logs import rewritten
from tests.build.pages import scriptless
from tests.build.results import HOSTILE, plain
from tests.cli.conftest import HUGEWISE
from tests.golden import GOLDEN, same
from tests.report.test_write import Page
from tests.report.told import printed

HARMLESS = "a_text"


def every(text: str) -> doc.Document:
    """Every block in every form, with this text, numbered, in every position."""
    numbers = itertools.count(1)

    def t() -> str:
        return f"{text} {next(numbers)}"

    def few(**looks: Any) -> doc.Table:
        return doc.Table(t(), (t(), "n"), (("thp", "−3"), (t(), t())), **looks)

    findings = (Finding(t(), leads=True), Finding(t(), leads=False))
    judged = (doc.Verdict("better", t(), "thp", findings, ((t(), t()), (t(), t()))), doc.Verdict("none", t()))
    figure = doc.Figure("drawn", "1-stem", t(), {}, t())
    kinds: tuple[Literal["card", "legend"], ...] = ("card", "legend")
    blocks: tuple[doc.Block, ...] = (
        *(doc.Line(t()), doc.Line(t(), quiet=True), doc.Points((t(), t())), doc.Note(t())),
        *(doc.Headline("better", t(), (t(), t())), doc.Headline("undecided", t())),
        *(doc.Heading(t()), doc.Heading(t(), link="second"), doc.Verdicts(judged)),
        *(few(), few(swatch=True), few(turned=True), doc.Table(t(), (t(),), ())),
        *(figure, doc.Figure("not drawn", "2-stem", t(), {})),
        doc.Commands(t(), t(), t(), steps=(("Now", (t(), t())), ("At boot", (t(),)))),
        doc.Commands(t(), t(), None, t()),
        *(doc.Bundle(kind, (doc.Line(t()), doc.Note(t()))) for kind in kinds),
        doc.Folded(t(), (doc.Line(t()),)),
        doc.Folded(t(), (doc.Line(t()),), open=True, long=True),
    )
    return doc.Document(
        title=t(),
        top=(doc.Headline("better", t()), doc.Line(t())),
        lead=(doc.Line(t()), doc.Line(t(), quiet=True)),
        sections=(
            doc.Section(t(), blocks, nav=t()),
            doc.Section(t(), (doc.Line(t()),), key="second"),
            doc.Section("", (doc.Line(t()),)),
        ),
        **{name: t() for name in ("about", "page", "heading", "files")},
        tally=(("better", 2), ("none", 1)),
        colours={"thp": "#123456"},
    )


FORMATS: dict[str, Callable[[doc.Document], str]] = {
    "html": lambda told: html(told, {"drawn": "<svg></svg>"}),
    "md": markdown,
    "txt": printed,
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_block_is_golden_in_every_format(kind: str) -> None:
    told = re.sub(r"<head>.*</head>\n|<script>.*</script>\n", "", FORMATS[kind](every(HARMLESS)), flags=re.DOTALL)
    golden = GOLDEN / f"blocks.{kind}"
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        golden.write_text(told, encoding="utf-8")
    assert told == golden.read_text(encoding="utf-8")


def marks(page: Page) -> list[tuple[str, list[str]]]:
    """Elements and the names of their attributes, but for names that are code, and words that stay in one piece."""
    return [(tag, list(names)) for tag, names in page.tags if names != {"class": "whole"} and tag != "code"]


def test_hostile_text_stays_text_in_every_position() -> None:
    harmless, hostile = Page(FORMATS["html"](every(HARMLESS))), Page(FORMATS["html"](every(HOSTILE)))
    assert hostile.open == []
    assert marks(hostile) == marks(harmless)
    for kind, tell in FORMATS.items():
        told, same = tell(every(HOSTILE)), tell(every(HARMLESS))
        assert "\x1b" not in told
        if kind != "txt":  # where names in narrow columns are folded
            letters = re.sub(r"\\|&#34;|&quot;|\"", "", told)
            assert letters.count("alert(x)") == same.replace("\\", "").lower().count(HARMLESS)
    text = markdown(every(HOSTILE))
    code = re.sub(r"(?m)^    .*$|^Run `.*?`,", "", text)  # in which nothing is markup
    assert "<script" not in code.replace("\\<script", "")
    assert all(line.endswith("|") for line in text.splitlines() if line.startswith("|"))
    assert printed(every(HOSTILE)).count("[bold]") > 40


def test_a_name_in_a_sentence_is_code_on_a_page() -> None:
    told = "Set `thp-2m`: <b>`a&b`</b> `, at `/etc/x.conf`, `A=b=1:c=2` and `disable-thp no`, ``"
    said = (
        "Set <code>thp-2m</code>: &lt;b&gt;`a&amp;b`&lt;/b&gt; `, at <code>/etc/x.conf</code>, <code>A=b=1:c=2</code>"
        " and <code>disable-thp no</code>, ``"
    )
    assert coded(told) == said
    verdict = doc.Verdict("better", "`thp`", findings=(Finding("`thp`", leads=False), Finding("`thp`", leads=True)))
    several = (
        *(doc.Line("`thp`"), doc.Headline("better", "`thp`", ("`thp`",)), doc.Note("`thp`"), doc.Points(("`thp`",))),
        doc.Verdicts((verdict,)),
    )
    page = scriptless(html(doc.Document("t", (doc.Line("`thp`"),), (doc.Section("s", several),)), {}))
    assert (page.count("<code>thp</code>"), page.count("`")) == (9, 0)


def test_a_text_means_nothing_in_markdown() -> None:
    assert escape("a|b_c *d* <e> ~5 #1") == r"a\|b\_c \*d\* \<e\> \~5 \#1"


def test_figures_are_found_wherever_they_stand() -> None:
    one, two, three = (doc.Figure(key, "", "", {}) for key in "123")
    within = (doc.Bundle("card", (doc.Bundle("card", (one,)),)), doc.Folded("s", (two,)), doc.Line("a"))
    told = doc.Document("t", (), (doc.Section("S", within), doc.Section("T", (three,))))
    assert list(doc.figures(told)) == [one, two, three]


def test_golden_output_at_80_columns_to_whose_words_colour_only_adds() -> None:
    shown = printed(summary(plain()), Path("results/demo/20261120-193000-ab12/report.html"))
    same(shown, GOLDEN / "verdicts.txt")
    assert max(map(len, shown.splitlines())) <= 80
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard", legacy_windows=False)
    show(summary(plain()), console=console)
    assert "\x1b[32m▲" in out.getvalue() and "▲ better" in shown


def test_commands_and_paths_are_never_broken() -> None:
    path = Path("/a/" + "long/" * 30 + "report.html")
    command = "echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    commands = doc.Commands("hugetlb-2m", "chase", "", steps=(("now", (command,)),))
    shown = printed(doc.Document("t", (), (doc.Section("s", (commands,)),)), path, width=60)
    assert f"Report: {path}\n" in shown
    assert f"    {command}\n" in shown


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("hugetlb-2m", ["hugetlb-2m"]),
        ("thp on a/b and mthp-64k", ["a/b", "mthp-64k"]),
        ("a - b, −5% –", []),
        ("-x y/", []),
        ("a-" * 50, []),  # nothing that a column could hold
    ],
)
def test_names_that_a_browser_would_break_are_kept_whole(text: str, kept: list[str]) -> None:
    made = str(whole(text))
    assert re.findall(r'<span class="whole">(.*?)</span>', made) == kept
    assert re.sub(r"<.*?>", "", made) == text
    beside = str(whole(f"{HOSTILE} {text} {HOSTILE}"))
    assert set(re.findall(r"<(/?\w+)", beside)) <= {"span", "/span"}


LONG = 1_000_000
DRAWN = """
from hugewise.report import images
long = "x" * 1_000_000
rows = [{"arm": long + "a", "value": 1}, {"arm": "b", "value": 2}]
spec = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "title": long,
    "data": {"values": rows},
    "mark": "bar",
    "encoding": {
        "x": {"field": "value", "type": "quantitative", "title": long, "axis": {"labelExpr": "datum.label"}},
        "y": {"field": "arm", "type": "nominal", "sort": [long + "a", "b"]},
    },
}
drawn = images.render(spec)
assert "x" * 256 + "\\u2026" in drawn
assert len(drawn) < 20_000
"""


def test_a_text_without_end_is_cut_in_a_figure() -> None:
    done = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_name_of_a_megabyte_is_refused_by_analyze(tmp_path: Path) -> None:
    rows = [f"{'x' * LONG}{arm},{1 + number / 10}" for number in range(20) for arm in "ab"]
    file = tmp_path / "long.csv"
    file.write_text("\n".join(["arm,seconds", "short,1", "short,1.1", *rows]) + "\n")
    command = [*HUGEWISE, "analyze", str(file), "--value", "seconds", "--better", "lower", "--unit", "s"]
    command += ["--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}: the arm 'xxxx" in done.stderr
    assert "has a name of 1,000,001 characters" in done.stderr
    assert "cure: name each arm, in their order: --arm base --arm thp" in done.stderr
    assert len(done.stderr) < 1000
    command += ["--arm", "short", "--arm", "base", "--arm", "thp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_arm_of_a_run_has_a_name_that_can_be_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", the_study(), normal(0.01, 3))

    def longer(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        records[0]["cells"][0]["arms"][1]["name"] = "x" * 257
        return records

    rewritten(run, longer)
    with pytest.raises(RunError, match=r"run\.jsonl has no first record") as caught:
        RunFolder(run).read()
    assert caught.value.hint
