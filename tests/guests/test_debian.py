"""Debian packages: which archive, what apt says, and one small package had for real."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian, packages
from hugewise.guests.debian import AptSource
from hugewise.guests.sandbox import Sandbox
from hugewise.unprivileged import Say
from tests.requirements import need, need_program, need_root

STANZAS = """
Types: deb deb-src
# a mirror nearby
URIs: http://archive.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Check-Valid-Until: no
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://archive.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main
"""

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


def test_the_archive_of_a_sources_file_is_the_one_with_a_whole_suite() -> None:
    found = debian.main_archive({"/etc/apt/sources.list.d/debian.sources": STANZAS})
    assert found.uris == ("http://archive.example/debian",)
    assert found.suites == ("bookworm", "bookworm-updates")
    assert dict(found.options)["signed-by"] == "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_the_same_archive_for_another_suite_keeps_its_options() -> None:
    found = debian.main_archive({"debian.sources": STANZAS})
    assert debian.sources_stanza(found, "trixie", "arm64", sources=False).splitlines() == [
        "Types: deb",
        "URIs: http://archive.example/debian",
        "Suites: trixie",
        "Components: main",
        "Architectures: arm64",
        "Targets: Packages",
        "Check-Valid-Until: no",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]
    assert "Types: deb-src\n" in debian.sources_stanza(found, "trixie", "arm64", sources=True)


def test_an_entry_of_one_line_gives_the_same() -> None:
    text = """
    # deb http://off.example/debian bookworm main
    deb cdrom:[Debian 12]/ bookworm main
    deb [arch=amd64,arm64 signed-by=/k/debian-archive-keyring.gpg trusted=yes] mirror+file:/etc/mirrors trixie main # ok
    deb-src http://archive.example/debian bookworm main
    """
    found = debian.main_archive({"/etc/apt/sources.list": text})
    assert found == AptSource(
        ("deb",), ("mirror+file:/etc/mirrors",), ("trixie",), ("main",),
        (("architectures", "amd64 arm64"), ("signed-by", "/k/debian-archive-keyring.gpg"), ("trusted", "yes")),
    )  # fmt: skip
    written = debian.sources_stanza(found, "bookworm", "amd64", sources=False)
    assert next(debian.stanzas(written)).uris == found.uris
    assert "Trusted: yes" in written
    assert "Architectures: amd64\n" in written


def test_a_key_within_the_entry_is_kept_whole() -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEZ\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"Types: deb\nURIs: http://archive.example/debian\nSuites: trixie\nComponents: main\nSigned-By:{key}\n"
    found = debian.main_archive({"a.sources": text})
    assert f"Signed-By: {key}" in debian.sources_stanza(found, "bookworm", "amd64", sources=False)


def test_other_archives_that_use_debians_names_come_after_debians() -> None:
    files = {
        "/etc/apt/sources.list.d/a.list": "deb [signed-by=/k/tools.gpg] https://tools.example bookworm main",
        "/etc/apt/sources.list.d/b.list": "deb http://archive.example/debian bookworm main",
    }
    assert debian.main_archive(files).uris == ("http://archive.example/debian",)


def test_no_archive_of_debian_says_what_was_read_and_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tmp_path / "my.list"
    chosen.write_text("deb http://archive.example/ubuntu jammy main\n")
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(chosen))
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=f"name no Debian archive .read: {chosen}") as raised:
        debian.resolve(["hello"], "trixie", "arm64")
    assert "HUGEWISE_APT_SOURCES" in str(raised.value.hint)


def test_root_takes_no_archive_that_another_account_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`su` keeps the environment: an archive that is `trusted=yes` would choose what root's guests boot."""
    need_root()
    chosen = tmp_path / "my.list"
    chosen.write_text("deb [trusted=yes] http://archive.example/debian bookworm main\n")
    os.chown(chosen, pwd.getpwnam("nobody").pw_uid, -1)
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(chosen))
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="HUGEWISE_APT_SOURCES = .* belongs to the account"):
        debian.resolve(["hello"], "bookworm", "amd64")


def test_what_apt_says_is_read() -> None:
    zlib, redis = debian.parse_uris(SAID, ("trixie", "arm64"))
    assert (zlib.name, zlib.version, zlib.arch, zlib.size) == (
        "zlib1g", "1:1.3.dfsg+really1.3.1-1+b1", "arm64", 85116,
    )  # fmt: skip
    assert redis.version == "5:8.0.2-3+deb13u2"
    assert redis.sha256.startswith("207fae4f")
    assert redis.file == "redis-tools_5%3a8.0.2-3+deb13u2_arm64.deb"


def test_the_private_state_names_nothing_of_the_machines_own_and_clears_its_hooks() -> None:
    shop = Sandbox(Path("/c/made"), None)
    lines = debian.configuration(shop, Path("/c/made/lent/lists"), "arm64").splitlines()
    named = [line for line in lines if line.startswith("Dir::")]
    assert named
    assert all("/c/made/" in line or '"/dev/null"' in line for line in named)
    assert "#clear DPkg::Post-Invoke;" in lines
    assert "#clear APT::Update::Post-Invoke;" in lines
    assert not [line for line in lines if "Sandbox" in line]


