"""Kernels in the cache, their configurations, and the building of one, in a sandbox, as the unprivileged account.

A kernel is a folder with the image, its configuration and modules, named by what it was made of; a note says which
folder a package's name or a recipe was when it was last had. A configuration (.config) and a fragment have the same
form: `CONFIG_NET=y`, `# CONFIG_SWAP is not set`. A symbol that is not in a configuration is not set.

A recipe is `make tinyconfig` with fragments over it, which lie beside this file: `pv-*` differ in paravirtualisation,
`arm64-*` in the base page. Each fragment is checked against the configuration that comes out, as the kernel's tools
drop silently what cannot be. The same source, fragments and compiler give the same kernel.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import IO

import msgspec

from hugewise import reading, unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.files import storing, write_whole
from hugewise.guests import cache, debian
from hugewise.guests.cache import open_sandbox
from hugewise.guests.debian import Package
from hugewise.model.guest import HARDWARE, Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.quantity import format_duration
from hugewise.reading import UnreadableError
from hugewise.unprivileged import Say

# Symbols of the configuration without which a guest does not come up, or cannot be asked.
NEEDED = (
    *("BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "SYSFS", "TMPFS", "DEVTMPFS", "UNIX98_PTYS", "CGROUPS"),
    *("PROC_PAGE_MONITOR", "VIRTIO_PCI", "VIRTIO_CONSOLE", "VIRTIO_BLK", "EXT4_FS"),
)


def lacking_symbols(config: Mapping[str, str], *, loadable: bool = True) -> list[str]:
    """Return the needed symbols that a configuration lacks, built in or, where modules are `loadable`, as a module."""
    return [symbol for symbol in NEEDED if config.get(symbol) not in (("y", "m") if loadable else ("y",))]


KIND = "kernels"
IMAGE, CONFIG, MODULES, RECORD = "image", "config", "modules", "kernel.json"

Key = Mapping[str, object]


def write_record(folder: Path, kernel: Kernel) -> None:
    """Put down what is known of the kernel in the folder; its paths are relative to it."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kernel), indent=1))


def find_kernel(asked: Key) -> Kernel | None:
    """Return the kernel that was had for what is asked, if it is in the cache still."""
    note = _note(asked)
    try:
        return _read(note.with_name(note.read_text(encoding="utf-8").strip()))
    except (OSError, ValueError):
        return None


def make_or_find(asked: Key, made_of: Key, make: Callable[[Path], None]) -> Kernel:
    """Return the kernel, made by `make` if need be, and noted as had for `asked`. Raises StorageError."""
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


def parse_config(text: str) -> dict[str, str]:
    """Return a configuration's symbols without `CONFIG_` (`n`: not set). Raises ValueError naming a line."""
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
        asked.update(parse_config(fragment))
    return asked


def merged_config(base: str, fragments: Iterable[str]) -> str:
    """Return a configuration for `make olddefconfig`: the base overridden by the fragments."""
    asked = merged_fragments(fragments)
    kept = [f"CONFIG_{symbol}={value}" for symbol, value in parse_config(base).items() if symbol not in asked]
    return "\n".join((*kept, *(f"CONFIG_{symbol}={value}" for symbol, value in asked.items()))) + "\n"


def unmet_symbols(fragments: Iterable[str], config: str) -> list[SymbolDifference]:
    """Return the symbols that fragments ask for (`first`; later ones win) and the configuration lacks."""
    there = parse_config(config)
    return [
        SymbolDifference(symbol, value, there.get(symbol, NO))
        for symbol, value in merged_fragments(fragments).items()
        if there.get(symbol, NO) != value
    ]


def differing_symbols(first: str, second: str) -> list[SymbolDifference]:
    """Return the symbols, sorted, that two configurations set differently, with the compiler among them."""
    symbols, other = parse_config(first), parse_config(second)
    return [
        SymbolDifference(symbol, symbols.get(symbol, NO), other.get(symbol, NO))
        for symbol in sorted(symbols.keys() | other.keys())
        if symbols.get(symbol, NO) != other.get(symbol, NO)
    ]


def base_page(config: Mapping[str, str]) -> int:
    """Return bytes of a base page under a parsed configuration of x86-64 or arm64."""
    return next((size for symbol, size in _PAGES if config.get(symbol) == "y"), 4096)


BUILD_DISK = "3 GB"
"""Space that a build takes below /var/tmp: most of it is the unpacked source."""

