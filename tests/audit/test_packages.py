"""Versions of packages by the lists of dpkg and RPM, in each of their forms."""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from hugewise.audit.packages import upstream, version_of
from hugewise.audit.root import Root
from tests.audit.conftest import Audit
from tests.build.trees import Tree

NAMES = ("mongodb-org-server", "mongodb-server")


def header(name: str, version: str) -> bytes:
    """An RPM header: name, version and release, with entries that point into their data."""
    words = [(1000, name), (1001, version), (1002, "1.el9")]
    data, entries = b"C\0", b""
    for tag, text in words:
        entries += struct.pack(">IIII", tag, 6, len(data), 1)
        data += text.encode() + b"\0"
    return struct.pack(">II", len(words), len(data)) + entries + data


def database(path: Path, *blobs: tuple[str, bytes]) -> bytes:
    """As RPM makes one: with a log beside it, which is not copied."""
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        made.execute("CREATE TABLE Name (key TEXT NOT NULL, hnum INTEGER NOT NULL, idx INTEGER NOT NULL)")
        for number, (name, blob) in enumerate(blobs, 1):
            made.execute("INSERT INTO Packages VALUES (?, ?)", (number, blob))
            made.execute("INSERT INTO Name VALUES (?, ?, 0)", (name, number))
        made.commit()
    return path.read_bytes()


def of_dpkg(*stanzas: str) -> str:
    return "\n\n".join(("Package: x\nStatus: install ok installed\nVersion: 1", *stanzas)) + "\n"


@pytest.mark.parametrize(
    ("path", "content", "version"),
    [
        ("/var/lib/dpkg/status", of_dpkg("Package: mongodb-org-server\nVersion: 8.0.4"), "8.0.4"),
        ("/var/lib/dpkg/status", of_dpkg("Package: mongodb-server\nVersion: 1:7.0.2-3+b1"), "7.0.2"),
        (
            "/var/lib/dpkg/status",
            of_dpkg("Package: mongodb-org-server\nStatus: deinstall ok config-files\nVersion: 8.0.4"),
            None,
        ),
        ("/var/lib/dpkg/status", of_dpkg("Package: mongodb-org-server-tools\nVersion: 8.0.4"), None),
        ("/var/lib/dpkg/status.d/mongo", "Package: mongodb-org-server\nVersion: 8.2.0\n", "8.2.0"),
        ("/var/lib/rpm/Packages", b"\1\2C\0mongodb-org-server\x008.0.4\x001.el9\0MongoDB\0", "8.0.4"),
        ("/usr/lib/sysimage/rpm/Packages.db", b"C\0mongodb-org-server\x006.0.1\x001.suse\0", "6.0.1"),
        ("/installed-rpms", "mongodb-org-server-8.0.4-1.el9.x86_64     Tue 4 Nov 2025\n", "8.0.4"),
        ("/installed-rpms", "mongodb-org-tools-8.0.4-1.el9.x86_64     Tue 4 Nov 2025\n", None),
        ("/installed-debs", "ii  mongodb-org-server  8.0.4  amd64  server\n", "8.0.4"),
        ("/installed-debs", "rc  mongodb-org-server  8.0.4  amd64  server\n", None),
    ],
)
def test_lists_of_packages(path: str, content: str | bytes, version: str | None, tree: Tree) -> None:
    tree.put(path, content)
    assert version_of(Root(tree.path), NAMES) == version


def test_the_database_of_rpm(tree: Tree, tmp_path: Path) -> None:
    blobs = (("glibc", header("glibc", "2.34")), ("mongodb-org-server", header("mongodb-org-server", "8.0.4")))
    tree.put("/var/lib/rpm/rpmdb.sqlite", database(tmp_path / "db", *blobs))
    assert version_of(Root(tree.path), NAMES) == "8.0.4"
    assert version_of(Root(tree.path), ("postgresql",)) is None


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 200, b"x" * 200])
def test_a_database_that_is_none_is_told(content: bytes, tree: Tree) -> None:
    tree.put("/var/lib/rpm/rpmdb.sqlite", content)
    root = Root(tree.path)
    assert version_of(root, NAMES) is None
    assert [line for line in root.unread() if "rpmdb.sqlite: it is not read" in line] or len(content) < 100


@pytest.mark.parametrize(
    "blob", [b"", b"x", struct.pack(">II", 1 << 31, 0), header("other", "9"), header("x", "1")[:30]]
)
def test_a_header_that_is_none_says_nothing(blob: bytes, tree: Tree, tmp_path: Path) -> None:
    tree.put("/var/lib/rpm/rpmdb.sqlite", database(tmp_path / "db", ("mongodb-org-server", blob)))
    assert version_of(Root(tree.path), NAMES) is None


def test_mongodb_of_an_rpm_and_of_no_list_at_all(tree: Tree, audit: Audit) -> None:
    tree.put("/etc/mongod.conf", "setParameter:\n  tcmallocEnableBackgroundThread: true\n")
    tree.service("mongod", "ExecStart=/usr/bin/mongod --config /etc/mongod.conf")
    assert "version 8.0 or newer, by tcmallocEnableBackgroundThread" in " ".join(audit("--traps")[1].split())
    tree.put("/installed-rpms", "mongodb-org-server-8.2.1-1.el9.x86_64\n")
    assert "version 8.2.1 while enabled = madvise" in " ".join(audit("--traps")[1].split())


def test_what_a_version_is_without_epoch_and_revision() -> None:
    assert [upstream(text) for text in ("1:8.0.4-1+b2", "8.0.4", "2:15~rc1-0.1")] == ["8.0.4", "8.0.4", "15~rc1"]
