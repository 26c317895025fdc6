"""A virtual machine that runs: found by its number or its domain's name, what was asked for, and what is there.

QEMU is started here as an administrator's libvirt would, and stands still before its first instruction: nothing boots.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.guests import running
from hugewise.guests.backing import UNKNOWN
from hugewise.guests.running import RamBlock, blocks
from hugewise.host.local_host import LocalHost
from hugewise.model.pages import THP
from tests.build.kvm import debugfs
from tests.build.studies import KnobFiles
from tests.guests.standing import qemu
from tests.requirements import need, need_now
from tests.wait import has_ended, until

MIB, GIB = 1 << 20, 1 << 30
HOST = LocalHost()
MOUNTS = (
    "21 1 0:20 / / rw - ext4 /dev/sda1 rw\n"
    "30 21 0:30 / /dev/hugepages rw - hugetlbfs hugetlbfs rw,pagesize=2M\n"
    "31 21 0:31 / /dev/huge1g rw - hugetlbfs none rw,pagesize=1024M\n"
    "32 21 0:32 / /dev/shm rw - tmpfs tmpfs rw\n"
)

pytestmark = pytest.mark.looks

# As libvirt 9 writes them: JSON for objects, words for the rest.
LIBVIRT = [
    "/usr/bin/qemu-system-x86_64",
    *("-name", "guest=db1,debug-threads=on"),
    *("-object", '{"qom-type":"secret","id":"masterKey0"}'),
    *("-machine", "pc-q35-9.2,usb=off,dump-guest-core=off"),
    *("-m", "size=2097152k,slots=4,maxmem=4194304k"),
    *("-object", '{"qom-type":"memory-backend-memfd","id":"ram-node0","hugetlb":true,"hugetlbsize":1073741824,'
      '"share":true,"prealloc":true,"size":1073741824,"host-nodes":[0],"policy":"bind"}'),
    *("-numa", "node,nodeid=0,cpus=0,memdev=ram-node0"),
    *("-object", '{"qom-type":"memory-backend-file","id":"ram-node1","mem-path":"/dev/hugepages/libvirt/qemu/7-db1",'
      '"size":1073741824}'),
    *("-numa", "node,nodeid=1,cpus=1,memdev=ram-node1"),
    *("-object", '{"qom-type":"memory-backend-ram","id":"memdimm0","size":268435456}'),
    *("-device", '{"driver":"pc-dimm","node":1,"memdev":"memdimm0","id":"dimm0"}'),
    *("-object", '{"qom-type":"memory-backend-ram","id":"unused","size":4096}'),
]  # fmt: skip


def test_the_words_of_libvirt_are_read() -> None:
    assert blocks(LIBVIRT, MOUNTS) == (
        RamBlock(id="ram-node0", size=GIB, page=GIB, shared=True, preallocated=True, nodes=(0,), node=0),
        RamBlock(id="ram-node1", size=GIB, page=2 * MIB, node=1),
        RamBlock(id="memdimm0", size=256 * MIB, node=1),
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-m", "512"], RamBlock(id="ram", size=512 * MIB)),
        (["-m", "size=2G,slots=2,maxmem=4G"], RamBlock(id="ram", size=2 * GIB)),
        (["-m", "1g", "-mem-path", "/dev/huge1g", "-mem-prealloc"], RamBlock(
            id="ram", size=GIB, page=GIB, preallocated=True)),
        (["-m", "1g", "-mem-path", "/srv/ram"], RamBlock(id="ram", size=GIB, file=True, named=True)),
        ([], RamBlock(id="ram", size=128 * MIB)),
        (
            ["-machine", "q35,memory-backend=m", "-object", "memory-backend-memfd,id=m,size=1G,share=off"],
            RamBlock(id="m", size=GIB, file=True),
        ),
        (
            ["-M", "memory-backend=m", "--object", "memory-backend-file,id=m,size=64M,mem-path=/dev/shm/x,,y,share=on"],
            RamBlock(id="m", size=64 * MIB, shared=True, file=True, named=True),
        ),
        (
            ["-machine", "memory-backend=m", "-object",
             "memory-backend-ram,id=m,size=1.5G,host-nodes=0,host-nodes=2-3,policy=bind"],
            RamBlock(id="m", size=3 * GIB // 2, nodes=(0, 2, 3)),
        ),
        (["-object", "{", "-m", "x", "-numa"], RamBlock(id="ram", size=128 * MIB)),
    ],
)  # fmt: skip
def test_words_of_a_user(words: list[str], found: RamBlock) -> None:
    assert blocks(["qemu-system-x86_64", *words], MOUNTS) == (found,)


@pytest.mark.parametrize(("kind", "filed"), [("file,mem-path=/srv/ram", True), ("memfd", False), ("ram", False)])
def test_shared_memory_with_a_path_is_a_file(kind: str, filed: bool) -> None:
    words = ["-machine", "memory-backend=m", "-object", f"memory-backend-{kind},id=m,size=64M,share=on"]
    guest = running.RunningGuest(pid=7, program="qemu", blocks=blocks(["qemu-system-x86_64", *words], MOUNTS))
    assert running.as_domain(guest).filed is filed


def test_a_domain_is_found_by_libvirts_file_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    process = {
        "/proc/77/status": "Name:\tqemu-system-x86\nTgid:\t77\n",
        "/proc/77/cmdline": "\0".join(LIBVIRT) + "\0",
        "/proc/77/mountinfo": MOUNTS,
        "/proc/78/status": "Name:\tsleep\n",
        "/proc/78/cmdline": "sleep\0001\0",
    }
    host = KnobFiles({**process, "/run/libvirt/qemu/db1.pid": "77\n", "/run/user/7/libvirt/qemu/run/mine.pid": "77"})
    for name in ("db1", "mine", "77"):
        guest = running.running(name, host)
        assert guest is not None
        assert (guest.pid, len(guest.blocks), guest.domain) == (77, 3, None if name == "77" else name)
        assert guest.notes == ("memory that is added while it runs is not looked at",)
    assert [running.running(name, host) for name in ("78", "79", "other", "../etc", "99999999999")] == [None] * 5
    named = KnobFiles({**process, "/run/libvirt/qemu/1234.pid": "77"})  # a name may be a number
    guest = running.running("1234", named)
    assert guest is not None
    assert guest.domain == "1234"
    thread = KnobFiles({"/proc/80/status": "Name:\tkvm-nx-lpage-re\n", "/proc/80/cmdline": ""})
    assert running.running("80", thread) is None
    for stale in ("78", "79", "x"):
        gone = KnobFiles({**process, "/run/libvirt/qemu/db1.pid": stale})
        with pytest.raises(UserError, match="domain db1: /run/libvirt/qemu/db1.pid is there, and its QEMU is not"):
            running.running("db1", gone)


def verified(*arguments: str) -> tuple[int, dict[str, object]]:
    ran = CliRunner().invoke(cli, ["verify", "--json", *arguments])
    return ran.exit_code, json.loads(ran.stdout)


def test_a_guest_of_base_pages_is_not_what_was_promised() -> None:
    """memory-backend-ram, preallocated: QEMU advises huge pages for it, and has them where the host gives them."""
    need("[never]" not in Path(f"{THP}/enabled").read_text(), "transparent huge pages on this host")
    asked = ("-object", "memory-backend-ram,id=r,size=256M,prealloc=on", "-machine", "q35,memory-backend=r")
    with qemu(*asked) as pid:
        seen = running.verify(running.running(str(pid), HOST) or pytest.fail("no QEMU"), HOST, None)
        (ram,) = seen.memory
        assert (ram.promised, ram.size, sum(ram.bytes.values())) == ("thp", 256 * MIB, 256 * MIB)
        # The memory of a host may be in pieces: what is there is said, whichever it is.
        assert seen.delivered is (ram.bytes.get("thp", 0) >= 0.95 * 256 * MIB)
        code, output = verified(str(pid))
        assert (code, output["delivered"]) == (0 if seen.delivered else 1, seen.delivered)
        code, output = verified(str(pid), "--policy", "hugetlb-1g")
        assert (code, output["delivered"], output["share"]) == (1, False, 0.0)
        ran = CliRunner().invoke(cli, ["verify", str(pid), "--policy", "hugetlb-1g"])
        assert ran.exit_code == 1
        assert ran.stdout.startswith(
            f"process {pid} (qemu-system-x86_64): NOT as promised: 0 B of 256 MiB are pages of"
        )
        with pytest.raises(UserError, match="--policy mthp-64k: not what a guest's memory is made of"):
            CliRunner().invoke(cli, ["verify", str(pid), "--policy", "mthp-64k"], catch_exceptions=False)


def test_shared_memory_is_promised_nothing_larger() -> None:
    """As virtiofs needs it: QEMU maps it where no huge page fits, whatever shmem_enabled is."""
    asked = "memory-backend-memfd,id=r{},size=128M,share=on,prealloc=on"
    nodes = [word for n in (0, 1) for word in ("-object", asked.format(n), "-numa", f"node,memdev=r{n},cpus={n}")]
    with qemu(*nodes, "-smp", "2") as pid:
        code, output = verified(str(pid))
        assert (code, output["delivered"], output["share"]) == (0, True, None)
        memory = output["memory"]
        assert isinstance(memory, list)
        assert [(one["id"], one["bytes"], one["promised"]) for one in memory] == [
            (f"r{n}", {"base": 128 * MIB}, "") for n in (0, 1)
        ]
        ran = CliRunner().invoke(cli, ["verify", str(pid), "--policy", "thp"])
        assert ran.exit_code == 1
        assert (
            "r0: 0 B of 128 MiB are transparent huge pages (95% promised); the rest is 128 MiB base pages" in ran.stdout
        )
        assert "[vm-shared-memory-not-huge]" in ran.stdout
        assert "cure: pages of a pool: <hugepages>" in ran.stdout


@contextmanager
def with_huge_pages() -> Iterator[running.RunningGuest]:
    """A QEMU, emulated as it is, some of whose memory is transparent huge pages: a hundredth is enough below."""
    need("[never]" not in Path(f"{THP}/enabled").read_text(), "transparent huge pages on this host")
    asked = ("-object", "memory-backend-ram,id=r,size=256M,prealloc=on", "-machine", "q35,memory-backend=r")
    with qemu(*asked) as pid:
        guest = running.running(str(pid), HOST)
        assert guest is not None
        seen = running.verify(guest, HOST, "thp", 0.01)
        need_now(seen.delivered is True, "a few huge pages that are free")
        # Nothing of it is KVM's, and that is said.
        assert (seen.kvm, seen.host) == (None, True)
        assert "it is emulated" in seen.notes[-1]
        yield guest


def test_delivered_is_what_smaps_and_kvm_both_say(tmp_path: Path) -> None:
    """A real QEMU's smaps, and what KVM would say of it."""
    with with_huge_pages() as guest:
        large = debugfs(tmp_path / "large", guest.pid, pages_4k=512, pages_2m=100, pages_1g=0)
        small = debugfs(tmp_path / "small", guest.pid, pages_4k=60_000, pages_2m=0, pages_1g=0, nx_lpage_splits=9)
        for (tree, proc), delivered in ((large, True), (small, False)):
            seen = running.verify(guest, HOST, "thp", 0.01, debugfs=tree, proc=proc)
            assert (seen.delivered, seen.host) == (delivered, True)
            assert seen.kvm is not None and seen.kvm.delivered is delivered
        assert seen.kvm is not None and seen.kvm.bytes is not None and seen.kvm.bytes[4096] == 60_000 * 4096
        assert seen.kvm.said.endswith("0% by pages as promised, 1% is needed; 9 pages are split for nx_huge_pages")
        # What the host has not, KVM cannot make good.
        tree, proc = large
        pool = running.verify(guest, HOST, "hugetlb-2m", debugfs=tree, proc=proc)
        assert (pool.delivered, pool.host) == (False, False)
        # Beside base pages nothing of KVM's is judged: it never maps by more than the host has.
        base = running.verify(guest, HOST, "base", debugfs=tree, proc=proc)
        assert base.kvm is not None
        assert (base.kvm.delivered, base.kvm.bytes) == (None, {4096: 2 << 20, 2 << 20: 200 << 20})


