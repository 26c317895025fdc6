"""The answer to `hugewise predict`: misses and walk steps per thousand instructions, by machine and size of pages.

A band goes from the least to the most over what no source says: how the second level replaces (LRU or at random), how
many entries the page-walk caches have (half of what is assumed, up to twice), and the variants of a described page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.errors import UserError
from hugewise.predict import line, machines, timing, trace
from hugewise.predict.machines import Machine, Page

FORMAT = 1
_MOST_CONFIGURATIONS = 64
_REGION = 16  # the plugin counts memory in regions of 2^16 bytes


class Band(msgspec.Struct, frozen=True):
    """From the least to the most."""

    low: float
    high: float


class Memory(msgspec.Struct, frozen=True):
    """Bytes in pages of one size.

    touched   what the program touched at any time, rounded up to pages of this size
    added     how much more that is than in pages of 4 KiB
    needed    the fewest of these pages that have 90% of the walks of the first configuration; None: there were none
    """

    touched: int
    added: int
    needed: int | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One size of pages on one machine. Rates are per thousand instructions of the program.

    policy          the policy of hugewise that asks for these pages; `base`: they are the kernel's base pages
    l1_misses_pki   misses of the first level
    misses_pki      misses of the second level: page walks
    steps_pki       entries of the page table that walks read
    memory          None for base pages below 64 KiB
    seconds         user CPU time of a run on this host; None: none is predicted
    """

    machine: str
    page: str
    base: str
    policy: str
    l1_misses_pki: Band
    misses_pki: Band
    steps_pki: Band
    memory: Memory | None
    seconds: line.Interval | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one traced run.

    limits   accesses and programs that the trace did not see, in sentences
    timing   of runs on this host; None: it was not asked for
    """

    format: int
    command: tuple[str, ...]
    architecture: str
    status: int
    emulator: str
    traced_s: float
    instructions: int
    accesses: int
    records: int
    threads: int
    touched_bytes: int
    rows: tuple[Row, ...]
    machines: dict[str, Machine]
    limits: tuple[str, ...]
    timing: timing.Timing | None = None


def predict(
    command: Sequence[str],
    names: Sequence[str] = (),
    policies: Sequence[str] = (),
    begin: Path | None = None,
    seconds: float | None = None,
) -> Prediction:
    """Trace the command once, and return misses and steps on the named machines (none: `machines.DEFAULT`) for base
    pages and those of the policies (none: all); counted from when the file `begin` is there. With `seconds` for timed
    runs also times on this host. Raises UserError, HugewiseError.
    """
    described = {name: machines.load(name) for name in dict.fromkeys(names or machines.DEFAULT)}
    known = sorted({page.policy for machine in described.values() for page in machine.page})
    for policy in policies:
        if policy not in known:
            raise UserError(f"--policy {policy}: no page of these machines", hint=f"name some of {', '.join(known)}")
    program = trace.program(command)
    runs = None if seconds is None else timing.run(program, seconds)
    laid = runs if isinstance(runs, timing.Runs) else None
    if laid is not None:
        described.setdefault(laid.host, machines.load(laid.host))
    chosen = [
        (name, page)
        for name, machine in described.items()
        for page in machine.page
        if not policies or page.policy in {"base", *policies}
    ]
    if len(chosen) > _MOST_CONFIGURATIONS:
        raise UserError(
            f"{len(chosen)} configurations: one run simulates {_MOST_CONFIGURATIONS} at most",
            hint="name fewer machines with --machine, or pages with --policy",
        )
    sizes = sorted({page.bytes.bit_length() - 1 for _, page in chosen if page.bytes >> _REGION})
    configurations = [described[name].configuration(page) for name, page in chosen]
    asked = {"sizes": sizes, "configurations": configurations, "laid": laid and laid.asked()}
    traced = trace.run(program, asked, begin, laid and laid.environment())
    timed, times = (None, {}) if runs is None else timing.judge(runs, traced, chosen)
    answer = traced.answer
    if len(answer.configurations) != len(chosen):
        raise UserError(
            f"the plugin answers {len(answer.configurations)} of {len(chosen)} questions", hint="make setup"
        )
    return Prediction(
        format=FORMAT,
        command=tuple(command),
        architecture=answer.target,
        status=traced.status,
        emulator=program.emulator,
        traced_s=round(traced.seconds, 3),
        instructions=answer.instructions,
        accesses=answer.accesses,
        records=answer.records,
        threads=answer.threads,
        touched_bytes=answer.touched << 12,
        rows=tuple(rows(chosen, answer, times)),
        machines=described,
        limits=limits(traced, described.values()),
        timing=timed,
    )


def rows(
    chosen: Sequence[tuple[str, Page]], answer: trace.Answer, times: Mapping[timing.Key, line.Interval] | None = None
) -> Iterable[Row]:
    """Yield a row for each machine, base page and name of a page, over its variants; in the order of `chosen`."""
    grouped: dict[tuple[str, str, str], list[tuple[Page, trace.Counts]]] = {}
    for (machine, page), counts in zip(chosen, answer.configurations, strict=True):
        grouped.setdefault((machine, page.granule, page.name), []).append((page, counts))
    sizes = {size.shift: size for size in answer.sizes}
    for (machine, granule, name), variants in grouped.items():
        page = variants[0][0]
        all_counts = [counts for _, counts in variants]
        walks = [walked for counts in all_counts for walked in (counts.lru, counts.random)]
        yield Row(
            machine=machine,
            page=name,
            base=granule.upper(),
            policy=page.policy,
            l1_misses_pki=_band([counts.l1_misses for counts in all_counts], answer.instructions),
            misses_pki=_band([each.misses for each in walks], answer.instructions),
            steps_pki=_band([step for each in walks for step in each.steps], answer.instructions),
            memory=_memory(page, sizes.get(page.bytes.bit_length() - 1), answer.touched),
            seconds=(times or {}).get((machine, granule, name)),
        )


def _band(counts: Sequence[int], instructions: int) -> Band:
    return Band(min(counts) * 1000 / instructions, max(counts) * 1000 / instructions)


def _memory(page: Page, size: trace.Size | None, touched: int) -> Memory | None:
    if size is None:
        return None
    whole = size.touched * page.bytes
    needed = None if size.needed is None or page.policy == "base" else size.needed * page.bytes
    return Memory(whole, whole - (touched << 12), needed)


def limits(traced: trace.Traced, described: Iterable[Machine]) -> tuple[str, ...]:
    """Return what the trace did not see, in sentences; the general ones last."""
    answer = traced.answer
    children = "a child, which was" if answer.forks == 1 else f"{answer.forks} children, which were"
    other = {"x86_64": "arm64", "aarch64": "x86-64"}[answer.target]
    said = (
        (traced.status, f"The program {trace.ended(traced.status)}: what it did until then was traced."),
        (answer.forks, f"The program forked {children} not traced."),
        (answer.untraced, f"{answer.untraced} threads were not traced: a run has 1,024 at most at a time."),
        (answer.threads > 1, f"Each of the {answer.threads} threads has a TLB of its own."),
        (
            any(each.architecture == other for each in described),
            f"The program is for {answer.target}: its instructions and memory on {other} differ, and with a compiler "
            "that works while the program runs (JIT) they differ more.",
        ),
    )
    return (
        *(sentence for holds, sentence in said if holds),
        "The kernel's own accesses, other processes and instruction fetches are not in the trace.",
        "All memory is taken to be in pages of the row's size: the misses of huge pages are the least they can be.",
        "The stream of addresses is that of a kernel with base pages of this host: allocators may ask for their size.",
    )
