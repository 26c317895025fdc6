"""Contrast and the other rules of WCAG 2.1 A and AA, by axe-core, on pages of real runs, light and dark.

`axe/axe.min.js` is that of the npm package axe-core 4.10.3, unchanged, under the Mozilla Public License 2.0; that
and the licences of what is inside stand beside it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.report.conftest import REAL, Pages

AXE = Path(__file__).with_name("axe")
HASHES = {
    "LICENSE-3RD-PARTY.txt": "4f8563870d0fca38bbc3e00b6f670cb7fa9f380ba9f26a7f7d1184a6b18b1653",
    "axe.min.js": "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb",
    "LICENSE": "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
}
QUICK = {("deployed", False), ("recorded guests", True)}
"""Pages, and whether they are dark, of which axe takes a few seconds."""
RULES = "{ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }"
TOLD = "found.violations.flatMap(rule => rule.nodes.map(node => `${rule.id}: ${node.target} ${node.failureSummary}`))"


def violations(shown: Browser, part: str = "html") -> list[str]:
    """What axe finds wrong with a part of the page that is shown, all of its folded parts open."""
    shown.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    shown.evaluate((AXE / "axe.min.js").read_text(encoding="utf-8") + "; true")
    found: list[str] = shown.evaluate(f"axe.run({part!r}, {RULES}).then(found => {TOLD})")
    return found


def test_axe_is_what_was_published_and_may_be_given_on() -> None:
    found = {name: hashlib.sha256((AXE / name).read_bytes()).hexdigest() for name in HASHES}
    assert found == HASHES
    assert "Mozilla Public License" in (AXE / "LICENSE").read_text(encoding="utf-8")


# The large one has the same elements, and so many of them that axe takes half a minute.
@pytest.mark.parametrize(
    ("name", "dark"),
    [
        pytest.param(name, dark, marks=[] if (name, dark) in QUICK else pytest.mark.soak)
        for name in REAL
        if name != "large"
        for dark in (False, True)
    ],
)
def test_a_page_keeps_the_rules(shown: Browser, pages: Pages, name: str, dark: bool) -> None:
    shown.open(pages.of(name).path, dark=dark)
    assert violations(shown) == []


def test_a_fault_that_is_planted_is_found(shown: Browser, pages: Pages) -> None:
    shown.open(pages.of("deployed").path)
    assert violations(shown, "h1") == []
    shown.evaluate("document.querySelector('h1').style.color = '#ddd'")
    assert any(each.startswith("color-contrast: h1") for each in violations(shown, "h1"))
