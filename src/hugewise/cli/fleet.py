"""`hugewise fleet`: from its options to what it does; the work is in the room `fleet`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hugewise.cli import options
from hugewise.cli.fleet_report import conducted, confirm, report
from hugewise.visible import say

_FLEET = click.argument("fleet_", metavar="FLEET", type=click.Path(path_type=Path))
_FILE = click.Path(dir_okay=False, path_type=Path)
_HOSTS = click.option("--hosts", required=True, metavar="FILE", type=_FILE, help="The inventory: TOML.")
_SPOOL = click.option("--spool", type=click.Path(file_okay=False, path_type=Path), help="The folder of runs here.")

# Imports inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.group(short_help="One question over many hosts.")
def fleet() -> None:
    """One question over many hosts: ordinary runs on each, brought back, judged together (docs/fleet.md)."""


# What another file adds: fleet.add_command(...), here.
fleet.add_command(report)
fleet.add_command(confirm)


@fleet.command(short_help="Run STUDY on the hosts of an inventory.")
@click.argument("study", type=click.Path(path_type=Path), shell_complete=options.complete_studies)
@_HOSTS
@options.SCALE
@options.ONLY
@options.ARMS
@click.option("--time", "time_", help="Time budget of each host, instead of the study's, such as 30m.")
@click.option("--dry-run", is_flag=True, help="Ask all hosts, show strata and host-hours; begin nothing.")
@options.RESULTS
def run(study: Path, hosts: Path, results: Path, *, dry_run: bool, **asked: Any) -> None:
    """Run STUDY on each host of the inventory, and bring the runs back.

    All hosts are asked first: what does not fit is told before anything is begun. An interrupt leaves them running.
    """
    from hugewise import reading
    from hugewise.fleet import conduct, inventory

    wanted = conduct.question_of(study, **asked)
    found = inventory.load(hosts)
    conducted(
        lambda begun: conduct.begin(
            wanted, found, reading.text(reading.content(hosts)), results, say, dry_run=dry_run, begun=begun
        )
    )


@fleet.command(short_help="Go on with the fleet in FLEET.")
@_FLEET
@click.option("--end", "ending", is_flag=True, help="End what runs on its hosts, bring it, and begin nothing more.")
@click.option("--hosts", metavar="FILE", type=_FILE, help="The inventory anew: the same hosts, reached otherwise.")
def resume(fleet_: Path, hosts: Path | None, *, ending: bool) -> None:
    """Go on with the fleet in the folder FLEET, after an interrupt, a crash, or hosts that were out of reach."""
    from hugewise.fleet import conduct

    conducted(lambda begun: conduct.go_on(fleet_, say, hosts=hosts, ending=ending, begun=begun))


@fleet.command(short_help="How the fleet in FLEET is.")
@_FLEET
def status(fleet_: Path) -> None:
    """How the fleet in the folder FLEET is, host by host: from its log, without asking any host."""
    from hugewise.fleet import status as standing

    for line in standing.lines(fleet_):
        say(line)


@fleet.command(short_help="Ask every host what it offers and lacks.")
@_HOSTS
@options.STUDY
@options.SCALE
@options.ONLY
@options.ARMS
def doctor(hosts: Path, study: Path | None, **asked: Any) -> None:
    """Ask every host of the inventory who it is, what is missing, and (for STUDY) what of it can run there.

    Begins nothing. Exit status 1 where a host cannot take part.
    """
    from hugewise.fleet import conduct, inventory
    from hugewise.fleet.conduct import print_examination

    wanted = None if study is None else conduct.question_of(study, time_=None, **asked)
    if not print_examination(inventory.load(hosts), wanted, say):
        sys.exit(1)


@fleet.command(short_help="Install hugewise on every host, from wheels.")
@_HOSTS
@click.option(
    "--wheels",
    required=True,
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="hugewise's wheel, and those of all that it needs.",
)
@click.option("--python", default="python3", show_default=True, help="The Python of the hosts: 3.11 or later.")
def provision(hosts: Path, wheels: Path, python: str) -> None:
    """Install hugewise on every host of the inventory, over your own ssh, from the wheels in a folder.

    Hosts need no network: make wheel; pip download --only-binary :all: --dest FOLDER dist/hugewise-*.whl
    """
    from hugewise.fleet import inventory
    from hugewise.fleet import provision as provisioning

    if provisioning.provision(inventory.load(hosts), provisioning.wheels_in(wheels), say, python=python):
        sys.exit(1)


@fleet.command(hidden=True)
@_SPOOL
@click.option("--worker", type=click.IntRange(2), help="The engine's worker here, which may be stopped.")
def obey(spool: Path | None, worker: int | None) -> None:
    """Obey one order from standard input, and answer on standard output: what a fleet calls on its hosts."""
    from hugewise.fleet import engine
    from hugewise.fleet.protocol import MOST_MESSAGE, HostPlace, usual_spool

    data = sys.stdin.buffer.read(MOST_MESSAGE + 1)
    answer = engine.obeyed_alone(data, HostPlace(spool or usual_spool(), worker))
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


@fleet.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("lock", type=click.IntRange(3), required=False)
def keep(folder: Path, lock: int | None) -> None:
    """Conduct the assignment in FOLDER: what `obey` starts, or a job of Slurm is."""
    from hugewise.fleet import keeper

    keeper.main(folder, lock)


@fleet.command(hidden=True)
@_FLEET
def summarise(fleet_: Path) -> None:
    """Make the summaries of the runs that standard input names: what a coordinator starts beside itself."""
    from hugewise.fleet import pooled

    pooled.main(fleet_)


@fleet.command(hidden=True)
def work() -> None:
    """Be the worker of Dask on this host: what standard input says. Returns when it is registered, and goes on."""
    from hugewise.fleet.dask import worker

    sys.exit(worker.main())
