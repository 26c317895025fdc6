"""Tables of a study file below its top: policies, budget, and the rules of the attempts. Not its workloads.

An arm's `backing` is a kind of pages, or a table (see `hugewise.model.guest`):

    backing = "hugetlb-1g"
    backing = { pages = "thp", share = true, nodes = [0] }

A layout of a command's heap is written as the layout library reads it:

    none | base | thp | mosaic:FROM-TO=PAGES[+FROM-TO=PAGES...], and behind it ,heap=SIZE and ,children=no

Pages are base, thp, hugetlb-2m or hugetlb-1g; a whole heap from a pool is a policy, with `pool_bytes`. The library
checks the layout again, and ends a program whose layout is invalid; here the mistake is known before anything runs.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Literal

import msgspec

from hugewise import published
from hugewise.model.design import Kind
from hugewise.model.guest import PAGE_OF, Backing, Pages
from hugewise.model.policy import Mechanism
from hugewise.model.trial import Judged
from hugewise.quantity import format_size, parse_cpus, parse_size
from hugewise.study import keys
from hugewise.study.keys import KeyKind, Name, Place
from hugewise.study.workload import PARAMETERS, ParameterInput


class BackingUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pages of the guest's memory on the host. With only a page size, written `backing = "hugetlb-1g"`."""

    pages: Pages
    source: Literal["memfd", "file"] = "memfd"
    preallocate: bool = True
    nodes: Annotated[tuple[int, ...] | None, keys.listing(keys.integer(0, 1023))] = None
    share: bool = False
    by_node: Annotated[tuple[Pages, ...], keys.listing(keys.choice(*typing.get_args(Pages)), least=0)] = ()


def _backing(value: object, place: Place) -> Backing:
    if isinstance(value, Mapping):
        use = keys.read_table(BackingUse, value, place)
        if "source" in value and not PAGE_OF.keys() & {use.pages, *use.by_node}:
            raise place.at("source").wrong(
                f"is of pages of a pool, and these are {use.pages}", use.source, hint="remove it"
            )
        place.at("nodes").once(use.nodes or ())
        if use.by_node and use.by_node[0] != use.pages:
            raise place.at("by_node").wrong(
                f"begins with the pages of the first node, and pages are {use.pages}", list(use.by_node)
            )
        if "base" in use.by_node and "thp" in use.by_node:
            cure = "QEMU is denied huge pages as a whole: have nodes of a pool beside the one, or the other"
            raise place.at("by_node").wrong("has base and thp", list(use.by_node), hint=cure)
        return Backing(
            pages=use.pages,
            source=use.source,
            preallocate=use.preallocate,
            nodes=use.nodes,
            share=use.share,
            by_node=use.by_node,
        )
    if not isinstance(value, str):
        cure = 'write "hugetlb-1g" or { pages = "hugetlb-1g", preallocate = false }'
        raise place.wrong("must be a kind of pages or a table", value, hint=cure)
    return Backing(pages=keys.choice(*typing.get_args(Pages)).read(value, place))


BACKING = KeyKind('"base", "thp", "hugetlb-2m", "hugetlb-1g" or a table', _backing, BackingUse)

_HUGE = 2 << 20
_POOLS = {"hugetlb-2m": _HUGE, "hugetlb-1g": 1 << 30}
_MOST_RANGES = 64
_LARGEST_HEAP = 16 << 40
_SIZE = r"(?:0|[1-9][0-9]{0,15})[kmgt]?"
_SHARE = r"(?:0|[1-9][0-9]?|100)(?:\.[0-9]{1,3})?"
_RANGE = re.compile(rf"(?:({_SHARE})-({_SHARE})%|({_SIZE})-({_SIZE}))=(base|thp|hugetlb-2m|hugetlb-1g)")
_HOW = "write base, thp, or a mosaic such as mosaic:0-25%=thp+50-75%=thp,heap=1g"


