"""Disks that are somebody's own: what QEMU opens of them, and whether it may.

They are never written: a guest has an overlay of each, which is thrown away with it. Who else has one open for writing
changes it meanwhile, so that the guest would see a file system that is torn: such a disk is refused. QEMU tells by
locks on bytes of the file which of its own have it.

Sources: QEMU, docs/interop/qcow2.txt (header) and block/file-posix.c (RAW_LOCK_PERM_BASE, BLK_PERM_WRITE);
fcntl(2), open file description locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hugewise.errors import UserError
from hugewise.host.pool import PROGRAM
from hugewise.model.guest import Disk, DiskFile, DiskFormat
from hugewise.study.guest import GuestUse, disk_format

_MAGIC = b"QFI\xfb"
_MOST_LAYERS = 16
_MOST_NAME = 1023  # the format's own limit
_FORMAT_EXTENSION = 0xE2792ACA
_EXTERNAL_DATA, _CORRUPT = 1 << 2, 1 << 1
# QEMU locks byte 100 + n of a file that it has by the permission n (1: to write); who only reads locks no such byte.
_WRITES = 101
_OFD_GETLK = 36
_FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock of 64 bits: type, whence, start, length, pid
_PROGRAM = re.compile(rf"{PROGRAM.pattern}|qemu-nbd|qemu-img|qemu-storage-daemon")


def of_study(use: GuestUse) -> tuple[Disk | None, tuple[Disk, ...]]:
    """The disk that the guests of a study have as their user space, and the others. Raises UserError."""
    root = None if use.image is None else disk(Path(use.image), disk_format(use.image, use.image_format))
    return root, tuple(disk(Path(each.path), each.written) for each in use.disk)


def disk(path: Path, written: DiskFormat) -> Disk:
    """The disk with all that it stands on. Raises UserError where QEMU could not, or should not, open it."""
    files: list[DiskFile] = []
    owners: set[int] = set()
    while True:
        owner = _openable(path, owners)
        files.append(DiskFile(path=str(path.absolute()), format=written))
        below = _below(path) if written == "qcow2" else None
        if below is None:
            return Disk(files=tuple(files))
        if len(files) == _MOST_LAYERS:
            raise UserError(f"{files[0].path}: stands on more than {_MOST_LAYERS} other disks", hint="flatten it")
        owners.add(owner)
        path, written = below


def _openable(path: Path, above: set[int]) -> int:
    """Whose the file is; it must be a file or a block device that whoever owns what stands on it could read."""
    try:
        found = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", hint="name a disk that is there") from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISBLK(found.st_mode):
        raise UserError(f"{path}: is no file and no block device", hint="name a disk")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: cannot be read by this account", hint="call it as root, or have it readable")
    if not all(_reaches(path, owner) for owner in above - {0}):
        # Whoever can write the overlay decides what it stands on: root must not read for them what they may not.
        raise UserError(
            f"{path}: another account's disk names it, and could not read it",
            hint="give both to one account, or make it readable by all",
        )
    return found.st_uid


def _reaches(path: Path, account: int) -> bool:
    """Whether the account could read the file by the permissions of its owner or of all: groups are not asked."""
    whole = path.resolve()
    for place, mine, of_all in ((whole, stat.S_IRUSR, stat.S_IROTH), *_searched(whole)):
        found = place.stat()
        if not found.st_mode & (mine if found.st_uid == account else of_all):
            return False
    return True


def _searched(path: Path) -> list[tuple[Path, int, int]]:
    return [(folder, stat.S_IXUSR, stat.S_IXOTH) for folder in path.parents]


def _below(path: Path) -> tuple[Path, DiskFormat] | None:
    """What a qcow2 stands on. Raises UserError."""
    with path.open("rb") as opened:
        head = opened.read(1 << 16)
    if len(head) < 104 or head[:4] != _MAGIC:
        raise UserError(f"{path}: is no qcow2", hint='write format = "raw", or name another file')
    version, offset, size = struct.unpack_from(">IQI", head, 4)
    (crypt,) = struct.unpack_from(">I", head, 32)
    incompatible, length = 0, 72
    if version >= 3:
        (incompatible,) = struct.unpack_from(">Q", head, 72)
        (length,) = struct.unpack_from(">I", head, 100)
    if crypt:
        raise UserError(f"{path}: is encrypted, and hugewise asks for no key", hint="name a copy that is not")
    if incompatible & _EXTERNAL_DATA:
        raise UserError(f"{path}: has its data in another file", hint="convert it: qemu-img convert -O qcow2")
    if incompatible & _CORRUPT:
        raise UserError(f"{path}: is marked corrupt", hint="see: qemu-img check")
    if not offset:
        return None
    if size > _MOST_NAME or offset + size > len(head):
        raise UserError(f"{path}: what it stands on has no name that can be read", hint="see: qemu-img info")
    name = os.fsdecode(head[offset : offset + size])
    if re.match(r"[a-z0-9+.-]+:", name) or "\0" in name:
        raise UserError(f"{path}: stands on {name[:80]!r}, which is no file of this host", hint="name a copy of it")
    return path.parent / name, _format_below(path, head, length, offset)


def _format_below(path: Path, head: bytes, at: int, end: int) -> DiskFormat:
    """The format that the header says of it; one that says none is not guessed."""
    while at + 8 <= min(end, len(head)):
        kind, length = struct.unpack_from(">II", head, at)
        if kind == 0:
            break
        if kind == _FORMAT_EXTENSION:
            said = head[at + 8 : at + 8 + length]
            if said == b"qcow2":
                return "qcow2"
            if said == b"raw":
                return "raw"
            raise UserError(f"{path}: stands on a disk of the format {os.fsdecode(said)[:40]!r}", hint="convert it")
        at += 8 + (length + 7) // 8 * 8
    raise UserError(
        f"{path}: does not say of which format the disk is that it stands on",
        hint="say it: qemu-img rebase -u -F FORMAT -b BACKING DISK",
    )


def must_be_free(wanted: Disk) -> None:
    """Raises UserError while somebody has the disk, or what it stands on, open for writing."""
    for file in wanted.files:
        if (who := holder(file.path)) is not None:
            raise UserError(
                f"{file.path}: {who} has it open for writing: a guest beside it would see a torn file system",
                hint="shut the domain down first, or name a copy (cp --reflink=auto, qemu-img convert, a snapshot)",
            )


def absent(path: str) -> str | None:
    """Why there is nothing at the path that could be a disk, in the system's words, or None."""
    try:
        Path(path).stat()
    except OSError as error:
        return error.strerror or str(error)
    return None


