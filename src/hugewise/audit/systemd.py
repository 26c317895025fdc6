"""Services of systemd on a host, from their files: the search path, drop-ins, masks, templates, command lines.

systemd is not asked, as it may not run (a container, another host's disk). The start of a service is read for drop-ins
that keep its words.

Sources: systemd.syntax(7), systemd.unit(5), systemd.service(5), systemd.exec(5).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from hugewise.audit import running, shell
from hugewise.audit.facts import Placed, UnitCommand, UnitConfig
from hugewise.audit.root import Root
from hugewise.deployment.program import UnitStart
from hugewise.machine.loader import MAGIC

_SECTION = re.compile(r"\[([^\]]{1,256})\]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CODE = re.compile(r"x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})")
_SPECIFIER = re.compile(r"%(.)")


class Directive(msgspec.Struct, frozen=True):
    """`Key=value` in a section; `line` is where it begins, from 1."""

    section: str
    key: str
    value: str
    line: int


def directives(text: str) -> Iterator[Directive]:
    """Yield a unit file's assignments in order; other lines are passed over, continued lines are joined."""
    section, begun, line = "", "", 0
    for number, each in enumerate(text.split("\n"), 1):
        stripped = each.strip()
        if stripped.startswith(("#", ";")) or (not stripped and not begun):
            continue
        line = line if begun else number
        if stripped.endswith("\\"):
            begun += stripped[:-1] + " "
            continue
        whole, begun = begun + stripped, ""
        if found := _SECTION.fullmatch(whole):
            section = found[1]
        else:
            key, equals, value = whole.partition("=")
            if equals:
                yield Directive(section, key.strip(), value.strip(), line)


def words(text: str) -> list[str]:
    """Return the words of a value: between blanks, without quotes and C escapes. An open quote ends with the text."""
    found: list[str] = []
    word: list[str] = []
    quote, begun, at = "", False, 0
    while at < len(text):
        character = text[at]
        at += 1
        if character == "\\" and at < len(text):
            escaped, at = _unescaped(text, at)
            word.append(escaped)
            begun = True
        elif quote:
            if character == quote:
                quote = ""
            else:
                word.append(character)
        elif character in "'\"":
            quote, begun = character, True
        elif character.isspace():
            found += ["".join(word)] if begun else []
            word, begun = [], False
        else:
            word.append(character)
            begun = True
    return [*found, "".join(word)] if begun else found


def _unescaped(text: str, at: int) -> tuple[str, int]:
    """Return the meaning of an escape whose backslash stands before `at`, and where the text goes on."""
    if code := _CODE.match(text, at):
        number = int(code[1] or code[3] or "0", 16) if code[2] is None else int(code[2], 8)
        return chr(number) if not 0xD800 <= number < 0xE000 else "\N{REPLACEMENT CHARACTER}", code.end()
    return _ESCAPES.get(text[at], text[at]), at + 1


def specified(text: str, unit: str) -> str:
    """`text` with the specifiers that a unit's own name answers; others stay as they are (systemd.unit(5))."""
    stem = unit.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    known: Mapping[str, str] = {"n": unit, "N": stem, "p": prefix, "i": instance, "I": instance, "%": "%"}
    return _SPECIFIER.sub(lambda match: known.get(match[1], match[0]), text)


PLACES = tuple(
    f"{place}/systemd/{kind}"
    for place, kind in (
        ("/etc", "system.control"),
        ("/run", "system.control"),
        ("/run", "transient"),
        ("/run", "generator.early"),
        ("/etc", "system"),
        ("/etc", "system.attached"),
        ("/run", "system"),
        ("/run", "system.attached"),
        ("/run", "generator"),
        ("/usr/local/lib", "system"),
        ("/usr/lib", "system"),
        ("/lib", "system"),
        ("/run", "generator.late"),
    )
)
"""Folders of the system's unit files; the first that has a unit decides."""

_SERVICE = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.service")
_MOST_UNITS = 10_000
_COMMANDS = ("ExecStartPre", "ExecStart", "ExecStartPost")
_PREFIXES = "@-:+!|"
_KNOB = re.compile(r"(?:/sys/kernel/mm/|/sys/devices/system/node/)[\w./*?\[\]-]{1,200}|\bvm\.nr_hugepages\b")
# These exist in no version of systemd, though web pages print them.
_INVENTED = re.compile(r"(?:Memory)?(?:Transparent)?(?:Huge_?Pages?|THPEnabled)", re.IGNORECASE)
_ALONE = re.compile(r"\$(\w{1,64})")
_BRACED = re.compile(r"\$(?:\{(\w{1,64})\}|\$)")
_UNKNOWN = re.compile(r"\$\{?\w{1,64}\}?")
_MOST_SCRIPT = 1 << 16
_ELF64 = struct.Struct("<4sBB10xHHIQQQIHHH")
_SEGMENT = struct.Struct("<I52x")
_INTERPRETER = 3


