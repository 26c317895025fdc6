"""Kernels in the cache, their configurations, and the modules that guests need of them.

A kernel is a folder with the image, its configuration and modules, named by what it was made of; a note says which
folder a package's name or a recipe was when it was last had. A configuration (.config) and a fragment have the same
form: `CONFIG_NET=y`, `# CONFIG_SWAP is not set`. A symbol that is not in a configuration is not set.

Debian's kernel packages have no modules.dep: dependencies are read from each module's section .modinfo.
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

from hugewise import reading
from hugewise.errors import StorageError, UserError
from hugewise.files import write_whole
from hugewise.guests import cache
from hugewise.machine.loader import MAGIC
from hugewise.model.guest import Architecture, Kernel
from hugewise.reading import UnreadableError, content


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


# Decompressors by file name. A small file may hold more than there is memory: the size is limited.
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
    """Requirements of a module: `depends` must be loaded before it, `before` should be where they are modules."""

    depends: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def about_module(path: Path) -> Module:
    """Read the requirements of the module in that file. Raises UserError."""
    data = unpacked(path)
    module = parse_modinfo(data) if data.startswith(MAGIC + b"\x02\x01") else None
    if module is None:
        raise UserError(f"{path} is not a kernel module that can be read: it does not say what it depends on")
    return module


def unpacked(path: Path) -> bytes:
    """Return the module in that file, which may be compressed. Raises UserError."""
    opened = _OPENERS.get(path.suffix)
    if opened is None:
        hint = "unpack the modules, and name the folder that they are in"
        raise UserError(f"{path}: hugewise cannot unpack modules that end with {path.suffix}", hint=hint)
    try:
        return _bounded(opened(BytesIO(content(path))))
    except (*_BROKEN, UnreadableError) as error:
        raise UserError(f"{path} is not a kernel module that can be read: {error}") from None


def _bounded(opened: _Readable) -> bytes:
    data = opened.read(_MOST + 1)
    if len(data) > _MOST:
        raise UnreadableError(f"more than {_MOST:,} bytes")
    return data


def parse_modinfo(data: bytes) -> Module | None:
    """Parse `depends=a,b` and `softdep=pre: a b post: c` of .modinfo, names with `_`; None where it says neither."""
    depends: list[str] | None = None
    before: list[str] = []
    for key, value in _MODINFO.findall(data.replace(b"-", b"_")):
        if key == b"depends" and depends is None:
            depends = [name for name in value.decode().split(",") if name]
        elif key == b"softdep":
            before += value.decode().partition("pre:")[2].partition("post:")[0].split()
    return None if depends is None else Module(tuple(depends), tuple(before))


def about_image(data: bytes) -> tuple[Architecture, str | None] | None:
    """Return the architecture of a bzImage or Image and its release, as far as it says one; None for anything else.

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
        match = _VERSION.search(data)
        return "arm64", match[1].decode("ascii") if match else None
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
    *("xfs", "btrfs"),  # last: their dependencies that nothing before needs are theirs alone
)
_OF_DISKS = frozenset({"xfs", "btrfs"})
_OF_NFS = frozenset(
    "auth_rpcgss dns_resolver fscache grace lockd netfs nfs nfs_acl nfs_ssc nfsv3 nfsv4 sunrpc".split()  # noqa: SIM905
)
_OTHERS = (frozenset(WANTED) | _OF_NFS) - _OF_DISKS


def lacking(config: Mapping[str, str], *, loadable: bool = True) -> list[str]:
    """Return the needed symbols that a configuration lacks, built in or, where modules are `loadable`, as a module."""
    return [symbol for symbol in NEEDED if config.get(symbol) not in (("y", "m") if loadable else ("y",))]


def index(folder: Path) -> dict[str, Path]:
    """Return the modules below a folder by name, with `_` in names as the kernel writes them."""
    paths = {}
    for path in sorted(folder.rglob("*.ko*")):
        name, _, rest = path.name.partition(".ko")
        if rest in ("", ".gz", ".xz", ".zst"):
            paths[name.replace("-", "_")] = path
    return paths


def load_order(wanted: Iterable[str], there: Iterable[str], about: Callable[[str], Module]) -> list[str]:
    """Return the wanted modules and all that they need, each after what it needs; what is not there is built in."""
    known = frozenset(there)
    order: dict[str, None] = {}
    underway: set[str] = set()

    def take(name: str) -> None:
        if name in order or name in underway or name not in known:
            return
        underway.add(name)
        module = about(name)
        for needed in module.before:
            take(needed if needed in known else f"{needed.removeprefix('crypto_')}_generic")
        for needed in module.depends:
            take(needed)
        order[name] = None

    for name in wanted:
        take(name)
    return list(order)


def without_nfs(kernel: Kernel) -> Kernel:
    """Return the kernel for a guest that mounts no NFS. To load its modules takes an emulated guest seconds."""
    kept = tuple(module for module in kernel.modules if _name(module) not in _OF_NFS)
    return msgspec.structs.replace(kernel, modules=kept)


def without_disks(kernel: Kernel) -> Kernel:
    """Return the kernel without the file systems of other distributions, for a guest without a disk of the user's."""
    last = max((place for place, module in enumerate(kernel.modules) if _name(module) in _OTHERS), default=-1)
    return msgspec.structs.replace(kernel, modules=kernel.modules[: last + 1])


