"""What a guest's memory is made of, by smaps; and what KVM maps of it, by a fake debugfs and a fake monitor."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError
from hugewise.guests import backing, hypervisor
from hugewise.guests.backing import UNKNOWN, KvmMapping, kvm_mapping, with_kvm_mapping
from hugewise.guests.boot import BootedGuest, Hosting
from hugewise.model.guest import Backing, Pages
from hugewise.report.sections import guests as section
from tests.build.booted import recorded
from tests.build.guests import MIB, guest
from tests.build.kvm import debugfs
from tests.guests.conftest import Bootable
from tests.requirements import need_now

SMAPS = Path(__file__).parent / "smaps"
_2M, _1G = "hugetlb:2097152", "hugetlb:1073741824"


def smaps_text(name: str) -> str:
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
    proof = backing.judge_backing(smaps_text(name), guest(backing=promised, memory=memory))
    assert (proof.accepted, proof.share, proof.bytes, proof.resident) == (True, 1.0, kinds, memory)


@pytest.mark.parametrize("name", ["base", "thp", "hugetlb-2m", "hugetlb-1g"])
@pytest.mark.parametrize("promised", ["base", "thp", "hugetlb-2m", "hugetlb-1g"])
def test_no_other_backing_is_taken_for_it(name: str, promised: Pages) -> None:
    memory = (1024 if name == "hugetlb-1g" else 256) * MIB
    proof = backing.judge_backing(smaps_text(name), guest(backing=Backing(pages=promised), memory=memory))
    assert proof.accepted == (name == promised)
    if name != promised:
        assert proof.share == 0.0
        assert "are needed" in proof.why


def test_memory_that_is_not_there_yet_is_judged_by_what_is() -> None:
    lazy = Backing(pages="thp", preallocate=False)
    proof = backing.judge_backing(smaps_text("thp-lazy"), guest(backing=lazy))
    assert proof.accepted
    assert proof.share == 1.0
    assert 0 < proof.resident < proof.memory
    # The same memory, promised to be there before the guest starts, is too little.
    assert not backing.judge_backing(smaps_text("thp-lazy"), guest()).accepted


def test_the_buffer_of_translated_code_is_no_memory_of_the_guest() -> None:
    text = smaps_text("thp")
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
    proof = backing.judge_backing(text, guest())
    assert proof.bytes == {"thp": 192 * MIB, "base": 200 * 1024}
    assert proof.share == 0.75
    assert not proof.accepted
    assert backing.judge_backing(text, guest(), share=0.7).accepted


def test_nothing_of_that_size_is_no_proof() -> None:
    proof = backing.judge_backing(smaps_text("thp"), guest(memory=4096 * MIB))
    assert (proof.accepted, proof.resident) == (False, 0)
    assert proof.why == "no mapping of QEMU holds the guest's 4g"
    assert not backing.judge_backing("", guest()).accepted


def test_bound_memory_is_proven_by_numa_maps() -> None:
    bound = guest(backing=Backing(nodes=(0,)))
    [area] = backing.guest_memory(smaps_text("thp"), bound.memory)
    other = "55853cbfb000 default file=/usr/bin/qemu-system-x86_64 mapped=1031 N3=1031 kernelpagesize_kB=4\n"
    there = f"{area.start:x} bind:0 anon=65536 dirty=65536 active=0 N0=65536 kernelpagesize_kB=4\n"
    away = f"{area.start:x} bind:0 anon=65536 dirty=65536 active=0 N0=65024 N1=512 kernelpagesize_kB=4\n"
    assert backing.nodes(other + there, [area]) == {0: 256 * MIB}
    assert backing.judge_backing(smaps_text("thp"), bound, numa=other + there).accepted
    proof = backing.judge_backing(smaps_text("thp"), bound, numa=other + away)
    assert (proof.accepted, proof.why) == (False, "2m lie on NUMA node 1")
    assert "nothing says on which" in backing.judge_backing(smaps_text("thp"), bound, numa=None).why


def test_small_mappings_are_not_kept() -> None:
    small = "1000-2000 rw-p 00000000 00:00 0 \nRss:  4 kB\n"
    assert backing.large_mappings(small + smaps_text("base") + small) == smaps_text("base")


MIB, GIB = 1 << 20, 1 << 30

# As QEMU 8.2 answers `query-stats` of a VM (qapi/stats.json).
SAID = json.loads("""[{"provider": "kvm", "stats": [
 {"name": "nx_lpage_splits", "value": 3}, {"name": "pages_4k", "value": 700},
 {"name": "pages_2m", "value": 2040}, {"name": "pages_1g", "value": 0}]}]""")


class Qemu:
    """A monitor that answers `query-stats` with that, or refuses it."""

    def __init__(self, said: Any = None) -> None:
        self.said = said
        self.asked: list[tuple[str, Mapping[str, object]]] = []

    def execute(self, command: str, patience: float = 30.0, **arguments: object) -> Any:
        self.asked.append((command, arguments))
        if self.said is None:
            raise MachineError("QEMU's monitor: The command query-stats has not been found")
        return self.said

    def close(self) -> None:
        pass


def test_the_monitor_is_asked_of_its_own_vm() -> None:
    qemu = Qemu(SAID)
    mapping = kvm_mapping(qemu, 100, Path("/nowhere"))
    assert mapping == KvmMapping({4096: 700, 2 * MIB: 2040, GIB: 0}, 3, "query-stats")
    assert isinstance(mapping, KvmMapping) and mapping.mapped == 700 * 4096 + 2040 * 2 * MIB
    ((command, arguments),) = qemu.asked
    assert (command, arguments["target"]) == ("query-stats", "vm")


def test_an_older_qemu_is_looked_up_in_debugfs_by_its_own_descriptor(tmp_path: Path) -> None:
    tree, proc = debugfs(tmp_path, pages_4k=5, pages_2m=512, nx_lpage_splits=2)
    assert kvm_mapping(Qemu(), 100, tree, proc) == KvmMapping({4096: 5, 2 * MIB: 512, GIB: 1}, 2, "debugfs")
    # A number of another PID namespace: no descriptor of a VM answers to it.
    assert "has no folder of QEMU's (300)" in str(kvm_mapping(Qemu(), 300, tree, proc))
    (proc / "100/fd/11").unlink()
    assert isinstance(kvm_mapping(Qemu(), 100, tree, proc), str)


@pytest.mark.parametrize("said", [[], {}, None, [{"provider": "kvm"}], [{"provider": "kvm", "stats": [{"name": 7}]}]])
def test_what_nobody_says_is_unknown_with_both_reasons(tmp_path: Path, said: Any) -> None:
    why = kvm_mapping(Qemu(said), 100, tmp_path / "absent")
    assert isinstance(why, str)
    assert "query-stats" in why and "is debugfs mounted?" in why


def of_host(promised: Pages, memory: int = 4 * GIB, *, accepted: bool = True) -> backing.Proof:
    return backing.Proof(
        promised=promised, memory=memory, resident=memory, bytes={}, share=1.0, accepted=accepted, why="the host's"
    )


def mapping(small: int = 0, medium: int = 0, large: int = 0, split: int = 0) -> KvmMapping:
    """These many bytes, by pages of 4 KiB, 2 MiB and 1 GiB."""
    return KvmMapping({4096: small // 4096, 2 * MIB: medium // (2 * MIB), GIB: large // GIB}, split, "debugfs")


@pytest.mark.parametrize(
    ("promised", "found", "accepted"),
    [
        ("base", mapping(small=GIB), True),
        ("base", mapping(small=GIB, medium=2 * MIB), False),
        ("thp", mapping(small=2 * MIB, medium=GIB), True),
        ("thp", mapping(medium=GIB, large=GIB), True),  # larger ones than promised
        ("hugetlb-2m", mapping(small=2 * MIB, medium=GIB), True),  # the first 2 MiB have the hole of VGA
        ("hugetlb-2m", mapping(small=GIB), False),
        ("hugetlb-2m", mapping(small=512 * MIB, medium=512 * MIB), False),
        ("hugetlb-1g", mapping(small=2 * MIB, medium=1022 * MIB, large=3 * GIB), True),  # so has the first GiB
        ("hugetlb-1g", mapping(medium=4 * GIB), False),
    ],
)
def test_delivered_is_what_host_and_kvm_both_say(promised: Pages, found: KvmMapping, accepted: bool) -> None:
    proof = with_kvm_mapping(of_host(promised), found)
    assert proof.accepted == accepted
    assert (proof.kvm, proof.kvm_share is not None) == (found.bytes, True)
    assert proof.why.startswith("the host's; KVM (debugfs) maps ")
    assert ("is needed" in proof.why) == (not accepted)
    smaller = promised != "base" and min(found.bytes) < {"hugetlb-1g": GIB}.get(promised, 2 * MIB)
    assert ("the hole of VGA: it is not judged" in proof.why) == (accepted and smaller)
    # What the host has not, KVM cannot make good.
    assert not with_kvm_mapping(of_host(promised, accepted=False), found).accepted


def test_nodes_with_other_pages_are_held_against_the_smallest() -> None:
    """KVM counts a guest's nodes together."""
    found = mapping(small=2 * MIB, medium=2 * GIB, large=2 * GIB)
    assert with_kvm_mapping(of_host("hugetlb-1g"), found, kinds=("hugetlb-1g", "thp")).accepted
    assert not with_kvm_mapping(of_host("hugetlb-1g"), found).accepted
    mixed = with_kvm_mapping(of_host("hugetlb-1g"), found, kinds=("hugetlb-1g", "base"))
    assert (mixed.accepted, mixed.kvm_share) == (True, None) and UNKNOWN in mixed.why


