"""Reasons of the methods in words for readers who know no test; the method's own stay in report.json."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hugewise.model.metric import Metric
from hugewise.report.sentences import in_a_row, plain
from hugewise.stats.method import Contrast
from hugewise.stats.sequential import NotWorse, Sequential
from tests.build.trials import block

JARGON = re.compile(r"crossed|campaign|declared|exact test|all pairs kept in|error rate|share no one effect")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "the exact test crossed at pair 10: in this campaign",
            "from pair 10 on the difference is too consistent for chance. That is said of this run, not of other days",
        ),
        (
            "the exact test crossed at pair 120; also with all pairs kept in (2 lost: no room), and the campaign"
            " average agrees",
            "from pair 120 on the difference is too consistent for chance, also with the pairs that had to be left out"
            " counted against it (2 lost: no room). The average over the run agrees",
        ),
        (
            "not worse by the margin of 0.02 or more; the whole interval lies within the margin of 0.02, the campaign"
            " average too",
            "not worse by the margin of 0.02 or more; all that is still possible lies within the margin, for the"
            " typical pair and on average",
        ),
        (
            "the test has crossed, but the estimate lies outside its interval: pairs share no one effect",
            "the pairs differ too consistently for chance, but the effect changed in the course of the run, so that no"
            " one figure stands for it",
        ),
        (
            "5 pairs; 8 declared ones can decide nothing at this error rate: declare more",
            "even all 8 planned pairs could decide nothing at this confidence: plan more",
        ),
        (
            "The exact test crossed its boundary in this campaign",
            "The difference is too consistent for chance. That is said of these measurements, not of other days",
        ),
        ("The exact test has not crossed its boundary in 1,200 pairs", "1,200 pairs show no difference"),
        ("the pool was short by 12 pages", "the pool was short by 12 pages"),
    ],
)
def test_a_reason_in_plain_words(reason: str, words: str) -> None:
    assert plain(reason) == words
    assert plain(words) == words


@pytest.mark.parametrize("kind", [Sequential, NotWorse])
@pytest.mark.parametrize("effect", [0.0, -0.2, -0.02, 0.2])
@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_whatever_a_run_comes_to_no_word_of_the_test_is_left(
    kind: type[Sequential], effect: float, drift: float
) -> None:
    random = np.random.default_rng(3)
    metric = Metric("ns_per_load", "ns", "lower", "time")
    method = kind(Contrast("c", "thp", "base", metric), planned=130, alpha=0.01, margin=0.02)
    said = set()
    for number in range(1, 131):
        level = effect * (1 + drift * number) + random.normal(0, 0.01)
        method.observe(block(number, {"base": 1.0, "thp": float(np.exp(level))}, cell="c"))
        said.add(method.decision().reason)
    left = {one for one in said if JARGON.search(plain(one))}
    assert left == set()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "the exact test crossed at pair 11: in this campaign",
            "from pair 11 on the difference is too consistent for chance, which is said of this run, not of other days",
        ),
        (
            "the exact test crossed at pair 12, and the campaign average agrees",
            "from pair 12 on the difference is too consistent for chance; the average over the run agrees",
        ),
        ("hugetlb-1g was not run in this cell", "hugetlb-1g was not run in this cell"),
    ],
)
def test_within_a_sentence_no_other_begins(reason: str, words: str) -> None:
    assert in_a_row(reason) == words
    assert in_a_row(words) == words


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (": in this campaign", ". That is said of this run, not of other days"),
        (", and the campaign average agrees", ". The average over the run agrees"),
        ("; the campaign average does not contradict it", ". The average over the run does not contradict it"),
        (", but the campaign average contradicts it", ", but the average over the run says the opposite"),
    ],
)
def test_what_the_design_adds_makes_no_other_words(said: str, words: str) -> None:
    added = "; it is for this boot of its guest: another may differ"
    begun = "from pair 10 on the difference is too consistent for chance"
    assert plain(f"the exact test crossed at pair 10{said}{added}") == f"{begun}{words}{added}"
