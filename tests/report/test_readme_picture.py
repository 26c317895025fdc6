"""The pictures of reports in the guide to them: of real runs, and as the reports look today.

`HUGEWISE_WRITE_GOLDEN=1 pytest tests/report/test_readme_picture.py` takes them anew. Beside them is a hash of what
stood on the shown part of the page when each was taken, whatever the fonts of the machine: where the page says another
thing by now, the picture is of yesterday.
"""

import hashlib
import json
import os
import re
import struct
from typing import NamedTuple

import pytest

from tests.browser import Browser
from tests.golden import GOLDEN
from tests.report.conftest import MANY, Pages

ROOT = GOLDEN.parents[1]
PICTURES = ROOT / "docs" / "figures"
SAID = GOLDEN / "pictures.json"
WIDTH, HEIGHT = 1000, 1112  # CSS pixels
MOST_BYTES = 400_000  # of what every clone has
WRITES = os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1"
# A run that is made for the test has another name each time.
NAMED = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4,8}")


class Shot(NamedTuple):
    """A picture: of which page (`tests.report.conftest`), from which section on (empty: its top), where it is shown."""

    page: str
    place: str
    shown_in: str


SHOTS = {
    "report.png": Shot("aged-chase", "", "docs/guides/reports.md"),
    "report-demo.png": Shot("demo", "", "docs/guides/reports.md"),
    "report-server.png": Shot("mthp-pressure", "cell-2", "docs/guides/reports.md"),
    "report-guests.png": Shot("guests", "", "docs/guides/reports.md"),
    "report-large.png": Shot(MANY, "cell-1", "docs/guides/reports.md"),
}


def size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG (its first chunk: https://www.w3.org/TR/png-3/#11IHDR)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[12:16] == b"IHDR"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def take(shown: Browser, pages: Pages, shot: Shot) -> tuple[bytes, str]:
    """The picture, and what is to be read on that part of the page: its head, or the section."""
    shown.open(pages.of(shot.page).path, width=WIDTH, height=HEIGHT, bars=False)
    if shot.place:
        shown.evaluate(f"document.getElementById({shot.place!r}).scrollIntoView({{ behavior: 'instant' }})")
    part = f"section[id={shot.place!r}]" if shot.place else "header"
    said = shown.evaluate(f"document.querySelector({part!r}).innerText")
    drawn = shown.evaluate(f"[...document.querySelectorAll({f'{part} svg'!r})].map(one => one.textContent).join()")
    return shown.picture(), NAMED.sub("RUN", said + drawn)


@pytest.mark.parametrize("name", SHOTS)
def test_a_picture_is_kept_and_shown(name: str) -> None:
    kept, document = PICTURES / name, ROOT / SHOTS[name].shown_in
    assert size(kept.read_bytes()) == (WIDTH, HEIGHT)
    assert kept.stat().st_size < MOST_BYTES
    assert f"]({os.path.relpath(kept, document.parent)})" in document.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, shot in SHOTS.items() if WRITES or shot.page != MANY])
def test_a_picture_is_of_the_report_as_it_looks_today(shown: Browser, pages: Pages, name: str) -> None:
    shot, kept = SHOTS[name], PICTURES / name
    picture, said = take(shown, pages, shot)
    digest = hashlib.sha256(said.encode()).hexdigest()
    told = json.loads(SAID.read_text(encoding="utf-8")) if SAID.exists() else {}
    if WRITES and told.get(name) != digest:
        kept.write_bytes(picture)
        told = {one: told[one] for one in SHOTS if one in told and one != name} | {name: digest}
        SAID.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert told[name] == digest, f"the page says another thing than {name} shows: take it anew, and look at it"
    assert size(picture) == (WIDTH, HEIGHT)