def test_where_nobody_says_it_the_hosts_pages_stand_and_it_is_said() -> None:
    proof = with_kvm_mapping(of_host("hugetlb-1g"), "debugfs is closed")
    assert (proof.accepted, proof.kvm, proof.kvm_share) == (True, None, None)
    assert proof.why == f"the host's; {UNKNOWN} (debugfs is closed)"
    # A guest of one page of 1 GiB: the hole is in it, and KVM never maps it whole.
    small = with_kvm_mapping(of_host("hugetlb-1g", GIB), mapping(medium=GIB))
    assert (small.accepted, small.kvm_share) == (True, None)
    assert f"{UNKNOWN} (KVM (debugfs) maps 1 GiB by 2m, which is not more than one page of 1g)" in small.why


def test_a_guest_under_kvm_is_proven_by_both_through_its_own_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way of a proof, of a QEMU whose smaps were recorded; one that is emulated is asked nothing."""
    text = (SMAPS / "hugetlb-2m.txt").read_text()
    monkeypatch.setattr(backing, "smaps", lambda _: text)
    outputs = Hosting(outputs=tmp_path, run=tmp_path)

    def of(accelerator: Any, said: Any) -> tuple[backing.Proof, Qemu]:
        qemu = Qemu(said)
        one = guest(backing=Backing(pages="hugetlb-2m"), accelerator=accelerator)
        booted = BootedGuest(one, outputs, _Serving(), None, qemu)  # type: ignore[arg-type]
        return booted.prove(), qemu

    split = [{"provider": "kvm", "stats": [{"name": n, "value": v} for n, v in (
        ("pages_4k", 60_000), ("pages_2m", 10), ("pages_1g", 0))]}]  # fmt: skip
    whole = [{"provider": "kvm", "stats": [{"name": n, "value": v} for n, v in (
        ("pages_4k", 512), ("pages_2m", 127), ("pages_1g", 0))]}]  # fmt: skip
    emulated, qemu = of("tcg", split)
    assert (emulated.accepted, qemu.asked, emulated.kvm) == (True, [], None)
    assert of("kvm", whole)[0].accepted
    assert not of("kvm", split)[0].accepted
    unknown, _ = of("kvm", None)
    assert unknown.accepted and UNKNOWN in unknown.why


class _Serving:
    pid = os.getpid()


def test_the_report_says_which_of_both_is_known() -> None:
    found = recorded().guests
    assert found is not None
    arms = [msgspec.structs.replace(arm, accelerator="kvm") for arm in found.arms]
    arms[0] = msgspec.structs.replace(arms[0], kvm_share=0.98)
    under = msgspec.structs.replace(found, accelerator="kvm", arms=tuple(arms))
    told = [row[5] for row in section.arms_table(under).rows]
    assert "KVM maps 98.0% so" in str(told[0])
    assert "KVM mapping unknown" in str(told[1])
    (said,) = [line for line in section.remarks(under) if "with which pages KVM maps them" in line]
    assert arms[1].arm in said and f"Of {arms[0].arm}" not in said
    assert "KVM" not in str(section.arms_table(found).rows)


@pytest.mark.parametrize("promised", ["base", "thp"])
@pytest.mark.soak
def test_a_guest_under_kvm_is_mapped_as_it_was_promised(x86: Bootable, hosting: Hosting, promised: Pages) -> None:
    """On a host whose KVM boots guests; its agent has touched little, and all of that must be told."""
    choice = hypervisor.choose(x86.kernel, x86.initramfs)
    need_now(choice.accelerator == "kvm", f"KVM that boots a guest ({choice.why})")
    with x86.boot(hosting, memory=GIB, backing=Backing(pages=promised), accelerator="kvm", cpu="host") as booted:
        mapping = backing.kvm_mapping(booted.qmp, booted.pid)
        assert isinstance(mapping, KvmMapping), mapping
        assert 0 < mapping.mapped <= GIB + 64 * MIB
        assert booted.prove().accepted


@pytest.mark.soak
def test_an_emulated_guests_monitor_knows_nothing_of_kvm(x86: Bootable, hosting: Hosting) -> None:
    """The command as a real QEMU takes it: refused, or answered with nothing."""
    with x86.boot(hosting, backing=Backing(pages="base")) as booted:
        why = backing.kvm_mapping(booted.qmp, booted.pid)
        assert isinstance(why, str)
        assert "query-stats" in why and str(booted.pid) not in booted.prove().why
