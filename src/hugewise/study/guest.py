"""The guest side of a study file: `[guest]`, `[[kernel]]`, and the kernel and backing of an arm.

    [guest]
    arch = "arm64"

    [[kernel]]
    name = "4k"
    package = "linux-image-arm64"

    policies = ["base", { name = "shp1g", from = "base", backing = "hugetlb-1g" }]

A study with a table `[guest]` runs all of its arms in guests. What a guest is, is said in `hugewise.model.guest`;
in what the keys must agree, in `hugewise.study.guest_rules`. Whether this host can boot one shows when the study is
planned.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from hugewise.model.guest import PAGE_OF, Architecture, Backing, Network, Pages
from hugewise.study import keys
from hugewise.study.keys import Key, Kind, Name, Place

__all__ = [
    "BACKING",
    "CONCURRENCY",
    "NFS",
    "BackingUse",
    "Concurrency",
    "GuestUse",
    "KernelUse",
    "without_unsaid",
]

Concurrency = Literal["alone", "together"]

NFS = "nfs"  # the storage of a workload whose data are on the host's NFS server


_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]{0,255}")
_WORD = re.compile(r"[!-~]{1,256}")
_PATH = re.compile(r"/[^\0]*")
# Words of the kernel's command line by which a guest is booted and spoken to.
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


def _path(cure: str) -> Kind:
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


class GuestUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine that every arm runs in: booted for one attempt, and thrown away after it."""

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
        Kind("a CPU model of QEMU", _model),
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
        Name | None, Key("The recipe that it is built by (`hugewise guest kernel list`).", 'build = "arm64-4k"')
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
        keys.listing(Kind("a word", _append), least=0),
        Key("More words for its command line.", 'append = ["nokaslr"]'),
    ] = ()


class BackingUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guest's memory is made of on the host. Only its page size: `backing = "hugetlb-1g"`."""

    pages: Annotated[
        Pages,
        Key(
            "Base pages (QEMU is denied huge ones), transparent huge pages (QEMU advises them), or pages of a pool of"
            " the host.",
            'pages = "hugetlb-2m"',
        ),
    ]
    source: Annotated[
        Literal["memfd", "file"],
        Key("Of pages of a pool: an anonymous memfd, or a file of a hugetlbfs (root).", 'source = "file"'),
    ] = "memfd"
    preallocate: Annotated[bool, Key("All of its pages are there before the guest starts.", "preallocate = false")] = (
        True
    )
    nodes: Annotated[
        tuple[int, ...] | None,
        keys.listing(keys.integer(0, 1023)),
        Key("NUMA nodes of the host that it is bound to.", "nodes = [0]", default="wherever"),
    ] = None


def _backing(value: object, place: Place) -> Backing:
    if isinstance(value, Mapping):
        use = keys.read_table(BackingUse, value, place)
        if "source" in value and use.pages not in PAGE_OF:
            raise place.at("source").wrong(
                f"is of pages of a pool, and these are {use.pages}", use.source, hint="remove it"
            )
        place.at("nodes").once(use.nodes or ())
        return Backing(pages=use.pages, source=use.source, preallocate=use.preallocate, nodes=use.nodes)
    if not isinstance(value, str):
        cure = 'write "hugetlb-1g" or { pages = "hugetlb-1g", preallocate = false }'
        raise place.wrong("must be a kind of pages or a table", value, hint=cure)
    return Backing(pages=keys.choice(*typing.get_args(Pages)).read(value, place))


def _concurrency(value: object, place: Place) -> tuple[Concurrency, ...]:
    one = keys.choice(*typing.get_args(Concurrency))
    if not isinstance(value, list | tuple):
        return (one.read(value, place),)
    found: tuple[Concurrency, ...] = keys.listing(one).read(value, place)
    if len(set(found)) != len(found):
        raise place.wrong("names one of them twice", list(value), hint='write ["together", "alone"]')
    return found


BACKING = Kind('"base", "thp", "hugetlb-2m", "hugetlb-1g" or a table', _backing, BackingUse)
CONCURRENCY = Kind('"alone" or "together", or a list of both', _concurrency)


# Keys that came later, most of them with guests, and what a study that says nothing of them has.
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
}


def without_unsaid(said: Mapping[str, Any]) -> dict[str, Any]:
    """A stored study without the later keys that say nothing, so that its digest is the one from before them."""

    def kept(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in table.items() if value not in _UNSAID.get(key, ())}

    found = kept(said)
    for several in ("policies", "workload"):
        if several in found:
            found[several] = [kept(table) for table in found[several]]
    if "scales" in found:
        found["scales"] = {name: kept(table) for name, table in found["scales"].items()}
    return found
