"""From a libvirt domain to a study of its memory: what is restated, what is named, and that it runs."""

import os
import re
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import hugewise
from hugewise.cli import guest_study
from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.guests import disks, domain_study
from hugewise.guests.domain_study import HostOffer, Restated, StudyRequest
from hugewise.guests.image import guest_probe
from hugewise.machine import domain
from hugewise.model.guest import Backing, Disk, DiskFile
from hugewise.plan.arms import cannot_back
from hugewise.stats.family import conclude, methods_for
from hugewise.study import load
from hugewise.study.study import Study
from tests.build.studies import KnobFiles, an_arm, cell_of, workloads
from tests.build.trials import CONTRAST, block
from tests.guests import runs
from tests.guests.conftest import Bootable
from tests.guests.standing import qemu
from tests.memory import held_pages
from tests.requirements import need_program, need_root

DB1 = Path(__file__).parent / "domains" / "db1.xml"
GIB = 1 << 30
THP = "/sys/kernel/mm/transparent_hugepage"
POOLS = {
    f"/sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages": "0" for kib in (2048, 1048576)
} | {"/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "0"}  # fmt: skip
POOLS["/sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages"] = "0"


class Played(KnobFiles):
    """Made as a `LocalHost` is."""

    def __init__(self) -> None:
        super().__init__({**POOLS, f"{THP}/enabled": "always [madvise] never", f"{THP}/shmem_enabled": "[never]"})


HOST = Played()
OFFER = HostOffer(
    backs=lambda backing: cannot_back(backing, HOST),
    absent=lambda _: None,
    held=lambda _: None,
    cpus=(0, 1),
    nodes=(0,),
)
FAULT = StudyRequest(workload="fault")


def restated(text: str, wish: StudyRequest = FAULT, offer: HostOffer = OFFER) -> tuple[Restated, Study]:
    found = domain.read(domain.parse(text.encode(), "db1.xml"), "db1.xml")
    made = domain_study.restate(found, domain_study.domain_backing(found, 2 << 20), wish, offer)
    return made, load.parse(made.text, "made")


def backings(study: Study) -> dict[str, Backing]:
    return {use.name: use.backed_by for use in study.policies}


def test_policies_of_the_guests_kernel_have_the_domain_s_memory_in_every_arm() -> None:
    made, study = restated(DB1.read_text(), StudyRequest(workload="fault", within=("base", "thp"), blocks=30))
    assert made.arms == ("base", "thp") == tuple(use.name for use in study.policies)
    assert restated(DB1.read_text(), StudyRequest(workload="fault", within=("base", "thp")))[1].budget.blocks == 18
    shared = Backing(pages="base", preallocate=False, share=True, nodes=(0,))
    assert backings(study) == {"base": shared, "thp": shared}
    assert (study.compared_with, study.budget.blocks, study.method) == ("base", 30, "exact")
    assert study.question == "Which pages should programs have in db1?"
    nothing = msgspec.structs.replace(FAULT, within=("base", "thp"))
    with pytest.raises(UserError, match="no pages here"):
        restated(DB1.read_text(), nothing, msgspec.structs.replace(OFFER, backs=lambda _: "no pages here"))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("thp", "name at least two, each once"),
        ("thp,,base", "name at least two, each once"),
        ("thp,base,thp", "name at least two, each once"),
        ("thp,ba se", "ba se"),
    ],
)
def test_policies_that_cannot_be_are_refused(named: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_study, "LocalHost", Played)
    done = CliRunner().invoke(cli, ["guest", "study", str(DB1), "--workload", "fault", "--policy", named])
    assert done.exit_code != 0
    assert said in f"{done.output}{done.exception}"


def judged(study: Study, counts: Callable[[int], Mapping[str, float]]) -> dict[str, tuple[str, str, int]]:
    """Verdict, method and pairs of each arm, of as many blocks as the study declares, of boots with these counts."""
    arms = [an_arm(use.name) for use in study.policies]
    cell = cell_of(workloads()["chase"], *arms, metric=CONTRAST.metric)
    methods = methods_for(study, [cell])
    going = list(methods)
    for number in range(study.budget.blocks):
        of_block = block(number, counts(number), cell=cell.id)
        going = [each for each in going if each.observe(of_block).status != "stop"]
    found = conclude(methods, study.confidence, study.margin)
    return {each.arm: (each.verdict, each.method, each.n) for each in found}


