"""One run of a command that does not count: whether attempts of the command can take turns.

The command runs once, as the baseline does, and nothing is frozen. What the command has open, how much of the time a
thread of the command could run, and which files are written are sampled meanwhile. The decision is made before the
first coin of a run is tossed.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

import msgspec

from hugewise import processes
from hugewise.attempt import outcome
from hugewise.attempt.driver import CommandDriver
from hugewise.attempt.launching import untimed_spec
from hugewise.attempt.under_test import memory_bytes
from hugewise.errors import ProbeError
from hugewise.files import storing
from hugewise.host import cgroup
from hugewise.host.local_host import is_caller
from hugewise.host.local_machine import LocalMachine
from hugewise.inspection.allocator import BY_CLOCK, allocator_of
from hugewise.machine import probe
from hugewise.machine.machine import Running, read_events, run_launchers
from hugewise.machine.proc import meminfo
from hugewise.model.design import Slicing
from hugewise.model.workload import Direct
from hugewise.plan import memory
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration, readable_size
from hugewise.visible import printable

_PERIOD_S, _SLOW_PERIOD_S, _FAST_FOR_S = 0.01, 0.1, 10.0  # of samples: the second period after so many seconds
_FEWEST_SLICES = 10
_BUSY = 0.9  # the least share of samples with a thread that could run
_PARALLEL = 0.01  # the most, with two such threads, of a program whose CPU time is its time
_ONE_CPU = 1.02  # CPU time over wall time of such a program, at most
_FEW_SAMPLES = 10
_MEMORY_EVERY = 5  # samples, of which one asks for memory and locks
_MOST_OPEN = 1024  # descriptors of a process that are looked at
_TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108  (programs have names of their own there)
_LONGEST_PATH, _LONGEST_TOLD = 4096, 200
_MOST_FILES = 10_000
_NO_FILE = (
    "/dev/null",
    "/dev/tty",
    "/dev/pts/",
    "/proc/",
    "/sys/",
    "/memfd:",
    "/anon_hugepage",
    "pipe:",
    "socket:",
    "anon_inode:",
)


@dataclass
class Samples:
    """Counts and files that were sampled while a command ran.

    count     samples in which a process was there; `busy`: in which a thread could run, `parallel`: two or more
    most      bytes that its processes had at most
    written   files that a process had open for writing
    refused   why a process may notice that it was frozen (`cgroup.unfreezable_reason`)
    """

    count: int = 0
    busy: int = 0
    parallel: int = 0
    most: int = 0
    written: set[str] = field(default_factory=set)
    refused: str | None = None


@dataclass(frozen=True)
class Suitability:
    """A decision on the attempts of a command.

    refused     why the attempts cannot take turns; None when they can
    one_thread  one thread that never waits: the CPU time of the command is the time that a CPU of its own would take
    by_clock    its allocator, where that gives memory back by the clock
    seconds     what its one run took, with its start; None where it was not run, or did not end
    peak        bytes that its processes had at most; 0 where that is not known
    """

    refused: str | None = None
    one_thread: bool = False
    by_clock: str | None = None
    seconds: float | None = None
    peak: int = 0


def suitability(
    cell: Cell, machine: LocalMachine, outputs: Path, slicing: Slicing, *, cwd: str, longest: float
) -> Suitability:
    """Run the command of a cell once, for at most `longest` seconds, with its output in the folder `outputs`. Raises
    ProbeError, StorageError.
    """
    workload, arm = cell.workload, cell.arm(cell.baseline)
    assert isinstance(workload, Direct)
    outputs = outputs.resolve()
    start, who = workload.launch(arm.treatment, cell.given(arm)), cell.account
    inherited = os.environ if is_caller(who) else machine.environment
    driver = CommandDriver(account=who, inherited=inherited, cwd=cwd, cpus=cell.cpus)
    around = driver.surroundings(start.environment)
    if start.cwd is not None:
        around = around._replace(cwd=start.cwd)
    spec = untimed_spec(start.argv, around, outputs, "suitability", machine=machine, account=who, timeout=longest)
    spec = msgspec.structs.replace(spec, thp_disable=arm.treatment.thp_disable, announce=True)
    if start.stdin:
        spec = msgspec.structs.replace(spec, stdin=start.stdin)
    job, samples = probe.Job.below(outputs, "suitability", spec), Samples()
    here = Path(around.cwd)
    named = _named(start.argv, here)
    before = _modified(named, here)
    begun = time.monotonic()
    with storing(str(outputs)):
        run_launchers([(machine, job)], alongside=lambda launched: _sample(launched[0], job, machine, samples))
    seconds = time.monotonic() - begun
    own = {spec.stdout, spec.stderr}
    written = {path for path in samples.written if os.path.lexists(path) or not path.startswith(_TEMPORARY)}
    written |= {path for path, changed in _modified(named, here).items() if before.get(path) != changed}
    events = _events(job)
    usage, exited = outcome.last(events, probe.Usage), outcome.last(events, probe.Exit)
    if exited is not None and exited.timed_out:
        return Suitability(f"its first run has not ended after {format_duration(longest)}")
    if exited is None or exited.code not in start.success:
        return Suitability("its first run did not succeed")
    runtime = allocator_of(start.argv, spec.env)
    peak = max(samples.most, 0 if usage is None else usage.peak_bytes or 0)
    return Suitability(
        _refusal(samples, exited.wall_ns / 1e9, sorted(written - own), _room(peak, slicing.arms, machine), slicing),
        one_thread=samples.parallel <= _PARALLEL * samples.count and _cpu_s(usage) <= _ONE_CPU * exited.wall_ns / 1e9,
        by_clock=None if runtime is None or runtime.name not in BY_CLOCK else runtime.name,
        seconds=seconds,
        peak=peak,
    )


def _events(job: probe.Job) -> list[probe.Event]:
    """Read the launcher's events; none where the launcher was killed while it wrote."""
    with suppress(ProbeError):
        return read_events(job)
    return []


