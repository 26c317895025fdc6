"""The kernels that hugewise builds, and what they are built from: fragments over `make tinyconfig`. Pure.

Kernels that are compared share one base and differ in one fragment: `pv-*` in paravirtualisation, `arm64-*` in the base
page. The fragments lie beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

import msgspec

from hugewise.model.guest import Architecture

__all__ = ["BASE", "RECIPES", "SUITE", "Recipe", "fragment"]

SUITE = "trixie"  # whose linux-source the fragments are written for

# Under all kernels of an architecture, own ones included: what the agent and the workloads need.
BASE: Mapping[Architecture, tuple[str, ...]] = MappingProxyType(
    {"x86-64": ("common", "x86"), "arm64": ("common", "arm64")}
)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel to build.

    fragments   their texts by name, in the order to apply them
    page_size   bytes of its base page, as asked for
    about       in a word or two, for a list
    own         how many of the fragments, the last ones, are the user's: what hugewise's ask for gives way to them
    """

    name: str
    arch: Architecture
    fragments: tuple[tuple[str, str], ...]
    page_size: int
    about: str
    own: int = 0

    @property
    def demanded(self) -> tuple[str, ...]:
        """The texts that the configuration must have, to the letter: the user's, or all where none is."""
        return self.texts[len(self.fragments) - self.own :] if self.own else self.texts

    @property
    def texts(self) -> tuple[str, ...]:
        """The fragments' texts."""
        return tuple(text for _, text in self.fragments)


def fragment(name: str) -> str:
    """The text of a fragment of hugewise."""
    return resources.files(__package__).joinpath("fragments", f"{name}.config").read_text(encoding="utf-8")


def _recipe(name: str, arch: Architecture, page_size: int, about: str) -> Recipe:
    texts = tuple((each, fragment(each)) for each in (*BASE[arch], name))
    return Recipe(name=name, arch=arch, fragments=texts, page_size=page_size, about=about)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            _recipe("pv-none", "x86-64", 4096, "no PARAVIRT"),
            _recipe("pv-plain", "x86-64", 4096, "PARAVIRT"),
            _recipe("pv-xxl", "x86-64", 4096, "PARAVIRT_XXL"),
            _recipe("arm64-4k", "arm64", 4096, "recipe"),
            _recipe("arm64-16k", "arm64", 16384, "recipe"),
            _recipe("arm64-64k", "arm64", 65536, "recipe"),
        )
    }
)
