"""Images of packages: a tiny one made for real of packages made here, and looked into."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hugewise import unprivileged
from hugewise.errors import StorageError, UserError
from hugewise.guests import debian, image, packages
from hugewise.guests.boot import Hosting
from hugewise.guests.packages import Foreseen
from hugewise.machine.remote import RemoteMachine
from hugewise.machine.serving import run
from hugewise.unprivileged import Finished
from tests.build import known
from tests.build.live_agent import job
from tests.guests.conftest import Bootable
from tests.guests.test_initramfs import a_program
from tests.guests.test_unpacking import a_deb as a_deb_of
from tests.guests.test_unpacking import member
from tests.requirements import need, need_program


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
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
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


def test_an_image_has_the_packages_the_links_and_what_is_added(tmp_path: Path, told: list[str]) -> None:
    need_program("mke2fs", "e2fsprogs")
    (tmp_path / "lua.orig.tar.gz").write_bytes(b"sources")
    made = image.image(
        ["gcc", "old"], "arm64", "trixie", files={"/usr/src/lua.orig.tar.gz": tmp_path / "lua.orig.tar.gz"},
        say=told.append,
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
    unpacking_, making = told
    assert unpacking_ == "unpacking 2 packages"
    said = re.fullmatch(r"making the file system of the image \((\d+) MB\)", making)
    assert said is not None
    assert made.root is not None
    assert 0.8 < int(said[1]) * 1e6 / (Path(made.root).stat().st_blocks * 512) < 1.25


def test_long_unpacking_says_how_far_it_is(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("mke2fs", "e2fsprogs")
    monkeypatch.setattr(image, "_TOLD_EVERY_S", 0.0)
    image.image(["gcc", "old"], "arm64", "trixie", say=told.append)
    assert told[:3] == ["unpacking 2 packages", "unpacked 0 of 2 packages", "unpacked 1 of 2 packages"]


def test_how_much_of_the_file_system_is_written_is_said_while_it_is_made(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes it may be another process: it looks itself, and waits here until it has."""
    need_program("mke2fs", "e2fsprogs")
    run, written, seen = unprivileged.run, debian.written, threading.Event()

    def looked(path: Path) -> int:
        if found := written(path):
            seen.set()
        return found

    def slow(argv: Sequence[str], **options: Any) -> Finished:
        done = run(argv, **options)
        assert not argv[0].endswith("mke2fs") or seen.wait(30)
        return done

    monkeypatch.setattr(debian, "EVERY_S", 0.01)
    monkeypatch.setattr(debian, "written", looked)
    monkeypatch.setattr(unprivileged, "run", slow)
    image.image(["gcc", "old"], "arm64", "trixie", say=told.append)
    lines = [re.fullmatch(r"written (\S+) of (\S+) MB \(\d+%\) in .*", line) for line in told[2:]]
    assert all(lines)
    last = known(lines[-1])
    assert 0 < float(last[1]) <= float(last[2])


def test_a_full_disk_says_how_much_an_image_needs(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("mke2fs", "e2fsprogs")

    def full(argv: Sequence[str], **_: object) -> Finished:
        return Finished(status=1, stdout="", stderr="mke2fs: No space left on device while populating")

    monkeypatch.setattr(unprivileged, "run", full)
    with pytest.raises(StorageError, match="^mke2fs: mke2fs: No space left on device") as raised:
        image.image(["gcc", "old"], "arm64", "trixie", say=told.append)
    assert re.fullmatch(
        r"the image needs \d\d MB in /.*, and as much in the cache: free space there", str(raised.value.hint)
    )


def test_what_an_image_takes_is_known_when_the_lists_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    a_package = debian.Package(
        name="gcc", version="1", arch="arm64", sha256="0" * 64, size=12_340_000, file="gcc.deb", of=("trixie", "arm64")
    )
    seen: list[Sequence[str]] = []

    def by_lists(packages: Sequence[str], suite: str, arch: str) -> Foreseen:
        seen.append(packages)
        return Foreseen((a_package,), 50_000_000)

    monkeypatch.setattr(image, "package_sizes", by_lists)
    takes = image.takes(["gcc"], "arm64", "trixie")
    assert takes == "12.3 MB are fetched, and about 50 MB of the cache are taken"
    assert {"gcc", "coreutils", "dash"} <= set(seen[0])  # what every image has with it
    monkeypatch.setattr(image, "package_sizes", lambda *_: Foreseen((a_package,), None))
    assert image.takes(["gcc"], "arm64", "trixie") == "12.3 MB are fetched"
    monkeypatch.setattr(image, "package_sizes", lambda *_: None)
    assert image.takes(["gcc"], "arm64", "trixie").startswith("how much that is, the run says")


def test_packages_that_reach_out_make_an_image_and_nothing_else(
    reached: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
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
    made = image.image(["gcc"], "arm64", "trixie", say=told.append)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("passwd", "of the host's")]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o777
    kept = [path.lstat() for path in Path(str(made.root)).parents[2].rglob("*")]
    assert not [each for each in kept if each.st_mode & (stat.S_ISUID | stat.S_ISGID) or each.st_uid != os.geteuid()]
    assert "Mode:  0755" in asked(made.root, "stat /usr/bin/su")
    assert asked(made.root, f"cat {outside}/made") == "x"  # below the root of the guest


def test_an_image_is_made_once_and_anew_when_something_differs(tmp_path: Path, told: list[str]) -> None:
    need_program("mke2fs", "e2fsprogs")
    one = image.image(["gcc"], "arm64", "trixie", say=told.append)
    assert image.image(["gcc"], "arm64", "trixie", say=told.append) == one
    assert sum(line.startswith("making the file system of the image") for line in told) == 1
    beside = sorted(path.name for path in Path(str(one.root)).parent.iterdir())
    assert beside[0] == ".sealed" and beside[1] == "contents.json" and beside[2].startswith("had-for-")
    assert beside[3:] == ["root.ext4"]
    assert image.cached(["gcc"], "arm64", "trixie")
    assert not image.cached(["gcc", "old"], "arm64", "trixie")
    assert not image.cached(["gcc"], "arm64", "trixie", ["lua5.4"])
    (tmp_path / "probe").write_bytes(a_program() + b"newer")
    two = image.image(["gcc"], "arm64", "trixie", say=told.append)
    assert two.digest != one.digest
    assert two.root != one.root


@pytest.mark.parametrize("path", ["usr/src/a", "/usr/../../etc/a"])
def test_a_file_is_put_at_an_absolute_path_below_the_root(tmp_path: Path, told: list[str], path: str) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(UserError, match="cannot be put at"):
        image.image(["gcc"], "arm64", "trixie", files={path: tmp_path / "a"})


def test_links_are_followed_within_the_image_and_not_without_end(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/var/../../../etc2")
    (tmp_path / "loop").symlink_to("loop")
    assert packages.inside(tmp_path, "/etc/passwd") == tmp_path / "etc2" / "passwd"
    with pytest.raises(StorageError, match="without end"):
        packages.inside(tmp_path, "/loop")


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
        run([(RemoteMachine(agent, emulated=True), job(tmp_path / "job", "/bin/sh", "-ec", script))])
        agent.poweroff()
    said = (tmp_path / "job/stdout").read_text()
    assert re.fullmatch(r"b\nroot\nhugewise-probe \S+\nx\n", said), (said, (tmp_path / "job/stderr").read_text())
