"""Debian packages: archives, names and versions by a private apt; unpacked below a folder; what is said meanwhile."""

import io
import os
import pwd
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise import reading, unprivileged
from hugewise.cli.main import cli
from hugewise.errors import StorageError, UserError
from hugewise.guests import debian
from hugewise.guests.cache import Sandbox, open_sandbox
from hugewise.guests.debian import unpack, walk
from hugewise.unprivileged import Finished, Say
from tests.requirements import need, need_program, need_root

# As `apt-get install --print-uris` wrote it for redis-tools and for what it needs.
SAID = """Reading package lists...
Building dependency tree...
The following NEW packages will be installed:
  redis-tools zlib1g
Need to get 1,233 kB of archives.
'http://archive.example/pool/z/zlib1g_1.3%2b1_arm64.deb' zlib1g_1%3a1.3.dfsg+really1.3.1-1+b1_arm64.deb 85116 \
SHA256:209aa5cf671e97b9eb0410844fa6df4cae2e75b0c72e7802ab6c8ece13e6ddef
'http://archive.example/pool/r/redis-tools_8.0.2_arm64.deb' redis-tools_5%3a8.0.2-3+deb13u2_arm64.deb 1148348 \
SHA256:207fae4f71895f142c99f06a19bd4b26c4a7aabb8615e82128181c9cebe6a7b0
"""


