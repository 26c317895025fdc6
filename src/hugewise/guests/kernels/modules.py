"""Which modules a guest needs of a kernel, in the order to load them.

What a kernel module and a kernel's image say of themselves. Pure, but for the files that are read.

Debian's kernel packages have no modules.dep (depmod makes it where they are installed), so that what a module needs is
read from the module, perhaps compressed: the strings of its section .modinfo.
"""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise.errors import UserError
from hugewise.machine.loader import MAGIC
from hugewise.model.guest import Architecture, Kernel
from hugewise.reading import UnreadableError, content


class _Readable(Protocol):
    """A file that is read."""

    def read(self, size: int, /) -> bytes: ...


# What unpacks a file of that name. A small one may hold more than there is memory: at most so much is taken.
_OPENERS: Mapping[str, Callable[[BytesIO], _Readable]] = {
    ".ko": lambda data: data,
    ".gz": lambda data: gzip.GzipFile(fileobj=data),
    ".xz": lzma.LZMAFile,
}
_MOST = 512 << 20
_BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error)
_MODINFO = re.compile(rb"(?<![ -~])(depends|softdep)=([ -~]*)\0")
_VERSION = re.compile(rb"Linux version ([!-~]{1,64}) ")


class Module(msgspec.Struct, frozen=True):
    """What a module needs: `depends` must be loaded before it, `before` should be where they are modules."""

    depends: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def about_module(path: Path) -> Module:
    """What the module in that file needs. Raises UserError."""
    data = unpacked(path)
    found = parse_modinfo(data) if data.startswith(MAGIC + b"\x02\x01") else None
    if found is None:
        raise UserError(f"{path} is not a kernel module that can be read: it does not say what it depends on")
    return found


def unpacked(path: Path) -> bytes:
    """The module in that file, which may be compressed. Raises UserError."""
    opened = _OPENERS.get(path.suffix)
    if opened is None:
        hint = "unpack the modules, and name the folder that they are in"
        raise UserError(f"{path}: hugewise cannot unpack modules that end with {path.suffix}", hint=hint)
    try:
        return _bounded(opened(BytesIO(content(path))))
    except (*_BROKEN, UnreadableError) as error:
        raise UserError(f"{path} is not a kernel module that can be read: {error}") from None


def _bounded(opened: _Readable) -> bytes:
    found = opened.read(_MOST + 1)
    if len(found) > _MOST:
        raise UnreadableError(f"more than {_MOST:,} bytes")
    return found


def parse_modinfo(data: bytes) -> Module | None:
    """`depends=a,b` and `softdep=pre: a b post: c`, with `_` in names as the kernel writes them; None: it says neither.

    These are strings of the section .modinfo, which every module has, and stand nowhere else between two zeros.
    """
    depends: list[str] | None = None
    before: list[str] = []
    for key, value in _MODINFO.findall(data.replace(b"-", b"_")):
        if key == b"depends" and depends is None:
            depends = [name for name in value.decode().split(",") if name]
        elif key == b"softdep":
            before += value.decode().partition("pre:")[2].partition("post:")[0].split()
    return None if depends is None else Module(tuple(depends), tuple(before))


def about_image(data: bytes) -> tuple[Architecture, str | None] | None:
    """The architecture of a bzImage or Image and its release, as far as it says one; None for anything else.

    Linux/x86 boot protocol: `HdrS` at 0x202, the pointer to the version at 0x20e. arm64: `ARM\\x64` at 0x38.
    """
    if data[:2] == b"\x1f\x8b":
        try:
            data = _bounded(gzip.GzipFile(fileobj=BytesIO(data)))
        except (*_BROKEN, UnreadableError):
            return None
    if data[0x202:0x206] == b"HdrS":
        (pointer,) = struct.unpack_from("<H", data, 0x20E)
        words = data[pointer + 0x200 : pointer + 0x300].partition(b"\0")[0].split() if pointer else []
        return "x86-64", words[0].decode("ascii", "replace") if words else None
    if data[0x38:0x3C] == b"ARM\x64":
        found = _VERSION.search(data)
        return "arm64", found[1].decode("ascii") if found else None
    return None


