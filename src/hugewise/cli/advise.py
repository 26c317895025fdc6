"""`hugewise advise`: from a command, a service, or the cells of a study to settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from click.core import ParameterSource

from hugewise.cli import options, request
from hugewise.errors import HugewiseError, UserError
from hugewise.visible import printable, say, say_json

_DASHES = "--"
_TIME_S = 600.0
_FILES_TOLD = 3  # lines at the end; README.md beside the files has all
_COMMAND = "hugewise advise -- COMMAND ARGS..."
_OPTIONS = {"time_": "time", "values": "value", "resumed": "resume"}
# Options of each form besides --output and --json; others are refused.
_ASKED = ("time_", "margin", "confidence", "max_candidates")
_OF_COMMAND = ("metric", "values", "pool", "prepare", "stdin")
_OF_STUDY = ("only", "scale")
_OF_SERVICE = ("metric", "values", "pool", *request.NAMES)
_OF_RUNS = ("anyway", "wait", "results")


class _Dashed(click.Command):
    # a command stands behind `--` alone: `advise demo` is about a study
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes the line
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


@click.command(cls=_Dashed, short_help="Find the best page setting for a program or a server.")
@options.STUDY_OR_WORD
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[-- COMMAND...]",
)
@request.options
@click.option(
    "--time",
    "time_",
    help="Total time, such as 4m (default: 10m; for a study 10m for each cell).",
)
@click.option("--metric", help="The metric to judge (wall_s, cpu_s, ...).")
@click.option(
    "--value",
    "values",
    multiple=True,
    help="A metric in the output: NAME,DIRECTION,UNIT=regex:PATTERN or =json:PATH (may be repeated).",
)
@click.option("--margin", default="2%", show_default=True, help="Smaller differences do not matter.")
@click.option(
    "--confidence",
    default="0.99",
    show_default=True,
    help="Confidence of each verdict: at 0.99 it is wrong with a chance of at most 1%, any of K with at most K%.",
)
@click.option(
    "--max-candidates", type=click.IntRange(1, 6), default=6, show_default=True, help="The most settings to try."
)
@click.option("--pool", help="Hugetlb memory that COMMAND needs, such as 512m (default: what the pilot used).")
@options.PREPARE
@options.STDIN
@options.SCALE
@options.ONLY
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Write the files to deploy into this new folder."
)
@click.option("--unit", help="With --output: the service that the files are for, such as redis-server.service.")
@click.option(
    "--resume", "resumed", type=click.Path(path_type=Path), help="Continue the interrupted advice in this folder."
)
@click.option("--verbose", is_flag=True, help="Print all details.")
@click.option("--json", "as_json", is_flag=True, help="Print the advice as JSON.")
@options.ANYWAY
@options.WAIT
@options.RESULTS
def advise(
    study: str | None,
    command: Sequence[str],
    resumed: Path | None,
    *,
    output: Path | None,
    unit: str | None,
    as_json: bool,
    verbose: bool,
    **asked: Any,
) -> None:
    """Find the best page setting, its gain and its cost: advise -- COMMAND ARGS...

    For a server: advise --server "CMD ARGS" --load "CMD ARGS" (quotes work as in a shell; no shell runs them). For each
    cell of a study: advise STUDY.

    A pilot runs the program as it is. The settings that can affect it are screened, and the best is confirmed by runs
    of its own at the requested confidence. All settings are put back, and nothing is applied.

    Exit status: 0 answered, also where the answer is to change nothing; 1 hugewise or the host failed; 2 the request
    cannot be carried out; 130 interrupted, with the results so far.
    """
    request.must_be_whole(asked, command=bool(command))
    forms = {"study": study is not None, "command": bool(command), "server": bool(asked["server"])}
    _check({**forms, "resumed": resumed is not None}, asked)
    _check_files(output, unit)
    files = None if output is None else _Files(output, unit, as_json)
    if study is not None or (resumed is not None and _of_cells(resumed)):
        _of_study(study, resumed, files, asked, as_json=as_json, verbose=verbose)
    else:
        _of_command(command, resumed, files, asked, as_json=as_json, verbose=verbose)


def _of_cells(folder: Path) -> bool:
    from hugewise.advise.of_study import is_study  # noqa: PLC0415  (each verb pays only for what it uses)

    return is_study(folder)


def _check(forms: dict[str, bool], asked: dict[str, Any]) -> None:
    """Raise UserError for contradictory options, before anything is measured."""
    given = [name for name, there in forms.items() if there]
    if len(given) != 1:
        what = "nothing" if not given else " and ".join(_called(name) for name in given)
        text = f"{what} to advise on: one thing is advised on at a time"
        raise UserError(text, hint=f"{_COMMAND}, --server CMD --load CMD, a STUDY, or --resume FOLDER")
    takes = {
        "command": (*_ASKED, *_OF_COMMAND, *_OF_RUNS),
        "server": (*_ASKED, *_OF_SERVICE, *_OF_RUNS),
        "study": (*_ASKED, *_OF_STUDY, *_OF_RUNS),
        "resumed": ("anyway", "wait"),
    }[given[0]]
    cure = {
        "command": "leave it out: it is for a STUDY",
        "server": "leave it out; what fills a server before its load is --fill",
        "study": "leave it out: the study has its own, set for the workload",
        "resumed": "leave it out: the advice has its question",
    }[given[0]]
    source = click.get_current_context().get_parameter_source
    for name in asked:
        if name not in takes and source(name) is ParameterSource.COMMANDLINE:
            whose = "belongs to a new advice" if given[0] == "resumed" else f"is none of {_called(given[0])}"
            raise UserError(f"--{_option(name)} {whose}", hint=cure)


def _check_files(output: Path | None, unit: str | None) -> None:
    """Raise UserError where files could not be written, or not for that unit."""
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
    words = {"study": "a study", "command": "a command", "server": "a service"}
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
    from hugewise.advise.text import answer, ending, objective, settings, where, whole  # noqa: PLC0415
    from hugewise.cli import progress  # noqa: PLC0415
    from hugewise.session import session  # noqa: PLC0415

    with progress.show_progress(sys.stderr) as listener:
        lock = session.host_lock(listener, anyway=asked["anyway"], wait=asked["wait"])
        if resumed is not None:
            found, folder = phases.resume(resumed, listener=listener, lock=lock)
        else:
            question, call = _question(command, asked), request.this_call()
            found, folder = phases.advise(question, asked["results"], listener=listener, lock=lock, command=call)
    reports = _write_reports([found])
    if as_json:
        told = {"objective": objective(found), "answer": answer(found), "settings": settings(found)}
        say_json(msgspec.to_builtins(found) | told)
    else:
        lines = ending(found, folder, reports, files=files is not None)
        if verbose:
            lines = (*whole(found).splitlines(), *where(found, folder, reports, files=files is not None))
        for line in lines:
            say(line)
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
    from hugewise.advise.text import report_lines  # noqa: PLC0415
    from hugewise.cli import progress  # noqa: PLC0415
    from hugewise.session import session  # noqa: PLC0415

    begun = None
    if study is not None:
        request.must_be_study(study, "hugewise advise --")
        part = request.part_of(Path(study), {"scale": asked["scale"], "only": asked["only"], "arms": None})
        seconds = _seconds(asked)
        begun = of_study.cell_questions(part, seconds=seconds, **_how(asked))
        begun.command = request.this_call()
    with progress.show_progress(sys.stderr) as listener:
        lock = session.host_lock(listener, anyway=asked["anyway"], wait=asked["wait"])
        if begun is None:
            assert resumed is not None
            found, folder = of_study.resume(resumed, listener=listener, lock=lock)
        else:
            found, folder = of_study.advise(begun, asked["results"], listener=listener, lock=lock)
    advised = [(cell.cell, cell.advice) for cell in found.cells if cell.advice is not None]
    reports = _write_reports([advice for _, advice in advised])
    if as_json:
        say_json(found)
    else:
        lines = of_study.ending(found, folder, files=files is not None)
        if verbose:
            lines = (*of_study.whole(found), *report_lines(reports), *lines[-1:])
        for line in lines:
            say(line)
    if files is not None:
        files.of(advised)
    if found.arrived != "finished":
        sys.exit(130)


def _write_reports(advices: Sequence[Any]) -> list[Path]:
    """Write the report of each confirmation's run; return the pages. An advice stands without one."""
    import hugewise  # noqa: PLC0415

    pages: list[Path] = []
    for last in (found.confirmed for found in advices if found.confirmed is not None):
        try:
            pages.append(hugewise.write_reports(hugewise.open_results(last.folder))["html"])
        except HugewiseError as error:
            say(f"{last.folder}: no report was written: {error.message}", err=True)
    return pages


