"""`hugewise advise`: from a command to a setting."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from hugewise.cli import completion, options
from hugewise.errors import UserError
from hugewise.visible import say, say_json

__all__ = ["advise"]


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.command)
@click.option("--time", "time_", default="10m", show_default=True, help="Time for all of it, such as 4m.")
@click.option("--metric", help="The metric that is judged (wall_s, cpu_s, ...).")
@click.option(
    "--value",
    "values",
    multiple=True,
    help="A metric in the output, NAME,DIRECTION,UNIT=regex:PATTERN or =json:PATH (may be repeated).",
)
@click.option("--margin", default="2%", show_default=True, help="Smaller differences make none.")
@click.option("--confidence", default="0.99", show_default=True, help="Confidence of the verdict.")
@click.option("--max-candidates", type=click.IntRange(1, 6), default=6, show_default=True, help="Settings to try.")
@click.option(
    "--priority",
    type=click.Choice(["speed", "memory", "tail"]),
    default="speed",
    show_default=True,
    help="What the best is: the metric, unless memory grows by over 10%; the footprint; or an upper quantile.",
)
@click.option("--pool", help="Hugetlb memory that the command needs, such as 512m (default: what it was seen to use).")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write the files to deploy below it.")
@click.option("--resume", "resumed", type=click.Path(path_type=Path), help="Go on with the advice in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the advice as JSON.")
@options.ANYWAY
@options.RESULTS
def advise(
    command: Sequence[str],
    resumed: Path | None,
    output: Path | None,
    results: Path,
    *,
    as_json: bool,
    anyway: bool,
    **asked: Any,
) -> None:
    """What to set for COMMAND, what it gains, what it costs: advise -- COMMAND ARGS...

    A pilot runs it as it is. Settings that can reach it are screened, and the one chosen is confirmed by runs of its
    own, whose verdict has the confidence that was asked for. Nothing is left changed, and nothing is applied.
    """
    from hugewise.advise import advise as phases  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.advise.advice import answer, details, objective, recommended, settings  # noqa: PLC0415
    from hugewise.session import progress  # noqa: PLC0415

    _check(command, resumed, output, asked)
    with progress.shown(sys.stderr) as listener:
        if resumed is not None:
            found, folder = phases.resume(resumed, listener=listener, anyway=anyway)
        else:
            found, folder = phases.advise(_question(command, asked), results, listener=listener, anyway=anyway)
    if as_json:
        told = {"objective": objective(found), "answer": answer(found), "settings": settings(found)}
        say_json(msgspec.to_builtins(found) | told)
    else:
        say(objective(found))
        say(answer(found))
        for line in details(found):
            say(f"  {line}")
        for run in filter(None, (found.pilot_folder, found.screening_folder, found.confirmation_folder)):
            say(f"  Run: {run}")
        say(f"Advice: {folder}")
    if output is not None and found.confirmed is None:
        say(f"{output}: no files: nothing was confirmed", err=as_json)
    elif output is not None and found.question.priority == "memory" and not recommended(found):
        say(f"{output}: no files: nothing is recommended", err=as_json)
    elif output is not None:
        import hugewise  # noqa: PLC0415
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        measured = hugewise.open_results(found.confirmation_folder)
        for line in write_files(measured, output, arm=found.chosen if recommended(found) else None):
            say(line, err=as_json)
    if found.arrived != "finished":
        sys.exit(130)


def _check(command: Sequence[str], resumed: Path | None, output: Path | None, asked: dict[str, Any]) -> None:
    """Raise UserError for a call that makes no sense, before anything is measured."""
    if bool(command) == (resumed is not None):
        raise UserError("name a command, or an advice to go on with", hint="hugewise advise -- COMMAND ARGS...")
    source = click.get_current_context().get_parameter_source
    if resumed is not None and (given := [name for name in asked if source(name) is ParameterSource.COMMANDLINE]):
        name = {"time_": "time", "values": "value"}.get(given[0], given[0].replace("_", "-"))
        raise UserError(f"--{name} belongs to a new advice", hint="leave it out: the advice has its question")
    if output is not None:
        from hugewise.report.deployed import must_be_empty  # noqa: PLC0415

        must_be_empty(output)


def _question(command: Sequence[str], asked: dict[str, Any]) -> Any:
    """The question, from the words of the call. Raises UserError."""
    from hugewise.advise.question import Question  # noqa: PLC0415
    from hugewise.advise.question import command as of_command  # noqa: PLC0415
    from hugewise.quantity import parse_duration, parse_share, parse_size  # noqa: PLC0415

    def read(name: str, text: str, how: Any, such: str) -> Any:
        try:
            return how(text)
        except ValueError as error:
            raise UserError(f"--{name} {text}: {error}", hint=f"write for example --{name} {such}") from None

    return Question(
        workload=of_command(command, metric=asked["metric"], values=asked["values"]),
        margin=read("margin", asked["margin"], parse_share, "2%"),
        confidence=read("confidence", asked["confidence"], parse_share, "0.99"),
        seconds=read("time", asked["time_"], parse_duration, "10m"),
        most=asked["max_candidates"],
        priority=asked["priority"],
        pool=0 if asked["pool"] is None else read("pool", asked["pool"], parse_size, "512m"),
    )