def test_backings_are_judged_by_counts_that_repeat_and_else_by_the_coin() -> None:
    """The defect: a fixed number of 3 blocks, of which counts without any spread were undecided."""
    made, study = restated(DB1.read_text())
    assert (study.method, study.confidence, study.budget.blocks, len(made.arms)) == ("exact", 0.99, 22, 4)
    constant = {"domain": 65_536.0, "ram-4k": 65_536.0, "ram-2m": 128.0, "ram-1g": 70_000.0}
    assert judged(study, lambda _: constant) == {
        "ram-4k": ("equivalent", "exact", 10),
        "ram-2m": ("better", "exact", 11),
        "ram-1g": ("worse", "exact", 11),
    }
    # Under KVM: times, of which none is ever another's.
    times = {"domain": 1.0, "ram-4k": 1.2, "ram-2m": 0.8, "ram-1g": 0.9}
    varied = judged(study, lambda number: {arm: time + number / 1e4 for arm, time in times.items()})
    assert {arm: found[:2] for arm, found in varied.items()} == {
        "ram-4k": ("worse", "sequential"),
        "ram-2m": ("better", "sequential"),
        "ram-1g": ("better", "sequential"),
    }
    assert all(13 <= pairs <= 14 for _, _, pairs in varied.values())


def test_blocks_that_are_asked_for_are_had_with_what_they_can_decide() -> None:
    _, study = restated(DB1.read_text(), msgspec.structs.replace(FAULT, blocks=8))
    assert (study.method, study.budget.blocks) == ("exact", 8)
    poor = msgspec.structs.replace(OFFER, backs=lambda b: None if b.pages == "base" else "no")
    two, study = restated(DB1.read_text(), offer=poor)
    assert (two.arms, study.budget.blocks) == (("domain", "ram-4k"), 18)


def test_two_nodes_virtiofs_and_a_balloon_become_a_study() -> None:
    made, study = restated(DB1.read_text())
    assert study.guest is not None
    shared = Backing(pages="base", preallocate=False, share=True, nodes=(0,))
    pool = msgspec.structs.replace(shared, preallocate=True, pages="hugetlb-2m")
    # Shared memory has no huge pages with QEMU: what the domain has is base pages, and that is compared with.
    assert backings(study) == {
        "domain": shared,
        "ram-4k": msgspec.structs.replace(shared, preallocate=True),
        "ram-2m": pool,
        "ram-1g": msgspec.structs.replace(pool, pages="hugetlb-1g"),
    }
    assert study.compared_with == "domain"
    assert [(n.memory, n.cpus, n.bind) for n in study.guest.node] == [(GIB, (0,), None), (GIB, (1,), None)]
    assert (study.guest.memory, study.guest.cpus, study.guest.pin) == (2 * GIB, 2, ((0,), (1,)))
    assert (study.guest.arch, study.guest.cpu, study.guest.image) == ("x86-64", None, None)
    assert '# { name = "ram-thp"' in made.text
    assert "QEMU maps shared memory at a boundary of base pages" in made.text
    notes = "\n".join(made.notes)
    for line, said in (
        (34, "the disk vda (/var/lib/libvirt/images/db1.qcow2) is left out"),
        (39, "is a cdrom"),
        (44, "<filesystem> of virtiofs has no daemon here; its memory is shared all the same"),
        (53, "<memballoon>: guests have no balloon"),
        (6, "the guests have all of 2g, and not 1536m"),
        (26, "<topology> of <cpu> is not restated"),
        (15, "<emulatorpin> is not restated"),
        (21, "its kernel is that of Debian's linux-image-cloud-amd64"),
        (25, "the CPU model is the host's own under KVM"),
    ):
        assert f"db1.xml:{line}: " in notes, line
        assert any(note.startswith(f"db1.xml:{line}: ") and said in note for note in made.notes), (line, said)
    assert all(note in made.text for note in made.notes)


