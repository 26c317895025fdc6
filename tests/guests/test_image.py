"""The initramfs and images: what is in them, in which order, and that the same gives the same."""

import hashlib
import lzma
import os
import pwd
import re
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import debian, image
from hugewise.guests.boot import Hosting
from hugewise.machine.machine import run_launchers
from hugewise.machine.remote import RemoteMachine
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.unprivileged import Finished
from tests.build.guests import entries_of
from tests.build.live_agent import job
from tests.guests.conftest import Bootable
from tests.guests.test_debian import a_deb as a_deb_of
from tests.guests.test_debian import member
from tests.requirements import need, need_program, need_root


def a_deb(folder: Path, name: str, files: dict[str, str], links: dict[str, str]) -> Path:
    """A package with programs of those texts; `dpkg-deb --build` makes it."""
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: arm64\nMaintainer: a <a@b.example>\nDescription: a test\n"
    )
    (root / "DEBIAN/postinst").write_text("#!/bin/sh\ntouch /tmp/never-run\n")
    (root / "DEBIAN/postinst").chmod(0o755)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(0o755 if "bin/" in path else 0o644)
    for path, target in links.items():
        (root / path).symlink_to(target)
    subprocess.run(["dpkg-deb", "--build", str(root), str(folder)], check=True, capture_output=True)
    return folder / f"{name}_1_arm64.deb"


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two packages in place of Debian's; what was said while images were made."""
    need_program("dpkg-deb", "dpkg")
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HUGEWISE_GUEST_PROBE_ARM64", str(tmp_path / "probe"))
    (tmp_path / "probe").write_bytes(a_program())
    (tmp_path / "probe").chmod(0o755)
    debs = {
        "gcc": a_deb(
            tmp_path, "gcc", {"usr/bin/gcc-14": "14", "usr/share/doc/gcc/changelog": "long"}, {"usr/bin/gcc": "gcc-14"}
        ),
        "old": a_deb(tmp_path, "old", {"bin/old": "in /bin", "etc/old.conf": "x = 1"}, {"bin/far": "/usr/bin/gcc"}),
    }

    def resolve(names: Sequence[str], suite: str, arch: str, say: object) -> list[debian.Package]:
        return [
            debian.Package(
                name=name, version="1", arch=arch, size=1, file=path.name, of=(suite, arch),
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            )
            for name, path in debs.items()
        ]  # fmt: skip

    monkeypatch.setattr(debian, "resolve", resolve)
    monkeypatch.setattr(debian, "fetch", lambda packages, say: [debs[package.name] for package in packages])
    return []


def asked(root: str | None, request: str) -> str:
    need_program("debugfs", "e2fsprogs")
    done = subprocess.run(["debugfs", "-R", request, str(root)], capture_output=True, text=True, check=True)
    return done.stdout


def test_an_image_has_the_packages_the_links_and_what_is_added(tmp_path: Path, progress: list[str]) -> None:
    need_program("mke2fs", "e2fsprogs")
    (tmp_path / "lua.orig.tar.gz").write_bytes(b"sources")
    made = image.image(
        ["gcc", "old"], "arm64", "trixie", files={"/usr/src/lua.orig.tar.gz": tmp_path / "lua.orig.tar.gz"},
        say=progress.append,
    )  # fmt: skip
    assert {"/usr/bin/gcc", "/usr/bin/gcc-14", "/usr/bin/cc", "/bin/cc", "/bin/old", image.PROBE} <= set(made.programs)
    assert "/usr/bin/far" in made.programs  # a link with an absolute target is followed within the image
    assert made.files == ("/usr/src/lua.orig.tar.gz",)
    assert [name for name, _ in made.packages] == ["gcc", "old"]
    assert re.fullmatch("1 sha256:[0-9a-f]{64}", dict(made.packages)["gcc"])
    assert asked(made.root, "cat /usr/bin/old") == "in /bin"
    assert 'Fast link dest: "usr/bin"' in asked(made.root, "stat /bin")
    assert 'Fast link dest: "gcc"' in asked(made.root, "stat /usr/bin/cc")
    assert asked(made.root, "cat /etc/passwd").startswith("root:x:0:0:")
    assert asked(made.root, "cat /usr/src/lua.orig.tar.gz") == "sources"
    assert "changelog" not in asked(made.root, "ls /usr/share/doc/gcc")
    for path in ("/", "/etc/old.conf", image.PROBE, "/usr/bin/gcc"):
        assert re.search(r"User: +0 +Group: +0 ", asked(made.root, f"stat {path}")), path
    assert not Path("/tmp/never-run").exists()
    unpacking_, making = progress
    assert unpacking_ == "unpacking 2 packages"
    said = re.fullmatch(r"making the file system of the image \((\d+) MB\)", making)
    assert said is not None
    assert made.root is not None
    assert 0.8 < int(said[1]) * 1e6 / (Path(made.root).stat().st_blocks * 512) < 1.25


