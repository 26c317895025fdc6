"""State of this host's free memory for a run: fragmentation, lists of free pages, a swap file, a hugetlbfs mount.

Each change is journalled before it is made, and undone afterwards.

Fragmenter. The probe's `fragment` pins a page in each free block that a huge page fits into, and ends with this
process. What other programs have allocated meanwhile lies scattered, so memory is compacted afterwards.

Per-CPU page lists (pcp). A page there neither merges with its neighbours nor is moved by compaction: measured on Linux
6.18 with 24 GiB, 37,000 pages on them kept 17 GiB from becoming huge pages for minutes. The kernel empties them, within
seconds, down to what vm.percpu_pagelist_high_fraction allows.

Swap file. It lies in the folder of results, in which the account that called sudo may write too: so the file is root's
alone, new, and used by its descriptor.

Sources: Documentation/admin-guide/sysctl/vm.rst; decay_pcp_high() in mm/page_alloc.c and union swap_header in
include/linux/swap.h of the Linux kernel; swapon(2); mkswap(8) of util-linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import re
import select
import signal
import struct
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import ProbeError, SettingError, UserError
from hugewise.host.ledger import Draining, Fragmenting, Swapped
from hugewise.machine import probe, programs
from hugewise.machine.proc import kernel_text, start_time
from hugewise.model.host import Host, text_of
from hugewise.quantity import readable_size

COMPACT = "/proc/sys/vm/compact_memory"

_PATIENCE_S = 3600.0  # some ms a block: of a machine with TiB there are a million
_GONE_S = 10.0
_COMM = "hugewise-probe"


class Fragmenter:
    """A running fragmenter; `close` undoes what it did. `note` (the journal) hears of it before it takes anything."""

    def __init__(self, host: Host, floor: int, note: Callable[[Fragmenting], None], *options: str) -> None:
        self._host = host
        self._process = subprocess.Popen(
            [probe.find(), "fragment", "--floor", str(floor), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            note(Fragmenting(self._process.pid, start_time(host, self._process.pid) or 0))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        """True while the process runs. The kernel kills it first where memory is short."""
        return self._process.poll() is None

    def hold(self, most: int) -> probe.Fragmented:
        """Leave at most `most` bytes in free huge blocks if possible; return what there is. Raises ProbeError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.write(f"{most}\n".encode())
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], _PATIENCE_S)[0]:
            raise ProbeError(f"memory is not fragmented after {_PATIENCE_S:g} s")
        event = next(probe.decode([self._process.stdout.readline()]), None)
        if isinstance(event, probe.Fragmented):
            return event
        raise ProbeError(f"memory cannot be fragmented: {self._complaint()}")

    def close(self) -> None:
        """End it, whatever it does: its memory is free when this returns."""
        probe.put_away(self._process)

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        stderr = self._process.stderr.read().decode(errors="replace").strip()
        return stderr or f"the probe ended with {self._process.wait()}, and said nothing"


def compact(host: Host) -> None:
    """Have the kernel put together what can be moved. A kernel without compaction has no such file."""
    with suppress(OSError):
        host.write(COMPACT, "1")


def end(host: Host, one: Fragmenting) -> bool:
    """End the fragmenter of a dead run, if it is still that process; whether it was there."""
    alive = start_time(host, one.pid) == one.pid_start
    if not alive or text_of(host, f"/proc/{one.pid}/comm") != _COMM:
        return False
    with suppress(ProcessLookupError):
        os.kill(one.pid, signal.SIGKILL)
    give_up = time.monotonic() + _GONE_S
    while start_time(host, one.pid) == one.pid_start and time.monotonic() < give_up:
        time.sleep(0.01)
    return True


FRACTION = "/proc/sys/vm/percpu_pagelist_high_fraction"

_LEAST = "1000000"  # so small a share of a zone that the kernel's own minimum applies
_COUNT = re.compile(r"^ +count: +(\d{1,15})$", re.MULTILINE | re.ASCII)
_FEW = 1024  # pages on all lists together
_DRAIN_S = 6.0
_PAUSE_S = 0.1


def drain(host: Host, note: Callable[[Draining], None]) -> None:
    """Have the CPUs' page lists drained, where the kernel can; `note` hears of it before. Raises StorageError."""
    try:
        before = host.read(FRACTION)
    except OSError:
        return
    note(Draining(before))
    try:
        host.write(FRACTION, _LEAST)
        end = time.monotonic() + _DRAIN_S
        while _kept(host) > _FEW and time.monotonic() < end:
            time.sleep(_PAUSE_S)
    except OSError:
        return
    finally:
        put_back(host, before)


