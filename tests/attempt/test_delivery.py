from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.attempt.outcome import judge_delivery, total_coverage
from hugewise.model.pages import PageKind, PageTarget
from hugewise.model.trial import Delivery

KIB, MIB = 1 << 10, 1 << 20


def judged(
    kind: PageKind, size: int, coverage: dict[str, int], *, share: float = 0.95, thp_disabled: bool = False
) -> Delivery:
    return judge_delivery(
        PageTarget(kind, size),
        coverage,
        proof="ranges",
        source="kpageflags",
        share=share,
        base_above=0.01,
        thp_disabled=thp_disabled,
    )


@pytest.mark.parametrize(
    ("kind", "size", "coverage", "delivered"),
    [
        ("base", 4 * KIB, {"anon:4096": 64 * MIB}, True),
        ("base", 4 * KIB, {"anon:4096": 990, "anon:65536": 10}, True),
        ("base", 4 * KIB, {"anon:4096": 989, "anon:65536": 11}, False),
        ("thp", 2 * MIB, {"anon:2097152": 95, "anon:4096": 5}, True),
        ("thp", 2 * MIB, {"anon:2097152": 94, "anon:4096": 6}, False),
        ("thp", 2 * MIB, {"anon-pte:2097152": 100}, False),  # mapped by PTEs: no TLB reach gained
        ("thp", 2 * MIB, {"anon:2097152": 50, "shmem:2097152": 50}, True),
        ("thp", 2 * MIB, {"hugetlb:2097152": 100}, False),
        ("hugetlb", 2 * MIB, {"hugetlb:2097152": 100}, True),
        ("hugetlb", 1 << 30, {"hugetlb:2097152": 100}, False),
        ("mthp", 64 * KIB, {"unproven": 100}, None),
        ("mthp", 64 * KIB, {"unproven": 4, "anon:65536": 96}, True),
        ("mthp", 64 * KIB, {"unproven": 6, "anon:65536": 90, "anon:4096": 4}, None),
        ("mthp", 64 * KIB, {"unproven": 1, "anon:65536": 90, "anon:4096": 9}, False),
        ("base", 4 * KIB, {"unproven": 100}, None),
        ("thp", 2 * MIB, {}, None),
        ("any", 4 * KIB, {"anon:4096": 1}, True),
    ],
)
def test_judged_by_the_proof(kind: PageKind, size: int, coverage: dict[str, int], delivered: bool | None) -> None:
    assert judged(kind, size, coverage).delivered is delivered


def test_the_reason_names_the_cause() -> None:
    assert "pool" in (judged("hugetlb", 2 * MIB, {"anon:4096": 1}).reason or "")
    assert "disabled THP for itself" in (judged("thp", 2 * MIB, {"anon:4096": 1}, thp_disabled=True).reason or "")
    assert "64k" in (judged("base", 4 * KIB, {"anon:4096": 1, "anon:65536": 1}).reason or "")
    assert "root" in (judged("mthp", 64 * KIB, {"unproven": 1}).reason or "")


def test_share_zero_is_intention_to_treat_and_still_reports_the_share() -> None:
    found = judged("thp", 2 * MIB, {"anon:4096": 3, "anon:2097152": 1}, share=0)
    assert found.delivered is True
    assert found.share == 0.25


def test_share_zero_says_why_nothing_is_known() -> None:
    found = judged("thp", 2 * MIB, {}, share=0)
    assert (found.delivered, found.share, found.reason) == (True, None, "no memory was found to prove it by")
    assert judged("any", 4 * KIB, {}, share=0).reason is None


@pytest.mark.parametrize("kind", ["base", "thp", "mthp", "hugetlb"])
def test_share_zero_takes_what_came_for_every_kind(kind: PageKind) -> None:
    found = judged(kind, 32 * KIB, {"anon:4096": 1, "anon:65536": 2, "unproven": 5}, share=0)
    assert (found.delivered, found.share, found.reason) == (True, 0.0, None)


PARTS = st.dictionaries(
    st.sampled_from(["anon:4096", "anon:65536", "anon:2097152", "unproven"]), st.integers(0, 1 << 40)
)


@given(st.lists(PARTS))
def test_total_loses_no_byte(parts: list[dict[str, int]]) -> None:
    assert sum(total_coverage(parts).values()) == sum(sum(part.values()) for part in parts)


@given(PARTS.filter(lambda part: sum(part.values()) > 0))
def test_never_both_delivered_and_short(part: dict[str, int]) -> None:
    found = judged("thp", 2 * MIB, part)
    assert (found.delivered is True) == (part.get("anon:2097152", 0) / sum(part.values()) >= 0.95)
