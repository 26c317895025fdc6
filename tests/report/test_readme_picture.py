"""The picture of a report in the README: of a run that was really made, and as the report looks today.

`HUGEWISE_WRITE_GOLDEN=1 pytest tests/report/test_readme_picture.py` takes it anew.
"""

from __future__ import annotations

import os
import struct

import pytest

from hugewise.report.result_page import read
from hugewise.report.write import write
from tests.browser import browser
from tests.golden import GOLDEN

ROOT = GOLDEN.parents[1]
RUN, PICTURE = ROOT / "docs/results/aged-chase.parquet", ROOT / "docs/figures/report.png"
WIDTH, HEIGHT = 1000, 1112  # CSS pixels
MOST_BYTES = 400_000  # of what every clone has


def size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG (its first chunk: https://www.w3.org/TR/png-3/#11IHDR)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[12:16] == b"IHDR"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """The first screen of the report of the newest run, and what is to be read on it."""
    page = write(read(RUN).runs[0].results, tmp_path_factory.mktemp("run"))["html"]
    with browser(tmp_path_factory.mktemp("browser")) as shown:
        shown.send("Emulation.setScrollbarsHidden", hidden=True)
        shown.open(page, width=WIDTH, height=HEIGHT)
        said = shown.evaluate(
            "[...document.querySelectorAll('h1, h2, p, li')].filter(one => one.getBoundingClientRect().top <"
            f" {HEIGHT} && one.getClientRects().length).map(one => one.innerText).join('\\n')"
        )
        return shown.picture(), said


def test_the_readme_has_the_first_screen_of_the_report_of_a_real_run(taken: tuple[bytes, str]) -> None:
    picture, said = taken
    if os.environ.get("HUGEWISE_WRITE_GOLDEN"):
        PICTURE.write_bytes(picture)
    kept = PICTURE.read_bytes()
    assert size(kept) == size(picture) == (WIDTH, HEIGHT)
    assert len(kept) < MOST_BYTES
    assert f"]({PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")
    results = read(RUN).runs[0].results
    assert results.cells[0].cell in said and results.question in said
