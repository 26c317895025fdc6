"""The rules in force are read by what is there, with `inherit` resolved."""

from hugewise.host.local_host import LocalHost
from hugewise.inspection.rules import Khugepaged, PoolState, rules_of
from hugewise.model.pages import HUGETLB, THP, PageSizes
from tests.build.hosts import FakeHost, Files

KIB, MIB = 1 << 10, 1 << 20


def test_modes_pools_and_the_daemon_are_read() -> None:
    host = FakeHost()
    host.turn(f"{THP}/hugepages-64kB/enabled", "inherit")
    host.turn(f"{HUGETLB}/hugepages-2048kB/nr_hugepages", "7")
    host.use(2048, 2)
    host.numbers[f"{HUGETLB}/hugepages-2048kB/nr_overcommit_hugepages"] = 3
    host.fixed[f"{THP}/khugepaged/pages_to_scan"] = "4096"
    host.fixed[f"{THP}/khugepaged/scan_sleep_millisecs"] = "10000"
    rules = rules_of(host, 4096)
    assert rules.sizes == {16 * KIB: "never", 64 * KIB: "madvise", 2 * MIB: "madvise"}
    assert (rules.top, rules.pmd) == ("madvise", 2 * MIB)
    assert rules.on() == [2 * MIB, 64 * KIB]
    assert rules.pools[2 * MIB] == PoolState(pages=7, free=5, reserved=0, overcommit=3)
    assert rules.pools[2 * MIB].available == 8
    assert rules.khugepaged.pace(4096) == 4096 * 4096 / 10
    told = " ".join(rules.lines())
    assert "64k madvise, 2m madvise" in told
    assert "pool of 2m pages: 7, 5 free, 0 reserved, 3 more" in told


def test_a_kernel_without_them_has_none() -> None:
    rules = rules_of(Files(), 4096)
    assert (rules.sizes, rules.pools, rules.on(), rules.top) == ({}, {}, [], "never")
    assert rules.khugepaged.pace(4096) is None
    assert "never, at any size" in rules.lines()[0]


def test_a_kernel_before_sizes_has_the_top_level() -> None:
    files = {f"{THP}/hpage_pmd_size": str(2 * MIB), f"{THP}/enabled": "[always] madvise never"}
    assert rules_of(Files(files), 4096).sizes == {2 * MIB: "always"}


def test_what_is_free_is_no_rule() -> None:
    host = FakeHost()
    before = rules_of(host, 4096)
    host.turn(f"{HUGETLB}/hugepages-2048kB/nr_hugepages", "7")
    assert rules_of(host, 4096).same(before)
    host.turn(f"{THP}/enabled", "never")
    assert not rules_of(host, 4096).same(before)


def test_a_daemon_that_never_sleeps_has_a_pace() -> None:
    assert Khugepaged(pages_to_scan=1, sleep_ms=0).pace(4096) == 4096 / 1e-3


def test_this_machine_has_its_sizes() -> None:
    sizes = PageSizes.discover(LocalHost())
    assert set(rules_of(LocalHost()).pools) == set(sizes.hugetlb)
