"""A server of the user's under a load of theirs: how long the load takes, and what the server uses for it.

The server is started anew for every attempt, under the treatment, and waited for until it is up; then it may be filled,
untimed; then the load is timed, from its launch to its exit. The load is no part of what is treated. In the commands
`{port}` stands for a TCP port that is free on the loopback, `{folder}` for an empty folder of the attempt's own, so
that several of them can be there at once. No shell is involved. The server is up by one of

    tcp:PORT     one of its processes listens at that port
    unix:PATH    the same at a unix socket (`@NAME`: one of no file)
    line:REGEX   it has printed something that this matches
    exec:CMD     this command succeeds; it is split as a shell does it. Where it names {port}, nobody else may hold
                 that port: who listens there answers for the service, or its success says nothing
    (empty)      it listens: at {port} where its command has that, else anywhere
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from hugewise.deployment import runtimes
from hugewise.machine import loader, programs
from hugewise.model.metric import OPERATIONS, Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import OutputReady, Outputs, Places, PortReady, Procedure, Reading, Server, Step
from hugewise.model.workload import MARKS, Configuration, Launch, Missing, Parameter, RunsAs
from hugewise.quantity import format_size
from hugewise.reading import shown
from hugewise.workloads._micro import whole_pages
from hugewise.workloads._outputs import check_pattern, cpu_us, extract, metrics_of, named_in
from hugewise.workloads._own_pool import files, server_of
from hugewise.workloads._staged import StagedWorkload, Values, float_value, integer, missing_named

READY = "tcp:PORT, unix:PATH, line:REGEX or exec:COMMAND"

_PORT, _FOLDER = MARKS
_ASKING_S = 10.0
_LAST_PORT = 65_535
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = "glibc.malloc.hugetlb="


def filled_in(words: Sequence[str], places: Places) -> tuple[str, ...]:
    """Return a command with the port and the folder of an attempt; no other braces mean anything."""
    port = str(places.ports[0]) if places.ports else _PORT
    return tuple(word.replace(_PORT, port).replace(_FOLDER, places.data) for word in words)


def ready(text: str, server: Sequence[str], places: Places) -> Step | PortReady | OutputReady:
    """Return the step that waits until the server is up. Raises ValueError with how it is written."""
    kind, _, rest = text.partition(":")
    if not text:
        named = any(_PORT in word for word in server)
        return PortReady(port=places.ports[0] if named and places.ports else None)
    (put,) = filled_in((rest,), places)
    match kind:
        case "tcp" if put.isascii() and put.isdigit() and 0 < int(put) <= _LAST_PORT:
            return PortReady(port=int(put))
        case "unix" if put.startswith(("/", "@")):
            return PortReady(path=put)
        case "line" if put:
            check_pattern(rest)
            return OutputReady(rest)
        case "exec" if put.strip():
            argv = filled_in(split(rest), places)
            return Step(name="ready", argv=argv, timeout=_ASKING_S, cwd=places.cwd)
    raise ValueError(f"{shown(text)}: write {READY}")


def asked_at(text: str, places: Places) -> int | None:
    """Return the port of the attempt's own at which the command of `exec:` asks; None where it names none."""
    kind, _, rest = text.partition(":")
    return places.ports[0] if kind == "exec" and _PORT in rest and places.ports else None


def split(command: str) -> tuple[str, ...]:
    """Split a command into words as a shell would, without any other expansion. Raises ValueError."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(f"{shown(command)}: {str(error)[:1].lower()}{str(error)[1:]}") from None
    if not words or not words[0]:
        raise ValueError(f"{shown(command)} names no program")
    return words


def variables(given: Sequence[str]) -> dict[str, str]:
    """Return the variables NAME=VALUE. Raises ValueError where one is none, or is the treatment's."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or _NAME.fullmatch(name) is None:
            raise ValueError(f"{shown(text)} is not NAME=VALUE")
        if name == "GLIBC_TUNABLES" and _OURS in value:
            raise ValueError(f"{_OURS.rstrip('=')} belongs to the treatment: it cannot be given")
        found[name] = value
    return found


