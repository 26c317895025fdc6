"""How an arm in guests is deployed: in the guest, and on its host."""

from __future__ import annotations

from hugewise.deployment import configuration as host_files
from hugewise.guests.libvirt import deployed
from hugewise.model.guest import Backing
from hugewise.model.policy import DeployedFile, Deployment, FileKind

GIB = 1 << 30
INSIDE = Deployment(files=(host_files.now({"/k": "always"}),), note="all sizes on")


def of(backing: Backing) -> Deployment:
    return deployed(INSIDE, "the kernel 16k", 16384, backing, 12 * GIB)


def on_host(found: Deployment, kind: FileKind) -> DeployedFile:
    (one,) = (file for file in found.files if file.kind == kind and file.on == "machine")
    return one


def test_static_pages_are_reserved_on_the_host_and_asked_for_by_the_domain() -> None:
    found = of(Backing(pages="hugetlb-1g"))
    assert found.commands() == (
        "# in the guest:",
        "echo always > /k",
        "# on its host, before it starts:",
        "echo 12 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
    )
    assert "hugepagesz=1G hugepages=12" in on_host(found, "boot").content
    assert on_host(found, "libvirt").content == (
        '<memoryBacking>\n  <hugepages>\n    <page size="1048576" unit="KiB"/>\n  </hugepages>\n'
        '  <source type="memfd"/>\n</memoryBacking>\n'
    )
    assert on_host(found, "libvirt").label == "not read by a tool here"
    assert found.note == (
        "in a guest whose memory is 1g pages of a pool of its host, under the kernel 16k with base pages of 16k: "
        "all sizes on"
    )


def test_pages_of_several_nodes_are_reserved_on_each() -> None:
    found = deployed(INSIDE, "k", 4096, Backing(pages="hugetlb-2m", nodes=(0, 2)), 6 << 20)
    assert [line for line in found.commands() if "nr_hugepages" in line] == [
        "echo 2 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
        "echo 1 > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages",
    ]
    assert "hugepagesz=2M hugepages=0:2,2:1" in on_host(found, "boot").content
    assert 'nodeset="0,2"' in on_host(found, "libvirt").content


def test_transparent_pages_are_for_qemu_to_advise_or_denied() -> None:
    thp, base = of(Backing()), of(Backing(pages="base"))
    assert thp.commands()[-1] == "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    assert '<allocation mode="immediate"/>' in on_host(thp, "libvirt").content
    assert base.commands()[-1] == "echo never > /sys/kernel/mm/transparent_hugepage/enabled"
    assert "transparent_hugepage=never" in on_host(base, "boot").content
    assert not any(file.kind == "libvirt" for file in base.files)
