"""The table of a workload in a study file: its parameters, when its pages count as delivered, and its scales."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from hugewise.model.pages import AGES, MemoryAge
from hugewise.study import keys
from hugewise.study.guest import CONCURRENCY, NFS, Concurrency
from hugewise.study.keys import Key, KeyKind, Name, Place

SMALL = "small"  # the scale that is written in the study itself

Scalar = str | int | float | bool
ParameterInput = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]

_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_SCALE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PLACE = re.compile(rf"/[^\0]*|{NFS}")
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}\$?")


def _scalar(value: object, place: Place) -> Scalar:
    if isinstance(value, str):
        return keys.plain(value, place)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(keys.integer(low=-(1 << 63)).read(value, place))
    if isinstance(value, float):
        return float(keys.number().read(value, place))
    raise place.wrong("must be text, a number, true or false, or a list of these", value, hint="simplify it")


def _parameter(value: object, place: Place) -> ParameterInput:
    if not isinstance(value, list | tuple):
        return _scalar(value, place)
    items: list[Scalar | tuple[Scalar, ...]] = []
    for index, item in enumerate(value, 1):
        here = place.item(index)
        if isinstance(item, list | tuple):
            items.append(tuple(_scalar(inner, here.item(n)) for n, inner in enumerate(item, 1)))
        else:
            items.append(_scalar(item, here))
    return tuple(items)


def scales(kind: KeyKind) -> KeyKind:
    """Return the kind of a table from the names of scales to what each changes."""

    def read(value: object, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = keys.mapping(_SCALE, "a scale's name", kind).read(value, place)
        if SMALL in found:
            raise place.at(SMALL).wrong("is the study as it is written", hint="give this scale another name")
        return found

    return KeyKind(f"table: a scale's name = {kind.words}", read)


PARAMETERS = keys.mapping(_PARAMETER, "a parameter's name", KeyKind("a value, or a list of values", _parameter))

_Timeout = Annotated[
    float,
    keys.duration(0.001),
    Key("Longest an attempt may take. One that takes longer is killed and scores as the worst.", 'timeout = "60s"'),
]
_NUMBERS = keys.listing(keys.integer(0, 65_535))
_Cpus = Annotated[tuple[int, ...], _NUMBERS, Key("CPUs that it is pinned to.", "cpus = [1]", default="not pinned")]
_ClientCpus = Annotated[
    tuple[int, ...],
    _NUMBERS,
    Key(
        "CPUs of the load generator, for workloads with a server; keep them apart from `cpus`.",
        "client_cpus = [2, 3]",
        default="the CPUs that are not in `cpus`; half of the machine's where neither is named",
    ),
]
_Storage = Annotated[
    str,
    keys.text(pattern=_PLACE, words="an absolute path", cure="name a folder on tmpfs or a disk"),
    Key(
        "The folder, on tmpfs or a disk, in which an attempt has its copy of the workload's data; of guests: a folder"
        ' in the guest, or `"nfs"`: on the host, by NFS.',
        'storage = "/var/tmp"',
    ),
]
_Memory = Annotated[
    int,
    keys.size(1 << 20),
    Key(
        "Most memory of the servers, the page cache that they fill and pages of a pool included (root only).",
        'memory = "3g"',
    ),
]


def _ages(value: object, place: Place) -> tuple[MemoryAge, ...]:
    one = keys.choice(*sorted(AGES))
    if isinstance(value, str):
        return (one.read(value, place),)
    found: tuple[MemoryAge, ...] = keys.listing(one).read(value, place)
    place.once(found)
    return found


_AGE = KeyKind(f"{keys.choice(*sorted(AGES)).words}, or a list of these", _ages)
_Policies = Annotated[
    tuple[str, ...],
    keys.listing(keys.name(), least=2),
    Key(
        "The policies to compare on it, the baseline among them.",
        'policies = ["base", "thp"]',
        default="all of the study",
    ),
]


class Scaled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of a workload's table that a scale replaces; None: as in the table."""

    policies: _Policies | None = None
    timeout: _Timeout | None = None
    cpus: _Cpus | None = None
    client_cpus: _ClientCpus | None = None
    storage: _Storage | None = None
    memory: _Memory | None = None


class WorkloadScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload at another scale: what differs from its table."""

    parameters: Mapping[str, ParameterInput] = {}
    workload: Scaled = Scaled()


def _scale(value: object, place: Place) -> WorkloadScale:
    if not isinstance(value, Mapping):
        raise place.wrong("must be a table", value, hint='write { bytes = "64g" }')
    # A parameter is never a table, so that this name cannot be one's.
    scaled = keys.read_table(Scaled, value.get("workload", {}), place.at("workload"))
    given = {name: item for name, item in value.items() if name != "workload"}
    return WorkloadScale(parameters=PARAMETERS.read(given, place), workload=scaled)


_Scales = Annotated[
    Mapping[str, WorkloadScale],
    scales(KeyKind("table", _scale)),
    Key(
        "The workload at other sizes, for `--scale NAME`: parameters in place of those above, and in a table `workload`"
        " other values of policies, timeout, cpus, client_cpus, storage and memory. Without an entry for the scale that"
        " was chosen, it runs as it is written.",
        'scales = { published = { bytes = "64g", workload = { timeout = "2h" } } }',
    ),
]


class DeliveryRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of a policy's promised pages at which they count as delivered."""

    share: Annotated[
        float | None,
        keys.share(),
        Key(
            "Least share of the named memory at the promised page size. 0 judges the setting alone (intention to"
            " treat): coverage is then reported and not demanded.",
            "share = 0.95",
            default="the workload's own",
        ),
    ] = None
    base_above: Annotated[
        float,
        keys.share(),
        Key("Largest share above the base page size under a policy that promises base pages.", 'base_above = "1%"'),
    ] = 0.01


class WorkloadUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload with its parameters. Each combination of the listed values is a cell."""

    name: Annotated[Name, Key("A registered workload (`hugewise list workloads`).", 'name = "chase"')]
    label: Annotated[
        Name | None,
        Key(
            "What its cells are called; needed where one workload stands twice in a study.",
            'label = "chase-slow"',
            default="the name",
        ),
    ] = None
    policies: _Policies | None = None
    metric: Annotated[
        Name | None,
        Key(
            "The end point: the metric that is judged. One of the workload's own or of every attempt's.",
            'metric = "ns_per_load"',
            default="the workload's first",
        ),
    ] = None
    also: Annotated[
        tuple[Name, ...],
        Key(
            "Further metrics that are judged, each of the same attempts and with its own share of the error rate: what"
            " an operation costs beside how many there are, or page faults. A cell goes on until all of them are"
            " decided.",
            'also = ["server_cpu_us", "p99_us"]',
        ),
    ] = ()
    parameters: Annotated[
        Mapping[str, ParameterInput],
        PARAMETERS,
        Key(
            "The workload's parameters. A list makes a factor of a parameter: one cell for each of its values, in all"
            " combinations. A command (`argv`) is a list itself: a list of lists makes a factor of it.",
            'parameters = { bytes = ["256k", "1g"], loads = 2000000 }',
        ),
    ] = {}
    published: Annotated[
        str | None,
        Key(
            "The entry of the study's published source that its cells stand beside: a table, benchmark or finding.",
            'published = "memcached"',
        ),
    ] = None
    timeout: _Timeout = 600.0
    user: Annotated[
        str | None,
        keys.text(pattern=_ACCOUNT, words="an account name", cure="name an account of this machine"),
        Key("The account that it runs as (root only).", 'user = "nobody"', default="chosen by hugewise"),
    ] = None
    cpus: _Cpus | None = None
    client_cpus: _ClientCpus | None = None
    client: Annotated[
        str | None,
        keys.choice("beside", "apart"),
        Key(
            "Where the clients of its servers are: beside them, or on a host of their own, which `--client` names. That"
            " is another question, and never combined with the other.",
            'client = "apart"',
            default='"beside"; where `--client` names a host: "apart", of workloads that can',
        ),
    ] = None
    storage: _Storage = "/dev/shm"  # noqa: S108  (the machine's tmpfs; a private folder is made in it)
    memory: _Memory | None = None
    memory_age: Annotated[
        tuple[MemoryAge, ...],
        _AGE,
        Key(
            "What this host's memory has been through (root only): `fresh`; `fragmented`, so that no huge page can be"
            " made of what is free; `pressure`, where `memory` makes the programs swap instead of being ended; or both."
            " It is the same for all arms, which are judged as settings there. A list makes a factor of it: a cell for"
            " each.",
            'memory_age = ["fresh", "fragmented"]',
            default='"fresh"',
        ),
    ] = ("fresh",)
    concurrency: Annotated[
        tuple[Concurrency, ...],
        CONCURRENCY,
        Key(
            "Studies of guests: the guests of a block one after the other, or all at once, each pinned to a CPU of the"
            " design's `slots` that the coin gives it. A list makes a factor of it: a cell for each.",
            'concurrency = ["together", "alone"]',
            default='"alone"',
        ),
    ] = ("alone",)
    counted: Annotated[
        Name | None,
        Key(
            "Studies of guests: the end point where they are emulated, one that emulation counts exactly.",
            'counted = "page_faults"',
            default="`metric` where emulation counts it exactly, else `page_faults`",
        ),
    ] = None
    delivery: Annotated[
        DeliveryRule,
        Key("When the promised pages count as delivered.", 'delivery = { share = 0.95, base_above = "1%" }'),
    ] = DeliveryRule()

    scales: _Scales = {}

    def at(self, scale: str) -> WorkloadUse:
        """Return the workload at that scale; as it is where it has no entry for it."""
        if scale not in self.scales:
            return self
        entry = self.scales[scale]
        changed = {name: value for name, value in msgspec.structs.asdict(entry.workload).items() if value is not None}
        return msgspec.structs.replace(self, parameters={**self.parameters, **entry.parameters}, **changed)

    @property
    def called(self) -> str:
        return self.label or self.name


def cell_of(labels: Sequence[str], cell: str) -> int | None:
    """Return the index of the study's workload whose label begins the cell's id, or None."""
    found = [n for n, label in enumerate(labels) if cell == label or cell.startswith(f"{label}-")]
    return max(found, key=lambda n: len(labels[n]), default=None)
