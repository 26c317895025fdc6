"""`hugewise guest`: what guests are made of, outside of any study.

A command of another module joins with `guest.add_command`, and imports what it uses when it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hugewise.cli import guest_xml
from hugewise.errors import UserError
from hugewise.quantity import parse_duration
from hugewise.visible import say

if TYPE_CHECKING:
    from hugewise.model.guest import Kernel

__all__ = ["guest"]

_ARCH = click.option("--arch", type=click.Choice(["x86-64", "arm64"]), help="Of a package that does not say it itself.")
_SUITE = click.option("--suite", default="trixie", show_default=True, help="Debian suite of packages and sources.")


@click.group()
def guest() -> None:
    """What QEMU guests are made of."""


@guest.group()
def kernel() -> None:
    """Kernels that guests boot."""


@kernel.command("list")
@_SUITE
def list_(suite: str) -> None:
    """List kernels, and which are in the cache."""
    from hugewise.guests.kernels import listing  # noqa: PLC0415

    listing.show(suite)


@kernel.command()
@click.argument("name")
@_ARCH
@_SUITE
def get(name: str, arch: Any, suite: str) -> None:
    """Fetch or build the kernel NAME into the cache.

    NAME is a recipe or a Debian package, which is unpacked and not installed.
    """
    from hugewise.guests.kernels import catalogue  # noqa: PLC0415

    _tell(catalogue.get(name, arch, suite, _say))


@kernel.command()
@click.argument("name")
@click.option(
    "--fragment",
    "fragments",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file of CONFIG_X=y lines to apply (may be repeated).",
)
@click.option("--source", type=click.Path(path_type=Path), help="A tarball of Linux, instead of Debian's linux-source.")
@click.option("--arch", type=click.Choice(["x86-64", "arm64"]), help="Of a kernel that is no recipe.")
@_SUITE
def build(name: str, fragments: Sequence[Path], source: Path | None, arch: Any, suite: str) -> None:
    """Build NAME, with fragments of yours or without.

    NAME is a recipe, or a name of your own for what every guest needs and your fragments over it. A study names a
    kernel with fragments of yours by its path.
    """
    from hugewise.guests.kernels import catalogue  # noqa: PLC0415

    _tell(catalogue.build(name, fragments, source, arch=arch, suite=suite, say=_say))


@kernel.command()
@click.argument("first")
@click.argument("second")
@_SUITE
def diff(first: str, second: str, suite: str) -> None:
    """List the symbols in which two kernels differ."""
    from hugewise.guests.kernels import listing  # noqa: PLC0415

    listing.show_difference(first, second, suite)


@guest.command()
@click.option("--remove-unused-for", metavar="DURATION", help="Remove what was not used for so long, such as 30d.")
def cache(remove_unused_for: str | None) -> None:
    """List what the cache holds, and when it was last used.

    What is removed is fetched, built or made again when it is needed. Nothing is removed while another process of
    hugewise uses the cache.
    """
    from hugewise.guests import cache as place  # noqa: PLC0415
    from hugewise.guests import stock  # noqa: PLC0415

    if remove_unused_for is None:
        stock.show(stock.entries(), f"in {place.folder()}")
        return
    try:
        seconds = parse_duration(remove_unused_for)
    except ValueError as error:
        raise UserError(
            f"--remove-unused-for {remove_unused_for}: {error}", hint="see: hugewise guest cache --help"
        ) from None
    stock.show(stock.remove_unused(seconds), f"removed from {place.folder()}")


guest.add_command(guest_xml.command)


def _say(line: str) -> None:
    say(line, err=True)


def _tell(found: Kernel) -> None:
    from hugewise.guests import kernels  # noqa: PLC0415
    from hugewise.quantity import format_size  # noqa: PLC0415

    page = kernels.base_page(found)
    say(f"kernel:  {found.image}")
    say(f"release: {found.release} ({found.arch}, base page {format_size(page) if page else 'unknown'})")
    if found.config:
        say(f"config:  {found.config}")
    say(f"modules: {len(found.modules) or 'none needed'}")
    say(f"SHA-256: {found.digest}")
    say(f"origin:  {found.origin}")
