"""What a kernel module and a kernel's image say of themselves. Pure, but for the files that are read.

Debian's kernel packages have no modules.dep (depmod makes it where they are installed), so that what a module needs is
read from the module, perhaps compressed: the strings of its section .modinfo.
"""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Protocol

import msgspec

from hugewise.errors import UserError
from hugewise.machine.elf import MAGIC
from hugewise.model.guest import Architecture
from hugewise.reading import UnreadableError, content

__all__ = ["Module", "about_image", "about_module", "parse_modinfo", "unpacked"]


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
