"""The kernels that guests boot: the user's file, a Debian package, or one built by a recipe."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from rich.table import Table

from hugewise.console import TextConsole
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian
from hugewise.guests.debian import Package, resolve_inside
from hugewise.guests.kernels import build, store
from hugewise.guests.kernels.build import BASE, RECIPES, SUITE, Recipe, fragment
from hugewise.guests.kernels.store import SymbolDifference, about_image, unpacked
from hugewise.guests.sandbox import open_sandbox
from hugewise.model.guest import Architecture, Kernel
from hugewise.model.workload import Missing
from hugewise.quantity import format_size
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
    try:
        archive = debian.archive(suite, debian.ARCHITECTURES[arch])
    except UserError:
        archive = ""
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


def to_fetch(package: str, arch: Architecture, suite: str) -> int | None:
    """Return the bytes to fetch for the kernel; None where that is not known without fetching."""
    sizes = debian.package_sizes([package], suite, debian.ARCHITECTURES[arch])
    try:
        return None if sizes is None else debian.to_fetch(chosen(package, sizes.packages))
    except UserError:  # listing the providers reports the reason
        return None


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

    return store.make_or_find(package_key(package, arch, suite), made_of, make, say)


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


def fetched_by(use: KernelUse, arch: Architecture, suite: str) -> str:
    """Return the source of a package's kernel, and its size, as far as it is known without fetching."""
    size = to_fetch(_package(use), arch, suite)
    return f"{use.package} of Debian {suite}" + ("" if size is None else f" ({size / 1e6:.1f} MB)")


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
        store.touch(kernel)
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
    """Return the recipe or package of that name, as a study would say it, and its architecture. Raises UserError."""
    if (recipe := RECIPES.get(name)) is not None:
        if arch not in (None, recipe.arch):
            raise UserError(f"the recipe {name} is for {recipe.arch}, not {arch}")
        return KernelUse(name=name, build=name), recipe.arch
    architectures = {_WORDS[word] for word in name.split("-") if word in _WORDS}
    known = DEBIAN[name][0] if name in DEBIAN else next(iter(architectures)) if len(architectures) == 1 else None
    if arch is not None and known not in (None, arch):
        raise UserError(f"the package {name} is for {known}, not {arch}")
    if known is None and arch is None:
        raise UserError(
            f"{name} is no recipe, and no Debian package that says its architecture",
            hint=f"recipes: {', '.join(RECIPES)}; of a package, say it with --arch",
        )
    return KernelUse(name=name, package=name), known or arch or "x86-64"


def own_builds() -> list[Kernel]:
    """Return the cached kernels that were built with fragments of the user's, or from a source other than Debian's."""
    usual = {kernel.image for name in RECIPES if (kernel := _here(name)) is not None}
    return [
        built for built in store.all_kernels() if built.origin.startswith("built from ") and built.image not in usual
    ]


def _here(name: str) -> Kernel | None:
    try:
        return cached_kernel(name, SUITE)
    except UserError:
        return None


def cached_kernel(name: str, suite: str) -> Kernel | None:
    """Return the kernel of that name if it is in the cache: recipe, package, or the user's own. Raises UserError."""
    if name not in RECIPES and name not in DEBIAN:
        own = [
            kernel for kernel in store.all_kernels() if kernel.name == name and kernel.origin.startswith("built from ")
        ]
        if own:
            return max(own, key=lambda kernel: Path(kernel.image).stat().st_mtime)
    use, arch = use_of(name)
    return available(_at(use, suite), arch, suite)


def get(name: str, arch: Architecture | None, suite: str, say: Say) -> Kernel:
    """Return the kernel of that name, fetched or built if need be. Raises UserError, StorageError, HugewiseError."""
    use, architecture = use_of(name, arch)
    return provide(_at(use, suite), architecture, suite, say)


def _at(use: KernelUse, suite: str) -> KernelUse:
    return msgspec.structs.replace(use, suite=suite)


def build_recipe(
    name: str, fragments: Sequence[Path], tarball: Path | None, *, arch: Architecture | None, suite: str, say: Say
) -> Kernel:
    """Build a recipe, or one of the user's own. Raises UserError, StorageError, HugewiseError."""
    if not fragments and tarball is None and name not in RECIPES:
        hint = f"recipes: {', '.join(RECIPES)}; for a kernel of your own, name a --fragment"
        raise UserError(f"there is no recipe {name} for a kernel", hint=hint)
    recipe = own_recipe(name, [(str(path), _text(path)) for path in fragments], arch)
    if tarball is None:
        origin, place = build.of_debian(suite, recipe.arch, say), suite
    else:
        origin = build.of_file(tarball)
        place = origin.sha256
    return build.provide(recipe, origin, build.build_key(recipe, place), say)


def own_recipe(name: str, fragments: Sequence[tuple[str, str]], arch: Architecture | None) -> Recipe:
    """Return the recipe of that name, or the base of every guest, with the user's fragments. Pure. Raises UserError."""
    if _NAME.fullmatch(name) is None:
        raise UserError(f"{name!r} cannot be a kernel's name", hint="write it of a-z, 0-9, '.' and '-'")
    for path, text in fragments:
        try:
            denied = store.denied(store.parse(text))
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        if denied:
            symbols = ", ".join(f"CONFIG_{symbol}" for symbol in denied)
            raise UserError(
                f"{path}: a kernel without {symbols} cannot be a guest's", hint="remove these lines: nothing was built"
            )
    if (known := RECIPES.get(name)) is not None:
        if arch not in (None, known.arch):
            raise UserError(f"the recipe {name} is for {known.arch}, not {arch}", hint="give yours another name")
        return msgspec.structs.replace(known, fragments=(*known.fragments, *fragments), own=len(fragments))
    if arch is None:
        raise UserError(f"the architecture of the kernel {name} is not said", hint="add --arch x86-64 or --arch arm64")
    base = [(fragment_name, fragment(fragment_name)) for fragment_name in BASE[arch]]
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
    rows = [(known.name, known.arch, known.page_size, known.about) for known in RECIPES.values()]
    rows += [(name, arch, page, suite) for name, (arch, page) in DEBIAN.items()]
    for name, arch, page, origin in rows:
        kernel = cached_kernel(name, suite)
        table.add_row(name, arch, format_size(page), kernel.release if kernel else "no", origin)
    for own in own_builds():
        size = base_page(own)
        table.add_row(own.name, own.arch, format_size(size) if size else "", own.release, f"yours: {own.image}")
    TextConsole().print(table)


def show_difference(first: str, second: str, suite: str) -> None:
    """Print the symbols that differ. Raises UserError where one is not in the cache."""
    pair = []
    for name in (first, second):
        kernel = cached_kernel(name, suite)
        if kernel is None:
            raise UserError(
                f"the kernel {name} is not in the cache", hint=f"hugewise guest kernel get {name} --suite {suite}"
            )
        pair.append(kernel)
    differences = difference(*pair)
    if differences is None:
        raise UserError(f"the configuration of {first} or {second} is not known")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("symbol", first, second):
        table.add_column(head, overflow="fold")
    for symbol in differences:
        table.add_row(f"CONFIG_{symbol.symbol}", symbol.first, symbol.second)
    TextConsole().print(table)