_PATIENCE_S = 3600.0
_FULL = f"a build needs {BUILD_DISK} there: free space, or mount some at it"
_PACKAGE = re.compile(r"linux-source-\d[0-9.]*")


def of_debian(suite: str, arch: Architecture, say: Say) -> Package:
    """Return the suite's `linux-source`, resolved but not fetched yet. Raises UserError."""
    resolved = debian.resolve(["linux-source"], suite, debian.ARCHITECTURES[arch], say)
    sources = [entry for entry in resolved if _PACKAGE.fullmatch(entry.name)]
    if len(sources) != 1:
        names = ", ".join(entry.name for entry in sources) or "none"
        raise UserError(f"linux-source of Debian {suite} does not bring one source of Linux: it brings {names}")
    return sources[0]


def _unpack(deb: Path, folder: Path, name: str) -> None:
    beside = folder.with_name(f"{folder.name}.deb")
    beside.mkdir()
    debian.unpack(deb, beside, only=["./usr/src/*"])
    tarballs = sorted(debian.resolve_inside(beside, "/usr/src").glob("linux-source-*.tar.*"))
    if len(tarballs) != 1 or tarballs[0].is_symlink():
        raise UserError(f"{name} has {len(tarballs)} tarballs below /usr/src, not one")
    folder.mkdir()
    # tar knows the compression by the file's content, and follows no link of the tarball out of the folder.
    command = ("tar", "--extract", "--file", str(tarballs[0]), "--directory", str(folder))
    done = unprivileged.run((*command, "--strip-components=1", "--no-same-owner"), timeout=_PATIENCE_S)
    if done.status != 0:
        why = done.stderr.strip().splitlines() or ["no reason given"]
        raise StorageError(f"cannot unpack {name} to {folder}: {why[0]}", hint=_FULL)
    tarballs[0].unlink()


SUITE = "trixie"  # release whose linux-source the fragments are written for

# Fragments under all kernels of an architecture: needs of the agent and the workloads.
_BASE: Mapping[Architecture, tuple[str, ...]] = MappingProxyType(
    {"x86-64": ("common", "x86"), "arm64": ("common", "arm64")}
)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel to build; `texts`: its fragments in the order to apply them."""

    name: str
    arch: Architecture
    texts: tuple[str, ...]


def _fragment(name: str) -> str:
    return resources.files(__package__).joinpath("fragments", f"{name}.config").read_text(encoding="utf-8")


_OWN: Mapping[Architecture, tuple[str, ...]] = MappingProxyType(
    {"x86-64": ("pv-none", "pv-plain", "pv-xxl"), "arm64": ("arm64-4k", "arm64-16k", "arm64-64k")}
)
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        name: Recipe(name=name, arch=arch, texts=tuple(map(_fragment, (*_BASE[arch], name))))
        for arch, names in _OWN.items()
        for name in names
    }
)


# make's ARCH, its target, and the image that it makes.
ARCH: Mapping[Architecture, str] = {"x86-64": "x86_64", "arm64": "arm64"}
IMAGES: Mapping[Architecture, tuple[str, str]] = {
    "x86-64": ("bzImage", "arch/x86/boot/bzImage"),
    "arm64": ("Image", "arch/arm64/boot/Image"),
}
_PACKAGES: Mapping[str, str] = {
    "make": "make",
    "gcc": "gcc",
    "ld": "binutils",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "perl": "perl",
    "tar": "tar",
    "xz": "xz-utils",
    "gzip": "gzip",
    "dpkg-deb": "dpkg",
}
# objtool, which x86 kernels are built with, reads ELF files with this library.
_HEADERS: Mapping[Architecture, tuple[tuple[str, str], ...]] = {"x86-64": (("gelf.h", "libelf-dev"),), "arm64": ()}


def cross_compile_prefix(arch: Architecture) -> str:
    """CROSS_COMPILE: what the tools for that architecture are called before `gcc`; empty for this machine's own."""
    hardware = HARDWARE[arch]
    return "" if os.uname().machine == hardware else f"{hardware}-linux-gnu-"


def missing_tools(arch: Architecture) -> tuple[Missing, ...]:
    """Return what this machine lacks to build kernels of that architecture."""
    wanted = dict(_PACKAGES)
    if tools := cross_compile_prefix(arch):
        package = f"gcc-{tools.rstrip('-')}".replace("_", "-")
        wanted[f"{tools}gcc"] = package
    lacking = [
        Missing(f"no {name} to build kernels with", lacking_package)
        for name, lacking_package in wanted.items()
        if not _on_path(name)
    ]
    for header, lacking_package in _HEADERS[arch]:
        if not _on_path("gcc"):
            lacking.append(Missing(f"no gcc to look for {header} with", lacking_package))
        elif not _includes(header):
            lacking.append(Missing(f"no {header} to build kernels with", lacking_package))
    return tuple(lacking)


