"""Which modules a guest needs of a kernel, in the order to load them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from hugewise.errors import UserError
from hugewise.guests.kernels.elf import Module, about_module
from hugewise.model.guest import Kernel

__all__ = [
    "NEEDED",
    "WANTED",
    "denied",
    "index",
    "lacking",
    "load_order",
    "needed_in",
    "without_disks",
    "without_nfs",
]

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
