"""The cases of torture: SIGKILL at any moment of a run or a recovery, no room, no memory, servers that die, and others.

After each the machine must be as it was, what was accepted must be there, and what is said must be an error with a
cure. The soak is a long run of many short attempts in one process: its memory and its descriptors must stay what they
are. It is sampled from outside, from /proc/PID/smaps_rollup, fd and task: anonymous and resident memory of the hugewise
process alone. Proportional memory grows by 8% in three minutes as other Python programs of the machine end, with which
the pages of libraries were shared.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import linear_regression, median

import msgspec

from hugewise.errors import HugewiseError
from hugewise.files import own
from hugewise.host import cgroup
from hugewise.host.journal import JOURNAL
from hugewise.quantity import format_duration
from tools.torture import subject, traces
from tools.torture.context import PAGE, CaseContext, alone, enlarge, small
from tools.torture.subject import CommandEnded, Subject, small_study, write_study

# A run of the small study takes some 70 pages until it has ended, and some 600 with its report.
_RUN_PAGES, _REPORT_PAGES = 80, 600
_JOURNAL_PAGES = 6
_SCRATCH = 128 << 20
_WEEK_S = 7 * 86_400
_MIB = 1 << 20


def no_room_for_results(rack: CaseContext, text: str) -> None:
    """Results go to a file system with room for a number of pages that is drawn: three of four while it measures."""
    least, most = (1, _RUN_PAGES) if rack.draws.share("part") < 0.75 else (_RUN_PAGES, _REPORT_PAGES)
    pages = int(rack.draws.between("pages", least, most))
    with small(rack.results, pages * PAGE):
        ended = rack.did(rack.subject.run(*rack.words(rack.study(text))))
        rack.found.did = f"{pages} pages of room for results"
        rack.clear(ended, 0, 1)
        rack.same()
        had = rack.had()
        enlarge(rack.results)
        rack.keeps(had)
        _on_with_it(rack)
        if rack.found.faults:
            shutil.copytree(rack.results, rack.work / "results-then", symlinks=True)


def no_room_for_the_journal(rack: CaseContext, text: str) -> None:
    """Run with a journal's folder that has room for a few pages alone; then the run must be restored."""
    pages = 1 + int(rack.draws.between("pages", 0, _JOURNAL_PAGES))
    rack.found.did = f"{pages} pages of room for the journal"
    with alone(rack.work, JOURNAL.parent, pages * PAGE) as enter:
        rack.subject.before = enter
        rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(text)))), 0, 1)
        rack.restore()
        rack.subject.before = ()
    rack.same()
    _on_with_it(rack)


def no_room_for_scratch(rack: CaseContext, text: str) -> None:
    """Fill the place of private folders, but for some bytes, at a random moment."""
    place = rack.work / "scratch"
    left = int(rack.draws.between("left", 0, 4 * PAGE))
    moment = rack.draws.between("moment", 0, rack.life)
    rack.found.did = f"scratch is full but for {left} bytes after {moment:.1f} s"

    def fill(run: subprocess.Popen[bytes]) -> None:
        with suppress(subprocess.TimeoutExpired):
            run.wait(moment)
        free = os.statvfs(place)
        with suppress(OSError), (place / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - left))

    with small(place, _SCRATCH):
        placed = text.replace('timeout = "', f'storage = "{place}"\ntimeout = "')
        rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(placed)), beside=fill)), 0, 1)
        (place / "filler").unlink(missing_ok=True)
        rack.same()
        rack.found.differences += [f"{path} was left" for path in place.iterdir()]
        _on_with_it(rack)


def little_address_space(rack: CaseContext, text: str) -> None:
    """Limit the run's address space, so that malloc and mmap fail with ENOMEM (RLIMIT_AS, setrlimit(2))."""
    rack.subject.address = int(rack.draws.between("size", 100, 1200)) * _MIB
    rack.found.did = f"{rack.subject.address // _MIB} MiB of address space"
    _starved(rack, rack.subject.run(*rack.words(rack.study(text))))


