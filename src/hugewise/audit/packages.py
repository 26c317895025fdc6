"""The version of a package that a host has installed: by the lists of dpkg and of RPM, and those of a sosreport.

RPM's database is SQLite since 4.16; before it was Berkeley DB, and SUSE has one of its own (ndb). A header holds name,
version and release one behind the other; in the two older forms they are looked for as such, the last one found counts.

Sources: deb-version(7), dpkg-query(1); rpm: lib/backend/sqlite.cc, lib/header.cc (the data of a header), rpmtag.h.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing

from hugewise.audit.root import Root

_MOST = 256 << 20
_MOST_HEADERS = 64
_EACH_STEP, _MOST_STEPS = 10_000, 1000
_STATUS = ("/var/lib/dpkg/status",)
_SQLITE = tuple(f"{top}/rpmdb.sqlite" for top in ("/var/lib/rpm", "/usr/lib/sysimage/rpm"))
_RAW = tuple(
    f"{top}/{name}" for top in ("/var/lib/rpm", "/usr/lib/sysimage/rpm") for name in ("Packages.db", "Packages")
)
_LISTS = ("/installed-rpms", "/sos_commands/rpm/package-data", "/var/log/rpmpkgs")
_DEBS = ("/installed-debs",)
_HEAD = struct.Struct(">II")
_ENTRY = struct.Struct(">IIII")
_NAME, _VERSION = 1000, 1001
_TEXT = r"[\w.+~^]{1,64}"


def version_of(root: Root, names: Sequence[str]) -> str | None:
    """Return the version of the first installed of these packages, without epoch and revision; None: not known."""
    for found in (_dpkg, _sqlite, _raw, _listed):
        version = next(found(root, names), None)
        if version is not None:
            return version
    return None


def upstream(version: str) -> str:
    """`1:8.0.4-1+b2` is 8.0.4."""
    return version.rpartition(":")[2].partition("-")[0]


def _dpkg(root: Root, names: Sequence[str]) -> Iterator[str]:
    # a removed package may have left its settings files
    parts = [f"/var/lib/dpkg/status.d/{name}" for name in root.names("/var/lib/dpkg/status.d")]
    for path in (*_STATUS, *parts):
        for stanza in re.split(r"\n[ \t]*\n", root.text(path, _MOST) or ""):
            package = re.search(r"^Package: *(\S{1,200}) *$", stanza, re.MULTILINE)
            if package is None or package[1] not in names:
                continue
            status = re.search(r"^Status: *(.{1,100}) *$", stanza, re.MULTILINE)
            version = re.search(r"^Version: *(\S{1,200}) *$", stanza, re.MULTILINE)
            gone = status is not None and status[1].split()[-1] in ("config-files", "not-installed", "half-installed")
            if version is not None and not gone:
                yield upstream(version[1])


def _sqlite(root: Root, names: Sequence[str]) -> Iterator[str]:
    for path in _SQLITE:
        data = root.data(path, _MOST) if root.there(path) else None
        if data is None or len(data) < 100:
            continue
        # A copy in memory has no log beside it.
        plain = data[:18] + b"\x01\x01" + data[20:]
        try:
            with closing(sqlite3.connect(":memory:")) as database:
                database.deserialize(plain)
                database.execute("PRAGMA trusted_schema = OFF")
                database.set_progress_handler(_Steps(), _EACH_STEP)
                marks = ",".join("?" * len(names))
                rows = database.execute(
                    f"SELECT blob FROM Packages WHERE hnum IN (SELECT hnum FROM Name WHERE key IN ({marks}))",  # noqa: S608
                    tuple(names),
                ).fetchmany(_MOST_HEADERS)
        except sqlite3.Error as error:
            root.tell(path, f"it is not read: {error}")
            continue
        for (blob,) in rows:
            said = _header(blob if isinstance(blob, bytes) else b"")
            if said.get(_NAME) in names and _VERSION in said:
                yield upstream(said[_VERSION])


class _Steps:
    """Ends a query that takes too long: a database is what somebody has put there."""

    def __init__(self) -> None:
        self.taken = 0

    def __call__(self) -> int:
        self.taken += 1
        return self.taken > _MOST_STEPS


def _header(blob: bytes) -> dict[int, str]:
    """Name and version of a header: entries of tag, type, offset and count, and the data that they point into."""
    if len(blob) < _HEAD.size:
        return {}
    entries, size = _HEAD.unpack_from(blob)
    begin = _HEAD.size + entries * _ENTRY.size
    if entries > 1 << 16 or begin + size > len(blob):
        return {}
    found = {}
    for number in range(entries):
        tag, _, offset, _ = _ENTRY.unpack_from(blob, _HEAD.size + number * _ENTRY.size)
        if tag in (_NAME, _VERSION) and offset < size:
            text = blob[begin + offset : begin + min(size, offset + 256)]
            found[tag] = text.partition(b"\0")[0].decode("utf-8", "replace")
    return found


def _raw(root: Root, names: Sequence[str]) -> Iterator[str]:
    wanted = "|".join(map(re.escape, names))
    pattern = re.compile(rf"\0(?:{wanted})\0({_TEXT})\0{_TEXT}\0".encode())
    for path in _RAW:
        data = root.data(path, _MOST) if root.there(path) else None
        found = pattern.findall(data or b"")
        if found:
            yield found[-1].decode("ascii", "replace")


def _listed(root: Root, names: Sequence[str]) -> Iterator[str]:
    """Yield the packages of a sosreport, as `rpm -qa` and `dpkg -l` have printed them."""
    wanted = "|".join(map(re.escape, names))
    rpm = re.compile(rf"^(?:{wanted})-(?:\d{{1,4}}:)?({_TEXT})-{_TEXT}(?:\s|$)", re.MULTILINE)
    deb = re.compile(rf"^[hi]i\s+(?:{wanted})(?::\w{{1,20}})?\s+(\S{{1,100}})", re.MULTILINE)
    for path in _LISTS:
        yield from (upstream(match) for match in rpm.findall(root.text(path, _MOST) or ""))
    for path in _DEBS:
        yield from (upstream(match) for match in deb.findall(root.text(path, _MOST) or ""))
