"""Pilots on a page of results: they foretell, and nothing is judged by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.analysis.forecast import forecast, pilot_name
from hugewise.errors import UserError
from hugewise.store.folder import RunFolder
from hugewise.store.records import Closed
from hugewise.study.load import with_budget
from hugewise.study.study import Study
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build import known
from tools.results.data import PageData, read
from tools.results.page import add, render


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


def pilot_of(of: Study) -> Study:
    """As `forecast.pilot` makes it."""
    short = with_budget(of, 20, None)
    return msgspec.structs.replace(short, name=pilot_name(of.name), method="fixed-n", end_points=())


def shown(data: PageData) -> str:
    return render(data, "page")["page.md"].decode()


def row_of(text: str, begin: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(begin))


def test_a_run_brings_its_pilots_and_their_forecast_stands_beside_what_it_took(tmp_path: Path) -> None:
    of, page = the_study(), tmp_path / "pages" / "mine.parquet"
    results = tmp_path / "results"
    asked = "hugewise plan study.toml --pilot 20 --results"
    pilot = ended(results, pilot_of(of), 20, seed=b"p" * 16, command=f"{asked} {results}")
    run = ended(results, of, 40, t=1.0)
    add(page, run)
    data = read(page)
    assert [one.results.run for one in data.runs] == [run.name]
    assert [one.results.run for one in data.pilots] == [pilot.name]
    needed = known(forecast(of, [pilot]).rows[0].needed)
    text = shown(data)
    spread = row_of(text, "| chase | thp | ns\\_per\\_load | a pilot | 20 |")
    assert spread.endswith("| 40 | 2.0% | yes |")
    taken = row_of(text, f"| chase | thp | ns\\_per\\_load | a pilot | {needed:,} |")
    assert "| 40 | 2 min 00 s | undecided | ended before |" in taken
    assert f"| command | {asked.removesuffix(' --results')} |" in text
    assert "nothing is judged by it" in text and f"| run | {pilot.name}, finished" in text
    assert "newest of 2 runs" not in text and "The runs together" not in text
    add(page, pilot)  # by itself: it is there once
    assert read(page) == data


def test_what_the_runs_say_is_the_same_without_a_pilot(tmp_path: Path) -> None:
    of, page = the_study(), tmp_path / "pages" / "mine.parquet"
    ended(tmp_path, pilot_of(of), seed=b"p" * 16)
    add(page, ended(tmp_path, of, 40, t=1.0))
    data = read(page)

    def before(text: str, title: str) -> str:
        return text.partition(f"\n## {title}")[0].rstrip()

    alone = before(shown(msgspec.structs.replace(data, pilots=())), "How it was measured")
    assert before(shown(data), "How the forecast came out") == alone


def test_a_pilot_that_foretells_nothing_there_is_refused(tmp_path: Path) -> None:
    of, page = the_study(), tmp_path / "pages" / "mine.parquet"
    pilot = ended(tmp_path / "a", pilot_of(of))
    with pytest.raises(UserError, match="no run that it could foretell") as error:
        add(page, pilot, of)
    assert "add the run first" in str(error.value.hint)
    assert not page.exists()
    add(page, ended(tmp_path / "b", of, t=1.0))
    other = msgspec.structs.replace(pilot_of(of), scale="published")
    with pytest.raises(UserError, match="at the scale published, and .* at small"):
        add(page, ended(tmp_path / "c", other))
    with pytest.raises(UserError, match="has not ended"):
        add(page, write_run(tmp_path / "d", pilot_of(of), normal(0.02, 20)))
    stranger = msgspec.structs.replace(pilot_of(of), name="yours-pilot")
    with pytest.raises(UserError, match="is of mine, and .* is of yours-pilot"):
        add(page, ended(tmp_path / "e", stranger))
    assert read(page).pilots == ()
