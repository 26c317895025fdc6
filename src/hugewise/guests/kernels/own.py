"""A kernel that is a file of the user's."""

from __future__ import annotations

from pathlib import Path

from hugewise.errors import UserError
from hugewise.guests import cache
from hugewise.guests.kernels import config, modules
from hugewise.guests.kernels.elf import about_image
from hugewise.model.guest import Architecture, Kernel
from hugewise.reading import UnreadableError, content

__all__ = ["kernel"]


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
        _check(name, beside, loadable=folder is not None)
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


def _check(name: str, beside: Path, *, loadable: bool) -> None:
    """Raise UserError where the configuration beside the image says that no guest comes up with it."""
    try:
        lacking = modules.lacking(config.parse(content(beside).decode("utf-8", "replace")), loadable=loadable)
    except (UnreadableError, ValueError):
        return  # its page and its symbols are not told then, and the boot shows the rest
    if lacking:
        symbols = ", ".join(f"CONFIG_{symbol}" for symbol in lacking)
        hint = "build these in" + ("" if loadable else ', or name its modules: modules = "/lib/modules/RELEASE"')
        raise UserError(f"the kernel {name} cannot be a guest's: {beside} lacks {symbols}", hint=hint)
