"""Where a gain is told to come from, on attempts whose CPU times are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from hugewise.advise.decision import GainCauses, causes, explained
from hugewise.model.trial import Attempt
from tests.build import known
from tests.build.trials import attempt

Counts = Mapping[str, tuple[float, float]]
Pairs = list[tuple[Attempt, Attempt]]


def pairs(
    system: float, user: float, *, sd: float = 0.01, count: int = 30, more: Counts = MappingProxyType({})
) -> Pairs:
    """Attempts of an arm that saves so many seconds of each kind of a baseline with 1 s of each; `more`: counts of the
    baseline, and of the arm.
    """
    random = np.random.default_rng(7)

    def times(less: float) -> float:
        return float(1.0 - less + random.normal(0, sd))

    return [
        (
            attempt("thp", 1.0, block=number, metrics={
                "system_s": times(system), "user_s": times(user), **{name: two[1] for name, two in more.items()},
            }),
            attempt("base", 1.0, block=number, metrics={
                "system_s": times(0), "user_s": times(0), **{name: two[0] for name, two in more.items()},
            }),
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("system", "user", "told", "share"),
    [(0.4, 0.0, "faults", 1.0), (0.0, 0.4, "walks", 0.0), (0.25, 0.25, "both", 0.5), (0.4, 0.1, "faults", 0.8)],
)
def test_the_share_of_the_kernel_tells_faults_from_walks(system: float, user: float, told: str, share: float) -> None:
    found = causes(pairs(system, user), 100)
    assert found.told == told
    assert known(found.saved) == pytest.approx(system + user, abs=0.02)
    assert known(found.share) == pytest.approx(share, abs=0.05)
    assert known(found.low) < share + 0.02
    assert known(found.high) > share - 0.02


def test_of_what_it_costs_the_causes_are_told_too() -> None:
    found = causes(pairs(-0.4, 0.0), 100)
    assert (found.told, known(found.saved) < 0) == ("faults", True)
    assert "of the CPU time that is lost" in next(explained(found))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pairs(0.0, 0.0), "its CPU time is not seen to differ"),
        (pairs(0.4, 0.0, count=3), "its CPU time is not seen to differ"),
        (pairs(0.05, 0.05, sd=0.09, count=60), "the kernel's share of it is"),
        ([], "the kernel's part of its CPU time was not counted"),
        ([(attempt("thp", 1.0), attempt("base", 1.0))], "the kernel's part of its CPU time was not counted"),
    ],
)
def test_what_the_pairs_do_not_show_is_not_told_apart(made: Pairs, why: str) -> None:
    found = causes(made, 200)
    assert found.told == "not told apart"
    assert found.why.startswith(why)
    assert next(explained(found)).startswith(f"Cause: faults and page walks are not told apart: {why}")
    assert "To tell them apart it would take " in next(explained(found))


def test_what_would_tell_causes_apart_is_said() -> None:
    wide = causes(pairs(0.05, 0.05, sd=0.09, count=60), 200)
    (said,) = explained(wide)
    low, high = known(wide.low), known(wide.high)
    needed = math.ceil(60 * ((high - low) / 0.5) ** 2)
    assert needed > 60
    assert f"To tell them apart it would take some {needed} pairs, or a processor whose counters of page walks" in said
    counted = causes(pairs(0.0, 0.0, more={"dtlb_walk_steps": (1e6, 4e5)}), 200)
    assert counted.would == "more pairs than 30", "page walks were counted: they are told by themselves"
    assert causes(pairs(0.4, 0.0), 100).would == ""


def test_the_interval_of_the_share_misses_as_seldom_as_it_says() -> None:
    """Of 150 samples with a share of 0.7: 5%, and 3 standard errors."""
    missed = told = 0
    for seed in range(150):
        random = np.random.default_rng(seed)
        made = []
        for size, of_kernel, of_program in random.normal((0.3, 0, 0), (0.01, 0.02, 0.02), (25, 3)):
            arm = {"system_s": 1 - 0.7 * size, "user_s": 1 - 0.3 * size + of_program}
            made.append(
                (
                    attempt("thp", 1.0, metrics=arm),
                    attempt("base", 1.0, metrics={"system_s": 1 + of_kernel, "user_s": 1.0}),
                )
            )
        found = causes(made, 100)
        if found.low is not None and found.high is not None:
            told += 1
            missed += not found.low <= 0.7 <= found.high
    assert told > 140
    assert missed / 150 < 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


def test_counts_are_said_where_they_were_read() -> None:
    counts = {"page_faults": (25_000.0, 312.0), "dtlb_walk_steps": (1e6, 4e5), "dtlb_load_misses": (5e5, 1e5)}
    stalls = {"compact_stalls": (0.0, 3.0), "thp_fallbacks": (0.0, 0.0)}
    said = list(explained(causes(pairs(0.4, 0.0, more={**counts, **stalls}), 100)))
    assert said[0].startswith("Cause: mostly page faults; the kernel's time is 9")
    assert said[0].endswith("Page faults a run: 25,000 before, 312 after.")
    assert said[1:] == [
        "Page walks (dtlb_walk_steps): −60.0%, by medians, without an interval.",
        "Stalls, of the whole machine meanwhile: 3 waits for compaction a run (before: 0).",
    ]


def test_without_counters_nothing_is_made_up() -> None:
    (said,) = explained(causes(pairs(0.0, 0.4), 100))
    assert said.startswith("Cause: mostly page walks and caches, in the program itself; the kernel's time is 0% to ")
    assert "faults a run" not in said


def test_parts_that_differ_in_sign_are_said_to_be_all_or_none() -> None:
    shared = GainCauses(told="faults", saved=0.2, share=1.4, low=1.2, high=1.6)
    assert "the kernel's time is more than all of the CPU time that is saved" in next(explained(shared))
    other = GainCauses(told="walks", saved=0.2, share=-0.4, low=-0.6, high=-0.2)
    assert "the kernel's time is none of the CPU time that is saved" in next(explained(other))
