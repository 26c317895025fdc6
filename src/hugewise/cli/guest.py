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
    """Study virtual machines; manage the kernels of guests."""


@guest.group()
def kernel() -> None:
    """Kernels that guests boot."""


@kernel.command("list")
@_SUITE
def list_(suite: str) -> None:
    """List the kernels, and which of them are in the cache."""
    from hugewise.guests import kernels  # noqa: PLC0415

    kernels.show(suite)


@kernel.command()
@click.argument("name")
@_ARCH
@_SUITE
def get(name: str, arch: Any, suite: str) -> None:
    """Fetch or build the kernel NAME into the cache.

    NAME is a recipe or a Debian package, which is unpacked and not installed.
    """
    from hugewise.guests import kernels  # noqa: PLC0415

    _tell(kernels.get(name, arch, suite, _say))


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
    from hugewise.guests import kernels  # noqa: PLC0415

    _tell(kernels.build_recipe(name, fragments, source, arch=arch, suite=suite, say=_say))


@kernel.command()
@click.argument("first")
@click.argument("second")
@_SUITE
def diff(first: str, second: str, suite: str) -> None:
    """List the symbols in which two kernels differ."""
    from hugewise.guests import kernels  # noqa: PLC0415

    kernels.show_difference(first, second, suite)


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
@click.option("--remove-unused-for", metavar="DURATION", help="Remove what was not used for this time, such as 30d.")
def cache(remove_unused_for: str | None) -> None:
    """List the contents of the cache, and when each was last used.

    Removed files are fetched or built again when they are needed. Nothing is removed while another process of hugewise
    uses the cache.
    """
    from hugewise.guests import cache  # noqa: PLC0415
    from hugewise.guests import cache as place  # noqa: PLC0415

    if remove_unused_for is None:
        cache.print_entries(cache.entries(), f"in {place.folder()}")
        return
    try:
        seconds = parse_duration(remove_unused_for)
    except ValueError as error:
        raise UserError(
            f"--remove-unused-for {remove_unused_for}: {error}", hint="see: hugewise guest cache --help"
        ) from None
    cache.print_entries(cache.remove_unused(seconds), f"removed from {place.folder()}")


@guest.command(name="xml")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--backing", metavar="BACKING", help="Print the elements for this backing: hugetlb-1g, or a study's table."
)
@click.option("--expect", metavar="BACKING", help="Warn where FILE asks for other pages.")
@click.option(
    "--study", type=click.Path(path_type=Path), help="Warn where FILE asks for pages that are in no arm of this study."
)
def xml(file: Path | None, backing: str | None, expect: str | None, study: Path | None) -> None:
    """Show the memory backing of the libvirt domain in FILE, as a study writes it."""
    from hugewise.cli import guest_study  # noqa: PLC0415  (the rules of the audit come with it)

    guest_study.print_xml(file, backing, expect, study)


@guest.command(name="study")
@click.argument("file", metavar="DOMAIN.xml|DOMAIN", type=click.UNPROCESSED)
@click.option("--connect", metavar="URI", help="Read the DOMAIN from libvirt at this URI, by virsh: qemu:///system.")
@click.option("--load", metavar="COMMAND", help="The command that the guests run. Quotes work as in a shell.")
@click.option("--workload", metavar="NAME", help="The workload that the guests run (hugewise list workloads).")
@click.option(
    "--metric", metavar="NAME", help="The metric to judge (default: the workload's own; for a command wall_s)."
)
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="VALUE",
    help="With --load: a metric in the output, as for `hugewise run` (may be repeated).",
)
@click.option(
    "--packages", metavar="NAME,...", help="Debian packages with the command, instead of the domain's own disk."
)
@click.option(
    "--file", "added", multiple=True, metavar="PATH=FILE", help="Copy FILE of this host to PATH in the guests."
)
@click.option("--kernel", metavar="PATH|PACKAGE", help="The kernel that the guests boot.")
@click.option("--modules", type=click.Path(path_type=Path), help="The folder of the modules, for a kernel by path.")
@click.option("--name", help="The study's name (default: the domain's).")
@click.option(
    "--resident", is_flag=True, help="Boot one guest for all attempts, and compare settings of its own kernel."
)
@click.option(
    "--policy", metavar="POLICIES", help="With --resident: the policies, the baseline first (default: base,thp)."
)
@click.option(
    "--blocks",
    type=click.IntRange(2, 100_000),
    help="The most blocks (default: by the number of arms; with --resident 30).",
)
@click.option("--output", type=click.Path(path_type=Path), help="A new file for the study (default: standard output).")
def study(file: str, **asked: Any) -> None:
    """Write a study of a libvirt domain: which pages should back the memory of the virtual machine?

    Memory, CPUs, NUMA nodes, pinning and disks are those of the domain. The arms differ in the pages behind the memory
    or, with --resident, in settings of the guest's kernel. Elements that the study cannot restate are named with their
    lines. Nothing is run, and no disk is written.
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
