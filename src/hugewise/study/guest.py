"""The guest side of a study file: `[guest]`, `[[kernel]]`, and the kernel and backing of an arm.

    [guest]
    arch = "arm64"

    [[kernel]]
    name = "4k"
    package = "linux-image-arm64"

    policies = ["base", { name = "shp1g", from = "base", backing = "hugetlb-1g" }]

A study with a table `[guest]` runs all of its arms in guests. What a guest is, is said in `hugewise.model.guest`;
in what the keys must agree, in `hugewise.study.rules`. Whether this host can boot one shows when the study is
planned.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from hugewise.model.guest import Architecture, DiskFormat, Network
from hugewise.quantity import parse_cpus
from hugewise.study import keys
from hugewise.study.keys import KeyKind, Name, Place

Concurrency = Literal["alone", "together"]

NFS = "nfs"  # the storage of a workload whose data are on the host's NFS server


_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,255}")
_WORD = re.compile(r"[!-~]{1,256}")
_PATH = re.compile(r"/[^\0]*")
# Words of the kernel's command line by which a guest is booted and spoken to.
_LARGEST_CPU = 8191
_DEVICE = re.compile(r"/dev/[a-z0-9]{2,32}")
_RESERVED = frozenset({"--", "console", "init", "rdinit", "root", "panic", "initrd"})


_PACKAGE = keys.text(
    pattern=re.compile(r"[a-z0-9][a-z0-9+.-]{1,127}"),
    words="a Debian package's name",
    cure="write it as apt does, in lower case",
)
_Suite = Annotated[
    str,
    keys.text(pattern=re.compile(r"[a-z][a-z0-9-]{0,63}"), words="a Debian suite", cure='write for example "trixie"'),
]


def _path(cure: str) -> KeyKind:
    return keys.text(pattern=_PATH, words="an absolute path", cure=cure)


def _model(value: object, place: Place) -> str:
    cure = 'write for example "max,-erms,-fsrm"'
    model: str = keys.text(pattern=_MODEL, words="a CPU model of QEMU", cure=cure).read(value, place)
    if model.partition(",")[0] == "help":  # QEMU lists its models and ends, as if all were well
        raise place.wrong("is not a CPU model of QEMU", model, hint=cure)
    return model


def _append(value: object, place: Place) -> str:
    cure = "write one word an item, without spaces"
    word: str = keys.text(pattern=_WORD, words="a word of a command line", cure=cure).read(value, place)
    name = word.partition("=")[0]
    if name in _RESERVED or name.startswith("hugewise."):
        raise place.wrong("is set by hugewise, which boots the guest by it", word, hint="remove it")
    return word


def _cpus(value: object, place: Place) -> tuple[int, ...]:
    cure = 'write for example "0-3,8"'
    if isinstance(value, list | tuple):
        return tuple(keys.listing(keys.integer(0, _LARGEST_CPU)).read(value, place))
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    written: str = keys.text(words="a list of CPUs", cure=cure).read(value, place)
    try:
        return parse_cpus(written)
    except ValueError as error:
        raise place.wrong(str(error), written, hint=cure) from None


_CPUS = KeyKind("a list of CPUs", _cpus)


class NodeUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NUMA node of the guest."""

    memory: Annotated[int, keys.size(64 << 20)]
    cpus: Annotated[tuple[int, ...] | None, _CPUS] = None
    bind: Annotated[tuple[int, ...] | None, keys.listing(keys.integer(0, 1023))] = None


class DiskUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk of yours that the guest has beside that of its image. It is never written."""

    path: Annotated[str, _path("name the file or the block device")]
    format: DiskFormat | None = None

    @property
    def written(self) -> DiskFormat:
        return disk_format(self.path, self.format)


def disk_format(path: str, said: DiskFormat | None) -> DiskFormat:
    """Return the format of a disk, never by its content: a guest could write another format into a raw disk."""
    return said or ("qcow2" if path.endswith((".qcow2", ".qcow")) else "raw")


class GuestUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine that every arm runs in: booted for one attempt, and thrown away after it.

    `resident` is a key of earlier versions, whose guest stayed for all attempts of a session; it is no key.
    """

    arch: Architecture | None = None
    memory: Annotated[int, keys.size(64 << 20)] = 1 << 30
    cpus: Annotated[int, keys.integer(1, 255)] = 1
    cpu: Annotated[str | None, KeyKind("a CPU model of QEMU", _model)] = None
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    counting: bool = False
    boot: Annotated[float | None, keys.duration(1.0)] = None
    settle: Annotated[float, keys.duration()] = 60.0
    network: Network = "none"
    nfs: bool = False
    packages: Annotated[tuple[str, ...], keys.listing(_PACKAGE, least=0)] = ()
    sources: Annotated[tuple[str, ...], keys.listing(_PACKAGE, least=0)] = ()
    suite: _Suite = "trixie"
    files: Annotated[
        Mapping[str, str], keys.mapping(_PATH, "an absolute path in the guest", _path("name a file of this host"))
    ] = {}
    image: Annotated[str | None, _path("name the file or the block device")] = None
    image_format: DiskFormat | None = None
    root: Annotated[
        str | None,
        keys.text(pattern=_DEVICE, words="a disk or partition of the guest", cure='write for example "/dev/vda1"'),
    ] = None
    disk: tuple[DiskUse, ...] = ()
    node: tuple[NodeUse, ...] = ()
    pin: Annotated[tuple[tuple[int, ...], ...], keys.listing(_CPUS, least=0)] = ()
    qemu: Annotated[str | None, _path("name the program: /usr/libexec/qemu-kvm")] = None
    resident: bool = False


class KernelUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel that guests boot: from a Debian package, built by a recipe of hugewise, or a file."""

    name: Name
    package: Annotated[str | None, _PACKAGE] = None
    build: Name | None = None
    path: Annotated[str | None, _path("name the bzImage or Image: /boot/vmlinuz-...")] = None
    modules: Annotated[str | None, _path("name the folder of its release: /lib/modules/...")] = None
    suite: _Suite | None = None
    append: Annotated[tuple[str, ...], keys.listing(KeyKind("a word", _append), least=0)] = ()


def _concurrency(value: object, place: Place) -> tuple[Concurrency, ...]:
    one = keys.choice(*typing.get_args(Concurrency))
    if not isinstance(value, list | tuple):
        return (one.read(value, place),)
    found: tuple[Concurrency, ...] = keys.listing(one).read(value, place)
    place.once(found)
    return found


CONCURRENCY = KeyKind('"alone" or "together", or a list of both', _concurrency)


# Keys of later versions, most of them for guests, and the values of studies without them.
_UNSAID: Mapping[str, tuple[Any, ...]] = {
    "guest": (None,),
    "kernel": (None, []),
    "backing": (None,),
    "concurrency": (["alone"],),
    "counted": (None,),
    "client": (None,),
    "layout": ("",),
    "mechanism": (None,),
    "unjudged": ([],),
    "not_worse": (False,),
    "blocks_open": (False,),
    "sampling": ({"period": 1.0, "idle": 0.0},),
    "memory_age": (["fresh"],),
    "also": ([],),
    "cells": ([],),
    "whole": (None,),
}

# Keys that came later within a table.
_UNSAID_WITHIN: Mapping[str, frozenset[str]] = {
    "guest": frozenset({"files", "image", "image_format", "root", "disk", "node", "pin", "qemu", "resident"}),
    "backing": frozenset({"share", "by_node", "cells"}),
}


def without_unsaid(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored study without the later keys that say nothing, so that its digest is the one from before them."""

    def kept(table: Mapping[str, Any]) -> dict[str, Any]:
        within = {key: inner(key, value) for key, value in table.items()}
        return {key: value for key, value in within.items() if value not in _UNSAID.get(key, ())}

    def inner(key: str, value: Any) -> Any:
        if key not in _UNSAID_WITHIN or not isinstance(value, Mapping):
            return value
        unsaid = _UNSAID_WITHIN[key]
        return {name: one for name, one in value.items() if name not in unsaid or one not in (None, "", [], {}, False)}

    found = kept(said)
    for several in ("policies", "workload"):
        if several in found:
            found[several] = [kept(_declared(table)) for table in found[several]]
    if "scales" in found:
        found["scales"] = {name: kept(table) for name, table in found["scales"].items()}
    return found


def _declared(table: Mapping[str, Any]) -> Mapping[str, Any]:
    # studies recorded by earlier versions have null for the default of that time
    return {**table, "judged": "backing"} if table.get("judged", "") is None else table
