"""The sections of an object file and the libraries of a program, read with pyelftools. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

__all__ = ["MAGIC", "Section", "needed", "sections"]

MAGIC = b"\x7fELF"
_LONGEST_NAME, _MOST_NEEDED = 256, 1000  # characters of a library's name, libraries
_LEAST_HEADER = 40  # bytes of a section's header, in ELF-32


class Section(msgspec.Struct, frozen=True):
    """A section: its name, its type as the ABI numbers it, and its contents (of one without any: its size)."""

    name: str
    kind: int
    contents: bytes


def sections(data: bytes) -> list[Section]:
    """Every section of an ELF file, in its order. Raises ValueError when it is none, or is cut short."""
    if not data.startswith(MAGIC) or len(data) < 52:
        raise ValueError("not an ELF file")
    try:
        return _sections(data)
    except Exception:  # the library has many for a file that is broken
        raise ValueError("an ELF file that is cut short") from None


def _sections(data: bytes) -> list[Section]:
    from elftools.elf import enums  # noqa: PLC0415  (slow to load, and needed for builds alone)
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    kinds: dict[str, int] = {}
    for machine in ("ARM", "AARCH64", "AMD64", "MIPS", "RISCV", "BASE"):
        kinds |= getattr(enums, f"ENUM_SH_TYPE_{machine}")
    elf = ELFFile(io.BytesIO(data))
    count, each = elf.num_sections(), elf["e_shentsize"]
    if count and (each < _LEAST_HEADER or elf["e_shoff"] + count * each > len(data)):
        raise ValueError  # else the library would go on for as many sections as the file says that it has
    found = []
    for one in elf.iter_sections():
        kind: Any = one["sh_type"]  # by name, but for those that the library does not know
        found.append(Section(one.name, kinds.get(kind, kind), _contents(data, one.header)))
    return found


def _contents(data: bytes, header: Mapping[str, Any]) -> bytes:
    offset, size = header["sh_offset"], header["sh_size"]
    if header["sh_type"] == "SHT_NOBITS":
        return int.to_bytes(size, 8, "little")
    if offset + size > len(data):
        raise ValueError
    return data[offset : offset + size]


def needed(data: bytes) -> tuple[str, ...]:
    """The libraries that a program or a library names (DT_NEEDED); none where it is static, no ELF file, or broken."""
    from elftools.elf.dynamic import DynamicSegment  # noqa: PLC0415  (slow to load)
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    found: list[str] = []
    try:
        for segment in ELFFile(io.BytesIO(data)).iter_segments("PT_DYNAMIC"):
            assert isinstance(segment, DynamicSegment)
            tags: Iterator[Any] = segment.iter_tags("DT_NEEDED")
            found += [str(tag.needed)[:_LONGEST_NAME] for tag in islice(tags, _MOST_NEEDED)]
    except Exception:  # the library has many for a file that is broken
        return ()
    return tuple(found)
