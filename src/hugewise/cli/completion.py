"""What a shell is told when somebody presses TAB, and the script with which it asks.

Click knows verbs, options and choices; here are the values that hugewise knows. A mistake in what stands on the line so
far completes nothing.
"""

# ruff: noqa: ARG001  (click calls each with all three)
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from hugewise.errors import HugewiseError

if TYPE_CHECKING:
    from hugewise.study.study import Study

__all__ = ["arms", "command", "labels", "policy_names", "runs", "scales", "script", "services", "studies"]

Items = list[CompletionItem]


def script(cli: click.Command, shell: str) -> str:
    """What a shell is to read so that it completes `hugewise`."""
    made = get_completion_class(shell)
    assert made is not None
    return made(cli, {}, "hugewise", "_HUGEWISE_COMPLETE").source()


def studies(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Studies that come with hugewise by name, those of this folder, else files; of `run --policy`: a command."""
    from hugewise.study import shipped  # noqa: PLC0415  (each verb pays only for what it uses)

    here = sorted(path.name for path in Path().glob("*.toml"))
    found = [] if context.params.get("policy") else _begin((*shipped.names(), *here), incomplete)
    return found or command(context, parameter, incomplete)


def command(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Files, as the shell knows them."""
    return [CompletionItem(incomplete, type="file")]


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Folders, as the shell knows them."""
    return [CompletionItem(incomplete, type="dir")]


def policy_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Policies that this machine has page sizes for, between commas."""
    from hugewise import policies  # noqa: PLC0415
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415
    from hugewise.model.pages import PageSizes  # noqa: PLC0415

    return _listed(policies.discover(PageSizes.discover(LocalHost())), incomplete)


def labels(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Workloads of STUDY, between commas."""
    study = _study(context)
    return [] if study is None else _listed((use.called for use in study.workload), incomplete)


def arms(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Arms of STUDY, between commas."""
    study = _study(context)
    return [] if study is None else _listed((use.name for use in study.policies), incomplete)


def scales(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Scales of STUDY."""
    study = _study(context)
    if study is None:
        return []
    return _begin(sorted({*study.scales, *(name for use in study.workload for name in use.scales)}), incomplete)


def services(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Services of systemd that have a file below the folder of --root."""
    from hugewise.audit import unit_files  # noqa: PLC0415
    from hugewise.audit.root import Root  # noqa: PLC0415

    names = unit_files.services(Root(context.params.get("folder") or Path("/")))
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
    """The last of names between commas."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(last) and name not in taken]