def holder(path: str) -> str | None:
    """Who writes the file, as far as it can be known: a QEMU by its locks, a mount of a block device, or None."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if _locked(opened, _WRITES):
                return next(_writers(path), "a QEMU")
        finally:
            os.close(opened)
    return next(_writers(path), None) or _mounted(path)


def _locked(descriptor: int, byte: int) -> bool:
    """Whether another holds a lock on the byte."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    try:
        found = fcntl.fcntl(descriptor, _OFD_GETLK, asked)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP):
            return False
        raise
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def _writers(path: str) -> Iterator[str]:
    """The QEMUs that have the file open for writing: those whose descriptors may be looked at."""
    wanted = Path(path).stat()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program = (process / "comm").read_text().strip()
            exe = (process / "exe").readlink().name
            if not (_PROGRAM.match(program) or _PROGRAM.match(exe)):
                continue
            for each in (process / "fd").iterdir():
                with suppress(OSError):
                    found = each.stat()
                    if _same(found, wanted):
                        flags = re.search(r"^flags:\s+([0-7]+)$", (process / "fdinfo" / each.name).read_text(), re.M)
                        if flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                            yield f"the process {process.name} ({exe})"


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are one disk. A device has other nodes too: libvirt gives each QEMU a /dev of its own."""
    if stat.S_ISBLK(one.st_mode) and stat.S_ISBLK(other.st_mode):
        return one.st_rdev == other.st_rdev
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) and stat.S_ISREG(one.st_mode)


def _mounted(path: str) -> str | None:
    """That the host itself uses the block device: it, or a partition of it, is mounted, or another device is on it."""
    with suppress(OSError):
        found = Path(path).stat()
        if stat.S_ISBLK(found.st_mode):
            device = Path(f"/sys/dev/block/{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}")
            parts = [device, *(part.parent for part in device.glob("*/partition"))]
            numbers = {(part / "dev").read_text().strip() for part in parts}
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                if line.split()[2] in numbers:
                    return "this host (it is mounted)"
            if on := next((each.name for part in parts for each in (part / "holders").glob("*")), None):
                return f"this host (by {on})"
    return None


class HeldDisks:
    """The files of disks, held open from the moment that they were looked at: each guest of a session has these very
    files, whatever stands at their paths by then, and none that was written meanwhile.
    """

    def __init__(self, wanted: Iterable[Disk]) -> None:
        """Raises UserError."""
        self._files: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._disks = tuple(wanted)
        for each in self._disks:
            again = disk(Path(each.files[0].path), each.files[0].format)
            if again != each:
                raise UserError(f"{each.files[0].path}: it stands on other files than before", hint="run it again")
            for file in each.files:
                opened = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._files[file.path] = (opened, _state(os.fstat(opened)))

    def checked(self) -> None:
        """Raises UserError where a disk is written by somebody now, or was since it was opened."""
        for each in self._disks:
            must_be_free(each)
        for path, (opened, before) in self._files.items():
            if _state(os.fstat(opened)) != before:
                cure = "start a new run: arms are compared on one disk"
                raise UserError(f"{path}: it was written since the run began", hint=cure)

    def opened(self, wanted: Disk) -> Disk:
        """The disk by the descriptors of this process, which whoever starts QEMU can open anew."""
        files = tuple(
            DiskFile(path=f"/proc/{os.getpid()}/fd/{self._files[file.path][0]}", format=file.format)
            for file in wanted.files
        )
        return Disk(files=files)

    def close(self) -> None:
        """Let go of them."""
        for opened, _ in self._files.values():
            os.close(opened)
        self._files = {}


def _state(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_rdev, found.st_size, found.st_mtime_ns)


def identity(wanted: Disk) -> str:
    """What tells the disk from another, and from itself when it was written: its files' places, sizes and times.

    The content of a disk of 100 GB is not hashed for each run.
    """
    told = []
    for file in wanted.files:
        found = Path(file.path).stat()
        told.append(f"{file.path}:{file.format}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}")
    return "\n".join(told)
