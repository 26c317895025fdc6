"""The table of geometric means over the programs of a set."""

from __future__ import annotations

import msgspec

from hugewise.report.document import Table
from hugewise.report.sections.answer import CAPTION, programs_table
from hugewise.report.write import report
from tests.analysis.test_sets import cell
from tests.build.results import plain
from tests.report.told import blocks


def test_a_run_without_sets_has_no_such_table() -> None:
    assert programs_table(plain()) is None


def test_each_set_and_policy_is_a_row_that_says_what_is_left_out() -> None:
    both, pool = (0.9, 0.8, 1.0), (0.5, 0.4, 0.6)
    cells = (cell("gcc", {"thp": both}), cell("xz", {"thp": both, "hugetlb-2m": pool}))
    table = programs_table(msgspec.structs.replace(plain(), cells=cells))
    assert table is not None
    assert [row[:2] for row in table.rows] == [("set", "thp"), ("set", "hugetlb-2m")]
    assert table.rows[0][4:] == ("at least 98%", "2", "–")
    assert "−10" in table.rows[0][3]
    assert table.rows[1][-1] == "without gcc, which cannot take the policy"


def test_the_report_has_it_where_there_is_a_set() -> None:
    cells = tuple(cell(program, {"thp": (0.9, 0.8, 1.0)}) for program in ("gcc", "xz"))
    for results, count in ((msgspec.structs.replace(plain(), cells=cells), 1), (plain(), 0)):
        assert [one.caption for one in blocks(report(results), Table)].count(CAPTION) == count