def _on_path(name: str) -> bool:
    return shutil.which(name) is not None


@functools.cache
def _includes(header: str) -> bool:
    try:  # the one that make finds
        return unprivileged.run(["gcc", "-E", "-x", "c", "-include", header, "/dev/null"]).status == 0
    except HugewiseError:
        return False


@functools.cache
def compiler_version(arch: Architecture) -> str:
    """Return the versions of the compiler and the linker of such kernels. Raises UserError."""
    versions = []
    for tool in ("gcc", "ld"):
        program = f"{cross_compile_prefix(arch)}{tool}"
        why = ""
        try:
            done = unprivileged.run([program, "--version"])
            why = done.why if done.status != 0 else ""
        except HugewiseError as error:
            why = error.message
        if why:
            lacking = missing_tools(arch)
            packages = " ".join(dict.fromkeys(missing.package for missing in lacking if missing.package))
            raise UserError(
                f"kernels of {arch} cannot be built here: {program}: {why}",
                hint=f"apt install {packages}" if packages else f"is {program} whole?",
            )
        versions.append(done.stdout.partition("\n")[0].strip())
    return "; ".join(versions)


_FORMAT = 1
_EVERY_S = 15.0  # between two lines of progress
_LAST_LINES = 12  # of the log, in an error
_LONGEST = 1 << 16  # bytes of a line
_MOST_LOGGED = 64 << 20  # characters of each build's log
_STEP = re.compile(r"  (CC|AS|LD|AR|HOSTCC|HOSTLD|GEN|UPD|WRAP|VDSO|KSYMS|OBJCOPY) ")
_FIXED = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "KBUILD_BUILD_TIMESTAMP": "Thu Jan  1 00:00:00 UTC 1970",
    "KBUILD_BUILD_USER": "hugewise",
    "KBUILD_BUILD_HOST": "hugewise",
    "KBUILD_BUILD_VERSION": "1",
}


def build_key(recipe: Recipe, source: str) -> Key:
    """Return the key of the requested build; `source`: the suite of its linux-source, or the package's SHA-256."""
    return {
        "symbols": merged_fragments(recipe.texts),
        "name": recipe.name,  # part of the release
        "arch": recipe.arch,
        "compiler": compiler_version(recipe.arch),
        "source": source,
        "format": _FORMAT,
    }


def provide(recipe: Recipe, source: Package, wanted: Key, say: Say) -> Kernel:
    """Return the kernel of that recipe and source, built if it is not cached. Raises UserError, HugewiseError."""
    made_of = {**build_key(recipe, source.sha256), "source": source.sha256}
    log = cache.entry_path(KIND, made_of).with_suffix(".log")  # kept also when the build fails
    return make_or_find(wanted, made_of, lambda folder: _make(recipe, source, folder, log, say))


def _make(recipe: Recipe, source: Package, folder: Path, log: Path, say: Say) -> None:
    if lacking := missing_tools(recipe.arch):
        raise UserError(
            f"the kernel {recipe.name} cannot be built: " + "; ".join(missing.reason for missing in lacking),
            hint="apt install " + " ".join(dict.fromkeys(missing.package for missing in lacking if missing.package)),
        )
    with storing(str(log)):
        writing = log.open("w+", encoding="utf-8", errors="replace")
    with open_sandbox() as sandbox, writing:
        lent = sandbox.lend(debian.fetch([source], say)[0], "source.deb", kept=True)
        keep = (writing.fileno(),)
        sandbox.do(lambda tell: _build(recipe, source, lent, sandbox.own, log=writing, say=tell), say, keep=keep)
        sandbox.take("made", folder)


