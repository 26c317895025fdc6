"""Read the words of a call: a study, from a file or from options, a seed, a service and its load.

Commands are split as a shell would, without one.
"""

from __future__ import annotations

import array
import fcntl
import functools
import os
import shlex
import stat
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hugewise.errors import UserError

if TYPE_CHECKING:
    from hugewise.deployment.program import UnitStart

_OF_WORKLOAD = ("metric", "proof", "pool", "prepare", "stdin", "share", "timeout")
_OF_STUDY = ("baseline", "method", "margin", "confidence")


def study_of(study: str | None, command: Sequence[str], policy: str | None, options: dict[str, Any]) -> Any:
    """Return the study of `hugewise run`: a file's, or (with --policy) of a command. Raises UserError, StudyError."""
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
    given["stdin"] = standard_input(given["stdin"])
    return studies.command_study([name.strip() for name in policy.split(",")], argv, time=options["time_"], **given)


def standard_input(given: Path | None) -> str:
    """Return the file that is a command's standard input: --stdin, else a regular file on ours; empty for none. A pipe
    with data, which cannot be read once for each run, raises UserError.
    """
    if given is not None:
        path = given.resolve()
        if not path.is_file():
            raise UserError(f"--stdin {given}: no such file", hint="name a file with the input of one run")
        return str(path)
    try:
        seen = os.fstat(0)
    except OSError:  # closed
        return ""
    if stat.S_ISFIFO(seen.st_mode) and _waiting(0):
        raise UserError(
            "standard input is a pipe, and each run of the command needs the input anew",
            hint="save it in a file: --stdin FILE, or < FILE; without input: < /dev/null",
        )
    if not stat.S_ISREG(seen.st_mode) or not seen.st_size:
        return ""
    place = Path("/proc/self/fd/0").readlink()
    try:
        same = os.path.samestat(seen, place.stat())
    except OSError:
        same = False
    if not same:
        raise UserError(f"standard input: {place} is not there any more", hint="name a file that stays: --stdin FILE")
    return str(place)


def _waiting(descriptor: int) -> bool:
    """Return whether a pipe has bytes to read."""
    size = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return size[0] > 0


def client_of(name: str | None, hosts: Path | None) -> Any:
    """Return the host of clients of that name in an inventory; None without a name. Raises UserError, StudyError."""
    if name is None and hosts is None:
        return None
    if name is None or hosts is None:
        lacking = "--hosts FILE" if hosts is None else "--client NAME"
        given = f"--client {name}" if hosts is None else f"--hosts {hosts}"
        raise UserError(f"{given}: {lacking} is missing", hint="name both: --client NAME --hosts HOSTS.toml")
    from hugewise.fleet import inventory  # noqa: PLC0415

    return inventory.client(hosts, name)


def command_line(given: object) -> tuple[str, ...]:
    """Return the words of this call as kept with a run: without a seed, to which the run only commits."""
    words = [word.encode(errors="replace").decode() for word in given] if isinstance(given, tuple) else []
    ours = words.index("--") if "--" in words else len(words)  # the user's own command follows
    found, hidden = ["hugewise"], False
    for word in words[:ours]:
        found.append("SEED" if hidden else "--seed=SEED" if word.startswith("--seed=") else word)
        hidden = word == "--seed" and not hidden
    return (*found, *words[ours:]) if words else ()


def this_call() -> tuple[str, ...]:
    """Return the words of the call that is under way, as they are kept with what it measures (`command_line`)."""
    return command_line(click.get_current_context().find_root().obj)


def words(name: str, text: str | None) -> list[str]:
    """Return the words of the option `name`, split as a shell does; None for no text. Raises UserError."""
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
    for program in (name, f"./{name}"):  # a program of this folder is named by its path
        if programs.which(program) is not None:
            raise UserError(f"{name}: a program, and no study", hint=f"{verb} {shlex.quote(program)}")


