"""How an arm in guests is deployed: in the guest, and on its host."""

from __future__ import annotations

from hugewise.guests.deployment import deployed
from hugewise.model.guest import Backing
from hugewise.model.policy import Deployment

GIB = 1 << 30
INSIDE = Deployment(now=("echo always > /k",), boot=("kernel command line: thp=always",), note="all sizes on")


def of(backing: Backing) -> Deployment:
    return deployed(INSIDE, "the kernel 16k", 16384, backing, 12 * GIB)


def test_static_pages_are_reserved_on_the_host_and_asked_for_by_the_domain() -> None:
    found = of(Backing(pages="hugetlb-1g"))
    assert found.now == (
        "# in the guest, booted with the kernel 16k (base pages of 16k):",
        "echo always > /k",
        "# on its host, before it starts (12g of 1g pages of a pool):",
        "echo 12 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages  # and of other guests",
    )
    assert found.boot == (
        "in the guest: kernel command line: thp=always",
        "on the host's kernel command line: hugepagesz=1G hugepages=12",
        'in the guest\'s libvirt domain: <memoryBacking><hugepages><page size="1048576" unit="KiB"/></hugepages>'
        '<source type="memfd"/></memoryBacking>',
    )
    assert found.note == (
        "in a guest whose memory is 1g pages of a pool of its host, under the kernel 16k with base pages of 16k: "
        "all sizes on"
    )


def test_pages_of_several_nodes_are_reserved_on_each() -> None:
    found = deployed(INSIDE, "k", 4096, Backing(pages="hugetlb-2m", nodes=(0, 2)), 6 << 20)
    assert [line for line in found.now if "nr_hugepages" in line] == [
        "echo 2 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages  # and of other guests",
        "echo 1 > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages  # and of other guests",
    ]
    assert "on the host's kernel command line: hugepagesz=2M hugepages=0:2,2:1" in found.boot
    assert any('nodeset="0,2"' in line for line in found.boot)


def test_transparent_pages_are_for_qemu_to_advise_or_denied() -> None:
    thp, base = of(Backing()), of(Backing(pages="base"))
    assert thp.now[-1].startswith("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    assert 'in the guest\'s libvirt domain: <memoryBacking><allocation mode="immediate"/></memoryBacking>' in thp.boot
    assert base.now[-1].startswith("echo never > /sys/kernel/mm/transparent_hugepage/enabled")
    assert base.boot[-1] == "on the host's kernel command line: transparent_hugepage=never"