class LoadedUnit(msgspec.Struct, frozen=True):
    """A service, and the command lines that it starts: these are for the readers of servers' options alone.

    starts     each ExecStart= as it is written, with its place; `variables`: name, value and place of each that it is
               given, the last of a name decides; `confined`: it names files that may not be executed (NoExecPaths=)
    """

    config: UnitConfig
    argvs: tuple[tuple[str, ...], ...]
    starts: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str, str], ...] = ()
    confined: bool = False


def service_files(root: Root) -> dict[str, str]:
    """Path by name of each service that has a file, the one that decides."""
    found: dict[str, str] = {}
    for place in PLACES:
        for name in root.names(place):
            if _SERVICE.fullmatch(name) and len(found) < _MOST_UNITS:
                found.setdefault(name, f"{place}/{name}")
    return found


def service_aliases(root: Root, paths: dict[str, str]) -> dict[str, str]:
    """Return names that are links to services of other names, and whose these are."""
    aliases = {}
    for name, path in paths.items():
        target = root.target(path)
        if target is not None and (real := PurePosixPath(target).name) != name and _SERVICE.fullmatch(real):
            aliases[name] = real
    return aliases


def load_service(
    root: Root, name: str, path: str | None, also: Iterable[str] = (), linked: frozenset[str] | None = None
) -> LoadedUnit:
    """Return the service `name`, whose file is `path` (None: it has drop-ins alone, or none), with what changes it:
    drop-ins for its other names, `also`, count too. `linked`: units that a link has started at boot (None: not known).
    """
    if path is not None and _masked(root, path):
        return LoadedUnit(UnitConfig(name=name, path=path, masked=True), ())
    files = ([] if path is None else [path]) + _drop_ins(root, (name, *also))
    whole = [(file, directive) for file in files for directive in directives(root.text(file) or "")]
    read = [(file, directive) for file, directive in whole if directive.section == "Service"]
    installed = any(each.section == "Install" and each.key in ("WantedBy", "RequiredBy") for _, each in whole)
    variables, commands, argvs = _Variables(root, name), list[UnitCommand](), list[tuple[str, ...]]()
    said: dict[str, list[tuple[str, Directive]]] = {}
    for file, each in read:
        held = said.setdefault(each.key, [])
        if each.value:
            held.append((file, each))
        elif each.key in (*_COMMANDS, "Environment", "EnvironmentFile", "MemoryTHP"):
            held.clear()  # an empty assignment resets the list
    for file, each in said.get("Environment", []):
        variables.take(words(each.value), f"{file}:{each.line}")
    for _, each in said.get("EnvironmentFile", []):
        variables.take_file(each.value)
    environment = {key: value for key, value, _ in variables.found()}
    turned: list[str] = []
    writes: dict[str, Placed] = {}
    for kind in _COMMANDS:
        for file, each in said.get(kind, []):
            where = f"{file}:{each.line}"
            prefixes = each.value[: len(each.value) - len(each.value.lstrip(_PREFIXES))]
            argv = [specified(word, name) for word in words(each.value.lstrip(_PREFIXES))]
            if "@" in prefixes:
                argv[1:2] = []  # the name that the program is to be called by
            argv = argv if ":" in prefixes else expanded(argv, environment)
            turned += _KNOB.findall(each.value)
            started = list(_started(root, argv, environment))
            for one in knobs_written(started):
                turned.append(one.path)
                writes[one.path] = Placed(one.path, running.shown_value(one.value or ""), where)
            for place, started_one in enumerate(started if kind == "ExecStart" else ()):
                command, wrappers, assigned = running.wrapped(list(started_one.words))
                served = bool(command) and running.server_kind(command[0]) is not None
                if not command or not (place == len(started) - 1 or served):
                    continue
                given = (*started_one.assigned, *assigned)
                variables.take([f"{key}={value}" for key, value in given], where)
                setuid, static = elf_facts(root, command[0])
                commands.append(
                    UnitCommand(program=command[0], where=where, setuid=setuid, static=static, wrappers=wrappers)
                )
                argvs.append(tuple(command))
    policy = said.get("MemoryTHP", [])
    invented = [
        Placed(key, running.shown_value(each.value), f"{file}:{each.line}")
        for key, held in said.items()
        for file, each in held
        if _INVENTED.fullmatch(key)
    ]
    config = UnitConfig(
        name=name,
        path=path or "",
        files=tuple(files),
        memory_thp=None
        if not policy
        else Placed("MemoryTHP", running.shown_value(policy[-1][1].value), f"{policy[-1][0]}:{policy[-1][1].line}"),
        environment=variables.known(),
        commands=tuple(commands),
        invented=tuple(invented),
        turned=tuple(dict.fromkeys(turned)),
        writes=tuple(writes.values()),
        disabled=linked is not None and installed and not {name, *also} & linked,
    )
    starts = tuple((f"{file}:{each.line}", each.value) for file, each in said.get("ExecStart", []))
    return LoadedUnit(config, tuple(argvs), starts, variables.found(), confined=bool(said.get("NoExecPaths")))