def little_memory(rack: CaseContext, text: str) -> None:
    """Run in a memory cgroup that is too small: the kernel kills one of its processes, or the run itself."""
    size = int(rack.draws.between("size", 30, 300)) * _MIB
    rack.found.did = f"{size // _MIB} MiB of memory"
    with _group(size) as folder:
        rack.subject.groups = [folder / "cgroup.procs"]
        ended = rack.subject.run(*rack.words(rack.study(text)))
        rack.subject.groups = ()
        _starved(rack, ended)
        traces.end_all()
        with suppress(OSError):
            folder.rmdir()
        if folder.exists():
            rack.found.differences.append(f"there is something left in {folder}")


def _starved(rack: CaseContext, ended: CommandEnded) -> None:
    rack.did(ended)
    rack.subject.address = None
    had = rack.had()
    if ended.status < 0 or _in_the_interpreter(rack, ended):
        rack.restore()
    else:
        rack.clear(ended, 0, 1)
    rack.same()
    rack.keeps(had)
    _on_with_it(rack)


def _in_the_interpreter(rack: CaseContext, ended: CommandEnded) -> bool:
    """Return whether the command ended while Python imported it, before hugewise could report a reason."""
    return ended.status != 0 and rack.run is None


def starved_server(rack: CaseContext, text: str) -> None:
    """Give the servers less memory than they need: the kernel kills them, and their attempts are no measurements."""
    size = int(rack.draws.between("size", 4, 24))
    rack.found.did = f"servers with {size} MiB of memory"
    limited = text.replace('timeout = "', f'memory = "{size}m"\ntimeout = "').replace("keys = 2000", "keys = 400000")
    rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(limited)))), 0, 1)
    rack.same()
    if traces.accepted(rack.had()):
        rack.broke("attempts were accepted whose servers had too little memory")


def silent_server(rack: CaseContext, text: str) -> None:
    """Stop a server at a random moment of its life, so that it says nothing any more."""
    which, moment = int(rack.draws.between("which", 1, 5)), rack.draws.between("moment", 0, 1.2)
    rack.found.did = f"server {which} of the run is stopped {moment:.2f} s after its start"

    def stop(run: subprocess.Popen[bytes]) -> None:
        seen: set[int] = set()
        while run.poll() is None and len(seen) < which:
            fresh = {pid for pid, name in traces.descendants().items() if name in ("redis-server", "memcached")}
            if fresh - seen:
                seen |= fresh
            time.sleep(0.005)
        with suppress(subprocess.TimeoutExpired):
            run.wait(moment)
        for pid in seen & traces.descendants().keys():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                rack.found.kills += 1

    rack.clear(rack.did(rack.subject.run(*rack.words(rack.study(text)), beside=stop)), 0)
    rack.same()
    if (run := rack.run) is None:
        rack.broke("there is no run")
    else:
        _, repeated, other = traces.whole(run, {})
        rack.found.broken += [*repeated, *other]


def another_clock(rack: CaseContext, text: str) -> None:
    """Killed, and resumed where the clocks that count since boot show a week more, or almost nothing.

    In a time namespace (time_namespaces(7)): the clock of the machine is never touched, and the time of day has none.
    """
    uptime = int(float(Path("/proc/uptime").read_text().split()[0]))
    offset = rack.draws.one_of("offset", (_WEEK_S, 10 - uptime))
    rack.found.did = f"resumed with the clocks since boot moved by {offset} s"
    moment = rack.draws.between("moment", rack.life / 4, 0.8 * rack.life)
    rack.found.kills = int(rack.did(rack.subject.kill_after(moment, *rack.words(rack.study(text)))).hit)
    rack.restore()
    rack.subject.before = ("unshare", "--time", "--monotonic", str(offset), "--boottime", str(offset))
    rack.resume()
    rack.subject.before = ()
    rack.same()


def _on_with_it(rack: CaseContext) -> None:
    """Resume the run now that it can go on."""
    if rack.resume():
        rack.same()


@contextmanager
def _group(size: int) -> Iterator[Path]:
    """Yield a memory cgroup of at most `size` bytes, beside those of runs."""
    found = cgroup.find()
    folder = found.get("memory", found.get("2", Path("/"))) / f"torture-{os.getpid()}"
    folder.mkdir()
    try:
        name = "memory.max" if (folder / "memory.max").exists() else "memory.limit_in_bytes"
        (folder / name).write_text(str(size))
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def limits_memory() -> bool:
    """Return whether a cgroup made here would limit memory."""
    try:
        with _group(1 << 40):
            return True
    except OSError:
        return False


