"""How a report is read: its words, and what they mean."""

from __future__ import annotations

from hugewise.model.results import Results
from hugewise.report import numbers
from hugewise.report.document import Section, Words

__all__ = ["reading"]


def reading(results: Results) -> Section:
    """The words of a report, once, at its end."""
    words = {
        "Ratio and change": "Always policy/baseline. The metric's direction says whether lower or higher is better.",
        "Block": "Adjacent attempts of one workload, each policy once, in random order: the unit that is counted.",
        "▲ better, ▼ worse": "The interval lies on one side of no change, and is not within the margin.",
        "= equivalent": f"The whole interval lies within ±{numbers.percent(results.margin)}.",
        "? undecided": "The interval allows both; the largest effect still possible is given once both ends are known.",
        "At least, at most": "The interval has one end; nothing bounds the effect on the other side, where figures "
        "have an arrow.",
        "An arrow in a figure": "The interval leaves the figure's scale there. Tables have its ends, where it "
        "has them.",
        "– none": "No verdict can be given, for the reason that is stated.",
    }
    if results.beside is not None:
        words["Published"] = (
            "Copied from the source that is named, digit for digit, and never computed. “Same sign”: the verdict here "
            "excludes no change, on the side that was published; an undecided comparison has no sign."
        )
    words["Delivered"] = (
        "The pages that the policy promises really backed the memory of the attempt, shown by page flags or another "
        "stated proof."
    )
    return Section("How to read this", (Words(tuple(words.items())),), key="reading", only="html")
