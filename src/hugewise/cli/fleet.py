"""`hugewise fleet`: from the options of each verb to what the room `fleet` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hugewise.cli import options
from hugewise.errors import HugewiseError, LockedError
from hugewise.visible import say

_FLEET = click.argument("fleet_", metavar="FLEET", type=click.Path(path_type=Path))
_FILE = click.Path(dir_okay=False, path_type=Path)
_HOSTS = click.option("--hosts", required=True, metavar="FILE", type=_FILE, help="The inventory: TOML.")
_SPOOL = click.option("--spool", type=click.Path(file_okay=False, path_type=Path), help="The folder of runs here.")

# Imports are inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415


@click.group(short_help="Run one study on many hosts.")
def fleet() -> None:
    """Run one study on many hosts, bring the runs back and judge them together (docs/fleet.md)."""


@fleet.command(short_help="Run STUDY on the hosts of an inventory.")
@click.argument("study", type=click.Path(path_type=Path))
@_HOSTS
@options.SCALE
@options.ONLY
@options.ARMS
@click.option("--time", "time_", help="Time budget of each host, instead of the study's, such as 30m.")
@click.option("--dry-run", is_flag=True, help="Ask all hosts; show strata and host-hours; run nothing.")
@options.RESULTS
def run(study: Path, hosts: Path, results: Path, *, dry_run: bool, **asked: Any) -> None:
    """Run STUDY on each host of the inventory, and bring the runs back.

    All hosts are checked first, and nothing starts where one does not fit. Ctrl-C leaves the hosts running.
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


@fleet.command(short_help="Continue the fleet in FLEET.")
@_FLEET
@click.option("--end", "ending", is_flag=True, help="Interrupt the runs on the hosts and bring their results.")
@click.option("--hosts", metavar="FILE", type=_FILE, help="A new inventory: the same hosts, reached in another way.")
def resume(fleet_: Path, hosts: Path | None, *, ending: bool) -> None:
    """Continue the fleet in the folder FLEET, after an interrupt, a crash, or unreachable hosts."""
    from hugewise.fleet import conduct

    conducted(lambda begun: conduct.go_on(fleet_, say, hosts=hosts, ending=ending, begun=begun))


@fleet.command(short_help="Show the state of the fleet in FLEET.")
@_FLEET
def status(fleet_: Path) -> None:
    """Show the state of the fleet in the folder FLEET, host by host, from its log; no host is asked."""
    from hugewise.fleet.folder import status_lines

    for line in status_lines(fleet_):
        say(line)


@fleet.command(short_help="Show what every host offers and lacks.")
@_HOSTS
@options.STUDY
@options.SCALE
@options.ONLY
@options.ARMS
def doctor(hosts: Path, study: Path | None, **asked: Any) -> None:
    """Show for every host of the inventory what it is, what is missing, and which cells of STUDY can run there.

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
    help="The folder with hugewise's wheel and its dependencies.",
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
def obey(spool: Path | None) -> None:
    """Obey one order from standard input, and answer on standard output: what a fleet calls on its hosts."""
    from hugewise.fleet import host_agent
    from hugewise.fleet.protocol import MOST_MESSAGE, HostContext, default_spool

    data = sys.stdin.buffer.read(MOST_MESSAGE + 1)
    answer = host_agent.answer_order(data, HostContext(spool or default_spool()))
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
def work() -> None:
    """Be the worker of Dask on this host: what standard input says. Returns when it is registered, and goes on."""
    from hugewise.fleet.dask import worker

    sys.exit(worker.main())


@fleet.command(short_help="Report the hosts together.")
@click.argument("folder", metavar="FLEET", type=click.Path(path_type=Path))
@click.option(
    "--share",
    "shares",
    multiple=True,
    metavar="CLASS=SHARE",
    help="The share of a class in the whole fleet (name or key; any unit). Default: by the hosts that answered.",
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON, and write nothing.")
def report(folder: Path, shares: Sequence[str], output: Path | None, as_json: bool) -> None:
    """Report the hosts of FLEET together: each host, each class of hosts, and what the next host will likely see.

    Writes report.html, report.md and fleet.json into the fleet's folder.
    """
    from hugewise.fleet.pooled import pooled_results
    from hugewise.report import fleet as reporting
    from hugewise.report.document import brief
    from hugewise.report.reasons import worded
    from hugewise.report.terminal import show
    from hugewise.visible import say_json

    def told(done: int, of: int) -> None:
        if of > 1 and sys.stderr.isatty():
            say(f"{done} of {of} runs are read", err=True)

    found = pooled_results(folder, _shares(shares) or None, progress=told)
    if as_json:
        say_json(worded(found))
        return
    document = reporting.report(found)
    try:
        paths = reporting.write(found, output or folder)
    except HugewiseError:
        show(brief(document))  # the result is not lost with the report
        raise
    show(brief(document), paths["html"])


def _shares(given: Sequence[str]) -> dict[str, float]:
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


def conducted(work: Callable[[Callable[[Path], None]], object]) -> None:
    """Do it; where it is interrupted, say what goes on by itself, and how to come back."""
    folders: list[Path] = []
    try:
        work(folders.append)
    except KeyboardInterrupt:
        if not folders:
            raise
        say("interrupted; what runs on hosts goes on there", err=True)
        say(f"  to go on: hugewise fleet resume {folders[0]}", err=True)
        say(f"  to end what runs, and bring it: hugewise fleet resume --end {folders[0]}", err=True)
        sys.exit(130)
    except HugewiseError as error:
        if folders and not isinstance(error, LockedError):
            back = f"then: hugewise fleet resume {folders[0]}"
            error.hint = back if error.hint is None else f"{error.hint}; {back}"
        raise
