"""The version of a package that a host has installed: by the lists of dpkg and of RPM, and those of a sosreport.

RPM's database is SQLite since 4.16; before it was Berkeley DB, and SUSE has one of its own (ndb). A header holds name,
version and release one behind the other, and is looked for as such. A database may keep a header that was replaced: the
newest version counts.

Sources: deb-version(7), dpkg-query(1); rpm: lib/header.cc (the data of a header).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hugewise.audit.root import Root

_MOST = 256 << 20
_RPM = tuple(
    f"{top}/{name}"
    for top in ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
    for name in ("rpmdb.sqlite", "Packages.db", "Packages")
)
_LISTS = ("/installed-rpms", "/sos_commands/rpm/package-data", "/var/log/rpmpkgs")
_TEXT = r"[\w.+~^]{1,64}"


def version_of(root: Root, names: Sequence[str]) -> str | None:
    """Return the version, without epoch and revision, of the first of these packages that is installed; None: not
    known.
    """
    for found in (_dpkg, _rpm, _listed):
        version = next(found(root, names), None)
        if version is not None:
            return version
    return None


def upstream(version: str) -> str:
    """Return the version without epoch and revision: `1:8.0.4-1+b2` is 8.0.4."""
    return version.rpartition(":")[2].partition("-")[0]


def _dpkg(root: Root, names: Sequence[str]) -> Iterator[str]:
    # a removed package may have left its settings files
    parts = [f"/var/lib/dpkg/status.d/{name}" for name in root.names("/var/lib/dpkg/status.d")]
    for path in ("/var/lib/dpkg/status", *parts):
        for stanza in re.split(r"\n[ \t]*\n", root.text(path, _MOST) or ""):
            package = re.search(r"^Package: *(\S{1,200}) *$", stanza, re.MULTILINE)
            if package is None or package[1] not in names:
                continue
            status = re.search(r"^Status: *(.{1,100}) *$", stanza, re.MULTILINE)
            version = re.search(r"^Version: *(\S{1,200}) *$", stanza, re.MULTILINE)
            gone = status is not None and status[1].split()[-1] in ("config-files", "not-installed", "half-installed")
            if version is not None and not gone:
                yield upstream(version[1])


def _rpm(root: Root, names: Sequence[str]) -> Iterator[str]:
    pattern = re.compile(rf"\0(?:{'|'.join(map(re.escape, names))})\0({_TEXT})\0{_TEXT}\0".encode("ascii"))
    for path in _RPM:
        data = root.data(path, _MOST) if root.there(path) else None
        versions = [match.decode("ascii", "replace") for match in pattern.findall(data or b"")]
        if versions:
            yield max(versions, key=lambda version: [int(number) for number in re.findall(r"\d{1,9}", version)])


def _listed(root: Root, names: Sequence[str]) -> Iterator[str]:
    """Yield the packages of a sosreport, as `rpm -qa` and `dpkg -l` have printed them."""
    wanted = "|".join(map(re.escape, names))
    rpm = re.compile(rf"^(?:{wanted})-(?:\d{{1,4}}:)?({_TEXT})-{_TEXT}(?:\s|$)", re.MULTILINE)
    deb = re.compile(rf"^[hi]i\s+(?:{wanted})(?::\w{{1,20}})?\s+(\S{{1,100}})", re.MULTILINE)
    for path in _LISTS:
        yield from (upstream(match) for match in rpm.findall(root.text(path, _MOST) or ""))
    yield from (upstream(match) for match in deb.findall(root.text("/installed-debs", _MOST) or ""))
