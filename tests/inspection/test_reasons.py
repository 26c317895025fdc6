"""Each reason why pages are missing, from what was seen: how much, and silent where there is none."""

from collections.abc import Iterable
from typing import Any

import pytest

from hugewise.inspection.allocator import Allocator
from hugewise.inspection.look import Look
from hugewise.inspection.reasons import Reason, ignored, not_base, not_huge, not_pooled, tunables, unknown
from hugewise.inspection.rules import Khugepaged, PoolState, Rules
from hugewise.machine.smaps import BackedMapping
from hugewise.model.pages import PageTarget

MIB = 1 << 20
PMD = 2 * MIB
THP = PageTarget("thp", PMD)


def rules(mode: str = "madvise", shared: str = "never", scan: int | None = 4096, **changes: Any) -> Rules:
    told: dict[str, Any] = {
        "base": 4096,
        "pmd": PMD,
        "top": mode,
        "defrag": "madvise",
        "sizes": {64 << 10: "never", PMD: mode},
        "shared": {PMD: shared},
        "khugepaged": Khugepaged(pages_to_scan=scan, sleep_ms=10_000, max_ptes_none=511),
        "pools": {PMD: PoolState(pages=4, free=0, reserved=0, overcommit=0)},
    }
    return Rules(**(told | changes))


def mapping(size: int = 64, start: int = 0, **changes: Any) -> BackedMapping:
    """Of so many MiB, all of it touched."""
    told: dict[str, Any] = {
        "start": (1 << 30) + start,
        "end": (1 << 30) + start + size * MIB,
        "permissions": "rw-p",
        "name": "",
        "resident": size * MIB,
        "anonymous": size * MIB,
        "eligible": False,
    }
    flags = frozenset(changes.pop("flags", ()))
    return BackedMapping(**(told | changes), flags=flags)


def seen(*mappings: BackedMapping, **changes: Any) -> Look:
    told: dict[str, Any] = {
        "pid": 7,
        "command": "x",
        "uid": 0,
        "coverage": {"anon:4096": 64 * MIB},
        "mappings": list(mappings),
        "thp_disabled": False,
        "environment": {},
        "allocator": Allocator(name="glibc", tuned=True),
    }
    return Look(**(told | changes))


def told(found: Iterable[Reason]) -> dict[str, int | None]:
    return {one.id: one.bytes for one in found}


@pytest.mark.parametrize(
    ("mode", "changes", "process", "why"),
    [
        ("never", {}, {}, "rules-never"),
        ("madvise", {}, {}, "not-advised"),
        ("madvise", {"flags": ["hg"], "eligible": True}, {}, "eligible-not-backed"),
        ("always", {"eligible": True}, {}, "eligible-not-backed"),
        ("always", {"flags": ["nh"]}, {}, "advised-against"),
        ("always", {}, {}, "except-advised"),
        ("madvise", {"flags": ["hg"]}, {}, "not-eligible"),
        ("always", {"eligible": True}, {"thp_disabled": True}, "disabled-by-itself"),
    ],
)
def test_memory_without_huge_pages_has_one_reason(
    mode: str, changes: dict[str, Any], process: dict[str, Any], why: str
) -> None:
    assert told(not_huge([seen(mapping(**changes), **process)], rules(mode), THP, {7: 0})) == {why: 64 * MIB}
    backed = mapping(**changes, huge=64 * MIB)
    assert told(not_huge([seen(backed, **process)], rules(mode), THP, {7: 64 * MIB})) == {}


def test_a_kernel_that_does_not_say_what_is_eligible_is_believed() -> None:
    """Before Linux 5.0 smaps has no such field."""
    assert told(not_huge([seen(mapping(eligible=None))], rules("always"), THP, {})) == {"eligible-not-backed": 64 * MIB}


def test_what_has_no_room_is_too_small() -> None:
    small = [mapping(1, start=place * 2 * MIB + 4096) for place in range(3)]
    assert told(not_huge([seen(*small)], rules("always"), THP, {})) == {"too-small": 3 * MIB}
    edges = mapping(4, start=MIB, eligible=True)
    found = told(not_huge([seen(edges)], rules("always"), THP, {7: 0}))
    assert found == {"eligible-not-backed": 2 * MIB, "too-small": 2 * MIB}


