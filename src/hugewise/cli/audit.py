"""`hugewise audit`: the report of a host's settings and traps for a terminal, or as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hugewise.audit.audit import AuditReport, audit
from hugewise.audit.root import Root
from hugewise.audit.rules import SEVERITIES
from hugewise.cli.doctor import leftover
from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.host.journal import JOURNAL
from hugewise.visible import say, say_json

FOUND = 3
"""The exit status where an error or a warning was found: 1 and 2 say that the audit itself could not be made."""

_MOST_SHOWN = 10
_STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


def main(units: Sequence[str], folder: Path, *, as_json: bool, traps_only: bool, exit_zero: bool) -> int:
    """`hugewise audit`: 0 when nothing graver than a note was found, else `FOUND`. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"--root {folder}: no such folder", hint="name the folder that holds etc/, proc/ and sys/")
    root = Root(Path("/") if folder.resolve() == Path("/") else folder)
    report = audit(root, units)
    if as_json:
        say_json(msgspec.structs.replace(report, settings=()) if traps_only else report)
    else:
        console = TextConsole()
        console.print(render(report, traps_only=traps_only), width=min(console.width, 100), crop=False)
    if root.folder == Path("/") and (left := leftover(root, JOURNAL)) is not None:
        say(f"hugewise: {left[0]}; its settings are shown as they were before (rule knobs-of-a-run)", err=True)
    return 0 if exit_zero or report.worst() in (None, "note") else FOUND


def render(report: AuditReport, *, traps_only: bool = False) -> RenderableType:
    """Return the report for a terminal of 80 columns or more."""
    named = f", {', '.join(report.units)}" if report.units else ""
    known = (("systemd", report.systemd), ("glibc", report.glibc))
    software = "".join(f", {name} {version}" for name, version in known if version is not None)
    parts: list[RenderableType] = [Text(f"{report.host}, kernel {report.kernel or 'unknown'}{software}{named}")]
    if not traps_only:
        parts += _settings(report)
    parts += _traps(report)
    if report.unread:
        parts.append(Text("\nnot read", style="bold"))
        parts += [Text(f"  {line}", overflow="fold") for line in report.unread]
    counts = {severity: sum(trap.severity == severity for trap in report.traps) for severity in SEVERITIES}
    text = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for severity, count in counts.items() if count)
    parts.append(Text(f"\n{text or 'no trap found'}"))
    return Group(*parts)


def _settings(report: AuditReport) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for section, several in itertools.groupby(report.settings, key=lambda setting: setting.section):
        table = _table(28)
        for setting in several:
            value = Text(setting.value)
            if setting.where:
                value.append(f"\n{setting.where}", style="dim")
            table.add_row(Text(setting.name), value)
        parts += [Text(f"\n{section}", style="bold"), Padding(table, (0, 0, 0, 2))]
    return parts


def _traps(report: AuditReport) -> list[RenderableType]:
    if not report.traps:
        return []
    table = _table(7)
    for rule, group in itertools.groupby(report.traps, key=lambda one: one.rule):
        several = list(group)
        first = several[0]
        said = Text(f"{rule}: {first.title}", style="bold")
        for one in several[:_MOST_SHOWN]:
            said.append(f"\nfound: {one.found}", style="not bold")
        if len(several) > _MOST_SHOWN:
            said.append(f"\nand {len(several) - _MOST_SHOWN} more (--json has all)", style="not bold")
        said.append(f"\nwhy: {first.why}", style="not bold dim")
        said.append(f"\ncure: {first.cure}")
        said.append(f"\nsource: {'; '.join(first.sources)}", style="not bold dim")
        table.add_row(Text(first.severity, style=_STYLES[first.severity]), said)
    return [Text("\ntraps", style="bold"), Padding(table, (0, 0, 0, 2))]


def _table(width: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1), expand=True)
    table.add_column(width=width, overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    return table
