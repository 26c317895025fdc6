"""`hugewise predict`: misses and walk steps of a program on machines that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hugewise.errors import UserError
from hugewise.quantity import parse_duration
from hugewise.visible import printable, say, say_json

_SUCH = "hugewise predict -- ./prog"


@click.command(short_help="Predict TLB misses of a program on other machines.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME",
    help="A described machine, such as neoverse-v1 (may be repeated).",
)
@click.option("--policy", metavar="NAMES", help="Only base pages and these policies: thp,mthp-64k.")
@click.option(
    "--count-from",
    "begin",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Count only what comes after FILE is there: of a server, touch FILE when it is filled.",
)
@click.option(
    "--time",
    "time_",
    help="Time it too, in runs on layouts of its heap that take so long at most, such as 2m.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the report into this folder: HTML, figure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON.")
def predict(
    command: Sequence[str],
    machines: Sequence[str],
    *,
    policy: str | None,
    begin: Path | None,
    time_: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Predict TLB misses and page-walk steps of a program on machines and with page sizes that are not here.

    COMMAND runs once, unmodified, under QEMU's user mode (qemu-user): a program of x86-64 or arm64. The output of
    COMMAND goes to stderr. The run takes some tens of times as long as usual. With --time COMMAND runs 16 times or more
    without QEMU before.
    """
    from hugewise.predict.prediction import predict as trace  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.predict.text import document  # noqa: PLC0415
    from hugewise.report.document import brief  # noqa: PLC0415
    from hugewise.report.terminal import show  # noqa: PLC0415
    from hugewise.report.write import write_document  # noqa: PLC0415
    from hugewise.visible import json_text  # noqa: PLC0415

    if not command:
        raise UserError("no program to trace", hint=_SUCH)
    if begin is not None and time_ is not None:
        raise UserError("--time and --count-from: a timed run is one from begin to end", hint="give one of them")
    try:
        seconds = None if time_ is None else parse_duration(time_)
    except ValueError as error:
        raise UserError(f"--time {time_}: {error}", hint="write for example 2m") from None
    policies = [] if policy is None else [name.strip() for name in policy.split(",")]
    found = trace(command, machines, policies, begin, seconds)
    told = document(found)
    if as_json:
        say_json(found)
    else:
        show(brief(told))
    if output is not None:
        paths = write_document(told, output, {"json": ("prediction.json", (json_text(found).encode(),))})
        say(f"Report: {printable(paths['html'])}", err=as_json)
