"""Pages of results: made from their data alone, every verdict and figure of which stands on them."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import report as large
from hugewise.errors import RunError, UserError
from hugewise.model.results import Results
from hugewise.report.markdown import escape
from hugewise.report.sentences import effect_of, marked
from hugewise.stats.evidence import Carried, RunEvidence
from hugewise.store.folder import RunFolder
from hugewise.store.records import Closed
from hugewise.study import load
from hugewise.study.study import Study
from tests.analysis.test_forecast import normal, write_run
from tests.build import restated
from tests.build.results import HOSTILE, example
from tools.results import overview, page
from tools.results import page as result_page
from tools.results.claims import claimed
from tools.results.data import PageData, PageRun, read, without_paths
from tools.results.page import MOST_BYTES, RESERVED, render
from tools.results.runs import standing

MADE: dict[str, Callable[[], Results]] = {
    "lpc": restated.lpc,
    "example": example,
}


def page_of(results: Results, **more: object) -> PageData:
    return PageData(runs=(PageRun(results=results, **more),))  # type: ignore[arg-type]


def text(data: PageData, name: str = "page") -> str:
    return render(data, name)[f"{name}.md"].decode()


@pytest.mark.parametrize("name", MADE)
def test_a_page_is_made_again_from_its_file_alone(name: str, tmp_path: Path) -> None:
    data = page_of(MADE[name]())
    written = result_page.write(tmp_path / f"{name}.parquet", data)
    assert written[0].stat().st_size < result_page.MOST_BYTES
    again = render(read(tmp_path / f"{name}.parquet"), name)
    assert {tmp_path / path: content for path, content in again.items()} == {
        path: path.read_bytes() for path in written[1:]
    }
    links = re.findall(r"\]\(([^)]+\.svg)\)", again[f"{name}.md"].decode())
    assert set(links) == set(again) - {f"{name}.md"}


def test_texts_of_others_are_shown_as_text(tmp_path: Path) -> None:
    results = msgspec.structs.replace(example(), question=HOSTILE)
    shown = text(page_of(results))
    assert "<script>" not in shown
    assert "\x1b" not in shown
    result_page.write(tmp_path / "x.parquet", page_of(results))
    overview.write(tmp_path)
    assert "<script>" not in (tmp_path / "overview.md").read_text()


def test_several_runs_are_judged_together() -> None:
    results = example()
    cell = results.cells[0]
    one = cell.comparisons[0]
    identity = {"design": "sequential"}

    def evidence(run: str, larger: float) -> RunEvidence:
        carried = Carried(
            cell=cell.cell, arm=one.arm, baseline=one.baseline, metric=one.metric, higher_is_better=False,
            identity=identity, pairs=10, larger=larger, smaller=0.01, absent="", end_point="typical ratio",
        )  # fmt: skip
        return RunEvidence(run=run, seed_hash=run * 8, host="h", comparisons=(carried,))

    later = msgspec.structs.replace(results, run="later", started=results.started + 60)
    data = PageData(
        runs=(
            PageRun(results=later, evidence=evidence("later", 50.0)),
            PageRun(results=msgspec.structs.replace(results, run="first"), evidence=evidence("first", 40.0)),
        )
    )
    shown = text(data)
    assert "newest of 2 runs" in shown
    lead = shown[: shown.index("\n## ")]
    worse = f"({escape(cell.cell)}, {one.arm}: {escape(one.metric)} worse)"
    one_of = f"The runs together decide 1 of 1 comparisons that several of them have {worse}."
    assert one_of in lead  # beside what each run found alone
    assert "together" not in text(page_of(results))[: text(page_of(results)).index("\n## ")]
    line = next(told for told in shown.splitlines() if "10 + 10" in told)
    assert line.endswith("| worse |")  # larger is worse of a time
    assert one.verdict == "better"
    alone = escape(f"{effect_of(one)}, better")
    assert f"| {alone}; {alone} | 10 + 10 |" in line, "by how much each found it"
    assert "| 1,000 |" in line


def test_an_arm_that_a_later_run_left_out_keeps_its_figures() -> None:
    """With `--arms` a cell was measured again, and nothing on the page told by how much the other arms differ."""
    results = restated.lpc()
    cell = msgspec.structs.replace(results.cells[0], end_points=())
    first, other, *_ = cell.comparisons
    older = msgspec.structs.replace(
        results, cells=(msgspec.structs.replace(cell, comparisons=(first, other)),), run="older", beside=None
    )
    again = msgspec.structs.replace(cell, comparisons=(msgspec.structs.replace(first, n=7, verdict="undecided"),))
    newer = msgspec.structs.replace(older, run="newer", started=older.started + 60, cells=(again,))
    data = PageData(runs=(PageRun(results=newer), PageRun(results=older)))
    ((_, newest), (_, left)) = standing(data)
    assert newest == newer and [one for each in left.cells for one in each.judged] == [other]
    shown = text(data)
    part = shown.partition("\n## Not in the newest run: the run of ")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith(f"| {escape(cell.cell)} |")]
    (row,) = rows
    assert f"| {other.arm} |" in row and row.endswith(f"| {marked(other.verdict)} |")
    lead = shown[: shown.index("\n## ")]
    assert f"older runs alone have: {escape(cell.cell)} ({other.arm}) of the run of " in lead
    assert f"By the newest run of each, {int(other.verdict != 'undecided')} of 2 comparisons have a verdict." in lead


def test_a_later_run_does_not_undo_an_earlier_one() -> None:
    results = restated.lpc()
    assert results.beside is not None
    turn = {"same sign": "opposite sign"}
    points = tuple(
        msgspec.structs.replace(one, agreement=turn.get(one.agreement, one.agreement)) for one in results.beside.points
    )
    other = msgspec.structs.replace(
        results,
        run="earlier",
        started=results.started - 60,
        beside=msgspec.structs.replace(results.beside, points=points),
    )
    both = PageData(runs=(PageRun(results=results), PageRun(results=other)))
    confirmed = {one.row for one in claimed([results]) if one.how == "same sign"}
    assert len(confirmed) == 2
    now = {one.row: one for one in claimed([results, other])}
    assert {now[row].standing for row in confirmed} == {"not decidable here"}
    assert "an earlier run says otherwise" in text(both)


def test_what_was_published_within_the_margin_is_not_contradicted_by_equivalence() -> None:
    results = restated.lpc()
    by = {one.row.agreement: one.standing for one in claimed([results])}
    assert by["equivalent here"] == "contradicted here"  # 16% were published
    wide = msgspec.structs.replace(results, margin=0.2)
    by = {one.row.agreement: one.standing for one in claimed([wide])}
    assert by["equivalent here"] == "not decidable here"


def test_what_is_open_has_pairs_and_hours_or_the_reason_why_not() -> None:
    results = restated.percona_2018()
    open_ = [(cell.cell, one.arm) for cell in results.cells for one in cell.comparisons if one.verdict == "undecided"]
    assert open_
    shown = text(page_of(results)).partition("## Not decided here")[2].partition("\n## ")[0]
    assert shown.count("no forecast: too few pairs, or no method that could be planned | unknown |") == len(open_)


def test_a_run_joins_its_page(tmp_path: Path) -> None:
    run = large.run(240, tmp_path / "made")
    page = tmp_path / "pages" / "report.parquet"
    result_page.add(page, run)
    first = page.with_suffix(".md").read_text()
    assert "10 complete blocks" in first or "80 complete blocks" in first
    assert "Not decided here" in first
    result_page.add(page, run)  # the same run stands there once
    assert len(read(page).runs) == 1
    assert page.with_suffix(".md").read_text() == first


def test_what_cannot_be_a_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = large.run(240, tmp_path / "made")
    page = tmp_path / "other.parquet"
    result_page.write(page, page_of(example()))
    with pytest.raises(UserError, match="is of .*, and .* is of report"):
        result_page.add(page, run)
    (tmp_path / "torn.parquet").write_bytes(page.read_bytes()[:200])
    with pytest.raises(RunError, match="cannot be read"):
        read(tmp_path / "torn.parquet")
    lines = (run / "run.jsonl").read_bytes().splitlines(keepends=True)
    (run / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    with monkeypatch.context() as patch, pytest.raises(UserError, match="has not ended"):
        patch.setattr(result_page, "going_on", lambda _: True)
        result_page.add(tmp_path / "new.parquet", run)
    assert not (tmp_path / "new.parquet").exists()
    result_page.add(tmp_path / "new.parquet", run)  # it was broken off
    assert read(tmp_path / "new.parquet").runs[0].results.state == "interrupted"


def test_files_of_others_are_left_as_they_are(tmp_path: Path) -> None:
    data = page_of(example())
    for name, kept in (("README", "README.md"), ("fig", "fig/mine.svg"), ("data", "data.parquet")):
        (tmp_path / kept).parent.mkdir(exist_ok=True)
        (tmp_path / kept).write_text("somebody's")
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises((UserError, RunError)):
            result_page.write(tmp_path / f"{name}.parquet", data)
        assert (tmp_path / kept).read_text() == "somebody's"
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match="overview's"):
        result_page.write(tmp_path / "overview.parquet", data)
    result_page.write(tmp_path / "mine.parquet", data)
    (tmp_path / "folklore.md").write_text("ours")
    with pytest.raises(UserError, match="not made by hugewise"):
        overview.write(tmp_path)
    assert not (tmp_path / "overview.md").exists()
    (tmp_path / "folklore.md").unlink()
    assert {path.name for path in overview.write(tmp_path)} == {f"{name}.md" for name in result_page.RESERVED}
    assert "data.parquet" not in (tmp_path / "overview.md").read_text()  # no page of ours
    result_page.write(tmp_path / "mine.parquet", data)  # our own are made again


def test_a_page_that_is_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_page, "MOST_BYTES", 100)
    with pytest.raises(UserError, match="more than 100"):
        result_page.write(tmp_path / "x.parquet", page_of(example()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("hugewise run demo --blocks 3", "hugewise run demo --blocks 3"),
        ("hugewise run /home/me/own.toml --results /home/me/r --only a", "hugewise run own.toml --only a"),
        ("hugewise run demo --results=/home/me/r --page docs/x.parquet --time 4m", "hugewise run demo --time 4m"),
        ("", ""),
    ],
)
def test_a_command_is_published_without_the_paths_of_its_host(command: str, told: str) -> None:
    assert " ".join(without_paths(command.split())) == told


def ended(
    results: Path,
    of: Study,
    pairs: int = 20,
    *,
    seed: bytes = bytes(16),
    t: float = 0.0,
    command: str = "",
    **more: Any,
) -> Path:
    """The folder of a run of `write_run` that has ended; it began at `t`, by `command`."""
    run = {"seed": seed, "t": t, "command": tuple(command.split())}
    path = write_run(results, of, normal(0.02, pairs), run=run, **more)
    RunFolder(path).append(Closed(t=1e4, state="finished", seed=seed.hex()))
    return path


FOLDER = Path(__file__).parents[2] / "docs" / "results"
NAMES = sorted(path.stem for path in FOLDER.glob("*.parquet"))


def test_there_are_pages_of_studies_of_ours() -> None:
    studies = {read(FOLDER / f"{name}.parquet").runs[0].results.study for name in NAMES}
    assert studies and studies <= set(load.names())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_its_data_say(name: str) -> None:
    data = FOLDER / f"{name}.parquet"
    assert data.stat().st_size < MOST_BYTES
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        page.write(data, read(data))
    made = page.render(read(data), name)
    there = [FOLDER / f"{name}.md", *(FOLDER / name).glob("*")]
    assert {str(path.relative_to(FOLDER)): path.read_bytes() for path in there} == made


def test_the_overview_is_that_of_all_pages_and_nothing_else_lies_there(tmp_path: Path) -> None:
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        overview.write(FOLDER)
    copy = tmp_path / "results"
    shutil.copytree(FOLDER, copy)
    made = overview.write(copy)
    assert all(path.read_bytes() == (FOLDER / path.relative_to(copy)).read_bytes() for path in made)
    assert {path.name for path in made} == {*(f"{name}.md" for name in RESERVED), "published.svg"}
    predicted = {path.stem for path in FOLDER.glob("*.json")}
    assert {path.stem for path in FOLDER.glob("*.md")} == {*NAMES, *RESERVED, *predicted}


@pytest.mark.parametrize("name", NAMES)
def test_no_two_headings_of_a_page_have_one_name(name: str) -> None:
    headings = [line for line in (FOLDER / f"{name}.md").read_text().splitlines() if line.startswith("#")]
    assert len(headings) == len({*headings})


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_is_open_lacks_pairs_and_hours_without_a_reason(name: str) -> None:
    shown = (FOLDER / f"{name}.md").read_text()
    for part in shown.split("\n## ")[1:]:
        if part.startswith(("Not decided here", "Not run")):
            assert "| – | – |" not in part
