"""Projects that are built from a source archive: where it is, and how its tree is configured and made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from hugewise.machine import programs
from hugewise.model.workload import Missing
from hugewise.workloads import _program
from hugewise.workloads._parameters import Values

__all__ = ["PROJECTS", "Project", "artefact", "configure", "left_out", "make", "missing", "project", "source", "target"]

# Sources that no target below kernel/, mm/, lib/ and the like is made of. Kconfig files are kept: make looks at them.
_NOT_NEEDED = (
    "*/Documentation/*.*",
    *(f"*/{folder}/*.[chS]" for folder in ("drivers", "sound", "fs", "net", "samples")),
    "*/tools/testing/*",
    "*/tools/perf/*",
    "*.dts*",
)
_BY_THEMSELVES = ("block", "crypto", "init", "io_uring", "ipc", "kernel", "lib", "mm", "security")
_ARCHITECTURES = (
    *("alpha", "arc", "arm", "arm64", "csky", "hexagon", "ia64", "loongarch", "m68k", "microblaze", "mips", "nios2"),
    *("openrisc", "parisc", "powerpc", "riscv", "s390", "sh", "sparc", "xtensa"),
)
_KEPT = {
    "aarch64": ("arm64", "arm"),
    "ppc64le": ("powerpc",),
}  # the kernel's names where they differ, and what they use


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """How a source tree is had, configured and made.

    target      what is made where the study does not say it
    artefact    what is compared then
    configure   the commands, from configuration and jobs
    options     make's variables, from the tree's folder and the configuration
    programs    that it needs beside those of every build, with their packages
    headers     likewise
    usual       where Debian puts the archive of its sources, and an image those that its guest was made with
    lacking     what to say where there is no archive, and the package that has one
    below       a target FOLDER/NAME is NAME of the makefile in that folder
    parts       targets that need a part of the tree alone: what of the archive is not unpacked for them
    """

    target: str
    artefact: str
    configure: Callable[[str, int], list[tuple[str, ...]]]
    options: Callable[[str, str], tuple[str, ...]]
    programs: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    usual: str | None = None
    lacking: Missing
    below: bool = False
    parts: Mapping[str, tuple[str, ...]] = {}


def _configure_linux(config: str, jobs: int) -> list[tuple[str, ...]]:
    return [("make", config or "tinyconfig"), ("make", f"-j{jobs}", "prepare", "scripts")]


def _configure_gdb(config: str, jobs: int) -> list[tuple[str, ...]]:
    """The top level alone: its parts are configured by make, which as published is timed."""
    del jobs
    options = config or "--disable-nls --disable-werror --disable-sim --without-python --without-guile"
    return [("./configure", "--quiet", *options.split())]


def _debug_options(tree: str, config: str) -> tuple[str, ...]:
    del config
    flags = f"-g -O2 -ffile-prefix-map={tree}=."
    return (f"CFLAGS={flags}", f"CXXFLAGS={flags}", "MAKEINFO=true")


def _own_flags(tree: str, config: str) -> tuple[str, ...]:
    """Added to Lua's -O2."""
    del tree
    return (f"MYCFLAGS={config}",) if config else ()


def _from_debian(whose: str, package: str) -> Missing:
    return Missing(
        f'{whose} sources: cp "$(hugewise guest source {package})" /usr/src/ puts them where they are looked for; or'
        f" name an archive, source = '/path/to/{package}_VERSION.orig.tar.xz'"
    )


# GDB's programs and its other libraries, of which that of small functions needs none.
_NOT_OF_LIBIBERTY = tuple(
    f"*/{folder}"
    for folder in (
        *("bfd", "cpu", "gdb", "gdbserver", "gdbsupport", "gnulib", "libbacktrace", "libctf", "libdecnumber"),
        *("libsframe", "opcodes", "readline", "sim", "texinfo", "zlib"),
    )
)

