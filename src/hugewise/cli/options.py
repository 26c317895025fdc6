"""Arguments and options that several verbs share, and the completion of their values by a shell.

Click completes verbs, options and choices; the values that hugewise knows are completed here. A mistake in what stands
on the line so far completes nothing.
"""
# ruff: noqa: ARG001  (click calls each completion with all three)

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from hugewise.errors import HugewiseError

if TYPE_CHECKING:
    from hugewise.study.study import Study


Items = list[CompletionItem]


def script(cli: click.Command, shell: str) -> str:
    """Return the shell script that completes `hugewise`."""
    made = get_completion_class(shell)
    assert made is not None
    return made(cli, {}, "hugewise", "_HUGEWISE_COMPLETE").source()


def complete_studies(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Studies that come with hugewise by name, those of this folder, else files; of `run --policy`: a command."""
    from hugewise.study import load  # noqa: PLC0415  (each verb pays only for what it uses)

    here = sorted(path.name for path in Path().glob("*.toml"))
    found = [] if context.params.get("policy") else _begin((*load.names(), *here), incomplete)
    return found or complete_files(context, parameter, incomplete)


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return files, as the shell knows them."""
    return [CompletionItem(incomplete, type="file")]


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Folders, as the shell knows them."""
    return [CompletionItem(incomplete, type="dir")]


def complete_policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Policies that this machine has page sizes for, between commas."""
    from hugewise import policies  # noqa: PLC0415
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415
    from hugewise.model.pages import PageSizes  # noqa: PLC0415

    return _listed(policies.discover(PageSizes.discover(LocalHost())), incomplete)


def complete_labels(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Workloads of STUDY, between commas."""
    study = _study(context)
    return [] if study is None else _listed((use.called for use in study.workload), incomplete)


def complete_arms(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Return arms of STUDY, between commas."""
    study = _study(context)
    return [] if study is None else _listed((use.name for use in study.policies), incomplete)


def complete_scales(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Scales of STUDY."""
    study = _study(context)
    if study is None:
        return []
    return _begin(sorted({*study.scales, *(name for use in study.workload for name in use.scales)}), incomplete)


def complete_services(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Services of systemd that have a file below the folder of --root."""
    from hugewise.audit import systemd  # noqa: PLC0415
    from hugewise.audit.root import Root  # noqa: PLC0415

    names = systemd.service_files(Root(context.params.get("folder") or Path("/")))
    return _begin(sorted(name.removesuffix(".service") for name in names), incomplete)


def _study(context: click.Context) -> Study | None:
    from hugewise.study.load import load  # noqa: PLC0415

    # Click leaves it among the words that it did not parse while the option before the cursor lacks its value.
    named = context.params.get("study") or next((word for word in context.args if not word.startswith("-")), None)
    if named is None:
        return None
    try:
        return load(Path(named))
    except HugewiseError:
        return None


def _begin(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _listed(names: Iterable[str], incomplete: str) -> Items:
    """Complete the last of names between commas."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(last) and name not in taken]


STUDY = click.argument("study", required=False, type=click.Path(path_type=Path), shell_complete=complete_studies)
RUN = click.argument("run_", metavar="RUN", type=click.Path(path_type=Path), shell_complete=complete_runs)

# For `run`: a study, or the first word of a command.
STUDY_OR_WORD = click.argument("study", required=False, type=click.UNPROCESSED, shell_complete=complete_studies)
COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
POLICY = click.option(
    "--policy",
    shell_complete=complete_policies,
    help="Policies to compare on a command, the baseline first: base,thp (with -- COMMAND).",
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
    shell_complete=complete_files,
    help="Standard input of the command in every run (default: the file that is standard input here; else no input).",
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
    shell_complete=complete_scales,
    help="Scale of STUDY, such as published (default: as in the file).",
)
ONLY = click.option(
    "--only",
    metavar="LABELS",
    shell_complete=complete_labels,
    help="Only these workloads or cells of STUDY: memcached,redis.",
)
ARMS = click.option(
    "--arms",
    metavar="POLICIES",
    shell_complete=complete_arms,
    help="Only these policies of STUDY, and its baseline: thp,mthp-64k.",
)
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
    shell_complete=complete_services,
    help="Only this service, and the settings of the host: redis-server (may be repeated).",
)
