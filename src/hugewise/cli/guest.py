"""`hugewise guest`: what guests are made of, outside of any study.

A command imports what it uses when it is called: every verb of hugewise loads this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hugewise.errors import UserError
from hugewise.quantity import parse_duration
from hugewise.visible import say

if TYPE_CHECKING:
    from hugewise.model.guest import Kernel


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
    from hugewise.guests.kernels import catalogue  # noqa: PLC0415

    catalogue.show(suite)


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
    from hugewise.guests.kernels import catalogue  # noqa: PLC0415

    catalogue.show_difference(first, second, suite)


@guest.command()
@click.argument("package")
@_SUITE
def source(package: str, suite: str) -> None:
    """Fetch the sources of the Debian source package PACKAGE into the cache, and print the path of the archive.

    It is the upstream archive, by the SHA-256 of the signed lists. A build on this host looks for it in /usr/src: cp
    "$(hugewise guest source gdb)" /usr/src/
    """
    from hugewise.guests import debian  # noqa: PLC0415

    say(str(debian.source(package, suite, _say)))


@guest.command()
@click.option("--remove-unused-for", metavar="DURATION", help="Remove what was not used for so long, such as 30d.")
def cache(remove_unused_for: str | None) -> None:
    """List what the cache holds, and when it was last used.

    What is removed is fetched, built or made again when it is needed. Nothing is removed while another process of
    hugewise uses the cache.
    """
    from hugewise.guests import cache as place  # noqa: PLC0415
    from hugewise.guests import cache_listing  # noqa: PLC0415

    if remove_unused_for is None:
        cache_listing.show(cache_listing.entries(), f"in {place.folder()}")
        return
    try:
        seconds = parse_duration(remove_unused_for)
    except ValueError as error:
        raise UserError(
            f"--remove-unused-for {remove_unused_for}: {error}", hint="see: hugewise guest cache --help"
        ) from None
    cache_listing.show(cache_listing.remove_unused(seconds), f"removed from {place.folder()}")


@guest.command(name="xml")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--backing", metavar="BACKING", help="Print the elements for it instead: hugetlb-1g, or a study's table.")
@click.option("--expect", metavar="BACKING", help="Warn where FILE asks for other pages.")
@click.option("--study", type=click.Path(path_type=Path), help="Warn where FILE asks for pages of none of its arms.")
def xml(file: Path | None, backing: str | None, expect: str | None, study: Path | None) -> None:
    """The memory backing that the libvirt domain in FILE asks for, as a study says it."""
    from hugewise.cli import guest_study  # noqa: PLC0415  (the rules of the audit come with it)

    guest_study.print_xml(file, backing, expect, study)


@guest.command(name="study")
@click.argument("file", metavar="DOMAIN.xml|DOMAIN", type=click.UNPROCESSED)
@click.option("--connect", metavar="URI", help="DOMAIN is one that libvirt knows there: qemu:///system (by virsh).")
@click.option("--load", metavar="COMMAND", help="What the guests run: a command. Its words are split as by a shell.")
@click.option(
    "--workload", metavar="NAME", help="What the guests run: a workload of hugewise (hugewise list workloads)."
)
@click.option("--metric", metavar="NAME", help="What is judged (default: the workload's own, of a command wall_s).")
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="VALUE",
    help="With --load: a metric in the output, as of `hugewise run` (may be repeated).",
)
@click.option("--packages", metavar="NAME,...", help="Debian packages that the command comes from, not its own disk.")
@click.option("--file", "added", multiple=True, metavar="PATH=FILE", help="A file of this host that is put at PATH.")
@click.option("--kernel", metavar="PATH|PACKAGE", help="The kernel that the guests boot.")
@click.option("--modules", type=click.Path(path_type=Path), help="The folder of its modules, of a kernel by path.")
@click.option("--name", help="The study's name (default: the domain's).")
@click.option(
    "--resident", is_flag=True, help="One guest that stays, and what its own kernel can be told: on memory as it is."
)
@click.option("--policy", metavar="POLICIES", help="With --resident: these, the baseline first (default: base,thp).")
@click.option(
    "--blocks",
    type=click.IntRange(2, 100_000),
    help="At most so many blocks (default: by the number of arms, with the reason; of a guest that stays, 30).",
)
@click.option("--output", type=click.Path(path_type=Path), help="A new file for it (default: to standard output).")
def study(file: str, **asked: Any) -> None:
    """Write a study of a libvirt domain: what should the memory of that machine be made of?

    Memory, CPUs, NUMA nodes, pinning and disks are as the domain has them; each arm has its memory made of other pages,
    or, with --resident, other settings of the guest's kernel, in one guest that stays. What cannot be restated is named
    with its line. Nothing is run, and no disk is ever written.
    """
    from hugewise.cli import guest_study  # noqa: PLC0415  (as of xml)

    guest_study.main(file, **asked)


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