def _cpu_s(usage: probe.Usage | None) -> float:
    return math.inf if usage is None else usage.user_s + usage.system_s


def _named(argv: Sequence[str], folder: Path) -> set[str]:
    """Return the paths that words of a command may name in its folder: FILE, --option=FILE and -oFILE."""
    words = set(argv[1:])
    words |= {word.partition("=")[2] for word in words} | {word[2:] for word in words if word.startswith("-")}
    return {str(Path(folder, word)) for word in words if 0 < len(word) < _LONGEST_PATH}


def _refusal(samples: Samples, wall_s: float, kept: Sequence[str], room: str | None, slicing: Slicing) -> str | None:
    if samples.refused is not None:
        return samples.refused
    if kept:
        name = printable(kept[0])[:_LONGEST_TOLD]
        return f"it writes {name}, which the commands of all arms would write at the same time"
    if wall_s < _FEWEST_SLICES * slicing.length or samples.count < _FEW_SAMPLES:
        turn = format_duration(slicing.length)
        return f"it takes {format_duration(wall_s)}, less than {_FEWEST_SLICES} turns of {turn}"
    if samples.busy < _BUSY * samples.count:
        waits = 1 - samples.busy / samples.count
        return f"it waits {waits:.0%} of its time (for a disk, a clock, another program): a frozen program waits on"
    return room


def _room(peak: int, arms: int, machine: LocalMachine) -> str | None:
    """Return why the processes of all arms do not fit into memory at once, or None."""
    free = meminfo(machine.host).get("MemAvailable")
    if free is None or peak * arms <= memory.USABLE * free:
        return None
    return f"{arms} arms at once need {readable_size(peak * arms)}, and {readable_size(free)} are free"


def _sample(launcher: Running, job: probe.Job, machine: LocalMachine, samples: Samples) -> None:
    ending, begun = select.poll(), time.monotonic()
    root: int | None = None
    ending.register(launcher.fileno(), select.POLLIN)
    period = _PERIOD_S
    while not ending.poll(period * 1000):
        if root is None:
            start = outcome.last(_events(job), probe.Start)
            root = None if start is None else start.pid
            continue
        pids = [pid for pid in processes.tree(root) if probe.has_executed(pid)]
        runnable = sum(map(_runnable_threads, pids))
        samples.count += bool(pids)
        samples.busy += runnable > 0
        samples.parallel += runnable > 1
        samples.written |= {path for pid in pids for path in _written(pid)}
        samples.refused = samples.refused or cgroup.unfreezable_reason(pids)
        if samples.count % _MEMORY_EVERY == 1:
            samples.most = max(samples.most, memory_bytes(machine.host, pids))
            samples.refused = samples.refused or _locking(pids)
        if time.monotonic() - begun > _FAST_FOR_S:
            period = _SLOW_PERIOD_S


def _runnable_threads(pid: int) -> int:
    with suppress(OSError):
        threads = map(processes.stat, Path(f"/proc/{pid}/task").iterdir())
        return sum(thread is not None and thread.state == "R" for thread in threads)
    return 0


def _written(pid: int) -> Iterable[str]:
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        for link in itertools.islice((process / "fd").iterdir(), _MOST_OPEN):
            with suppress(OSError):
                target = str(link.readlink())
                if not target.startswith(_NO_FILE) and processes.is_open_for_writing(process, link.name):
                    yield target.removesuffix(" (deleted)")


def _locking(pids: Sequence[int]) -> str | None:
    # proc_locks(5)
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.replace("-> ", "").split()
            if len(words) > 5 and words[4].isdigit() and int(words[4]) in pids and not _named_after(*words[4:6]):
                return f"process {words[4]} holds a lock on a file: another arm would wait for a frozen process"
    return None


def _named_after(pid: str, file: str) -> bool:
    """Return whether a locked file that the process has open or mapped has the process's number as its name: no other
    process locks that file. The JVM has such a file (/tmp/hsperfdata_USER/PID). `file` is MAJOR:MINOR:INODE.
    """
    inode = file.rpartition(":")[2]
    with suppress(OSError):
        for link in itertools.islice(Path(f"/proc/{pid}/fd").iterdir(), _MOST_OPEN):
            with suppress(OSError):
                if link.readlink().name == pid and str(link.stat().st_ino) == inode:
                    return True
    with suppress(OSError):
        mapped = (line.split() for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines())
        return any(len(line) > 5 and line[4] == inode and Path(line[5]).name == pid for line in mapped)
    return False


def _modified(named: Iterable[str], folder: Path) -> Mapping[str, int]:
    found = {}
    with suppress(OSError), os.scandir(folder) as entries:
        named = [*named, *(entry.path for entry in itertools.islice(entries, _MOST_FILES))]
    for path in named:
        with suppress(OSError):
            status = Path(path).stat()
            if S_ISREG(status.st_mode):
                found[path] = status.st_mtime_ns
    return found
