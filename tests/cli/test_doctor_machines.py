"""The section of `hugewise doctor` on virtual machines, from a host's files to what is printed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from hugewise.audit.collect import of_host
from hugewise.audit.root import Root
from hugewise.cli.doctor import examine
from hugewise.model.host import Check
from tests.build.hosts import Files
from tests.cli.test_doctor import FACTS, FILES, text

BALLOONED = """<domain type='kvm'><name>db</name><memory unit='MiB'>1024</memory>
<currentMemory unit='MiB'>512</currentMemory>
<devices><memballoon model='virtio' freePageReporting='on'/></devices></domain>"""
PLAIN = """<domain type='kvm'><name>web</name><memory unit='MiB'>1024</memory>
<currentMemory unit='MiB'>1024</currentMemory></domain>"""


def host(folder: Path, **domains: str) -> Root:
    for path, content in domains.items():
        place = folder / {"kept": "etc", "live": "run"}[path.partition("_")[0]] / "libvirt/qemu" / f"{path}.xml"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return Root(folder)


def section(root: Root) -> Mapping[str, Check]:
    report = examine(Files(FILES, root=True), msgspec.structs.replace(FACTS, machines=of_host(root)))
    return {check.name: check for check in report.checks if check.section == "virtual machines"}


def test_what_takes_huge_pages_from_a_domain_stands_there_with_its_cure(tmp_path: Path) -> None:
    found = section(host(tmp_path, kept_db=BALLOONED, live_web=PLAIN))
    assert found["domains"].finding.startswith("web (runs), db;")
    for rule, cure in (("ballooned-at-boot", "setmaxmem"), ("free-page-reporting", "freePageReporting='on'")):
        assert found[rule].state == "limited"
        assert "db" in found[rule].finding
        assert cure in str(found[rule].cure)


def test_a_note_is_to_know_and_wants_no_cure(tmp_path: Path) -> None:
    balloon = PLAIN.replace("</domain>", "<devices><memballoon model='virtio'/></devices></domain>")
    found = section(host(tmp_path, kept_web=balloon))
    assert (found["balloon"].state, found["balloon"].cure) == ("ok", None)


def test_traps_of_the_host_stand_there_only_where_a_domain_is(tmp_path: Path) -> None:
    root = host(tmp_path, kept_web=PLAIN)
    (tmp_path / "sys/kernel/mm/ksm").mkdir(parents=True)
    (tmp_path / "sys/kernel/mm/ksm/run").write_text("1\n")
    assert section(root)["merged"].state == "limited"
    (tmp_path / "etc/libvirt/qemu/kept_web.xml").unlink()
    assert list(section(Root(tmp_path))) == ["domains"]


def test_no_domain_is_said_in_a_line(tmp_path: Path) -> None:
    found = section(host(tmp_path))
    assert list(found) == ["domains"]
    assert found["domains"].state == "ok"
    assert "hugewise verify PID" in found["domains"].finding


def test_files_that_cannot_be_read_are_not_no_machine(tmp_path: Path) -> None:
    root = host(tmp_path, kept_torn="<domain type='kvm'><name>")
    found = section(root)
    assert "domains" not in found
    assert found["not read"].state == "limited"
    assert "kept_torn.xml" in found["not read"].finding


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can become another account")
def test_an_account_that_may_not_look_is_told_so(tmp_path: Path) -> None:
    root = host(tmp_path, kept_web=PLAIN)
    (tmp_path / "etc/libvirt/qemu").chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o001)
    os.seteuid(65534)
    try:
        found = section(root)
    finally:
        os.seteuid(0)
    assert "domains" not in found
    assert found["not read"].cure == "sudo hugewise doctor"


def test_what_a_domain_is_called_does_not_steer_the_terminal(tmp_path: Path) -> None:
    hostile = PLAIN.replace("web", "[red]x[/red]")
    report = examine(
        Files(FILES, root=True), msgspec.structs.replace(FACTS, machines=of_host(host(tmp_path, kept_a=hostile)))
    )
    assert "[red]x[/red]" in text(report, 200)
