"""What building a kernel needs of this machine, and which compiler it has."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Mapping

from hugewise import unprivileged
from hugewise.errors import HugewiseError, UserError
from hugewise.model.guest import HARDWARE, Architecture
from hugewise.model.workload import Missing

__all__ = ["ARCH", "IMAGES", "compiler", "missing", "prefix"]

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


def prefix(arch: Architecture) -> str:
    """CROSS_COMPILE: what the tools for that architecture are called before `gcc`; empty for this machine's own."""
    hardware = HARDWARE[arch]
    return "" if os.uname().machine == hardware else f"{hardware}-linux-gnu-"


def missing(arch: Architecture) -> tuple[Missing, ...]:
    """What this machine lacks to build kernels of that architecture."""
    wanted = dict(_PACKAGES)
    if tools := prefix(arch):
        package = f"gcc-{tools.rstrip('-')}".replace("_", "-")
        wanted[f"{tools}gcc"] = package
    lacking = [Missing(f"no {name} to build kernels with", each) for name, each in wanted.items() if not _there(name)]
    for header, each in _HEADERS[arch]:
        if not _there("gcc"):
            lacking.append(Missing(f"no gcc to look for {header} with", each))
        elif not _includes(header):
            lacking.append(Missing(f"no {header} to build kernels with", each))
    return tuple(lacking)


def _there(name: str) -> bool:
    return shutil.which(name) is not None


@functools.cache
def _includes(header: str) -> bool:
    try:  # the one that make finds
        return unprivileged.run(["gcc", "-E", "-x", "c", "-include", header, "/dev/null"]).status == 0
    except HugewiseError:
        return False


@functools.cache
def compiler(arch: Architecture) -> str:
    """What compiles and links such kernels, in its own words. Raises UserError."""
    said = []
    for tool in ("gcc", "ld"):
        program = f"{prefix(arch)}{tool}"
        why = ""
        try:
            done = unprivileged.run([program, "--version"])
            why = done.why if done.status != 0 else ""
        except HugewiseError as error:
            why = error.message
        if why:
            lacking = missing(arch)
            packages = " ".join(dict.fromkeys(each.package for each in lacking if each.package))
            raise UserError(
                f"kernels of {arch} cannot be built here: {program}: {why}",
                hint=f"apt install {packages}" if packages else f"is {program} whole?",
            )
        said.append(done.stdout.partition("\n")[0].strip())
    return "; ".join(said)
