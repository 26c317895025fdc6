"""`hugewise fleet`: from its options to what it does; the work is in the room `fleet`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hugewise.cli.fleet_report import report

__all__ = ["fleet"]

_FLEET = click.argument("fleet_", metavar="FLEET", type=click.Path(path_type=Path))
_HOSTS = click.option(
    "--hosts",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The inventory: TOML.",
)
_SPOOL = click.option("--spool", type=click.Path(file_okay=False, path_type=Path), help="The folder of runs here.")

# Imports inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.group(short_help="One question over many hosts.")
def fleet() -> None:
    """One question over many hosts: ordinary runs on each, brought back, judged together (docs/fleet.md)."""


# What another file adds: fleet.add_command(...), here.
fleet.add_command(report)


@fleet.command(hidden=True)
@_SPOOL
@click.option("--worker", type=click.IntRange(2), help="The engine's worker here, which may be stopped.")
def obey(spool: Path | None, worker: int | None) -> None:
    """Obey one order from standard input, and answer on standard output: what a fleet calls on its hosts."""
    from hugewise.fleet import delivery
    from hugewise.fleet.orders import MOST_MESSAGE
    from hugewise.fleet.place import Place, usual_spool

    data = sys.stdin.buffer.read(MOST_MESSAGE + 1)
    answer = delivery.obeyed_alone(data, Place(spool or usual_spool(), worker))
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


@fleet.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("lock", type=click.IntRange(3))
def keep(folder: Path, lock: int) -> None:
    """Conduct the assignment in FOLDER: what `obey` starts."""
    from hugewise.fleet import keeper

    keeper.main(folder, lock)
