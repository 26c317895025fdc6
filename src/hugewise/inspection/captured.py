"""Backing of a process by a captured /proc/PID/smaps: `hugewise inspect --smaps FILE`.

The file says which mapping was eligible (THPeligible), advised (VmFlags), and what each had; not which rules were in
force. Fields that contradict each other are an error: a file that was changed or cut is not believed.

Source: Documentation/filesystems/proc.rst of the Linux kernel.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from hugewise.errors import UserError
from hugewise.inspection.backing import by_smaps, large, shown_rows, whole_of
from hugewise.inspection.inspect import BackedPart, kinds, lost_backing, merged_reasons, part_of_smaps
from hugewise.inspection.inspected import Inspection, KernelStatistics, LostBacking
from hugewise.inspection.rules import Khugepaged, Rules
from hugewise.machine.smaps import BackedMapping, backed_mappings
from hugewise.quantity import format_size, readable_size

_MOST = 256 << 20
_HEAD = re.compile(rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) \S{4} [0-9a-f]+ \S+ \d+(?: .*)?")
_FIELD = re.compile(rb"(\w{1,40}):\s*(.*)")
_KILOBYTES = re.compile(rb"(\d{1,15}) kB")
_PLAIN = ("THPeligible", "VmFlags", "ProtectionKey")
_ENTRY = 8  # bytes of an entry of a page table: a page of them maps a huge page
_CURE = "capture it again, as root: cat /proc/PID/smaps > FILE"
_ROLLUP = "[rollup]"


def inspect_file(path: Path) -> Inspection:
    """Return what the file says. Raises UserError where it is no smaps, or contradicts itself."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"--smaps {path}: it is no file", hint="name the file of a captured smaps")
        with path.open("rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise UserError(f"--smaps {path}: {error.strerror or error}", hint="name a file that you may read") from None
    if len(data) > _MOST:
        raise UserError(f"--smaps {path}: larger than {_MOST:,} bytes", hint="name the smaps of one process")
    lines = [line.strip() for line in data.split(b"\n")]
    base = _checked(lines, str(path))
    mappings = list(backed_mappings(line + b"\n" if _HEAD.fullmatch(line) else line for line in lines))
    if not mappings:
        raise UserError(f"--smaps {path}: it has no mapping as /proc/PID/smaps has them", hint=_CURE)
    return _inspection(str(path), mappings, base)


def _checked(lines: list[bytes], path: str) -> int:
    """Bytes of the base page. Raises UserError for a field that is no number, or contradicts another."""
    fields: dict[str, tuple[int, int]] = {}
    head: tuple[int, int] | None = None
    base = 1 << 62
    for number, line in enumerate([*lines, b"0-0 ---p 0 0:0 0"], 1):
        if (begun := _HEAD.fullmatch(line)) is not None:
            if head is not None:
                _consistent(path, head, fields)
            head, fields = (int(begun[2], 16) - int(begun[1], 16), number), {}
        elif head is not None and (field := _FIELD.fullmatch(line)) is not None:
            name = field[1].decode("ascii", "replace")
            amount = _KILOBYTES.fullmatch(field[2].strip())
            if amount is not None:
                fields[name] = (int(amount[1]) << 10, number)
            elif name not in _PLAIN:
                value = field[2].decode("utf-8", "replace")[:40]
                raise UserError(f"{path}:{number}: {name}: {value!r} is no number of kB", hint=_CURE)
            if name == "MMUPageSize" and amount is not None:
                base = min(base, int(amount[1]) << 10)
    return base if base < 1 << 30 else 4096


def _consistent(path: str, head: tuple[int, int], fields: dict[str, tuple[int, int]]) -> None:
    """Raise UserError where a mapping's fields cannot all be so."""
    size, line = head
    if "Size" in fields and fields["Size"][0] != size and size > 0:
        said, at = fields["Size"]
        message = f"Size is {readable_size(said)}, and the addresses in line {line} are {readable_size(size)}"
        if line and not _is_rollup(fields):
            raise UserError(f"{path}:{at}: {message}", hint=_CURE)
    for part, whole in (("AnonHugePages", "Anonymous"), ("Anonymous", "Rss"), ("Rss", "Size"), ("Pss", "Rss")):
        if part in fields and whole in fields and fields[part][0] > fields[whole][0]:
            more, less = (readable_size(fields[name][0]) for name in (part, whole))
            raise UserError(
                f"{path}:{fields[part][1]}: {part} is {more}, and {whole}, of which it is a part, {less}", hint=_CURE
            )


def _is_rollup(fields: dict[str, tuple[int, int]]) -> bool:
    return "Pss_Dirty" in fields and "KernelPageSize" not in fields


def _inspection(path: str, mappings: list[BackedMapping], base: int) -> Inspection:
    rules = _rules(base)
    parts = [_part(each, rules) for each in mappings if each.resident or each.pool or each.swapped]
    whole = whole_of(part.once for part in parts)
    notes = [
        "a captured smaps: which rules of huge pages were in force, and whether the kernel tried, is not in it",
        "the sizes between base pages and the largest are not known from smaps",
    ]
    if any(each.name == _ROLLUP for each in mappings):
        notes.append("smaps_rollup has sums alone: why memory is in base pages is not to be said of it")
    elif all(each.eligible is None for each in mappings):
        notes.append("it has no THPeligible (Linux before 5.0, or left out): which memory was eligible is not known")
    sizes = shown_rows(whole)
    return Inspection(
        subject=path,
        taken=time.time(),
        source="capture",
        once=False,
        base=base,
        bytes=sum(one.bytes for one in sizes),
        large=large(whole, base),
        swapped=sum(part.told.swapped for part in parts),
        sizes=sizes,
        kinds=tuple(kinds(parts, base)),
        nodes=None,
        lost=tuple(merged_reasons(part.told.lost for part in parts if part.told.lost is not None)),
        processes=(),
        mappings=tuple(sorted((part.told for part in parts), key=lambda told: -told.bytes)),
        statistics=KernelStatistics(sizes=(), events={}, khugepaged={}),
        group=None,
        rules=(),
        notes=tuple(notes),
        look_s=0.0,
        scan_s=None,
    )


def _rules(base: int) -> Rules:
    """As if the kernel gave each eligible mapping a page of the PMD size, which follows from the base page."""
    pmd = base * (base // _ENTRY)
    return Rules(
        base=base, pmd=pmd, top="", defrag="", sizes={pmd: "always"}, shared={pmd: "always"},
        khugepaged=Khugepaged(), pools={},
    )  # fmt: skip


def _part(each: BackedMapping, rules: Rules) -> BackedPart:
    found = by_smaps(each, rules, disabled=None)
    return part_of_smaps(0, each, found, rules.base, next(_lost(each, rules), None))


def _lost(each: BackedMapping, rules: Rules) -> Iterator[LostBacking]:
    """Why anonymous memory is in base pages, as far as the file says it."""
    size = rules.pmd
    if size is None or each.name == _ROLLUP or each.is_shmem or not each.anonymous or each.pool:
        return
    missing = max(0, min(each.anonymous, each.room(size)) - each.huge)
    if each.eligible is False and "nh" not in each.flags and missing >= size:
        advised = "it was advised" if "hg" in each.flags else "it was not advised"
        text = f"{readable_size(missing)} may have no huge page (THPeligible: 0), and {advised}"
        cure = "see on its host which rules are in force: hugewise audit"
        yield LostBacking(id="not-eligible", size=size, bytes=missing, text=text, cure=cure)
    elif each.eligible or "nh" in each.flags:
        statistics = KernelStatistics(sizes=(), events={}, khugepaged={})
        found = lost_backing(each, each.huge, None, rules, statistics, disabled=None)
        if found is not None:
            yield found
    elif missing >= size:
        text = (
            f"{readable_size(missing)} has room for pages of {format_size(size)}, and has none; whether it was eligible"
        )
        yield LostBacking(id="not-eligible", size=size, bytes=missing, text=f"{text} is not in the file", cure=None)
