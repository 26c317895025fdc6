"""What two builds must have in common: the sections of their object files. Pure.

Source: System V ABI, "Object Files" (ELF-64 and ELF-32, little and big endian).
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile

__all__ = ["digests", "sections"]

_MAGIC, _ARCHIVES = b"\x7fELF", (b"!<arch>\n", b"!<thin>\n")
_NO_BITS = 8  # a section without contents in the file


def sections(data: bytes) -> list[tuple[str, int, str]]:
    """Name, type and SHA-256 of the contents of every section of an ELF file, in its order.

    Raises ValueError when it is none, or is cut short.
    """
    if data[:4] != _MAGIC or len(data) < 52:
        raise ValueError("not an ELF file")
    wide, order = data[4] == 2, "<" if data[5] == 1 else ">"
    try:
        if wide:
            (table,) = struct.unpack_from(f"{order}Q", data, 0x28)
            size, count, names = struct.unpack_from(f"{order}3H", data, 0x3A)
            layout = f"{order}2I4Q"
        else:
            (table,) = struct.unpack_from(f"{order}I", data, 0x20)
            size, count, names = struct.unpack_from(f"{order}3H", data, 0x2E)
            layout = f"{order}6I"
        headers = [struct.unpack_from(layout, data, table + index * size) for index in range(count)]
        strings = _contents(data, headers[names]) if headers else b""
    except (struct.error, IndexError):
        raise ValueError("an ELF file that is cut short") from None
    found = []
    for header in headers:
        name = strings[header[0] : strings.find(b"\0", header[0])].decode("utf-8", "replace")
        found.append((name, header[1], hashlib.sha256(_contents(data, header)).hexdigest()))
    return found


def _contents(data: bytes, header: tuple[int, ...]) -> bytes:
    kind, offset, size = header[1], header[4], header[5]
    if kind == _NO_BITS:
        return size.to_bytes(8, "little")
    if offset + size > len(data):
        raise ValueError("an ELF file that is cut short")
    return data[offset : offset + size]


def digests(archive: bytes) -> dict[str, str]:
    """By its path in the tar file `archive`: a digest of each object file's sections, and of each library's bytes.

    Other files (sources, dependencies, text) are left out. Raises ValueError when it is no tar file.
    """
    found: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                stream = members.extractfile(member) if member.isfile() else None
                data = b"" if stream is None else stream.read()
                if data[:4] == _MAGIC:
                    found[member.name] = hashlib.sha256(repr(sections(data)).encode()).hexdigest()
                elif data[:8] in _ARCHIVES:
                    found[member.name] = hashlib.sha256(data).hexdigest()
    except tarfile.TarError as error:
        raise ValueError(f"not a tar file: {error}") from None
    return found
