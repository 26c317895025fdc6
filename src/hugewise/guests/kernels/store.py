"""Kernels in the cache: a folder each with the image, its configuration, its modules, and what is known of them.

A folder is named by what the kernel was made of. What a study asks for, a package's name or a recipe, is looked up in a
note that says which folder that was when it was last had.

Kernel configurations and the fragments that ask for them: read, merged, checked, compared. Pure.

A configuration (.config) and a fragment have the same form: `CONFIG_NET=y`, `# CONFIG_SWAP is not set`. A symbol that
is not in a configuration cannot be chosen there, which is the same as that it is not set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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

KIND = "kernels"
IMAGE, CONFIG, MODULES, RECORD = "image", "config", "modules", "kernel.json"

Key = Mapping[str, object]


def write(folder: Path, kernel: Kernel) -> None:
    """Put down what is known of the kernel in the folder; its paths are relative to it."""
    (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(kernel), indent=1))


def find(asked: Key) -> Kernel | None:
    """The kernel that was had for what is asked, if it is in the cache still, and as it was when it was made."""
    try:
        folder = kernel_folder(_note(asked))
        return None if cache.damage(folder) else _read(folder)
    except (OSError, ValueError):
        return None


def kernel_folder(note: Path) -> Path:
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
    folder = cache.cached(KIND, made_of, make, say)
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


NO = "n"

_SET = re.compile(r"CONFIG_(?P<symbol>\w+)=(?P<value>.*)")
_NOT_SET = re.compile(r"# CONFIG_(?P<symbol>\w+) is not set")
_PAGES = (("ARM64_64K_PAGES", 65536), ("ARM64_16K_PAGES", 16384))


class SymbolDifference(msgspec.Struct, frozen=True):
    """A symbol that two configurations set differently; `n`: it is not set, or not there."""

    symbol: str
    first: str
    second: str


def parse(text: str) -> dict[str, str]:
    """The symbols of a configuration or a fragment without `CONFIG_`, as they are written; `n` for those not set.

    Where one stands several times, the last counts. Raises ValueError naming a line that is neither.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if (match := _SET.fullmatch(stripped)) is not None:
            found[match["symbol"]] = match["value"]
        elif (match := _NOT_SET.fullmatch(stripped)) is not None:
            found[match["symbol"]] = NO
        elif stripped and not stripped.startswith("#"):
            raise ValueError(f"line {number}: {stripped!r} is neither CONFIG_X=... nor # CONFIG_X is not set")
    return found


def merged_fragments(fragments: Iterable[str]) -> dict[str, str]:
    """What fragments ask for: where two name a symbol, the later one counts. Raises ValueError."""
    asked: dict[str, str] = {}
    for fragment in fragments:
        asked.update(parse(fragment))
    return asked


def merged(base: str, fragments: Iterable[str]) -> str:
    """A configuration for `make olddefconfig`: the base, without what the fragments say, and then what they say."""
    asked = merged_fragments(fragments)
    kept = [f"CONFIG_{symbol}={value}" for symbol, value in parse(base).items() if symbol not in asked]
    return "\n".join((*kept, *(f"CONFIG_{symbol}={value}" for symbol, value in asked.items()))) + "\n"


def unmet(fragments: Iterable[str], config: str) -> list[SymbolDifference]:
    """What the fragments ask for, later ones overriding earlier ones, and the configuration does not have.

    `first` is what was asked. A symbol is dropped silently by the kernel's own tools where what it depends on is not
    there, or where it was renamed.
    """
    there = parse(config)
    return [
        SymbolDifference(symbol, value, there.get(symbol, NO))
        for symbol, value in merged_fragments(fragments).items()
        if there.get(symbol, NO) != value
    ]


def differing(first: str, second: str) -> list[SymbolDifference]:
    """The symbols, in their alphabet, that two configurations set differently; another compiler is among them."""
    one, other = parse(first), parse(second)
    return [
        SymbolDifference(symbol, one.get(symbol, NO), other.get(symbol, NO))
        for symbol in sorted(one.keys() | other.keys())
        if one.get(symbol, NO) != other.get(symbol, NO)
    ]


def base_page(config: Mapping[str, str]) -> int:
    """Bytes of a base page under a parsed configuration of x86-64 or arm64."""
    return next((size for symbol, size in _PAGES if config.get(symbol) == "y"), 4096)