def test_pages_of_each_node_and_their_binding() -> None:
    """The example of libvirt's documentation, on a host that lacks one of the nodes that it is bound to."""
    huge = "<hugepages><page size='1' unit='G' nodeset='0'/><page size='2' unit='M' nodeset='1'/></hugepages>"
    text = DB1.read_text().replace("<memoryBacking>", f"<memoryBacking>{huge}")
    text = text.replace("cellid='1' mode='strict' nodeset='0'", "cellid='1' mode='strict' nodeset='3'")
    made, study = restated(text)
    own = backings(study)["domain"]
    assert own == Backing(
        pages="hugetlb-1g", by_node=("hugetlb-1g", "hugetlb-2m"), source="memfd", share=True, nodes=(0,)
    )
    assert any("bound to node 3 of its host, which this host does not have" in note for note in made.notes)
    bare, study = restated(DB1.read_text().replace("<memoryBacking>", "<memoryBacking><hugepages/>"))
    assert backings(study)["domain"].pages == "hugetlb-2m"
    assert any("db1.xml:7: <hugepages/> names no size" in note for note in bare.notes)
    assert any("ram-2m is what the domain has already" in note for note in bare.notes)


def test_a_node_that_this_host_does_not_have_is_not_cured_by_root() -> None:
    bound = DB1.read_text().replace("<vcpu", "<numatune><memory mode='strict' nodeset='0-2,^1'/></numatune>\n<vcpu", 1)
    offer = msgspec.structs.replace(OFFER, nodes=(0,), backs=lambda b: "no node 2" if b.nodes else None)
    with pytest.raises(UserError, match=r"db1.xml:\d+: of the backings this host has too few") as caught:
        restated(bound, offer=offer)
    assert caught.value.hint is not None
    assert caught.value.hint == "change nodeset= of <numatune>, or call it on the host that has node 2"
    poor = msgspec.structs.replace(OFFER, backs=lambda b: "a pool of this host needs root, which fills it")
    with pytest.raises(UserError) as caught:
        restated(DB1.read_text(), offer=poor)
    assert caught.value.hint == "call it as root"


def test_what_this_host_lacks_is_named_and_left_out() -> None:
    odd = DB1.read_text().replace("memory='1048576'", "memory='786432'", 1).replace("cpuset='1'", "cpuset='30'")
    poor = msgspec.structs.replace(OFFER, backs=lambda b: "no pool" if b.pages == "hugetlb-2m" else None)
    made, study = restated(odd, offer=poor)
    assert "ram-1g" not in backings(study)
    assert "# Not on this host: node 0 has 768m, which is no multiple of 1g" in made.text
    assert "# Not on this host: no pool" in made.text
    assert study.guest is not None
    assert study.guest.pin == ()
    assert any("CPU 30 of its host, which this host does not have: not pinned" in note for note in made.notes)
    none = msgspec.structs.replace(OFFER, backs=lambda b: None if b.pages == "base" and not b.preallocate else "no")
    with pytest.raises(UserError, match=r"db1.xml:7: of the backings this host has too few to compare: ram-4k: no"):
        restated(DB1.read_text(), offer=none)


DEVICES = """
    <interface type='vhostuser'><source type='unix' path='/run/vhost1.sock' mode='client'/></interface>
    <disk type='vhostuser' device='disk'><source type='unix' path='/run/blk.sock'/><target dev='vdb'/></disk>
    <hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='6'/></source></hostdev>
    <interface type='hostdev' managed='yes'><source><address type='pci' bus='7'/></source></interface>
"""


