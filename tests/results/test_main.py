"""`python -m tools.results`: a run joins a page of results, and no run that ends at the same time is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hugewise.analysis.forecast import pilot_name
from hugewise.cli.main import main
from hugewise.errors import StudyError, UserError
from hugewise.files import alone_in
from hugewise.study import load
from tests.analysis.test_forecast import the_study
from tests.build.results import example
from tests.cli.conftest import tiny
from tests.drive import only_run
from tests.results.test_result_page import page_of
from tests.results.test_result_pilots import ended
from tools.results import __main__ as publishing
from tools.results import first_cells
from tools.results.data import read
from tools.results.page import add, write


def results(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """The exit status of `python -m tools.results WORDS`, and what it printed."""
    status = 0
    try:
        main([str(word) for word in words], command=publishing.cli)
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.whole
def test_a_run_joins_its_page_as_it_ends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "pages" / "tiny.parquet"
    status, out, err = results(capsys, "measure", page, tiny(tmp_path), "--results", tmp_path / "results")
    assert status == 0, err
    run = only_run(tmp_path / "results")
    (made,) = read(page).runs
    assert made.results.run == run.name
    assert made.results.command[:2] == ("hugewise", "run"), "the page tells how to measure it again"
    assert f"  {page}\n" in out and f"  {page.parent / 'overview.md'}\n" in out
    assert f"| run | {run.name}, finished" in page.with_suffix(".md").read_text()


def test_a_page_that_it_cannot_join_is_told_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, study, place = tmp_path / "demo.parquet", tiny(tmp_path), tmp_path / "results"
    write(page, page_of(example()))
    for named, why in (
        (page, "it is of demo at the scale small, and the run is of tiny"),
        (tmp_path / "x.md", "Parquet"),
    ):
        status, _, err = results(capsys, "measure", named, study, "--results", place)
        assert status == 2
        assert why in " ".join(err.split())
    assert not place.exists()
    publishing.check(tmp_path / "new.parquet", load.load(study))
    with pytest.raises(UserError, match="demo at the scale small, and the run is of tiny at published"):
        publishing.check(page, load.load(study, "published"))


def test_a_wrong_list_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    listed = 'format = 1\npairs = 12\n[[cell]]\nstudy = "redhat-2021"\nonly = ["iperf4"]\n'
    (tmp_path / first_cells.NAME).write_text(listed)
    with pytest.raises(StudyError, match="is no label and no cell of redhat-2021"):
        publishing.check(tmp_path / "redhat-2021.parquet", load.load(Path("redhat-2021")))
    publishing.check(tmp_path / "demo.parquet", load.load(Path("demo")))


def test_two_that_end_at_once_are_both_there(tmp_path: Path) -> None:
    """The second waits, and reads what the first has written."""
    of = the_study()
    page = tmp_path / "pages" / "mine.parquet"
    first, second = (ended(tmp_path / name, of, seed=name.encode() * 16) for name in ("a", "b"))
    page.parent.mkdir()
    waiting = threading.Thread(target=publishing.join, args=(page, second))
    with alone_in(page.parent):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not page.exists()
        add(page, first)
    waiting.join(60)
    assert {one.results.run for one in read(page).runs} == {first.name, second.name}


def test_a_pilot_of_a_study_of_ours_is_known_by_its_study(tmp_path: Path) -> None:
    """It has no page of its own."""
    pilot = ended(tmp_path, the_study(name=pilot_name("demo"), method="fixed-n"))
    with pytest.raises(UserError, match="nothing is judged by it"):
        publishing.join(tmp_path / "pages" / "demo.parquet", pilot)