def check(words: str) -> None:
    """Raise ValueError, with the reason, where `words` is no layout that an arm can have."""
    kind, *options = words.split(",")
    mosaic = kind.removeprefix("mosaic:") if kind.startswith("mosaic:") else None
    if mosaic is None and kind not in ("none", "base", "thp"):
        if kind.startswith("hugetlb"):
            raise ValueError("pages of a pool are had by the policies layout-hugetlb-SIZE, and pool_bytes")
        raise ValueError(_HOW)
    heap = _heap(options)
    if mosaic is None:
        return
    if heap is None:
        raise ValueError("a mosaic is of so much memory: add ,heap=SIZE")
    ranges = mosaic.split("+")
    if len(ranges) > _MOST_RANGES:
        raise ValueError(f"a mosaic has at most {_MOST_RANGES} ranges")
    before, kinds, pools = Fraction(0), set[bool](), set[str]()
    for each in ranges:
        match = _RANGE.fullmatch(each)
        if match is None:
            raise ValueError(f"{each[:40]!r} is no range of a mosaic; {_HOW}")
        kinds.add(match[1] is not None)
        pools.update({match[5]} & _POOLS.keys())
        if len(pools) > 1:
            raise ValueError("the pages of a mosaic are of one pool: hugetlb-2m or hugetlb-1g")
        begin, end, most = _edges(match, heap)
        if not before <= begin < end <= most or len(kinds) > 1:
            raise ValueError(f"{each!r}: ranges are in their order within the heap, all in percent or all in bytes")
        before = end


def _heap(options: list[str]) -> int | None:
    heap = None
    for each in options:
        name, _, value = each.partition("=")
        if [other.partition("=")[0] for other in options].count(name) > 1:
            raise ValueError(f"{name} is there twice")
        if name == "heap" and re.fullmatch(_SIZE, value):
            heap = parse_size(value)
            if not _HUGE <= heap <= _LARGEST_HEAP or heap % _HUGE:
                raise ValueError("a heap is a multiple of 2m, at most 16t")
        elif each not in ("children=no", "children=yes"):
            raise ValueError(f"{each[:40]!r} is no option of a layout; write heap=SIZE or children=no")
    return heap


def _edges(match: re.Match[str], heap: int) -> tuple[Fraction, Fraction, Fraction]:
    if match[1] is not None:
        return Fraction(match[1]), Fraction(match[2]), Fraction(100)
    begin, end = parse_size(match[3]), parse_size(match[4])
    unit = _POOLS.get(match[5], _HUGE)
    if begin % unit or end % unit:
        raise ValueError(f"{match[0]!r}: ranges begin and end at multiples of {format_size(unit)}")
    return Fraction(begin), Fraction(end), Fraction(heap)


def _layout(value: object, place: Place) -> str:
    if not isinstance(value, str):
        raise place.wrong("is no layout", value, hint=_HOW)
    try:
        check(value)
    except ValueError as error:
        raise place.wrong("is no layout", value, hint=str(error)) from None
    return value


LAYOUT = KeyKind("text: a layout", _layout)

Slots = tuple[tuple[int, ...], ...]
"""The CPUs of each slot of a design."""

_KNOB = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _knob_value(value: object, place: Place) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(keys.integer().read(value, place))
    return str(keys.text().read(value, place))


def _policy_use(value: object, place: Place) -> PolicyUse:
    if isinstance(value, str):
        return PolicyUse(name=keys.name().read(value, place))
    if not isinstance(value, Mapping):
        raise place.wrong(
            "must be a policy's name or a table", value, hint='write "thp" or { name = "mine", from = "thp" }'
        )
    use = keys.read_table(PolicyUse, value, place)
    if use.changed and use.source in (None, use.name):
        raise place.at("name").wrong(
            "a changed policy needs a name of its own",
            use.name,
            hint=f'write for example {{ name = "{use.name}-changed", from = "{use.name}", ... }}',
        )
    return use


POLICY = keys.KeyKind("a policy's name, or a table", _policy_use)
_KNOBS = keys.mapping(
    _KNOB,
    "a file below /sys/kernel/mm/transparent_hugepage",
    keys.KeyKind("text or whole number", _knob_value),
)
_ENVIRONMENT = keys.mapping(_VARIABLE, "a variable's name", keys.text())


def _source(value: object, place: Place) -> str:
    known = published.names()
    if not isinstance(value, str) or value not in known:
        begun = [name for name in known if isinstance(value, str) and value and name.startswith(value)]
        hint = f"did you mean {' or '.join(begun)}?" if begun else keys.near(str(value), known, what="sources")
        raise place.wrong("is not a published source", value, hint=hint)
    return value


