"""A layout of a command's heap, as an arm of a study writes it: that of the layout library.

    none | base | thp | mosaic:FROM-TO=PAGES[+FROM-TO=PAGES...], and behind it ,heap=SIZE and ,children=no

Pages are base, thp, hugetlb-2m or hugetlb-1g; those of all of a heap from a pool are a policy's, and `pool_bytes`.

The library reads it again, as strictly, and ends a program whose layout is none; here it is known before anything runs.
"""

from __future__ import annotations

import re
from fractions import Fraction

from hugewise.quantity import format_size, parse_size
from hugewise.study.keys import Kind, Place

__all__ = ["LAYOUT", "check"]

_HUGE = 2 << 20
_POOLS = {"hugetlb-2m": _HUGE, "hugetlb-1g": 1 << 30}
_MOST_RANGES = 64
_LARGEST_HEAP = 16 << 40
_SIZE = r"(?:0|[1-9][0-9]{0,15})[kmgt]?"
_SHARE = r"(?:0|[1-9][0-9]?|100)(?:\.[0-9]{1,3})?"
_RANGE = re.compile(rf"(?:({_SHARE})-({_SHARE})%|({_SIZE})-({_SIZE}))=(base|thp|hugetlb-2m|hugetlb-1g)")
_HOW = "write base, thp, or a mosaic such as mosaic:0-25%=thp+50-75%=thp,heap=1g"


def check(words: str) -> None:
    """Raises ValueError, with what is wrong, where `words` is no layout that an arm can have."""
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
    """What is behind a layout. Raises ValueError."""
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
    """Where a range begins and ends, and what it ends at most at: in percent, or in bytes. Raises ValueError."""
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


LAYOUT = Kind("text: a layout", _layout)
