"""Display of `hugewise inspect` for a terminal of any width from 60 columns on; rich leaves out colours elsewhere.

With `--watch` look after look, until Ctrl-C, each with what has changed. A look costs its processes something
(docs/guides/inspect.md), so that a pause is at least ten times as long as the look before it, whatever was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hugewise.console import TextConsole
from hugewise.errors import UserError
from hugewise.inspection.inspect import changed
from hugewise.inspection.inspected import (
    Inspection,
    KernelStatistics,
    KindBacked,
    LostBacking,
    MappingInspected,
    SizeBacked,
)
from hugewise.quantity import format_duration, format_size, readable_size
from hugewise.visible import say, say_line

MAPPINGS = 10
_PROCESSES = 8
_NARROW = 88  # columns from which on all states have one of their own
_SOURCES = {"kpageflags": "the kernel's page flags", "smaps": "smaps", "capture": "a captured smaps"}
_PAGES = {"anon": "anonymous", "shmem": "shared", "file": "file", "hugetlb": "pool", "unproven": "size not known"}
_COUNTS = (
    ("faults got", "anon_fault_alloc"),
    ("fell back", "anon_fault_fallback"),
    ("split", "split"),
    ("now", "nr_anon"),
    ("in part", "nr_anon_partially_mapped"),
)

Before = Mapping[tuple[str, ...], int]


def render(
    inspection: Inspection,
    *,
    width: int,
    mappings: int = MAPPINGS,
    before: Inspection | None = None,
    changed: Mapping[str, int] | None = None,
    live: bool = False,
) -> RenderableType:
    """Render the inspection: the backing, the reasons, and the kernel's counts. `before`: an earlier look, against
    which changes are told; `changed`: what the kernel has counted since. `live`: what changes first, and no more than
    that; the end of it may be cut off.
    """
    parts: list[RenderableType] = [*_head(inspection, notes=not live)]
    parts += [_title("Pages"), _sizes(inspection, before, width=width)]
    parts += [_title("Mappings by kind"), _kinds(inspection, before)]
    if changed is not None:
        text = ", ".join(f"{name} {value:+,}" for name, value in sorted(changed.items()))
        parts += [_title("Counted by the kernel since the last look"), _line(text or "nothing")]
    if inspection.nodes is not None and len(inspection.nodes) > 1:
        text = ", ".join(f"node {node}: {readable_size(size)}" for node, size in inspection.nodes.items())
        parts += [_title("NUMA nodes"), _line(text)]
    if inspection.mappings and mappings:
        shown = [mapping for mapping in inspection.mappings if mapping.bytes][:mappings]
        more = f" ({len(shown)} largest of {len(inspection.mappings)})" if len(shown) < len(inspection.mappings) else ""
        parts += [_title(f"Mappings{more}"), _mappings(shown, several=len(inspection.processes) > 1)]
    if inspection.lost:
        parts += [_title("Why not larger"), *_lost(inspection.lost)]
    if len(inspection.processes) > 1:
        parts += [_title("Processes"), *_processes(inspection)]
    if inspection.group is not None and inspection.group.anonymous_huge is not None:
        charged = readable_size(inspection.group.anonymous_huge)
        said = f"memory.stat of the group: {charged} anonymous huge pages (PMD) charged"
        parts.append(_line(said))
    if live or inspection.source == "capture":
        return Group(*parts)
    parts += [_title("The kernel, since it was booted (this whole host)"), *_counts(inspection.statistics)]
    parts += [_title("Rules in force now"), *(_line(rule) for rule in inspection.rules)]
    return Group(*parts)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _line(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2), expand=False)


def _table(*columns: str, left: int = 1) -> Table:
    """Return a table with `left` columns to the left, and numbers to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=True)
    return table


