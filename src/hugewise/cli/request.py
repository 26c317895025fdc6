"""What the words of a call ask for: a study, from a file or from options, and a seed.

The options by which a verb is told of a service and its load. Commands are split as a shell would, without one.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hugewise.errors import UserError

_OF_WORKLOAD = ("metric", "proof", "pool", "prepare", "share", "timeout")
_OF_STUDY = ("baseline", "method", "margin", "confidence")


def study_of(study: str | None, command: Sequence[str], policy: str | None, options: dict[str, Any]) -> Any:
    """The study of `hugewise run`: a file's, or (with --policy) of a command. Raises UserError, StudyError."""
    from hugewise.study import load as studies  # noqa: PLC0415

    if policy is None:
        alone = [name for name in (*_OF_WORKLOAD, *_OF_STUDY) if options[name] is not None]
        alone += ["value"] if options["values"] else []
        if alone:
            where = "" if alone[0] in _OF_STUDY else " for the workload"
            raise UserError(f"--{alone[0]} belongs to --policy", hint=f"in a study file, set it{where}")
        if study is None or command:
            raise UserError(
                "name one study, or policies and a command",
                hint="hugewise run demo   or   hugewise run --policy base,thp -- COMMAND",
            )
        must_be_study(study, "hugewise run --policy base,thp --")
        return studies.with_budget(part_of(Path(study), options), options["blocks"], options["time_"])
    part_of(None, options)
    argv = ([study] if study is not None else []) + list(command)
    if not argv:
        raise UserError("no command to measure", hint="hugewise run --policy base,thp -- COMMAND")
    must_be_there(argv, f"hugewise run --policy {policy} --")
    given = {name: options[name] for name in ("values", "blocks", *_OF_WORKLOAD, *_OF_STUDY)}
    given["prepare"] = words("prepare", given["prepare"])
    return studies.command_study([name.strip() for name in policy.split(",")], argv, time=options["time_"], **given)


def client_of(name: str | None, hosts: Path | None) -> Any:
    """The host of clients of that name in an inventory; None where none is named. Raises UserError, StudyError."""
    if name is None and hosts is None:
        return None
    if name is None or hosts is None:
        lacking = "--hosts FILE" if hosts is None else "--client NAME"
        given = f"--client {name}" if hosts is None else f"--hosts {hosts}"
        raise UserError(f"{given}: {lacking} is missing", hint="name both: --client NAME --hosts HOSTS.toml")
    from hugewise.fleet import inventory  # noqa: PLC0415

    return inventory.client(hosts, name)


def command_line(given: object) -> tuple[str, ...]:
    """The words of this call as they are kept with a run: without a seed that was named in them, which the run's first
    record commits to and does not tell.
    """
    words = [word.encode(errors="replace").decode() for word in given] if isinstance(given, tuple) else []
    ours = words.index("--") if "--" in words else len(words)  # what follows is a command of the user's
    found, hidden = ["hugewise"], False
    for word in words[:ours]:
        found.append("SEED" if hidden else "--seed=SEED" if word.startswith("--seed=") else word)
        hidden = word == "--seed" and not hidden
    return (*found, *words[ours:]) if words else ()


def this_call() -> tuple[str, ...]:
    """The words of the call that is under way, as they are kept with what it measures (`command_line`)."""
    return command_line(click.get_current_context().find_root().obj)


def words(name: str, text: str | None) -> list[str]:
    """The words of a command that is the value of the option `name`, split as a shell splits them; nothing else of a
    shell is there. None where nothing was said. Raises UserError.
    """
    if text is None:
        return []
    hint = f"write for example --{name} 'rm -f out.dat'; for more, name a script"
    try:
        found = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{name} {text}: {str(error).lower()}", hint=hint) from None
    if not found or not found[0]:
        raise UserError(f"--{name} {text!r}: it names no program", hint=hint)
    return found


def must_be_study(name: str, verb: str) -> None:
    """Raise UserError where a program was named in the place of a study. `verb`: what stands before a command."""
    from hugewise.machine import programs  # noqa: PLC0415
    from hugewise.study import load  # noqa: PLC0415

    if name.endswith(".toml") or load.shipped_study(Path(name)) is not None:
        return
    for program in (name, f"./{name}"):  # that of this folder by its path, as PATH does not lead to it
        if programs.which(program) is not None:
            raise UserError(f"{name}: a program, and no study", hint=f"{verb} {shlex.quote(program)}")


def must_be_there(argv: Sequence[str], verb: str) -> None:
    """Raise UserError where a command begins with no program. `verb`: what stands before it."""
    from hugewise.machine import programs  # noqa: PLC0415

    name = argv[0]
    if not name.strip() or programs.which(name) is not None:  # of no name the study says what is wrong
        return
    first = name.split()[:1]
    if len(name.split()) > 1 and programs.which(first[0]) is not None:
        raise UserError(f"{name!r}: no such program", hint=f"without quotes, each word by itself: {verb} {name}")
    if "/" not in name and programs.which(f"./{name}") is not None:
        raise UserError(f"{name}: no such program on PATH", hint=f"it is in this folder: {verb} ./{name}")
    where = "no such program, or it is not executable" if "/" in name else "no such program on PATH"
    raise UserError(f"{name}: {where}", hint="name it by its whole path, or install it; no shell is involved")


def part_of(study: Path | None, options: dict[str, Any]) -> Any:
    """The study of a file, or the part of it that `scale`, `only` and `arms` name; None where none is named.

    Raises UserError, StudyError.
    """
    from hugewise.study import load as studies  # noqa: PLC0415

    check_scale(study, options["scale"])
    if study is not None:
        return studies.part(studies.load(study, options["scale"]), names(options["only"]), names(options["arms"]))
    for name in ("only", "arms"):
        if options[name] is not None:
            raise UserError(f"--{name} {options[name]}: there is no study that it is a part of", hint="name a STUDY")
    return None


def names(text: str | None) -> list[str]:
    """Names between commas; none where nothing was said."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def check_scale(study: object, scale: str | None) -> None:
    """Raises UserError where there is a scale and no study."""
    if scale is not None and study is None:
        what = f"--scale {scale}: there is no study that it is a scale of"
        raise UserError(what, hint="name a STUDY, or leave it out")


def seed(text: str | None) -> bytes | None:
    """The seed as it was written; None for a fresh one. Raises UserError."""
    if text is None:
        return None
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != 16:
        raise UserError(f"--seed {text}: not 32 hexadecimal digits", hint="leave it out for a fresh seed")
    return seed


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
    from hugewise.model.procedure import Places, Step  # noqa: PLC0415
    from hugewise.workloads import service as written  # noqa: PLC0415

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
    from hugewise.workloads.service import split  # noqa: PLC0415

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
