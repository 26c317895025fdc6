"""Object files, those that lie about themselves among them: an error, never a crash or an endless read."""

from __future__ import annotations

import struct

import pytest

from hugewise.machine.loader import Section, sections

# Kind, offset, size, link; the names of the sections lie at 64.
NAMES = b"\0.names\0.data\0"
SYMBOLS, NO_BITS = 2, 8


def elf(*rows: tuple[int, int, int, int], count: int | None = None, each: int = 64) -> bytes:
    """ELF-64, little-endian, for x86-64: a section of no kind, that of the names, and `rows`, all called .data."""
    table = 64 + len(NAMES)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    shown = len(rows) + 2 if count is None else count
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, each, shown, 1)
    every = [(0, 0, 0, 0, 0), (1, 3, 64, len(NAMES), 0), *((8, *row) for row in rows)]
    packed = (
        struct.pack("<IIQQQQIIQQ", name, *(kind, 0, 0, at, size, link), 0, 1, 0) for name, kind, at, size, link in every
    )
    return header + NAMES + b"".join(packed)


def test_each_section_with_its_type_as_a_number() -> None:
    found = sections(elf((0x70000001, 64, 3, 0), (NO_BITS, 1 << 60, 1 << 40, 0), (77, 64, 1, 0)))
    assert found == [
        Section("", 0, b""),
        Section(".names", 3, NAMES),
        Section(".data", 0x70000001, b"\0.n"),
        Section(".data", NO_BITS, (1 << 40).to_bytes(8, "little")),
        Section(".data", 77, b"\0"),
    ]
    assert sections(elf()[:40] + b"\0" * 60) == []  # a file without a table of sections


@pytest.mark.parametrize(
    "data",
    [
        elf()[:100],
        elf()[:-1],
        elf((1, 64, 1 << 40, 0)),
        elf((1, 1 << 63, 1, 0)),
        elf((SYMBOLS, 64, 24, 2)),  # its names are its own
        elf(count=9),
        elf(each=0),
        elf(each=0, count=0xFFFF),
        elf()[:4] + b"\3" + elf()[5:],
    ],
)
def test_a_file_that_is_broken(data: bytes) -> None:
    with pytest.raises(ValueError, match="an ELF file that is cut short"):
        sections(data)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh" * 9, b"\x7fELF"])
def test_another_file(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an ELF file"):
        sections(data)
