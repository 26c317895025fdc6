"""Markdown of reports: nothing that was measured is taken for markup."""

from __future__ import annotations

from hugewise.report.markdown_text import captioned, escape, paragraphs, rows
from hugewise.report.tables import Table


def test_a_text_means_nothing_in_markdown() -> None:
    assert escape("a|b_c *d* <e> ~5 #1") == r"a\|b\_c \*d\* \<e\> \~5 \#1"
    assert list(paragraphs(["one", "a_b"])) == ["", "one", "", r"a\_b"]


def test_a_table_has_its_numbers_to_the_right_and_its_caption_above() -> None:
    table = Table("by|arm", ("arm", "n"), (("thp|x", "3"),), 1)
    assert list(rows(table)) == ["| arm | n |", "|---|---:|", r"| thp\|x | 3 |"]
    assert list(captioned(table))[:3] == ["", r"**by\|arm**", ""]
    assert list(captioned(table))[3:] == list(rows(table))


def test_an_empty_table_says_so() -> None:
    assert list(rows(Table("nothing", ("arm",), (), 1))) == ["None."]
