"""The lists of docs/concepts/counters.md are the table's own. HUGEWISE_WRITE_GOLDEN=1 writes them anew."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hugewise.machine import pmu
from hugewise.machine.pmu import ProcessorFamily
from hugewise.model.metric import BUNDLES

PAGE = Path(__file__).parent.parent / "docs/concepts/counters.md"


def counted(one: ProcessorFamily) -> str:
    """What of the TLB a family counts, in a few words."""
    has = one.events.keys()
    told = [
        words
        for words, roles in (
            ("walk cycles", {"load_walk_cycles"}),
            ("walks", {"load_walks"}),
            ("hits of the second level", {"load_stlb_hits", "l1_misses"}),
            ("steps", {"walk_steps"}),
            ("nested walks", {"nested_walk_cycles"}),
            ("stalled retirement", {"load_stall_cycles"}),
        )
        if roles & has
    ]
    return ", ".join(told)


def families_table() -> Iterator[str]:
    """Families that are counted alike share a row; a source of each is in its file."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for one in pmu.every():
        constants = (one.stlb_cycles, one.walkers)
        row = (counted(one), *("–" if value is None else f"{value:g}" for value in constants))
        alike.setdefault(row, []).append(one.name)
    yield "| families | counted of the TLB | C | walkers |"
    yield "|---|---|---|---|"
    for row, names in alike.items():
        yield f"| {', '.join(names)} | {' | '.join(row)} |"


def bundles_list() -> Iterator[str]:
    seen: dict[tuple[str, ...], int] = {}
    for number, one in enumerate(BUNDLES, 1):
        mode = "" if one.mode == "all" else " in user mode" if one.mode == "user" else " in the kernel"
        before = seen.setdefault((*one.events,), number) if one.mode != "all" else number
        events = ", ".join(f"`{event}`" for event in one.events) if before == number else f"those of {before},"
        yield f"{number}. {events}{mode}"


def test_the_lists_are_those_of_the_table() -> None:
    text = page = PAGE.read_text()
    for name, lines in (("families", families_table()), ("bundles", bundles_list())):
        between = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        assert between.search(page), name
        before, after = f"<!-- {name}: made by tests/test_docs_counters.py -->", f"<!-- end of {name} -->"
        page = between.sub("\n".join((before, "", *lines, "", after)).replace("\\", r"\\"), page)
    if os.environ.get("HUGEWISE_WRITE_GOLDEN") == "1":
        PAGE.write_text(page)
        text = page
    assert text == page


def test_the_page_says_what_the_table_says_of_bounds() -> None:
    page = PAGE.read_text()
    for one in pmu.every():
        if one.stlb_cycles is not None:
            assert f"{one.stlb_cycles:g} " in page
    assert "There is no upper end, and the report says so" in page
