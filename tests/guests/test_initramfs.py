"""The initramfs: what is in it, in which order, and that the same gives the same."""

from __future__ import annotations

import hashlib
import lzma
import os
import pwd
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError, UserError
from hugewise.guests import image
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from tests.build.guests import entries_of
from tests.requirements import need_root


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))


def a_program(machine: int = 183, kinds: tuple[int, ...] = (1, 2)) -> bytes:
    """The head of a program of 64 bits for that machine, with program headers of those kinds."""
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<H", head, 18, machine)
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, len(kinds))
    return bytes(head) + b"".join(struct.pack("<I52x", kind) for kind in kinds)


def a_kernel(*modules: str, arch: Architecture = "arm64") -> Kernel:
    return Kernel(name="k", arch=arch, image="/k", digest="0", release="6.12", modules=modules, origin="a test")


def given_probe(monkeypatch: pytest.MonkeyPatch, folder: Path, data: bytes) -> Path:
    path = folder / "probe"
    path.write_bytes(data)
    monkeypatch.setenv("HUGEWISE_GUEST_PROBE_ARM64", str(path))
    return path


def test_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    (tmp_path / "b.ko.xz").write_bytes(lzma.compress(b"module b"))
    (tmp_path / "a.ko").write_bytes(b"module a")
    kernel = a_kernel(str(tmp_path / "b.ko.xz"), str(tmp_path / "a.ko"))
    path = image.build(kernel)
    found = {entry.path: entry for entry in entries_of(path.read_bytes())}
    assert found["init"].data == a_program()
    assert found["init"].mode & 0o777 == 0o755
    assert found["dev/console"].device == (5, 1)
    modules = [(name, entry.data) for name, entry in found.items() if name.startswith("modules/")]
    assert modules == [("modules/000-b.ko", b"module b"), ("modules/001-a.ko", b"module a")]
    assert {"proc", "sys", "dev", "run", "tmp"} <= set(found)


def test_it_is_named_by_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = given_probe(monkeypatch, tmp_path, a_program())
    one = image.build(a_kernel())
    assert image.build(a_kernel()) == one
    assert one.stat().st_mode & 0o444 == 0o444  # a QEMU without privileges reads it
    probe.write_bytes(a_program() + b"another")
    another = image.build(a_kernel())
    assert another != one
    assert image.existing_initramfs(one).path == str(one)
    assert (
        image.existing_initramfs(one).digest
        == hashlib.sha256(one.read_bytes()).hexdigest()
        != image.existing_initramfs(another).digest
    )
    assert not list(one.parent.glob(".*.new"))


def test_a_truncated_one_in_the_cache_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    one = image.build(a_kernel())
    whole = one.read_bytes()
    os.truncate(one, 100)
    assert image.build(a_kernel()) == one
    assert one.read_bytes() == whole


def test_root_takes_no_agent_that_another_account_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    given = given_probe(monkeypatch, tmp_path, a_program())
    os.chown(given, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UserError, match="belongs to the account") as raised:
        image.build(a_kernel())
    assert "HUGEWISE_GUEST_PROBE_ARM64" in str(raised.value.hint)


def test_one_boot_can_be_given_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    base = image.build(a_kernel())
    more = image.extended(base, {"/orders.jsonl": b"{}\n"}, tmp_path / "initramfs")
    assert entries_of(more.read_bytes()) == [
        *entries_of(base.read_bytes()),
        image.regular_file("orders.jsonl", b"{}\n"),
    ]
    assert [path for path in base.parent.iterdir() if not path.name.startswith(".")] == [base]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_one_boot_is_given_is_never_written_where_a_link_leads(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    base, other, target = tmp_path / "base", tmp_path / "of-somebody", tmp_path / "initramfs.orders"
    base.write_bytes(b"an initramfs")
    other.write_bytes(b"theirs")
    link(other, target)
    made = image.extended(base, {"/orders.jsonl": b"{}\n"}, target)
    assert other.read_bytes() == b"theirs"
    assert made.read_bytes().startswith(b"an initramfs")
    assert made.lstat().st_ino != other.stat().st_ino
    assert not made.is_symlink()


def test_a_module_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    (tmp_path / "bad.ko.xz").write_bytes(b"no xz")
    with pytest.raises(HugewiseError, match="bad.ko.xz is not a kernel module that can be read"):
        image.build(a_kernel(str(tmp_path / "bad.ko.xz")))


def test_a_missing_probe_says_where_it_should_be_and_what_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HUGEWISE_GUEST_PROBE_X86_64", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("HUGEWISE_PROBE", "/bin/true")  # not static
    found = image.guest_probe("x86-64")
    assert isinstance(found, Missing)
    assert f"{tmp_path}/share/hugewise/probe-x86-64 is not there" in found.reason
    with pytest.raises(UserError, match="no agent for guests of x86-64") as raised:
        image.build(a_kernel(arch="x86-64"))
    assert raised.value.hint == "make guest-probes"


def test_a_static_probe_of_the_host_is_that_of_guests_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUGEWISE_GUEST_PROBE_X86_64", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    own = tmp_path / "hugewise-probe"
    own.write_bytes(a_program(machine=62))
    own.chmod(0o755)
    monkeypatch.setenv("HUGEWISE_PROBE", str(own))
    assert image.guest_probe("x86-64") == own
    assert isinstance(image.guest_probe("arm64"), Missing)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/sh\n", "not a program of 64 bits"),
        (a_program(machine=62), r"not a program for arm64 \(ELF machine 62\)"),
        (a_program(kinds=(6, 3, 1)), "not static"),
    ],
)
def test_a_probe_that_could_not_be_init_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    given_probe(monkeypatch, tmp_path, data)
    with pytest.raises(UserError, match=why):
        image.need_probe("arm64")
