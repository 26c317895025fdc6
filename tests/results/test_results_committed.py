"""The pages in docs/results: each is what its data say, and so is the overview of them all. HUGEWISE_WRITE_GOLDEN=1
makes them anew.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hugewise.study import load
from tools.results import overview, page
from tools.results.data import read
from tools.results.page import MOST_BYTES, RESERVED

FOLDER = Path(__file__).parents[2] / "docs" / "results"
NAMES = sorted(path.stem for path in FOLDER.glob("*.parquet"))
PREDICTED = sorted(path.stem for path in FOLDER.glob("*.json"))


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
    for path in overview.write(copy):
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()
    assert {path.stem for path in FOLDER.glob("*.md")} == {*NAMES, *RESERVED, *PREDICTED}


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
