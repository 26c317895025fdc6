"""Transparent huge pages: khugepaged, the shrinker, defrag, sizes, memory limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.facts import Carrier, HostFacts, jemalloc_options, tunables
from hugewise.audit.rules import Hit, rule, unit_of
from hugewise.quantity import format_size, readable_size

_JEMALLOC = {
    "thp": ("always", "never", "default"),
    "metadata_thp": ("disabled", "auto", "always"),
    "hpa": ("true", "false"),
}
_SHRINKERS = ("shrink_underused", "shrink_underused_thp", "split_underused_thp")


@rule("thp-shrinker-inert")
def _(facts: HostFacts) -> Iterator[Hit]:
    on = [name for name in _SHRINKERS if facts.thp.get(name) == "1"]
    if on and facts.thp_possible and facts.max_ptes_none == facts.most_none:
        yield Hit(f"{on[0]} = 1 while khugepaged/max_ptes_none = {facts.max_ptes_none}, the largest value")


@rule("free-pages-reported")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.reported is not None and facts.thp_possible:
        yield Hit(f"page_reporting_order = {facts.reported}")


@rule("max-ptes-none-intermediate")
def _(facts: HostFacts) -> Iterator[Hit]:
    found = facts.max_ptes_none
    smaller = [format_size(size) for size, value in facts.sizes.items() if size < facts.pmd and value != "never"]
    if facts.collapses and smaller and found is not None and 0 < found < facts.most_none:
        yield Hit(f"khugepaged/max_ptes_none = {found} with huge pages of {', '.join(smaller)} turned on")


@rule("max-ptes-none-advice")
def _(facts: HostFacts) -> Iterator[Hit]:
    if not facts.max_ptes_none or not facts.thp_possible:
        return
    before_8 = {
        server.pid
        for server in facts.servers
        if re.match(r"[0-7]\.", server.version or "") and server.kind == "mongodb"
    }
    for process in facts.processes:
        if (process.name == "mongod" and process.pid not in before_8) or "tcmalloc" in (process.libraries or ()):
            yield Hit(
                f"process {process.pid} ({process.name}) with max_ptes_none = {facts.max_ptes_none}", process.unit
            )


@rule("defrag-always")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.thp.get("defrag") == "always" and facts.thp_possible:
        yield Hit("defrag = always")


@rule("advising-allocator-stalls")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.thp.get("defrag") not in ("madvise", "defer+madvise") or not facts.thp_possible:
        return
    for carrier in facts.carriers():
        if not carrier.without_thp and (said := _advises(facts, carrier)):
            yield Hit(f"{carrier.what}: {said}, under defrag = {facts.thp['defrag']}", carrier.unit)


def _advises(facts: HostFacts, carrier: Carrier) -> str:
    """Return the setting that makes the allocator advise its memory; empty where none does."""
    environment = carrier.environment
    if carrier.secure or carrier.static:
        return ""
    if facts.top == "madvise" and tunables(environment).get("glibc.malloc.hugetlb") == "1":
        return "glibc.malloc.hugetlb=1"
    if said := _jemalloc_advises(carrier):
        return said
    mimalloc = environment.get("MIMALLOC_ALLOW_THP")
    return "MIMALLOC_ALLOW_THP=2" if mimalloc is not None and mimalloc.value == "2" else ""


def _jemalloc_advises(carrier: Carrier) -> str:
    for name, options in carrier.jemalloc:
        if options.get("thp") == "always":
            return f"{name} has thp:always"
        if options.get("hpa") == "true":
            return f"{name} has hpa:true, by which it advises each huge page as that fills"
    return ""


@rule("allocator-advice-without-effect")
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        said = _jemalloc_advises(carrier)
        why = carrier.without_thp or (f"enabled = {facts.top}" if facts.thp_off else "")
        if said and why:
            yield Hit(f"{carrier.what}: {said}; {why}", carrier.unit)


@rule("jemalloc-option-invalid")
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        for name, options in carrier.jemalloc:
            one = carrier.environment[name]
            wrong = [f"{key}:{value}" for key, value in options.items() if value not in _JEMALLOC.get(key, (value,))]
            parts = one.value.split(",")
            shown = not one.value.startswith("(set")
            if shown and one.value and len(options) < len({part.partition(":")[0] for part in parts}):
                rest = next(part for part in parts if jemalloc_options(part) == {})
                wrong.append(f"{rest!r} is no NAME:VALUE")
            ends = ", which ends the program" if options.get("abort_conf") == "true" else ""
            if wrong and any(key in one.value for key in _JEMALLOC):
                yield Hit(f"{carrier.what}: {name} ({one.where}): {', '.join(wrong)}{ends}", carrier.unit)


@rule("thp-top-not-followed")
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.top in ("always", "madvise") and not facts.thp_possible:
        yield Hit(f"enabled = {facts.top}, and hugepages-*kB/enabled = never at every size")


@rule("thp-swap-under-limit")
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in facts.memory_groups if facts.swap else ():
        if each.anon_thp and each.swap_limit != 0:
            said = (
                f"{each.group}: memory.max = {readable_size(each.limit)}, {readable_size(each.anon_thp)} in huge pages"
            )
            yield Hit(f"{said}, {readable_size(facts.swap)} of swap", unit_of(each.group))
