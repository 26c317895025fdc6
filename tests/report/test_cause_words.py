"""The paragraph behind a verdict: kept texts, and a sentence for each fact, which changes when the fact does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from hugewise.model.cause import Bound, Cause, FaultTime, TlbCost, Unseen
from hugewise.report.answer_text import paragraph
from tests.golden import GOLDEN, same

NO_PMU = "not offered by this processor or its hypervisor"

# What a run here found: the probe's `fault` under base pages and transparent ones.
FAULTS = Cause(
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
    "faults": (FAULTS, "better"),
    "walks, from recorded counts": (WALKS, "better"),
    "neither": (NEITHER, "equivalent"),
    "no PMU, memory touched before": (UNSEEN, "better"),
    "a loss": (msgspec.structs.replace(FAULTS, saved=-0.1241, told="both"), "worse"),
    "not told apart": (
        msgspec.structs.replace(
            FAULTS, told="not told apart", by="", why="its CPU time is not seen to differ", would="more pairs than 12"
        ),
        "undecided",
    ),
    "more than the bound": (
        msgspec.structs.replace(WALKS, bound=msgspec.structs.replace(WALKS.bound, won=0.6)),
        "better",
    ),
    "AMD, whose walks have no cycles": (
        msgspec.structs.replace(
            FAULTS,
            bound=msgspec.structs.replace(FAULTS.bound, why="AMD processors count page walks, not their cycles"),
            user=(TlbCost(walks=1.18e9, stlb_hits=1.6e9), TlbCost(walks=4.9e6, stlb_hits=1.5e7)),
            unseen=(Unseen("cycles of page walks", "AMD processors count page walks, not their cycles"),),
        ),
        "better",
    ),
}


def test_the_paragraphs_are_the_kept_ones() -> None:
    text = "\n\n".join(f"{name}\n{paragraph(*what)}" for name, what in KEPT.items())
    same(text + "\n", GOLDEN / "causes.txt")


@pytest.mark.parametrize("name", KEPT)
def test_each_paragraph_is_one_and_names_what_cannot_be_seen(name: str) -> None:
    found, verdict = KEPT[name]
    text = paragraph(found, verdict)
    assert "\n" not in text
    assert text.endswith(".")
    for one in found.unseen:
        assert one.what in text and one.why in text


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of plain data, with the way to it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    elif value is not None:
        yield path, value


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The data with another value at the end of the way."""
    if not path:
        return value
    first, *rest = path
    if isinstance(data, Mapping):
        return {**data, first: changed(data[first], tuple(rest), value)}
    return [*data[:first], changed(data[first], tuple(rest), value), *data[first + 1 :]]


# What a paragraph does not say: whom it is of (the verdict says it), and what stands in another fact that it does say.
UNSAID = {
    ("arm",), ("baseline",), ("bound", "nested"), ("sizes", "2097152"), ("bound", "family"),
    # By counters the share is of what was counted: the interval is of the times.
    ("low",), ("high",),
}  # fmt: skip
ROUNDED = {("faults", 0, "low"), ("faults", 1, "low")}  # only the digits of the typical time
INSTEAD = {  # a rate, and what it is made of
    **{(mode, side, "walks"): "walks_pki" for mode in ("user", "kernel") for side in (0, 1)},
}


@pytest.mark.parametrize("name", ["faults", "walks, from recorded counts", "neither", "no PMU, memory touched before"])
def test_the_paragraph_changes_when_the_data_behind_it_change(name: str) -> None:
    found, verdict = KEPT[name]
    text, data = paragraph(found, verdict), msgspec.to_builtins(found)
    said = 0
    for path, value in leaves(data):
        if path in UNSAID | ROUNDED | INSTEAD.keys() or (name != "faults" and path == ("saved",)):
            continue
        if not value or path[0] in {"told", "by"}:
            continue
        if name == "neither" and path[0] in {"faults", "cpu"}:
            continue
        if name.startswith("no PMU") and path[0] in {"share", "faults", "cpu"}:
            continue  # next to nothing, of which the most is told
        other = f"{value} otherwise" if isinstance(value, str) else value + 1 if isinstance(value, int) else value * 0.5
        mutated = msgspec.convert(changed(data, path, other), Cause)
        assert paragraph(mutated, verdict) != text, path
        said += 1
    assert said >= 6
    other_told = msgspec.structs.replace(found, told="both", by="CPU time", saved=0.3, share=0.5)
    assert paragraph(other_told, verdict) != text


def test_the_word_is_that_of_the_verdict() -> None:
    assert paragraph(FAULTS, "better").startswith("The gain is mostly page faults")
    assert paragraph(FAULTS, "worse").startswith("The loss is mostly page faults")
    assert paragraph(FAULTS, "undecided").startswith("The difference is mostly page faults")
