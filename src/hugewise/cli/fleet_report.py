"""`hugewise fleet report`: what the hosts of a fleet say together, on the terminal, as files or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

__all__ = ["report"]

# Imports inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.command(short_help="What the hosts say together.")
@click.argument("folder", metavar="FLEET", type=click.Path(path_type=Path))
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="CLASS=SHARE",
    help="How much of the whole fleet a class is (name or key; any unit). Default: by the hosts that answered.",
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, and write nothing.")
def report(folder: Path, shares: Sequence[str], output: Path | None, as_json: bool) -> None:
    """What the hosts of FLEET say together: each host, each class of hosts, and what the next one will likely see.

    Writes report.html, report.md and fleet.json into the fleet's folder.
    """
    from hugewise.errors import HugewiseError
    from hugewise.fleet.pooled import pooled
    from hugewise.report import fleet as reporting
    from hugewise.report.document import brief
    from hugewise.report.terminal import show
    from hugewise.visible import say, say_json

    def told(done: int, of: int) -> None:
        if of > 1 and sys.stderr.isatty():
            say(f"{done} of {of} runs are read", err=True)

    found = pooled(folder, _shares(shares) or None, told=told)
    if as_json:
        say_json(found)
        return
    document = reporting.report(found)
    try:
        paths = reporting.write(found, output or folder)
    except HugewiseError:
        show(brief(document))  # what was found is not lost with the report
        raise
    show(brief(document), paths["html"])


def _shares(given: Sequence[str]) -> dict[str, float]:
    """Raises UserError."""
    from hugewise import reading
    from hugewise.errors import UserError

    found: dict[str, float] = {}
    for one in given:
        name, _, written = one.rpartition("=")
        try:
            share = reading.figure(written.removesuffix("%"), "the share", low=0)
        except reading.UnreadableError as error:
            raise UserError(f"--share {one}: {error}", hint="write for example --share 1a2b3c4d=40%") from None
        if not name or name in found:
            raise UserError(f"--share {one}: it names no class, or one twice", hint="write CLASS=SHARE, each once")
        found[name] = share
    return found
