"""The options by which a verb is told of a service and its load. Commands are split as a shell would, without one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from hugewise.errors import UserError

__all__ = ["NAMES", "must_be_whole", "options", "table"]

NAMES = ("server", "load", "ready", "fill", "environment", "stop", "user")
_EXAMPLE = """--server "redis-server --port {port} --save ''" --load "redis-benchmark -p {port} -n 200000 -q\""""
_Verb = TypeVar("_Verb", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--server", help="A server, in place of COMMAND: 'CMD ARGS'. {port} and {folder} are filled in."),
    click.option("--load", help="What asks it, and is timed: 'CMD ARGS'; it does its work and ends."),
    click.option(
        "--ready",
        help="How it is known to be up: tcp:PORT, unix:PATH, line:REGEX or exec:'CMD ARGS' (default: it listens).",
    ),
    click.option("--fill", help="What fills it when it is up, untimed: 'CMD ARGS'."),
    click.option("--environment", multiple=True, help="A variable of the server, NAME=VALUE (may be repeated)."),
    click.option("--stop", type=click.Choice(("TERM", "INT", "QUIT")), help="The signal that ends it (default: TERM)."),
    click.option("--user", help="The account that server and load run as (root only; default: who calls)."),
)


def options(verb: _Verb) -> _Verb:
    """The verb with all of them."""
    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), verb)


def must_be_whole(asked: Mapping[str, Any], *, command: bool) -> None:
    """Raise UserError where they do not make a service with its load."""
    given = [name for name in NAMES if asked[name]]
    if not given:
        return
    if command:
        told = f"there is a command, and --{given[0]} of a service beside it"
        raise UserError(told, hint=f"ask of one of them: hugewise advise {_EXAMPLE}")
    for name in ("server", "load"):
        if not asked[name]:
            raise UserError(f"--{given[0]} is there, and --{name} is missing", hint=f"hugewise advise {_EXAMPLE}")


def table(asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The workload table of a service. Raises UserError."""
    from hugewise.advise.question import service  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.model.scene import Places, Step  # noqa: PLC0415
    from hugewise.workloads import _service as written  # noqa: PLC0415

    argv = {name: _words(name, asked[name]) for name in ("server", "load", "fill") if asked[name] is not None}
    anywhere = Places(data="/", run="/", ports=(1,), sut=(), client=())
    try:
        how = written.ready(asked["ready"] or "", argv["server"], anywhere)
    except ValueError as error:
        raise UserError(f"--ready {error}", hint="write for example --ready 'exec:redis-cli -p {port} ping'") from None
    try:
        written.variables(asked["environment"])
    except ValueError as error:
        raise UserError(f"--environment {error}", hint="write for example --environment LANG=C") from None
    _must_be_there({**argv, **({"ready": how.argv} if isinstance(how, Step) else {})})
    made = service(
        argv["server"],
        argv["load"],
        seconds=seconds,
        metric=asked["metric"],
        values=tuple(asked["values"]),
        ready=asked["ready"],
        fill=argv.get("fill", ()),
        environment=tuple(asked["environment"]),
        stop=asked["stop"],
    )
    return made | ({"user": asked["user"]} if asked["user"] else {})


def _words(name: str, text: str) -> tuple[str, ...]:
    from hugewise.workloads._service import split  # noqa: PLC0415

    try:
        return split(text)
    except ValueError as error:
        hint = f"close every quote; write for example --{name} \"program --option 'one argument'\""
        raise UserError(f"--{name} {error}", hint=hint) from None


def _must_be_there(commands: Mapping[str, tuple[str, ...]]) -> None:
    from hugewise.machine.programs import which  # noqa: PLC0415

    for name, words in commands.items():
        if which(words[0]) is None:
            told = f"--{name} {words[0]!r}: no such program on PATH"
            raise UserError(told, hint="name it by its whole path, or install it; no shell is involved")
