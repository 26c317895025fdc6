"""A swap file for a run: made before, used while an attempt wants it, and gone afterwards, also after a SIGKILL.

The journal hears of it before it is made. It lies in the folder of results, in which the account that called sudo may
write too: so the file is root's alone, new, and used by its descriptor, whatever its name leads to by then. It is used
before other swap of the host.

Sources: swapon(2); union swap_header in include/linux/swap.h of the Linux kernel; mkswap(8) of util-linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import SettingError
from hugewise.host.ledger import Swapped
from hugewise.machine.proc import kernel_text
from hugewise.quantity import readable_size

__all__ = ["SwapFile", "in_use", "is_named", "remove"]

_OWN = re.compile(r"hugewise-swap-\d+")
_SWAPS = Path("/proc/swaps")
_FIRST = 0x8000 | 0x7FFF  # SWAP_FLAG_PREFER, and the highest priority
_SPARE = 1 << 30  # of the disk, for everybody else
_ESCAPE = re.compile(rb"\\(\d{3})")


def is_named(path: str) -> bool:
    """Whether the path is one that a run gives to its swap file."""
    found = Path(path)
    return found.is_absolute() and ".." not in found.parts and _OWN.fullmatch(found.name) is not None


@dataclass
class SwapFile:
    """A swap file of `size` bytes; it is used from `on` to `off`."""

    path: Path
    size: int
    used: bool = False
    _descriptor: int = -1

    @classmethod
    def make(cls, folder: Path, size: int, note: Callable[[Swapped], None]) -> SwapFile:
        """Make one in `folder`, and see that the kernel takes it. Raises SettingError with what to do."""
        path = folder.resolve() / f"hugewise-swap-{os.getpid()}"
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < size + _SPARE:
            has = readable_size(free.f_bavail * free.f_frsize)
            raise SettingError(
                f"{folder} has {has} free, and a swap file of {readable_size(size)} is to be made there",
                hint="free space there, or name another folder: --results",
            )
        note(Swapped(str(path)))
        remove(str(path))  # of a dead run whose number is this process's now
        made = cls(path, size)
        try:
            made._write()
            made.on()
            made.off()
        except OSError as error:
            made.close()
            raise SettingError(
                f"{folder} takes no swap file: {error.strerror}", hint="have results on ext4 or xfs: --results"
            ) from error
        except SettingError:
            made.close()
            raise
        return made

    def _write(self) -> None:
        """As mkswap(8) would, with all its blocks: a file with holes is none."""
        page = os.sysconf("SC_PAGE_SIZE")
        header = bytearray(page)
        struct.pack_into("=III16s", header, 1024, 1, self.size // page - 1, 0, uuid.uuid4().bytes)
        header[-10:] = b"SWAPSPACE2"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, 0o600)
        os.posix_fallocate(self._descriptor, 0, self.size // page * page)
        os.pwrite(self._descriptor, header, 0)
        os.fsync(self._descriptor)

    def on(self) -> None:
        """Have the kernel swap to it. Raises SettingError."""
        if not self.used:
            _call("swapon", self._opened, self.path, _FIRST)
            self.used = True

    def off(self) -> None:
        """Have the kernel swap to it no more: what is there comes back to memory first. Raises SettingError."""
        if self.used:
            _call("swapoff", self._opened, self.path)
            self.used = False

    @property
    def in_use(self) -> bool:
        """Whether the kernel swaps to it."""
        return in_use(str(self.path))

    def close(self) -> None:
        """It is gone. Raises SettingError."""
        try:
            self.off()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            remove(str(self.path))

    @property
    def _opened(self) -> str:
        """The file that was made, by a name that nobody else can give to another one."""
        return f"/proc/self/fd/{self._descriptor}"


def in_use(path: str) -> bool:
    """Whether the kernel swaps to that file."""
    with suppress(OSError):
        lines = kernel_text(_SWAPS).split("\n")[1:]
        words = (os.fsencode(line.split(" ")[0].split("\t")[0]) for line in lines if line)
        return any(_ESCAPE.sub(lambda code: bytes([int(code[1], 8)]), word) == os.fsencode(path) for word in words)
    return False


def remove(path: str) -> None:
    """Swap to it no more, and remove it; nothing happens when it is gone. Raises SettingError."""
    if not is_named(path):
        raise SettingError(f"{path} is no swap file of hugewise's own: it is left as it is")
    if in_use(path):
        _call("swapoff", path, Path(path))
    try:
        os.unlink(path)  # noqa: PTH108  (the last name is not followed)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SettingError(f"cannot remove {path}: {error.strerror}", hint=f"rm {path}") from error


def _call(name: str, opened: str, path: Path, *more: int) -> None:
    """A system call on the file `opened`, which is called `path`. Raises SettingError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(os.fsencode(opened), *map(ctypes.c_int, more)) == 0:
        return
    number = ctypes.get_errno()
    told = {
        errno.EINVAL: "this file system has no swap files, or the kernel does not take this one",
        errno.ENOSYS: "the kernel has no swap (CONFIG_SWAP)",
        errno.EPERM: "it needs CAP_SYS_ADMIN, or there are too many swap files",
        errno.ENOMEM: "what it holds has no room in memory",
    }
    why = told.get(number, os.strerror(number))
    raise SettingError(f"{name} {path}: {why}", hint="have results on ext4 or xfs: --results")
