"""`hugewise advise`: from a command, a service, the cells of a study, or a run that exists, to settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from hugewise.cli import options, request
from hugewise.errors import UserError
from hugewise.visible import printable, say, say_json

_DASHES = "--"
_TIME_S = 600.0
_COMMAND = "hugewise advise -- COMMAND ARGS..."
_OPTIONS = {"time_": "time", "values": "value", "run_": "from", "resumed": "resume"}
# What each form takes beside --output and --json; the others are refused.
_ASKED = ("time_", "margin", "confidence", "max_candidates", "priority")
_OF_COMMAND = ("metric", "values", "pool", "prepare", "curve")
_OF_STUDY = ("only", "scale")
_OF_SERVICE = ("metric", "values", "pool", *request.NAMES)
_OF_RUNS = ("anyway", "results")


class _Dashed(click.Command):
    """What stands behind `--` is a command, and nothing else is: `advise demo` is about a study."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # of a shell that completes
            return super().parse_args(ctx, args)
        place = args.index(_DASHES) if _DASHES in args else len(args)
        behind = tuple(args[place + 1 :])
        left = super().parse_args(ctx, args[:place])
        if stray := ctx.params["command"]:
            words = " ".join(map(printable, (ctx.params["study"], *stray)))
            raise UserError(f"{words}: a command stands behind --", hint=f"hugewise advise -- {words}")
        if place < len(args) and not behind:
            raise UserError("there is no command behind --", hint=_COMMAND)
        ctx.params["command"] = behind
        return left


@click.command(cls=_Dashed, short_help="What to set for a program or a server, and how sure.")
@options.STUDY_OR_WORD
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", shell_complete=options.complete_files
)
@request.options
@click.option(
    "--from",
    "run_",
    metavar="RUN",
    type=click.Path(path_type=Path),
    shell_complete=options.complete_runs,
    help="What the run in this folder says is to be set; nothing is measured.",
)
@click.option(
    "--time",
    "time_",
    help="Time for all of it, such as 4m (default: 10m, of a study 10m for each cell).",
)
@click.option("--metric", help="The metric of COMMAND that is judged (wall_s, cpu_s, ...).")
@click.option(
    "--value",
    "values",
    multiple=True,
    help="A metric in its output, NAME,DIRECTION,UNIT=regex:PATTERN or =json:PATH (may be repeated).",
)
@click.option("--margin", default="2%", show_default=True, help="Smaller differences make none.")
@click.option(
    "--confidence",
    default="0.99",
    show_default=True,
    help="Of each verdict: at 0.99 it is wrong with up to 1%, and any of K (advices, cells) with up to K times that.",
)
@click.option("--max-candidates", type=click.IntRange(1, 6), default=6, show_default=True, help="Settings to try.")
@click.option(
    "--priority",
    type=click.Choice(["speed", "memory", "tail"]),
    default="speed",
    show_default=True,
    help="What the best is: the metric, unless memory grows by over 10%; the footprint; or an upper quantile.",
)
@click.option("--pool", help="Hugetlb memory that COMMAND needs, such as 512m (default: what it was seen to use).")
@click.option("--curve", is_flag=True, help="No setting: the gain at 0 to 100% of the heap on huge pages, its knee.")
@options.PREPARE
@options.SCALE
@options.ONLY
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Write the files to deploy below it.")
@click.option("--unit", help="The service that the files of --output are for, such as redis-server.service.")
@click.option("--resume", "resumed", type=click.Path(path_type=Path), help="Go on with the advice in this folder.")
@click.option("--verbose", is_flag=True, help="Print what stands in details.txt of the advice too.")
@click.option("--json", "as_json", is_flag=True, help="Print the advice as JSON.")
@options.ANYWAY
@options.RESULTS
def advise(
    study: str | None,
    command: Sequence[str],
    run_: Path | None,
    resumed: Path | None,
    *,
    output: Path | None,
    unit: str | None,
    as_json: bool,
    verbose: bool,
    **asked: Any,
) -> None:
    """What to set, what it gains, what it costs: advise -- COMMAND ARGS...

    Of a service: advise --server "CMD ARGS" --load "CMD ARGS", split as a shell would, without one. Of each cell of a
    study: advise STUDY. By a run that exists: advise --from RUN.

    A pilot runs it as it is. Settings that can reach it are screened, and the one chosen is confirmed by runs of its
    own, whose verdict has the confidence that was asked for. Nothing is left changed, and nothing is applied.

    Exit status: 0 answered, also where the answer is to leave it as it is; 1 hugewise or the host failed; 2 what was
    asked cannot be done; 130 interrupted, with what is known so far.
    """
    request.must_be_whole(asked, command=bool(command))
    forms = {"study": study is not None, "command": bool(command), "server": bool(asked["server"])}
    _check({**forms, "run_": run_ is not None, "resumed": resumed is not None}, asked)
    _check_curve(asked)
    _check_files(output, unit, curve=asked["curve"])
    files = None if output is None else _Files(output, unit, as_json)
    if run_ is not None:
        _of_run(run_, files, as_json=as_json)
    elif study is not None or (resumed is not None and _of_cells(resumed)):
        _of_study(study, resumed, files, asked, as_json=as_json, verbose=verbose)
    else:
        _of_command(command, resumed, files, asked, as_json=as_json, verbose=verbose)