_SIGNALS: Mapping[str, Literal["TERM", "INT", "QUIT"]] = {"TERM": "TERM", "INT": "INT", "QUIT": "QUIT"}
_HEAP_UNIT = 2 << 20  # layouts are of whole huge pages
_TUNABLES = "GLIBC_TUNABLES"
_NOWHERE = Places(data="/", run="/", ports=(1,), sut=(), client=())


class Service(StagedWorkload):
    """The proof comes from the memory of all processes of the server, while they are there behind the load."""

    name = "service"
    description = "any server under any load, timed as a whole"
    account: RunsAs = "caller"
    stage_account: RunsAs = "caller"
    ports = 1
    clients = True
    choices = (("stop", _SIGNALS),)
    positive = ("ready_within", "fill_within", "stop_within")
    parameters: tuple[Parameter, ...] = (
        Parameter("server", "argv", None, "the server's command, as a list; it stays in the foreground"),
        Parameter("load", "argv", None, "the command that is timed, as a list: it does its work and ends"),
        Parameter(
            "ready", "text", "", f"how it is known that the server is up: {READY}; empty: it listens at a socket"
        ),
        Parameter("fill", "texts", (), "a command that runs once when the server is up, untimed, as a list"),
        Parameter("values", "texts", (), "metrics from the load's output: NAME,DIRECTION,UNIT=regex:PATTERN or json:"),
        Parameter("environment", "texts", (), "variables of the server: NAME=VALUE"),
        Parameter("pool_bytes", "size", 0, "hugetlb memory to reserve for the server under hugetlb policies"),
        Parameter(
            "own_pool",
            "flag",
            False,
            "the server takes the pool's pages by an option in its command (huge_pages=on): malloc is not told to",
        ),
        Parameter("ready_within", "duration", "60s", "how long it may take to be up"),
        Parameter("fill_within", "duration", "10m", "how long `fill` may take"),
        Parameter("stop", "text", "TERM", "the signal that ends the server in order: TERM, INT or QUIT"),
        Parameter("stop_within", "duration", "30s", "how long that may take"),
    )
    metrics: tuple[Metric, ...] = (
        Metric("wall_s", "s", "lower", "elapsed time of the load, launch to exit"),
        Metric("server_cpu_s", "s", "lower", "CPU time of the server while the load ran, user and system"),
        Metric("server_cpu_us", "us", "lower", "the same for each operation, where a value is named `operations`"),
    )
    delivered_share = 0.9

    # -- refusals

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        if (reason := super().refuses(treatment, values)) is not None:
            return reason
        for key, check in (
            ("ready", lambda: ready(str(values["ready"]), self._argv(values, "server"), _NOWHERE)),
            ("environment", lambda: variables(self._argv(values, "environment"))),
        ):
            try:
                check()
            except ValueError as error:
                return f"{key}: {error}"
        if self._argv(values, "fill")[:1] == ("",):
            return 'fill names no program: write ["program", "argument"]'
        if treatment.target.kind == "hugetlb" and not treatment.surplus and not integer(values, "pool_bytes"):
            return "it needs to know how much to reserve: set pool_bytes (or --pool SIZE)"
        return None

    def turns_refused(self, values: Values) -> str | None:
        """Return why turns are refused, or None: the load's clock goes on while it is frozen; counts have no clock."""
        if any(value.metric.name != OPERATIONS for value in named_in(values)):
            return "values are what the load says, and its own clock goes on while it stands still"
        return None

    def filled(self, values: Values) -> bool:
        return bool(values["fill"])

    def missing(self, values: Values) -> tuple[Missing, ...]:
        if programs.place() is not None:
            return (Missing("a service runs on this host, and not in guests", here=True),)
        commands = [self._argv(values, key) for key in ("server", "load", "fill")]
        try:
            how = ready(str(values["ready"]), commands[0], _NOWHERE)
        except ValueError:  # told by `refuses`
            how = None
        if isinstance(how, Step):
            commands.append(how.argv)
        names = dict.fromkeys(argv[0] for argv in commands if argv)
        return missing_named(names)

    def unlaid(self, treatment: Treatment, values: Values) -> str | None:
        return loader.unreached(self._argv(values, "server"), treatment)

    def pooled(self, treatment: Treatment, values: Values) -> int:
        return whole_pages(integer(values, "pool_bytes"), treatment.target.size)

    def short(self, treatment: Treatment, values: Values, coverage: Mapping[str, int]) -> str | None:
        """Return that the server got less than the pool, as it may go on with base pages, or None."""
        if not values["own_pool"] or treatment.target.kind != "hugetlb" or treatment.surplus:
            return None
        size = treatment.target.size
        had, asked = coverage.get(f"hugetlb:{size}", 0), integer(values, "pool_bytes")
        if had:  # shared mappings count for each process: more than the requested size is no more
            return None
        return f"the server has no page of the pool, of {format_size(asked)} that it was to take by its own option"

    def configuration(self, treatment: Treatment, values: Values) -> Configuration:
        """Return the treatment's variables, joined to the server's own lists, or the server's own option as a file."""
        if values["own_pool"] and (kind := server_of(self._argv(values, "server"))) is not None:
            return {}, files(kind, treatment.target.size) if treatment.target.kind == "hugetlb" else ()
        own = variables(self._argv(values, "environment"))
        joined = {name: _joined(name, value, own) for name, value in treatment.environment.items()}
        given = treatment.parameters.get("server")
        return joined, runtimes.files_of(given) if isinstance(given, tuple | list) else ()

    @staticmethod
    def _argv(values: Values, name: str) -> tuple[str, ...]:
        words = values[name]
        assert isinstance(words, tuple)
        return words

    # -- the attempt

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:

        def command(name: str) -> tuple[str, ...]:
            return filled_in(self._argv(values, name), places)

        own = variables(filled_in(self._argv(values, "environment"), places))
        environment = dict.fromkeys(treatment.environment, "") if values["own_pool"] else treatment.environment
        both = {**own, **{name: _joined(name, value, own) for name, value in environment.items()}}
        heap = whole_pages(integer(values, "pool_bytes"), max(treatment.target.size, _HEAP_UNIT))
        fill = Step(name="fill", argv=command("fill"), timeout=float_value(values, "fill_within"), cwd=places.cwd)
        server = Server(
            name="server",
            argv=command("server"),
            ready=ready(str(values["ready"]), self._argv(values, "server"), places),
            port=asked_at(str(values["ready"]), places),
            environment=loader.environment(msgspec.structs.replace(treatment, environment=both), heap),
            ready_within=float_value(values, "ready_within"),
            stop=_SIGNALS[str(values["stop"])],
            patience=float_value(values, "stop_within"),
            named="tree",
            cwd=places.cwd,
        )
        return Procedure(
            servers=(server,),
            warm=(fill,) if fill.argv else (),
            timed=Launch(argv=command("load"), proof="live", cwd=places.cwd),
        )

    def named(self, values: Values) -> tuple[Metric, ...]:
        """Return the metrics that the values name. Raises ValueError when one is written wrongly."""
        known = {metric.name for metric in self.metrics}
        metrics = metrics_of(values)
        if taken := next((metric.name for metric in metrics if metric.name in known), None):
            raise ValueError(f"a service has a metric {taken} of its own: choose another name")
        return metrics

    def parse(self, stdout: str, stderr: str, values: Values) -> Mapping[str, float]:
        """Return the values in what the load said. Raises ValueError where one is not there."""
        return {value.metric.name: extract(value, stdout, stderr) for value in named_in(values)}

    def read(self, outputs: Outputs, values: Values) -> Reading:
        extracted = self.parse(outputs.stdout(), outputs.stderr(), values)
        cpu, work = outputs.sut.cpu_s, extracted.get(OPERATIONS)
        each = None if work is None or work < 1 else cpu_us(outputs, round(work))
        why = (
            "the server's CPU time was not counted"
            if cpu is None
            else f"no value is named {OPERATIONS}"
            if work is None
            else f"{OPERATIONS} is {work:g}"
        )
        absent = {name: why for name, value in (("server_cpu_s", cpu), ("server_cpu_us", each)) if value is None}
        load = {} if outputs.client.cpu_s is None else {"load_cpu_s": round(outputs.client.cpu_s, 3)}
        return Reading(metrics={"server_cpu_s": cpu, "server_cpu_us": each}, absent=absent, facts=load)


def _joined(name: str, value: str, own: Mapping[str, str]) -> str:
    # GLIBC_TUNABLES is a list, in which the server may have other tunables
    return f"{own[name]}:{value}" if name == _TUNABLES and own.get(name) else value


WORKLOAD = Service()
