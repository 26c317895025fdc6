"""The kernels that guests boot: the user's file, a Debian package, or one built by a recipe."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian
from hugewise.guests.debian import Package, resolve_inside
from hugewise.guests.kernels import build, store
from hugewise.guests.kernels.build import RECIPES, SUITE, Recipe
from hugewise.guests.kernels.store import SymbolDifference, about_image, unpacked
from hugewise.guests.sandbox import open_sandbox
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.reading import UnreadableError, content
from hugewise.study.guest import KernelUse
from hugewise.unprivileged import Say

_FORMAT = 4  # of a package's record
# An image of a version, and modules of one where Debian splits them off; not a meta-package such as linux-image-amd64.
_IMAGE = re.compile(r"linux-image-(unsigned-)?\d[a-z0-9.+~-]*")
_MODULES = re.compile(r"linux-(modules|binary)-\d[a-z0-9.+~-]*")
# Most of a package; no guest of QEMU needs them.
_LEFT_OUT = (
    *(f"*/kernel/{each}/*" for each in ("sound", "drivers/gpu", "drivers/media", "drivers/staging")),
    *("./usr/share/*", "./usr/lib/linux-image-*"),
)


def package_key(package: str, arch: Architecture, suite: str) -> store.Key:
    """Return the key of a package with its archive: the same name in another archive is another kernel."""
    archive = debian.archive(suite, debian.ARCHITECTURES[arch])
    return {"package": package, "arch": arch, "suite": suite, "archive": archive, "format": _FORMAT}


def chosen(package: str, resolved: Sequence[Package]) -> tuple[Package, ...]:
    """Return those of a package's dependencies that hold the kernel and its modules. Pure. Raises UserError."""
    images = [candidate for candidate in resolved if _IMAGE.fullmatch(candidate.name)]
    named = [candidate for candidate in images if candidate.name == package] or images
    if len(named) != 1:
        names = ", ".join(candidate.name for candidate in images) or "none"
        raise UserError(
            f"the package {package} does not bring one kernel: it brings {names}",
            hint="name a kernel's package, such as linux-image-amd64 or linux-image-arm64-16k",
        )
    return (named[0], *(candidate for candidate in resolved if _MODULES.fullmatch(candidate.name)))


def provide_package(package: str, arch: Architecture, suite: str, say: Say) -> Kernel:
    """Return the kernel that the package brings now. Raises UserError, StorageError."""
    resolved = debian.resolve([package], suite, debian.ARCHITECTURES[arch], say)
    parts = chosen(package, resolved)
    origin = "Debian package " + " and ".join(f"{part.name} {part.version} (SHA-256 {part.sha256})" for part in parts)
    made_of = {"packages": [part.sha256 for part in parts], "arch": arch, "format": _FORMAT}

    def make(folder: Path) -> None:
        files = debian.fetch(parts, say)
        with open_sandbox() as sandbox:
            lent = [sandbox.lend(file, f"{number}.deb", kept=True) for number, file in enumerate(files)]

            def fill(tell: Say) -> None:
                tell(f"unpacking {parts[0].name}")
                tree, made = sandbox.own / "tree", sandbox.own / "made"
                tree.mkdir()
                made.mkdir()
                for file in lent:
                    debian.unpack(file, tree, without=_LEFT_OUT)
                _take(package, arch, tree, made, origin)

            sandbox.do(fill, say)
            sandbox.take("made", folder)

    return store.make_or_find(package_key(package, arch, suite), made_of, make)


def _take(package: str, arch: Architecture, tree: Path, folder: Path, origin: str) -> None:
    images = sorted(resolve_inside(tree, "/boot").glob("vmlinu[xz]-*"))
    if len(images) != 1:
        raise UserError(f"the package {package} has {len(images)} kernels below /boot, not one")
    image = images[0]
    release = image.name.partition("-")[2]
    config = image.with_name(f"config-{release}")
    kept = []
    try:
        text = _plain(config).read_text(encoding="utf-8")
        (folder / store.CONFIG).write_text(text, encoding="utf-8")
        _check(package, text)
        needed = store.needed_in(_modules(tree, release))
        (folder / store.MODULES).mkdir()
        for number, module in enumerate(needed):
            # An emulated guest takes seconds to unpack what this host unpacks once.
            kept.append(f"{store.MODULES}/{number:02}-{module.name.partition('.ko')[0]}.ko")
            (folder / kept[-1]).write_bytes(unpacked(_plain(module)))
        shutil.copyfile(_plain(image), folder / store.IMAGE)
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"cannot take the kernel of {package}: {error}") from error
    kernel = Kernel(
        name=package,
        arch=arch,
        image=store.IMAGE,
        digest=cache.sha256(folder / store.IMAGE),
        release=release,
        modules=tuple(kept),
        config=store.CONFIG,
        origin=origin,
    )
    store.write(folder, kernel)


def _plain(path: Path) -> Path:
    # A link could lead to a file of this host.
    if path.is_symlink():
        raise StorageError(f"{path} is a link, and no file")
    return path


def _modules(tree: Path, release: str) -> Path:
    # /lib/modules is below /usr since Debian 13
    places = [resolve_inside(tree, f"{top}/{release}") for top in ("usr/lib/modules", "lib/modules")]
    return next((place for place in places if place.is_dir()), places[0])