def _head(inspection: Inspection, *, notes: bool) -> Iterator[RenderableType]:
    name = (
        inspection.processes[0].command if len(inspection.processes) == 1 else f"{len(inspection.processes)} processes"
    )
    of = inspection.subject if inspection.source == "capture" else f"{inspection.subject} ({name})"
    said = Text(f"{of}: {readable_size(inspection.bytes)} in memory", style="bold")
    if inspection.large is None:
        pmd = sum(one.bytes for one in inspection.sizes if one.size is not None and one.size > inspection.base)
        said.append(f", at least {_share(pmd, inspection.bytes)} of it in pages above {format_size(inspection.base)}")
    else:
        said.append(
            f", {_share(inspection.large, inspection.bytes)} of it in pages above {format_size(inspection.base)}"
        )
    if inspection.swapped:
        said.append(f"; {readable_size(inspection.swapped)} in swap")
    yield said
    took = "" if inspection.scan_s is None else f", {format_duration(inspection.scan_s)} of it the scan"
    if inspection.source == "capture":
        yield _line(f"from {_SOURCES[inspection.source]}", "dim")
        yield from (_line(f"note: {note}", "dim") for note in inspection.notes if notes)
        return
    yield _line(f"from {_SOURCES[inspection.source]}; the look took {format_duration(inspection.look_s)}{took}", "dim")
    if notes:
        yield from (_line(f"note: {note}", "dim") for note in inspection.notes)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def _bytes(size: int | None) -> str:
    return "?" if size is None else readable_size(size) if size else "-"


def _delta(now: int, before: int | None) -> str:
    if before is None or now == before:
        return ""
    return f"{'+' if now > before else '-'}{readable_size(abs(now - before))}"


def _called(backed: SizeBacked) -> str:
    return f"{_PAGES[backed.pages]} {format_size(backed.size)}" if backed.size is not None else _PAGES[backed.pages]


def _sizes(inspection: Inspection, before: Inspection | None, *, width: int) -> RenderableType:
    earlier = {} if before is None else {(one.pages, one.size): one.bytes for one in before.sizes}
    wide = width >= _NARROW
    columns = ["", "memory", "share", "by PMD", "aligned", *(["unaligned", "partial"] if wide else ["other"])]
    columns += ["change"] if before is not None else []
    table = _table(*columns)
    for one in inspection.sizes:
        cells = [_called(one), readable_size(one.bytes), _share(one.bytes, inspection.bytes)]
        rest = [one.unaligned, one.partial]
        other = None if None in rest else sum(each or 0 for each in rest)
        cells += [_bytes(each) for each in (one.pmd, one.aligned, *(rest if wide else [other]))]
        if before is not None:
            cells.append(_delta(one.bytes, earlier.get((one.pages, one.size), 0)))
        table.add_row(*map(Text, cells))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _kinds(inspection: Inspection, before: Inspection | None) -> RenderableType:
    earlier: dict[str, KindBacked] = {} if before is None else {one.kind: one for one in before.kinds}
    columns = ["", "mappings", "memory", "larger", "share", "could be", "swap"]
    columns += ["change"] if before is not None else []
    table = _table(*columns)
    for one in inspection.kinds:
        share = "?" if one.large is None else _share(one.large, one.bytes)
        cells = [one.kind, f"{one.mappings}", readable_size(one.bytes), _bytes(one.large), share]
        cells += [_bytes(one.missing), _bytes(one.swapped)]
        if before is not None:
            had = earlier.get(one.kind)
            cells.append(_delta(one.bytes, had.bytes if had is not None else 0))
        table.add_row(*map(Text, cells))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _mappings(shown: Sequence[MappingInspected], *, several: bool) -> RenderableType:
    table = _table(*(["pid"] if several else []), "memory", "larger", left=0)
    table.add_column("pages", overflow="fold", ratio=2)
    table.add_column("mapping", overflow="fold", ratio=3)
    table.add_column("why not more", overflow="fold", ratio=2)
    table.expand = True
    for one in shown:
        pages = ", ".join(f"{_short(each)} {_share(each.bytes, one.bytes)}" for each in one.sizes[:3])
        text = f"{one.kind} {one.name}" if one.name.strip("[]") != one.kind else one.kind
        advice = {"huge": ", advised", "base": ", advised against", None: ""}[one.advised]
        where = f"{one.start} {text}{advice}"
        why = "" if one.lost is None else f"{_bytes(one.lost.bytes)} {one.lost.id}"
        row = [*([str(one.pid)] if several else []), readable_size(one.bytes), _bytes(one.large), pages, where, why]
        table.add_row(*map(Text, row))
    return Padding(table, (0, 0, 0, 2), expand=False)


