"""The mappings of a process with what backs them, from the lines of /proc/PID/smaps. Pure.

Source: Documentation/filesystems/proc.rst of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

_HEAD = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) (\S{4}) ([0-9a-f]{1,16}) (\S+) (\d{1,20}) *(.*?)\n?", re.DOTALL)
_FIELDS = {
    b"Rss": "resident",
    b"Anonymous": "anonymous",
    b"AnonHugePages": "huge",
    b"ShmemPmdMapped": "shared_huge",
    b"FilePmdMapped": "file_huge",
    b"Shared_Hugetlb": "pool_shared",
    b"Private_Hugetlb": "pool_private",
    b"KernelPageSize": "page",
    b"Swap": "swapped",
}
_SHMEM = ("/memfd:", "/SYSV", "/dev/zero (deleted)")
_KILOBYTES = re.compile(rb"[0-9]{1,15}")
_LONGEST = 256  # characters of a name


class BackedMapping(msgspec.Struct, kw_only=True):
    """A mapping: a half-open range of addresses, and bytes of it by what backs them.

    anonymous    resident anonymous memory, `huge` of it in pages of the PMD size
    shared_huge  of shared memory in pages of the PMD size; file_huge: of files
    pool         in pages of a hugetlb pool, of `page` bytes each
    eligible     whether the rules allow it a transparent huge page of some size now; None: this kernel does not say
    flags        the kernel's, two letters each: `hg` advised, `nh` advised against
    object       what shared memory is of, from `offset` on: device and inode; None: it is private
    """

    start: int
    end: int
    permissions: str
    name: str
    resident: int = 0
    anonymous: int = 0
    huge: int = 0
    shared_huge: int = 0
    file_huge: int = 0
    pool_shared: int = 0
    pool_private: int = 0
    page: int = 0
    swapped: int = 0
    eligible: bool | None = None
    flags: frozenset[str] = frozenset()
    offset: int = 0
    inode: int = 0
    object: tuple[str, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of addresses."""
        return self.end - self.start

    @property
    def advised(self) -> Literal["huge", "base"] | None:
        """Pages that the program advised for it (madvise); None: it advised nothing."""
        return "huge" if "hg" in self.flags else "base" if "nh" in self.flags else None

    @property
    def pool(self) -> int:
        """Bytes in pages of a pool."""
        return self.pool_shared + self.pool_private

    @property
    def memory(self) -> int:
        """Bytes that a policy may be about: anonymous memory, pages of a pool, and the kernel's own shared memory."""
        shared = self.resident - self.anonymous if self.is_shmem else 0
        return self.anonymous + self.pool + max(0, shared)

    @property
    def is_shmem(self) -> bool:
        """Shared memory that no named file stands behind."""
        return self.permissions.endswith("s") and self.name.startswith(_SHMEM)

    @property
    def called(self) -> str:
        """Name of the mapping, or `anonymous`."""
        return self.name or "anonymous"

    def room(self, size: int) -> int:
        """Return bytes of it in whole blocks of `size`, aligned to it."""
        return max(0, self.end // size - -(-self.start // size)) * size


def backed_mappings(lines: Iterable[bytes]) -> Iterator[BackedMapping]:
    """Yield the mappings in the lines of smaps; fields that this kernel lacks stay 0."""
    mapping: BackedMapping | None = None
    flags: dict[bytes, frozenset[str]] = {}  # few sets, of ever so many mappings
    names: dict[bytes, str] = {}
    for line in lines:
        name, colon, rest = line.partition(b":")
        if colon and (field := _FIELDS.get(name)) is not None:
            number = rest.split(None, 1)[:1]
            if mapping is not None and number and _KILOBYTES.fullmatch(number[0]):
                setattr(mapping, field, int(number[0]) << 10)
        elif name == b"THPeligible":
            if mapping is not None:
                mapping.eligible = rest.strip() == b"1"
        elif name == b"VmFlags":
            if mapping is not None:
                if len(rest) <= _LONGEST and rest not in flags:
                    flags[rest] = frozenset(rest.decode("ascii", "replace").split())
                mapping.flags = flags.get(rest, frozenset())
        elif (head := _HEAD.fullmatch(line)) is not None:
            if mapping is not None:
                yield mapping
            start, end, permissions, offset, device, inode, called = head.groups()
            mapping = BackedMapping(
                start=int(start, 16),
                end=int(end, 16),
                permissions=permissions.decode("ascii", "replace"),
                name=names.setdefault(called[:_LONGEST], called[:_LONGEST].decode("utf-8", "replace")),
                offset=int(offset, 16),
                inode=int(inode),
                object=(device.decode("ascii", "replace"), int(inode)) if permissions.endswith(b"s") else None,
            )
    if mapping is not None:
        yield mapping
