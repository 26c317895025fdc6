"""The written reports: complete, whole, and deaf to hostile text."""

import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.deployment import configuration as host_files
from hugewise.errors import StorageError
from hugewise.model.policy import Deployment
from hugewise.model.results import VERDICTS, Results
from hugewise.report import document as doc
from hugewise.report import images
from hugewise.report.data_files import field
from hugewise.report.document import Commands, file_name
from hugewise.report.sections.answer import programs_table
from hugewise.report.sentences import sentence
from hugewise.report.write import report, write
from hugewise.visible import printable
from tests.analysis.test_sets import cell
from tests.build.pages import SCRIPT, scriptless
from tests.build.results import HOSTILE, example, plain
from tests.report.told import blocks
from tests.report.told import page as page_text
from tests.report.told import text as text_of
from tests.requirements import need_root

NOBODY = 65534
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """What a browser would make of the page: elements with attributes, texts, ids, and whether tags match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.style = self.script = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.script += data
        else:
            self.texts.append(data)

    def values(self, name: str) -> Iterator[str]:
        return (value for _, attributes in self.tags if (value := attributes.get(name)))


@pytest.fixture(scope="module")
def results() -> Results:
    return example()


@pytest.fixture(scope="module")
def paths(results: Results, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write(results, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def text(paths: dict[str, Path]) -> str:
    return paths["html"].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_every_file_is_there_and_nothing_else(paths: dict[str, Path]) -> None:
    folder = paths["html"].parent
    expected = {"report.html", "report.md", "report.json", "attempts.csv", "comparisons.csv"}
    assert expected <= {path.name for path in paths.values()}
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(paths.values())
    for kind in ("distribution", "coverage", "time-order"):
        assert paths[f"1-{kind}.svg"].stat().st_size > 1000


def test_the_page_names_no_address_and_runs_nothing_of_others(text: str, page: Page) -> None:
    text = scriptless(text).replace(images.font_face(), "")  # base64 may have anything in it
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not {"link", "iframe", "object", "embed", "img", "base"} & {tag for tag, _ in page.tags}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    assert not {"action", "method"} & {name for tag, attributes in page.tags if tag == "form" for name in attributes}
    asks = (
        "await fetch('version', { cache: 'no-store' })"  # of a page that is served; a file's policy has no connect-src
    )
    assert SCRIPT.count(asks) == 1 and "data-live" not in text
    refused = r"innerHTML|outerHTML|insertAdjacent|\.write|eval|Function|fetch|XMLHttp|import"
    assert not re.search(refused, SCRIPT.replace(asks, ""))
    assert all(value.startswith("#") for value in page.values("href"))
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]


def test_the_policy_forbids_everything_but_our_script_our_style_sheet_and_its_font(page: Page) -> None:
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    style, script = (
        base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (page.style, page.script)
    )
    ours = f"script-src 'sha256-{script}'; style-src 'sha256-{style}'; font-src data:"
    assert policy == f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"
    assert page.script == SCRIPT
    assert images.font_face() in page.style


def test_every_verdict_has_a_colour_of_its_own_and_each_rule_stands_once(page: Page) -> None:
    rules = dict(re.findall(r"^\.(\w+) \.badge \{ color: (.+?); \}$", page.style, re.MULTILINE))
    assert rules == {verdict: f"var(--{verdict})" for verdict in VERDICTS}
    screen = page.style.partition("@media (max-width")[0]
    selectors = re.findall(r"^([.\w][^{@]*?) \{", screen, re.MULTILINE)
    assert len(selectors) == len(set(selectors))


def test_tags_match_and_ids_are_unique_on_a_small_page(text: str, page: Page) -> None:
    assert len(text.encode()) < 1_500_000
    assert page.open == []
    ids = list(page.values("id"))
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in page.values("href")} <= set(ids)
    referred = {
        name for tag, a in page.tags if tag != "a" for v in a.values() for name in re.findall(r"url\(#(.+?)\)", v or "")
    }
    assert referred <= set(ids)


def test_figures_have_their_words(page: Page) -> None:
    figures = [a for tag, a in page.tags if tag == "svg" and a.get("role") == "img"]
    assert len(figures) == 10 + 1  # the overview has a narrow one too
    assert {a["aria-labelledby"] for a in figures} <= set(page.values("id"))


def test_the_page_tells_everything(results: Results, page: Page) -> None:
    whole = " ".join("".join(page.texts).split())
    told = [sentence(one, cell.metric, results.margin) for cell in results.cells for one in cell.comparisons]
    told += [results.seed_hash, results.seed or "", "transparent_hugepage=always", "vm.nr_hugepages = 512"]
    told += ["the region is smaller than one 1 GiB page", "Example 9000", "between.settle", "lower is better"]
    told += ["this machine has no hardware counters", "killed by signal 9: out of memory", "pool reserved"]
    told += ["memory with pool", "memory at most", "of it a pool"]
    told += ["1.00 GiB (baseline 1.00 GiB)", "page-sizes.cfg", "left out before", "q25", "promised size"]
    told += ["steal was 7% of the time", "0.728 (20 blocks)", "policies set by settings of the whole system (as root)"]
    for one in told:
        assert " ".join(one.split()).replace("`", "") in whole.replace("`", "")


def test_standalone_figures_are_well_formed_and_lead_nowhere(paths: dict[str, Path]) -> None:
    for key, path in paths.items():
        if key.endswith(".svg"):
            root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314  (our own output)
            found = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert not found & {"script", "image", "a", "foreignObject"}
            assert "currentColor" not in path.read_text(encoding="utf-8")


def test_the_answer_comes_first_and_every_cell_has_a_section(results: Results) -> None:
    shown = [section.key for section in report(results).sections]
    cells = [f"cell-{number}" for number in range(1, len(results.cells) + 1)]
    assert shown == ["answer", "settings", "left-out", *cells, "trouble", "run", "reading"]


def test_markdown_escapes_and_links(results: Results, paths: dict[str, Path]) -> None:
    text = paths["markdown"].read_text(encoding="utf-8")
    assert "<script" not in text.replace("\\<script", "")
    assert "\x1b" not in text
    for path in re.findall(r"!\[.*?\]\((.+?)\)", text):
        assert (paths["markdown"].parent / path).is_file()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines)
    assert f"seed's hash, committed before the first block | {results.seed_hash}" in text


def test_one_row_per_attempt(results: Results, paths: dict[str, Path]) -> None:
    with paths["attempts"].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results.attempts)
    for row, attempt in zip(rows, results.attempts, strict=True):
        assert (row["cell"], row["arm"]) == (printable(attempt.cell), printable(attempt.arm))
        assert int(row["block"]) == attempt.block
        assert row["metric.cycles"] == ""  # a missing counter is empty, never 0
        value = attempt.metrics.get("latency_ns")
        assert row["metric.latency_ns"] == ("" if value is None else repr(value))
        assert row["delivered"] == {True: "true", False: "false", None: ""}[attempt.delivery.delivered]


def test_one_row_per_comparison(results: Results, paths: dict[str, Path]) -> None:
    with paths["comparisons"].open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    told = [
        (printable(cell.cell), printable(one.arm), one.verdict, cell.metric.better)
        for cell in results.cells
        for one in cell.comparisons
    ]
    assert [(row["cell"], row["arm"], row["verdict"], row["better"]) for row in rows] == told
    assert float(rows[0]["ratio"]) == results.cells[0].comparisons[0].ratio


def test_a_spreadsheet_does_not_run_text(results: Results, tmp_path: Path) -> None:
    first = replace(results.attempts[0], reason="=1+cmd|' /C calc'!A0")
    paths = write(replace(results, cells=(), attempts=(first,)), tmp_path)
    assert ",'=1+cmd" in paths["attempts"].read_text(encoding="utf-8")
    for sign in "=+-@＝＋－＠﹦":
        assert field(f"{sign}1") == f"'{sign}1"


def test_json_reads_back(results: Results, paths: dict[str, Path]) -> None:
    text = paths["json"].read_bytes()
    assert msgspec.json.decode(text, type=Results) == replace(results, attempts=())
    assert "attempts" not in msgspec.json.decode(text)


def test_a_second_report_replaces_the_first(results: Results, tmp_path: Path) -> None:
    small = replace(results, cells=(), attempts=())
    (tmp_path / "report.html").write_text("old")
    paths = write(small, tmp_path)
    assert "No cell was measured." in paths["html"].read_text(encoding="utf-8")
    assert not list(tmp_path.rglob(".*"))


def test_a_report_that_cannot_be_written_says_so_and_leaves_the_old_one(results: Results, tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(StorageError, match=r"report\.json: the report cannot be written") as caught:
        write(replace(results, cells=()), tmp_path)
    assert caught.value.hint is not None
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.fixture
def theirs(reached: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the account that called sudo, for which root makes the report."""
    need_root()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    (reached / "run").mkdir()
    os.chown(reached / "run", NOBODY, NOBODY)
    return reached / "run"


