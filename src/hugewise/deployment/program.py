"""Settings of one program: started by hand, as a service, in a container, in a pod. Pure.

A drop-in for a known unit is completed from it: its ExecStart= behind the launcher, its tunables beside ours, as
written, so that variables, specifiers and quotes keep their meaning.

Sources: systemd.exec(5) of systemd 260 (MemoryTHP=, Environment=), systemd.service(5), "Command Lines"; prctl(2); the
glibc manual, Memory Allocation Tunables; the Compose specification; Kubernetes, "Manage HugePages".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from hugewise.deployment.quoting import plain, shell_words, unit_environment, unit_word, yaml_text
from hugewise.model.host import Host
from hugewise.model.policy import UNREAD, DeployedFile, Treatment

LAUNCHER = "/usr/local/bin/hugewise-exec"
"""Path of the static launcher: `hugewise-exec --pages off|advised -- COMMAND`."""

BY_HAND = "its ExecStart= completed by hand, as it says there: it does nothing before"
"""Label of a drop-in for a unit whose command is unknown here."""

_MEMORY_THP = 260  # the first systemd with MemoryTHP=
_UNIT = "PROGRAM.service"  # placeholder until the name is known
_DROPIN = "50-page-sizes.conf"
_WRAPPER = "/usr/local/bin/with-page-sizes"
_LIBRARY = "libsystemd-shared-"
_REPLACED = "# The list is emptied first: these must be the words of the unit's own ExecStart=."
_TO_COMPLETE = (
    "To be completed: in place of the dots the words of the unit's own ExecStart= (see systemctl cat).",
    "Then take the # from both lines; the first empties the list.",
)
_PAGES = {"all": "off", "except-advised": "advised"}
_WORDS = {"all": "disable", "except-advised": "madvise"}


class UnitFacts(msgspec.Struct, frozen=True):
    """Facts that decide how a unit is written: the version of systemd (None: there is none)."""

    systemd: int | None = None


def unit_facts(host: Host) -> UnitFacts:
    """Return the facts of `host`: systemd names its own library by its version."""
    for folder in ("/usr/lib/systemd", "/lib/systemd", "/usr/lib64/systemd", "/usr/lib/x86_64-linux-gnu/systemd"):
        for name in host.names(folder):
            version = name.removeprefix(_LIBRARY).partition(".")[0].partition("-")[0]
            if name.startswith(_LIBRARY) and version.isdigit():
                return UnitFacts(int(version))
    return UnitFacts()


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The program whose pages are to be set.

    policy       the registered policy that its pages are verified against
    words        its command, where it is known; then it can stand in an ExecStart=
    environment  variables that it is started with
    facts        of the machine that it is to run on
    """

    policy: str
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    facts: UnitFacts = UnitFacts()


def for_program(treatment: Treatment, where: Destination, pool_bytes: int = 0) -> tuple[DeployedFile, ...]:
    """Return the files that give the program alone what one process gets, the narrowest reach first, if any."""
    launch = _launch(treatment, pool_bytes)
    if not launch and not where.environment:
        return ()
    check = f"hugewise verify PID --policy {where.policy}"
    made = [_launched(treatment, where, launch, check), *_unit(treatment, where, launch)]
    made += [_compose(treatment, where, launch, check), _pod(treatment, where, launch, pool_bytes, check)]
    return tuple(made)


def _launch(treatment: Treatment, pool_bytes: int) -> tuple[str, ...]:
    """Return the launcher with its options, or nothing where it has nothing to do."""
    pages = [_PAGES[treatment.thp_disable]] if treatment.thp_disable != "none" else []
    if treatment.layout:
        pages.append(treatment.laid_out(pool_bytes))
    return (LAUNCHER, *(word for size in pages for word in ("--pages", size)), "--") if pages else ()


def of_unit(file: DeployedFile, name: str) -> DeployedFile:
    """Return the drop-in of PROGRAM.service for the unit `name` (`quoting.unit_name`); any other file as it is."""
    if file.kind != "unit":
        return file

    def named(text: str) -> str:
        return text.replace(_UNIT, shell_words((name,)))

    return msgspec.structs.replace(
        file,
        path=file.path.replace(_UNIT, name),
        apply=tuple(map(named, file.apply)),
        undo=tuple(map(named, file.undo)),
        check=named(file.check),
    )


def start_line(launch: tuple[str, ...]) -> str:
    """Return the launcher with its options, as it stands before the program in an ExecStart=."""
    return f"{LAUNCHER} {' '.join(map(unit_word, launch[1:-1]))} --"