def test_where_debugfs_is_closed_the_hosts_pages_are_proven_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_huge_pages() as guest:
        tree, proc = debugfs(tmp_path, guest.pid)
        shutil.rmtree(tree)
        monkeypatch.setattr(running, "verify", partial(running.verify, debugfs=tree, proc=proc))
        ran = CliRunner().invoke(cli, ["verify", str(guest.pid), "--policy", "thp", "--share", "1%"])
        assert ran.exit_code == 1
        assert f"NOT PROVEN, {UNKNOWN}: " in ran.stdout
        assert f"  {tree}: there is none (is debugfs mounted?)\n  cure: call it as root" in ran.stdout
        code, output = verified(str(guest.pid), "--policy", "thp", "--share", "1%")
        assert (code, output["delivered"], output["host"]) == (1, None, True)
        assert isinstance(kvm := output["kvm"], dict)
        assert (kvm["bytes"], kvm["share"], kvm["delivered"]) == (None, None, None)
        # Nor may it be looked at whether it is KVM's: that is not taken for an emulated one.
        shutil.rmtree(proc)
        seen = running.verify(guest, HOST, "thp", 0.01)
        assert seen.delivered is None
        assert seen.kvm is not None and "call it as root" in seen.kvm.said


def test_one_that_ends_is_told() -> None:
    with qemu() as pid:
        guest = running.running(str(pid), HOST)
        assert guest is not None
    until(lambda: has_ended(pid), "QEMU has ended")
    with pytest.raises(UserError, match=f"process {pid} .*: No such file|it has ended"):
        running.verify(guest, HOST, None)
