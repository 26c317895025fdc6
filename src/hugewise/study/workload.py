"""The table of a workload in a study file: its parameters, when its pages count as delivered, and its scales."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from hugewise.model.pages import AGES, MemoryAge
from hugewise.study import keys
from hugewise.study.guest import CONCURRENCY, NFS, Concurrency
from hugewise.study.keys import KeyKind, Name, Place

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

_Timeout = Annotated[float, keys.duration(0.001)]
_NUMBERS = keys.listing(keys.integer(0, 65_535))
_Cpus = Annotated[tuple[int, ...], _NUMBERS]
_ClientCpus = Annotated[tuple[int, ...], _NUMBERS]
_Storage = Annotated[str, keys.text(pattern=_PLACE, words="an absolute path", cure="name a folder on tmpfs or a disk")]
_Memory = Annotated[int, keys.size(1 << 20)]


def _ages(value: object, place: Place) -> tuple[MemoryAge, ...]:
    one = keys.choice(*sorted(AGES))
    if isinstance(value, str):
        return (one.read(value, place),)
    found: tuple[MemoryAge, ...] = keys.listing(one).read(value, place)
    place.once(found)
    return found


_AGE = KeyKind(f"{keys.choice(*sorted(AGES)).words}, or a list of these", _ages)
_Policies = Annotated[tuple[str, ...], keys.listing(keys.name(), least=2)]


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


_Scales = Annotated[Mapping[str, WorkloadScale], scales(KeyKind("table", _scale))]


class DeliveryRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of a policy's promised pages at which they count as delivered."""

    share: Annotated[float | None, keys.share()] = None
    base_above: Annotated[float, keys.share()] = 0.01


class WorkloadUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload with its parameters. Each combination of the listed values is a cell."""

    name: Name
    label: Name | None = None
    policies: _Policies | None = None
    metric: Name | None = None
    also: tuple[Name, ...] = ()
    parameters: Annotated[Mapping[str, ParameterInput], PARAMETERS] = {}
    published: str | None = None
    timeout: _Timeout = 600.0
    user: Annotated[
        str | None, keys.text(pattern=_ACCOUNT, words="an account name", cure="name an account of this machine")
    ] = None
    cpus: _Cpus | None = None
    client_cpus: _ClientCpus | None = None
    client: Annotated[str | None, keys.choice("beside", "apart")] = None
    storage: _Storage = "/dev/shm"  # noqa: S108  (the machine's tmpfs; a private folder is made in it)
    memory: _Memory | None = None
    memory_age: Annotated[tuple[MemoryAge, ...], _AGE] = ("fresh",)
    concurrency: Annotated[tuple[Concurrency, ...], CONCURRENCY] = ("alone",)
    counted: Name | None = None
    delivery: DeliveryRule = DeliveryRule()

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