def test_devices_that_share_or_pin_memory_are_named_with_what_that_means() -> None:
    """Shared memory is measured as what it is; memory that VFIO pins there is not pinned here."""
    text = DB1.read_text().replace("<devices>", f"<devices>{DEVICES}")
    line = text[: text.index("<interface type='vhostuser'>")].count("\n") + 1
    private = text.replace("<access mode='shared'/>", "")
    for xml, means in (
        (text, "its memory is shared all the same, as the domain's is"),
        (private, "the domain's memory is not shared, so that it does not work there either"),
    ):
        made, _ = restated(xml)
        pinned = "it is not passed through: memory is not pinned here, and may be made huge later than there"
        assert {
            f"db1.xml:{line}: <interface type='vhostuser'> has no daemon here; {means}",
            f"db1.xml:{line + 1}: <disk type='vhostuser'> has no daemon here; {means}",
            f"db1.xml:{line + 2}: <hostdev type='pci'>: {pinned}",
            f"db1.xml:{line + 3}: <interface type='hostdev'>: {pinned}",
        } <= set(made.notes)
        assert any(
            note.startswith(f"db1.xml:{line + 1}: the disk vdb") and "is left out" in note for note in made.notes
        )
        assert all(note in made.text for note in made.notes)


def test_the_qemu_that_the_domain_names_is_the_guests() -> None:
    made, study = restated(DB1.read_text(), offer=msgspec.structs.replace(OFFER, qemu="/usr/libexec/qemu-kvm"))
    assert study.guest is not None
    assert study.guest.qemu == "/usr/libexec/qemu-kvm"
    assert 'qemu = "/usr/libexec/qemu-kvm"' in made.text
    _, study = restated(DB1.read_text())
    assert study.guest is not None
    assert study.guest.qemu is None


def test_a_command_of_the_domains_own_disk() -> None:
    wish = StudyRequest(load=("app", "--bench", 'a "b"'), kernel="/boot/vmlinuz", modules="/lib/modules/6.12")
    held = msgspec.structs.replace(OFFER, held=lambda path: "the process 7 (qemu-kvm)")
    made, study = restated(DB1.read_text(), wish, held)
    assert study.guest is not None
    assert (study.guest.image, study.guest.image_format) == ("/var/lib/libvirt/images/db1.qcow2", "qcow2")
    assert study.workload[0].parameters["argv"] == ("app", "--bench", 'a "b"')
    assert (study.kernel[0].path, study.kernel[0].modules) == ("/boot/vmlinuz", "/lib/modules/6.12")
    assert any("is open for writing by the process 7 (qemu-kvm): the run is refused" in note for note in made.notes)
    values = ("rate,higher,1/s=regex:([0-9.]+) 1/s", 'n,lower=json:.["n"]')
    _, study = restated(DB1.read_text(), msgspec.structs.replace(wish, values=values, metric="rate"))
    assert (study.workload[0].parameters["values"], study.workload[0].metric) == (values, "rate")
    packaged, study = restated(DB1.read_text(), StudyRequest(load=("redis-benchmark",), packages=("redis-tools",)))
    assert study.guest is not None
    assert (study.guest.image, study.guest.packages) == (None, ("redis-tools",))
    network = DB1.read_text().replace("<disk type='file' device='disk'>", "<disk type='network' device='disk'>")
    with pytest.raises(UserError, match="no disk of this host that the command could be on"):
        restated(network, wish)
    with pytest.raises(UserError, match="--load COMMAND or --workload NAME"):
        restated(DB1.read_text(), StudyRequest())
    assert packaged.arms


def test_a_disk_that_is_not_on_this_host_is_refused_with_its_line() -> None:
    """The defect: the system's own words, with neither element nor cure."""
    gone = msgspec.structs.replace(OFFER, absent=disks.absent)
    with pytest.raises(UserError) as raised:
        restated(DB1.read_text(), StudyRequest(load=("app",)), gone)
    message = "db1.xml:34: the disk vda (/var/lib/libvirt/images/db1.qcow2): No such file or directory on this host"
    assert raised.value.message == message
    assert raised.value.hint is not None
    assert "copy the disk there" in raised.value.hint and "--packages" in raised.value.hint
    restated(DB1.read_text(), offer=gone)  # no guest of a packaged workload has it
    assert disks.absent(str(DB1)) is None


