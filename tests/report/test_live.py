"""The page of a run that goes on: made again when its log grew, not sooner than every few seconds, and never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise import open_results
from hugewise.errors import RunError
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.live import LivePage
from hugewise.store.folder import RunFolder
from hugewise.store.records import Noted
from tests.build.few_blocks import demo
from tests.build.growing import growing


class Read:
    """Reads results and counts how often; `clock` stands still but for what a reading `takes`."""

    def __init__(self) -> None:
        self.count, self.now, self.takes = 0, 0.0, 0.0

    def __call__(self, folder: Path) -> Results:
        self.count += 1
        self.now += self.takes
        return open_results(folder)

    def clock(self) -> float:
        return self.now


def test_a_page_is_made_again_when_the_log_grew_and_its_pause_is_over(tmp_path: Path) -> None:
    grow, read = growing(tmp_path / "run"), Read()
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    assert "2 blocks complete" in first.html
    read.now = 100.0
    assert page.current() == first
    assert read.count == 1  # nothing was added
    grow()
    read.takes = 2.0
    second = page.current()
    assert "3 blocks complete" in second.html
    assert second.version != first.version
    assert f'data-live="{second.version}"' in second.html
    (tmp_path / "run" / "run.jsonl").touch()
    read.now = 121.9  # ten times as long as it took
    assert page.current() == second
    assert read.count == 2
    read.now = 122.1
    page.current()
    assert read.count == 3


def test_figures_whose_data_are_as_they_were_are_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = demo()
    cell = whole.cells[0].cell
    results = replace(whole, attempts=tuple(one for one in whole.attempts if one.cell != cell or one.block < 20))
    drawn, inline = [], images.inline

    def drawing(svg: str, *, name: str, title: str) -> str:
        drawn.append(name)
        return inline(svg, name=name, title=title)

    monkeypatch.setattr(images, "inline", drawing)
    grow, clock = growing(tmp_path / "run"), Read()
    page = LivePage(tmp_path / "run", lambda _: results, clock.clock)
    assert any(name.startswith("figure-2-") for name in drawn)
    drawn.clear()
    grow()
    results, clock.now = whole, 100.0
    shown = page.current()
    assert drawn
    assert all(name.startswith("figure-1-") for name in drawn), drawn
    assert "figure-1-distribution" in drawn
    assert shown == LivePage(tmp_path / "run", lambda _: whole).current()


def test_a_run_is_called_running_as_long_as_its_process_has_it(tmp_path: Path) -> None:
    growing(tmp_path / "run")
    read, folder = Read(), RunFolder(tmp_path / "run")
    folder.append(Noted(t=1.0, text="here"))
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    assert "Running: 2 blocks complete" in first.html
    folder.close()  # nothing was added
    read.now = 10.0
    ended = page.current()
    assert ended.version != first.version
    assert "Interrupted: 2 blocks complete" in ended.html


def test_a_page_that_cannot_be_made_again_stays_and_says_so_until_it_can(tmp_path: Path) -> None:
    growing(tmp_path / "run")
    read = Read()
    page = LivePage(tmp_path / "run", read, read.clock)
    first = page.current()
    log, hidden = tmp_path / "run" / "run.jsonl", tmp_path / "hidden"
    log.rename(hidden)
    read.now = 10.0
    told = page.current()
    assert "the run cannot be read now" in told.html
    assert "2 blocks complete" in told.html
    assert told.version != first.version
    hidden.rename(log)
    read.now = 20.0
    assert page.current() == first


def test_a_folder_that_is_no_run_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run's folder"):
        LivePage(tmp_path, open_results)
