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
from hugewise.study.keys import Key, KeyKind, Name, Place

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

    memory: Annotated[int, keys.size(64 << 20), Key("Its memory.", 'memory = "1g"')]
    cpus: Annotated[
        tuple[int, ...] | None, _CPUS, Key("The guest's CPUs of this node.", 'cpus = "0-1"', default="none")
    ] = None
    bind: Annotated[
        tuple[int, ...] | None,
        keys.listing(keys.integer(0, 1023)),
        Key("NUMA nodes of the host that its memory is bound to.", "bind = [0]", default="those of the arm's backing"),
    ] = None


class DiskUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A disk of yours that the guest has beside that of its image. It is never written."""

    path: Annotated[str, _path("name the file or the block device"), Key("Where it is.", 'path = "/srv/data.qcow2"')]
    format: Annotated[
        DiskFormat | None,
        Key("Its format.", 'format = "qcow2"', default="by the end of its name: .qcow2, else raw"),
    ] = None

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

    arch: Annotated[
        Architecture | None,
        Key("Its architecture. One that is not the host's is emulated.", 'arch = "arm64"', default="the host's"),
    ] = None
    memory: Annotated[
        int,
        keys.size(64 << 20),
        Key(
            "Memory of each guest: a multiple of the pages that an arm's backing takes from a pool.",
            'memory = "2g"',
            default='"1g"',
        ),
    ] = 1 << 30
    cpus: Annotated[int, keys.integer(1, 255), Key("Virtual CPUs of each guest.", "cpus = 2")] = 1
    cpu: Annotated[
        str | None,
        KeyKind("a CPU model of QEMU", _model),
        Key("QEMU's CPU model.", 'cpu = "max"', default="`max` where it is emulated, `host` under KVM"),
    ] = None
    accelerator: Annotated[
        Literal["auto", "kvm", "tcg"],
        Key(
            "KVM, or emulation (TCG), which yields counts and sizes but never a time. `auto`: KVM where a guest really"
            " boots under it. One run has one accelerator.",
            'accelerator = "tcg"',
        ),
    ] = "auto"
    counting: Annotated[
        bool,
        Key(
            "Count the guest's instructions exactly: emulated, one virtual CPU, a clock of its own, no network.",
            "counting = false",
        ),
    ] = False
    boot: Annotated[
        float | None,
        keys.duration(1.0),
        Key(
            "Longest time from QEMU's start until the guest answers, beside what its memory takes (4 s for each GiB"
            " that is preallocated).",
            'boot = "5m"',
            default="30 s under KVM, 2 min emulated",
        ),
    ] = None
    settle: Annotated[
        float,
        keys.duration(),
        Key(
            "Of a counting guest: the time, on its own clock, that it stays idle after it booted and before the"
            " workload begins.",
            'settle = "60s"',
        ),
    ] = 60.0
    network: Annotated[
        Network,
        Key(
            "Its network beside the loopback: none, QEMU's own in user mode, or a tap on a bridge of the host (root).",
            'network = "user"',
        ),
    ] = "none"
    nfs: Annotated[
        bool,
        Key(
            'The host serves a folder by NFS; workloads with `storage = "nfs"` have their data there. Needs a network.',
            "nfs = true",
        ),
    ] = False
    packages: Annotated[
        tuple[str, ...],
        keys.listing(_PACKAGE, least=0),
        Key("Debian packages of its image, beside those that the workloads name.", 'packages = ["gcc", "make"]'),
    ] = ()
    sources: Annotated[
        tuple[str, ...],
        keys.listing(_PACKAGE, least=0),
        Key("Debian source packages whose archives are put below /usr/src of its image.", 'sources = ["lua5.4"]'),
    ] = ()
    suite: Annotated[
        _Suite, Key("The Debian suite of its packages, and of kernels that name none.", 'suite = "trixie"')
    ] = "trixie"
    files: Annotated[
        Mapping[str, str],
        keys.mapping(_PATH, "an absolute path in the guest", _path("name a file of this host")),
        Key("Files of this host that are put into the guest.", 'files = { "/usr/local/bin/app" = "/home/me/app" }'),
    ] = {}
    image: Annotated[
        str | None,
        _path("name the file or the block device"),
        Key(
            "Your own disk in place of an image of Debian packages, with any distribution on it. It is never written:"
            " each guest has an overlay, which is thrown away. Its services are not started: the agent is init.",
            'image = "/var/lib/libvirt/images/db1.qcow2"',
        ),
    ] = None
    image_format: Annotated[
        DiskFormat | None,
        Key("Its format.", 'image_format = "qcow2"', default="by the end of its name: .qcow2, else raw"),
    ] = None
    root: Annotated[
        str | None,
        keys.text(pattern=_DEVICE, words="a disk or partition of the guest", cure='write for example "/dev/vda1"'),
        Key(
            "Where on your own disk the root folder is (ext4, xfs or btrfs).",
            'root = "/dev/vda1"',
            default="the first partition that has one",
        ),
    ] = None
    disk: Annotated[
        tuple[DiskUse, ...], Key("More disks of yours.", 'disk = [{ path = "/srv/data.qcow2" }]', default="none")
    ] = ()
    node: Annotated[
        tuple[NodeUse, ...],
        Key(
            "Its NUMA nodes, whose memory is that of the guest.",
            'node = [{ memory = "1g", cpus = "0" }, { memory = "1g", cpus = "1" }]',
            default="one, of all its memory",
        ),
    ] = ()
    pin: Annotated[
        tuple[tuple[int, ...], ...],
        keys.listing(_CPUS, least=0),
        Key("CPUs of the host for each virtual CPU.", 'pin = ["2", "3"]', default="as the design's slots say"),
    ] = ()
    qemu: Annotated[
        str | None,
        _path("name the program: /usr/libexec/qemu-kvm"),
        Key("The QEMU that runs it.", 'qemu = "/usr/libexec/qemu-kvm"', default="the one that is installed"),
    ] = None
    resident: bool = False


class KernelUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel that guests boot: from a Debian package, built by a recipe of hugewise, or a file."""

    name: Annotated[Name, Key("What arms call it, and the results.", 'name = "4k"')]
    package: Annotated[
        str | None,
        _PACKAGE,
        Key(
            "The Debian package that it is unpacked from; a meta-package is resolved. Nothing is installed.",
            'package = "linux-image-arm64"',
        ),
    ] = None
    build: Annotated[
        Name | None, Key("The recipe that it is built by (docs/concepts/guests.md lists them).", 'build = "arm64-4k"')
    ] = None
    path: Annotated[
        str | None,
        _path("name the bzImage or Image: /boot/vmlinuz-..."),
        Key("The file that it is: a bzImage or Image.", 'path = "/boot/vmlinuz"'),
    ] = None
    modules: Annotated[
        str | None,
        _path("name the folder of its release: /lib/modules/..."),
        Key(
            "Of a kernel by path: the folder of its modules, where virtio and ext4 are not built in.",
            'modules = "/lib/modules/6.12.0"',
        ),
    ] = None
    suite: Annotated[
        _Suite | None, Key("The Debian suite of its package.", 'suite = "trixie"', default="the guest's")
    ] = None
    append: Annotated[
        tuple[str, ...],
        keys.listing(KeyKind("a word", _append), least=0),
        Key("More words for its command line.", 'append = ["nokaslr"]'),
    ] = ()


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
