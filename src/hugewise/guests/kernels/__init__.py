"""The kernels that guests boot: a file, a Debian package, or one built by a recipe.

`available` looks into the cache and needs no network; `provide` fetches or builds what is not there. `difference`
says in which symbols the configurations of two kernels differ.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import msgspec

from hugewise.errors import UserError
from hugewise.guests.kernels import build, packages, source, store
from hugewise.guests.kernels.source import RECIPES, SUITE, Recipe
from hugewise.guests.kernels.store import SymbolDifference
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse
from hugewise.unprivileged import Say

__all__ = [
    "BUILD_CPU_MIN",
    "RECIPES",
    "SUITE",
    "SymbolDifference",
    "available",
    "base_page",
    "build_takes",
    "difference",
    "fetched_by",
    "missing",
    "provide",
    "recipe",
]

# Measured of the recipes, with gcc 12 on an AMD EPYC: 13 to 15 minutes.
BUILD_CPU_MIN = 15


def build_takes() -> str:
    """What the build of a kernel takes, in words, before it is begun."""
    cpus = len(os.sched_getaffinity(0))
    here = (
        f"about {max(1, round(BUILD_CPU_MIN / cpus))} on this host's {cpus} CPUs" if cpus > 1 else "this host has 1 CPU"
    )
    return f"{BUILD_CPU_MIN} minutes of CPU time ({here}) and {source.BUILD_DISK} below /var/tmp meanwhile, once"


def fetched_by(use: KernelUse, arch: Architecture, suite: str) -> str:
    """From where the kernel of a package comes, and how much that is, as far as it is known without fetching."""
    size = packages.to_fetch(_package(use), arch, suite)
    return f"{use.package} of Debian {suite}" + ("" if size is None else f" ({size / 1e6:.1f} MB)")


def available(use: KernelUse, arch: Architecture, suite: str) -> Kernel | None:
    """The kernel that the study means, if it is here already; nothing is fetched or built.

    `suite` is that of packages; recipes are built from the source of `use.suite`, or the one they are written for.
    Raises UserError where it is a file that cannot be a guest's kernel, or a recipe that there is not.
    """
    if use.path is not None:
        return packages.kernel(use.name, use.path, use.modules, arch)
    if use.build is not None:
        wanted = recipe(use.build, arch)
        # Which build is meant depends on the compiler.
        found = None if build.missing_tools(arch) else store.find(build.build_key(wanted, use.suite or SUITE))
    else:
        found = store.find(packages.package_key(_package(use), arch, suite))
    return None if found is None else _named(found, use)


def provide(use: KernelUse, arch: Architecture, suite: str, say: Say) -> Kernel:
    """The kernel that the study means, fetched or built if need be. `say` is given lines of progress.

    Raises UserError, StorageError, and HugewiseError where a build fails.
    """
    found = available(use, arch, suite)
    if found is not None:
        store.used(found)
        return found
    if use.build is not None:
        chosen, place = recipe(use.build, arch), use.suite or SUITE
        wanted = build.build_key(chosen, place)
        found = build.provide(chosen, source.of_debian(place, arch, say), wanted, say)
    else:
        found = packages.provide(_package(use), arch, suite, say)
    return _named(found, use)


def missing(use: KernelUse, arch: Architecture) -> tuple[Missing, ...]:
    """What this machine lacks to build the kernel. Also of one that was built: which build is meant, compilers say."""
    return () if use.build is None else build.missing_tools(arch)


def recipe(name: str, arch: Architecture) -> Recipe:
    """The recipe of that name. Raises UserError where there is none, or it is for another architecture."""
    found = RECIPES.get(name)
    if found is None:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"recipes: {', '.join(RECIPES)}"
        raise UserError(f"there is no recipe {name} for a kernel", hint=hint)
    if found.arch != arch:
        others = ", ".join(each.name for each in RECIPES.values() if each.arch == arch)
        raise UserError(f"the recipe {name} is for {found.arch}, and the guests are {arch}", hint=f"recipes: {others}")
    return found


def difference(first: Kernel, second: Kernel) -> list[SymbolDifference] | None:
    """The symbols that their configurations set differently; None where one of them is not known."""
    texts = [_config(each) for each in (first, second)]
    return None if texts[0] is None or texts[1] is None else store.differing(texts[0], texts[1])


def base_page(kernel: Kernel) -> int | None:
    """Bytes of its base page, where its configuration is known."""
    text = _config(kernel)
    return None if text is None else store.base_page(store.parse(text))


def _config(kernel: Kernel) -> str | None:
    if kernel.config is None:
        return None
    try:
        return Path(kernel.config).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"the configuration of {kernel.name} cannot be read: {kernel.config}: {error}") from None


def _package(use: KernelUse) -> str:
    assert use.package is not None, "a kernel has one of path, package and build"
    return use.package


def _named(kernel: Kernel, use: KernelUse) -> Kernel:
    return msgspec.structs.replace(kernel, name=use.name)