def to_complete(line: str) -> tuple[str, ...]:
    """Return the lines of a unit that its user has to complete behind the launcher's `line`."""
    return (*_TO_COMPLETE, "ExecStart=", f"ExecStart={line} ...")


def _of_pool(treatment: Treatment) -> tuple[str, ...]:
    # glibc does not report a pool that is too small: it takes base pages
    return ("a pool that is filled before it starts: first one of the host's files below",) * (
        treatment.target.kind == "hugetlb"
    )


def _needs(treatment: Treatment) -> tuple[str, ...]:
    if treatment.thp_disable == "none" and not treatment.layout:
        return _of_pool(treatment)
    library = "the layout library beside it (docs/concepts/layouts.md)"
    kernel = "Linux 6.18 (PR_THP_DISABLE_EXCEPT_ADVISED)" if treatment.thp_disable == "except-advised" else "Linux 3.15"
    return (
        f"hugewise-exec as {LAUNCHER}",
        *([library] if treatment.layout else []),
        *([kernel] if treatment.thp_disable != "none" else []),
        *_of_pool(treatment),
    )


def _launched(treatment: Treatment, where: Destination, launch: tuple[str, ...], check: str) -> DeployedFile:
    """Return a script that starts the program, or any command where its words are not known."""
    usage = "Starts the program." if where.words else "with-page-sizes COMMAND..."
    # Not by env(1), for which a program that has a `=` in its name is one more variable, and the next word the program.
    variables = "".join(f"export {plain(name)}={shell_words((text,))}\n" for name, text in where.environment.items())
    words = (*launch, *where.words)
    # Some shells take a name with a leading dash for an option of exec.
    begin = "" if words and words[0].startswith("-") else "exec "
    command = f"{begin}{shell_words(words)}{' ' if words else ''}"
    return DeployedFile(
        kind="launcher",
        path=_WRAPPER,
        content=f'#!/bin/sh\n# {usage}\n{variables}{command}"$@"\n',
        scope="process",
        apply=(f"chmod 755 {_WRAPPER}", f"{_WRAPPER}{'' if where.words else ' COMMAND...'}"),
        undo=("# start it without", f"rm {_WRAPPER}"),
        check=check,
        label="read by sh",
        needs=_needs(treatment),
    )


def _unit(treatment: Treatment, where: Destination, launch: tuple[str, ...]) -> Iterator[DeployedFile]:
    """Yield a drop-in. Where systemd has no setting for it, and the words of the unit's command are not known, the user
    has to complete the line that it names.
    """
    lines = [f"Environment={unit_environment(*variable)}" for variable in where.environment.items()]
    needs: tuple[str, ...] = ("systemd", *(() if launch else _of_pool(treatment)))
    label = "read by systemd-analyze"
    if launch:
        if (where.facts.systemd or 0) >= _MEMORY_THP and not treatment.layout:
            lines.append(f"MemoryTHP={_WORDS[treatment.thp_disable]}")
            needs = (f"systemd {_MEMORY_THP} or later", _needs(treatment)[-1])
            label = UNREAD
        elif where.words and not _is_relative(where.words[0]):
            words = " ".join(map(unit_word, where.words))
            lines += [_REPLACED, "ExecStart=", f"ExecStart={start_line(launch)} {words}"]
            needs += _needs(treatment)
        else:
            lines += [f"# {line}" for line in to_complete(start_line(launch))]
            needs += (BY_HAND, *_needs(treatment))
    folder = f"/etc/systemd/system/{_UNIT}.d"
    again = ("systemctl daemon-reload", f"systemctl restart {_UNIT}")
    yield DeployedFile(
        kind="unit",
        path=f"{folder}/{_DROPIN}",
        content="\n".join(["[Service]", *lines, ""]),
        scope="service",
        apply=again,
        undo=(f"rm {folder}/{_DROPIN}", *again),
        check=f"hugewise verify {_UNIT} --policy {where.policy}",
        label=label,
        needs=needs,
    )


