"""User CPU time of a program by the pages of its heap: timed runs on layouts, a line through them, and if it holds.

The layouts are base pages, three shares of the heap in huge pages, and all of it. Their runs take turns, so that a
drift of the machine reaches all of them. A time is given only where the others predict each layout. System time is left
out: huge pages save page faults too. The kernel tells user from system time by ticks, so that the share of all runs of
a layout counts.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from hugewise import processes
from hugewise.attempt.context import reported, undelivered
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint, loader, pmu
from hugewise.model.host import text_of
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.predict import line, trace
from hugewise.predict.machines import Page, load, names
from hugewise.quantity import format_duration

_QUARTERS: Mapping[str, tuple[int, int]] = {
    "base": (0, 0),
    "mosaic:0-25%=thp": (0, 1),
    "mosaic:50-100%=thp": (2, 4),
    "mosaic:25-100%=thp": (1, 4),
    "thp": (0, 4),
}
"""Layouts by their words, and the quarters of the heap that are huge pages."""

_UNIT = 8 << 20  # bytes, of which the heap is a multiple: four huge pages
_LEAST, _MOST = 3, 20  # runs of a layout
_WIDEST = 0.25
_LEAST_SAVED = 0.25  # of the faults that a heap of base pages has
_HUGE = 2 << 20  # bytes
_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"
_INPUT, _DISCARDED = Path("/dev/stdin"), Path("/dev/zero")
_CORES = {"sapphire-rapids": "golden-cove"}
_NEAREST = {"AuthenticAMD": "zen-5", "GenuineIntel": "golden-cove", "0x41": "neoverse-v2", "0xc0": "neoverse-n1"}

Entries = Literal["whole", "split"]
Key = tuple[str, str, str]


class Layout(msgspec.Struct, frozen=True):
    """A layout of the heap: user time of its runs, simulated events, and the time that the others predict (None:
    they do not tell).

    seconds  of each run: its CPU time, times the share of user time in all runs of the layout
    took     the lower quartile of them
    hits     in the second level of the TLB
    misses   of it: of base pages, and of huge ones
    """

    layout: str
    seconds: tuple[float, ...]
    took: float
    hits: int
    misses: tuple[int, int]
    predicted: line.Interval | None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Timed runs, and the line through them.

    why      why no time is predicted; None: it is
    host     the described machine that stands for this host; `known`: it is this host's processor
    entries  an entry of this host's TLB covers a huge page (whole), or a base page of it (split, as under a hypervisor
             without huge pages): what predicts the layouts better
    costs_ns of a miss of a base page, of a hit in the second level, and of a miss of a huge page; None: not in the line
    """

    why: str | None
    host: str | None = None
    known: bool = False
    heap_bytes: int | None = None
    entries: Entries | None = None
    layouts: tuple[Layout, ...] = ()
    costs_ns: tuple[float | None, ...] = ()