def _build(recipe: Recipe, source: Package, lent: Path, own: Path, *, log: IO[str], say: Say) -> None:
    tree, objects, folder = own / "source", own / "objects", own / "made"
    objects.mkdir()
    folder.mkdir()
    origin = f"{source.name} {source.version}"
    say(f"unpacking {origin}")
    _unpack(lent, tree, origin)
    began = time.monotonic()
    make = _Make(recipe, tree, objects, log, say)
    config = _configure(recipe, make, objects)
    target, image = IMAGES[recipe.arch]
    say(f"building {recipe.name}; the log is {log.name}")
    make(target, progress=True)
    took = f"{make.cpu_s:.0f} s of CPU time, {time.monotonic() - began:.0f} s"
    log.write(f"hugewise: {recipe.name} took {took}\n")
    log.flush()
    say(f"built {recipe.name}: {took}")
    release = (objects / "include/config/kernel.release").read_text(encoding="utf-8").strip()
    shutil.copyfile(objects / image, folder / IMAGE)
    (folder / CONFIG).write_text(config, encoding="utf-8")
    kernel = Kernel(
        name=recipe.name,
        arch=recipe.arch,
        image=IMAGE,
        digest=cache.sha256(folder / IMAGE),
        release=release,
        config=CONFIG,
        origin=f"built from {origin} (SHA-256 {source.sha256}) by the recipe {recipe.name},"
        f" {compiler_version(recipe.arch)}",
    )
    write_record(folder, kernel)


def _configure(recipe: Recipe, make: _Make, objects: Path) -> str:
    make("tinyconfig")
    path = objects / ".config"
    path.write_text(merged_config(path.read_text(encoding="utf-8"), recipe.texts), encoding="utf-8")
    make("olddefconfig")
    config = path.read_text(encoding="utf-8")
    check_config(recipe, config)
    return config


def check_config(recipe: Recipe, config: str) -> None:
    """Raise UserError where the configuration is not what the recipe's fragments ask for, or unfit for a guest."""
    dropped = unmet_symbols(recipe.texts, config)
    if dropped:
        symbols = ", ".join(
            f"CONFIG_{difference.symbol}={difference.first} (it is {difference.second})" for difference in dropped
        )
        raise UserError(
            f"the kernel {recipe.name}: the source's configuration does not take {symbols}",
            hint=f"the fragments are written for linux-source of Debian {SUITE}",
        )
    lacking = lacking_symbols(parse_config(config))
    if lacking:
        raise UserError(f"the kernel {recipe.name} cannot be a guest's: it lacks {', '.join(lacking)}")


class _Make:
    def __init__(self, recipe: Recipe, tree: Path, objects: Path, log: IO[str], say: Say) -> None:
        self.cpu_s = 0.0
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._before = used.ru_utime + used.ru_stime
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._room = _MOST_LOGGED
        self._recipe = recipe
        self._log = log
        self._objects = objects
        self.say = say
        arch: Architecture = recipe.arch
        self._command = (
            *("make", "-C", str(tree), f"O={objects}", f"ARCH={ARCH[arch]}"),
            *(f"CROSS_COMPILE={cross_compile_prefix(arch)}", f"LOCALVERSION=-{recipe.name}"),
            f"-j{len(os.sched_getaffinity(0))}",
        )

    def __call__(self, target: str, *, progress: bool = False) -> None:
        # The user's environment of flags, compilers and architectures is for other builds.
        environment = {"PATH": os.environ.get("PATH", os.defpath), **_FIXED}
        # The output goes through this process: if it is killed, make loses its reader, and ends.
        with subprocess.Popen(
            (*self._command, target), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            try:
                self._follow(running.stdout, progress=progress)
            except BaseException:
                os.killpg(running.pid, signal.SIGKILL)
                raise
            finally:
                self._log.flush()  # this process may end without flushing
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s = used.ru_utime + used.ru_stime - self._before
        if running.returncode != 0:
            tail = self._last
            if any(os.strerror(errno.ENOSPC) in line for line in tail):
                raise StorageError(
                    f"the kernel {self._recipe.name} could not be built: no space is left on the disk of"
                    f" {self._objects}, or of {self._log.name}",
                    hint=f"a build needs {BUILD_DISK} below /var/tmp: free space there, or mount some at it",
                )
            raise HugewiseError(
                "\n".join((f"the kernel {self._recipe.name} could not be built (make {target} failed):", *tail)),
                hint=f"the whole log is {self._log.name}",
            )

    def _follow(self, lines: IO[str], *, progress: bool) -> None:
        steps = 0
        began = reported = time.monotonic()
        while line := lines.readline(_LONGEST):
            self._last.append(line.rstrip("\n"))
            self._room -= len(line)
            if self._room > 0:
                self._log.write(line)
            steps += _STEP.match(line) is not None
            if progress and time.monotonic() - reported >= _EVERY_S:
                reported = time.monotonic()
                self.say(
                    f"building {self._recipe.name}: {steps} files made, {format_duration(reported - began)} so far"
                )
