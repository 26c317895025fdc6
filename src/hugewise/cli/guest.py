"""`hugewise guest`: what guests are made of, outside of any study.

A command imports what it uses when it is called: every verb of hugewise loads this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hugewise.visible import say

_SUITE = click.option("--suite", default="trixie", show_default=True, help="Debian suite of packages and sources.")


@click.group()
def guest() -> None:
    """Study virtual machines."""


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


@guest.command(name="study")
@click.argument("file", metavar="DOMAIN.xml", type=click.UNPROCESSED)
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
    "--policy", metavar="POLICIES", help="Compare settings of the guest's kernel: the policies, the baseline first."
)
@click.option(
    "--blocks",
    type=click.IntRange(2, 100_000),
    help="The most blocks (default: by the number of arms).",
)
@click.option("--output", type=click.Path(path_type=Path), help="A new file for the study (default: standard output).")
def study(file: str, **asked: Any) -> None:
    """Write a study of a libvirt domain: which pages should back the memory of the virtual machine?

    Memory, CPUs, NUMA nodes, pinning and disks are those of the domain. The arms differ in the pages behind the memory
    or, with --policy, in settings of the guest's kernel. Elements that the study cannot restate are named with their
    lines. Nothing is run, and no disk is written.
    """
    from hugewise.cli import guest_study  # noqa: PLC0415  (the rules of the audit come with it)

    guest_study.main(file, **asked)


def _say(line: str) -> None:
    say(line, err=True)
