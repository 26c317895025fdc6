"""Guests for tests that boot none."""

from __future__ import annotations

from typing import Any

from hugewise.model.guest import Backing, Guest, Image, Kernel

__all__ = ["MIB", "guest", "kernel"]

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
