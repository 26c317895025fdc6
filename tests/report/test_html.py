"""Cells of tables: names in one piece, everything escaped."""

from __future__ import annotations

import re

import pytest

from hugewise.report.html import whole
from tests.build.results import HOSTILE


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("hugetlb-2m", ["hugetlb-2m"]),
        ("thp on a/b and mthp-64k", ["a/b", "mthp-64k"]),
        ("a - b, −5% –", []),
        ("-x y/", []),
        ("a-" * 50, []),  # nothing that a column could hold
    ],
)
def test_names_that_a_browser_would_break_are_kept_whole(text: str, kept: list[str]) -> None:
    made = str(whole(text))
    assert re.findall(r'<span class="whole">(.*?)</span>', made) == kept
    assert re.sub(r"<.*?>", "", made) == text


def test_hostile_text_is_escaped_on_both_sides_of_a_name() -> None:
    made = str(whole(f"{HOSTILE} <b>-</b> {HOSTILE}"))
    assert set(re.findall(r"<(/?\w+)", made)) <= {"span", "/span"}
