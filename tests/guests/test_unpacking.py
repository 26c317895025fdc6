"""Packages that try to reach out: nothing outside of the folder, nothing that gives rights, and root does none of it.

The packages are made here by dpkg-deb, of tar files that a package's maker may write as they like.
"""

from __future__ import annotations

import io
import os
import pwd
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hugewise import unprivileged
from hugewise.errors import StorageError
from hugewise.guests import packages
from hugewise.guests.packages import tree, unpack
from hugewise.guests.sandbox import workshop
from tests.requirements import need_program, need_root

TEXT = "of the host's"


def member(
    name: str, kind: bytes = tarfile.REGTYPE, text: str = "", mode: int = 0o755, link: str = ""
) -> tarfile.TarInfo:
    found = tarfile.TarInfo(f"./{name}")
    found.type, found.mode, found.linkname, found.size = kind, mode, link, len(text.encode())
    found.pax_headers = {"text": text} if text else {}
    return found


def a_deb(folder: Path, *members: tarfile.TarInfo, name: str = "bad") -> Path:
    """A package that holds these members, in their order: an ar of three files, deb(5)."""
    need_program("dpkg-deb", "dpkg")
    control = (("control", f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"),)
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar": _tar(member(each, text=text, mode=0o644) for each, text in control),
        "data.tar": _tar(iter(members)),
    }
    path = folder / f"{name}.deb"
    with path.open("wb") as writing:
        writing.write(b"!<arch>\n")
        for part, data in parts.items():
            writing.write(f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
            writing.write(data + b"\n" * (len(data) % 2))
    path.chmod(0o644)
    return path


def _tar(members: Iterator[tarfile.TarInfo]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for each in members:
            tar.addfile(each, io.BytesIO(each.pax_headers.get("text", "").encode()))
    return whole.getvalue()


@pytest.fixture
def outside(reached: Path) -> Path:
    """A folder of the host that everybody may write in, with a file that everybody may write and read."""
    folder = reached / "outside"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "victim").write_text(TEXT)
    (folder / "victim").chmod(0o666)
    return folder


def tries(outside: Path) -> dict[str, list[list[tarfile.TarInfo]]]:
    """What is tried, of one package or of several that are unpacked one after another."""
    away, way = member("away", tarfile.SYMTYPE, link=str(outside)), "../" * 20 + str(outside)[1:]
    return {
        "a file below an absolute link": [[away, member("away/made", text="x")]],
        "a file below an absolute link of another package": [[away], [member("away/made", text="x")]],
        "a folder below an absolute link of another package": [[away], [member("away/made", tarfile.DIRTYPE)]],
        "the mode of a folder behind a link": [[away], [member("away", tarfile.DIRTYPE, mode=0o700)]],
        "a file below a link that climbs": [[member("up", tarfile.SYMTYPE, link=way)], [member("up/made", text="x")]],
        "a file through a link": [
            [member("v", tarfile.SYMTYPE, link=f"{outside}/victim")], [member("v", text="overwritten")],
        ],
        "a hard link to outside": [[member("v", tarfile.LNKTYPE, link=f"{outside}/victim"), member("v", text="x")]],
        "a hard link through a link": [[away], [member("v", tarfile.LNKTYPE, link="./away/victim")]],
        "a name that climbs": [[member(way + "/made", text="x")]],
        "an absolute name": [[member(f"/{outside}/made", text="x")]],
        "a device": [[member("dev/mem", tarfile.CHRTYPE)]],
        "a pipe": [[member("pipe", tarfile.FIFOTYPE)]],
        "a file that gives rights": [[member("bin/su", text="x", mode=0o6755)]],
        "a folder that gives rights": [[member("bin", tarfile.DIRTYPE, mode=0o7777), member("bin/a", text="x")]],
        "a name with orders": [[member('a"\nwrite /etc/passwd b', text="x")]],
    }  # fmt: skip


@pytest.mark.parametrize("what", sorted(tries(Path("/"))))
def test_a_package_reaches_nothing_outside_and_leaves_no_rights(reached: Path, outside: Path, what: str) -> None:
    before = sorted(str(path) for path in reached.rglob("*"))
    debs = [a_deb(reached, *members, name=f"p{number}") for number, members in enumerate(tries(outside)[what])]
    uids = set()
    with workshop() as shop:
        lent = [shop.lend(deb, f"{number}.deb") for number, deb in enumerate(debs)]
        (shop.path / "root").mkdir(mode=0o777)
        (shop.path / "root").chmod(0o777)
        root = shop.path / "root"

        def work(_: unprivileged.Say) -> None:
            for deb in lent:
                unpack(deb, root)

        try:
            shop.do(work, print)
        except StorageError as error:
            assert "is no place in a package" in str(error) or "is a device or a pipe" in str(error) or (
                "is no file of the package" in str(error)
            )  # fmt: skip
        for name, _ in tree(root):
            found = (root / name).lstat()
            assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), name
            assert stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode), name
            uids.add(found.st_uid)
    assert (outside / "victim").read_text() == TEXT
    assert (outside / "victim").stat().st_nlink == 1
    assert stat.S_IMODE(outside.stat().st_mode) == 0o777
    assert [path.name for path in outside.iterdir()] == ["victim"]
    after = sorted(str(path) for path in reached.rglob("*"))
    assert after == sorted([*before, *map(str, debs)])
    assert uids <= {pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()}
    assert not shop.path.exists()