def expanded(argv: list[str], variables: Mapping[str, str]) -> list[str]:
    """Return the words with their variables replaced: `$NAME` alone is split at blanks, `${NAME}` is not; `$$` is a
    dollar sign. The program is no variable (systemd.service(5), "Command lines").
    """
    found = argv[:1]
    for word in argv[1:]:
        alone = _ALONE.fullmatch(word)
        if alone is not None:
            found += words(variables.get(alone[1], ""))
        else:
            found.append(_BRACED.sub(lambda match: variables.get(match[1], "") if match[1] else "$", word))
    return found


def _started(root: Root, argv: list[str], variables: Mapping[str, str]) -> Iterator[shell.ShellCommand]:
    """Yield the commands of a command line: itself; the commands inside `sh -c` or a shell's script."""
    command, _, assigned = running.wrapped(argv)
    known = {**variables, **dict(assigned)}
    script = shell.script_of(command)
    if script is None and command[:1] and command[0].startswith("/"):
        # The script that a shell is given, or one that names its shell in its first line.
        path = command[1] if shell.script_of([command[0], "-c", "x"]) and command[1:] else command[0]
        data = root.data(path, _MOST_SCRIPT, whole=False) if path.startswith("/") and _is_small(root, path) else None
        if data is not None and shell.is_script(data):
            script = data.decode("utf-8", "replace")
            known |= {str(place): word for place, word in enumerate(command)}
    if script is None:
        yield shell.ShellCommand(tuple(argv))
        return
    inside = shell.commands(script, known)
    if shell.script_of(command) is None:  # of a script in a file only what is known of servers, and what it writes
        yield from (one for one in inside if one.outputs or _of_interest(one))
        yield shell.ShellCommand(tuple(argv))
    else:
        yield from inside


def _is_small(root: Root, path: str) -> bool:
    status = root.status(path)
    return status is not None and status.st_size <= _MOST_SCRIPT


def _of_interest(one: shell.ShellCommand) -> bool:
    command, _, _ = running.wrapped(list(one.words))
    name = PurePosixPath(command[0]).name if command else ""
    return one.piped or name in ("echo", "printf", "tee", "sysctl", "hugeadm") or running.server_kind(name) is not None


def knobs_written(listed: Iterable[shell.ShellCommand]) -> Iterator[shell.Written]:
    """Yield the knobs that commands write, the pool of the default size as vm.nr_hugepages."""
    for one in shell.written([_unwrapped(each) for each in listed]):
        path = _UNKNOWN.sub("*", one.path)
        path = "vm.nr_hugepages" if path == "/proc/sys/vm/nr_hugepages" else path
        if _KNOB.fullmatch(path):
            yield shell.Written(path, one.value)


def _unwrapped(one: shell.ShellCommand) -> shell.ShellCommand:
    return one._replace(words=tuple(running.wrapped(list(one.words))[0]))


def wanted(root: Root) -> frozenset[str] | None:
    """Units that are started at boot by a link; None where the host has no such link at all."""
    found: set[str] = set()
    for place in PLACES:
        for name in root.names(place):
            if name.endswith((".wants", ".requires")):
                found |= set(root.names(f"{place}/{name}"))
    return frozenset(found) or None


def defaults(root: Root) -> tuple[Placed, ...]:
    """Return what the manager gives every service: DefaultEnvironment= of system.conf (systemd-system.conf(5))."""
    files: dict[str, str] = {}
    for place in ("/etc", "/run", "/usr/local/lib", "/usr/lib"):
        for name in root.names(f"{place}/systemd/system.conf.d"):
            if name.endswith(".conf"):
                files.setdefault(name, f"{place}/systemd/system.conf.d/{name}")
    variables = _Variables(root, "")
    for file in ("/etc/systemd/system.conf", *(path for _, path in sorted(files.items()))):
        for directive in directives(root.text(file) or ""):
            if (directive.section, directive.key) == ("Manager", "DefaultEnvironment"):
                variables.take(words(directive.value), f"{file}:{directive.line}", anew=not directive.value)
    return variables.known()