class _Files(NamedTuple):
    """Folder of the files to deploy, and their unit; with JSON on stdout, nothing is said of the files."""

    output: Path
    unit: str | None
    as_json: bool

    def of(self, advised: Sequence[tuple[str, Any]]) -> None:
        """Write those of advices: the name of the cell (empty: as in the run), and what was found."""
        import hugewise  # noqa: PLC0415
        from hugewise.advise.of_study import named_as_cell  # noqa: PLC0415
        from hugewise.advise.text import recommended  # noqa: PLC0415

        confirmed = [(cell, each) for cell, each in advised if each.confirmed is not None]
        whole = [(cell, each) for cell, each in confirmed if recommended(each)]
        if not whole:
            why = "nothing is recommended" if confirmed else "nothing was confirmed"
            say(f"{self.output}: no files: {why}", err=self.as_json)
            return
        runs = [named_as_cell(hugewise.open_results(each.confirmation_folder), cell) for cell, each in whole]
        self._write(runs, [each.chosen for _, each in whole])

    def _write(self, runs: Sequence[Any], arms: Sequence[str]) -> None:
        from hugewise.report.deployed import write_files  # noqa: PLC0415

        first, *others = runs
        told = write_files(first, self.output, self.unit, also=others, arms=arms, start=request.start_of(self.unit))
        if len(told) > _FILES_TOLD:
            told = [told[0], told[-1], f"{len(told) - 2} more lines: {self.output / 'README.md'}"]
        for line in told:
            say(line, err=self.as_json)