POOL_MIB = 1024
_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
_TRIES = 10
_RESTORE_S = 0.5  # about its life, most of it Python's start

# Verbs that restore the machine after the kill; killed ones are followed by one that is not.
_RECOVERIES = (
    *(("restore",),) * 6,
    *(("restore killed", "restore"),) * 4,
    *(("resume",),) * 3,
    *(("resume killed", "restore"),) * 3,
    *(("resume killed", "resume"),) * 2,
    *(("run",),) * 2,
)


def anywhere(rack: CaseContext, text: str) -> None:
    """Kill a run of the study at a moment that is drawn from its whole life."""

    life = rack.life

    def kill(draw: int) -> CommandEnded:
        nonlocal life
        moment = rack.draws.between(f"moment {draw}", 0, life)
        ended = rack.subject.kill_after(moment, *rack.words(rack.study(text)))
        life = life if ended.hit else ended.seconds  # the machine is quicker now than when it was measured
        return ended

    _killed(rack, kill)


def while_the_pool_changes(rack: CaseContext, text: str) -> None:
    """Kill a run as the kernel fills its pool (three of five) or empties it: at a number of pages that is drawn."""
    had = int(_POOL.read_text())
    pages = POOL_MIB // 2

    def kill(draw: int) -> CommandEnded:
        goal = had + int(rack.draws.share(f"pages {draw}") * pages)
        empties = rack.draws.share(f"empties {draw}") < 0.4
        descriptor, seen = os.open(_POOL, os.O_RDONLY), had

        def reached() -> bool:
            nonlocal seen
            now = int(os.pread(descriptor, 32, 0))
            seen = max(seen, now)
            return seen > had and (seen > goal and now <= goal if empties else now > goal)

        try:
            return rack.subject.kill_when(reached, *rack.words(rack.study(text)))
        finally:
            os.close(descriptor)

    _killed(rack, kill)


def _killed(rack: CaseContext, kill: Callable[[int], CommandEnded]) -> None:
    """Kill, recover as drawn, and compare everything with the state before."""
    for draw in range(_TRIES):
        ended = rack.did(kill(draw))
        if ended.hit:
            break
        # Drawn again: it was over before the kill, or somebody else has the memory that its pool needs.
        rack.clear(ended, 0, 1)
        rack.same()
        if rack.results.exists():
            rack.results.rename(rack.work / f"over-{draw}")
    else:
        rack.broke(f"it could not be killed: {ended.told()}")
    rack.found.kills = int(ended.hit)
    rack.found.turned = len(traces.differences(rack.before, rack.work))
    had = rack.had()
    for verb in rack.draws.one_of("recovery", _RECOVERIES):
        _recover(rack, verb)
    rack.keeps(had)
    rack.same()
    if rack.owed and not rack.found.resumed and rack.resume():
        rack.same()


def _recover(rack: CaseContext, verb: str) -> None:
    """Restore the machine in one of the ways in which that happens."""
    if verb == "restore":
        rack.restore()
    elif verb == "restore killed":
        moment = rack.draws.between(verb, 0, _RESTORE_S)
        rack.found.recovery_kills += rack.did(rack.subject.kill_after(moment, "restore")).hit
    elif verb == "run":
        words = ("run", rack.study(subject.small_study()), "--results", str(rack.work / "next"))
        rack.clear(rack.did(rack.subject.run(*words)), 0)
    elif verb == "resume killed":
        if rack.resumable:
            moment = rack.draws.between(verb, 0, rack.life)
            rack.found.recovery_kills += rack.did(rack.subject.kill_after(moment, "resume", str(rack.run))).hit
    elif not rack.resume():
        rack.restore()  # nothing was begun, or all was done


FLAT = 0.05
_WARM_UP = 0.2  # share of the samples: imports, the first blocks, caches of the allocator
_WINDOWS = 10
_MOST_SAMPLES = 1800


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity after warm-up, in windows of a tenth; growth and peak are shares of the level.

    level   that of the first window: the median of memory; the most of what is counted, which comes and goes
    growth  by the line through the levels of the windows, from the first to the last
    peak    the largest value of any later window beyond the largest of the first
    """

    what: str
    unit: str
    level: float
    growth: float
    peak: float

    @property
    def flat(self) -> bool:
        """Within 5%, in its slope and in its largest value."""
        return self.growth <= FLAT and self.peak <= FLAT


class Soaked(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a soak: `soak.json` in the torture's folder."""

    seconds: float
    attempts: int
    samples: int
    found: tuple[Sampled, ...]
    said: str
    differences: list[str]

    @property
    def passed(self) -> bool:
        """True if all is flat, and the run ended as it should with nothing left behind."""
        return not self.differences and not self.said and all(one.flat for one in self.found)


