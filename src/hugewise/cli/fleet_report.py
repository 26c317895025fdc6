"""`hugewise fleet report`: what the hosts of a fleet say together, on the terminal, as files or as JSON.

What every verb does that conducts a fleet: an interrupt leaves hosts running, and an error says how to come back.

`hugewise fleet confirm`: whether the verdicts of a fleet hold on more hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hugewise.cli import options
from hugewise.errors import HugewiseError, LockedError
from hugewise.visible import say

if TYPE_CHECKING:
    from hugewise.fleet.confirming import Known


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
    from hugewise.fleet.pooled import pooled
    from hugewise.report import fleet as reporting
    from hugewise.report.document import brief
    from hugewise.report.terminal import show
    from hugewise.visible import say_json

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


def conducted(work: Callable[[Callable[[Path], None]], object], then: Callable[[Path], str] | None = None) -> None:
    """Do it; where it is interrupted, say what goes on by itself, and how to come back; `then`: the command after that,
    for the folder of the fleet.
    """
    folders: list[Path] = []
    try:
        work(folders.append)
    except KeyboardInterrupt:
        if not folders:
            raise
        say("interrupted; what runs on hosts goes on there", err=True)
        say(f"  to go on: hugewise fleet resume {folders[0]}", err=True)
        if then is not None:
            say(f"  and after it: {then(folders[0])}", err=True)
        say(f"  to end what runs, and bring it: hugewise fleet resume --end {folders[0]}", err=True)
        sys.exit(130)
    except HugewiseError as error:
        if folders and not isinstance(error, LockedError):
            back = f"then: hugewise fleet resume {folders[0]}"
            error.hint = back if error.hint is None else f"{error.hint}; {back}"
        raise


# Imports inside functions: each verb pays only for what it uses.
# ruff: noqa: PLC0415
_HERE = """
[fleet]
engine = "local"
look = "1s"
check = 0
[[host]]
name = "here"
"""


@click.command(short_help="Do the verdicts hold on more hosts?")
@click.argument("known", metavar="FLEET|RUN", type=click.Path(path_type=Path))
@click.option("--host", "names", multiple=True, metavar="NAME", help="A host of --hosts. Default: all that are new.")
@click.option(
    "--hosts",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The inventory with the hosts. Default: this host alone.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    metavar="FLEET",
    help="Nothing is run: the hosts of this fleet have measured already.",
)
@click.option("--time", "time_", help="Time budget of each run, instead of the study's, such as 5m.")
@click.option("--dry-run", is_flag=True, help="Ask the hosts, show classes and host-hours; begin nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@options.RESULTS
def confirm(  # noqa: PLR0917
    known: Path,
    names: Sequence[str],
    hosts: Path | None,
    measured: Path | None,
    time_: str | None,
    dry_run: bool,
    as_json: bool,
    results: Path,
) -> None:
    """Run the arms that have a verdict, shortly, on more hosts, and say whether it holds there.

    Until then all that a fleet says of a host that did not measure is a prior. Exit status 1 where a host confirmed
    nothing.
    """
    from hugewise.errors import UserError
    from hugewise.fleet import confirming
    from hugewise.report import fleet
    from hugewise.report.terminal import show
    from hugewise.visible import say_json

    if measured is not None and (names or hosts or time_ or dry_run):
        raise UserError("--measured: nothing is run then", hint="leave out --host, --hosts, --time and --dry-run")
    if hosts is None and names:
        raise UserError(f"--host {names[0]}: no inventory is named", hint="add --hosts FILE, or leave out --host")
    before = confirming.known_of(known)

    def tell(line: str) -> None:
        say(line, err=as_json)

    folder = measured or _measured(before, known, hosts, names, results, tell, time_=time_, dry_run=dry_run)
    if folder is None:
        return
    found = list(confirming.judge_hosts(before, folder))
    if as_json:
        say_json([verdict for each in found for verdict in each.verdicts])
        for each in found:
            if each.lost:
                tell(f"{each.host}: no run came back: {each.lost}")
    else:
        verdicts = {each.host: each.verdicts for each in found if not each.lost}
        show(fleet.confirmed_report(verdicts, {each.host: each.lost for each in found if each.lost}))
        say(f"The runs are in {folder}")
    if not all(any(one.state.startswith("confirmed") for one in each.verdicts) for each in found):
        sys.exit(1)


def _measured(  # noqa: PLR0917
    before: Known,
    known: Path,
    hosts: Path | None,
    names: Sequence[str],
    results: Path,
    tell: Callable[[str], None],
    *,
    time_: str | None,
    dry_run: bool,
) -> Path | None:
    """Have the hosts measure; the folder of their fleet. None where that was not asked."""
    from hugewise import reading
    from hugewise.fleet import conduct, confirming, inventory

    wanted = confirming.asked_of(before, time_)
    if hosts is None:
        text, found = _HERE, inventory.parse(_HERE, "here")
    else:
        text, found = reading.text(reading.content(hosts)), inventory.load(hosts)
        found = confirming.chosen(before, found, names)

    folders: list[Path] = []

    def begin(begun: Callable[[Path], None]) -> None:
        folder, _ = conduct.begin(
            wanted,
            found,
            text,
            results,
            tell,
            dry_run=dry_run,
            begun=begun,
            remarks=lambda there: confirming.remarks(before, there),
        )
        if folder is not None:
            folders.append(folder.path)

    conducted(begin, then=lambda folder: f"hugewise fleet confirm {known} --measured {folder}")
    return folders[0] if folders else None
