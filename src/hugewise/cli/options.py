"""Arguments and options that several verbs share, and those whose values a shell completes."""

from __future__ import annotations

from pathlib import Path

import click

from hugewise.cli import completion

__all__ = [
    "ANYWAY",
    "ARMS",
    "CLIENT",
    "CLIENTS",
    "COMMAND",
    "KEEPER",
    "ONLY",
    "PAGE",
    "POLICY",
    "PREPARE",
    "RESULTS",
    "RUN",
    "SCALE",
    "STUDY",
]
__all__ += ["STUDY_OR_WORD", "UNITS"]

STUDY = click.argument("study", required=False, type=click.Path(path_type=Path), shell_complete=completion.studies)
RUN = click.argument("run_", metavar="RUN", type=click.Path(path_type=Path), shell_complete=completion.runs)

# Of `run`: a study, or the first word of a command.
STUDY_OR_WORD = click.argument("study", required=False, type=click.UNPROCESSED, shell_complete=completion.studies)
COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.command)
POLICY = click.option(
    "--policy",
    shell_complete=completion.policy_names,
    help="Policies to compare on a command, the baseline first: base,thp (with -- COMMAND).",
)

PREPARE = click.option(
    "--prepare",
    metavar="CMD",
    help="A command run before each attempt, untimed: 'rm -f out.dat'. Its words are split as by a shell; no shell"
    " runs it.",
)

RESULTS = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder for results.",
)
SCALE = click.option(
    "--scale",
    metavar="NAME",
    shell_complete=completion.scales,
    help="Scale of STUDY, such as published (default: as it is written).",
)
ONLY = click.option(
    "--only",
    metavar="LABELS",
    shell_complete=completion.labels,
    help="Only these workloads, or cells, of STUDY: memcached,redis.",
)
ARMS = click.option(
    "--arms",
    metavar="POLICIES",
    shell_complete=completion.arms,
    help="Only these policies of STUDY, beside its baseline: thp,mthp-64k.",
)
PAGE = click.option(
    "--page",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add the run to a page of results to publish: its data FILE.parquet; FILE.md, figures, and overview.md and"
    " folklore.md of all pages there are written beside it.",
)
CLIENT = click.option("--client", metavar="NAME", help="Have the clients of servers on this host of --hosts.")
CLIENTS = click.option(
    "--hosts",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The inventory that --client is in: TOML with tables [[client]].",
)
ANYWAY = click.option("--anyway", is_flag=True, help="As root: run beside an account that holds this host's lock.")
KEEPER = click.option("--keeper", type=click.IntRange(3), hidden=True, help="A socket to a fleet's keeper.")
UNITS = click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="UNIT",
    shell_complete=completion.services,
    help="Only this service, with what is the host's: redis-server (may be repeated).",
)