class Runs(NamedTuple):
    """The timed runs: bytes of the heap, and seconds by layout and round; the described machine that stands for this
    host, and whether it is its processor.
    """

    heap: int
    seconds: line.Numbers
    host: str
    known: bool

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the traced run, whose heap is laid out as those of the timed runs."""
        return loader.environment(_treatment("thp"), self.heap)

    def asked(self) -> dict[str, Any]:
        """Return what the plugin is asked for: the TLB with each kind of `Entries`, under each layout."""
        machine = load(self.host)
        pages = {page.size: page for page in reversed(machine.page) if page.granule == "4k"}
        base, huge = (machine.configuration(pages[size]) for size in ("4k", "2m"))
        tlbs = [{level: (base[level], other[level]) for level in ("l1", "l2")} for other in (huge, base)]
        ranges = [[[edge * self.heap // 4 for edge in each]] for each in _QUARTERS.values()]
        return {"heap": self.heap, "layouts": ranges, "tlbs": tlbs}


def here() -> tuple[str, bool]:
    """Return the described machine that stands for this host, and whether it is its processor."""
    cpu = fingerprint.fingerprint(LocalHost())["cpu"]
    family = pmu.of(cpu)
    name = "" if family is None else family.name.lower().replace(" ", "-")
    name = _CORES.get(name, name)
    return (name, True) if name in names() else (_NEAREST.get(str(cpu["vendor"]), "zen-5"), False)


def obstacle(program: trace.Program) -> str | None:
    """Return why the program cannot be timed on layouts, or None. Raises UserError."""
    machine = os.uname().machine
    if program.target != machine:
        return f"the program is for {program.target}, and this machine is {machine}"
    if (unreached := loader.unreached(program.command, _treatment("thp"))) is not None:
        return unreached
    enabled = text_of(LocalHost(), _ENABLED) or "[never]"
    if "[never]" in enabled:
        return "transparent huge pages are off (enabled=never): all layouts would be base pages"
    if "[always]" in enabled:
        return "memory outside of its heap is in huge pages, too (enabled=always): set enabled to madvise"
    if "," in loader.environment(_treatment("thp"), _UNIT)["LD_PRELOAD"]:
        return "QEMU cannot be given an LD_PRELOAD with a comma"
    if _INPUT.is_fifo() or _INPUT.is_socket():
        return "its input is a pipe, which can be read once: give it a file, or < /dev/null"
    return None


def run(program: trace.Program, seconds: float) -> Runs | str:
    """Run the program on each layout in turn, for so many seconds at most; or return why that is not possible."""
    if (why := obstacle(program)) is not None:
        return why
    host = here()
    begun = time.monotonic()
    end = begun + seconds
    with tempfile.TemporaryDirectory(prefix="hugewise-predict-") as made:
        first = _once(program, "base", 0, Path(made), end)
        if isinstance(first, str):
            return first
        heap = _UNIT * -(-first.peak // _UNIT)
        layouts, took = list(_QUARTERS), time.monotonic() - begun
        if (_LEAST + 1) * len(layouts) * took > seconds:
            wanted = format_duration((_LEAST + 2) * len(layouts) * took)
            return f"{_LEAST} runs of {len(layouts)} layouts take longer: give some {wanted} (--time)"
        taken: dict[str, list[_Ran]] = {layout: [] for layout in layouts}
        for turn in range(_MOST):
            done = time.monotonic()
            if turn >= _LEAST and end - done < 2 * (done - begun) / turn:
                break
            at = turn % len(layouts)
            for layout in (*layouts[at:], *layouts[:at]):
                ran = _once(program, layout, heap, Path(made), end)
                if isinstance(ran, str):
                    return f"{layout}: {ran}"
                taken[layout].append(ran)
    base, huge = (min(ran.faults for ran in taken[layout]) for layout in ("base", "thp"))
    saved, pages = max(base - huge, 0), heap // resource.getpagesize()
    if saved < _LEAST_SAVED * pages:  # huge pages save most faults of a heap
        return f"its heap was not in huge pages: they saved {saved:,} page faults, and its memory has {pages:,} pages"
    user, both = (np.array([[ran[at] for ran in runs] for runs in taken.values()]) for at in (0, 1))
    return Runs(heap, both * (user.sum(axis=1) / np.maximum(both.sum(axis=1), 1e-9))[:, np.newaxis], *host)


class _Ran(NamedTuple):
    user: float  # seconds
    both: float  # user and system time
    peak: int  # bytes
    faults: int  # pages that were touched


def _once(program: trace.Program, layout: str, heap: int, folder: Path, end: float) -> _Ran | str:
    """Run it once, and return what it took; or why the run does not count. It has the input of the traced run."""
    report, treatment = folder / "report", _treatment(layout)
    report.write_bytes(b"")
    given = {**os.environ, **loader.environment(treatment, heap), loader.REPORT: str(report)}
    at = os.lseek(0, 0, os.SEEK_CUR) if _INPUT.is_file() else None
    # Programs do less where their output is /dev/null, and so the output is discarded by another device: zero(4).
    with processes.ended(os.getuid()), _DISCARDED.open("wb") as discarded:
        started = subprocess.Popen(
            program.command,
            executable=program.path,
            env=given,
            stdin=trace.no_terminal(),
            stdout=discarded,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        handle = os.pidfd_open(started.pid)
        try:
            select.select([handle], [], [], max(0, end - time.monotonic()))
        finally:  # also after Ctrl-C; a process that has ended is not gone before it is waited for
            os.killpg(started.pid, signal.SIGKILL)
            os.close(handle)
            _, status, used = os.wait4(started.pid, 0)
            started.returncode = os.waitstatus_to_exitcode(status)
    if at is not None:
        os.lseek(0, at, os.SEEK_SET)  # for the next run
    if time.monotonic() > end:
        return "the runs do not end in time: give more --time"
    if started.returncode:
        return f"a timed run {trace.ended(started.returncode)}"
    if (why := undelivered(reported(folder), treatment)) is not None:
        return why
    # The peak is never below this process's own, as a child begins as a copy. Pages that were touched bound it too.
    peak = min(used.ru_maxrss << 10, used.ru_minflt * resource.getpagesize())
    return _Ran(used.ru_utime, used.ru_utime + used.ru_stime, peak, used.ru_minflt)


def _treatment(layout: str) -> Treatment:
    return Treatment(policy="as-is", mechanism="process", target=PageTarget("any", 4096), layout=layout)


def judge(
    runs: Runs | str, traced: trace.Traced, chosen: Sequence[tuple[str, Page]]
) -> tuple[Timing, Mapping[Key, line.Interval]]:
    """Return what the timed runs (or why there are none) and the simulated events say, and the times of the host's
    pages among the `chosen`, by machine, base page and name; none where a layout is not as the others predict it.
    """
    if isinstance(runs, str):
        return Timing(why=runs), {}
    answer, taken, fits = traced.answer, line.quartile(runs.seconds), []
    if answer.forks:
        return Timing(why="it forked, and its children were not traced"), {}
    if traced.status:
        return Timing(why=f"the traced run {trace.ended(traced.status)}"), {}
    kinds: tuple[Entries, ...] = get_args(Entries)
    if not answer.regions or len(answer.laid) != len(kinds) * len(_QUARTERS):
        return Timing(why="its heap could not be laid out under QEMU"), {}
    for kind, events in zip(kinds, np.array(answer.laid, float).reshape(len(kinds), len(_QUARTERS), 3), strict=True):
        columns = line.columns(events, answer.instructions)
        held = line.held_out(events, runs.seconds, columns)
        error = sum(
            math.inf if each is None else (each.value - took) ** 2 for each, took in zip(held, taken, strict=True)
        )
        fits.append((error, kind, events, held, line.fit(events, runs.seconds, columns)))
    _, kind, events, held, fitted = min(fits, key=lambda fit: fit[0])
    layouts = tuple(
        Layout(name, tuple(seconds), took, int(hits), (int(base), int(huge)), predicted)
        for name, seconds, took, (base, hits, huge), predicted in zip(
            _QUARTERS, runs.seconds.tolist(), taken.tolist(), events, held, strict=True
        )
    )
    known = {} if fitted is None else fitted.costs()
    timing = Timing(
        why=_doubt(layouts),
        host=runs.host,
        known=runs.known,
        heap_bytes=runs.heap,
        entries=kind,
        layouts=layouts,
        costs_ns=tuple(None if at not in known else round(1e9 * known[at], 4) for at in range(3)),
    )
    times: dict[Key, line.Interval] = {}
    own = [each for each in zip(chosen, answer.configurations, strict=True) if each[0][0] == runs.host]
    if timing.why is not None or fitted is None:
        return timing, times
    for (_, page), counts in own:
        seen = own[0][1] if kind == "split" else counts
        walks, hits = seen.lru.misses, seen.l1_misses - seen.lru.misses
        here = (walks, hits, 0) if page.policy == "base" else (0, hits, walks)
        found = fitted.at(here)
        # The layouts have base pages and pages of 2 MiB: what a walk of 64K pages costs is not known. Of variants the
        # first is the plain one.
        laid = page.granule == "4k" and (page.policy == "base" or page.bytes >= _HUGE)
        if laid and found.low > 0 and found.high - found.low <= 2 * _WIDEST * found.value:
            times.setdefault((runs.host, page.granule, page.name), found)
    return timing, times


def _doubt(layouts: Sequence[Layout]) -> str | None:
    """Return a sentence on a layout that the others do not predict, or predict wrong, the farthest off; or None."""
    outside, other = [], []
    for layout in layouts:
        took, held = layout.took, layout.predicted
        if held is None:
            other.append(f"without the layout {layout.layout} no layouts differ in misses")
            continue
        ends = f"{held.low:.4g} to {held.high:.4g} s"
        if held.value > 0 and not held.low <= took <= held.high:
            off = abs(took / held.value - 1)
            told = f"the layout {layout.layout} took {took:.4g} s, {off:.1%} off what the others predict ({ends})"
            outside.append((off, told))
        if held.value <= 0 or held.high - held.low > 2 * _WIDEST * held.value:
            told = f"the other layouts predict {layout.layout} too coarsely ({ends})"
            other.append(f"{told}: give more --time, or less other load")
    return max(outside)[1] if outside else next(iter(other), None)
