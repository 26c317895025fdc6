"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class


def script(cli: click.Command, shell: str) -> str:
    """Return the shell script that completes `hugewise`."""
    made = get_completion_class(shell)
    assert made is not None
    return made(cli, {}, "hugewise", "_HUGEWISE_COMPLETE").source()


STUDY = click.argument("study", required=False, type=click.Path(path_type=Path))
RUN = click.argument("run_", metavar="RUN", type=click.Path(path_type=Path))

# For `run`: a study, or the first word of a command.
STUDY_OR_WORD = click.argument("study", required=False, type=click.UNPROCESSED)
COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED)
POLICY = click.option(
    "--policy", help="Policies to compare on a command, the baseline first: base,thp (with -- COMMAND)."
)

PREPARE = click.option(
    "--prepare",
    metavar="CMD",
    help="A command run before each attempt, untimed: 'rm -f out.dat'. Quotes work as in a shell; no shell runs it.",
)

STDIN = click.option(
    "--stdin",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Standard input of the command in every run (default: the file that is standard input here; else no input).",
)

RESULTS = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder for results.",
)
SCALE = click.option("--scale", metavar="NAME", help="Scale of STUDY, such as published (default: as in the file).")
ONLY = click.option("--only", metavar="LABELS", help="Only these workloads or cells of STUDY: memcached,redis.")
ARMS = click.option("--arms", metavar="POLICIES", help="Only these policies of STUDY, and its baseline: thp,mthp-64k.")
CLIENT = click.option("--client", metavar="NAME", help="Run the clients of servers on this host of --hosts.")
CLIENTS = click.option(
    "--hosts",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The inventory with --client: TOML with tables [[client]].",
)
ANYWAY = click.option(
    "--anyway", is_flag=True, help="As root: run although an ordinary user's run holds this host's lock."
)
WAIT = click.option("--wait", is_flag=True, help="Wait while another hugewise holds this host.")


UNITS = click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="UNIT",
    help="Only this service, and the settings of the host: redis-server (may be repeated).",
)