def _name(path: str) -> str:
    # a file may be called 05-nfs.ko.xz
    return Path(path).name.partition(".ko")[0].lstrip("0123456789").removeprefix("-").replace("-", "_")


def needed_in(folder: Path) -> tuple[Path, ...]:
    """Return the modules below a folder that a guest needs, in the order to load them. Raises UserError."""
    paths = index(folder)
    if not paths:
        hint = "name the folder of the kernel's release: /lib/modules/..."
        raise UserError(f"{folder}: there are no kernel modules below it", hint=hint)
    return tuple(paths[name] for name in load_order(WANTED, paths, lambda name: about_module(paths[name])))


KIND = "kernels"
IMAGE, CONFIG, MODULES, RECORD = "image", "config", "modules", "kernel.json"

Key = Mapping[str, object]


def write(folder: Path, kernel: Kernel) -> None:
    """Put down what is known of the kernel in the folder; its paths are relative to it."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kernel), indent=1))


def find(asked: Key) -> Kernel | None:
    """Return the kernel that was had for what is asked, if it is in the cache still."""
    note = _note(asked)
    try:
        return _read(note.with_name(note.read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return None


def make_or_find(asked: Key, made_of: Key, make: Callable[[Path], None]) -> Kernel:
    """Return the kernel, made now if need be by `make` and `write`, and noted as had for what is asked. Raises
    StorageError.
    """
    folder = cache.cached(KIND, made_of, make)
    note = _note(asked)
    try:
        write_whole(note, f"{folder.name}\n".encode())
        return _read(folder)
    except OSError as error:
        raise StorageError(f"cannot keep the kernel in {folder}: {error.strerror}") from error
    except UnreadableError as error:
        raise StorageError(f"{folder}: the kernel's record cannot be read: {error}", hint=f"rm -r {folder}") from None


def _note(asked: Key) -> Path:
    return cache.entry_path(KIND, {"asked": asked}).with_suffix(".note")


def _read(folder: Path) -> Kernel:
    kernel = reading.stored(folder / RECORD, Kernel)
    image = folder / kernel.image
    image.stat()
    return msgspec.structs.replace(
        kernel,
        image=str(image),
        modules=tuple(str(folder / module) for module in kernel.modules),
        config=None if kernel.config is None else str(folder / kernel.config),
    )


NO = "n"

_SET = re.compile(r"CONFIG_(?P<symbol>\w+)=(?P<value>.*)")
_NOT_SET = re.compile(r"# CONFIG_(?P<symbol>\w+) is not set")
_PAGES = (("ARM64_64K_PAGES", 65536), ("ARM64_16K_PAGES", 16384))


class SymbolDifference(msgspec.Struct, frozen=True):
    """A symbol that two configurations set differently; `n`: it is not set, or not there."""

    symbol: str
    first: str
    second: str


def parse(text: str) -> dict[str, str]:
    """Return the symbols of a configuration or fragment without `CONFIG_` (`n`: not set). Raises ValueError naming a
    line.
    """
    symbols: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if (match := _SET.fullmatch(stripped)) is not None:
            symbols[match["symbol"]] = match["value"]
        elif (match := _NOT_SET.fullmatch(stripped)) is not None:
            symbols[match["symbol"]] = NO
        elif stripped and not stripped.startswith("#"):
            raise ValueError(f"line {number}: {stripped!r} is neither CONFIG_X=... nor # CONFIG_X is not set")
    return symbols


def merged_fragments(fragments: Iterable[str]) -> dict[str, str]:
    """Merge fragments: where two name a symbol, the later one counts. Raises ValueError."""
    asked: dict[str, str] = {}
    for fragment in fragments:
        asked.update(parse(fragment))
    return asked


def merged(base: str, fragments: Iterable[str]) -> str:
    """Return a configuration for `make olddefconfig`: the base overridden by the fragments."""
    asked = merged_fragments(fragments)
    kept = [f"CONFIG_{symbol}={value}" for symbol, value in parse(base).items() if symbol not in asked]
    return "\n".join((*kept, *(f"CONFIG_{symbol}={value}" for symbol, value in asked.items()))) + "\n"


def unmet(fragments: Iterable[str], config: str) -> list[SymbolDifference]:
    """Return the symbols that fragments ask for (`first`; later ones win) and the configuration lacks."""
    there = parse(config)
    return [
        SymbolDifference(symbol, value, there.get(symbol, NO))
        for symbol, value in merged_fragments(fragments).items()
        if there.get(symbol, NO) != value
    ]


def differing(first: str, second: str) -> list[SymbolDifference]:
    """Return the symbols, sorted, that two configurations set differently, with the compiler among them."""
    symbols, other = parse(first), parse(second)
    return [
        SymbolDifference(symbol, symbols.get(symbol, NO), other.get(symbol, NO))
        for symbol in sorted(symbols.keys() | other.keys())
        if symbols.get(symbol, NO) != other.get(symbol, NO)
    ]


def base_page(config: Mapping[str, str]) -> int:
    """Return bytes of a base page under a parsed configuration of x86-64 or arm64."""
    return next((size for symbol, size in _PAGES if config.get(symbol) == "y"), 4096)