def _read(name: str, text: str, how: Callable[[str], Any], such: str) -> Any:
    try:
        return how(text)
    except ValueError as error:
        raise UserError(f"--{name} {text}: {error}", hint=f"write for example --{name} {such}") from None


def _seconds(asked: dict[str, Any]) -> float | None:
    from hugewise.quantity import parse_duration  # noqa: PLC0415

    return None if asked["time_"] is None else _read("time", asked["time_"], parse_duration, "10m")


def _how(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the question that is alike for every program, from the call's words. Raises UserError."""
    from hugewise.quantity import parse_share, parse_size  # noqa: PLC0415

    return {
        "margin": _read("margin", asked["margin"], parse_share, "2%"),
        "confidence": _read("confidence", asked["confidence"], parse_share, "0.99"),
        "most": asked["max_candidates"],
        "pool": 0 if asked["pool"] is None else _read("pool", asked["pool"], parse_size, "512m"),
    }


def _question(command: Sequence[str], asked: dict[str, Any]) -> Any:
    from hugewise.advise.question import Question  # noqa: PLC0415
    from hugewise.advise.question import command as of_command  # noqa: PLC0415

    given = _seconds(asked)
    seconds = _TIME_S if given is None else given
    if asked["server"]:
        return Question(workload=request.table(asked, seconds), seconds=seconds, **_how(asked))
    prepare = request.words("prepare", asked["prepare"])
    request.must_be_there(command, "hugewise advise --")
    stdin = request.standard_input(asked["stdin"])
    table = of_command(command, metric=asked["metric"], values=asked["values"], prepare=prepare, stdin=stdin)
    return Question(workload=table, seconds=seconds, **_how(asked))