def test_arms_that_have_their_pages_before_the_guest_starts_are_told_from_one_that_has_not() -> None:
    """The defect: of a domain without <memoryBacking>, ram-thp differs from it in that alone, which nothing said."""
    plain = re.sub(r"<memoryBacking>.*?</memoryBacking>", "", DB1.read_text(), flags=re.DOTALL)
    text = restated(plain)[0].text
    assert "# domain has each page as it is touched, the other arms all before the guest starts." in text
    early = plain.replace("<cputune>", "<memoryBacking><allocation mode='immediate'/></memoryBacking><cputune>", 1)
    assert early != plain
    assert "as it is touched" not in restated(early)[0].text


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("arch='x86_64'", "arch='s390x'", r"^db1.xml:21: guests of s390x are not supported"),
        ("<vcpu placement='static'>2<", "<vcpu placement='static'>two<", r"^db1.xml:11: 'two' is no number"),
        ("memory='1048576'", "memory='1g'", r"^db1.xml:28: '1g' is not a number of KiB"),
        ("<cell id='1'", "<cell id='0'", r"^db1.xml:29: two nodes have the number 0"),
        ("cpuset='1'", "cpuset='1-'", r"^db1.xml:14: cpuset='1-' is not a set of CPUs"),
        ("<name>db1<", "<name>db&#10;margin = 0.4&#10;#<", r"^db1.xml:2: 'db.nmargin = 0.4.n#' is no name of a domain"),
        ("<name>db1<", "<name>../db<", r"^db1.xml:2: '../db' is no name of a domain"),
        ("<domain type='kvm' id='7'>", "<!DOCTYPE d><domain>", r"^db1.xml:1: has a document type"),
    ],
)
def test_a_mistake_names_its_element_and_line(was: str, becomes: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        restated(DB1.read_text().replace(was, becomes))


def test_text_of_a_domain_stays_text(tmp_path: Path) -> None:
    """Whatever an author of XML writes, no key of the study is theirs."""
    odd = DB1.read_text().replace("<name>db1<", '<name>db😀"<').replace("dev='vda'", "dev='v&#10;margin = 0.4&#10;'")
    made, study = restated(odd, StudyRequest(workload="fault"))
    assert study.margin == load.parse(made.text, "made").margin == 0.005
    assert "db😀" in study.question
    made, study = restated(odd.replace("images/db1", 'images/d"\\ü'), StudyRequest(load=("x",)))
    assert study.guest is not None
    assert study.guest.image == '/var/lib/libvirt/images/d"\\ü.qcow2'


def test_the_command_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_study, "LocalHost", Played)
    out = tmp_path / "db1.toml"
    words = ["guest", "study", str(DB1), "--workload", "fault", "--output", str(out)]
    ran = CliRunner().invoke(cli, words)
    assert ran.exit_code == 0, ran.exception
    assert load.load(out).name == "db1"
    for rule in ("vm-ballooned-at-boot", "vm-free-page-reporting", "vm-hotplug", "vm-shared-memory-not-huge"):
        assert f"[{rule}]" in ran.stderr
        assert f"[{rule}]" in out.read_text()
    again = CliRunner().invoke(cli, words)
    assert isinstance(again.exception, UserError)
    assert "there is something of that name already" in again.exception.message


