"""The geometric mean over the programs of a set, as a table: see `hugewise.analysis.sets`."""

from __future__ import annotations

from hugewise.analysis.sets import overall
from hugewise.model.results import Results
from hugewise.report import numbers
from hugewise.report.document import Table, table
from hugewise.report.numbers import NOTHING
from hugewise.report.sentences import change_of

__all__ = ["CAPTION", "programs_table"]

CAPTION = "Over the programs of a set"


def programs_table(results: Results) -> Table | None:
    """Per set and arm: the mean ratio with its interval, the programs in it and what is to be said; None without sets.

    It has no verdict: the error rate of the study is that of its programs.
    """
    rows = []
    for one in overall(results.cells):
        remarks = [one.reason] if one.reason else []
        if one.lacking:
            remarks.insert(0, f"without {', '.join(one.lacking)}, which cannot take the policy")
        row = (
            one.name,
            one.arm,
            f"{one.metric} against {one.baseline}",
            change_of(one.ratio, one.low, one.high),
            NOTHING if one.confidence is None else f"at least {numbers.percent(one.confidence)}",
            len(one.programs),
            "; ".join(remarks) or NOTHING,
        )
        rows.append(row)
    head = ("set", "policy", "metric", "change of the geometric mean (interval)", "confidence", "programs", "remark")
    return table(CAPTION, head, rows, 3) if rows else None