@pytest.mark.parametrize("name", ["-oDir=/", "hello world", "a;b", "UPPER", ""])
def test_a_name_that_is_no_package_never_reaches_apt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "_state", lambda *_, **__: None)
    with pytest.raises(UserError, match="no name of a Debian"):
        debian.resolve([name], "trixie", "arm64")
    with pytest.raises(UserError, match="no name of a Debian"):
        debian.source(name, "trixie")


def test_the_path_of_sources_is_all_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a shell to take it; what is fetched meanwhile is told beside."""

    def fetched(package: str, suite: str, say: Say) -> Path:
        say("fetching")
        return tmp_path / f"{package}_{suite}.orig.tar.xz"

    monkeypatch.setattr(debian, "source", fetched)
    done = CliRunner().invoke(cli, ["guest", "source", "gdb", "--suite", "bookworm"], catch_exceptions=False)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/gdb_bookworm.orig.tar.xz\n", "fetching\n")


def test_a_suite_is_a_word() -> None:
    with pytest.raises(UserError, match="no suite of Debian"):
        debian.resolve(["hello"], "trixie main\nTrusted: yes", "arm64")


def test_a_broken_package_is_said_to_be_one(tmp_path: Path) -> None:
    need_program("dpkg-deb", "dpkg")
    (tmp_path / "bad.deb").write_bytes(b"no package")
    with pytest.raises(StorageError, match=r"cannot unpack .*bad\.deb"):
        packages.unpack(tmp_path / "bad.deb", tmp_path)


def machines_own() -> list[tuple[str, int]]:
    """The files of the machine's apt and dpkg, and when each was written."""
    folders = ("/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt", "/etc/apt")
    paths = (Path(top, name) for folder in folders for top, _, names in os.walk(folder) for name in names)
    return sorted((str(path), path.lstat().st_mtime_ns) for path in paths)


@pytest.mark.soak  # it reads the lists of an archive and fetches from it
def test_a_small_package_of_another_architecture_is_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_program("apt-get", "apt")
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    before, told = machines_own(), list[str]()
    try:
        found = debian.resolve(["hello"], "trixie", "arm64", told.append)
    except UserError as error:
        # The lists are the first that is asked of the archive: without them nothing of this can be tried.
        need("cannot read the package lists" not in error.message, f"Debian's archive through apt ({error.message})")
        raise
    assert {"hello", "libc6"} <= {package.name for package in found}
    hello = next(package for package in found if package.name == "hello")
    ahead = packages.package_sizes(["hello"], "trixie", "arm64")
    assert ahead is not None and ahead.unpacked is not None
    assert sorted(ahead.packages, key=lambda package: package.name) == found
    assert ahead.unpacked > packages.to_fetch(ahead.packages) == sum(package.size for package in found)
    assert hello.arch == "arm64"
    paths = debian.fetch([hello], told.append)
    assert [path.name for path in paths] == [hello.file]
    assert told[-1].startswith("fetching 1 packages of trixie for arm64")
    told.clear()
    assert debian.fetch([hello], told.append) == paths
    assert debian.resolve(["hello"], "trixie", "arm64", told.append) == found
    assert told == []  # both from the cache
    assert packages.to_fetch(found) == sum(package.size for package in found) - hello.size
    (tmp_path / "root").mkdir()
    packages.unpack(paths[0], tmp_path / "root", without=["./usr/share/*"])
    program = (tmp_path / "root/usr/bin/hello").read_bytes()
    assert program[18:20] == b"\xb7\x00"  # AArch64, elf(5)
    assert not (tmp_path / "root/usr/share/doc").exists()
    with pytest.raises(UserError, match="has no package for arm64 named redis-serverr") as raised:
        debian.resolve(["redis-serverr"], "trixie", "arm64")
    assert "redis-server" in str(raised.value.hint)
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


@pytest.mark.parametrize("whose", ["another account's", "root's"])
def test_a_prepared_apt_conf_is_never_read(reached: Path, monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    """In the cache of who called `su`, which keeps XDG_CACHE_HOME; and in root's own, whoever put it there."""
    need_root()
    need_program("apt-get", "apt")
    sources = reached / "my.list"
    sources.write_text("deb [trusted=yes] file:/nowhere bookworm main\n")
    for name in ("HUGEWISE_CACHE", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(sources))
    monkeypatch.setenv("XDG_CACHE_HOME", str(reached / "home"))
    archive = debian.main_archive({str(sources): sources.read_text()})
    text = debian.sources_stanza(archive, "bookworm", "amd64", sources=False)
    entry = reached / "home/hugewise/apt" / cache.digest(text.encode())[:32]
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
    if whose == "another account's":
        for path in (reached / "home", *(reached / "home").rglob("*")):
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(UserError, match="does not use the cache|cannot read the package lists") as raised:
        debian.resolve(["hello"], "bookworm", "amd64")
    assert list(told.iterdir()) == [], raised.value
