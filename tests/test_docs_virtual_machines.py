"""The guide from a libvirt domain to a deployed backing: what it quotes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise.audit import collect
from hugewise.audit.root import Root
from hugewise.cli import guest_study
from hugewise.cli.backing import guest_lines
from hugewise.cli.main import cli
from hugewise.guests import backing, running
from hugewise.guests.backing import KvmMapping
from hugewise.guests.running import RamBlock, RunningGuest
from hugewise.model.guest import Backing, Domain
from hugewise.model.host import Host
from hugewise.plan.guest_deployment import element
from tests.build.studies import KnobFiles
from tests.guests.test_domain_study import DB1, GIB, OFFER, restated

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/guides/virtual-machines.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def block(begins: str) -> str:
    """The fenced block that begins so."""
    (found,) = [each for each in BLOCKS if each.startswith(begins)]
    return str(found)


def statements(text: str) -> Iterator[str]:
    """What a block quotes, each put on one line: it begins at the margin with a word and a colon, or an equals sign."""
    yield from (re.sub(r"\s+", " ", each).strip() for each in re.split(r"\n(?=(?:warning|note): |backing = )", text))


def says(quoted: str, real: str) -> bool:
    """Whether `real` is what is quoted; ` ...` stands for the rest, or for a part that is left out."""
    pieces = [re.escape(piece) for piece in re.split(r" \.\.\.", quoted)]
    return re.fullmatch(".*".join(pieces), real) is not None


def test_what_takes_huge_pages_from_the_fixture_is_what_it_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `guest study` says it on a host where shared memory has no huge pages."""
    settings = tmp_path / "sys/kernel/mm/transparent_hugepage"
    settings.mkdir(parents=True)
    for name, said in (("enabled", "always [madvise] never"), ("shmem_enabled", "always within_size advise [never]")):
        (settings / name).write_text(f"{said}\n")

    def traps(found: Domain, host: Host, **_: bool) -> object:
        return guest_study.vm_traps_of(collect.about(Root(tmp_path), found))

    monkeypatch.setattr(guest_study, "vm_traps", traps)
    monkeypatch.setattr(guest_study, "_offer", lambda *_: OFFER)
    monkeypatch.chdir(DB1.parent)
    ran = CliRunner().invoke(cli, ["guest", "study", DB1.name, "--workload", "fault"])
    assert ran.exit_code == 0
    real = ran.stderr.splitlines()
    quoted = list(statements(block("warning: db1.xml")))
    assert len(quoted) == 3
    for each in quoted:
        assert any(says(each, line) for line in real), each


def test_what_of_the_fixture_is_not_restated_is_what_it_quotes() -> None:
    made, study = restated(DB1.read_text())
    quoted = list(statements(block("note: db1.xml")))
    assert len(quoted) == 3
    for each in quoted:
        assert any(says(each, f"note: {note}") for note in made.notes), each
    named = re.findall(r"`((?:ram-|domain\b)[a-z0-9]*)`", GUIDE)
    assert set(named) == {"domain", "ram-4k", "ram-thp", "ram-2m", "ram-1g"}
    assert set(made.arms) | {"ram-thp"} == set(named)  # shared memory has none of those
    assert f"at most {study.budget.blocks} blocks" in GUIDE
    assert f'method = "{study.method}"' in GUIDE


def test_the_elements_that_it_shows_are_those_of_a_deployment() -> None:
    assert block("<memoryBacking>") == element(Backing(pages="hugetlb-1g", source="memfd", share=True))


def test_what_verify_says_is_what_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes on a page of 1 GiB each, of which KVM maps one by smaller pages: as the page shows them."""
    node = "{:x}-{:x} rw-s 00000000 00:0f 7 /memfd:ram\nSize: 1048576 kB\nKernelPageSize: 1048576 kB\nRss: 0 kB\n"
    text = "".join(
        node.format(start, start + GIB) + "Shared_Hugetlb: 1048576 kB\nPrivate_Hugetlb: 0 kB\nAnonHugePages: 0 kB\n"
        for start in (1 << 32, 1 << 33)
    )
    mapped = KvmMapping({4096: 512, 2 << 20: 510, GIB: 1}, 0, "debugfs")
    monkeypatch.setattr(backing, "smaps", lambda _: text)
    monkeypatch.setattr(backing, "has_kvm_vm", lambda *_: True)
    monkeypatch.setattr(backing, "kvm_mapping_of_debugfs", lambda *_: mapped)
    pieces = tuple(
        RamBlock(id=f"ram-node{number}", size=GIB, page=GIB, shared=True, preallocated=True, node=number)
        for number in (0, 1)
    )
    guest = RunningGuest(pid=3047, program="qemu-system-x86_64", blocks=pieces, domain="db1")
    found = running.verify(guest, KnobFiles({"/proc/3047/status": "", "/proc/3047/numa_maps": ""}), "hugetlb-1g")
    real = list(guest_lines(found, ()))
    quoted = block("domain db1: as promised").splitlines()
    assert len(real) == len(quoted)
    for said, line in zip(quoted, real, strict=True):
        assert says(said, line), (said, line)


def test_every_verdict_of_verify_is_explained() -> None:
    table = set(re.findall(r"^\| ((?:as|NOT) [^|]*?) \|", GUIDE, re.MULTILINE))
    open_ = f"NOT PROVEN, {backing.UNKNOWN}"
    assert table == {"as promised", "NOT as promised", "NOT PROVEN", open_}
