"""A long run of many short attempts in one process: whether its memory and its descriptors stay what they are.

Sampled from outside, from /proc/PID/smaps_rollup, fd and task: anonymous and resident memory of the hugewise process
alone, its open descriptors and its threads. Not proportional memory: that grows by 8% in three minutes as other Python
programs of the machine end, with which the pages of libraries were shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression, median

import msgspec

from hugewise.errors import HugewiseError
from hugewise.files import own
from hugewise.quantity import format_duration
from hugewise.torture import descent, kept, studies, traces
from hugewise.torture.subject import Subject

__all__ = ["FLAT", "Sampled", "Soaked", "judge", "lines", "soak"]

FLAT = 0.05
_WARM_UP = 0.2  # of the samples: imports, the first blocks, caches of the allocator
_WINDOWS = 10
_MOST_SAMPLES = 1800
_MIB = 1 << 20


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
    """What was found: `soak.json` in the torture's folder."""

    seconds: float
    attempts: int
    samples: int
    found: tuple[Sampled, ...]
    said: str
    differences: list[str]

    @property
    def passed(self) -> bool:
        """Whether all is flat, and the run ended as it should with nothing left behind."""
        return not self.differences and not self.said and all(one.flat for one in self.found)


def soak(folder: Path, seconds: float, command: Sequence[str], listener: Callable[[str], None]) -> Soaked:
    """Have a run measure for so long. Raises HugewiseError."""
    descent.adopt()
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

    study = str(studies.write(work, studies.small(blocks=100_000)))
    words = ("run", study, "--time", f"{seconds:.0f}s", "--results", str(work / "results"))
    ended = subject.run(*words, beside=sample)
    run = kept.only_run(work / "results")
    soaked = Soaked(
        seconds=ended.seconds,
        attempts=len(kept.stored(run)),
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
    """One sample of each of `_WHAT`."""
    said = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    sizes = [float(said[name].split()[0]) * 1024 for name in ("Anonymous", "Rss")]
    return (*sizes, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208


def judge(rows: Sequence[Sequence[float]]) -> tuple[Sampled, ...]:
    """What the samples show after warm-up. Raises HugewiseError where they are too few."""
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
    """What was found, a line a quantity."""
    for one in soaked.found:
        level = f"{one.level / _MIB:.1f} MiB" if one.unit == "B" else f"{one.level:g}"
        outcome = "flat" if one.flat else "NOT flat"
        yield f"{one.what}: {level}, slope {100 * one.growth:+.2f}%, peak {100 * one.peak:+.2f}%: {outcome}"
    for line in filter(None, (soaked.said, *soaked.differences)):
        yield f"BROKEN: {line}"
    yield f"{soaked.attempts} attempts in {format_duration(soaked.seconds)}, {soaked.samples} samples"