def _check(package: str, config: str) -> None:
    lacking = store.lacking(store.parse(config))
    if lacking:
        raise UserError(
            f"the kernel of {package} cannot be a guest's: its configuration lacks {', '.join(lacking)}",
            hint="name another package, such as linux-image-amd64 or linux-image-arm64",
        )


def kernel_of_path(name: str, path: str, folder: str | None, arch: Architecture) -> Kernel:
    """Return the kernel in the file `path`, with what guests need of the modules below `folder`. Raises UserError."""
    image = Path(path)
    try:
        data = content(image)
    except UnreadableError as error:
        hint = "name a bzImage or Image that you may read"
        raise UserError(f"the kernel {name} cannot be read: {path}: {error}", hint=hint) from None
    about = about_image(data)
    if about is None:
        raise UserError(f"the kernel {name} is neither a bzImage nor an arm64 Image: {path}")
    image_arch, release = about
    if image_arch != arch:
        hint = f'write [guest] arch = "{image_arch}", or name a kernel of {arch}'
        raise UserError(f"the kernel {name} is one of {image_arch}, and the guests are {arch}: {path}", hint=hint)
    needed = () if folder is None else store.needed_in(Path(folder))
    beside = (
        image.with_name(f"config-{image.name.partition('-')[2]}") if "-" in image.name else image.with_name("config")
    )
    if beside.is_file():
        _check_image(name, beside, loadable=folder is not None)
    return Kernel(
        name=name,
        arch=arch,
        image=str(image),
        digest=cache.sha256(image),
        release=release or "unknown",
        modules=tuple(str(module) for module in needed),
        config=str(beside) if beside.is_file() else None,
        origin=f"the file {path}",
    )


def _check_image(name: str, beside: Path, *, loadable: bool) -> None:
    try:
        lacking = store.lacking(store.parse(content(beside).decode("utf-8", "replace")), loadable=loadable)
    except (UnreadableError, ValueError):
        return  # its page size and symbols are not reported then, and the boot shows the rest
    if lacking:
        symbols = ", ".join(f"CONFIG_{symbol}" for symbol in lacking)
        hint = "build these in" + ("" if loadable else ', or name its modules: modules = "/lib/modules/RELEASE"')
        raise UserError(f"the kernel {name} cannot be a guest's: {beside} lacks {symbols}", hint=hint)


# Measured of the recipes, with gcc 12 on an AMD EPYC: 13 to 15 minutes.
BUILD_CPU_MIN = 15


def build_cost() -> str:
    """Return the cost of building a kernel, in words."""
    cpus = len(os.sched_getaffinity(0))
    here = (
        f"about {max(1, round(BUILD_CPU_MIN / cpus))} on this host's {cpus} CPUs" if cpus > 1 else "this host has 1 CPU"
    )
    return f"{BUILD_CPU_MIN} minutes of CPU time ({here}) and {build.BUILD_DISK} below /var/tmp meanwhile, once"


def available(use: KernelUse, arch: Architecture, suite: str) -> Kernel | None:
    """Return the kernel that the study means, if it is in the cache; `suite` is that of packages. Raises UserError for
    an unfit file or an unknown recipe.
    """
    if use.path is not None:
        return kernel_of_path(use.name, use.path, use.modules, arch)
    if use.build is not None:
        wanted = recipe(use.build, arch)
        # The build's key depends on the compiler.
        kernel = None if build.missing_tools(arch) else store.find(build.build_key(wanted, use.suite or SUITE))
    else:
        kernel = store.find(package_key(_package(use), arch, suite))
    return None if kernel is None else _named(kernel, use)


def provide(use: KernelUse, arch: Architecture, suite: str, say: Say) -> Kernel:
    """Return the kernel that the study means, fetched or built if need be. Raises UserError, StorageError,
    HugewiseError.
    """
    kernel = available(use, arch, suite)
    if kernel is not None:
        return kernel
    if use.build is not None:
        chosen, place = recipe(use.build, arch), use.suite or SUITE
        wanted = build.build_key(chosen, place)
        kernel = build.provide(chosen, build.of_debian(place, arch, say), wanted, say)
    else:
        kernel = provide_package(_package(use), arch, suite, say)
    return _named(kernel, use)


def missing(use: KernelUse, arch: Architecture) -> tuple[Missing, ...]:
    """Return what this machine lacks to build the kernel, or to find a built one: the compilers are part of its key."""
    return () if use.build is None else build.missing_tools(arch)


def recipe(name: str, arch: Architecture) -> Recipe:
    """Return the recipe of that name. Raises UserError where there is none, or it is for another architecture."""
    known = RECIPES.get(name)
    if known is None:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"recipes: {', '.join(RECIPES)}"
        raise UserError(f"there is no recipe {name} for a kernel", hint=hint)
    if known.arch != arch:
        others = ", ".join(other.name for other in RECIPES.values() if other.arch == arch)
        raise UserError(f"the recipe {name} is for {known.arch}, and the guests are {arch}", hint=f"recipes: {others}")
    return known


def difference(first: Kernel, second: Kernel) -> list[SymbolDifference] | None:
    """Return the symbols that their configurations set differently; None where one of them is not known."""
    texts = [_config(kernel) for kernel in (first, second)]
    return None if texts[0] is None or texts[1] is None else store.differing(texts[0], texts[1])


def base_page(kernel: Kernel) -> int | None:
    """Return bytes of its base page, where its configuration is known."""
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
