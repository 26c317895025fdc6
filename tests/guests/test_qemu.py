"""QEMU's command line. HUGEWISE_WRITE_GOLDEN=1 writes the golden files below tests/golden/qemu anew."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from hugewise.guests.qemu import QemuPlaces, argv, cpu_model, thp_disable
from hugewise.model.guest import Backing, BackingCell, Disk, DiskFile, Guest
from tests.build.guests import MIB, guest

GOLDEN = Path(__file__).parents[1] / "golden" / "qemu"

KINDS: dict[str, tuple[Guest, dict[str, Any]]] = {
    "x86-thp": (guest(), {}),
    "x86-base-lazy-smp": (guest(backing=Backing(pages="base", preallocate=False), cpus=2), {}),
    "x86-hugetlb-2m-disk": (
        guest(backing=Backing(pages="hugetlb-2m"), root="/images/i/root.ext4", network="user"),
        {},
    ),
    "x86-hugetlb-1g-file-nodes-tap": (
        guest(backing=Backing(pages="hugetlb-1g", source="file", nodes=(0, 2)), memory=2048 * MIB, network="tap"),
        {"hugetlbfs": {1 << 30: "/run/huge"}, "tap": "hw0"},
    ),
    "x86-nodes-shared-own-disks": (
        guest(
            memory=1024 * MIB,
            cpus=3,
            backing=Backing(
                pages="thp",
                share=True,
                cells=(
                    BackingCell(memory=768 * MIB, pages="thp", cpus=(0, 1), nodes=(0,)),
                    BackingCell(memory=256 * MIB, pages="hugetlb-2m", cpus=(2,)),
                ),
            ),
            disks=(
                Disk(files=(DiskFile(path="/a.qcow2", format="qcow2"), DiskFile(path="/base.img"))),
                Disk(files=(DiskFile(path="/b.img"),)),
            ),
        ),
        {},
    ),
    "x86-counting": (guest(counting=True, cpu="max,-erms,-fsrm", seed=42, append=("nosoftlockup",)), {}),
    "x86-kvm": (guest(accelerator="kvm", cpu="host"), {}),
    "arm64-thp": (guest("arm64"), {}),
    "arm64-counting": (guest("arm64", counting=True, cpu="neoverse-n1", seed=7), {}),
}


def words(asked: Guest, **places: Any) -> tuple[str, ...]:
    given = {"kernel": "/run/k", "initramfs": "/run/i", "agent": "/run/agent", "qmp": "/run/qmp"}
    return argv(asked, program="/usr/bin/qemu", places=QemuPlaces(**{**given, **places}))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_command_line_of_each_kind_of_guest(kind: str) -> None:
    asked, places = KINDS[kind]
    # An option and its value on one line.
    text = re.sub(r"\n(?!-)", " ", "\n".join(words(asked, **places))) + "\n"
    golden = GOLDEN / f"{kind}.txt"
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def value(found: tuple[str, ...], option: str) -> str:
    return found[found.index(option) + 1]


def test_a_comma_in_a_path_does_not_end_the_option() -> None:
    asked = guest(backing=Backing(pages="hugetlb-2m", source="file"))
    found = words(asked, agent="/x,server=on", hugetlbfs={2 * MIB: "/h,share=off"}, kernel="/k,1")
    assert any("path=/x,,server=on,server=off" in word for word in found)
    assert "mem-path=/h,,share=off,share=on" in value(found, "-object")
    assert value(found, "-kernel") == "/k,1"  # not an option's value: QEMU takes it as it is


def test_guests_on_one_bridge_have_addresses_of_their_own_that_stay() -> None:
    cards = [
        next(word for word in words(guest(network="tap"), tap=tap) if "mac=" in word) for tap in ("hw0", "hw1", "hw0")
    ]
    assert cards[0] == cards[2] != cards[1]


def test_base_pages_are_had_by_prctl_alone() -> None:
    assert thp_disable(Backing(pages="base")) == "all"
    assert {thp_disable(Backing(pages=pages)) for pages in ("thp", "hugetlb-2m", "hugetlb-1g")} == {"none"}
    # The command line does not tell them apart: the mechanism does.
    assert words(guest(backing=Backing(pages="base"))) == words(guest())


def test_what_emulation_does_badly_is_left_out_of_the_cpu() -> None:
    assert cpu_model(guest(cpu="max,-erms")) == "max,-erms,-cx16"
    assert cpu_model(guest(cpu="max,+cx16")) == "max,+cx16"  # somebody wants to see it
    assert cpu_model(guest(cpu="host", accelerator="kvm")) == "host"
    assert cpu_model(guest("arm64")) == "max,pauth-impdef=on"
    assert cpu_model(guest("arm64", cpu="neoverse-n1")) == "neoverse-n1"
    assert cpu_model(guest("arm64", cpu="max,pauth=off")) == "max,pauth=off"