def must_be_there(argv: Sequence[str], verb: str) -> None:
    """Raise UserError where a command begins with no program. `verb`: what stands before it."""
    from hugewise.machine import programs  # noqa: PLC0415

    name = argv[0]
    if not name.strip() or programs.which(name) is not None:  # the study reports a name that is not possible
        return
    first = name.split()[:1]
    if len(name.split()) > 1 and programs.which(first[0]) is not None:
        raise UserError(f"{name!r}: no such program", hint=f"without quotes, each word by itself: {verb} {name}")
    if "/" not in name and programs.which(f"./{name}") is not None:
        raise UserError(f"{name}: no such program on PATH", hint=f"it is in this folder: {verb} ./{name}")
    where = "no such program, or it is not executable" if "/" in name else "no such program on PATH"
    raise UserError(f"{name}: {where}", hint="name it by its whole path, or install it; no shell is involved")


def part_of(study: Path | None, options: dict[str, Any]) -> Any:
    """Return the part of a file's study that `scale`, `only` and `arms` name. Raises UserError, StudyError."""
    from hugewise.study import load as studies  # noqa: PLC0415

    check_scale(study, options["scale"])
    if study is not None:
        return studies.part(studies.load(study, options["scale"]), names(options["only"]), names(options["arms"]))
    for name in ("only", "arms"):
        if options[name] is not None:
            raise UserError(f"--{name} {options[name]}: there is no study that it is a part of", hint="name a STUDY")
    return None


def names(text: str | None) -> list[str]:
    """Return names between commas; none where nothing was said."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def check_scale(study: object, scale: str | None) -> None:
    """Raise UserError where there is a scale and no study."""
    if scale is not None and study is None:
        what = f"--scale {scale}: there is no study that it is a scale of"
        raise UserError(what, hint="name a STUDY, or leave it out")


def seed(text: str | None) -> bytes | None:
    """Return the seed as it was written; None for a fresh one. Raises UserError."""
    if text is None:
        return None
    try:
        seed = bytes.fromhex(text)
    except ValueError:
        seed = b""
    if len(seed) != 16:
        raise UserError(f"--seed {text}: not 32 hexadecimal digits", hint="leave it out for a fresh seed")
    return seed


def start_of(unit: str | None) -> UnitStart | None:
    """Return how the host's service starts, from its files; None where there is none. Raises UserError."""
    if unit is None:
        return None
    from hugewise.audit.root import Root  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.audit.systemd import unit_start  # noqa: PLC0415
    from hugewise.deployment.quoting import unit_name  # noqa: PLC0415

    return unit_start(Root(), unit_name(unit))


NAMES = ("server", "load", "ready", "fill", "environment", "stop", "user")
_EXAMPLE = """--server "redis-server --port {port} --save ''" --load "redis-benchmark -p {port} -n 200000 -q\""""
_Verb = TypeVar("_Verb", bound=Callable[..., Any])
_OPTIONS = (
    click.option("--server", help="The server, instead of COMMAND: 'CMD ARGS'. {port} and {folder} are filled in."),
    click.option("--load", help="The timed load on the server: 'CMD ARGS'. The load must end by itself."),
    click.option(
        "--ready",
        help="When the server is up: tcp:PORT, unix:PATH, line:REGEX or exec:'CMD ARGS' (default: it listens).",
    ),
    click.option("--fill", help="A command that fills the server before the load, untimed: 'CMD ARGS'."),
    click.option("--environment", multiple=True, help="A variable of the server, NAME=VALUE (may be repeated)."),
    click.option(
        "--stop", type=click.Choice(("TERM", "INT", "QUIT")), help="The signal that stops the server (default: TERM)."
    ),
    click.option("--user", help="The account of server and load (root only; default: the caller)."),
)


def options(verb: _Verb) -> _Verb:
    """Return the verb with all of them."""
    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), verb)


def must_be_whole(asked: Mapping[str, Any], *, command: bool) -> None:
    """Raise UserError where they do not make a service with its load."""
    given = [name for name in NAMES if asked[name]]
    if not given:
        return
    if command:
        text = f"there is a command, and --{given[0]} of a service beside it"
        raise UserError(text, hint=f"ask of one of them: hugewise advise {_EXAMPLE}")
    for name in ("server", "load"):
        if not asked[name]:
            raise UserError(f"--{given[0]} is there, and --{name} is missing", hint=f"hugewise advise {_EXAMPLE}")


def table(asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Return the workload table of a service. Raises UserError."""
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
            text = f"--{name} {words[0]!r}: no such program on PATH"
            raise UserError(text, hint="name it by its whole path, or install it; no shell is involved")
