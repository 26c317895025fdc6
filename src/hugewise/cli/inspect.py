"""`hugewise inspect`: which page sizes back processes that run; for a terminal, live, or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hugewise.errors import UserError
from hugewise.visible import say_json


@click.command("inspect", short_help="Show which page sizes back a running program, and why.")
@click.argument("pids", nargs=-1, metavar="[PID]...")
@click.option("--cgroup", metavar="PATH", help="All processes of a control group, v1 or v2.")
@click.option(
    "--smaps",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A captured /proc/PID/smaps, in place of a process.",
)
@click.option("--watch", is_flag=True, help="Repeat, and show what has changed; Ctrl-C quits.")
@click.option(
    "--interval",
    metavar="TIME",
    default="2s",
    show_default=True,
    help="With --watch: the pause between two looks; at least ten times the duration of a look.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line for each look.")
def inspect(pids: Sequence[str], *, as_json: bool, watch: bool, **asked: Any) -> None:
    """Show which page sizes back a running program, mapping by mapping, and why not larger ones.

    Looks at the processes PID, or at those of --cgroup. Changes and stops nothing. Root gets
    exact sizes from the kernel's page flags; an ordinary user gets what smaps shows of own processes. --smaps reads a
    smaps that was captured elsewhere.
    """
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.inspection import inspect as inspection  # noqa: PLC0415
    from hugewise.inspection import targets  # noqa: PLC0415
    from hugewise.inspection.inspected import Inspection  # noqa: PLC0415

    if (bool(pids) + sum(asked[name] is not None for name in ("cgroup", "smaps"))) != 1:
        raise UserError(
            "inspect: name processes in one way",
            hint="hugewise inspect PID, or --cgroup PATH, or --smaps FILE",
        )
    if watch and asked["smaps"] is not None:
        raise UserError("--watch looks at a process that runs", hint="leave --watch out, or --smaps")
    interval = _interval(asked["interval"])
    host = LocalHost()

    def look() -> Inspection:
        if asked["smaps"] is not None:
            from hugewise.inspection.captured import inspect_file  # noqa: PLC0415

            return inspect_file(asked["smaps"])
        group = None
        if asked["cgroup"] is not None:
            who, group = targets.of_group(asked["cgroup"], host)
        else:
            who = targets.of_numbers(pids, host)
        return inspection.inspect(who, host, group=group)

    if watch:
        from hugewise.cli import inspect_show  # noqa: PLC0415

        inspect_show.watch(look, interval, as_json=as_json)
        return
    found = look()
    if as_json:
        say_json(found)
        return
    from hugewise.cli.inspect_show import render  # noqa: PLC0415
    from hugewise.console import TextConsole  # noqa: PLC0415

    console = TextConsole()
    console.print(render(found, width=console.width), crop=False)


def _interval(text: str) -> float:
    from hugewise.quantity import parse_duration  # noqa: PLC0415

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"--interval {text}: {error}", hint="write for example --interval 5s") from None
    if not 0.1 <= seconds <= 3600:
        raise UserError(f"--interval {text}: from 100ms to 1h", hint="write for example --interval 5s")
    return seconds
