"""The initramfs of a guest: the probe as its init, and the modules of its kernel. No script, no shell, nothing else.

It is not compressed: it has some 10 MB, and an emulated boot is no faster when gzip makes 3 MB of it.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from hugewise import files
from hugewise.beneath import Folder
from hugewise.errors import ProbeError, UserError
from hugewise.guests import cache, cpio
from hugewise.guests.kernels.elf import unpacked
from hugewise.machine import probe
from hugewise.model.guest import Architecture, Initramfs, Kernel
from hugewise.model.workload import Missing

__all__ = ["build", "extended", "guest_probe", "need_probe", "told"]

_CURE: Final = "make guest-probes"
_MACHINE: Final[Mapping[Architecture, int]] = {"x86-64": 62, "arm64": 183}  # e_machine, elf(5)
_INTERPRETER: Final = 3  # PT_INTERP
_FOLDERS: Final = ("dev", "modules", "proc", "root", "run", "sys", "tmp")


def guest_probe(arch: Architecture) -> Path | Missing:
    """The static probe for guests of that architecture, or that it is not there.

    `$HUGEWISE_GUEST_PROBE_X86_64` or `$HUGEWISE_GUEST_PROBE_ARM64`, else where `make guest-probes` puts it, else the
    host's own, where that is static: a wheel has one for both. Raises UserError where root would take one that another
    account can change.
    """
    variable = f"HUGEWISE_GUEST_PROBE_{arch.replace('-', '_').upper()}"
    chosen = os.environ.get(variable)
    path = Path(chosen) if chosen else Path(sys.prefix, "share", "hugewise", f"probe-{arch}")
    if path.is_file():
        if chosen:
            files.own(path, f"the agent of guests {chosen}", f"unset {variable}, or name a file of root's")
        return path.absolute()
    if not chosen:
        with suppress(ProbeError, OSError):
            own = Path(probe.find()).absolute()
            if _unfit(_head(own), arch) is None:
                return own
    return Missing(f"no agent for guests of {arch}: {path} is not there ({_CURE} builds it)")


def need_probe(arch: Architecture) -> Path:
    """The static probe, looked at: it is for that architecture and needs no libraries. Raises UserError."""
    found = guest_probe(arch)
    if isinstance(found, Missing):
        raise UserError(found.reason, hint=_CURE)
    if (why := _unfit(_head(found), arch)) is not None:
        raise UserError(f"{found}: {why}", hint=_CURE)
    return found


def _head(path: Path) -> bytes:
    with path.open("rb") as reading:
        return reading.read(4096)


def _unfit(head: bytes, arch: Architecture) -> str | None:
    """Why a program cannot be the init of such a guest, by its first 4 KiB; see elf(5)."""
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return "not a program of 64 bits"
    (machine,) = struct.unpack_from("<H", head, 18)
    if machine != _MACHINE[arch]:
        return f"not a program for {arch} (ELF machine {machine})"
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    kinds = [head[offset + each * size :][:4] for each in range(count)]
    if struct.pack("<I", _INTERPRETER) in kinds:
        return "not static: it needs libraries, which an initramfs does not have"
    return None


def build(kernel: Kernel) -> Path:
    """The initramfs for `kernel`, from the cache or made now. What is in it alone decides its bytes.

    Raises UserError, StorageError.
    """
    data = cpio.archive(_entries(kernel, need_probe(kernel.arch)))
    path = cache.kept("images", data, lambda path: _write(path, data))
    if cache.sha256(path) != cache.digest(data):  # it was changed since it was made
        return cache.replaced("images", data, lambda path: _write(path, data))
    return path


def told(initramfs: Path) -> Initramfs:
    """An initramfs that is there, with its hash. Raises StorageError."""
    with files.storing(str(initramfs)):
        return Initramfs(path=str(initramfs), digest=cache.sha256(initramfs))


def extended(initramfs: Path, more: Mapping[str, bytes], target: Path) -> Path:
    """Write an initramfs with what `initramfs` has and `more` (path -> content) to `target`; returns `target`.

    For files that one boot alone is given, which do not belong in the cache. `target` is new: nothing that was there
    is written to. Raises StorageError.
    """
    behind = cpio.archive(cpio.file(path, data) for path, data in sorted(more.items()))
    with (
        files.storing(str(target)),
        initramfs.open("rb") as given,
        Folder.open(target.parent) as held,
        held.new(target.name, 0o644) as made,
    ):
        shutil.copyfileobj(given, made)
        made.write(behind)
    return target


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _entries(kernel: Kernel, agent: Path) -> Iterator[cpio.ArchiveEntry]:
    yield from map(cpio.folder, _FOLDERS)
    # The kernel opens it before it starts init; devtmpfs covers it later.
    yield cpio.device("dev/console", 5, 1)
    yield cpio.file("init", agent.read_bytes(), 0o755)
    for number, module in enumerate(kernel.modules):
        name, data = _module(Path(module))
        yield cpio.file(f"modules/{number:03}-{name}", data)


def _module(path: Path) -> tuple[str, bytes]:
    """A module as the kernel takes it: `name.ko` and its bytes, decompressed. Raises UserError."""
    return f"{path.name.partition('.ko')[0]}.ko", unpacked(path)