def put_back(host: Host, before: str) -> bool:
    """Restore the setting, if it still is what hugewise wrote; return whether it was."""
    with suppress(OSError):
        if host.read(FRACTION) == _LEAST:
            host.write(FRACTION, before)
            return True
    return False


def _kept(host: Host) -> int:
    return sum(int(count) for count in _COUNT.findall(host.read("/proc/zoneinfo")))


_OWN = re.compile(r"hugewise-swap-\d+")
_SWAPS = Path("/proc/swaps")
_FIRST = 0x8000 | 0x7FFF  # SWAP_FLAG_PREFER, and the highest priority
_SPARE = 1 << 30  # bytes of the disk kept free
_ESCAPE = re.compile(rb"\\(\d{3})")


def is_named(path: str) -> bool:
    """Return whether `path` has the form of a run's swap file."""
    name = Path(path)
    return name.is_absolute() and ".." not in name.parts and _OWN.fullmatch(name.name) is not None


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
        remove(str(path))  # left by a dead run whose number is this process's now
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
        # As mkswap(8), with all blocks: a file with holes cannot be swapped to.
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
        return in_use(str(self.path))

    def close(self) -> None:
        """Stop swapping to the file and remove it. Raises SettingError."""
        try:
            self.off()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            remove(str(self.path))

    @property
    def _opened(self) -> str:
        # a name that no other process can give to another file
        return f"/proc/self/fd/{self._descriptor}"


def in_use(path: str) -> bool:
    """Return whether the kernel swaps to `path`."""
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


_PARENT = "/run"
_OWN_MOUNT = re.compile(r"/run/hugewise-\d+-hugetlb-\d+")
_UNMOUNT_S = 60


def is_own(path: str) -> bool:
    """Return whether `path` can be a session's mount, by its name and, where it exists, its kind."""
    return _OWN_MOUNT.fullmatch(path) is not None and not Path(path).is_symlink()


@dataclass(frozen=True)
class HugetlbMount:
    """A mounted hugetlbfs with pages of one size; a context that unmounts it."""

    path: str

    @classmethod
    def open(cls, size: int, account: pwd.struct_passwd | None, note: Callable[[str], None]) -> HugetlbMount:
        """Mount one with pages of `size` bytes for `account`; `note` hears before. Raises SettingError."""
        path = f"{_PARENT}/hugewise-{os.getpid()}-hugetlb-{size}"
        if os.geteuid() != 0:
            raise SettingError(
                "hugetlb pages of a file need a hugetlbfs, which root alone can mount",
                hint='use sudo, or source = "memfd" for the backing',
            )
        note(path)
        unmount(path)  # left by a killed run whose number is this process's now
        owner = "" if account is None else f",uid={account.pw_uid},gid={account.pw_gid}"
        try:
            Path(path).mkdir(mode=0o700)
            _command("mount", "-t", "hugetlbfs", "-o", f"pagesize={size},mode=0700{owner}", "hugewise", path)
        except (OSError, SettingError) as error:
            with suppress(OSError):
                Path(path).rmdir()
            said, hint = (error.strerror, None) if isinstance(error, OSError) else (error.message, error.hint)
            raise SettingError(f"cannot mount a hugetlbfs with pages of {size >> 10} kB: {said}", hint=hint) from error
        return cls(path)

    def close(self) -> None:
        """Unmount it; guests that used it have ended. Raises SettingError."""
        unmount(self.path)

    def __enter__(self) -> HugetlbMount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unmount(path: str) -> None:
    """Unmount `path`, also in use, and remove the folder, if it is there. Raises SettingError."""
    if not is_own(path):
        raise SettingError(f"{path} is no mount of hugewise's own: it is left as it is")
    try:
        while os.path.ismount(path):
            _command("umount", "--lazy", path)
        Path(path).rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingError(f"cannot remove {path}: {error.strerror}", hint=f"umount {path}; rmdir {path}") from error


def _command(*words: str) -> None:
    try:
        program = programs.of_root(words[0])
    except UserError as error:
        raise SettingError(error.message, hint=error.hint) from None
    if program is None:
        raise SettingError(f"{words[0]}: no such program on PATH", hint="apt install mount")
    try:
        done = subprocess.run((program, *words[1:]), capture_output=True, text=True, check=False, timeout=_UNMOUNT_S)
    except subprocess.TimeoutExpired:
        raise SettingError(f"{' '.join(words)} has not ended within {_UNMOUNT_S} s") from None
    if done.returncode != 0:
        raise SettingError((done.stderr or done.stdout).strip() or f"{words[0]}: exit status {done.returncode}")
