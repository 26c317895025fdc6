"""Strata: hosts that are alike in what moves page effects. Pure.

What is compared is what a fingerprint, the page settings and the state of free memory say. What nobody could read is a
value of its own, so that two hosts of which nothing is known are alike in that, and it is said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hugewise.model.pages import THP
from hugewise.visible import printable

__all__ = ["Stratum", "differences", "memory_age", "named", "stratum"]

_UNKNOWN = "not known"
_LARGE_ORDER = 9  # 2 MiB in base pages of 4 KiB: below it free memory is of no use to a huge page
_FRESH, _USED = 0.1, 0.5
_MOST_SETTINGS = 64
# Not of the policy: how busily khugepaged works does not tell hosts apart that a study sets alike.
_SETTINGS = re.compile(rf"{re.escape(THP)}/(?:enabled|defrag|shmem_enabled|khugepaged/defrag|hugepages-\d+kB/enabled)")


class Stratum(msgspec.Struct, frozen=True, order=True):
    """What the hosts of a stratum have alike, each in words.

    cpu          the model, with family, model and stepping
    microcode    its revision
    kernel       its release
    libc         name and version
    pages        THP settings in force, and the sizes that there are
    hypervisor   none, or what the board says it is
    memory       how much of the free memory is in pieces too small for a huge page: fresh, used, aged
    """

    cpu: str
    microcode: str
    kernel: str
    libc: str
    pages: str
    hypervisor: str
    memory: str

    @property
    def key(self) -> str:
        """Eight digits that stand for all of it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]


def stratum(fingerprint: Mapping[str, Any], settings: Mapping[str, str], memory: str | None) -> Stratum:
    """Of a host: its fingerprint (`machine.fingerprint`), its page settings by their paths, and `memory_age`."""
    cpu, kernel = _table(fingerprint, "cpu"), _table(fingerprint, "kernel")
    numbers = [f"{word} {_text(str(cpu[key]))[:40]}" for key, word in _CPU.items() if cpu.get(key) not in (None, "")]
    model = _text(cpu.get("model") or cpu.get("vendor"))
    return Stratum(
        cpu=f"{model} ({', '.join(numbers)})" if numbers else model,
        microcode=_text(cpu.get("microcode")),
        kernel=_text(kernel.get("release")),
        libc=_text(fingerprint.get("libc")),
        pages=_pages(fingerprint, settings),
        hypervisor=_hypervisor(_table(fingerprint, "virtualisation")),
        memory=memory or _UNKNOWN,
    )


_CPU = {"family": "family", "model_number": "model", "stepping": "stepping"}


def _table(facts: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = facts.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: object) -> str:
    return printable(" ".join(value.split()))[:200] if isinstance(value, str) and value.strip() else _UNKNOWN


def _pages(fingerprint: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    """THP settings by their names below its folder; sizes of middle-sized pages that inherit or are off are alike."""
    found = {path.removeprefix(f"{THP}/"): value for path, value in settings.items() if _SETTINGS.fullmatch(path)}
    sizes = _table(fingerprint, "pages")
    base = f"base {sizes['base']}" if isinstance(sizes.get("base"), int) else "base not known"
    told = [f"{name}={_text(found[name])[:40]}" for name in sorted(found)[:_MOST_SETTINGS]]
    return "; ".join([base, *told] if told else [base, "THP not known"])


def _hypervisor(facts: Mapping[str, Any]) -> str:
    flag = facts.get("hypervisor")
    if flag is False:
        return "none"
    board = " ".join(str(facts[key]) for key in ("vendor", "product") if isinstance(facts.get(key), str))
    return _text(board) if flag is None else f"guest of {_text(board)}"


def memory_age(buddyinfo: str) -> str | None:
    """The class of the state that free memory is in, from /proc/buddyinfo (proc(5)); None where it says nothing.

    The measure is Gorman's and Whitcroft's unusable free space index (2006) at the order of a 2 MiB page, over all
    zones: the share of free memory that lies in smaller pieces. fresh: up to 10%; used: up to 50%; aged: above.
    """
    total = small = 0
    for line in buddyinfo.splitlines():
        counts = line.partition("zone")[2].split()[1:]
        if not all(count.isascii() and count.isdigit() for count in counts):
            return None
        for order, count in enumerate(counts):
            pages = int(count) << order
            total += pages
            small += pages if order < _LARGE_ORDER else 0
    if not total:
        return None
    share = small / total
    return "fresh" if share <= _FRESH else "used" if share <= _USED else "aged"


def differences(one: Stratum, other: Stratum) -> list[str]:
    """In what two strata differ, each in words: `kernel: 6.1.0 / 6.12.0`. Of page settings only those that differ."""
    found = []
    for field in one.__struct_fields__:
        here, there = getattr(one, field), getattr(other, field)
        if here == there:
            continue
        if field == "pages":
            first, second = set(here.split("; ")), set(there.split("; "))
            here, there = "; ".join(sorted(first - second)) or "-", "; ".join(sorted(second - first)) or "-"
        found.append(f"{field}: {here} / {there}")
    return found


def named(strata: Iterable[Stratum]) -> dict[Stratum, str]:
    """A name for each, that a person can read: the model and whatever tells it from the others, in the order of them.

    Where that is one stratum the name is the model's alone. Names differ.
    """
    known = sorted(set(strata))
    telling = [
        field
        for field in ("microcode", "kernel", "libc", "hypervisor", "memory", "pages")
        if len({getattr(one, field) for one in known}) > 1
    ]
    names: dict[Stratum, str] = {}
    for one in known:
        parts = [one.cpu.partition(" (")[0]]
        for field in telling:
            value = getattr(one, field)
            if field == "pages":
                alike = set.intersection(*(set(each.pages.split("; ")) for each in known))
                value = ", ".join(part for part in value.split("; ") if part not in alike) or "pages alike"
            parts.append(f"memory {value}" if field == "memory" else value)
        name = ", ".join(parts)
        names[one] = name if name not in names.values() else f"{name} [{one.key}]"
    return names