def test_links_of_a_package_lead_where_they_lead_in_the_guest(reached: Path) -> None:
    members = [
        member("usr/bin", tarfile.DIRTYPE), member("usr/bin/a-1", text="one", mode=0o4755),
        member("usr/bin/a", tarfile.SYMTYPE, link="/usr/bin/a-1"),
        member("usr/bin/b", tarfile.LNKTYPE, link="./usr/bin/a-1"),
        member("bin", tarfile.DIRTYPE), member("bin/c", text="three"), member("tmp", tarfile.DIRTYPE, mode=0o1777),
    ]  # fmt: skip
    (reached / "root/usr/bin").mkdir(parents=True)
    (reached / "root/bin").symlink_to("usr/bin")
    unpack(a_deb(reached, *members), reached / "root", without=["./tmp"])
    assert sorted(path.name for path in (reached / "root/usr/bin").iterdir()) == ["a", "a-1", "b", "c"]
    assert (reached / "root/bin").is_symlink()
    assert (reached / "root/usr/bin/b").read_text() == "one"
    assert (reached / "root/usr/bin/a").readlink() == Path("/usr/bin/a-1")
    assert packages.inside(reached / "root", "/bin/a") == reached / "root/usr/bin/a-1"
    assert stat.S_IMODE((reached / "root/usr/bin/a-1").stat().st_mode) == 0o755
    assert not (reached / "root/tmp").exists()


def test_a_package_of_debian_builders_own_making_is_the_same(reached: Path) -> None:
    """dpkg-deb --build, compressed as Debian's are."""
    need_program("dpkg-deb", "dpkg")
    (reached / "p/DEBIAN").mkdir(parents=True)
    (reached / "p/DEBIAN/control").write_text(
        "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    )
    (reached / "p/usr/bin").mkdir(parents=True)
    (reached / "p/usr/bin/su").write_text("x")
    (reached / "p/usr/bin/su").chmod(0o4755)
    (reached / "p/usr/bin/far").symlink_to("/etc/passwd")
    subprocess.run(["dpkg-deb", "--build", "p", "."], cwd=reached, check=True, capture_output=True)
    (reached / "root").mkdir()
    unpack(reached / "p_1_all.deb", reached / "root")
    assert stat.S_IMODE((reached / "root/usr/bin/su").stat().st_mode) == 0o755
    assert (reached / "root/usr/bin/far").is_symlink()


def test_root_takes_only_files_that_are_the_accounts_own(reached: Path) -> None:
    need_root()
    (reached / "secret").write_text(TEXT)
    (reached / "secret").chmod(0o600)
    for what in ("link", "pipe", "folder"):

        def work(_: unprivileged.Say, what: str = what) -> None:
            made = shop.own / "made"
            made.mkdir()
            (made / "fine").write_text("x")
            (made / "fine").chmod(0o4755)
            if what == "link":
                (made / "other").symlink_to(reached / "secret")
            elif what == "pipe":
                os.mkfifo(made / "other")
            else:
                (made / "a/b/c/d").mkdir(parents=True)

        with workshop() as shop:
            shop.do(work, print)
            with pytest.raises(StorageError):
                shop.take("made", reached / f"taken-{what}")
        taken = reached / f"taken-{what}"
        assert all(stat.S_IMODE(path.lstat().st_mode) in {0o644, 0o755} for path in taken.rglob("*"))
        assert TEXT not in "".join(path.read_text() for path in taken.rglob("*") if path.is_file())