def test_what_is_touched_throughout_and_not_huge_is_said() -> None:
    look = seen(mapping(flags=["hg"], eligible=True, huge=16 * MIB))
    (one,) = not_huge([look], rules(), THP, {7: 48 * MIB})
    assert one.bytes == 48 * MIB
    assert "32 MiB of it in blocks that are touched throughout" in one.text
    (one,) = not_huge([look], rules(), THP, {7: None})
    assert "throughout" not in one.text


def test_shared_memory_goes_by_its_own_rule() -> None:
    shared = mapping(permissions="rw-s", name="/dev/zero (deleted)", anonymous=0)
    assert told(not_huge([seen(shared)], rules("always"), THP, {})) == {"shared-memory": 64 * MIB}
    assert told(not_huge([seen(shared)], rules("always", shared="always"), THP, {})) == {}


def test_other_sizes_and_pieces_are_named() -> None:
    coverage = {"anon:4096": MIB, "anon:65536": 3 * MIB, "anon-pte:2097152": 2 * MIB, "anon:2097152": 9 * MIB}
    found = told(not_huge([seen(coverage=coverage)], rules("always"), THP, {}))
    assert found == {"other-size": 3 * MIB, "mapped-in-pieces": 2 * MIB}


def test_a_smaller_size_that_was_promised_is_counted_by_the_page_flags() -> None:
    both = rules("never", sizes={64 << 10: "always", PMD: "never"})
    look = seen(mapping(eligible=True), coverage={"anon:4096": 4 * MIB, "anon:65536": 60 * MIB})
    assert told(not_huge([look], both, PageTarget("mthp", 64 << 10), {}))["eligible-not-backed"] == 4 * MIB


def test_swap_is_named() -> None:
    assert told(not_huge([seen(mapping(huge=64 * MIB, swapped=MIB))], rules(), THP, {})) == {"swapped": MIB}


def test_a_pool_that_is_short() -> None:
    look = seen(mapping(), environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"})
    (one,) = not_pooled([look], rules(), PMD)
    assert (one.id, one.bytes) == ("pool-short", 64 * MIB)
    assert "0 free of 4" in one.text
    assert "without a word" in one.text
    assert one.cure is not None
    assert "echo 36 > " in one.cure
    plenty = rules(pools={PMD: PoolState(pages=99, free=99, reserved=0, overcommit=0)})
    assert list(not_pooled([look], plenty, PMD)) == []
    reserved = rules(pools={PMD: PoolState(pages=99, free=99, reserved=99, overcommit=0)})
    assert told(not_pooled([look], reserved, PMD)).keys() == {"pool-short"}
    assert told(not_pooled([look], rules(pools={}), PMD)).keys() == {"no-pool"}


@pytest.mark.parametrize(
    ("environment", "wanted", "why"),
    [
        ({}, 1, {"tunable-missing"}),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, 1, set()),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}, 1, {"tunable-missing"}),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}, 1 << 30, set()),
        (None, 1, {"tunable-unknown"}),
    ],
)
def test_whether_glibc_was_told(environment: dict[str, str] | None, wanted: int, why: set[str]) -> None:
    assert told(tunables([seen(environment=environment)], rules(), wanted)).keys() == why


def test_why_a_tunable_is_ignored_and_by_whom() -> None:
    set_ = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    other = Allocator(name="jemalloc", tuned=False, why="it has jemalloc")
    looks = [seen(environment=set_, allocator=other), seen(pid=8, environment=set_)]
    (one,) = ignored(looks, rules())
    assert one.text == "7: glibc.malloc.hugetlb=1 is set, but it has jemalloc"
    assert [each.id for each in ignored(looks[1:], rules("always"))] == ["tunable-ignored"]
    assert list(ignored(looks[1:], rules("madvise"))) == []
    assert list(ignored([seen(allocator=other)], rules())) == []


def test_larger_pages_than_base_are_shown_where_they_are() -> None:
    (one,) = not_base([seen(mapping(huge=4 * MIB, name="[heap]"), mapping(start=1 << 29)), seen(mapping(), pid=8)])
    assert one.bytes == 4 * MIB
    assert "process 7 has 4 MiB in larger pages: [heap] at 40000000 (4 MiB)" in one.text


def test_what_cannot_be_told_without_root() -> None:
    look = seen(coverage={"unproven": MIB})
    assert list(unknown([look], rules("always"))) == []
    mixed = rules("always", sizes={64 << 10: "always", PMD: "always"})
    assert [one.id for one in unknown([look], mixed)] == ["sizes-unproven"]
