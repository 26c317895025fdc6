"""The scan of `hugewise inspect` against the kernel's own tools/mm/thpmaps, where HUGEWISE_THPMAPS names it, and a
plain reader of every entry and every flag.

Of stopped processes of 4 GiB (HUGEWISE_INSPECT_BYTES) in four layouts, in rounds that interleave the readers; ratios of
medians within one run. First the totals must be equal: a fast answer that is another one is none. thpmaps' time is that
of its process, as is the probe's; "scan" is what the probe says of itself. Last, what a look costs who is looked at:
turns of mmap, touch and munmap of a process of base pages, with looks one after the other and without.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hugewise.machine import probe

HERE = Path(__file__).parent
BUILD = HERE.parent / ".bench"
BYTES = 4 << 30
ROUNDS = 5
LAYOUTS = ("base", "pmd", "split", "mixed")
TARGETS = {("base", "probe"): 0.45, ("pmd", "scan"): 0.01}
_LINE = re.compile(r"(anon|file)-thp-(pmd|pte)-(aligned|unaligned|partial)(?:-([0-9]+)kB)?: +([0-9]+) kB")
Took = dict[str, list[float]]


@contextmanager
def held(program: Path, layout: str, size: int) -> Iterator[subprocess.Popen[str]]:
    """Yield the process, when it has its memory."""
    process = subprocess.Popen([program, layout, str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{layout}: it has ended"
        yield process
    finally:
        process.kill()
        process.communicate()


def folios(pid: int, *options: str) -> probe.MappedFolios:
    told = probe.ask("folios", "--pid", str(pid), *options)
    assert isinstance(told, probe.MappedFolios), told
    return told


def states(one: probe.MappedFolios) -> Counter[str]:
    """Return bytes by `kind:size:state`."""
    return sum((Counter(dict(mapping.bytes)) for mapping in one.mappings), Counter())


def thpmaps_keys(found: Counter[str], pmd: int) -> Counter[str]:
    """Return the counts by what thpmaps tells apart: no single pages, no pools, shared memory as files."""
    told: Counter[str] = Counter()
    for key, size in found.items():
        kind, folio, state = key.split(":")
        if kind != "hugetlb" and int(folio) > 2 * os.sysconf("SC_PAGE_SIZE"):
            of = "anon" if kind == "anon" else "file"
            told[f"{of}:{'' if state == 'partial' else pmd if state == 'pmd' else folio}:{state}"] += size
        elif kind != "hugetlb" and int(folio) > os.sysconf("SC_PAGE_SIZE") and state == "partial":
            told["file::partial"] += size  # thpmaps has no line for whole folios of two pages
    return told


def by_thpmaps(text: str) -> Counter[str]:
    """Return the output of thpmaps --rollup, under the same keys."""
    told: Counter[str] = Counter()
    for of, by, state, folio, kib in _LINE.findall(text):
        told[f"{of}:{folio and int(folio) << 10}:{'pmd' if by == 'pmd' else state}"] += int(kib) << 10
    return told


def timed(command: Sequence[str | Path]) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def compared(pid: int, rounds: int, thpmaps: Path | None) -> Took:
    """Measure the seconds of each reader."""
    tool: list[str | Path] = [probe.find(), "folios", "--pid", str(pid)]
    readers: dict[str, Callable[[], float]] = {
        "plain": lambda: timed([*tool, "--plain"])[0],
        "probe": lambda: timed(tool)[0],
        "scan": lambda: folios(pid).scan_ns / 1e9,
    }
    if thpmaps is not None:
        command: list[str | Path] = [sys.executable, thpmaps, "--pid", str(pid), "--rollup"]
        readers["thpmaps"] = lambda: timed(command)[0]
    took: Took = {name: [] for name in readers}
    names = list(readers)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took[name].append(readers[name]())
    return took


def show(layout: str, took: Took) -> list[str]:
    """Return a line for each reader, with its ratio to thpmaps (without it: to the plain reader), and the target."""
    middle = {name: statistics.median(times) for name, times in took.items()}
    peer = "thpmaps" if "thpmaps" in middle else "plain"
    lines = []
    for name, seconds in middle.items():
        ratio = seconds / middle[peer]
        line = f"  {layout:<6} {name:<8} {seconds * 1e3:>9.2f} ms   {ratio:>7.4f} of {peer}"
        target = TARGETS.get((layout, name)) if peer == "thpmaps" else None
        if target is not None:
            line += f", target at most {target:g} -> {'met' if ratio <= target else 'MISSED'}"
        lines.append(line)
    return lines


def same(pid: int, thpmaps: Path | None) -> str | None:
    """Return how the readers differ, or None where all find the same."""
    fast, plain = states(folios(pid)), states(folios(pid, "--plain"))
    if fast != plain:
        return f"the scan and the plain reader differ: {fast - plain} {plain - fast}"
    if thpmaps is not None:
        pmd = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
        theirs = by_thpmaps(timed([sys.executable, thpmaps, "--pid", str(pid), "--rollup"])[1])
        if theirs != (mine := thpmaps_keys(fast, pmd)):
            return f"the scan and thpmaps differ: {mine - theirs} {theirs - mine}"
    return None


def disturbed(program: Path, size: int, seconds: float, look: bool) -> tuple[int, float, float]:
    """Turns of the process in so many seconds, and milliseconds that the longest and the 99.9th percentile took."""
    with held(program, "churn", size) as process:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not look:
                time.sleep(left)
                break
            subprocess.run(
                [sys.executable, "-c", "from hugewise.cli.main import main; main()", "inspect", str(process.pid)],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        out, _ = process.communicate()
    turns, longest, late = map(int, out.split())
    return turns, longest / 1e6, late / 1e6


def built(compiler: str) -> Path:
    """Build the program."""
    BUILD.mkdir(exist_ok=True)
    subprocess.run([compiler, "-O1", "-Wall", "-o", BUILD / "held", HERE / "held.c"], check=True)
    return BUILD / "held"


def main(rounds: int = ROUNDS, size: int = int(os.environ.get("HUGEWISE_INSPECT_BYTES", BYTES))) -> int:
    """Measure and print. 1 where a requirement is missing or totals differ: a busy machine is no failure."""
    print(f"Looking at a process of {size >> 20} MiB: which page sizes back it")
    named = os.environ.get("HUGEWISE_THPMAPS")
    thpmaps = Path(named) if named else None
    if os.geteuid() != 0:
        print("requires: root (page flags)")
        return 1
    if (compiler := shutil.which("cc")) is None:
        print("requires: cc (apt install gcc)")
        return 1
    program, status = built(compiler), 0
    for layout in LAYOUTS:
        with held(program, layout, size) as process:
            os.kill(process.pid, signal.SIGSTOP)
            if (difference := same(process.pid, thpmaps)) is not None:
                print(f"  {layout}: {difference}")
                status = 1
            print("\n".join(show(layout, compared(process.pid, rounds, thpmaps))))
            called = [sys.executable, "-c", "from hugewise.cli.main import main; main()", "inspect", str(process.pid)]
            whole, _ = timed(called)
            print(f"  {layout:<6} hugewise inspect, whole: {whole * 1e3:.0f} ms")
    for look in (False, True):
        turns, longest, late = disturbed(program, size, 5, look)
        how = "looks one after the other" if look else "nobody looks"
        print(f"  {how}: {turns} turns of mmap and munmap, p99.9 {late:.3f} ms, longest {longest:.1f} ms")
    if thpmaps is None:
        print("  for totals and targets against the kernel's own: HUGEWISE_THPMAPS=.../tools/mm/thpmaps make bench")
    return status


if __name__ == "__main__":
    sys.exit(main())
