"""The kernels that guests boot: the user's file, a Debian package, or one built by a recipe."""

from __future__ import annotations

import difflib
import gzip
import lzma
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian
from hugewise.guests.cache import open_sandbox
from hugewise.guests.debian import Package, resolve_inside
from hugewise.guests.kernels import build
from hugewise.guests.kernels.build import RECIPES, SUITE, Recipe, SymbolDifference
from hugewise.machine.loader import MAGIC
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.reading import UnreadableError, content
from hugewise.study.guest import KernelUse
from hugewise.unprivileged import Say


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


_FORMAT = 4  # of a package's record
# An image of a version, and modules of one where Debian splits them off; not a meta-package such as linux-image-amd64.
_IMAGE = re.compile(r"linux-image-(unsigned-)?\d[a-z0-9.+~-]*")
_MODULES = re.compile(r"linux-(modules|binary)-\d[a-z0-9.+~-]*")
# Most of a package; no guest of QEMU needs them.
_LEFT_OUT = (
    *(f"*/kernel/{each}/*" for each in ("sound", "drivers/gpu", "drivers/media", "drivers/staging")),
    *("./usr/share/*", "./usr/lib/linux-image-*"),
)


def package_key(package: str, arch: Architecture, suite: str) -> build.Key:
    """Return the key of a package with its archive: the same name in another archive is another kernel."""
    archive = debian.archive(suite, debian.ARCHITECTURES[arch])
    return {"package": package, "arch": arch, "suite": suite, "archive": archive, "format": _FORMAT}


def chosen(package: str, resolved: Sequence[Package]) -> tuple[Package, ...]:
    """Return those of a package's dependencies that hold the kernel and its modules. Pure. Raises UserError."""
    images = [candidate for candidate in resolved if _IMAGE.fullmatch(candidate.name)]
    named = [candidate for candidate in images if candidate.name == package] or images
    if len(named) != 1:
        names = ", ".join(candidate.name for candidate in images) or "none"
        raise UserError(
            f"the package {package} does not bring one kernel: it brings {names}",
            hint="name a kernel's package, such as linux-image-amd64 or linux-image-arm64-16k",
        )
    return (named[0], *(candidate for candidate in resolved if _MODULES.fullmatch(candidate.name)))


def provide_package(package: str, arch: Architecture, suite: str, say: Say) -> Kernel:
    """Return the kernel that the package brings now. Raises UserError, StorageError."""
    resolved = debian.resolve([package], suite, debian.ARCHITECTURES[arch], say)
    parts = chosen(package, resolved)
    origin = "Debian package " + " and ".join(f"{part.name} {part.version} (SHA-256 {part.sha256})" for part in parts)
    made_of = {"packages": [part.sha256 for part in parts], "arch": arch, "format": _FORMAT}

    def make(folder: Path) -> None:
        files = debian.fetch(parts, say)
        with open_sandbox() as sandbox:
            lent = [sandbox.lend(file, f"{number}.deb", kept=True) for number, file in enumerate(files)]

            def fill(tell: Say) -> None:
                tell(f"unpacking {parts[0].name}")
                tree, made = sandbox.own / "tree", sandbox.own / "made"
                tree.mkdir()
                made.mkdir()
                for file in lent:
                    debian.unpack(file, tree, without=_LEFT_OUT)
                _take(package, arch, tree, made, origin)

            sandbox.do(fill, say)
            sandbox.take("made", folder)

    return build.make_or_find(package_key(package, arch, suite), made_of, make)


def _take(package: str, arch: Architecture, tree: Path, folder: Path, origin: str) -> None:
    images = sorted(resolve_inside(tree, "/boot").glob("vmlinu[xz]-*"))
    if len(images) != 1:
        raise UserError(f"the package {package} has {len(images)} kernels below /boot, not one")
    image = images[0]
    release = image.name.partition("-")[2]
    config = image.with_name(f"config-{release}")
    kept = []
    try:
        text = _plain(config).read_text(encoding="utf-8")
        (folder / build.CONFIG).write_text(text, encoding="utf-8")
        _check(package, text)
        needed = needed_in(_modules(tree, release))
        (folder / build.MODULES).mkdir()
        for number, module in enumerate(needed):
            # An emulated guest takes seconds to unpack what this host unpacks once.
            kept.append(f"{build.MODULES}/{number:02}-{module.name.partition('.ko')[0]}.ko")
            (folder / kept[-1]).write_bytes(unpacked(_plain(module)))
        shutil.copyfile(_plain(image), folder / build.IMAGE)
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot take the kernel of {package}: {error}") from error
    kernel = Kernel(
        name=package,
        arch=arch,
        image=build.IMAGE,
        digest=cache.sha256(folder / build.IMAGE),
        release=release,
        modules=tuple(kept),
        config=build.CONFIG,
        origin=origin,
    )
    build.write_record(folder, kernel)


def _plain(path: Path) -> Path:
    # A link could lead to a file of this host.
    if path.is_symlink():
        raise StorageError(f"{path} is a link, and no file")
    return path


def _modules(tree: Path, release: str) -> Path:
    # /lib/modules is below /usr since Debian 13
    places = [resolve_inside(tree, f"{top}/{release}") for top in ("usr/lib/modules", "lib/modules")]
    return next((place for place in places if place.is_dir()), places[0])


def _check(package: str, config: str) -> None:
    lacking = build.lacking_symbols(build.parse_config(config))
    if lacking:
        raise UserError(
            f"the kernel of {package} cannot be a guest's: its configuration lacks {', '.join(lacking)}",
            hint="name another package, such as linux-image-amd64 or linux-image-arm64",
        )