_COMMON_PROGRAMS = {"make": "make", "gcc": "gcc", "tar": "tar", "xz": "xz-utils"}
# gcc links nothing without the C library's part; a kernel too has programs that help to build it.
_COMMON_HEADERS = {"stdio.h": "libc6-dev"}
# Headers of linux: what configurations above the smallest one need.
PROJECTS = {
    "linux": Project(
        target="mm/",
        artefact="mm",
        configure=_configure_linux,
        options=lambda *_: (),
        programs={"flex": "flex", "bison": "bison", "bc": "bc"},
        headers={"libelf.h": "libelf-dev", "openssl/opensslv.h": "libssl-dev"},
        usual="/usr/src/linux-source-*.tar.*",
        lacking=Missing("the kernel's sources: /usr/src/linux-source-*.tar.* is not there", "linux-source"),
    ),
    "gdb": Project(
        target="all-gdb",
        artefact="gdb/gdb",
        configure=_configure_gdb,
        options=_debug_options,
        programs={"g++": "g++", "flex": "flex", "bison": "bison", "cmp": "diffutils"},
        headers={"gmp.h": "libgmp-dev", "mpfr.h": "libmpfr-dev"},
        usual="/usr/src/gdb_*.orig.tar.*",
        lacking=_from_debian("GDB's", "gdb"),
        parts={"all-libiberty": _NOT_OF_LIBIBERTY},
    ),
    "lua": Project(
        target="linux",  # 33 files, without readline
        artefact="src",
        configure=lambda *_: [],
        options=_own_flags,
        usual="/usr/src/lua5*.orig.tar.*",
        lacking=_from_debian("Lua's", "lua5.4"),
        below=True,
    ),
    "make": Project(
        target="all",
        artefact=".",
        configure=lambda *_: [],
        options=lambda *_: (),
        lacking=Missing("the sources: name the archive, source = '/path/to/archive.tar.xz'"),
    ),
}


def project(values: Values) -> Project:
    """The one that the parameters name."""
    return PROJECTS[str(values["project"])]


def source(values: Values) -> str | None:
    """The archive: as named, or the newest where Debian puts the project's sources; None where there is none."""
    if values["source"]:
        return str(values["source"])
    pattern = project(values).usual
    return None if pattern is None else max(programs.matching(pattern), key=_version, default=None)


def _version(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", Path(path).name)]


def target(values: Values) -> str:
    """What is made."""
    return str(values["target"] or project(values).target)


def artefact(values: Values) -> str:
    """What is compared: as named; the folder that a target is, or is of; the kernel, or the project's own program."""
    if values["artefact"]:
        return str(values["artefact"])
    made = target(values)
    if made.endswith("/"):
        return made.rstrip("/")
    if values["project"] == "gdb" and made != project(values).target and made.startswith("all-"):
        return made.removeprefix("all-")
    return "vmlinux" if values["project"] == "linux" else project(values).artefact


def left_out(values: Values) -> tuple[str, ...]:
    """Patterns of what is not unpacked: nothing, but for a target that is made of few folders."""
    if target(values) in project(values).parts:
        return project(values).parts[target(values)]
    if values["project"] != "linux" or target(values).split("/")[0] not in _BY_THEMSELVES:
        return ()
    machine = programs.machine()
    kept = _KEPT.get(machine, (machine.rstrip("0123456789le"), machine))
    others = [f"*/arch/{name}/*.*" for name in _ARCHITECTURES if name not in kept]
    return (*_NOT_NEEDED, *others)


def missing(values: Values) -> Iterator[Missing]:
    """Programs and headers that a build needs and that are not there."""
    yield from _program.not_on_path({**_COMMON_PROGRAMS, **project(values).programs}.items())
    headers = _COMMON_HEADERS
    if values["project"] != "linux" or (values["config"] or "tinyconfig") != "tinyconfig":
        headers = {**headers, **project(values).headers}
    in_image = programs.place() is not None
    for header, package in headers.items():
        if in_image and programs.installed(package) is None:
            yield Missing(f"{header}: no such header in the image", package)
        if in_image:
            continue
        folders = [Path("/usr/include"), *Path("/usr/include").glob("*-linux-gnu*"), Path("/usr/local/include")]
        if not any((folder / header).exists() for folder in folders):
            yield Missing(f"{header}: no such header", package)


def configure(values: Values, jobs: int) -> list[tuple[str, ...]]:
    """The commands that configure a tree, in its folder; what they make can be moved to another one."""
    return project(values).configure(str(values["config"]), jobs)


def make(values: Values, tree: str, jobs: int) -> tuple[str, ...]:
    """The command that makes the target in the tree, in that folder."""
    made, wanted = project(values), target(values)
    folder, _, name = wanted.rpartition("/")
    where, goal = (("-C", folder), name) if made.below and folder else ((), wanted)
    return ("make", f"-j{jobs}", *where, goal, *made.options(tree, str(values["config"])))
