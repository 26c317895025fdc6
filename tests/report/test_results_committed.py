"""The pages in docs/results: each is what its data say, and so is the overview of them all. HUGEWISE_WRITE_GOLDEN=1
makes them anew.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hugewise.report import result_overview, result_page
from hugewise.report.result_page import MOST_BYTES, RESERVED
from hugewise.study import shipped

FOLDER = Path(__file__).parents[2] / "docs" / "results"
NAMES = sorted(path.stem for path in FOLDER.glob("*.parquet"))


def test_there_are_pages_of_studies_of_ours() -> None:
    studies = {result_page.read(FOLDER / f"{name}.parquet").runs[0].results.study for name in NAMES}
    assert studies and studies <= set(shipped.names())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_its_data_say(name: str) -> None:
    data = FOLDER / f"{name}.parquet"
    assert data.stat().st_size < MOST_BYTES
    made = result_page.render(result_page.read(data), name)
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        result_page.write(data, result_page.read(data))
    there = [FOLDER / f"{name}.md", *(FOLDER / name).glob("*")]
    assert {str(path.relative_to(FOLDER)): path.read_bytes() for path in there} == made


def test_the_overview_is_that_of_all_pages_and_nothing_else_lies_there(tmp_path: Path) -> None:
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        result_overview.write(FOLDER)
    copy = tmp_path / "results"
    shutil.copytree(FOLDER, copy)
    for path in result_overview.write(copy):
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()
    assert {path.stem for path in FOLDER.glob("*.md")} == {*NAMES, *RESERVED}
