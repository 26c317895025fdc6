"""`hugewise inspect`: which page sizes back processes that run; for a terminal, live, or as JSON."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hugewise.errors import UserError
from hugewise.visible import say_json


@click.command("inspect", short_help="Show which page sizes back a running program, and why.")
@click.argument("pids", nargs=-1, metavar="[PID]...")
@click.option("--cgroup", metavar="PATH", help="All processes of a control group, v1 or v2.")
@click.option("--command", metavar="NAME", help="All processes of that name.")
@click.option(
    "--smaps",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A captured /proc/PID/smaps, in place of a process.",
)
@click.option("--watch", is_flag=True, help="Repeat, and show what has changed; q quits.")
@click.option(
    "--interval",
    metavar="TIME",
    default="2s",
    show_default=True,
    help="With --watch: the pause between two looks; at least ten times the duration of a look.",
)
@click.option("--sample", is_flag=True, help="Look at blocks drawn at random, and print error bounds (root).")
@click.option(
    "--blocks", type=click.IntRange(16, 1 << 20), help="With --sample: blocks of each process (default: 512)."
)
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), help="With --sample: the seed of the draw (default: a fresh one)."
)
@click.option("--mappings", metavar="N|all", default="10", show_default=True, help="The number of mappings to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line for each look.")
def inspect(pids: Sequence[str], *, as_json: bool, watch: bool, **asked: Any) -> None:
    """Show which page sizes back a running program, mapping by mapping, and why not larger ones.

    Looks at the processes PID, or at those of --cgroup, or of --command. Changes and stops nothing. Root gets
    exact sizes from the kernel's page flags; an ordinary user gets what smaps shows of own processes. --smaps reads a
    smaps that was captured elsewhere.
    """
    from hugewise.host.local_host import LocalHost  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.inspection import inspect as inspection  # noqa: PLC0415
    from hugewise.inspection import targets  # noqa: PLC0415
    from hugewise.inspection.inspected import Inspection  # noqa: PLC0415

    if (bool(pids) + sum(asked[name] is not None for name in ("cgroup", "command", "smaps"))) != 1:
        raise UserError(
            "inspect: name processes in one way",
            hint="hugewise inspect PID, or --cgroup PATH, or --command NAME, or --smaps FILE",
        )
    _of_a_capture(watch=watch, asked=asked)
    interval, mappings = _interval(asked["interval"]), _mappings(asked["mappings"])
    sampling = None
    if asked["sample"]:
        seed = asked["seed"] if asked["seed"] is not None else secrets.randbits(32)
        sampling = inspection.SampleDraw(asked["blocks"] or inspection.BLOCKS, seed)
    elif asked["blocks"] is not None or asked["seed"] is not None:
        raise UserError("--blocks and --seed are about a sample", hint="add --sample")
    host = LocalHost()

    def look() -> Inspection:
        if asked["smaps"] is not None:
            from hugewise.inspection.captured import inspect_file  # noqa: PLC0415

            return inspect_file(asked["smaps"])
        group = None
        if asked["cgroup"] is not None:
            who, group = targets.of_group(asked["cgroup"], host)
        elif asked["command"] is not None:
            who = targets.of_command(asked["command"], host)
        else:
            who = targets.of_numbers(pids, host)
        return inspection.inspect(who, host, group=group, sampling=sampling)

    if watch:
        from hugewise.cli import inspect_show  # noqa: PLC0415

        inspect_show.watch(look, interval, as_json=as_json, mappings=mappings)
        return
    found = look()
    if as_json:
        say_json(found)
        return
    from hugewise.cli.inspect_show import render  # noqa: PLC0415
    from hugewise.console import TextConsole  # noqa: PLC0415

    console = TextConsole()
    console.print(render(found, width=console.width, mappings=mappings), crop=False)


def _of_a_capture(*, watch: bool, asked: dict[str, Any]) -> None:
    """Raise UserError for what a file does not have."""
    given = [name for name in ("sample", "blocks", "seed") if asked[name]] + (["watch"] if watch else [])
    if asked["smaps"] is not None and given:
        raise UserError(f"--{given[0]} looks at a process that runs", hint=f"leave --{given[0]} out, or --smaps")


def _interval(text: str) -> float:
    from hugewise.quantity import parse_duration  # noqa: PLC0415

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UserError(f"--interval {text}: {error}", hint="write for example --interval 5s") from None
    if not 0.1 <= seconds <= 3600:
        raise UserError(f"--interval {text}: from 100ms to 1h", hint="write for example --interval 5s")
    return seconds


def _mappings(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise UserError(f"--mappings {text}: not a number", hint="write a number, or all")
    return int(text)