def _of_cells(folder: Path) -> bool:
    from hugewise.advise.of_study import is_study  # noqa: PLC0415  (each verb pays only for what it uses)

    return is_study(folder)


def _check(forms: dict[str, bool], asked: dict[str, Any]) -> None:
    """Raise UserError for a call that makes no sense, before anything is measured."""
    given = [name for name, there in forms.items() if there]
    if len(given) != 1:
        what = "nothing" if not given else " and ".join(_called(name) for name in given)
        told = f"{what} to advise on: one thing is advised on at a time"
        raise UserError(told, hint=f"{_COMMAND}, --server CMD --load CMD, a STUDY, --from RUN, or --resume FOLDER")
    takes = {
        "command": (*_ASKED, *_OF_COMMAND, *_OF_RUNS),
        "server": (*_ASKED, *_OF_SERVICE, *_OF_RUNS),
        "study": (*_ASKED, *_OF_STUDY, *_OF_RUNS),
        "run_": (),
        "resumed": ("anyway",),
    }[given[0]]
    cure = {
        "command": "leave it out: it is for a STUDY",
        "server": "leave it out; what fills a server before its load is --fill",
        "study": "leave it out: the study has its own, set for the workload",
        "run_": "leave it out: nothing is measured, and the run has its own",
        "resumed": "leave it out: the advice has its question",
    }[given[0]]
    source = click.get_current_context().get_parameter_source
    for name in asked:
        if name not in takes and source(name) is ParameterSource.COMMANDLINE:
            whose = "belongs to a new advice" if given[0] in ("resumed", "run_") else f"is none of {_called(given[0])}"
            raise UserError(f"--{_option(name)} {whose}", hint=cure)


def _check_curve(asked: dict[str, Any]) -> None:
    """Raise UserError for an option that chooses among settings, of which a curve has none."""
    source = click.get_current_context().get_parameter_source
    for name in ("priority", "max_candidates"):
        if asked["curve"] and source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"--{_option(name)} is none of a curve", hint="leave it out: a curve compares no settings")


def _check_files(output: Path | None, unit: str | None, *, curve: bool) -> None:
    """Raise UserError where files could not be written, or not for that unit."""
    if output is not None and curve:
        raise UserError("--output: a curve has no files to deploy", hint="it says how to use the layout that it finds")
    if output is not None:
        from hugewise.report.deployed import must_be_empty  # noqa: PLC0415

        must_be_empty(output)
    if unit is not None:
        from hugewise.deployment.quoting import unit_name  # noqa: PLC0415

        if output is None:
            raise UserError(f"--unit {unit}: only files have a unit's name", hint="say where they go: --output FOLDER")
        if not unit_name(unit).endswith(".service"):
            raise UserError(f"--unit {unit}: not a service", hint="name the service that starts the program")


def _called(form: str) -> str:
    words = {"study": "a study", "command": "a command", "server": "a service", "run_": "--from"}
    return words.get(form, "--resume")


def _option(name: str) -> str:
    return _OPTIONS.get(name, name.replace("_", "-"))


