"""cpio archives in the `newc` form that the kernel unpacks as an initramfs. Pure.

The form is that of Documentation/driver-api/early-userspace/buffer-format.rst of the kernel. Everything in it is fixed
(inode numbers count up, the time is 0, the owner is root), so that the same entries give the same bytes. The kernel
unpacks archives that follow each other, so that `one + other` is an initramfs with what both hold.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from hugewise.errors import HugewiseError

__all__ = ["MAGIC", "TRAILER", "ArchiveEntry", "archive", "device", "file", "folder"]

MAGIC: Final = b"070701"
TRAILER: Final = "TRAILER!!!"
_BLOCK: Final = 512  # an archive ends at a multiple of it, zeros between


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or device (major, minor); `path` is relative to the root."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def file(path: str, data: bytes, mode: int = 0o644) -> ArchiveEntry:
    """A regular file."""
    return ArchiveEntry(path=path, mode=stat.S_IFREG | mode, data=data)


def folder(path: str, mode: int = 0o755) -> ArchiveEntry:
    """A folder."""
    return ArchiveEntry(path=path, mode=stat.S_IFDIR | mode)


def device(path: str, major: int, minor: int, mode: int = 0o600) -> ArchiveEntry:
    """A character device."""
    return ArchiveEntry(path=path, mode=stat.S_IFCHR | mode, device=(major, minor))


def archive(entries: Iterable[ArchiveEntry]) -> bytes:
    """The archive of the entries in their order; folders above them that are not named come before, with mode 0755."""
    blocks = [_member(entry, number) for number, entry in enumerate(_with_folders(entries), start=1)]
    data = b"".join([*blocks, _member(ArchiveEntry(path=TRAILER, mode=0), 0)])
    return data + bytes(-len(data) % _BLOCK)


def _with_folders(entries: Iterable[ArchiveEntry]) -> Iterator[ArchiveEntry]:
    seen: set[str] = set()
    for entry in entries:
        parts = entry.path.strip("/").split("/")
        for above in ("/".join(parts[:length]) for length in range(1, len(parts))):
            if above not in seen:
                seen.add(above)
                yield folder(above)
        path = "/".join(parts)
        if path in seen and not stat.S_ISDIR(entry.mode):
            raise HugewiseError(f"an archive has {path} twice")
        if path not in seen:
            seen.add(path)
            yield msgspec.structs.replace(entry, path=path)


def _member(entry: ArchiveEntry, number: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    head = MAGIC + b"".join(b"%08x" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + entry.data + bytes(-len(entry.data) % 4)