def soak(folder: Path, seconds: float, command: Sequence[str], listener: Callable[[str], None]) -> Soaked:
    """Have a run measure for so long. Raises HugewiseError."""
    traces.adopt()
    own(folder, f"--results {folder}")
    work = folder.resolve() / "soak"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subject = Subject(command, work)
    if (first := subject.run("restore")).status:
        raise HugewiseError(first.told(), hint="hugewise restore")
    before, rows = traces.look(work), []

    def sample(run: subprocess.Popen[bytes]) -> None:
        pause, said = max(1.0, seconds / _MOST_SAMPLES), 0
        begin = time.monotonic()
        while run.poll() is None and time.monotonic() - begin < seconds:  # afterwards it writes its report
            with suppress(OSError, KeyError):
                rows.append(_row(run.pid))
            if rows and (tenth := int(10 * (time.monotonic() - begin) / seconds)) > said:
                said = tenth
                listener(f"{10 * tenth}%: {rows[-1][0] / _MIB:.1f} MiB anonymous, {rows[-1][2]:.0f} descriptors")
            with suppress(subprocess.TimeoutExpired):
                run.wait(pause)

    study = str(write_study(work, small_study(blocks=100_000)))
    words = ("run", study, "--time", f"{seconds:.0f}s", "--results", str(work / "results"))
    ended = subject.run(*words, beside=sample)
    run = traces.only_run(work / "results")
    soaked = Soaked(
        seconds=ended.seconds,
        attempts=len(traces.stored(run)),
        samples=len(rows),
        found=judge(rows),
        said=ended.told() if ended.status else "",
        differences=traces.remaining(before, work),
    )
    (folder / "soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(soaked), indent=1))
    if soaked.passed:
        shutil.rmtree(work)
    return soaked


_WHAT = (("memory, anonymous", "B"), ("memory, resident", "B"), ("descriptors", ""), ("threads", ""))


def _row(pid: int) -> tuple[float, ...]:
    said = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    sizes = [float(said[name].split()[0]) * 1024 for name in ("Anonymous", "Rss")]
    return (*sizes, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208


def judge(rows: Sequence[Sequence[float]]) -> tuple[Sampled, ...]:
    """Judge the samples after warm-up. Raises HugewiseError where they are too few."""
    warm = rows[int(_WARM_UP * len(rows)) :]
    if len(warm) < 3 * _WINDOWS:
        raise HugewiseError(f"{len(rows)} samples are too few to judge", hint="soak for longer: --soak 2m")
    return tuple(_sampled(what, unit, [row[n] for row in warm]) for n, (what, unit) in enumerate(_WHAT))


def _sampled(what: str, unit: str, values: Sequence[float]) -> Sampled:
    size = len(values) / _WINDOWS
    windows = [values[int(n * size) : int((n + 1) * size)] for n in range(_WINDOWS)]
    levels = [median(window) if unit else max(window) for window in windows]
    return Sampled(
        what=what,
        unit=unit,
        level=levels[0],
        growth=linear_regression(range(_WINDOWS), levels).slope * (_WINDOWS - 1) / levels[0],
        peak=max(map(max, windows[1:])) / max(windows[0]) - 1,
    )


def lines(soaked: Soaked) -> Iterator[str]:
    """Yield the result, a line a quantity."""
    for one in soaked.found:
        level = f"{one.level / _MIB:.1f} MiB" if one.unit == "B" else f"{one.level:g}"
        outcome = "flat" if one.flat else "NOT flat"
        yield f"{one.what}: {level}, slope {100 * one.growth:+.2f}%, peak {100 * one.peak:+.2f}%: {outcome}"
    for line in filter(None, (soaked.said, *soaked.differences)):
        yield f"BROKEN: {line}"
    yield f"{soaked.attempts} attempts in {format_duration(soaked.seconds)}, {soaked.samples} samples"
