"""Disks of the user's own: the files that QEMU opens, and whether it may.

The disks are never written: a guest has an overlay of each, which is thrown away with it. A disk that another process
has open for writing is refused: the guest would see a torn file system. QEMU itself refuses a
disk that another QEMU writes, by locks on bytes of the file.

Sources: QEMU, docs/interop/qcow2.txt (header) and block/file-posix.c (RAW_LOCK_PERM_BASE, BLK_PERM_WRITE).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from hugewise.errors import UserError
from hugewise.host.pool import PROGRAM
from hugewise.model.guest import Disk, DiskFile, DiskFormat
from hugewise.processes import is_open_for_writing
from hugewise.study.guest import GuestUse, disk_format

_MAGIC = b"QFI\xfb"
_MOST_LAYERS = 16
_MOST_NAME = 1023  # the format's own limit
_FORMAT_EXTENSION = 0xE2792ACA
_EXTERNAL_DATA, _CORRUPT = 1 << 2, 1 << 1
_PROGRAM = re.compile(rf"{PROGRAM.pattern}|qemu-nbd|qemu-img|qemu-storage-daemon")


def study_disks(use: GuestUse) -> tuple[Disk | None, tuple[Disk, ...]]:
    """Return the disk that the guests of a study have as their user space, and the others. Raises UserError."""
    if use.image is None:
        return None, tuple(disk(Path(entry.path), entry.written) for entry in use.disk)
    root = disk(Path(use.image), disk_format(use.image, use.image_format))
    # Whose image it is decides what its programs do with the other disks.
    owner = Path(use.image).stat().st_uid if os.geteuid() == 0 else 0
    return root, tuple(disk(Path(entry.path), entry.written, owner) for entry in use.disk)


def disk(path: Path, written: DiskFormat, reader: int = 0) -> Disk:
    """Return the disk with all that it stands on. Raises UserError where QEMU could not, or should not, open it."""
    found, held = _held(path, written, reader)
    for descriptor in held:
        os.close(descriptor)
    return found


def _held(path: Path, written: DiskFormat, reader: int) -> tuple[Disk, list[int]]:
    files: list[DiskFile] = []
    held: list[int] = []
    owners = {reader}
    with ExitStack() as failing:
        while True:
            try:
                held.append(_opened(path))
            except OSError as error:
                cure = "name a disk that is there; call it as root, or have it readable"
                raise UserError(f"{path}: {error.strerror}", hint=cure) from None
            failing.callback(os.close, held[-1])
            owner = _openable(path, held[-1], owners)
            files.append(DiskFile(path=str(path.absolute()), format=written))
            below = _below(path, held[-1]) if written == "qcow2" else None
            if below is None:
                failing.pop_all()
                return Disk(files=tuple(files)), held
            if len(files) == _MOST_LAYERS:
                raise UserError(f"{files[0].path}: stands on more than {_MOST_LAYERS} other disks", hint="flatten it")
            owners.add(owner)
            path, written = below


def _opened(path: Path | str) -> int:
    # Opening anything but a disk may have effects: a watchdog then resets the host.
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(found).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise OSError(errno.EINVAL, "it is no file and no block device", str(path))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    finally:
        os.close(found)


def _openable(path: Path, opened: int, above: set[int]) -> int:
    if not all(_readable_by(opened, owner) for owner in above - {0}):
        # The owner of the overlay chooses its base file: root must not read for them what they may not.
        raise UserError(
            f"{path}: another account's disk names it or has it beside it, and that account could not read it",
            hint="give both to one account, or make it readable by all",
        )
    return os.fstat(opened).st_uid


def _readable_by(opened: int, account: int) -> bool:
    whole = Path(f"/proc/self/fd/{opened}").resolve()
    found = [(os.fstat(opened), stat.S_IRUSR, stat.S_IROTH)]
    try:
        found += [(folder.stat(), mine, of_all) for folder, mine, of_all in _parents(whole)]
    except OSError:  # it has no path by now
        return False
    return all(status.st_mode & (mine if status.st_uid == account else of_all) for status, mine, of_all in found)


def _parents(path: Path) -> list[tuple[Path, int, int]]:
    return [(folder, stat.S_IXUSR, stat.S_IXOTH) for folder in path.parents]


def _below(path: Path, opened: int) -> tuple[Path, DiskFormat] | None:
    head = os.pread(opened, 1 << 16, 0)
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
    # a header without a format is not guessed
    while at + 8 <= min(end, len(head)):
        kind, length = struct.unpack_from(">II", head, at)
        if kind == 0:
            break
        if kind == _FORMAT_EXTENSION:
            name = head[at + 8 : at + 8 + length]
            if name == b"qcow2":
                return "qcow2"
            if name == b"raw":
                return "raw"
            raise UserError(f"{path}: stands on a disk of the format {os.fsdecode(name)[:40]!r}", hint="convert it")
        at += 8 + (length + 7) // 8 * 8
    raise UserError(
        f"{path}: does not say of which format the disk is that it stands on",
        hint="say it: qemu-img rebase -u -F FORMAT -b BACKING DISK",
    )


def refuse_written(wanted: Disk) -> None:
    """Raise UserError while another process has the disk, or a file that it is based on, open for writing."""
    for file in wanted.files:
        if (who := writer_of(file.path)) is not None:
            raise UserError(
                f"{file.path}: {who} has it open for writing: a guest beside it would see a torn file system",
                hint="shut the domain down first, or name a copy (cp --reflink=auto, qemu-img convert, a snapshot)",
            )


def absent(path: str) -> str | None:
    """Return why there is nothing at the path that could be a disk, in the system's words, or None."""
    try:
        Path(path).stat()
    except OSError as error:
        return error.strerror or str(error)
    return None


