"""Pages of results: made from their data alone, every verdict and figure of which stands on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import report as large
from hugewise.errors import RunError, UserError
from hugewise.model.results import CellResult, Comparison, Guests, Results
from hugewise.report import numbers
from hugewise.report.document import Table
from hugewise.report.markdown import escape
from hugewise.report.sentences import effect_of, marked
from hugewise.stats.evidence import Carried, RunEvidence
from hugewise.store.folder import RunFolder
from hugewise.store.records import Closed
from hugewise.study.study import Study
from tests.analysis.test_forecast import normal, write_run
from tests.build import restated
from tests.build.results import HOSTILE, example
from tools.results import overview
from tools.results import page as result_page
from tools.results.claims import claimed
from tools.results.data import PageData, PageRun, read, without_paths
from tools.results.page import render
from tools.results.runs import standing

MADE: dict[str, Callable[[], Results]] = {
    "lpc": restated.lpc,
    "lkml": restated.lkml,
    "percona-2018": restated.percona_2018,
    "percona-2019": restated.percona_2019,
    "redhat": restated.redhat,
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


@pytest.mark.parametrize("name", [name for name in MADE if name != "example"])
def test_where_it_was_published_is_said_once(name: str) -> None:
    """It stood in the lead and again, word for word, before the tables; the exact reasons as well."""
    data = page_of(MADE[name]())
    beside = data.runs[0].results.beside
    assert beside is not None
    several = list(text(data).splitlines())
    assert sum(line.startswith("Published: “") for line in several) == 1
    assert sum(line.startswith("Published on: ") for line in several) == 1
    assert sum("The reasons in exact terms" in line for line in several) <= 1
    assert sum(escape(beside.title) in line for line in several) == 1


def test_every_verdict_stands_there_and_goes_with_the_data() -> None:
    results = restated.percona_2018()
    shown = text(page_of(results))
    for cell in results.cells:
        for one in cell.comparisons:
            rows = [row for row in shown.splitlines() if row.startswith(f"| {escape(cell.cell)} | {one.arm} |")]
            assert any(row.endswith(f"| {marked(one.verdict)} |") for row in rows)
    first = results.cells[0]
    turned = {"better": "worse", "worse": "better"}.get(first.comparisons[0].verdict, "better")
    changed = msgspec.structs.replace(first.comparisons[0], verdict=turned)
    cells = (msgspec.structs.replace(first, comparisons=(changed, *first.comparisons[1:])), *results.cells[1:])
    assert text(page_of(msgspec.structs.replace(results, cells=cells))) != shown


def test_published_claims_are_grouped_by_what_became_of_them() -> None:
    shown = text(page_of(restated.lpc()))
    confirmed, contradicted, open_ = (shown.index(f"### {word}") for word in ("Confirmed", "Contradicted", "Not"))
    assert confirmed < contradicted < open_
    assert "(same sign; published change " in shown[confirmed:contradicted]
    assert "That is of the sign; published changes within our interval: " in shown[confirmed:contradicted]
    assert "(opposite sign; published change " in shown[contradicted:open_]
    assert "(undecided here; published change " in shown[open_:]
    assert "what else is other here may be behind it: the machine (published Ampere Altra" in shown[open_:]


def row_of_overview(data: PageData) -> tuple[str, ...]:
    """The page's row in the overview's table of pages."""
    every = overview.overview({"page": data}, ()).sections
    (section,) = (one for one in every if one.title == "The publications")
    _, pages = section.blocks
    assert isinstance(pages, Table)
    (row,) = pages.rows
    return row


def test_counts_of_emulated_guests_are_said_to_be_no_speed() -> None:
    """`1 of 3 comparisons were decided` stood below the question whether a machine is faster: it was of page faults."""
    results = restated.redhat()
    guests = Guests(arch="x86-64", accelerator="tcg", why="", counting=False, baseline="thp", arms=())
    metrics = list(dict.fromkeys(one.metric for cell in results.cells for one in cell.judged))
    assert "emulated: what was judged" not in text(page_of(results))
    there = page_of(msgspec.structs.replace(results, guests=guests))
    listed = escape(" and ".join([", ".join(metrics[:-1]), metrics[-1]] if len(metrics) > 1 else metrics))
    said = f"Its guests were emulated: what was judged is {listed}, and nothing here tells what is faster."
    assert said in text(there)[: text(there).index("\n## ")]
    row = row_of_overview(there)
    assert escape(row[-1]).endswith(f", of {listed}")
    kvm = msgspec.structs.replace(guests, accelerator="kvm")
    assert "emulated: what was judged" not in text(page_of(msgspec.structs.replace(results, guests=kvm)))


def test_a_page_of_another_scale_is_told_apart(tmp_path: Path) -> None:
    results = example()
    sure = msgspec.structs.replace(results, options={**results.options, "scale": "sure"})
    assert text(page_of(results)).splitlines()[2].startswith(f"# {escape(results.study)}: ")
    assert text(page_of(sure)).splitlines()[2].startswith(f"# {escape(results.study)} at the scale sure: ")
    for name, one in (("x", restated.lpc()), ("x-sure", restated.lpc())):
        result_page.write(tmp_path / f"{name}.parquet", page_of(one))
    overview.write(tmp_path)
    told = (tmp_path / "overview.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in told if line.startswith("| [x")] == [
        "| [x.md](x.md)",
        "| [x-sure.md](x-sure.md)",
    ]


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
    one_of = f"these together decide 1 of 1 ({escape(cell.cell)}, {one.arm}: {escape(one.metric)} worse)."
    assert one_of in lead  # beside what each run found alone
    row = row_of_overview(data)
    assert row[-1].endswith("; by runs together 1 of 1")
    assert "together" not in text(page_of(results))[: text(page_of(results)).index("\n## ")]
    line = next(told for told in shown.splitlines() if "10 + 10" in told)
    assert line.endswith("| worse |")  # larger is worse of a time
    assert one.verdict == "better"
    alone = escape(f"{effect_of(one)}, better")
    assert f"| {alone}; {alone} | 10 + 10 |" in line, "by how much each found it"
    assert "| 1,000 |" in line


def test_figures_of_an_older_run_are_said_to_be_and_no_heading_stands_twice() -> None:
    results = restated.lpc()
    (first, second, *_), host = results.cells, {"cpu": {"model": "EPYC", "family": "25", "model_number": "1"}}
    undecided = tuple(msgspec.structs.replace(one, verdict="undecided") for one in second.comparisons)
    older = msgspec.structs.replace(
        results, cells=(first, msgspec.structs.replace(second, comparisons=undecided)), run="older", beside=None
    )
    other = {"cpu": {"model": "EPYC", "family": "25", "model_number": "17"}}
    newer = msgspec.structs.replace(*(older,), run="newer", started=older.started + 60, cells=(first,), host=other)
    older = msgspec.structs.replace(older, host=host)
    newer = msgspec.structs.replace(
        newer, cells=(msgspec.structs.replace(first, comparisons=tuple(undecided_of(first))),)
    )
    data = PageData(runs=(PageRun(results=newer), PageRun(results=older)))
    shown = text(data)
    lead = shown[: shown.index("\n## ")]
    every = [one for _, found in standing(data) for cell in found.cells for one in cell.judged]
    assert f"0 of {len(every)} comparisons were decided, each as the newest run of it found it." in lead
    when = numbers.when(older.started)
    assert f"with the figures of an older run: {escape(second.cell)} of the run of {when}." in lead
    assert "machines that differ: EPYC, family 25, model 17; EPYC, family 25, model 1." in lead
    headings = [line for line in shown.splitlines() if line.startswith("#")]
    assert len({*headings}) == len(headings)
    assert sum(line.startswith("## Not decided here") for line in headings) == 2
    alone = text(page_of(older))
    assert "machines that differ" not in alone and "older run" not in alone


def test_cells_of_several_older_runs_are_told_in_one_sentence() -> None:
    results = restated.lpc()
    first, second, third, fourth, *_ = (msgspec.structs.replace(cell, end_points=()) for cell in results.cells)
    cells = ((first,), (first, second), (first, second, third, fourth))
    runs = [
        msgspec.structs.replace(results, cells=of, run=str(n), started=results.started - 60 * n, beside=None)
        for n, of in enumerate(cells)
    ]
    shown = text(PageData(runs=tuple(PageRun(results=run) for run in runs)))
    lead = shown[: shown.index("\n## ")]
    names = [escape(cell.cell) for cell in (second, third, fourth)]
    assert (
        "What the newest did not measure stands under “Not in the newest run”, with the figures of an older run: "
        f"{names[0]} of the run of 2026; {names[1]} and {names[2]} of the run of "
    ) in re.sub(r"run of 2026-[-0-9]+ [:0-9]+ UTC", "run of 2026", lead)
    assert lead.count("with the figures of an older run") == 1
    assert "The figures are of the newest of 3 runs; “The runs together” judges what several of them have." in lead


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
    part = shown.partition("\n## Not in the newest run: as that of ")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith(f"| {escape(cell.cell)} |")]
    (row,) = rows
    assert f"| {other.arm} |" in row and row.endswith(f"| {marked(other.verdict)} |")
    lead = shown[: shown.index("\n## ")]
    assert f"an older run: {escape(cell.cell)} ({other.arm}) of the run of " in lead
    assert f"{int(other.verdict != 'undecided')} of 2 comparisons were decided, each as the newest run of it" in lead


def undecided_of(cell: CellResult) -> list[Comparison]:
    return [msgspec.structs.replace(one, verdict="undecided") for one in cell.comparisons]


def test_pages_that_a_setting_did_not_deliver_are_marked() -> None:
    results = restated.lpc()
    first = results.cells[0]
    share = {"delivered_share": 0.043, "baseline_share": 1.0}
    for judged, told in (("setting", "| 4.3%, as a setting |"), ("backing", "| 4.3% |")):
        turned = tuple(msgspec.structs.replace(one, judged=judged, **share) for one in first.comparisons)
        shown = text(
            page_of(msgspec.structs.replace(results, cells=(msgspec.structs.replace(first, comparisons=turned),)))
        )
        assert told in shown


def test_what_stands_in_is_told_where_its_figures_stand() -> None:
    """Below the verdicts, on each published claim, and in the captions of what stands beside a publication."""
    words = "MariaDB in place of MySQL"
    plain = text(page_of(restated.lpc()))
    assert "Stand-in" not in plain and words not in plain
    shown = text(page_of(restated.lpc(stand_ins=(words,))))
    assert f"Stand-in: {words}, in memcached." in shown
    claims_of = [line for line in shown.splitlines() if line.startswith("- memcached")]
    assert claims_of and all(words in line for line in claims_of if ": nothing" not in line)
    captions = [line for line in shown.splitlines() if line.startswith("**memcached as published")]
    assert captions and all(line.endswith(f"; {words}**") for line in captions)
    assert not any(words in line for line in shown.splitlines() if line.startswith("- redis"))


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
