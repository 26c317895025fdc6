"""Sentences of reports: verdicts, reasons in plain words, causes."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.model.cause import Bound, Cause, FaultTime, TlbCost, Unseen
from hugewise.model.reason import (
    BudgetTooSmall,
    Crossed,
    Fact,
    Known,
    Lack,
    LeftOut,
    MeanWithin,
    NoOneEffect,
    NotShown,
    Reason,
    UnderDesign,
    Unknown,
    WithinMargin,
)
from hugewise.model.results import Comparison
from hugewise.report.cell_answers import answers
from hugewise.report.document import Table
from hugewise.report.numbers import NOTHING
from hugewise.report.reasons import in_words, worded
from hugewise.report.sections.answer import evidence
from hugewise.report.sentences import change_of, effect_of, sentence
from hugewise.report.summary import summary
from tests.build.results import FAULTS, LATENCY
from tests.build.results import plain as plain_results
from tests.golden import GOLDEN, same
from tests.report.told import blocks

RESULTS = plain_results()
FOUND = {(cell.workload, one.arm): one for cell in RESULTS.cells for one in cell.comparisons}


def said(workload: str, arm: str, **changes: object) -> str:
    comparison: Comparison = replace(FOUND[workload, arm], **changes)
    metric = LATENCY if workload == "chase" else FAULTS
    return sentence(comparison, metric, 0.005).replace("−", "-")


def test_each_verdict_has_its_sentence_in_the_direction_of_the_metric() -> None:
    assert said("chase", "thp") == (
        "thp is better than base: latency_ns 25.19% lower (95% interval -25.51% to -24.87%), from 20 blocks."
    )
    assert said("fault", "thp").startswith("thp is worse than base: faults_per_s 19.72% lower (95% interval ")
    assert said("fault", "mthp-64k") == (
        "mthp-64k is equivalent to base within ±0.5%: faults_per_s +0.08% "
        "(95% interval -0.08% to +0.24%), from 20 blocks."
    )
    assert said("fault", "hugetlb-2m") == (
        "hugetlb-2m against base is undecided: faults_per_s -2.3% (95% interval -5.4% to +0.9%), "
        "from 18 blocks of 20 planned. The time budget was spent after 18 of 20 blocks. "
        "The largest effect still possible is 5.39%. Failures: 2 of hugetlb-2m, 0 of base."
    )
    assert said("chase", "hugetlb-1g") == (
        "No verdict on hugetlb-1g against base. 15.0% of the attempts were not delivered (limit 1%): "
        "the pool was short by 12 pages. The largest effect still possible is 31.88%."
    )
    assert "from 7 blocks of 20 planned. Provisional until" in said("chase", "thp", final=False, n=7)
    assert "89.0% lower (a factor of 9.09) (95% interval" in said("chase", "thp", ratio=0.11, low=0.1, high=0.12)
    assert "has no estimate" in said("fault", "hugetlb-2m", ratio=None, low=None, high=None, change=None)
    wide = {"ratio": 0.67, "low": 1e-18, "high": 1e36, "n": 2, "n_all": 2, "change": 1e36, "reason": ""}
    assert said("fault", "hugetlb-2m", **wide, failures_arm=0) == (
        "hugetlb-2m against base is undecided: faults_per_s -33.0% (no 95% interval yet), from 2 blocks of 20 planned."
    )


OPEN = {"verdict": "undecided", "reason": "", "low": None, "high": None, "change": None, "ratio": 0.6}


def test_a_provisional_interval_is_called_so_in_a_table_and_in_a_sentence() -> None:
    one: Comparison = replace(FOUND["chase", "thp"], **OPEN, provisional=(0.49, 0.79))
    assert effect_of(one) == "−40% (provisional: −51% to −21%)"
    assert said("chase", "thp", **OPEN, provisional=(0.49, 0.79)) == (
        "thp against base is undecided: latency_ns -40% (provisional 95% interval -51% to -21%), from 20 blocks."
    )
    assert effect_of(replace(one, provisional=None)) == "−40.0% (no interval yet)"
    assert "(no 95% interval yet)" in said("chase", "thp", **OPEN, provisional=None)


def test_a_provisional_interval_changes_no_verdict_and_no_answer() -> None:
    """It lies below 1 as a whole, and the comparison stays open."""
    (cell, _) = RESULTS.cells
    told = []
    for provisional in (None, (0.49, 0.79)):
        one = replace(FOUND["chase", "thp"], **OPEN, provisional=provisional)
        results = replace(RESULTS, cells=(replace(cell, comparisons=(one,)),))
        (found,) = answers(results)
        (table,) = blocks(summary(results), Table)
        told.append((found.state, found.setting, found.ratio, found.low, found.high, found.open, table.rows[0][3:]))
        assert summary(results).title.startswith("demo: 0 of 1 comparison decided")
    assert told[0] == told[1] == ("undecided", None, 0.6, None, None, ("thp",), ("20", "? undecided"))
    assert table.rows[0][2] == "−40% (provisional: −51% to −21%)"


def test_a_change_without_a_verdict_has_an_interval_or_says_that_it_has_none() -> None:
    assert change_of(0.67, 1e-18, 1e36) == "−33.0% (no interval)"
    assert change_of(0.9, 0.8, 1.1) == "−10% (−20% to +10%)"
    assert change_of(None, None, None) == NOTHING


def test_a_setting_is_judged_as_such_with_what_was_delivered() -> None:
    told = said("chase", "thp", judged="setting", delivered_share=0.031)
    assert told.endswith("Judges the setting of thp: 3.1% of the named memory was backed as promised.")
    assert "the setting of thp: no share at a promised page size is known." in said("chase", "thp", judged="setting")
    told = said("chase", "thp", baseline_judged="setting", baseline_share=0.5)
    assert told.endswith("Held against the setting of base: 50.0% of the named memory was backed as promised.")
    assert "setting" not in said("chase", "thp")


LOST = LeftOut((Lack("not delivered", "thp", "wall_s", 2, 120, "no room"),), Unknown(3, 1))
CHANCE = "the difference is too consistent for chance"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Crossed(10), f"from pair 10 on {CHANCE}; this holds for this run, not for other days"),
        (Crossed(12, "agrees"), f"from pair 12 on {CHANCE}; the average over the run agrees"),
        (Crossed(12, "contradicts"), f"from pair 12 on {CHANCE}, but the average over the run says the opposite"),
        (
            Crossed(120, "open", LOST),
            f"from pair 120 on {CHANCE}, also with the pairs that had to be left out counted against it (pages of thp"
            " not delivered in 2 of 120 attempts: no room; nothing is known of 3 pairs, 1 of them as their block was"
            " not completed); the average over the run does not contradict it",
        ),
        (
            UnderDesign(Crossed(10), boots=1),
            f"from pair 10 on {CHANCE}; this holds for this run, not for other days; it is for this boot of its guest:"
            " another may differ",
        ),
        (
            WithinMargin(0.02, False, None, 0.319),
            "the whole interval of the typical ratio lies within the margin of 0.02; up to 32% of runs may stall,"
            " though none of these pairs shows a stall, so that nothing is claimed of the mean",
        ),
        (
            WithinMargin(0.02, True, None, 0.0123),
            "the whole interval of the typical ratio lies within the margin of 0.02; up to 1.2% of runs may stall,"
            " though none of these pairs shows a stall, and the mean lies within it even if these took twice as long",
        ),
        (
            MeanWithin(0.03, bounded=False),
            "the interval of the mean lies within the margin, but not if these took twice as long: up to 3% of runs may"
            " stall, though none of these pairs shows a stall",
        ),
        (
            NoOneEffect(crossed=True),
            "the pairs differ too consistently for chance, but the effect changed in the course of the run, so that no"
            " one figure stands for it",
        ),
        (BudgetTooSmall(5, 8), "even all 8 planned pairs could decide nothing at this confidence: plan more"),
        (Crossed(None), f"{CHANCE}; this holds for these measurements, not for other days"),
        (NotShown(1200), "1,200 pairs show no difference"),
        ("the pool was short by 12 pages", "the pool was short by 12 pages"),
    ],
)
def test_a_reason_in_words(reason: Reason, words: str) -> None:
    assert in_words(reason) == words


@pytest.mark.parametrize("kind", get_args(Reason))
def test_every_reason_has_words_and_is_read_as_it_was_written(kind: type) -> None:
    if kind is str:
        return
    hints = get_type_hints(kind)
    given = {name: _some(hints[name]) for name in kind.__struct_fields__}  # type: ignore[attr-defined]
    for reason in (kind(**given), kind(**{name: given[name] for name in _required(kind)})):
        assert in_words(reason).strip("; ") and not in_words(reason).endswith(".")
        assert msgspec.json.decode(msgspec.json.encode(reason), type=Reason) == reason
        assert worded({"reason": [reason]}) == {"reason": [in_words(reason)]}
    for fact in get_args(Fact):
        assert in_words(Known(fact))


def _required(kind: type) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _some(kind: Any) -> Any:
    """A value of that type."""
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) is tuple:
        each = [one for one in get_args(kind) if one is not ...]
        return tuple(map(_some, each))
    options = [one for one in get_args(kind) if one is not type(None)]
    if options:
        return "more" if str in options else _some(options[0])
    if kind in (LeftOut, Unknown, Lack):
        return kind(**{one.name: _some(one.type) for one in msgspec.structs.fields(kind)})
    return {str: "thp", int: 3, float: 0.5, bool: True}[kind]


NO_PMU = "not offered by this processor or its hypervisor"

# What a run here found: the probe's `fault` under base pages and transparent ones.
FAULTS_CAUSE = Cause(
    arm="thp",
    baseline="base",
    told="faults",
    by="CPU time",
    saved=0.1241,
    share=0.925,
    low=0.853,
    high=1.001,
    faults=(
        FaultTime(faults=65536, low=0.1291, typical=0.1342, high=0.1379),
        FaultTime(faults=128, low=0.0052, typical=0.0056, high=0.0064),
    ),
    cpu=(0.1534, 0.0276),
    delivered=(0.0, 1.0),
    sizes={"2097152": 1.0},
    bound=Bound(won=0.823, why=NO_PMU, parts={"kernel": 0.947}, family="Zen 4"),
    stalls=(0.0, 3.0),
    fallbacks=(0.0, 41.0),
    unseen=(Unseen("page walks and their cycles", NO_PMU),),
)

# Counts as a Skylake server gives them, of a program that walks.
WALKS = Cause(
    arm="thp",
    baseline="base",
    told="walks",
    by="counters",
    saved=0.42,
    share=0.03,
    low=0.0,
    high=0.06,
    faults=(
        FaultTime(faults=90_000, low=0.15, typical=0.18, high=0.21),
        FaultTime(faults=80_000, low=0.13, typical=0.16, high=0.19),
    ),
    cpu=(1.2, 0.78),
    user=(
        TlbCost(walk_share=0.333, walks_pki=12.5, walks=2.5e7, stlb_hits=1e7, busy=0.21),
        TlbCost(walk_share=0.048, walks_pki=0.31, walks=6e5, stlb_hits=1e5, busy=0.03),
    ),
    kernel=(
        TlbCost(walk_share=0.04, walks_pki=1.1, walks=4e5, stlb_hits=4e5, busy=0.02),
        TlbCost(walk_share=0.01, walks_pki=0.4, walks=1e5, stlb_hits=1e5, busy=0.01),
    ),
    delivered=(0.0, 0.97),
    sizes={"2097152": 0.91, "65536": 0.06, "4096": 0.03},
    bound=Bound(
        won=0.35,
        upper=0.47,
        parts={"walks in user mode": 0.27, "hits in user mode": 0.08, "nested walks in user mode": 0.05,
               "faults by the most that one cost here": 0.07},
        family="Skylake server",
        errata="SKL000",
        stlb_cycles=9,
        walkers=2,
        nested=0.05,
    ),
    slowest=10,
    slow_with={"bytes in huge pages cleared": 7, "base pages that compaction scanned": 2},
    memory_age="fragmented",
)  # fmt: skip

NEITHER = Cause(
    arm="thp",
    baseline="base",
    told="neither",
    why="there is no difference",
    saved=0.0001,
    faults=(FaultTime(faults=0, low=0.0, typical=0.0, high=0.0), FaultTime(faults=0, low=0.0, typical=0.0, high=0.0)),
    cpu=(0.5, 0.5),
    delivered=(0.0, 1.0),
    sizes={"2097152": 1.0},
    user=(TlbCost(walk_share=0.004, walks_pki=0.01), TlbCost(walk_share=0.003, walks_pki=0.01)),
    bound=Bound(won=0.0, upper=0.006, parts={"walks in user mode": 0.006}, family="Skylake server", stlb_cycles=9),
)

UNSEEN = Cause(
    arm="thp",
    baseline="base",
    told="walks",
    by="memory touched before",
    saved=0.6,
    share=0.0,
    faults=(
        FaultTime(faults=3, low=0.0, typical=6e-6, high=8e-6),
        FaultTime(faults=1, low=0.0, typical=2e-6, high=3e-6),
    ),
    cpu=(0.7, 0.1),
    delivered=(0.0, 1.0),
    sizes={"2097152": 1.0},
    bound=Bound(won=0.84, why=NO_PMU, parts={"kernel": 0.001}, family="Zen 4"),
    unseen=(Unseen("page walks and their cycles", NO_PMU),),
)

KEPT = {
    "faults": (FAULTS_CAUSE, "better"),
    "walks, from recorded counts": (WALKS, "better"),
    "neither": (NEITHER, "equivalent"),
    "no PMU, memory touched before": (UNSEEN, "better"),
    "a loss": (msgspec.structs.replace(FAULTS_CAUSE, saved=-0.1241, told="both"), "worse"),
    "not told apart": (
        msgspec.structs.replace(
            FAULTS_CAUSE,
            told="not told apart",
            by="",
            why="its CPU time is not seen to differ",
            would="more than 12 pairs",
        ),
        "undecided",
    ),
    "more than the bound": (
        msgspec.structs.replace(WALKS, bound=msgspec.structs.replace(WALKS.bound, won=0.6)),
        "better",
    ),
    "AMD, whose walks have no cycles": (
        msgspec.structs.replace(
            FAULTS_CAUSE,
            bound=msgspec.structs.replace(FAULTS_CAUSE.bound, why="AMD processors count page walks, not their cycles"),
            user=(TlbCost(walks=1.18e9, stlb_hits=1.6e9), TlbCost(walks=4.9e6, stlb_hits=1.5e7)),
            unseen=(Unseen("cycles of page walks", "AMD processors count page walks, not their cycles"),),
        ),
        "better",
    ),
}


def test_the_paragraphs_are_the_kept_ones() -> None:
    text = "\n\n".join(f"{name}\n{' '.join(evidence(*what))}" for name, what in KEPT.items())
    same(text + "\n", GOLDEN / "causes.txt")