def _compose(treatment: Treatment, where: Destination, launch: tuple[str, ...], check: str) -> DeployedFile:
    """Return an override for `docker compose`, with the equivalent options of `docker run` and `podman run`."""
    options = [word for variable in where.environment.items() for word in ("--env", "=".join(variable))]
    lines = [
        "# docker run and podman run: " + _one_line(shell_words(tuple(options))) if options else "",
        f"# The launcher, which is static, is put before the command: --volume {LAUNCHER}:{LAUNCHER}:ro"
        if launch
        else "",
        "# A container has no option for transparent huge pages; pages of a pool need none.",
    ]
    body = ["services:", "  program:"]
    if where.environment:
        body.append("    environment:")
        body += [f"      {plain(name)}: {yaml_text(_composed(value))}" for name, value in where.environment.items()]
    if launch:
        body += ["    volumes:", f"      - {LAUNCHER}:{LAUNCHER}:ro"]
        body.append(f"    entrypoint: [{_listed(launch)}]")
        words = ", ".join(yaml_text(_composed(word)) for word in where.words)
        body.append(
            f"    command: [{words}]" if words else "    # command: the image's own ENTRYPOINT and CMD, as a list"
        )
    return DeployedFile(
        kind="compose",
        path="/srv/program/compose.page-sizes.yaml",
        content="\n".join([*filter(None, lines), *body, ""]),
        scope="process",
        apply=("docker compose -f compose.yaml -f compose.page-sizes.yaml up -d",),
        undo=("docker compose -f compose.yaml up -d",),
        check=f"{check}  # the PID on the host: docker inspect -f '{{{{.State.Pid}}}}' CONTAINER",
        label=UNREAD,
        needs=_needs(treatment),
        instead=True,
    )


def _pod(
    treatment: Treatment, where: Destination, launch: tuple[str, ...], pool_bytes: int, check: str
) -> DeployedFile:
    """Return the part for a pod's container: variables, and pages of a pool as a resource."""
    lines = [
        "# Kubernetes has no field for transparent huge pages: the node's settings decide, and the program's own.",
        *(
            ["# For the program's own, have hugewise-exec in the image, and put it before the command:"]
            if launch
            else []
        ),
        "spec:",
        "  containers:",
        "    - name: program",
    ]
    if launch:
        words = ", ".join(yaml_text(_composed(word)) for word in where.words)
        lines.append(f"      command: [{_listed(launch)}]")
        lines.append(
            f"      args: [{words}]" if words else "      # args: the image's own ENTRYPOINT and CMD, as a list"
        )
    if where.environment:
        lines.append("      env:")
        for name, value in where.environment.items():
            lines += [f"        - name: {plain(name)}", f"          value: {yaml_text(_composed(value))}"]
    if treatment.target.kind == "hugetlb" and pool_bytes:
        size = _quantity(treatment.target.size)
        lines += [
            "      resources:",
            "        limits:",
            f"          hugepages-{size}: {_quantity(-(-pool_bytes // treatment.target.size) * treatment.target.size)}",
            "          memory: 256Mi  # a pod of huge pages must ask for memory or CPU too: as much as it needs beside",
        ]
    return DeployedFile(
        kind="kubernetes",
        path="/srv/program/pod.page-sizes.yaml",
        content="\n".join([*lines, ""]),
        scope="pod",
        apply=("kubectl patch --local -f pod.yaml --patch-file pod.page-sizes.yaml -o yaml  # then apply it",),
        undo=("kubectl apply -f pod.yaml",),
        check=f"{check}  # on the node",
        label=UNREAD,
        needs=("a pool that is there before the kubelet starts",) if treatment.target.kind == "hugetlb" else (),
        instead=True,
    )


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _composed(text: str) -> str:
    # a dollar begins a variable in a file of compose; in one of a pod two of them are one, whatever follows
    return text.replace("$", "$$")


def _quantity(size: int) -> str:
    """Return bytes as Kubernetes writes them: 2Mi, 1Gi."""
    for unit, shift in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


_TUNABLES = "GLIBC_TUNABLES"
_OWN = "glibc.malloc.hugetlb="
_MAY_EXECUTE = (
    "# The unit says which files may be executed (NoExecPaths=): the launcher, and its library, where it has one."
)
_UNIT_LIBRARY = tuple(
    f"-/usr/local/{place}/libhugewise-layout.so" for place in ("bin", "share/hugewise", "lib/hugewise")
)
_PREFIXES = re.compile(r"[@:+!|-]*")
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\\.|[^\s"'\\])+""")
_LAUNCHED = re.compile(rf"(?:# )?ExecStart=({re.escape(LAUNCHER)} .*? --)(?: |$)")
_GIVEN = re.compile(rf'Environment="{_TUNABLES}=([A-Za-z0-9_.:=-]*)"')


class UnitStart(msgspec.Struct, frozen=True, kw_only=True):
    """Start of a host's service.

    starts      each ExecStart= as it is written, with the place where it stands
    tunables    its GLIBC_TUNABLES, and `tuned_by` where these stand: in its Environment=, in a file that decides over
                that, or in its command itself, which decides over both
    confined    it may execute certain files alone (NoExecPaths=)
    """

    name: str
    starts: tuple[tuple[str, str], ...] = ()
    tunables: str = ""
    tuned_by: Literal["", "unit", "file", "command"] = ""
    tuned_at: str = ""
    confined: bool = False