# Symbols of the configuration without which a guest does not come up, or cannot be asked.
NEEDED = (
    *("BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "SYSFS", "TMPFS", "DEVTMPFS", "UNIX98_PTYS", "CGROUPS"),
    *("PROC_PAGE_MONITOR", "VIRTIO_PCI", "VIRTIO_CONSOLE", "VIRTIO_BLK", "EXT4_FS"),
)
# Modules, where they are not built in: QEMU's devices, the file system of images, and NFS with what only that needs.
WANTED = (
    *("virtio_pci", "virtio_mmio", "virtio_console", "virtio_blk", "virtio_net"),
    *("ext4", "nfsv3", "nfsv4"),
    *("xfs", "btrfs"),  # the last: what they need and nobody before them is theirs alone
)
_OF_DISKS = frozenset({"xfs", "btrfs"})
_OF_NFS = frozenset(
    "auth_rpcgss dns_resolver fscache grace lockd netfs nfs nfs_acl nfs_ssc nfsv3 nfsv4 sunrpc".split()  # noqa: SIM905
)
_OTHERS = (frozenset(WANTED) | _OF_NFS) - _OF_DISKS


def lacking(config: Mapping[str, str], *, loadable: bool = True) -> list[str]:
    """The needed symbols that a parsed configuration has neither built in nor, where modules are `loadable`, as one."""
    return [symbol for symbol in NEEDED if config.get(symbol) not in (("y", "m") if loadable else ("y",))]


def denied(asked: Mapping[str, str]) -> list[str]:
    """The needed symbols that parsed fragments turn off: no build will have them."""
    return [symbol for symbol in NEEDED if asked.get(symbol) == "n"]


def index(folder: Path) -> dict[str, Path]:
    """The modules below a folder by name, with `_` in names as the kernel writes them."""
    found = {}
    for path in sorted(folder.rglob("*.ko*")):
        name, _, rest = path.name.partition(".ko")
        if rest in ("", ".gz", ".xz", ".zst"):
            found[name.replace("-", "_")] = path
    return found


def load_order(wanted: Iterable[str], there: Iterable[str], about: Callable[[str], Module]) -> list[str]:
    """The wanted modules and all that they need, each after what it needs; what is not there is built in.

    A soft dependency names a module or an alias. Of aliases only those of algorithms are known: `crypto-crc32c`, or
    `crc32c`, is `crc32c_generic`.
    """
    known = frozenset(there)
    order: dict[str, None] = {}
    underway: set[str] = set()

    def take(name: str) -> None:
        if name in order or name in underway or name not in known:
            return
        underway.add(name)
        module = about(name)
        for each in module.before:
            take(each if each in known else f"{each.removeprefix('crypto_')}_generic")
        for each in module.depends:
            take(each)
        order[name] = None

    for name in wanted:
        take(name)
    return list(order)


def without_nfs(kernel: Kernel) -> Kernel:
    """The kernel for a guest that mounts no NFS. To load its modules takes an emulated guest seconds."""
    kept = tuple(each for each in kernel.modules if _name(each) not in _OF_NFS)
    return msgspec.structs.replace(kernel, modules=kept)


def without_disks(kernel: Kernel) -> Kernel:
    """The kernel for a guest that has no disk of somebody's own: the file systems of other distributions are left out,
    with what they alone need.
    """
    last = max((place for place, each in enumerate(kernel.modules) if _name(each) in _OTHERS), default=-1)
    return msgspec.structs.replace(kernel, modules=kernel.modules[: last + 1])


def _name(path: str) -> str:
    """A module's name, of a file that may be called 05-nfs.ko.xz."""
    return Path(path).name.partition(".ko")[0].lstrip("0123456789").removeprefix("-").replace("-", "_")


def needed_in(folder: Path) -> tuple[Path, ...]:
    """The modules below a folder that a guest needs, in the order to load them. Raises UserError."""
    paths = index(folder)
    if not paths:
        hint = "name the folder of the kernel's release: /lib/modules/..."
        raise UserError(f"{folder}: there are no kernel modules below it", hint=hint)
    return tuple(paths[name] for name in load_order(WANTED, paths, lambda name: about_module(paths[name])))