def writer_of(path: str) -> str | None:
    """Return who visibly writes the file (a QEMU, a mount), or None; another QEMU has a lock that QEMU heeds."""
    with suppress(OSError):
        return next(_writers(path), None) or _mounted(path)
    return None


def _writers(path: str) -> Iterator[str]:
    wanted = Path(path).stat()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program = (process / "comm").read_text().strip()
            exe = (process / "exe").readlink().name
            if not (_PROGRAM.match(program) or _PROGRAM.match(exe)):
                continue
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    status = descriptor.stat()
                    if _same(status, wanted) and is_open_for_writing(process, descriptor.name):
                        yield f"the process {process.name} ({exe})"


def _same(first: os.stat_result, other: os.stat_result) -> bool:
    # A device has several nodes: libvirt gives each QEMU a /dev of its own.
    if stat.S_ISBLK(first.st_mode) and stat.S_ISBLK(other.st_mode):
        return first.st_rdev == other.st_rdev
    return (first.st_dev, first.st_ino) == (other.st_dev, other.st_ino) and stat.S_ISREG(first.st_mode)


def _mounted(path: str) -> str | None:
    with suppress(OSError):
        status = Path(path).stat()
        if stat.S_ISBLK(status.st_mode):
            device = Path(f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
            parts = [device, *(part.parent for part in device.glob("*/partition"))]
            numbers = {(part / "dev").read_text().strip() for part in parts}
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                if line.split()[2] in numbers:
                    return "this host (it is mounted)"
            if on := next((holder.name for part in parts for holder in (part / "holders").glob("*")), None):
                return f"this host (by {on})"
    return None


class HeldDisks:
    """The files of disks, held open for all guests of a session; none that was written meanwhile is used."""

    def __init__(self, image: Disk | None, beside: Iterable[Disk] = ()) -> None:
        """Open the disks; the owner of the image must be able to read those beside it. Raises UserError."""
        self._files: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._disks = (*([] if image is None else [image]), *beside)
        reader = 0
        with ExitStack() as failing:
            failing.callback(self.close)
            for wanted in self._disks:
                again, opened = _held(Path(wanted.files[0].path), wanted.files[0].format, reader)
                for file, descriptor in zip(again.files, opened, strict=True):
                    self._keep(file.path, descriptor)
                if again != wanted:
                    raise UserError(
                        f"{wanted.files[0].path}: it stands on other files than before", hint="run it again"
                    )
                if wanted is image and os.geteuid() == 0:
                    reader = os.fstat(opened[0]).st_uid
            failing.pop_all()

    def _keep(self, path: str, opened: int) -> None:
        if path in self._files:  # of two disks
            os.close(opened)
        else:
            self._files[path] = (opened, _state(os.fstat(opened)))

    def checked(self) -> None:
        """Raise UserError where a disk is open for writing now, or was written since it was opened."""
        for held in self._disks:
            refuse_written(held)
        for path, (opened, before) in self._files.items():
            if _state(os.fstat(opened)) != before:
                cure = "start a new run: arms are compared on one disk"
                raise UserError(f"{path}: it was written since the run began", hint=cure)

    def opened(self, wanted: Disk) -> Disk:
        files = tuple(
            DiskFile(path=f"/proc/{os.getpid()}/fd/{self._files[file.path][0]}", format=file.format)
            for file in wanted.files
        )
        return Disk(files=files)

    def close(self) -> None:
        for opened, _ in self._files.values():
            os.close(opened)
        self._files = {}


def _state(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_rdev, status.st_size, status.st_mtime_ns)


def identity(wanted: Disk) -> str:
    """Return places, sizes and times of the disk's files, as 100 GB are not hashed for each run."""
    lines = []
    for file in wanted.files:
        status = Path(file.path).stat()
        lines.append(f"{file.path}:{file.format}:{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}")
    return "\n".join(lines)