def test_long_unpacking_says_how_far_it_is(progress: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("mke2fs", "e2fsprogs")
    monkeypatch.setattr(image, "_TOLD_EVERY_S", 0.0)
    image.image(["gcc", "old"], "arm64", "trixie", say=progress.append)
    assert progress[:3] == ["unpacking 2 packages", "unpacked 0 of 2 packages", "unpacked 1 of 2 packages"]


def test_a_full_disk_says_how_much_an_image_needs(progress: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("mke2fs", "e2fsprogs")

    def full(argv: Sequence[str], **_: object) -> Finished:
        return Finished(status=1, stdout="", stderr="mke2fs: No space left on device while populating")

    monkeypatch.setattr(unprivileged, "run", full)
    with pytest.raises(StorageError, match="^mke2fs: mke2fs: No space left on device") as raised:
        image.image(["gcc", "old"], "arm64", "trixie", say=progress.append)
    assert re.fullmatch(
        r"the image needs \d\d MB in /.*, and as much in the cache: free space there", str(raised.value.hint)
    )


def test_packages_that_reach_out_make_an_image_and_nothing_else(
    reached: Path, progress: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a folder of the host and a file below it, a program with rights, a link in place of /etc/passwd."""
    need_program("mke2fs", "e2fsprogs")
    outside = reached / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "passwd").write_text("of the host's")
    (outside / "passwd").chmod(0o666)
    first = a_deb_of(
        reached, member("usr/bin/su", text="su", mode=0o6755), member("away", tarfile.SYMTYPE, link=str(outside)),
        member("etc/passwd", tarfile.SYMTYPE, link=f"{outside}/passwd"), name="one",
    )  # fmt: skip
    second = a_deb_of(
        reached, member("away/made", text="x"), member("away", tarfile.DIRTYPE, mode=0o700), name="two",
    )  # fmt: skip
    monkeypatch.setattr(debian, "fetch", lambda packages, say: [first, second])
    made = image.image(["gcc"], "arm64", "trixie", say=progress.append)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("passwd", "of the host's")]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o777
    kept = [path.lstat() for path in Path(str(made.root)).parents[2].rglob("*")]
    assert not [each for each in kept if each.st_mode & (stat.S_ISUID | stat.S_ISGID) or each.st_uid != os.geteuid()]
    assert "Mode:  0755" in asked(made.root, "stat /usr/bin/su")
    assert asked(made.root, f"cat {outside}/made") == "x"  # below the root of the guest


def test_an_image_is_made_once_and_anew_when_something_differs(tmp_path: Path, progress: list[str]) -> None:
    need_program("mke2fs", "e2fsprogs")
    first = image.image(["gcc"], "arm64", "trixie", say=progress.append)
    assert image.image(["gcc"], "arm64", "trixie", say=progress.append) == first
    assert sum(line.startswith("making the file system of the image") for line in progress) == 1
    beside = sorted(path.name for path in Path(str(first.root)).parent.iterdir())
    assert beside == ["contents.json", "root.ext4"]
    (tmp_path / "probe").write_bytes(a_program() + b"newer")
    two = image.image(["gcc"], "arm64", "trixie", say=progress.append)
    assert two.digest != first.digest
    assert two.root != first.root


@pytest.mark.parametrize("path", ["usr/src/a", "/usr/../../etc/a"])
def test_a_file_is_put_at_an_absolute_path_below_the_root(tmp_path: Path, progress: list[str], path: str) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(UserError, match="cannot be put at"):
        image.image(["gcc"], "arm64", "trixie", files={path: tmp_path / "a"})


def test_links_are_followed_within_the_image_and_not_without_end(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/var/../../../etc2")
    (tmp_path / "loop").symlink_to("loop")
    assert debian.resolve_inside(tmp_path, "/etc/passwd") == tmp_path / "etc2" / "passwd"
    with pytest.raises(StorageError, match="without end"):
        debian.resolve_inside(tmp_path, "/loop")


@pytest.mark.soak
def test_programs_of_an_image_run_in_a_guest(tmp_path: Path, arm64: Bootable, hosting: Hosting) -> None:
    """Nothing of the packages was run to install them, no cache of libraries was made: they run all the same."""
    need_program("mke2fs", "e2fsprogs")
    try:
        made = image.image((), "arm64", "trixie")
    except UserError as error:
        need("cannot read the package lists" not in error.message, f"Debian's archive through apt ({error.message})")
        raise
    script = "echo a b | awk '{print $2}'; id -un; hugewise-probe --version; echo x | xz | xz -d; touch /var/tmp/kept"
    with arm64.spoken(hosting, image=made) as (_, agent):
        run_launchers([(RemoteMachine(agent, emulated=True), job(tmp_path / "job", "/bin/sh", "-ec", script))])
        agent.poweroff()
    text = (tmp_path / "job/stdout").read_text()
    assert re.fullmatch(r"b\nroot\nhugewise-probe \S+\nx\n", text), (text, (tmp_path / "job/stderr").read_text())


NAMES = st.text("abcdé-.", min_size=1, max_size=12).filter(lambda name: name.strip("."))


def test_a_member_is_written_as_the_kernels_documentation_says_and_folders_above_come_first_and_once() -> None:
    data = image.cpio_archive([image.regular_file("init", b"hello", 0o755)])
    head = b"07070100000001000081ed0000000000000000000000010000000000000005"
    head += b"000000000000000000000000000000000000000500000000"
    assert data[:110] == head
    assert data[110:124] == b"init\0\0hello\0\0\0"  # name and content each end at a multiple of 4
    assert data[124:130] == b"070701"
    assert b"TRAILER!!!\0" in data
    assert len(data) % 512 == 0
    below = [image.regular_file("/a/b/one", b"1"), image.regular_file("a/b/two", b"2"), image.directory("a")]
    entries = entries_of(image.cpio_archive(below))
    assert [entry.path for entry in entries] == ["a", "a/b", "a/b/one", "a/b/two"]
    assert [stat.S_ISDIR(entry.mode) for entry in entries] == [True, True, False, False]
    with pytest.raises(HugewiseError, match="has init twice"):
        image.cpio_archive([image.regular_file("init", b"1"), image.regular_file("/init", b"2")])


@given(st.dictionaries(NAMES, st.binary(max_size=40), max_size=5), st.dictionaries(NAMES, st.binary(), max_size=5))
def test_archives_that_follow_each_other_hold_what_each_holds(one: dict[str, bytes], two: dict[str, bytes]) -> None:
    first, second = ([image.regular_file(name, data) for name, data in each.items()] for each in (one, two))
    assert entries_of(image.cpio_archive(first) + image.cpio_archive(second)) == [*first, *second]


def a_program(machine: int = 183, kinds: tuple[int, ...] = (1, 2)) -> bytes:
    """The head of a program of 64 bits for that machine, with program headers of those kinds."""
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<HH", head, 16, 2, machine)
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, len(kinds))
    return bytes(head) + b"".join(struct.pack("<I52x", kind) for kind in kinds)


def a_kernel(*modules: str, arch: Architecture = "arm64") -> Kernel:
    return Kernel(name="k", arch=arch, image="/k", digest="0", release="6.12", modules=modules, origin="a test")


def given_probe(monkeypatch: pytest.MonkeyPatch, folder: Path, data: bytes) -> Path:
    path = folder / "probe"
    path.write_bytes(data)
    monkeypatch.setenv("HUGEWISE_GUEST_PROBE_ARM64", str(path))
    monkeypatch.setenv("HUGEWISE_CACHE", str(folder / "cache"))
    return path


def test_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    (tmp_path / "b.ko.xz").write_bytes(lzma.compress(b"module b"))
    (tmp_path / "a.ko").write_bytes(b"module a")
    kernel = a_kernel(str(tmp_path / "b.ko.xz"), str(tmp_path / "a.ko"))
    path = image.build(kernel)
    by_name = {entry.path: entry for entry in entries_of(path.read_bytes())}
    assert by_name["init"].data == a_program()
    assert by_name["init"].mode & 0o777 == 0o755
    assert by_name["dev/console"].device == (5, 1)
    modules = [(name, entry.data) for name, entry in by_name.items() if name.startswith("modules/")]
    assert modules == [("modules/000-b.ko", b"module b"), ("modules/001-a.ko", b"module a")]
    assert {"proc", "sys", "dev", "run", "tmp"} <= set(by_name)


def test_it_is_named_by_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = given_probe(monkeypatch, tmp_path, a_program())
    first = image.build(a_kernel())
    assert image.build(a_kernel()) == first
    assert first.stat().st_mode & 0o444 == 0o444  # a QEMU without privileges reads it
    probe.write_bytes(a_program() + b"another")
    another = image.build(a_kernel())
    assert another != first
    assert image.existing_initramfs(first).path == str(first)
    assert (
        image.existing_initramfs(first).digest
        == hashlib.sha256(first.read_bytes()).hexdigest()
        != image.existing_initramfs(another).digest
    )
    assert not list(first.parent.glob(".*.new"))


def test_a_truncated_one_in_the_cache_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_probe(monkeypatch, tmp_path, a_program())
    first = image.build(a_kernel())
    whole = first.read_bytes()
    os.truncate(first, 100)
    assert image.build(a_kernel()) == first
    assert first.read_bytes() == whole


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
    probe = image.guest_probe("x86-64")
    assert isinstance(probe, Missing)
    assert f"{tmp_path}/share/hugewise/probe-x86-64 is not there" in probe.reason
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
        (a_program(machine=62), "not a program for arm64$"),
        (a_program(kinds=(6, 3, 1)), "not static"),
    ],
)
def test_a_probe_that_could_not_be_init_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    given_probe(monkeypatch, tmp_path, data)
    with pytest.raises(UserError, match=why):
        image.need_probe("arm64")
