"""Surveys: a machine of which some files are known, and that cannot be changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hugewise import policies
from hugewise.guests import cache, counted
from hugewise.guests.counted import Survey, SurveyedHost
from hugewise.model.pages import HUGETLB, THP
from tests.build.guests import kernel
from tests.build.hosts import FakeHost

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def files(pmd: int, shmem_only: int, mthp: tuple[int, ...], pools: tuple[int, ...]) -> Mapping[str, str]:
    """Sizes in bytes, as a kernel lists them: the smallest size is there for shared memory alone."""
    by_name = {
        f"{THP}/enabled": "always [madvise] never",
        f"{THP}/hpage_pmd_size": str(pmd),
        f"{THP}/khugepaged/defrag": "1",
        f"{THP}/hugepages-{shmem_only >> 10}kB/shmem_enabled": "always inherit within_size advise [never]",
        "/proc/meminfo": "MemTotal:         491234 kB",
        "/sys/devices/system/cpu/online": "0",
    }
    for size in mthp:
        by_name[f"{THP}/hugepages-{size >> 10}kB/enabled"] = "always inherit madvise [never]"
        by_name[f"{THP}/hugepages-{size >> 10}kB/shmem_enabled"] = "always inherit within_size advise [never]"
    for size in pools:
        by_name[f"{HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"] = "0"
    return by_name


def doubled(first: int, last: int) -> tuple[int, ...]:
    return tuple(first << n for n in range((last // first).bit_length()))


# arm64, Linux 6.12, as booted: base page, PMD, size for shared memory alone, sizes for anonymous memory, pools.
ARM64 = {
    "4k": (4 * KIB, 2 * MIB, 8 * KIB, doubled(16 * KIB, 2 * MIB), (64 * KIB, 2 * MIB, 32 * MIB, GIB)),
    "16k": (16 * KIB, 32 * MIB, 32 * KIB, doubled(64 * KIB, 32 * MIB), (2 * MIB, 32 * MIB, GIB)),
    "64k": (64 * KIB, 512 * MIB, 128 * KIB, doubled(256 * KIB, 512 * MIB), (2 * MIB, 512 * MIB, 16 * GIB)),
}


def surveyed(base: str) -> Survey:
    page, pmd, shmem_only, mthp, pools = ARM64[base]
    return Survey(release="6.12.0", page_size=page, files=files(pmd, shmem_only, mthp, pools))


@pytest.mark.parametrize("base", ARM64)
def test_page_sizes_are_those_of_the_kernel_that_was_asked(base: str) -> None:
    page, pmd, shmem_only, mthp, pools = ARM64[base]
    sizes = surveyed(base).sizes
    assert (sizes.base, sizes.pmd, sizes.hugetlb) == (page, pmd, pools)
    assert {*sizes.mthp, pmd} == set(mthp)
    assert pmd not in sizes.mthp  # that is THP
    assert shmem_only not in (*sizes.mthp, *sizes.shmem)
    assert sizes.shmem == sizes.mthp


def test_policies_are_found_and_apply_on_a_surveyed_kernel() -> None:
    group = surveyed("16k")
    host = SurveyedHost(group, "a-16k")
    offered = policies.discover(group.sizes)
    assert {"base", "thp", "mthp-64k", "mthp-2m", "hugetlb-32m"} <= offered.keys()
    assert "mthp-16k" not in offered
    assert offered["mthp-64k"].missing(host, group.sizes, "system") is None
    treatment = offered["mthp-64k"].treatment(host, group.sizes, "system")
    assert treatment.knobs[f"{THP}/hugepages-64kB/enabled"] == "always"
    assert treatment.target.size == 64 * KIB


def test_a_machine_that_is_not_there_can_be_read_and_not_changed() -> None:
    host = SurveyedHost(surveyed("4k"), "a-4k")
    assert (host.name, host.privileged()) == ("a-4k", True)
    assert host.read(f"{THP}/enabled") == "always [madvise] never"
    assert host.writable(f"{THP}/enabled")
    assert not host.writable(f"{THP}/defrag")
    with pytest.raises(FileNotFoundError) as absent:
        host.read("/proc/vmstat")
    assert absent.value.filename == "/proc/vmstat"
    with pytest.raises(PermissionError, match="not there"):
        host.write(f"{THP}/enabled", "always")
    assert host.names(HUGETLB) == [f"hugepages-{size >> 10}kB" for size in (GIB, 2 * MIB, 32 * MIB, 64 * KIB)]
    assert host.names(f"{HUGETLB}/") == host.names(HUGETLB)
    assert host.names(f"{THP}/khugepaged") == ["defrag"]
    assert host.names("/nothing") == []


def test_a_survey_holds_the_knobs_and_no_counters() -> None:
    host = FakeHost()
    taken = counted.take_survey(host, "6.12.0", 4096)
    assert (taken.release, taken.page_size) == ("6.12.0", 4096)
    assert taken.files[f"{THP}/enabled"] == host.read(f"{THP}/enabled")
    assert taken.files[f"{HUGETLB}/hugepages-2048kB/nr_hugepages"] == "0"
    assert "/proc/meminfo" in taken.files
    assert "/proc/version" not in taken.files  # this machine has none
    assert not any("/stats/" in path for path in taken.files)
    assert host.writes == []


def test_it_is_kept_by_kernel_and_cpu_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path))
    asked = surveyed("64k")
    assert counted.find_survey(kernel("arm64"), "max") is None
    counted.keep_survey(kernel("arm64"), "max", asked)
    assert counted.find_survey(kernel("arm64"), "max") == asked
    assert counted.find_survey(kernel("arm64"), "neoverse-n1") is None  # another processor may offer other pages
    assert counted.find_survey(kernel("x86-64"), "max") is None
    (entry,) = cache.folder("surveys").glob("[!.]*")
    entry.write_bytes(b"{")
    assert counted.find_survey(kernel("arm64"), "max") is None  # asked anew, rather than believed
    counted.keep_survey(kernel("arm64"), "max", asked)
    assert counted.find_survey(kernel("arm64"), "max") == asked