def qcow2(path: Path, backing: str = "", *, written: bytes = b"raw", crypt: int = 0, incompatible: int = 0) -> Path:
    """The header of a qcow2 of version 3, as docs/interop/qcow2.txt has it."""
    extension = struct.pack(">II", 0xE2792ACA, len(written)) + written.ljust((len(written) + 7) // 8 * 8, b"\0")
    extension = (extension if written else b"") + bytes(8)
    at = 104 + len(extension)
    head = b"QFI\xfb" + struct.pack(">IQI", 3, at if backing else 0, len(backing))
    head += struct.pack(">IQIIQQIIQ", 16, 1 << 20, crypt, 0, 0, 0, 0, 0, 0)
    head += struct.pack(">QQQII", incompatible, 0, 0, 4, 104)
    path.write_bytes(head + extension + backing.encode() + bytes(4096))
    return path


def test_a_disk_with_what_it_stands_on(tmp_path: Path) -> None:
    base = tmp_path / "base.img"
    base.write_bytes(bytes(4096))
    middle = qcow2(tmp_path / "middle.qcow2", "base.img")
    top = qcow2(tmp_path / "top.qcow2", str(middle), written=b"qcow2")
    disk = disks.disk(top, "qcow2")
    assert disk == Disk(
        files=(
            DiskFile(path=str(top), format="qcow2"),
            DiskFile(path=str(middle), format="qcow2"),
            DiskFile(path=str(base), format="raw"),
        )
    )
    assert disks.disk(top, "raw").files == (DiskFile(path=str(top)),)  # by what is said, never by what is in it
    before = disks.identity(disk)
    base.write_bytes(bytes(8192))
    assert disks.identity(disk) != before
    for made, message in (
        (qcow2(tmp_path / "a", "json:{}"), "is no file of this host"),
        (qcow2(tmp_path / "b", "base.img", written=b""), "does not say of which format"),
        (qcow2(tmp_path / "c", crypt=1), "is encrypted"),
        (qcow2(tmp_path / "d", incompatible=4), "has its data in another file"),
        (qcow2(tmp_path / "e", "gone.img"), "No such file"),
        (qcow2(tmp_path / "loop", "loop", written=b"qcow2"), "stands on more than 16"),
        (base, "is no qcow2"),
        (tmp_path, "is no file and no block device"),
    ):
        with pytest.raises(UserError, match=message):
            disks.disk(made, "qcow2")


def test_guests_of_a_session_have_the_very_disk_that_was_looked_at(tmp_path: Path) -> None:
    """Whoever owns its folder may put another file there meanwhile; one that is written ends the comparison."""
    image, other = tmp_path / "a.img", tmp_path / "b.img"
    image.write_bytes(b"a" * 4096)
    other.write_bytes(b"b" * 4096)
    wanted = disks.disk(image, "raw")
    held = disks.HeldDisks(wanted)
    held.checked()
    (file,) = held.opened(wanted).files
    image.rename(tmp_path / "kept.img")
    image.symlink_to(other)
    assert Path(file.path).read_bytes() == b"a" * 4096
    (tmp_path / "kept.img").write_bytes(b"c" * 8192)
    with pytest.raises(UserError, match="it was written since the run began"):
        held.checked()
    held.close()


def test_what_a_strangers_disk_stands_on_must_be_theirs_to_read(tmp_path: Path) -> None:
    need_root()
    hidden = tmp_path / "hidden"
    hidden.mkdir(0o700)
    (hidden / "base.img").write_bytes(bytes(4096))
    (hidden / "base.img").chmod(0o644)
    top = qcow2(tmp_path / "top.qcow2", str(hidden / "base.img"))
    disks.disk(top, "qcow2")  # root's own
    os.chown(top, 65534, 65534)
    with pytest.raises(
        UserError, match="another account's disk names it or has it beside it, and that account could not read it"
    ):
        disks.disk(top, "qcow2")
    with pytest.raises(UserError, match="is no file of this host"):
        disks.disk(qcow2(tmp_path / "nul.qcow2", "a\0b"), "qcow2")


def test_root_gives_a_strangers_image_no_disk_that_they_could_not_read(tmp_path: Path) -> None:
    """The programs of the image are theirs: a domain's XML may name any file as its second disk."""
    need_root()
    image, secret = tmp_path / "image.img", tmp_path / "secret"
    for path in (image, secret):
        path.write_bytes(bytes(4096))
    secret.chmod(0o600)
    use: Any = SimpleNamespace(image=str(image), image_format="raw", disk=[SimpleNamespace(path=secret, written="raw")])
    assert disks.study_disks(use)[1], "root's own"
    os.chown(image, 65534, 65534)
    with pytest.raises(UserError, match=f"{secret}: another account's disk"):
        disks.study_disks(use)
    os.chown(secret, 65534, 65534)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            return  # of pytest's own folders, which are root's alone
    assert disks.study_disks(use)[1]


def test_a_disk_that_was_exchanged_after_it_was_looked_at_is_asked_again(tmp_path: Path) -> None:
    """The owner of the image puts a link to root's file in the place of the disk, before the session holds it."""
    need_root()
    image, beside, secret = (tmp_path / name for name in ("image.img", "data.img", "secret"))
    for path in (image, beside, secret):
        path.write_bytes(bytes(4096))
    secret.chmod(0o600)
    for path in (image, beside):
        os.chown(path, 65534, 65534)
    looked = disks.disk(image, "raw"), disks.disk(beside, "raw")
    beside.unlink()
    beside.symlink_to(secret)
    with pytest.raises(UserError, match=f"{beside}: another account's disk"):
        disks.HeldDisks(looked[0], looked[1:])


def test_what_is_no_disk_is_not_opened(tmp_path: Path) -> None:
    """A domain's XML may name a watchdog, which resets the host when it was opened, or a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    opened = threading.Event()

    def wait() -> None:
        os.close(os.open(pipe, os.O_WRONLY))
        opened.set()

    threading.Thread(target=wait, daemon=True).start()
    try:
        assert disks.writer_of(str(pipe)) is None
        assert not opened.wait(0.2)
        with pytest.raises(UserError, match="is no file and no block device"):
            disks.disk(pipe, "qcow2")
    finally:
        os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))  # lets it go
        assert opened.wait(10)


def test_a_disk_that_a_machine_writes_is_refused(tmp_path: Path) -> None:
    """A QEMU that has it open, as that of a running domain; it locks the file, and so is known."""
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(1 << 20))
    wanted = disks.disk(image, "raw")
    disks.refuse_written(wanted)
    device, drive = ("-device", "virtio-blk-pci,drive=d"), f"file={image},format=raw,if=none,id=d"
    with qemu("-drive", f"{drive},readonly=on", *device, mib=16):  # as another guest beside this one
        disks.refuse_written(wanted)
    with (
        qemu("-drive", drive, *device, mib=16) as pid,
        pytest.raises(UserError, match=rf"{image}: the process {pid} \(qemu-system-x86_64\) has it open for writing"),
    ):
        disks.refuse_written(wanted)
    disks.refuse_written(wanted)


def proofs(text: str, arms: Sequence[str], folder: Path) -> dict[str, set[str]]:
    """What each arm's guests were proven to be backed by, in an emulated run of the domain's study with these arms."""
    made, _ = restated(text, msgspec.structs.replace(FAULT, blocks=2))
    study = load.part(load.parse(made.text, "made"), policies=list(arms))
    assert study.guest is not None
    study = msgspec.structs.replace(
        study,
        guest=msgspec.structs.replace(study.guest, accelerator="tcg"),
        # Of its two processors the kernel brings one up: the emulator is known to bring down those with more.
        kernel=tuple(msgspec.structs.replace(each, append=("maxcpus=1",)) for each in study.kernel),
    )
    before = runs.left()
    results = hugewise.run(study, results=folder)
    counted = runs.counted(results)
    assert Counter((a.arm, a.state) for a in counted) == {(arm, "accepted"): 2 for arm in arms}
    by_name: dict[str, set[str]] = {}
    for attempt in counted:
        assert attempt.guest["backing_share"] == 1.0
        by_name.setdefault(attempt.arm, set()).add(str(attempt.guest["backing_proof"]))
        name = f"b{attempt.block:05d}-{attempt.order}-{attempt.arm}-{attempt.number}"
        argv = (Path(results.folder) / "attempts" / name / "guest-argv.json").read_text()
        assert '"node,nodeid=1,cpus=1,memdev=ram1"' in argv
        assert "memory-backend-memfd,id=ram1,size=" in argv
    assert runs.left() - before == set()
    return by_name


@pytest.mark.boots
@pytest.mark.soak
def test_the_fixture_runs_emulated_with_all_backings_proven(x86: Bootable, tmp_path: Path, unchanged: None) -> None:
    """Two nodes with memory of their own, shared, of base pages and of a pool: each node's mapping is proven."""
    need_root()
    assert x86.kernel.arch == "x86-64"
    small = DB1.read_text().replace("memory='1048576'", "memory='131072'").replace("2097152", "262144")
    proofs_of = proofs(small, ["domain", "ram-4k", "ram-2m"], tmp_path / "results")
    assert proofs_of["ram-2m"] == {"; ".join(f"node {n}: 128m of 128m are hugetlb pages of 2 MiB" for n in (0, 1))}
    # All of it is there before the guest starts, where the domain's own has what was touched.
    assert proofs_of["ram-4k"] == {"; ".join(f"node {n}: 128m of 128m are base pages" for n in (0, 1))}
    assert all(
        re.fullmatch(r"node 0: .* are base pages; node 1: .* are base pages", each) for each in proofs_of["domain"]
    )
    assert not proofs_of["domain"] & proofs_of["ram-4k"]


@pytest.mark.boots
@pytest.mark.soak
def test_the_fixture_runs_on_pages_of_1_gib(x86: Bootable, tmp_path: Path, unchanged: None) -> None:
    """A page for each node is the least that there can be of them."""
    need_root()
    assert x86.kernel.arch == "x86-64"
    with held_pages(GIB, 2):
        proofs_of = proofs(DB1.read_text(), ["domain", "ram-1g"], tmp_path / "results")
    assert proofs_of["ram-1g"] == {"; ".join(f"node {n}: 1g of 1g are hugetlb pages of 1 GiB" for n in (0, 1))}


OWN = """
format = 1
name = "own"
policies = [
    {{ name = "small", from = "as-is", backing = "base" }},
    {{ name = "lazy", from = "as-is", backing = {{ pages = "base", preallocate = false }} }},
]
{short}{tcg}memory = "256m"
image = "{image}"
disk = [{{ path = "{image}" }}]
files = {{ "/opt/told" = "{file}" }}
{kernel}
[[workload]]
name = "command"
timeout = "60s"
parameters = {{ argv = ["bench", "cpu"] }}
"""


def disk_of_ones_own(folder: Path) -> Path:
    """A disk with a partition table, and on its second partition a root folder with one program, in ext4."""
    mke2fs = need_program("/usr/sbin/mke2fs", "e2fsprogs")
    agent = guest_probe("x86-64")
    assert isinstance(agent, Path)
    root, part = folder / "root", folder / "part.ext4"
    (root / "usr" / "bin").mkdir(parents=True)
    for name in ("env", "bench"):
        (root / "usr" / "bin" / name).write_bytes(agent.read_bytes())
        (root / "usr" / "bin" / name).chmod(0o755)
    subprocess.run([mke2fs, "-q", "-F", "-t", "ext4", "-d", str(root), str(part), "32m"], check=True)
    sector, first, second = 512, 2048, 4096
    entries = b"".join(
        struct.pack("<B3sB3sII", 0, b"\0\0\0", 0x83, b"\0\0\0", begin, size)
        for begin, size in ((first, second - first), (second, part.stat().st_size // sector))
    )
    image = folder / "own.img"
    empty = bytes(446) + entries + bytes(32) + b"\x55\xaa"
    image.write_bytes(empty + bytes(second * sector - len(empty)) + part.read_bytes())
    image.chmod(0o600)  # root's alone: QEMU has it by a descriptor
    return image


@pytest.mark.boots
@pytest.mark.soak
def test_a_disk_of_ones_own_is_the_user_space(x86: Bootable, tmp_path: Path, unchanged: None) -> None:
    """Booted by a kernel of the study with the agent as init; read alone, with its program found by asking it once."""
    need_root()
    assert x86.kernel.arch == "x86-64"
    image, told = disk_of_ones_own(tmp_path), tmp_path / "told"
    told.write_text("a file of this host")
    before = image.read_bytes()
    text = OWN.format(short=runs.SHORT, tcg=runs.TCG, kernel=runs.KERNEL, image=image, file=told)
    results = hugewise.run(load.parse(text, "own.toml"), results=tmp_path / "results")
    counted = runs.counted(results)
    assert Counter((a.arm, a.state) for a in counted) == {("small", "accepted"): 2, ("lazy", "accepted"): 2}
    assert image.read_bytes() == before
    absent = text.replace('"bench", "cpu"', '"bonch", "cpu"')
    with pytest.raises(UserError, match="bonch: no such program"):
        hugewise.run(load.parse(absent, "own.toml"), results=tmp_path / "results")
