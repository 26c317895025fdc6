"""What the words of a call ask for: a study, from a file or from options, and a seed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hugewise.errors import UserError

__all__ = [
    "check_scale",
    "client_of",
    "command_line",
    "must_be_study",
    "must_be_there",
    "names",
    "part_of",
    "seed",
    "study_of",
    "this_call",
    "words",
]

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
    from hugewise.study import shipped  # noqa: PLC0415

    if name.endswith(".toml") or shipped.named(Path(name)) is not None:
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
