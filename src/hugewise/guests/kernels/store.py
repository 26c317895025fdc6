"""Kernels in the cache: a folder each with the image, its configuration, its modules, and what is known of them.

A folder is named by what the kernel was made of. What a study asks for, a package's name or a recipe, is looked up in a
note that says which folder that was when it was last had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import StorageError
from hugewise.files import write_whole
from hugewise.guests import cache
from hugewise.model.guest import Kernel
from hugewise.reading import UnreadableError
from hugewise.unprivileged import Say

__all__ = ["CONFIG", "IMAGE", "KIND", "MODULES", "RECORD", "every", "find", "have", "named", "used", "write"]

KIND = "kernels"
IMAGE, CONFIG, MODULES, RECORD = "image", "config", "modules", "kernel.json"

Key = Mapping[str, object]


def write(folder: Path, kernel: Kernel) -> None:
    """Put down what is known of the kernel in the folder; its paths are relative to it."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kernel), indent=1))


def find(asked: Key) -> Kernel | None:
    """The kernel that was had for what is asked, if it is in the cache still, and as it was when it was made."""
    try:
        folder = named(_note(asked))
        return None if cache.damage(folder) else _read(folder)
    except (OSError, ValueError):
        return None


def named(note: Path) -> Path:
    """The folder of the kernel that a note names. Raises OSError."""
    return note.with_name(note.read_text(encoding="utf-8").strip())


def every() -> list[Kernel]:
    """All kernels of the cache that can be read, by name and release."""
    found = []
    for folder in cache.folder(KIND).iterdir():
        with suppress(OSError, ValueError):
            found.append(_read(folder))
    return sorted(found, key=lambda each: (each.name, each.release))


def used(kernel: Kernel) -> None:
    """Note that a kernel of the cache is used now; one of elsewhere is left alone."""
    folder = Path(kernel.image).parent
    if folder.parent == cache.folder(KIND):
        cache.used(folder)


def have(asked: Key, made_of: Key, make: Callable[[Path], None], say: Say = lambda _: None) -> Kernel:
    """The kernel that is made of that, made now if need be, and noted as what is had for what is asked.

    `make` is given a folder to make, and writes into it what `write` wants. `say` hears of a damaged one. Raises
    StorageError.
    """
    folder = cache.kept(KIND, made_of, make, say)
    note = _note(asked)
    try:
        write_whole(note, f"{folder.name}\n".encode())
        return _read(folder)
    except OSError as error:
        raise StorageError(f"cannot keep the kernel in {folder}: {error.strerror}") from error
    except UnreadableError as error:
        raise StorageError(f"{folder}: the kernel's record cannot be read: {error}", hint=f"rm -r {folder}") from None


def _note(asked: Key) -> Path:
    return cache.entry(KIND, {"asked": asked}).with_suffix(".note")


def _read(folder: Path) -> Kernel:
    kernel = reading.stored(folder / RECORD, Kernel)
    image = folder / kernel.image
    image.stat()
    return msgspec.structs.replace(
        kernel,
        image=str(image),
        modules=tuple(str(folder / each) for each in kernel.modules),
        config=None if kernel.config is None else str(folder / kernel.config),
    )