def _masked(root: Root, path: str) -> bool:
    # a link to /dev/null, or an empty file
    if root.target(path) == "/dev/null":
        return True
    status = root.status(path)
    return status is not None and status.st_size == 0


def _drop_ins(root: Root, names: Iterable[str]) -> list[str]:
    """Return the files that change a service, in the order of their names; of several with one name, the one that
    decides. Files for this very service come before those for its template, for names with its first parts, and for all
    services.
    """
    chosen: dict[str, str] = {}
    for folder in dict.fromkeys(folder for name in names for folder in _folders(name)):
        for place in PLACES:
            for file in root.names(f"{place}/{folder}.d"):
                if file.endswith(".conf"):
                    chosen.setdefault(file, f"{place}/{folder}.d/{file}")
    return [path for _, path in sorted(chosen.items()) if not _masked(root, path)]


def _folders(name: str) -> Iterator[str]:
    """Yield the names whose drop-ins are for the service: `a-b@c.service`, `a-b@.service`, `a-@.service`, `service`."""
    stem = name.removesuffix(".service")
    prefix, at, _ = stem.partition("@")
    yield name
    if at:
        yield f"{prefix}@.service"
    while "-" in prefix.rstrip("-"):
        prefix = prefix.rstrip("-").rpartition("-")[0] + "-"
        yield f"{prefix}{at}.service"
    yield "service"


class _Variables:
    """The environment that is gathered for a service."""

    def __init__(self, root: Root, unit: str) -> None:
        self._root = root
        self._unit = unit
        self._found: list[tuple[str, str, str]] = []

    def take(self, assignments: Iterable[str], where: str, *, anew: bool = False) -> None:
        if anew:
            self._found.clear()
        for assignment in assignments:
            key, equals, value = specified(assignment, self._unit).partition("=")
            if equals:
                self._found.append((key, value, where))

    def take_file(self, said: str) -> None:
        """Variables of a file: it decides over Environment=, and may be absent where its name begins with `-`."""
        path = specified(said.removeprefix("-"), self._unit)
        if not path.startswith("/") or any(one in path for one in "*?["):
            return
        for directive in directives(self._root.text(path) or ""):
            joined = " ".join(words(directive.value))
            self._found.append((directive.key.removeprefix("export ").strip(), joined, f"{path}:{directive.line}"))

    def known(self) -> tuple[Placed, ...]:
        return running.known_environment(self._found)

    def found(self) -> tuple[tuple[str, str, str], ...]:
        return tuple(self._found)


def elf_facts(root: Root, program: str) -> tuple[bool | None, bool | None]:
    """Return whether a program's file is setuid or setgid, and whether it names no interpreter; None: not known."""
    if not program.startswith("/"):
        return None, None
    status = root.status(program)
    if status is None:
        return None, None
    setuid = bool(status.st_mode & 0o6000)
    head = root.data(program, 4096, whole=False)
    if head is None or len(head) < _ELF64.size or not head.startswith(MAGIC + b"\x02\x01"):
        return setuid, None  # a script, or a file of another word length or byte order
    begin, size, count = (_ELF64.unpack_from(head)[at] for at in (7, 11, 12))
    if size != _SEGMENT.size or begin + size * count > len(head):
        return setuid, None  # patchelf puts the headers, and the interpreter's name, at the file's end
    kinds = {_SEGMENT.unpack_from(head, begin + size * number)[0] for number in range(count)}
    return setuid, _INTERPRETER not in kinds


_TUNABLES = "GLIBC_TUNABLES"


def unit_start(root: Root, name: str) -> UnitStart | None:
    """Return the start of the service (or of its template, or by an alias); None where there is none, or masked."""
    paths = service_files(root)
    others = service_aliases(root, paths)
    real = others.get(name, name)
    path = paths.get(real) or paths.get(re.sub(r"@[^@]*(?=\.service$)", "@", real))
    if path is None:
        return None
    also = [other for other, whose in others.items() if whose == real]
    service = load_service(root, real, path, also)
    return None if service.config.masked else _start(name, service)


def _start(name: str, found: LoadedUnit) -> UnitStart:
    last = next((variable for variable in reversed(found.variables) if variable[0] == _TUNABLES), None)
    if last is None:
        return UnitStart(name=name, starts=found.starts, confined=found.confined)
    _, value, where = last
    by_command = where in {command.where for command in found.config.commands}
    of_unit = where.rpartition(":")[0] in found.config.files
    return UnitStart(
        name=name,
        starts=found.starts,
        tunables=value,
        tuned_by="command" if by_command else "unit" if of_unit else "file",
        tuned_at=where,
        confined=found.confined,
    )
