"""What a method gives as its reason, in words for readers who know no test. `report.json` has the method's own. Pure.

A test that "has crossed" has seen pairs that chance alone would make with at most the comparison's share of the error
rate, whenever one looks: here that is "too consistent for chance". docs/concepts/sequential.md says it exactly.
"""

from __future__ import annotations

import re

__all__ = ["in_a_row", "plain"]

_END = r"(?=; |$)"  # what the design of the run adds comes after it

_SAID = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"the exact test crossed at pair (\d+)", r"from pair \1 on the difference is too consistent for chance"),
        (
            r"; also with all pairs kept in((?: \(.{1,2000}\))?)",
            r", also with the pairs that had to be left out counted against it\1",
        ),
        (r": in this campaign" + _END, r". That is said of this run, not of other days"),
        (r", and the campaign average agrees" + _END, r". The average over the run agrees"),
        (r"; the campaign average does not contradict it" + _END, r". The average over the run does not contradict it"),
        (r", but the campaign average contradicts it" + _END, r", but the average over the run says the opposite"),
        (
            r"the whole interval lies within the margin of [\d.e-]+, the campaign average too",
            r"all that is still possible lies within the margin, for the typical pair and on average",
        ),
        (
            r"the campaign average is not known to lie within the margin, as the interval does",
            r"the typical pair differs by less than the margin, and of the average over the run that is not known yet",
        ),
        (
            r"the test has crossed, but with all pairs kept in it has not",
            r"the usable pairs differ, but not once those that had to be left out are counted against it",
        ),
        (r"the test has crossed, but ", r"the pairs differ too consistently for chance, but "),
        (
            r"the declared budget of pairs is used up and the test has not crossed",
            r"all planned pairs were run, and chance alone could have made what they show",
        ),
        (
            r"the estimate lies outside its interval: pairs share no one effect",
            r"the effect changed in the course of the run, so that no one figure stands for it",
        ),
        (
            r"(\d+) pairs; (\d+) declared ones can decide nothing at this error rate: declare more",
            r"even all \2 planned pairs could decide nothing at this confidence: plan more",
        ),
        (r"no verdict is possible before pair (\d+)", r"a verdict needs \1 pairs at least"),
        # of measurements that others made
        (
            r"The exact test crossed its boundary in this campaign",
            r"The difference is too consistent for chance. That is said of these measurements, not of other days",
        ),
        (r"The exact test crossed its boundary", r"The difference is too consistent for chance"),
        (r"The exact test has not crossed its boundary in ([\d,]+) pairs", r"\1 pairs show no difference"),
        (
            r"The exact test says one direction and the campaign average the other",
            r"The typical pair differs in one direction, and the average in the other",
        ),
        (r"The whole interval lies within the margin of", r"All that is still possible lies within the margin of"),
        (r"the exact test has crossed", r"the difference is too consistent for chance"),
        (r"the (?:exact )?test has not crossed", r"no difference is shown"),
    )
)


def plain(reason: str) -> str:
    """The reason in such words; what is in them already stays."""
    for pattern, words in _SAID:
        reason = pattern.sub(words, reason)
    return reason


def in_a_row(reason: str) -> str:
    """The same within a sentence or a cell of a table, where no other sentence begins."""
    said = plain(reason)
    for begun, going_on in ((". That is said", ", which is said"), (". The average", "; the average")):
        said = said.replace(begun, going_on)
    return said