def kernel_of_path(name: str, path: str, folder: str | None, arch: Architecture) -> Kernel:
    """Return the kernel in the file `path`, with what guests need of the modules below `folder`. Raises UserError."""
    image = Path(path)
    try:
        data = content(image)
    except UnreadableError as error:
        hint = "name a bzImage or Image that you may read"
        raise UserError(f"the kernel {name} cannot be read: {path}: {error}", hint=hint) from None
    about = about_image(data)
    if about is None:
        raise UserError(f"the kernel {name} is neither a bzImage nor an arm64 Image: {path}")
    image_arch, release = about
    if image_arch != arch:
        hint = f'write [guest] arch = "{image_arch}", or name a kernel of {arch}'
        raise UserError(f"the kernel {name} is one of {image_arch}, and the guests are {arch}: {path}", hint=hint)
    needed = () if folder is None else needed_in(Path(folder))
    beside = (
        image.with_name(f"config-{image.name.partition('-')[2]}") if "-" in image.name else image.with_name("config")
    )
    if beside.is_file():
        _check_image(name, beside, loadable=folder is not None)
    return Kernel(
        name=name,
        arch=arch,
        image=str(image),
        digest=cache.sha256(image),
        release=release or "unknown",
        modules=tuple(str(module) for module in needed),
        config=str(beside) if beside.is_file() else None,
        origin=f"the file {path}",
    )


def _check_image(name: str, beside: Path, *, loadable: bool) -> None:
    try:
        lacking = build.lacking_symbols(
            build.parse_config(content(beside).decode("utf-8", "replace")), loadable=loadable
        )
    except (UnreadableError, ValueError):
        return  # its page size and symbols are not reported then, and the boot shows the rest
    if lacking:
        symbols = ", ".join(f"CONFIG_{symbol}" for symbol in lacking)
        hint = "build these in" + ("" if loadable else ', or name its modules: modules = "/lib/modules/RELEASE"')
        raise UserError(f"the kernel {name} cannot be a guest's: {beside} lacks {symbols}", hint=hint)


# Measured of the recipes, with gcc 12 on an AMD EPYC: 13 to 15 minutes.
BUILD_CPU_MIN = 15


def build_cost() -> str:
    """Return the cost of building a kernel, in words."""
    cpus = len(os.sched_getaffinity(0))
    here = (
        f"about {max(1, round(BUILD_CPU_MIN / cpus))} on this host's {cpus} CPUs" if cpus > 1 else "this host has 1 CPU"
    )
    return f"{BUILD_CPU_MIN} minutes of CPU time ({here}) and {build.BUILD_DISK} below /var/tmp meanwhile, once"


def available(use: KernelUse, arch: Architecture, suite: str) -> Kernel | None:
    """Return the cached kernel that the study means, or None. Raises UserError for an unfit file or recipe."""
    if use.path is not None:
        return kernel_of_path(use.name, use.path, use.modules, arch)
    if use.build is not None:
        wanted = recipe(use.build, arch)
        # The build's key depends on the compiler.
        kernel = None if build.missing_tools(arch) else build.find_kernel(build.build_key(wanted, use.suite or SUITE))
    else:
        kernel = build.find_kernel(package_key(_package(use), arch, suite))
    return None if kernel is None else _named(kernel, use)


def provide(use: KernelUse, arch: Architecture, suite: str, say: Say) -> Kernel:
    """Return the kernel that the study means, fetched or built. Raises UserError, StorageError, HugewiseError."""
    kernel = available(use, arch, suite)
    if kernel is not None:
        return kernel
    if use.build is not None:
        chosen, place = recipe(use.build, arch), use.suite or SUITE
        wanted = build.build_key(chosen, place)
        kernel = build.provide(chosen, build.of_debian(place, arch, say), wanted, say)
    else:
        kernel = provide_package(_package(use), arch, suite, say)
    return _named(kernel, use)


def missing(use: KernelUse, arch: Architecture) -> tuple[Missing, ...]:
    """Return what this machine lacks to build the kernel, or to find a built one: the compilers are part of its key."""
    return () if use.build is None else build.missing_tools(arch)


def recipe(name: str, arch: Architecture) -> Recipe:
    """Return the recipe of that name. Raises UserError where there is none, or it is for another architecture."""
    known = RECIPES.get(name)
    if known is None:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"recipes: {', '.join(RECIPES)}"
        raise UserError(f"there is no recipe {name} for a kernel", hint=hint)
    if known.arch != arch:
        others = ", ".join(other.name for other in RECIPES.values() if other.arch == arch)
        raise UserError(f"the recipe {name} is for {known.arch}, and the guests are {arch}", hint=f"recipes: {others}")
    return known


def difference(first: Kernel, second: Kernel) -> list[SymbolDifference] | None:
    """Return the symbols that their configurations set differently; None where one of them is not known."""
    texts = [_config(kernel) for kernel in (first, second)]
    return None if texts[0] is None or texts[1] is None else build.differing_symbols(texts[0], texts[1])


def base_page(kernel: Kernel) -> int | None:
    """Return bytes of its base page, where its configuration is known."""
    text = _config(kernel)
    return None if text is None else build.base_page(build.parse_config(text))


def _config(kernel: Kernel) -> str | None:
    if kernel.config is None:
        return None
    try:
        return Path(kernel.config).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"the configuration of {kernel.name} cannot be read: {kernel.config}: {error}") from None


def _package(use: KernelUse) -> str:
    assert use.package is not None, "a kernel has one of path, package and build"
    return use.package


def _named(kernel: Kernel, use: KernelUse) -> Kernel:
    return msgspec.structs.replace(kernel, name=use.name)