@pytest.mark.parametrize(
    ("listed", "uri"),
    [
        (
            "Debian main bookworm-security http://a.example/debian-security/\nDebian main bookworm http://a.example/d/\n",
            "http://a.example/d",
        ),
        ("Docker main bookworm http://b.example/debian/\n", "http://deb.debian.org/debian"),
        ("", "http://deb.debian.org/debian"),
    ],
)
def test_the_archive_is_that_of_this_machine_where_it_is_debians(
    listed: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_program("apt-get", "apt")
    monkeypatch.setattr(unprivileged, "run", lambda *_: Finished(0, listed, ""))
    debian._archive_uri.cache_clear()
    text = debian.archive("trixie", "arm64", sources=True)
    debian._archive_uri.cache_clear()
    assert text.splitlines()[:3] == ["Types: deb-src", f"URIs: {uri}", "Suites: trixie"]


def test_what_apt_says_is_read() -> None:
    zlib, redis = debian.parse_uris(SAID, ("trixie", "arm64"))
    assert (zlib.name, zlib.version, zlib.arch, zlib.size) == (
        "zlib1g", "1:1.3.dfsg+really1.3.1-1+b1", "arm64", 85116,
    )  # fmt: skip
    assert redis.version == "5:8.0.2-3+deb13u2"
    assert redis.sha256.startswith("207fae4f")
    assert redis.file == "redis-tools_5%3a8.0.2-3+deb13u2_arm64.deb"


def test_the_private_state_names_nothing_of_the_machines_own_and_clears_its_hooks() -> None:
    sandbox = Sandbox(Path("/c/made"), None)
    lines = debian.configuration(sandbox, Path("/c/made/lent/lists"), "arm64").splitlines()
    named = [line for line in lines if line.startswith("Dir::")]
    assert named
    assert all("/c/made/" in line or '"/dev/null"' in line for line in named)
    assert "#clear DPkg::Post-Invoke;" in lines
    assert "#clear APT::Update::Post-Invoke;" in lines
    assert not [line for line in lines if "Sandbox" in line]


@pytest.mark.parametrize("name", ["-oDir=/", "hello world", "a;b", "UPPER", ""])
def test_a_name_that_is_no_package_or_no_suite_never_reaches_apt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_state", lambda *_, **__: None)
    with pytest.raises(UserError, match="no name of a Debian"):
        debian.resolve([name], "trixie", "arm64")
    with pytest.raises(UserError, match="no name of a Debian"):
        debian.source(name, "trixie")
    monkeypatch.undo()
    with pytest.raises(UserError, match="no suite of Debian"):
        debian.resolve(["hello"], "trixie main\nTrusted: yes", "arm64")


def test_the_path_of_sources_is_all_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a shell to take it; what is fetched meanwhile is told beside."""

    def fetched(package: str, suite: str, say: Say) -> Path:
        say("fetching")
        return tmp_path / f"{package}_{suite}.orig.tar.xz"

    monkeypatch.setattr(debian, "source", fetched)
    done = CliRunner().invoke(cli, ["guest", "source", "gdb", "--suite", "bookworm"], catch_exceptions=False)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/gdb_bookworm.orig.tar.xz\n", "fetching\n")


def test_a_broken_package_is_said_to_be_one(tmp_path: Path) -> None:
    need_program("dpkg-deb", "dpkg")
    (tmp_path / "bad.deb").write_bytes(b"no package")
    with pytest.raises(StorageError, match=r"cannot unpack .*bad\.deb"):
        debian.unpack(tmp_path / "bad.deb", tmp_path)


def machines_own() -> list[tuple[str, int]]:
    """The files of the machine's apt and dpkg, and when each was written."""
    folders = ("/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt", "/etc/apt")
    paths = (Path(top, name) for folder in folders for top, _, names in os.walk(folder) for name in names)
    return sorted((str(path), path.lstat().st_mtime_ns) for path in paths)


@pytest.mark.soak  # it reads the lists of an archive and fetches from it
def test_a_small_package_of_another_architecture_is_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("apt-get", "apt")
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    before, lines = machines_own(), list[str]()
    try:
        resolved = debian.resolve(["hello"], "trixie", "arm64", lines.append)
    except UserError as error:
        # The lists are the first that is asked of the archive: without them nothing of this can be tried.
        need("cannot read the package lists" not in error.message, f"Debian's archive through apt ({error.message})")
        raise
    assert {"hello", "libc6"} <= {package.name for package in resolved}
    hello = next(package for package in resolved if package.name == "hello")
    assert hello.arch == "arm64"
    paths = debian.fetch([hello], lines.append)
    assert [path.name for path in paths] == [hello.file]
    assert lines[-1].startswith("fetching 1 packages of trixie for arm64")
    lines.clear()
    assert debian.fetch([hello], lines.append) == paths
    assert debian.resolve(["hello"], "trixie", "arm64", lines.append) == resolved
    assert lines == []  # both from the cache
    (tmp_path / "root").mkdir()
    debian.unpack(paths[0], tmp_path / "root", without=["./usr/share/*"])
    program = (tmp_path / "root/usr/bin/hello").read_bytes()
    assert program[18:20] == b"\xb7\x00"  # AArch64, elf(5)
    assert not (tmp_path / "root/usr/share/doc").exists()
    with pytest.raises(UserError, match="has no package for arm64 named redis-serverr") as raised:
        debian.resolve(["redis-serverr"], "trixie", "arm64")
    assert "apt-cache search" in str(raised.value.hint)
    assert machines_own() == before


# A solver of the account's, which apt starts whenever it resolves; and what there is to be resolved.
PREPARED = """
Dir::State "ENTRY/state/";
Dir::State::status "ENTRY/status";
Dir::Cache "ENTRY/cache/";
Dir::Etc::sourcelist "ENTRY/main.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Bin::solvers:: "FOLDER";
APT::Solver "solver";
APT::Solver::RunAsUser "root";
"""
LISTED = """Package: hello
Version: 1
Architecture: amd64
Maintainer: a
Description: b
Filename: ./hello.deb
Size: 1
SHA256: 1111111111111111111111111111111111111111111111111111111111111111
"""


def test_a_prepared_apt_conf_is_never_read(reached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache of who called `su`, which keeps XDG_CACHE_HOME."""
    need_root()
    need_program("apt-get", "apt")
    for name in ("HUGEWISE_CACHE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(debian, "_archive_uri", lambda: "file:/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(reached / "home"))
    text = debian.archive("bookworm", "amd64")
    entry = reached / "home/hugewise/apt" / reading.key_digest(text.encode())[:32]
    for name in ("state/lists/partial", "cache/archives/partial"):
        (entry / name).mkdir(parents=True)
    solver, told = reached / "solver", reached / "told"
    solver.write_text(f"#!/bin/sh\nid -u > {told}/as\n")
    solver.chmod(0o755)
    told.mkdir()
    told.chmod(0o1777)
    (entry / "apt.conf").write_text(PREPARED.replace("FOLDER", str(reached)).replace("ENTRY", str(entry)))
    (entry / "main.sources").write_text(text)
    (entry / "state/lists/_nowhere_dists_bookworm_main_binary-amd64_Packages").write_text(LISTED)
    (entry / "state/lists/_nowhere_dists_bookworm_InRelease").write_text("Origin: a\nSuite: bookworm\n")
    for name in ("lists-are-read", "status"):
        (entry / name).touch()
    for path in (reached / "home", *(reached / "home").rglob("*")):
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UserError, match="does not use the cache") as raised:
        debian.resolve(["hello"], "bookworm", "amd64")
    assert list(told.iterdir()) == [], raised.value


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
    with open_sandbox() as sandbox:
        lent = [sandbox.lend(deb, f"{number}.deb") for number, deb in enumerate(debs)]
        (sandbox.path / "root").mkdir(mode=0o777)
        (sandbox.path / "root").chmod(0o777)
        root = sandbox.path / "root"

        def work(_: unprivileged.Say) -> None:
            for deb in lent:
                unpack(deb, root)

        try:
            sandbox.do(work, print)
        except StorageError as error:
            assert "is no place in a package" in str(error) or "is a device or a pipe" in str(error) or (
                "is no file of the package" in str(error)
            )  # fmt: skip
        for name, _ in walk(root):
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
    assert not sandbox.path.exists()


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
    assert debian.resolve_inside(reached / "root", "/bin/a") == reached / "root/usr/bin/a-1"
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
            made = sandbox.own / "made"
            made.mkdir()
            (made / "fine").write_text("x")
            (made / "fine").chmod(0o4755)
            if what == "link":
                (made / "other").symlink_to(reached / "secret")
            elif what == "pipe":
                os.mkfifo(made / "other")
            else:
                (made / "a/b/c/d").mkdir(parents=True)

        with open_sandbox() as sandbox:
            sandbox.do(work, print)
            with pytest.raises(StorageError):
                sandbox.take("made", reached / f"taken-{what}")
        taken = reached / f"taken-{what}"
        assert all(stat.S_IMODE(path.lstat().st_mode) in {0o644, 0o755} for path in taken.rglob("*"))
        assert TEXT not in "".join(path.read_text() for path in taken.rglob("*") if path.is_file())
