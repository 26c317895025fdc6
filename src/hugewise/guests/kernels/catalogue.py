"""Kernels by the names that a user types: recipes, Debian's packages, and recipes with fragments of the user's.

Kernels for the terminal: what there is, and how two of them differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.guests import kernels
from hugewise.guests.kernels import build as building
from hugewise.guests.kernels import modules, source, store
from hugewise.guests.kernels.source import BASE, RECIPES, SUITE, Recipe, fragment
from hugewise.model.guest import Architecture, Kernel
from hugewise.quantity import format_size
from hugewise.study.guest import KernelUse
from hugewise.unprivileged import Say

# Debian's meta-packages of kernels that guests can boot, with the bytes of their base page.
DEBIAN: Mapping[str, tuple[Architecture, int]] = MappingProxyType(
    {
        "linux-image-amd64": ("x86-64", 4096),
        "linux-image-cloud-amd64": ("x86-64", 4096),
        "linux-image-arm64": ("arm64", 4096),
        "linux-image-cloud-arm64": ("arm64", 4096),
        "linux-image-arm64-16k": ("arm64", 16384),
    }
)
_WORDS: Mapping[str, Architecture] = {"amd64": "x86-64", "arm64": "arm64"}
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")


def use_of(name: str, arch: Architecture | None = None) -> tuple[KernelUse, Architecture]:
    """The recipe or package of that name, as a study would say it, and its architecture. Raises UserError."""
    if (recipe := RECIPES.get(name)) is not None:
        if arch not in (None, recipe.arch):
            raise UserError(f"the recipe {name} is for {recipe.arch}, not {arch}")
        return KernelUse(name=name, build=name), recipe.arch
    said = {_WORDS[word] for word in name.split("-") if word in _WORDS}
    found = DEBIAN[name][0] if name in DEBIAN else next(iter(said)) if len(said) == 1 else None
    if arch is not None and found not in (None, arch):
        raise UserError(f"the package {name} is for {found}, not {arch}")
    if found is None and arch is None:
        raise UserError(
            f"{name} is no recipe, and no Debian package that says its architecture",
            hint=f"recipes: {', '.join(RECIPES)}; of a package, say it with --arch",
        )
    return KernelUse(name=name, package=name), found or arch or "x86-64"


def own_builds() -> list[Kernel]:
    """The kernels of the cache that were built with fragments of the user's, or from another source than Debian's."""
    usual = {kernel.image for name in RECIPES if (kernel := _here(name)) is not None}
    return [each for each in store.every() if each.origin.startswith("built from ") and each.image not in usual]


def _here(name: str) -> Kernel | None:
    try:
        return cached_kernel(name, SUITE)
    except UserError:
        return None


def cached_kernel(name: str, suite: str) -> Kernel | None:
    """The kernel of that name if it is in the cache: a recipe, a package, or one that the user has built. Raises
    UserError.
    """
    if name not in RECIPES and name not in DEBIAN:
        own = [each for each in store.every() if each.name == name and each.origin.startswith("built from ")]
        if own:
            return max(own, key=lambda each: Path(each.image).stat().st_mtime)
    use, arch = use_of(name)
    return kernels.available(_at(use, suite), arch, suite)


def get(name: str, arch: Architecture | None, suite: str, say: Say) -> Kernel:
    """The kernel of that name, fetched or built if need be. Raises UserError, StorageError, HugewiseError."""
    use, found = use_of(name, arch)
    return kernels.provide(_at(use, suite), found, suite, say)


def _at(use: KernelUse, suite: str) -> KernelUse:
    return msgspec.structs.replace(use, suite=suite)


def build(
    name: str, fragments: Sequence[Path], tarball: Path | None, *, arch: Architecture | None, suite: str, say: Say
) -> Kernel:
    """Build a recipe, or one of the user's own. Raises UserError, StorageError, HugewiseError."""
    if not fragments and tarball is None and name not in RECIPES:
        hint = f"recipes: {', '.join(RECIPES)}; for a kernel of your own, name a --fragment"
        raise UserError(f"there is no recipe {name} for a kernel", hint=hint)
    recipe = own_recipe(name, [(str(path), _text(path)) for path in fragments], arch)
    if tarball is None:
        origin, place = source.of_debian(suite, recipe.arch, say), suite
    else:
        origin = source.of_file(tarball)
        place = origin.sha256
    return building.provide(recipe, origin, building.build_key(recipe, place), say)


def own_recipe(name: str, fragments: Sequence[tuple[str, str]], arch: Architecture | None) -> Recipe:
    """The recipe of that name, or what every guest needs, with the user's fragments over it. Pure. Raises UserError."""
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} cannot be a kernel's name", hint="write it of a-z, 0-9, '.' and '-'")
    for path, text in fragments:
        try:
            denied = modules.denied(store.parse(text))
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        if denied:
            symbols = ", ".join(f"CONFIG_{symbol}" for symbol in denied)
            raise UserError(
                f"{path}: a kernel without {symbols} cannot be a guest's", hint="remove these lines: nothing was built"
            )
    if (found := RECIPES.get(name)) is not None:
        if arch not in (None, found.arch):
            raise UserError(f"the recipe {name} is for {found.arch}, not {arch}", hint="give yours another name")
        return msgspec.structs.replace(found, fragments=(*found.fragments, *fragments), own=len(fragments))
    if arch is None:
        raise UserError(f"the architecture of the kernel {name} is not said", hint="add --arch x86-64 or --arch arm64")
    base = [(each, fragment(each)) for each in BASE[arch]]
    return Recipe(
        name=name,
        arch=arch,
        fragments=(*base, *fragments),
        page_size=store.base_page(store.merged_fragments(text for _, text in (*base, *fragments))),
        about="of the user's own fragments",
        own=len(fragments),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the fragment {path} cannot be read: {error}") from None


def show(suite: str) -> None:
    """Print recipes, Debian's packages and what the user has built, with the release of those that are in the cache."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("kernel", "arch", "page", "cached"):
        table.add_column(head, no_wrap=True)
    table.add_column("what it is", overflow="fold")
    rows = [(each.name, each.arch, each.page_size, each.about) for each in RECIPES.values()]
    rows += [(name, arch, page, suite) for name, (arch, page) in DEBIAN.items()]
    for name, arch, page, origin in rows:
        found = cached_kernel(name, suite)
        table.add_row(name, arch, format_size(page), found.release if found else "no", origin)
    for own in own_builds():
        size = kernels.base_page(own)
        table.add_row(own.name, own.arch, format_size(size) if size else "", own.release, f"yours: {own.image}")
    TextConsole().print(table)


def show_difference(first: str, second: str, suite: str) -> None:
    """Print the symbols that differ. Raises UserError where one is not in the cache."""
    found = []
    for name in (first, second):
        kernel = cached_kernel(name, suite)
        if kernel is None:
            raise UserError(
                f"the kernel {name} is not in the cache", hint=f"hugewise guest kernel get {name} --suite {suite}"
            )
        found.append(kernel)
    differences = kernels.difference(*found)
    if differences is None:
        raise UserError(f"the configuration of {first} or {second} is not known")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("symbol", first, second):
        table.add_column(head, overflow="fold")
    for each in differences:
        table.add_row(f"CONFIG_{each.symbol}", each.first, each.second)
    TextConsole().print(table)