def _of_command(
    command: Sequence[str],
    resumed: Path | None,
    files: _Files | None,
    asked: dict[str, Any],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from hugewise.advise import advise as phases  # noqa: PLC0415
    from hugewise.advise.text import DETAILS, answer, objective, settings, summary, whole  # noqa: PLC0415
    from hugewise.cli import progress  # noqa: PLC0415

    anyway, results = asked["anyway"], asked["results"]
    with progress.show_progress(sys.stderr) as listener:
        if resumed is not None:
            found, folder = phases.resume(resumed, listener=listener, anyway=anyway)
        else:
            question, call = _question(command, asked), request.this_call()
            found, folder = phases.advise(question, results, listener=listener, anyway=anyway, command=call)
    if as_json:
        told = {"objective": objective(found), "answer": answer(found), "settings": settings(found)}
        say_json(msgspec.to_builtins(found) | told)
    else:
        if verbose:
            say(whole(found).removesuffix("\n"))
        else:
            if found.curve is None:
                say(objective(found))
            say(answer(found))
            for line in summary(found):
                say(f"  {line}")
        if found.curve is not None:
            say(f"  Figure: {folder / 'curve.svg'}")
        say(f"Advice: {folder} ({DETAILS} in it: what was tried and what not, prices, runs)")
    if files is not None:
        files.of([("", found)])
    if found.arrived != "finished":
        sys.exit(130)


def _of_study(
    study: str | None,
    resumed: Path | None,
    files: _Files | None,
    asked: dict[str, Any],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from hugewise.advise import of_study  # noqa: PLC0415
    from hugewise.advise.text import DETAILS, details, summary  # noqa: PLC0415
    from hugewise.cli import progress  # noqa: PLC0415

    begun = None
    if study is not None:
        request.must_be_study(study, "hugewise advise --")
        part = request.part_of(Path(study), {"scale": asked["scale"], "only": asked["only"], "arms": None})
        seconds = _seconds(asked)
        begun = of_study.cell_questions(part, seconds=seconds, **_how(asked))
        begun.command = request.this_call()
    with progress.show_progress(sys.stderr) as listener:
        if begun is None:
            assert resumed is not None
            found, folder = of_study.resume(resumed, listener=listener, anyway=asked["anyway"])
        else:
            found, folder = of_study.advise(begun, asked["results"], listener=listener, anyway=asked["anyway"])
    if as_json:
        say_json(found)
    else:
        for line in of_study.study_summary(found):
            say(line)
        for one in found.cells:
            if one.advice is not None:
                say(f"\n{one.cell}:")
                for line in (details if verbose else summary)(one.advice):
                    say(f"  {line}")
                say(f"  Advice: {one.folder}")
        say(f"\nAdvice: {folder} ({DETAILS} of each cell: what was tried and what not, prices, runs)")
    if files is not None:
        advised = [(one.cell, one.advice) for one in found.cells if one.advice is not None]
        files.of(advised)
    if found.arrived != "finished":
        sys.exit(130)


def _of_run(folder: Path, files: _Files | None, *, as_json: bool) -> None:
    from hugewise.advise.from_run import advice_of_run, details, sentences  # noqa: PLC0415

    found, results = advice_of_run(folder)
    if as_json:
        say_json(found)
    else:
        for line in sentences(found):
            say(line)
        for line in details(found):
            say(f"  {line}")
        say(f"Run: {folder} ({found.state}; nothing was measured anew)")
    if files is not None:
        files.write([results])


class _Files(NamedTuple):
    """Where files to deploy are written, and for which unit; with JSON on stdout, what is said of them is not."""

    output: Path
    unit: str | None
    as_json: bool

    def of(self, advised: Sequence[tuple[str, Any]]) -> None:
        """Write those of advices: the name of the cell (empty: as in the run), and what was found."""
        import hugewise  # noqa: PLC0415
        from hugewise.advise.of_study import named_as_cell  # noqa: PLC0415
        from hugewise.advise.text import recommended  # noqa: PLC0415

        confirmed = [(cell, each) for cell, each in advised if each.confirmed is not None]
        # What is faster has its files all the same: whether it is worth its memory is the user's to weigh.
        # What runs fail under has none.
        safe = [(cell, each) for cell, each in confirmed if not each.confirmed.fails]
        whole = [(cell, each) for cell, each in safe if each.question.priority != "memory" or recommended(each)]
        if not whole:
            why = "nothing is recommended" if confirmed else "nothing was confirmed"
            say(f"{self.output}: no files: {why}", err=self.as_json)
            return
        runs = [named_as_cell(hugewise.open_results(each.confirmation_folder), cell) for cell, each in whole]
        self.write(runs, [each.chosen if recommended(each) else None for _, each in whole])

    def write(self, runs: Sequence[Any], arms: Sequence[str | None] = ()) -> None:
        """Write those of the best arm of each cell of these results, or of the arms that are named."""
        from hugewise.cli.unit import of_host  # noqa: PLC0415
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        first, *others = runs
        start = None if self.unit is None else of_host(self.unit)
        for line in write_files(first, self.output, self.unit, also=others, arms=arms, start=start):
            say(line, err=self.as_json)


def _read(name: str, text: str, how: Callable[[str], Any], such: str) -> Any:
    try:
        return how(text)
    except ValueError as error:
        raise UserError(f"--{name} {text}: {error}", hint=f"write for example --{name} {such}") from None


def _seconds(asked: dict[str, Any]) -> float | None:
    """The time that was given, in seconds; None where none was. Raises UserError."""
    from hugewise.quantity import parse_duration  # noqa: PLC0415

    return None if asked["time_"] is None else _read("time", asked["time_"], parse_duration, "10m")


def _how(asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked of every program alike, from the words of the call. Raises UserError."""
    from hugewise.quantity import parse_share, parse_size  # noqa: PLC0415

    return {
        "margin": _read("margin", asked["margin"], parse_share, "2%"),
        "confidence": _read("confidence", asked["confidence"], parse_share, "0.99"),
        "most": asked["max_candidates"],
        "priority": asked["priority"],
        "pool": 0 if asked["pool"] is None else _read("pool", asked["pool"], parse_size, "512m"),
    }


def _question(command: Sequence[str], asked: dict[str, Any]) -> Any:
    """The question, from the words of the call. Raises UserError."""
    from hugewise.advise.question import Question  # noqa: PLC0415
    from hugewise.advise.question import command as of_command  # noqa: PLC0415

    given = _seconds(asked)
    seconds = _TIME_S if given is None else given
    if asked["server"]:
        return Question(workload=request.table(asked, seconds), seconds=seconds, **_how(asked))
    prepare = request.words("prepare", asked["prepare"])
    request.must_be_there(command, "hugewise advise --")
    table = of_command(command, metric=asked["metric"], values=asked["values"], prepare=prepare)
    return Question(workload=table, seconds=seconds, curve=asked["curve"], **_how(asked))
