"""Pools are not asked for more than a host has to spare."""

import pytest

from hugewise.errors import HugewiseError
from hugewise.host.pool import not_taken_yet
from hugewise.plan.arms import margin
from hugewise.plan.memory import HostRoom, pool_pages, within
from hugewise.session import feasibility
from tests.build.hosts import Files
from tests.plan.test_memory import GIB, MIB, guests, in_guest

HOST = int(23.5 * GIB)


def test_a_tenth_is_left_to_the_host_and_what_its_machines_were_promised() -> None:
    assert (margin(HOST), margin(GIB)) == (int(2.35 * GIB), 512 * MIB)
    assert HostRoom(20 * GIB, HOST).usable == 20 * GIB - margin(HOST)
    assert HostRoom(20 * GIB, HOST, yet=9 * GIB).usable == 11 * GIB - margin(HOST)
    assert HostRoom(1 * GIB, HOST).usable == 0


def test_the_defect_22_of_23_gib_are_not_asked_of_the_kernel() -> None:
    """All of it fits into the memory that there is, and nearly nothing would have been left."""
    plan = guests(in_guest("1g", "hugetlb-1g"), in_guest("2m", "hugetlb-2m"), baseline="base")
    assert pool_pages(plan, 4 * GIB) == {(GIB, None): 4, (2 * MIB, None): 2048}
    assert within(plan, HostRoom(22 * GIB, HOST), 4 * GIB) == plan
    with pytest.raises(HugewiseError, match="22 GiB of this host are free, and 2.35 GiB are left to it") as caught:
        within(plan, HostRoom(22 * GIB, HOST), 22 * GIB)
    assert caught.value.hint is not None
    kept = within(plan, HostRoom(11 * GIB, HOST), 4 * GIB)  # 8 GiB for one pool and a guest beside it, 12 for both
    assert [one.name for one in kept.cells[0].arms] == ["base", "2m"]
    (left,) = kept.left_out
    assert (left.policy, left.reason.partition(";")[0]) == ("1g", "needs 12 GiB of this host at a time")
    busy = HostRoom(22 * GIB, HOST, yet=11 * GIB)
    told = within(plan, busy, 4 * GIB).left_out[0].reason
    assert "running virtual machines may still take 11 GiB" in told
    assert within(plan, None, 64 * GIB) == plan


@pytest.mark.parametrize(
    ("size", "promised"), [("size=8388608k", 8), ("8G", 8), ("8192", 8), ("size=8192M,slots=4,maxmem=64G", 8)]
)
def test_what_virtual_machines_may_still_take(size: str, promised: int) -> None:
    qemu = f"/usr/bin/qemu-system-x86_64\0-name\0one\0-m\0{size}\0-smp\0002\0"
    host = Files(
        {
            "/proc/100/cmdline": qemu,
            "/proc/100/status": "Name:\tqemu\nVmRSS:\t 1048576 kB\nHugetlbPages:\t 2097152 kB\n",
            "/proc/200/cmdline": "\0".join(("/usr/libexec/qemu-kvm", "-m", "1G", "")),
            "/proc/200/status": "VmRSS:\t 4194304 kB\n",  # it has all that it was promised
            "/proc/300/cmdline": "\0".join(("less", "-m", "64G", "")),
            "/proc/400/cmdline": "\0".join(("/usr/bin/kvm", "-id", "100", "-m", "2048", "")),  # Proxmox
            "/proc/400/status": "VmRSS:\t 1048576 kB\n",
            "/proc/self/cmdline": qemu,
        }
    )
    assert not_taken_yet(host) == (promised - 3 + 1) * GIB


def test_a_session_asks_what_is_free_now() -> None:
    plan = guests(in_guest("2m", "hugetlb-2m"), in_guest("0", "base"), baseline="base")
    meminfo = f"MemTotal: {HOST >> 10} kB\nMemAvailable: {{}} kB\n"
    free = Files({"/proc/meminfo": meminfo.format(20 * GIB >> 10)})
    assert feasibility.with_room(plan, free, 4 * GIB, True) == plan
    short = Files({"/proc/meminfo": meminfo.format(8 * GIB >> 10)})
    kept = feasibility.with_room(plan, short, 4 * GIB, True)
    assert [one.name for one in kept.cells[0].arms] == ["base", "0"]