SOURCE = keys.KeyKind("a source's name", _source)
ARMS = keys.mapping(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "a policy's name", keys.text())


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy of the study: a registered one by its name, or a table that changes one."""

    name: Name
    source: Name | None = msgspec.field(default=None, name="from")
    set: Annotated[Mapping[str, str], _KNOBS] = {}
    environment: Annotated[Mapping[str, str], _ENVIRONMENT] = {}
    parameters: Annotated[
        Mapping[str, ParameterInput], keys.KeyKind("table: a parameter's name = a value", PARAMETERS.read)
    ] = {}
    thp_disable: bool = False
    layout: Annotated[str, LAYOUT] = ""
    mechanism: Annotated[Mechanism | None, keys.choice("process", "system")] = None
    judged: Judged | None = None
    kernel: Name | None = None
    backing: Annotated[Backing | None, BACKING] = None

    @property
    def registered(self) -> str:
        """The name of the registered policy behind it."""
        return self.source or self.name

    @property
    def backed_by(self) -> Backing:
        """Backing of the memory of the arm's guests: its own, or `thp` where none is given (see `plan.arms`)."""
        return self.backing or Backing()

    @property
    def changed(self) -> bool:
        """True if the use differs from the registered policy; judging, kernel and backing do not count."""
        return any((self.set, self.environment, self.parameters, self.thp_disable, self.layout, self.mechanism))


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Amount of measurement."""

    blocks: Annotated[
        int,
        keys.integer(
            2,
            100_000,
            few="a block gives one pair of values; how far pairs differ by chance shows from two on, and without it "
            "there is no interval and no verdict",
        ),
    ] = 12
    width: Annotated[float | None, keys.share(above=0)] = None
    futility: Annotated[float | None, keys.share(above=0, below=1)] = None
    time: Annotated[float | None, keys.duration(1.0)] = None


def _slot(value: object, place: Place) -> int | str:
    if not isinstance(value, str):
        cpu: int = keys.integer(0, 65_535).read(value, place)
        return cpu
    try:
        parse_cpus(value)
    except ValueError as error:
        raise place.wrong(str(error), value, hint='write for example slots = ["0-13", "14-27"]') from None
    return value


_SLOT = keys.KeyKind('a CPU, or CPUs as in "0-3,8"', _slot)


class Design(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout of a block's arms in time and over CPUs. See docs/concepts/designs.md."""

    kind: Annotated[
        Literal["sequential", "duet", "crossover", "resident", "interleaved", "auto"],
        keys.choice("sequential", "interleaved", "auto", stored=("duet", "crossover", "resident")),
    ] = "sequential"
    slots: Annotated[tuple[int | str, ...], keys.listing(_SLOT)] = ()
    slice: Annotated[float, keys.duration(0.02)] = 0.05
    wash_out: Annotated[float, keys.share(below=0.9)] = 0.2
    copies: Annotated[int | None, keys.integer(1, 2)] = None
    turns: int = 100  # of the design crossover of earlier versions: runs are combined where it is the same

    @property
    def copies_each(self) -> int:
        """Attempts of each arm in a block, where the method and the machine allow as many."""
        return self.copies or (2 if self.kind == "auto" else 1)

    @property
    def first(self) -> Kind:
        """The kind of a cell of which nothing more is known."""
        return "sequential" if self.kind == "auto" else self.kind

    @property
    def places(self) -> Slots:
        return tuple((slot,) if isinstance(slot, int) else parse_cpus(slot) for slot in self.slots)


class Between(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Carry-over control: what happens between two attempts, the same for all arms."""

    settle: Annotated[float, keys.duration()] = 0.02
    compact: bool = False  # with `drop_caches` a key of earlier versions: stored studies have them
    drop_caches: bool = False


class Validity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits above which an attempt is flagged as disturbed. Flagged attempts count; the report names them."""

    load_per_cpu: Annotated[float, keys.number(0)] = 1.5
    steal: Annotated[float, keys.share()] = 0.05
    swap: bool = True  # this and what follows were keys of earlier versions: nothing reads them
    throttling: bool = True
    other_huge_page_users: bool = True
    clock_source: bool = True


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistical sessions: what shares one allocation and one boot. Their means carry the widest claim."""

    pairs: Annotated[int | None, keys.integer(1)] = None


class Retries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attempt: its retries, and what is randomised in it."""

    retries: Annotated[int, keys.integer(0, 100)] = 2
    environment_pad: Annotated[int, keys.size(high=65_536)] = 4096
