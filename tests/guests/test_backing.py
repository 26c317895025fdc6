"""The proof of a guest's backing. The smaps were recorded of QEMU 7.2 on Linux 6.18, of mappings of at least 1 MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.guests import backing
from hugewise.model.guest import Backing, Pages
from tests.build.guests import MIB, guest

SMAPS = Path(__file__).parent / "smaps"
_2M, _1G = "hugetlb:2097152", "hugetlb:1073741824"


def recorded(name: str) -> str:
    return (SMAPS / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "promised", "memory", "kinds"),
    [
        ("base", Backing(pages="base"), 256 * MIB, {"base": 256 * MIB}),
        ("thp", Backing(pages="thp"), 256 * MIB, {"thp": 256 * MIB}),
        ("hugetlb-2m", Backing(pages="hugetlb-2m"), 256 * MIB, {_2M: 256 * MIB}),
        ("hugetlb-1g", Backing(pages="hugetlb-1g"), 1024 * MIB, {_1G: 1024 * MIB}),
        ("hugetlb-1g-file", Backing(pages="hugetlb-1g", source="file"), 1024 * MIB, {_1G: 1024 * MIB}),
    ],
)
def test_each_backing_is_proven(name: str, promised: Backing, memory: int, kinds: dict[str, int]) -> None:
    proof = backing.judge(recorded(name), guest(backing=promised, memory=memory))
    assert (proof.accepted, proof.share, proof.bytes, proof.resident) == (True, 1.0, kinds, memory)


@pytest.mark.parametrize("name", ["base", "thp", "hugetlb-2m", "hugetlb-1g"])
@pytest.mark.parametrize("promised", ["base", "thp", "hugetlb-2m", "hugetlb-1g"])
def test_no_other_backing_is_taken_for_it(name: str, promised: Pages) -> None:
    memory = (1024 if name == "hugetlb-1g" else 256) * MIB
    proof = backing.judge(recorded(name), guest(backing=Backing(pages=promised), memory=memory))
    assert proof.accepted == (name == promised)
    if name != promised:
        assert proof.share == 0.0
        assert "are needed" in proof.why


def test_memory_that_is_not_there_yet_is_judged_by_what_is() -> None:
    lazy = Backing(pages="thp", preallocate=False)
    proof = backing.judge(recorded("thp-lazy"), guest(backing=lazy))
    assert proof.accepted
    assert proof.share == 1.0
    assert 0 < proof.resident < proof.memory
    # The same memory, promised to be there before the guest starts, is too little.
    assert not backing.judge(recorded("thp-lazy"), guest()).accepted


def test_the_buffer_of_translated_code_is_no_memory_of_the_guest() -> None:
    text = recorded("thp")
    [found] = backing.guest_memory(text, 256 * MIB)
    buffers = [area for area in backing.areas(text) if area.permissions == "rwxp" and area.size > 60 * MIB]
    assert len(buffers) == 1
    assert found.permissions == "rw-p"
    # Not even where it is the only mapping of that size.
    assert backing.guest_memory(text.replace(" rw-p ", " r--p "), 48 * MIB) == []


def test_mapped_pieces_are_taken_together() -> None:
    pieces = [("10000000-18000000", 131072), ("18000000-20000000", 65536), ("30000000-38000000", 131072)]
    text = "".join(
        f"{place} rw-p 00000000 00:00 0 \nKernelPageSize:        4 kB\nRss:            {huge + 100} kB\n"
        f"AnonHugePages:     {huge} kB\nVmFlags: rd wr mr mw me ac sd hg\n"
        for place, huge in pieces
    )
    proof = backing.judge(text, guest())
    assert proof.bytes == {"thp": 192 * MIB, "base": 200 * 1024}
    assert proof.share == 0.75
    assert not proof.accepted
    assert backing.judge(text, guest(), share=0.7).accepted


def test_nothing_of_that_size_is_no_proof() -> None:
    proof = backing.judge(recorded("thp"), guest(memory=4096 * MIB))
    assert (proof.accepted, proof.resident) == (False, 0)
    assert proof.why == "no mapping of QEMU holds the guest's 4g"
    assert not backing.judge("", guest()).accepted


def test_bound_memory_is_proven_by_numa_maps() -> None:
    bound = guest(backing=Backing(nodes=(0,)))
    [area] = backing.guest_memory(recorded("thp"), bound.memory)
    other = "55853cbfb000 default file=/usr/bin/qemu-system-x86_64 mapped=1031 N3=1031 kernelpagesize_kB=4\n"
    there = f"{area.start:x} bind:0 anon=65536 dirty=65536 active=0 N0=65536 kernelpagesize_kB=4\n"
    away = f"{area.start:x} bind:0 anon=65536 dirty=65536 active=0 N0=65024 N1=512 kernelpagesize_kB=4\n"
    assert backing.nodes(other + there, [area]) == {0: 256 * MIB}
    assert backing.judge(recorded("thp"), bound, numa=other + there).accepted
    proof = backing.judge(recorded("thp"), bound, numa=other + away)
    assert (proof.accepted, proof.why) == (False, "2m lie on NUMA node 1")
    assert "nothing says on which" in backing.judge(recorded("thp"), bound, numa=None).why


def test_small_mappings_are_not_kept() -> None:
    small = "1000-2000 rw-p 00000000 00:00 0 \nRss:  4 kB\n"
    assert backing.large(small + recorded("base") + small) == recorded("base")
