"""The source of Linux that kernels are built from: Debian's, or a tarball of the user's.

The kernels that hugewise builds, and what they are built from: fragments over `make tinyconfig`. Pure.

Kernels that are compared share one base and differ in one fragment: `pv-*` in paravirtualisation, `arm64-*` in the base
page. The fragments lie beside this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import msgspec

from hugewise import unprivileged
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian, packages
from hugewise.guests.sandbox import Sandbox
from hugewise.model.guest import Architecture
from hugewise.unprivileged import Say

BUILD_DISK = "3 GB"
"""What a build takes below /var/tmp: most of it is the source, unpacked."""

_PATIENCE_S = 3600.0
_FULL = f"a build needs {BUILD_DISK} there: free space, or mount some at it"
_PACKAGE = re.compile(r"linux-source-\d[0-9.]*")


@dataclass(frozen=True)
class KernelSource:
    """A source that can be had.

    name      in words: the package and its version, or the file
    sha256    of the package or the file
    file      has it here, fetched if need be
    package   whether it is a package, with the tarball in it
    """

    name: str
    sha256: str
    file: Callable[[], Path]
    package: bool

    def lend(self, shop: Sandbox) -> Path:
        """Lend it to who builds. Raises UserError where it is not what it was, StorageError."""
        lent = shop.lend(self.file(), f"source{'.deb' if self.package else ''}", kept=self.package)
        if cache.sha256(lent) != self.sha256:
            raise UserError(f"the source {self.name} was changed meanwhile", hint="try again")
        return lent

    def unpack(self, lent: Path, folder: Path) -> None:
        """Put the tree into the folder, by who builds; `folder` is made. Raises UserError, StorageError."""
        tarball = lent
        if self.package:
            beside = folder.with_name(f"{folder.name}.deb")
            beside.mkdir()
            packages.unpack(lent, beside, only=["./usr/src/*"])
            tarballs = sorted(packages.inside(beside, "/usr/src").glob("linux-source-*.tar.*"))
            if len(tarballs) != 1 or tarballs[0].is_symlink():
                raise UserError(f"{self.name} has {len(tarballs)} tarballs below /usr/src, not one")
            tarball = tarballs[0]
        folder.mkdir()
        _extract(tarball, folder, self.name)
        if self.package:
            tarball.unlink()


def of_debian(suite: str, arch: Architecture, say: Say) -> KernelSource:
    """The suite's `linux-source`, resolved but not fetched yet. Raises UserError."""
    resolved = debian.resolve(["linux-source"], suite, debian.ARCHITECTURES[arch], say)
    found = [each for each in resolved if _PACKAGE.fullmatch(each.name)]
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise UserError(f"linux-source of Debian {suite} does not bring one source of Linux: it brings {names}")
    package = found[0]
    name = f"{package.name} {package.version}"
    return KernelSource(name, package.sha256, lambda: debian.fetch([package], say)[0], package=True)


def of_file(tarball: Path) -> KernelSource:
    """A tarball with one folder in it, as kernel.org has them. Raises UserError."""
    try:
        digest = cache.sha256(tarball)
    except OSError as error:
        raise UserError(f"the source cannot be read: {tarball}: {error.strerror}") from None
    return KernelSource(tarball.name, digest, lambda: tarball, package=False)


def _extract(tarball: Path, folder: Path, name: str) -> None:
    """Put what is in the tarball's one folder into `folder`. tar knows the compression by the file's content, and
    follows no link of the tarball out of the folder.
    """
    command = ("tar", "--extract", "--file", str(tarball), "--directory", str(folder))
    done = unprivileged.run((*command, "--strip-components=1", "--no-same-owner"), timeout=_PATIENCE_S)
    if done.status != 0:
        why = done.stderr.strip().splitlines() or ["no reason given"]
        raise StorageError(f"cannot unpack {name} to {folder}: {why[0]}", hint=_FULL)
    if not (folder / "Kbuild").is_file():
        raise UserError(f"{name} is not a source of Linux: there is no Kbuild in it")


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