def planted(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, NOBODY, NOBODY)


def test_a_link_of_the_account_leads_root_nowhere(results: Results, theirs: Path, tmp_path: Path) -> None:
    """Root followed `figures`, and wrote where the account could not."""
    victim = tmp_path / "roots"
    victim.mkdir()
    planted(theirs / "figures", victim)
    with pytest.raises(StorageError, match="figures: the report cannot be written"):
        write(results, theirs)
    assert list(victim.iterdir()) == []
    (theirs / "figures").unlink()
    (tmp_path / "file").write_text("root's")
    planted(theirs / "report.html", tmp_path / "file")
    for _ in range(2):
        write(results, theirs)
    assert (tmp_path / "file").read_text() == "root's"
    assert not (theirs / "report.html").is_symlink()
    assert {path.stat().st_uid for path in (theirs / "figures", *theirs.glob("report.*"))} == {NOBODY}


def test_a_folder_that_is_put_in_the_place_of_the_report_is_not_written_to(
    results: Results, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = images.render

    def swapping(spec: dict[str, Any]) -> str:
        if not theirs.is_symlink():
            theirs.rename(theirs.with_name("moved"))
            theirs.symlink_to(tmp_path)
        return render(spec)

    monkeypatch.setattr(images, "render", swapping)
    write(results, theirs)
    assert list(tmp_path.iterdir()) == []
    assert (theirs.with_name("moved") / "report.html").exists()


def test_file_names() -> None:
    assert file_name(1, "chase bytes=1g") == "1-chase-bytes=1g"
    hostile = [file_name(9, text) for text in (HOSTILE, "../../etc/passwd", "..", "", "a" * 500, "A\0B", "ä", "-rf")]
    assert all(re.fullmatch(r"9(-[A-Za-z0-9=_][A-Za-z0-9._=-]{0,59})?", name) for name in hostile)


def test_figures_without_room_are_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """What draws them traps where it cannot reserve its addresses, as under `ulimit -v`."""
    code = (
        "import resource, sys; from pathlib import Path; from hugewise.report.write import write;"
        " from hugewise.errors import StorageError; from tests.build.results import example;"
        " resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try: write(example(), Path(sys.argv[1]))\n"
        "except StorageError as error: print(error.message, error.hint)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "reserves 64 GiB of addresses" in done.stdout
    assert "ulimit -v unlimited" in done.stdout


def test_each_set_and_policy_is_a_row_that_says_what_is_left_out() -> None:
    both, pool = (0.9, 0.8, 1.0), (0.5, 0.4, 0.6)
    cells = (cell("gcc", {"thp": both}), cell("xz", {"thp": both, "hugetlb-2m": pool}))
    table = programs_table(msgspec.structs.replace(plain(), cells=cells))
    assert table is not None
    assert [row[:2] for row in table.rows] == [("set", "thp"), ("set", "hugetlb-2m")]
    assert table.rows[0][4:] == ("at least 98%", "2", "–")
    assert "−10" in table.rows[0][3]
    assert table.rows[1][-1] == "without gcc, which cannot take the policy"


THP = "echo always &gt; /sys/kernel/mm/transparent_hugepage/enabled"
PATH = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
POOL = f"echo 512 > {PATH}"


def twice(other: int | None = None) -> Results:
    """The first cell two times; in the second the pool is of another size if one is given."""
    results = plain()
    first = results.cells[0]
    arms = first.arms
    if other is not None:
        pool = Deployment(files=(host_files.now({PATH: str(other)}),), note="")
        arms = tuple(replace(arm, deployment=pool) if arm.arm == "hugetlb-2m" else arm for arm in arms)
    return replace(results, cells=(first, replace(first, cell="again", arms=arms)))


def places(results: Results) -> list[tuple[str, str]]:
    (told, *_) = (one for one in report(results).sections if one.key == "settings")
    assert all(isinstance(one, Commands) for one in told.blocks[:-1])
    return [(one.arm, one.place) for one in blocks(doc.Document("", (), (told,)), Commands)]


def test_cells_that_share_a_setting_are_named_with_it() -> None:
    both = "chase bytes=1g, again"
    dear = "chase bytes=1g (yours to weigh), again (yours to weigh)"
    assert places(twice()) == [("hugetlb-2m", dear), ("thp", both), ("mthp-64k", both)], "the best first"
    assert places(twice(64))[:2] == [("hugetlb-2m", each) for each in dear.split(", ")]


def test_commands_stand_once_in_every_format() -> None:
    results = twice()
    assert page_text(results).count(THP) == 1
    assert 'thp <span class="quiet">for chase bytes=1g, again</span>' in page_text(results)
    assert text_of(results).count(f"    {POOL}\n") == 1
    dear = "chase bytes=1g (yours to weigh), again (yours to weigh)"
    assert f"**hugetlb-2m**, for {dear}: the program must map" in text_of(results)
    assert "**mthp-64k**, for chase bytes=1g, again: no commands are known; what it did: asks for" in text_of(results)
