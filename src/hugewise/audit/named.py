"""The files that others name: in a command line that anybody may have, in a file that includes another.

They lead to files alone that lie on a file system which keeps files. Some of the kernel's own files do something when
they are read (the log of the kernel is gone then for who logs it), and a file system that a program serves answers
when that program likes.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from hugewise.audit.root import Root

__all__ = ["MOST_NAMED", "NamedFiles"]

MOST_NAMED = 4 << 20
"""Bytes that are read of all files which one account's processes name; of the files of one service."""

_MOST_FILES = 1000
_MOUNT = re.compile(r"^mnt_id:\t([0-9]{1,10})$", re.MULTILINE)
_REFUSED = re.compile(
    "proc|sysfs|debugfs|tracefs|securityfs|cgroup2?|pstore|bpf|efivarfs|configfs|binfmt_misc|selinuxfs|smackfs|mqueue"
    r"|devpts|autofs|fusectl|nfsd|rpc_pipefs|functionfs|gadgetfs|resctrl|dmabuf|nsfs|sockfs|pipefs|fuse(?:\..*)?"
)


class NamedFiles(Root):
    """The host of `root`, by the paths that somebody else names: so many bytes of so many files are read of it."""

    def __init__(self, root: Root) -> None:
        super().__init__(root.folder)
        self.host = root
        self._unread = root._unread
        self._left, self._files = MOST_NAMED, _MOST_FILES
        self._kinds: dict[str, str] = {}

    def content(self, path: str, most: int = MOST_NAMED, *, whole: bool = True) -> bytes:
        """As `Root.content`."""
        if self._left <= 0 or self._files <= 0:
            raise OSError(errno.EFBIG, "not read: too much was named beside it", path)
        self._files -= 1
        found = super().content(path, most, whole=whole)
        self._left -= len(found)
        return found

    def _entered(self, descriptor: int, path: str) -> None:
        kind = self._kind(descriptor)
        if _REFUSED.fullmatch(kind):
            raise OSError(errno.EACCES, f"no place of settings: a file system of the kind {kind}", path)

    def _kind(self, descriptor: int) -> str:
        """That of the file system, asked of the kernel: a program that serves it does not hear of it."""
        try:
            told = _MOUNT.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii"))
            if told is None:
                return "unknown"
            if told[1] not in self._kinds:
                text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
                lines = (line.partition(" - ") for line in text.split("\n"))
                self._kinds = {before.partition(" ")[0]: after.partition(" ")[0] for before, _, after in lines}
        except OSError:
            return "unknown"
        return self._kinds.get(told[1], "unknown")
