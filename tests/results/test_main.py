"""`python -m tools.results`: a run joins a page of results, and no run that ends at the same time is lost."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from hugewise.cli.main import main
from hugewise.errors import StorageError, UserError
from hugewise.files import alone_in
from hugewise.study import load
from tests.analysis.test_forecast import the_study
from tests.build.results import example
from tests.cli.conftest import tiny
from tests.drive import only_run
from tests.results.test_result_page import ended, page_of
from tools.results import __main__ as publishing
from tools.results import overview
from tools.results.data import read
from tools.results.page import MARK, add, refuse_others, write


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


def test_no_link_that_was_planted_leads_root_elsewhere(tmp_path: Path) -> None:
    """Under sudo the measured program has the account of the folder, and knows the names of the drafts."""
    pages, victim = tmp_path / "pages", tmp_path / "victim"
    victim.write_text("of root's")
    page, data = pages / "example.parquet", page_of(example())
    pages.mkdir()
    for name in (".example.parquet", "tmp_.example.parquet", "example.md", "overview.md", "folklore.md"):
        (pages / name).symlink_to(victim)
    page.with_suffix(".md").unlink()
    write(page, data)
    assert read(page).runs
    for name in ("overview.md", "folklore.md"):
        (pages / name).unlink()
    overview.write(pages)
    assert victim.read_text() == "of root's"
    shutil.rmtree(pages / "example")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (pages / "example").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="example"):
        write(page, data)
    assert not list(elsewhere.iterdir())


def test_a_pipe_that_was_planted_is_no_page_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It holds what a page begins with: opened and read like a file, it would be replaced as one of ours."""
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in ("overview.md", "example.md"):
        os.mkfifo(pages / name)
        held = os.open(pages / name, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(held, MARK)
            with pytest.raises(UserError, match="was not made by hugewise"):
                refuse_others(pages / name)
            assert (pages / name).is_fifo()
        finally:
            os.close(held)
