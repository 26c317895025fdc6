"""Guests for tests that boot none."""

from typing import Any

from hugewise.guests import image
from hugewise.model.guest import Backing, Guest, Image, Kernel

MIB = 1 << 20


def kernel(arch: Any = "x86-64", image: str = "/kernels/k/vmlinuz") -> Kernel:
    return Kernel(name="k", arch=arch, image=image, digest="0" * 64, release="6.12.1", origin="a test's")


def guest(arch: Any = "x86-64", *, root: str | None = None, **other: Any) -> Guest:
    """A guest of 256 MiB under TCG, with what is named instead."""
    words: dict[str, Any] = {
        "kernel": kernel(arch),
        "image": Image(arch=arch, root=root),
        "backing": Backing(),
        "accelerator": "tcg",
        "memory": 256 * MIB,
    }
    return Guest(arch=arch, **{**words, **other})


def entries_of(data: bytes) -> list[image.ArchiveEntry]:
    """What is in archives that follow each other, as cpio(5) says it of the newc form."""
    found: list[image.ArchiveEntry] = []
    at = 0
    while data[at:].lstrip(b"\0"):
        at += len(data[at:]) - len(data[at:].lstrip(b"\0"))  # between archives
        assert data[at : at + 6] == image.MAGIC
        fields = [int(data[at + 6 + 8 * each : at + 14 + 8 * each], 16) for each in range(13)]
        mode, size, device, length = fields[1], fields[6], (fields[9], fields[10]), fields[11]
        path = data[at + 110 : at + 110 + length - 1].decode()
        at += (110 + length + 3) // 4 * 4
        if path != image.TRAILER:
            found.append(image.ArchiveEntry(path=path, mode=mode, data=data[at : at + size], device=device))
        at += (size + 3) // 4 * 4
    return found