def completed(file: DeployedFile, unit: UnitStart) -> DeployedFile:
    """Return the drop-in for that unit, whose own words it has; any other file as it is."""
    if file.kind != "unit":
        return file
    made, needs = list(_tuned(file.content.split("\n"), unit)), list(file.needs)
    at = next((at for at, line in enumerate(made) if _LAUNCHED.match(line)), None)
    if at is not None:
        launch = _LAUNCHED.match(made[at])
        assert launch is not None
        before = _comments_above(made, at)
        needs = [need for need in needs if need != BY_HAND]
        try:
            made[before : at + 1] = _started(launch[1], unit)
        except ValueError as error:
            message = f"{unit.name} of this host could not be taken as it is: {error}."
            made[before : at + 1] = [f"# {line}" for line in (message, *to_complete(launch[1]))]
            needs = [BY_HAND, *needs]
    return msgspec.structs.replace(file, content="\n".join(made), needs=tuple(needs))


def _started(launch: str, unit: UnitStart) -> list[str]:
    """Return the unit's own commands behind the launcher. Raises ValueError where that is impossible."""
    made = [line for place, text in unit.starts for line in _launched_by_unit(launch, place, text)]
    if not made:
        raise ValueError("it has no ExecStart=")
    places = "; ".join(place for place, _ in unit.starts)
    head = f"# The unit's own ExecStart= ({places}) behind the launcher; the list is emptied first."
    more = [_MAY_EXECUTE, f"ExecPaths={LAUNCHER} {' '.join(_UNIT_LIBRARY)}"] if unit.confined else []
    return [head, "ExecStart=", *made, *more]


def _comments_above(lines: list[str], at: int) -> int:
    """Return where the lines of this one begin: comments above it, and the line that empties the list."""
    while at and (lines[at - 1].startswith("#") or lines[at - 1] == "ExecStart="):
        at -= 1
    return at


def _launched_by_unit(launch: str, place: str, text: str) -> list[str]:
    """Return an ExecStart= with the launcher before each of its commands, or raise ValueError."""
    if "\N{REPLACEMENT CHARACTER}" in text or not text.isprintable():
        raise ValueError(f"{place} has characters that cannot be printed")
    lines, words = [], _words(text, place)
    for command in _commands(words):
        prefix = _PREFIXES.match(command[0])
        assert prefix is not None
        marks, first = prefix[0], command[0][prefix.end() :]
        if "|" in marks or not first:
            raise ValueError(f"{place}: a shell runs it, behind which the launcher stands for nothing")
        called, rest = "", command[1:]
        if "@" in marks:
            if not rest:
                raise ValueError(f"{place}: `@` stands before one word alone")
            called, rest = f"--argv0 {rest[0]} ", rest[1:]
        if _is_relative(first.strip("\"'")):
            raise ValueError(f"{place}: systemd takes no relative path of a program: {first}")
        whole = [first, *rest]
        if first.strip("\"'") == LAUNCHER and "--" in whole:  # from an earlier drop-in
            whole = whole[whole.index("--") + 1 :]
        options = f"{launch.removesuffix('--')}{called}--"
        lines.append(f"ExecStart={marks.replace('@', '')}{options} {' '.join(whole)}")
    return lines


def _is_relative(program: str) -> bool:
    """Return whether a program is named by a path that depends on the working directory. A plain name is looked for on
    the PATH, and a specifier may stand for an absolute path.
    """
    return "/" in program and not program.startswith(("/", "%"))


def _words(text: str, place: str) -> list[str]:
    words = [match[0] for match in _WORD.finditer(text)]
    if re.sub(r"\s", "", "".join(words)) != re.sub(r"\s", "", text):
        raise ValueError(f"{place}: its quotes do not match")
    return words


def _commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if word != ";":
            command.append(word)
        elif command:
            yield command
            command = []


def _tuned(lines: list[str], unit: UnitStart) -> Iterator[str]:
    # GLIBC_TUNABLES is one list, in which the unit may have other tunables
    others = [part for part in unit.tunables.split(":") if part and not part.startswith(_OWN)]
    for line in lines:
        ours = _GIVEN.fullmatch(line)
        if ours is None or not others:
            yield line
            continue
        parts = [part for part in ours[1].split(":") if part not in others]
        if unit.tuned_by != "unit":
            what = "its EnvironmentFile=" if unit.tuned_by == "file" else "its ExecStart="
            yield f"# {what} sets {_TUNABLES} ({unit.tuned_at}), which decides over this: add {':'.join(parts)} there."
        yield f"Environment={unit_environment(_TUNABLES, ':'.join([*others, *parts]))}"
