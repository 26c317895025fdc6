"""The command line: verbs, options, exit statuses. Every verb is a few lines over the Python API.

Exit status: 0 done, 1 hugewise or the host failed, 2 what was asked cannot be done, 3 `audit` found something, 130
interrupted.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from hugewise.cli import options, request
from hugewise.cli.advise import advise
from hugewise.cli.backing import verify
from hugewise.cli.compare import compare
from hugewise.cli.fleet import fleet
from hugewise.cli.guest import guest
from hugewise.cli.inspect import inspect
from hugewise.cli.predict import predict
from hugewise.cli.report import export, report
from hugewise.errors import HugewiseError, UserError
from hugewise.visible import printable, say


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="hugewise")
def cli() -> None:
    """Which page size should this workload run with, on this machine, and how sure are we?"""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the working directory was removed", hint="change to one that is there") from None


for verb in (advise, compare, export, fleet, guest, inspect, predict, report, verify):
    cli.add_command(verb)


@cli.command(
    context_settings={"ignore_unknown_options": False}, short_help="Run STUDY, or compare policies on a command."
)
@options.STUDY_OR_WORD
@options.COMMAND
@options.POLICY
@click.option("--baseline", help="With --policy: the policy that all others are compared with (default: the first).")
@click.option("--metric", help="With --policy: the metric that is judged (wall_s, cpu_s, ...).")
@click.option(
    "--value",
    "values",
    multiple=True,
    help="With --policy: a metric in the output, NAME,DIRECTION,UNIT=regex:PATTERN or =json:PATH (may be repeated).",
)
@click.option(
    "--proof",
    type=click.Choice(["exit", "twin", "counters"]),
    help="With --policy: prove the pages by a scan at exit, an untimed second run, or the kernel's fault counters.",
)
@click.option("--pool", help="With --policy: hugetlb memory that the command needs, such as 512m.")
@options.PREPARE
@options.STDIN
@click.option("--share", help="With --policy: share of memory that must be delivered; 0 judges the setting alone.")
@click.option("--timeout", help="With --policy: longest run of the command, such as 90s.")
@click.option(
    "--method",
    type=click.Choice(["sequential", "fixed-n"]),
    help="With --policy: test after every block until all is decided (the default), or run a planned number of blocks.",
)
@click.option("--margin", help="With --policy: smaller differences do not matter, such as 1%.")
@click.option("--confidence", help="With --policy: confidence of all verdicts together, such as 0.99.")
@click.option("--blocks", type=int, help="Blocks per cell, instead of the study's.")
@click.option("--time", "time_", help="Time budget, instead of the study's (with --policy: 10m), such as 4m.")
@click.option("--seed", help="Run seed, 32 hexadecimal digits (default: a fresh one).")
@options.SCALE
@options.ONLY
@options.ARMS
@options.CLIENT
@options.CLIENTS
@click.option("--dry-run", is_flag=True, help="Show the plan and one example order; run nothing.")
@options.ANYWAY
@options.WAIT
@options.RESULTS
def run(study: str | None, command: Sequence[str], policy: str | None, dry_run: bool, **options: Any) -> None:
    """Run STUDY, or compare policies on a command: run --policy base,thp -- COMMAND.

    STUDY is a file, or the name of a study that comes with hugewise: run demo (`hugewise list studies`). Always starts
    a new run; `resume` continues one that was interrupted.
    """
    import hugewise  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.cli import progress  # noqa: PLC0415
    from hugewise.cli.list import show_plan  # noqa: PLC0415

    chosen = request.study_of(study, command, policy, options)
    client = request.client_of(options["client"], options["hosts"])
    seed = request.seed(options["seed"])
    if dry_run:
        show_plan(chosen, client, seed, options["results"])
        return
    given = {"seed": seed, "client": client, "command": request.this_call()}
    given |= {name: options[name] for name in ("results", "anyway", "wait")}
    progress.reported(lambda listener: hugewise.run(chosen, listener=listener, **given))


@cli.command()
@options.RUN
@options.ANYWAY
@options.WAIT
def resume(run_: Path, *, anyway: bool, wait: bool) -> None:
    """Continue the interrupted run in the folder RUN."""
    import hugewise  # noqa: PLC0415
    from hugewise.cli import progress  # noqa: PLC0415

    progress.reported(lambda listener: hugewise.resume(run_, listener=listener, anyway=anyway, wait=wait))


@cli.command(short_help="Show what this machine offers, what is missing, and the cure.")
@options.STUDY
@options.SCALE
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(study: Path | None, scale: str | None, as_json: bool) -> None:
    """Show what this machine offers, what is missing, and the command that adds it (for STUDY: which cells can run)."""
    from hugewise.cli import doctor as examination  # noqa: PLC0415

    request.check_scale(study, scale)
    sys.exit(examination.main(study, scale, as_json=as_json))


@cli.command(short_help="Show the page settings in force on this host, and mistakes.")
@options.UNITS
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--traps", "traps_only", is_flag=True, help="Print only the traps: settings that do not work as intended."
)
@click.option("--exit-zero", is_flag=True, help="Exit with status 0 even where something is found.")
@click.option(
    "--root",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Read the files of a host below this folder: a mounted disk or image.",
)
def audit(**asked: Any) -> None:
    """Show the page settings in force on this host, where each was set, and which do not work as intended (traps).

    Reads files only and changes nothing. Exit status 3 where an error or a warning is found; notes do not count.
    """
    from hugewise.cli import audit as auditing  # noqa: PLC0415

    sys.exit(
        auditing.main(
            asked["units"],
            asked["folder"],
            as_json=asked["as_json"],
            traps_only=asked["traps_only"],
            exit_zero=asked["exit_zero"],
        )
    )


@cli.command(short_help="Show how many pairs and hours STUDY needs.")
@options.STUDY
@options.SCALE
@options.ONLY
@options.ARMS
@click.option("--from", "runs", multiple=True, type=click.Path(path_type=Path), help="A run of STUDY; may be repeated.")
@click.option(
    "--pilot", type=click.IntRange(6, 10_000), help="Run this many blocks of each cell first, and plan from them."
)
@click.option("--effect", help="The change to detect, such as 1% (default: the study's margin).")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as JSON.")
@options.ANYWAY
@options.RESULTS
def plan(**asked: Any) -> None:
    """Show how many pairs and hours STUDY needs, and the effect that its budget can detect, from measured pairs.

    STUDY may be left out where a run is named with --from.
    """
    from hugewise.cli import plan as planning  # noqa: PLC0415

    if asked["study"] is None:
        request.part_of(None, asked)
    parts = {name: request.names(asked[name]) for name in ("only", "arms")}
    planning.main(planning.PlanOptions(**{**asked, **parts}, command=request.this_call()))


@cli.command(short_help="Check for false positives: compare a setting with itself.")
@options.STUDY
@click.option("--pairs", type=int, default=60, show_default=True, help="Pairs of each stream.")
@click.option(
    "--planted",
    default="0%",
    show_default=True,
    help="Plant an effect: one label does this much more work. The effect must be found.",
)
@click.option("--seed", help="Seed, 32 hexadecimal digits (default: a fresh one).")
@options.SCALE
@options.ONLY
@options.ARMS
@options.ANYWAY
@options.RESULTS
def calibrate(study: Path | None, pairs: int, planted: str, **options: Any) -> None:
    """Check for false positives on this host: compare a setting with itself (A/A), and show the noise floor.

    Runs the workloads of STUDY under its baseline, or without STUDY a loop in the first-level cache; of a study with
    interleaved arms also each arm in both designs. Exit status 1 where the check does not pass.
    """
    from hugewise.cli import progress  # noqa: PLC0415
    from hugewise.cli.plan import lines  # noqa: PLC0415
    from hugewise.quantity import parse_share  # noqa: PLC0415
    from hugewise.session.calibrate import calibrate as measure  # noqa: PLC0415

    try:
        share = parse_share(planted)
    except ValueError as error:
        raise UserError(f"--planted {planted}: {error}", hint="write for example --planted 10%") from None
    asked = request.part_of(study, {name: options.pop(name) for name in ("scale", "only", "arms")})
    options |= {"seed": request.seed(options["seed"]), "command": request.this_call()}
    with progress.show_progress(sys.stderr) as listener:
        found = measure(asked, pairs=pairs, planted=share, listener=listener, **options)
    for line in lines(found):
        say(line)
    say(f"Runs: {found.folder}")
    if not found.passed:
        sys.exit(1)


@cli.command("list", short_help="List policies, workloads, metrics, studies, sources.")
@click.argument("what", type=click.Choice(["policies", "workloads", "metrics", "studies", "published"]))
def list_(what: str) -> None:
    """List policies, workloads, metrics, studies or published sources."""
    from hugewise.cli.list import show_list  # noqa: PLC0415

    show_list(what)


@cli.command("completion", short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_(shell: str) -> None:
    """Print the completion script for a shell: eval "$(hugewise completion bash)"."""
    say(options.script(cli, shell))


@cli.command()
def restore() -> None:
    """Put back the page settings that a killed run changed (root)."""
    from hugewise.host import journal  # noqa: PLC0415

    for line in journal.restore():
        say(line)


@cli.command(short_help="Judge measurements of other tools.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--arm", "arms", multiple=True, metavar="NAME", help="Name of each file's arm, in their order.")
@click.option("--baseline", metavar="ARM", help="The arm to compare with (default: the first).")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME", help="Metric to judge (default: the file's main one)."
)
@click.option("--better", type=click.Choice(["lower", "higher", "neutral"]), help="Which direction is good.")
@click.option("--unit", help="Unit of the values.")
@click.option("--confidence", type=float, default=0.99, show_default=True, help="Of intervals and margins of error.")
@click.option("--margin", default="0.5%", show_default=True, help="Smaller differences are equivalent.")
@click.option("--value", metavar="COLUMN", help="CSV and Parquet: the column of measurements.")
@click.option("--arm-column", metavar="COLUMN", help="CSV and Parquet: the arm (default: arm, where there is one).")
@click.option("--block", metavar="COLUMN", help="CSV and Parquet: the block or pair.")
@click.option("--order", metavar="COLUMN", help="CSV and Parquet: time or place in time.")
@click.option(
    "--session", metavar="COLUMN", help="CSV and Parquet: the session (runs that share a boot, build or allocation)."
)
@click.option("--slot", metavar="COLUMN", help="CSV and Parquet: where it ran (CPU, VM, machine).")
@click.option("--run", metavar="COLUMN", help="CSV and Parquet: the program run, where a run has several rows.")
@click.option("--randomised", is_flag=True, help="A coin chose the order of the arms within each block.")
@click.option(
    "--budget", type=click.IntRange(1), help="With --randomised: the number of pairs that was planned before the first."
)
@click.option("--format", "format_", metavar="NAME", help="Format of the files, where it cannot be recognised.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the report.")
@options.RESULTS
def analyze(files: Sequence[Path], **options: Any) -> None:
    """Compare measurements of other tools, and write a report with figures.

    Reads CSV and Parquet columns, hyperfine and memtier JSON, perf stat (-x, and -j), pgbench logs and summaries,
    sysbench and Go benchmark text, google-benchmark JSON and CSV; recognised by content.
    """
    from hugewise.cli import analyze as judging  # noqa: PLC0415

    judging.run(files, options)


@cli.command(short_help="Judge several runs of one question together.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN RUN...")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
    help="Over all comparisons together (default: that of the studies).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def combine(runs: Sequence[Path], confidence: float | None, as_json: bool) -> None:
    """Judge several runs of the same comparisons together: hosts, sessions, campaigns.

    Multiplies their e-values (method sequential). Name all runs that were made, whatever their results.
    """
    from hugewise.cli import combine as combining  # noqa: PLC0415

    combining.main(runs, confidence, as_json=as_json)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """End a run on SIGTERM or a closed terminal as Ctrl-C does: settings are restored, accepted attempts stay."""
    del signum, frame
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None, *, command: click.Command = cli, name: str = "hugewise") -> None:
    """Run `command` as the program `name` and end the process; `arguments` (None): those of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the encoding lacks must not end the output
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup it is ignored
        signal.signal(signal.SIGHUP, _terminate)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        command(words, prog_name=name, standalone_mode=False, obj=tuple(words))
    except HugewiseError as error:
        say(f"hugewise: {printable(error.message)}", err=True)
        if error.hint:
            say(f"  cure: {printable(error.hint)}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        say("hugewise: no memory is left", err=True)
        say("  cure: free some, or raise its limit (ulimit -v, memory.max); then: hugewise resume", err=True)
        sys.exit(1)
    except OSError as error:
        say(f"hugewise: {printable(error)}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        say(told.getvalue().removesuffix("\n"), err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say("hugewise: interrupted", err=True)
        sys.exit(130)
