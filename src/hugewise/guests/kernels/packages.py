"""Kernels of Debian packages: resolved to a version, fetched, unpacked. Nothing is installed.

A kernel that is a file of the user's.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian, packages
from hugewise.guests.debian import Package
from hugewise.guests.kernels import modules, store
from hugewise.guests.kernels.modules import about_image, unpacked
from hugewise.guests.packages import inside
from hugewise.guests.sandbox import workshop
from hugewise.model.guest import Architecture, Kernel
from hugewise.reading import UnreadableError, content
from hugewise.unprivileged import Say

_FORMAT = 4  # of what is kept of a package
# An image of a version, and modules of one where Debian splits them off; not a meta-package such as linux-image-amd64.
_IMAGE = re.compile(r"linux-image-(unsigned-)?\d[a-z0-9.+~-]*")
_MODULES = re.compile(r"linux-(modules|binary)-\d[a-z0-9.+~-]*")
# Most of a package; no guest of QEMU needs them.
_LEFT_OUT = (
    *(f"*/kernel/{each}/*" for each in ("sound", "drivers/gpu", "drivers/media", "drivers/staging")),
    *("./usr/share/*", "./usr/lib/linux-image-*"),
)


def package_key(package: str, arch: Architecture, suite: str) -> store.Key:
    """The key of what is asked for, and of whom: a package of that name in another archive is another kernel.

    Where no archive is known nothing can be fetched; nor is what came from one then taken for another's.
    """
    try:
        archive = debian.archive(suite, debian.ARCHITECTURES[arch])
    except UserError:
        archive = ""
    return {"package": package, "arch": arch, "suite": suite, "archive": archive, "format": _FORMAT}


def chosen(package: str, resolved: Sequence[Package]) -> tuple[Package, ...]:
    """Of what a package needs, those with the kernel in them: its image, and its modules. Pure. Raises UserError."""
    images = [each for each in resolved if _IMAGE.fullmatch(each.name)]
    named = [each for each in images if each.name == package] or images
    if len(named) != 1:
        found = ", ".join(each.name for each in images) or "none"
        raise UserError(
            f"the package {package} does not bring one kernel: it brings {found}",
            hint="name a kernel's package, such as linux-image-amd64 or linux-image-arm64-16k",
        )
    return (named[0], *(each for each in resolved if _MODULES.fullmatch(each.name)))


def to_fetch(package: str, arch: Architecture, suite: str) -> int | None:
    """Bytes that are to be fetched for it; None where that is not known without fetching anything."""
    found = packages.package_sizes([package], suite, debian.ARCHITECTURES[arch])
    try:
        return None if found is None else packages.to_fetch(chosen(package, found.packages))
    except UserError:  # who provides it is told
        return None


def provide(package: str, arch: Architecture, suite: str, say: Say) -> Kernel:
    """The kernel that the package brings now. Raises UserError, StorageError."""
    resolved = debian.resolve([package], suite, debian.ARCHITECTURES[arch], say)
    parts = chosen(package, resolved)
    origin = "Debian package " + " and ".join(f"{each.name} {each.version} (SHA-256 {each.sha256})" for each in parts)
    made_of = {"packages": [each.sha256 for each in parts], "arch": arch, "format": _FORMAT}

    def make(folder: Path) -> None:
        files = debian.fetch(parts, say)
        with workshop() as shop:
            lent = [shop.lend(file, f"{number}.deb", kept=True) for number, file in enumerate(files)]

            def fill(tell: Say) -> None:
                tell(f"unpacking {parts[0].name}")
                tree, made = shop.own / "tree", shop.own / "made"
                tree.mkdir()
                made.mkdir()
                for file in lent:
                    packages.unpack(file, tree, without=_LEFT_OUT)
                _take(package, arch, tree, made, origin)

            shop.do(fill, say)
            shop.take("made", folder)

    return store.have(package_key(package, arch, suite), made_of, make, say)


def _take(package: str, arch: Architecture, tree: Path, folder: Path, origin: str) -> None:
    """Keep the image, its configuration and the modules that guests need. Links of the package lead nowhere."""
    found = sorted(inside(tree, "/boot").glob("vmlinu[xz]-*"))
    if len(found) != 1:
        raise UserError(f"the package {package} has {len(found)} kernels below /boot, not one")
    image = found[0]
    release = image.name.partition("-")[2]
    config = image.with_name(f"config-{release}")
    kept = []
    try:
        text = _plain(config).read_text(encoding="utf-8")
        (folder / store.CONFIG).write_text(text, encoding="utf-8")
        _check(package, text)
        needed = modules.needed_in(_modules(tree, release))
        (folder / store.MODULES).mkdir()
        for number, module in enumerate(needed):
            # Emulated, a guest takes seconds to unpack what this host unpacks once.
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
    """A file of the package itself. Raises StorageError where it is a link, which could lead to a file of this host."""
    if path.is_symlink():
        raise StorageError(f"{path} is a link, and no file")
    return path


def _modules(tree: Path, release: str) -> Path:
    """/lib/modules is below /usr since Debian 13."""
    places = [inside(tree, f"{top}/{release}") for top in ("usr/lib/modules", "lib/modules")]
    return next((each for each in places if each.is_dir()), places[0])


def _check(package: str, config: str) -> None:
    lacking = modules.lacking(store.parse(config))
    if lacking:
        raise UserError(
            f"the kernel of {package} cannot be a guest's: its configuration lacks {', '.join(lacking)}",
            hint="name another package, such as linux-image-amd64 or linux-image-arm64",
        )


def kernel(name: str, path: str, folder: str | None, arch: Architecture) -> Kernel:
    """The kernel in the file `path`, with what guests need of the modules below `folder`. Raises UserError."""
    image = Path(path)
    try:
        data = content(image)
    except UnreadableError as error:
        hint = "name a bzImage or Image that you may read"
        raise UserError(f"the kernel {name} cannot be read: {path}: {error}", hint=hint) from None
    about = about_image(data)
    if about is None:
        raise UserError(f"the kernel {name} is neither a bzImage nor an arm64 Image: {path}")
    found, release = about
    if found != arch:
        hint = f'write [guest] arch = "{found}", or name a kernel of {arch}'
        raise UserError(f"the kernel {name} is one of {found}, and the guests are {arch}: {path}", hint=hint)
    needed = () if folder is None else modules.needed_in(Path(folder))
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
        modules=tuple(str(each) for each in needed),
        config=str(beside) if beside.is_file() else None,
        origin=f"the file {path}",
    )


def _check_image(name: str, beside: Path, *, loadable: bool) -> None:
    """Raise UserError where the configuration beside the image says that no guest comes up with it."""
    try:
        lacking = modules.lacking(store.parse(content(beside).decode("utf-8", "replace")), loadable=loadable)
    except (UnreadableError, ValueError):
        return  # its page and its symbols are not told then, and the boot shows the rest
    if lacking:
        symbols = ", ".join(f"CONFIG_{symbol}" for symbol in lacking)
        hint = "build these in" + ("" if loadable else ', or name its modules: modules = "/lib/modules/RELEASE"')
        raise UserError(f"the kernel {name} cannot be a guest's: {beside} lacks {symbols}", hint=hint)
