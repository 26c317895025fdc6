"""What backs a mapping where only smaps says it, and what is said of memory that could be in larger pages."""

import os
from collections.abc import Mapping

import pytest

from hugewise.inspection.backing import Key, by_smaps, large
from hugewise.inspection.inspect import lost_backing
from hugewise.inspection.inspected import KernelStatistics
from hugewise.inspection.look import _who
from hugewise.inspection.rules import Khugepaged, Rules
from hugewise.machine.smaps import BackedMapping, backed_mappings
from hugewise.model.pages import THP
from tests.build import known
from tests.inspection.test_reasons import MIB, PMD, mapping, rules
from tests.machine.test_smaps import RECORDED


def by(each: BackedMapping, rules: Rules, *, disabled: bool | None = False) -> Mapping[Key, int]:
    return dict(by_smaps(each, rules, disabled=disabled))


def test_of_recorded_smaps_what_the_pmd_maps_is_known_and_the_rest_is_not() -> None:
    heap, memfd, pool, file = backed_mappings(RECORDED.splitlines(keepends=True))
    on = rules("always", shared="advise")
    assert by(heap, on) == {("anon", PMD, "pmd"): 2 * MIB, ("unproven", None, "?"): 2 * MIB}
    assert by(memfd, on) == {("unproven", None, "?"): 100 << 10}
    assert by(pool, on) == {("hugetlb", PMD, "pmd"): 4 * MIB}
    assert by(file, on) == {("unproven", None, "?"): 4096}
    assert large(by_smaps(heap, on, disabled=False), 4096) is None


@pytest.mark.parametrize(("mode", "disabled"), [("never", False), ("always", True)])
def test_memory_that_can_have_no_larger_pages_is_in_base_pages(mode: str, disabled: bool) -> None:
    off = rules(mode)
    assert by(mapping(8), off, disabled=disabled) == {("anon", 4096, "aligned"): 8 * MIB}
    assert large(by_smaps(mapping(8), off, disabled=disabled), 4096) == 0


def test_shared_memory_and_files_go_by_rules_of_their_own() -> None:
    memory = mapping(8, name="/memfd:x (deleted)", permissions="rw-s", anonymous=0, shared_huge=6 * MIB)
    assert by(memory, rules(shared="never")) == {("shmem", PMD, "pmd"): 6 * MIB, ("shmem", 4096, "aligned"): 2 * MIB}
    assert by(memory, rules(shared="advise")) == {("shmem", PMD, "pmd"): 6 * MIB, ("unproven", None, "?"): 2 * MIB}
    file = mapping(8, name="/usr/bin/a", inode=7, anonymous=0, file_huge=2 * MIB)
    assert by(file, rules()) == {("file", PMD, "pmd"): 2 * MIB, ("unproven", None, "?"): 6 * MIB}


# -- memory that is eligible, and has none


def pending(rules: Rules, *, larger: int | None = 0, whole: int | None = None) -> tuple[str, str]:
    """What is said, and the cure, of 64 MiB that the rules allow larger pages."""
    counted = KernelStatistics(sizes=(), events={}, khugepaged={})
    found = known(lost_backing(mapping(64, eligible=True), larger, whole, rules, counted, disabled=False))
    assert found.id == "eligible-not-backed"
    return found.text, known(found.cure)


def test_what_khugepaged_may_still_give_says_how_long_that_takes() -> None:
    text, cure = pending(rules("always"), larger=16 * MIB, whole=32 * MIB)
    assert text == (
        "48 MiB is eligible for pages of 2m, and has none; 32 MiB of it in blocks that are touched throughout;"
        " khugepaged could still make them: it looks at most at 1.6 MiB a second, of all programs together, so in"
        " 30.0 s at the earliest"
    )
    assert "; 48 MiB of it in blocks" in pending(rules("always"), larger=16 * MIB, whole=64 * MIB)[0]
    assert cure.startswith(f"wait for khugepaged, or raise {THP}/khugepaged/pages_to_scan; ")


def test_khugepaged_that_is_off_or_makes_other_sizes_is_not_waited_for() -> None:
    text, cure = pending(rules("always", scan=0))
    assert text.endswith("; khugepaged, which could still make them, is off (pages_to_scan is 0)")
    assert cure == "have it advised before it is touched, or start the program again"
    text, cure = pending(rules("never", sizes={64 << 10: "always", PMD: "never"}), whole=32 * MIB)
    assert "for pages of 64k, and has none; khugepaged makes pages of that size only where" in text
    assert "touched throughout" not in text
    assert "wait for" not in cure
    unknown = rules("always", khugepaged=Khugepaged())
    assert pending(unknown)[0] == "64 MiB is eligible for pages of 2m, and has none"


# -- who cannot be looked at


@pytest.mark.parametrize(
    ("root", "own", "said"),
    [
        (True, True, "the kernel keeps it from root here"),
        (False, True, "the kernel keeps it from its own account"),
        (False, False, "it belongs to the account 1000"),
    ],
)
def test_who_cannot_be_looked_at_is_told_with_what_everybody_may_know(
    monkeypatch: pytest.MonkeyPatch, root: bool, own: bool, said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000 if own else 2000)
    status = {"Uid": "\t1000\t1000\t1000\t1000", "THP_enabled": "\t0", "HugetlbPages": "\t    2048 kB"}
    told = _who(status)
    assert told.startswith(said)
    assert told.endswith("transparent huge pages: has none; pages of pools: 2048 kB")
    old = _who({"Uid": "\t1000"})
    assert old.endswith("transparent huge pages: not known; pages of pools: not known")
