"""Transparent huge pages: khugepaged, the shrinker, defrag, sizes, memory limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hugewise.audit.facts import Carrier, HostFacts, jemalloc_options, tunables
from hugewise.audit.rules import Hit, rule, unit_of
from hugewise.quantity import format_size, readable_size

_TRANSHUGE = "Linux: Documentation/admin-guide/mm/transhuge.rst"
_JEMALLOC = {
    "thp": ("always", "never", "default"),
    "metadata_thp": ("disabled", "auto", "always"),
    "hpa": ("true", "false"),
}
_SHRINKERS = ("shrink_underused", "shrink_underused_thp", "split_underused_thp")
_NONE = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"


@rule(
    "thp-shrinker-inert",
    "note",
    "the shrinker of underused huge pages is on and can never act",
    why="It splits a huge page of which more than max_ptes_none pages are zero; with the default, all but one, none is"
    " ever underused, and memory that huge pages waste is not given back under pressure.",
    sources=(_TRANSHUGE, "https://git.kernel.org/torvalds/c/dafff3f4c850"),
    cure=f"measure a lower max_ptes_none (0 where khugepaged collapses to mTHP), or turn it off: {_NONE}",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    on = [name for name in _SHRINKERS if facts.thp.get(name) == "1"]
    if on and facts.thp_possible and facts.max_ptes_none == facts.most_none:
        yield Hit(f"{on[0]} = 1 while khugepaged/max_ptes_none = {facts.max_ptes_none}, the largest value")


@rule(
    "free-pages-reported",
    "note",
    "free memory is given back to the host of this virtual machine, in pieces as large as a huge page",
    why="With free page reporting (virtio-balloon) the host takes what lies free for some seconds, and whoever gets"
    " it next as a huge page waits until it is made anew: 2.7 s a GiB where this was measured, in place of 0.1 s. A"
    " program that starts once and touches much memory can lose by huge pages what it would gain by them.",
    sources=("Linux: Documentation/mm/free_page_reporting.rst",),
    cure="measure with and without (free-page-reporting=off of QEMU's virtio-balloon); a pool keeps its pages",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.reported is not None and facts.thp_possible:
        yield Hit(f"page_reporting_order = {facts.reported}")


@rule(
    "max-ptes-none-intermediate",
    "warning",
    "max_ptes_none is neither 0 nor the largest value, and khugepaged collapses to mTHP",
    why="For sizes below the PMD's, khugepaged takes only 0 and the largest value; with any other it warns and acts as"
    " with 0. The 409 that distributions ship is such a value.",
    sources=(_TRANSHUGE, "https://lore.kernel.org/linux-mm/ (khugepaged: mTHP support, v19, June 2026)"),
    cure="write 0 (no page is allocated that was not there) or the largest value, and measure both",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    found = facts.max_ptes_none
    smaller = [format_size(size) for size, value in facts.sizes.items() if size < facts.pmd and value != "never"]
    if facts.collapses and smaller and found is not None and 0 < found < facts.most_none:
        yield Hit(f"khugepaged/max_ptes_none = {found} with huge pages of {', '.join(smaller)} turned on")


@rule(
    "max-ptes-none-advice",
    "note",
    "programs run here whose makers advise max_ptes_none = 0",
    why="MongoDB 8 and tcmalloc give memory back in small pieces; khugepaged fills the holes again with up to"
    " max_ptes_none new pages for each huge page.",
    sources=(
        "https://www.mongodb.com/docs/manual/tutorial/transparent-huge-pages/",
        "https://github.com/gperftools/gperftools/issues/1494",
        "https://github.com/golang/go/issues/64332",
    ),
    cure=f"measure with `echo 0 > {_NONE}`; other programs of the host may want another value",
)
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


@rule(
    "defrag-always",
    "warning",
    "a page fault may compact memory before it goes on",
    why="With defrag = always each fault that could get a huge page reclaims and compacts first where none is free:"
    " stalls of 100 ms to seconds were reported, also in commands that live a moment.",
    sources=(
        _TRANSHUGE,
        "https://github.com/scylladb/scylladb/issues/8828",
        "https://github.com/jj-vcs/jj/issues/9708",
    ),
    cure="echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag, or madvise, the kernel's default",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.thp.get("defrag") == "always" and facts.thp_possible:
        yield Hit("defrag = always")


@rule(
    "advising-allocator-stalls",
    "note",
    "an allocator advises huge pages, and advised memory is compacted in the page fault",
    why="Under defrag = madvise and defer+madvise the faults of advised memory reclaim and compact as under always. An"
    " allocator that advises its whole heap has them all there.",
    sources=(
        _TRANSHUGE,
        "https://github.com/golang/go/issues/61718",
        "https://github.com/scylladb/scylladb/issues/7989",
        "https://github.com/microsoft/mimalloc/issues/1323",
    ),
    cure="hold the tail of its latency against base pages before it stays; defrag = defer never stalls a fault",
)
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


@rule(
    "allocator-advice-without-effect",
    "note",
    "jemalloc is told to advise huge pages, and the program has none",
    why="Advice gives no huge page where THP is off for the program (MemoryTHP=disable; redis turns it off with"
    " disable-thp yes, its default) or on the whole host. And which variable is read depends on how jemalloc was built:"
    " the one in redis itself reads JE_MALLOC_CONF, that of Rust's crate _RJEM_MALLOC_CONF, a library MALLOC_CONF.",
    sources=(
        "https://jemalloc.net/jemalloc.3.html#opt.thp",
        "https://github.com/redis/redis/blob/unstable/redis.conf",
        "https://github.com/tikv/jemallocator",
    ),
    cure="take the option out; or let the program have huge pages (disable-thp no), and measure it",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for carrier in facts.carriers():
        said = _jemalloc_advises(carrier)
        why = carrier.without_thp or (f"enabled = {facts.top}" if facts.thp_off else "")
        if said and why:
            yield Hit(f"{carrier.what}: {said}; {why}", carrier.unit)


@rule(
    "jemalloc-option-invalid",
    "error",
    "jemalloc does not take an option about pages",
    why="It writes `Invalid conf value` or `Malformed conf string` to stderr and goes on as if it, or all behind it,"
    " were not there; with abort_conf:true the program ends. Options are NAME:VALUE between commas, without blanks.",
    sources=("https://jemalloc.net/jemalloc.3.html#tuning", "https://jemalloc.net/jemalloc.3.html#opt.abort_conf"),
    cure="thp:always, never or default; metadata_thp:disabled, auto or always; hpa:true or false",
)
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


@rule(
    "thp-top-not-followed",
    "warning",
    "the top-level setting turns huge pages on, and no size follows it",
    why="On kernels with mTHP each size has a setting of its own. The top-level `enabled` holds for those that say"
    " `inherit`; where none does, and none is on by itself, no huge page is made whatever it says.",
    sources=(_TRANSHUGE,),
    cure="echo inherit > /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled, or turn the top level off too",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    if facts.top in ("always", "madvise") and not facts.thp_possible:
        yield Hit(f"enabled = {facts.top}, and hugepages-*kB/enabled = never at every size")


@rule(
    "thp-swap-under-limit",
    "warning",
    "a group with a memory limit holds huge pages and may swap them",
    why="Huge pages are charged whole. At the limit they are split and swapped, and what comes back are base pages: the"
    " limit is reached sooner and left later than with base pages.",
    sources=("https://github.com/tikv/tikv/issues/11979", "Linux: Documentation/admin-guide/cgroup-v2.rst"),
    cure="measure the service under its limit with huge pages off; or give it memory.swap.max = 0, or a higher limit",
)
def _(facts: HostFacts) -> Iterator[Hit]:
    for each in facts.memory_groups if facts.swap else ():
        if each.anon_thp and each.swap_limit != 0:
            said = (
                f"{each.group}: memory.max = {readable_size(each.limit)}, {readable_size(each.anon_thp)} in huge pages"
            )
            yield Hit(f"{said}, {readable_size(facts.swap)} of swap", unit_of(each.group))