def _short(backed: SizeBacked) -> str:
    if backed.size is None:
        return "not known"
    mark = "" if backed.pages == "anon" else f"{_PAGES[backed.pages]} "
    split = backed.size and backed.partial and backed.partial == backed.bytes
    return f"{mark}{format_size(backed.size)}{' in part' if split else ''}"


def _lost(lost: Iterable[LostBacking]) -> Iterator[RenderableType]:
    for one in lost:
        said = Text(f"- {one.text} ")
        said.append(f"[{one.id}]", style="dim")
        yield Padding(said, (0, 0, 0, 2), expand=False)
        if one.evidence:
            yield Padding(Text(one.evidence), (0, 0, 0, 4), expand=False)
        if one.cure:
            yield Padding(Text(f"cure: {one.cure}", style="green"), (0, 0, 0, 4), expand=False)


def _processes(inspection: Inspection) -> Iterator[RenderableType]:
    for one in sorted(inspection.processes, key=lambda each: -each.bytes)[:_PROCESSES]:
        large = "?" if one.large is None else _share(one.large, one.bytes)
        off = "; transparent huge pages are off for it" if one.thp_disabled else ""
        yield _line(f"{one.pid} {one.command[:60]}: {readable_size(one.bytes)}, {large} larger{off}")
    if (more := len(inspection.processes) - _PROCESSES) > 0:
        yield _line(f"and {more} more")


def _counts(statistics: KernelStatistics) -> Iterator[RenderableType]:
    table = _table("", "enabled", *(title for title, _ in _COUNTS), left=2)
    for one in statistics.sizes:
        numbers = [one.counts.get(name) for _, name in _COUNTS]
        if one.enabled in (None, "never") and not any(numbers):
            continue
        cells = ["?" if number is None else f"{number:,}" for number in numbers]
        table.add_row(*map(Text, (format_size(one.size), one.enabled or "?", *cells)))
    if table.row_count:
        yield Padding(table, (0, 0, 0, 2), expand=False)
    if reason := next((one.reason for one in statistics.sizes if one.reason), None):
        yield _line(reason, "dim")
    daemon, events = statistics.khugepaged, statistics.events
    own = ((name.replace("_", " "), daemon.get(name)) for name in _OWN)
    texts = [f"{name} {value:,}" for name, value in own if value is not None]
    stalls, failed = events.get("compact_stall"), events.get("compact_fail")
    if stalls is not None and failed is not None:
        texts.append(f"direct compactions {stalls:,}, {failed:,} failed")
    yield _line(f"khugepaged: {'; '.join(texts)}" if texts else "khugepaged: this kernel says nothing")


_OWN = ("pages_collapsed", "full_scans")

_RATIO = 10
_ROOM = 6  # lines of the screen beside the mappings


def pause(asked: float, look: float) -> float:
    """Return seconds to the next look, after one that took `look` seconds."""
    return max(asked, look * _RATIO)


def watch(look: Callable[[], Inspection], interval: float, *, as_json: bool) -> None:
    """Look until Ctrl-C, or until processes or terminal are gone. Raises UserError where the first look does."""
    found, before = look(), None
    console = TextConsole()
    live = Live(console=console, screen=True, auto_refresh=False) if console.is_terminal and not as_json else None
    with live or nullcontext():
        while True:
            if as_json:
                say_line(found)
            elif live is not None:
                if not console.is_terminal:
                    return  # it was closed: rich writes nothing, and reports no error
                live.update(_screen(found, before, console, interval), refresh=True)
            else:
                since = None if before is None else changed(found.statistics, before.statistics)
                console.print(render(found, width=console.width, before=before, changed=since), crop=False)
                console.print()
            time.sleep(pause(interval, found.look_s))
            try:
                found, before = look(), found
            except UserError:
                break
    if not as_json:
        say(f"{found.subject}: it has ended")


def _screen(inspection: Inspection, before: Inspection | None, console: TextConsole, interval: float) -> RenderableType:
    since = None if before is None else changed(inspection.statistics, before.statistics)
    most = max(0, console.height // 3 - _ROOM // 2)
    every = format_duration(pause(interval, inspection.look_s))
    at = time.strftime("%H:%M:%S", time.localtime(inspection.taken))
    bar = Text(f"{at}  every {every}   Ctrl-C quits", style="reverse")
    shown = render(
        inspection, width=console.width, mappings=most, before=before or inspection, changed=since, live=True
    )
    return Group(bar, shown)
