"""Pilot of a program as it is: its time, spread and memory, and the questions that cannot be answered. Pure but for the
outputs of the runs, which are compared.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev

import msgspec

from hugewise import reading
from hugewise.errors import UserError
from hugewise.model.trial import Attempt, Block
from hugewise.quantity import format_duration, readable_size
from hugewise.report import numbers
from hugewise.stats import power
from hugewise.visible import printable

_EMPTY = 64 << 20  # bytes, below which a server hardly holds the data that it serves
_SHORT_S = 0.02  # runs so short that starting a process is a large part
_MOST_SAID = 4 << 20  # bytes of an output that are compared
_LAST_SAID = 200  # characters of the last line of a program that failed
_POWER = 0.8
_ROOM = 1.5  # factor on the time of the fewest pairs
_FOLLOWED = 200  # pairs; more are said to show as much
_CLOCKED = 0.002  # pairs of a program that runs for a fixed time differ by less
_SMALLEST, _LARGEST, _STEPS = 0.05, 20.0, 9  # a bisection, to 1%
_SERVICE_HINT = (
    "start it by hand as it is written there: it stays in the foreground, takes {port} and {folder} from its command,"
    " and finds little of your environment (--environment NAME=VALUE); --ready says how it is known to be up"
)
_LOAD_HINT = (
    "the load must do its work and end with status 0 by itself, without a terminal, while the server stays up; try both"
    " by hand"
)
_LARGEST_BASE = 64 << 10  # bytes: no kernel has larger base pages


class ProgramAsIs(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it is.

    runs         how many there were, without `failed` ones
    wall_s       median, seconds; block_s: what a pair of runs took with all that is done around it
    sd           standard deviation of log(second/first) of the judged metric over pairs of the same; None where there
                 are too few
    coverage     mean bytes by `kind:page size`; where counters of the machine tell, those of the median run
    memory       bytes at its most
    faults       page faults of a run; None where nobody counted them
    same_output  whether every run said the same; None where that is not known
    forked       processes of a run that went on with a copy of their parent's memory (fork without exec), `executed`
                 programs that it began, `threads`, each the most of all runs; None where nobody followed it
    shared_bytes of the largest shared mapping that a server had, touched or not; None where nobody looked
    ended        of a service: processes of it whose children had ended when it was looked at, whatever these were
    """

    runs: int
    wall_s: float
    block_s: float
    sd: float | None
    coverage: dict[str, float]
    memory: int
    faults: float | None
    same_output: bool | None
    forked: int | None = None
    executed: int | None = None
    threads: int | None = None
    shared_bytes: int | None = None
    ended: int | None = None
    failed: int = 0

    @property
    def huge(self) -> float | None:
        """Share of its private memory that is in huge pages; None where no page was seen."""
        return _huge(self.coverage)

    @property
    def shared(self) -> float | None:
        """Share of its memory that is mapped shared, files of disks not counted; None where no page was seen."""
        total = sum(self.coverage.values())
        shared = sum(size for name, size in self.coverage.items() if name.startswith("shmem:"))
        return shared / total if total else None

    def pairs_in(self, seconds: float) -> int:
        """Return pairs of runs that fit into so much time."""
        return int(seconds / self.block_s) if self.block_s > 0 else 0

    def declared(self, seconds: float) -> int:
        """Return the pairs that a test of so much time is declared for: more than fit in, as the pilot is short."""
        return power.declared(self.pairs_in(seconds))

    def shown_in(self, seconds: float, alpha: float, copies: int) -> float | None:
        """Return the smallest change that so much time shows four times in five, averaged over the deviations that the
        pilot leaves possible; or None. `copies`: attempts of each setting in a block.
        """
        pairs, declared = min(self.pairs_in(seconds), _FOLLOWED), min(self.declared(seconds), 2 * _FOLLOWED)
        least = power.least_pairs(alpha, declared, copies)
        if self.sd is None or least is None or pairs < least:
            return None
        freedom = self.runs // 2 - 1

        def chance(shift: float) -> float:
            return power.averaged(lambda factor: power.power(shift * factor, pairs, alpha, declared, copies), freedom)

        low, high = math.log(_SMALLEST), math.log(_LARGEST)  # in standard deviations
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if chance(math.exp(middle)) >= _POWER else (middle, high)
        return math.expm1(math.exp(high) * self.sd)


def judge_pilot(
    blocks: Sequence[Block], folder: Path, seconds: float, metric: str = "wall_s", *, service: bool = False
) -> ProgramAsIs:
    """Judge the pilot, also by `metric`; a `service` ran its load. Raises UserError for what cannot be measured."""
    attempts = [one for block in blocks for one in block.attempts]
    ended = [one for one in attempts if one.state == "accepted" and one.wall_s is not None]
    failed = [one for one in attempts if one.state == "failed"]
    # A program that fails in a tenth of its runs sometimes fails in two of the first four.
    if failed and (service or len(failed) > len(ended) or len(failed) == len(ended) == 1):
        raise _failed(failed[0], seconds, "load" if service else "command", _last_words(folder, failed[0]))
    if not ended:
        raise never_ran(blocks, service=service) or _unmeasured("no run of it counted", service=service)
    whole = [block for block in blocks if block.state == "complete" and block.seconds is not None]
    pairs = [[value for one in block.attempts if (value := one.value(metric)) is not None] for block in whole]
    logs = [math.log(pair[1] / pair[0]) for pair in pairs if len(pair) == 2 and min(pair) > 0]
    faults = [one.metrics.get("lifetime_faults") for one in ended]
    known = [one for one in faults if one is not None]
    seen = [one.delivery.coverage for one in ended if one.delivery.coverage]
    if any(one.delivery.source == "counters" for one in ended):
        # Counters of the machine count the faults of other programs too, which come in some of the runs.
        seen = sorted(seen, key=lambda pages: _huge(pages) or 0.0)[(len(seen) - 1) // 2 :][:1]
    coverage: dict[str, float] = {}
    for of_run in seen:
        for name, size in of_run.items():
            coverage[name] = coverage.get(name, 0.0) + size / len(seen)
    return ProgramAsIs(
        runs=len(ended),
        failed=len(failed),
        wall_s=median(one.wall_s for one in ended if one.wall_s is not None),
        block_s=fmean(block.seconds or 0.0 for block in whole) if whole else 0.0,
        sd=stdev(logs) if len(logs) > 2 and stdev(logs) > 0 else None,
        coverage=coverage,
        memory=max((one.peak_bytes or 0 for one in ended), default=0),
        faults=fmean(known) if known else None,
        same_output=None if service else _same(folder, ended),  # a load tells of its own speed
        **{name: _most(ended, name) for name in ("forked", "executed", "threads", "ended", "shared_bytes")},
    )


def _huge(coverage: Mapping[str, float]) -> float | None:
    """Share of private memory that is in huge pages; None where no page was seen."""
    private = {int(name.partition(":")[2]): size for name, size in coverage.items() if name.startswith("anon:")}
    total = sum(private.values())
    return sum(size for page, size in private.items() if page > _LARGEST_BASE) / total if total else None


def never_ran(blocks: Sequence[Block], *, service: bool = False) -> UserError | None:
    """Return why no run of the program came to its clock, with the cure; None where one did, or nothing is known."""
    attempts = [one for block in blocks for one in block.attempts]
    if any(one.state in ("accepted", "failed") for one in attempts):
        return None
    told = [*(one.reason for one in attempts), *(why for block in blocks for why in block.unstarted.values())]
    why = next(filter(None, told), None)
    return None if why is None else _unmeasured(why, service=service)


def _unmeasured(why: str, *, service: bool) -> UserError:
    if service:
        return UserError(f"the service could not be measured: {why}", hint=_SERVICE_HINT)
    return UserError(f"the command could not be measured: {why}", hint="see it by itself: hugewise run --policy ...")


def _most(ended: Sequence[Attempt], name: str) -> int | None:
    counts = [one.begun.get(name) for one in ended]
    return None if None in counts else max(count for count in counts if count is not None)


def _failed(bad: Attempt, seconds: float, what: str, said: str) -> UserError:
    reason = bad.reason or "it failed"
    if bad.timed_out:
        hint = f"give more time than {format_duration(seconds)} (--time), or a shorter input: some 25 runs are needed"
        hint += "" if what == "load" else "; of a server, which does not end by itself: --server and --load"
        return UserError(f"the {what} does not end in time: {reason}", hint=hint)
    if what == "load":
        return UserError(f"the service fails under its load: {reason}", hint=_LOAD_HINT)
    hint = "it must end with status 0 by itself, without a terminal; give files by whole paths, and write to none twice"
    hint += " (clear what a run left: --prepare 'rm -f ...')"
    return UserError(f"the command fails: {reason}{said}", hint=hint)


def _attempt_folder(folder: Path, one: Attempt) -> Path:
    return folder / "attempts" / f"b{one.block:05d}-{one.order}-{one.arm}-{one.number}"


def _last_words(folder: Path, bad: Attempt) -> str:
    for name in ("stderr", "stdout"):
        try:
            told = reading.content(_attempt_folder(folder, bad) / name, 4 * _LAST_SAID, part="tail")
        except (reading.AbsentError, reading.UnreadableError):
            continue
        if lines := told.decode("utf-8", "replace").strip().splitlines():
            last = printable(lines[-1].strip())[-_LAST_SAID:]
            return "" if last in (bad.reason or "") else f"; it said: {last}"
    return ""


def _same(folder: Path, ended: Sequence[Attempt]) -> bool | None:
    digests = set(_outputs(folder, ended))
    return None if None in digests or not digests else len(digests) == 1


def _outputs(folder: Path, ended: Sequence[Attempt]) -> Iterator[str | None]:
    for one in ended:
        place = _attempt_folder(folder, one) / "stdout"
        try:
            yield hashlib.sha256(reading.content(place, _MOST_SAID, part="head")).hexdigest()
        except reading.AbsentError:
            yield ""
        except reading.UnreadableError:
            yield None


def needed(found: ProgramAsIs, seconds: float, alpha: float, spent: float, copies: int) -> str:
    """Return the `--time` that any verdict needs where `seconds` of confirmation are too few; else empty."""
    least = power.least_pairs(alpha, found.declared(seconds), copies)
    if least is not None and found.pairs_in(seconds) >= least:
        return ""
    fewest = least or power.least_pairs(alpha, power.MOST_DECLARED, copies) or 0
    return time_option(spent + fewest * _ROOM * found.block_s)


def time_option(seconds: float) -> str:
    """Return seconds as `--time` takes them, rounded up: to a minute above two, to an hour above three."""
    whole = math.ceil(seconds)
    if whole < 120:
        return f"{whole}s"
    return f"{math.ceil(whole / 60)}m" if whole <= 3 * 3600 else f"{math.ceil(whole / 3600)}h"


def time_remark(found: ProgramAsIs, seconds: float, alpha: float, copies: int) -> str:
    """Return a sentence on the change that `seconds` of confirmation show; empty where the pilot does not tell."""
    shown = found.shown_in(seconds, alpha, copies)
    if shown is None:
        return ""
    change = f"a change of {numbers.times(100 * shown)}% or more would be found 4 times in 5"
    return f"{change} in {format_duration(seconds)} ({found.pairs_in(seconds)} pairs of runs)"


def remarks(
    found: ProgramAsIs, *, service: bool = False, loaded: bool = False, uncounted: bool = False
) -> Iterator[str]:
    """Yield what stands in the way of an answer; `uncounted`: of a load that does not report its work."""
    if service and 0 < found.memory < _EMPTY:
        yield (
            f"the server has {readable_size(found.memory)} of memory: if that is less than in production, have it hold"
            " as much data (--fill)"
        )
    if found.failed:
        yield f"{found.failed} of {found.runs + found.failed} runs as it is failed: a failed run counts as the slowest"
    if found.wall_s < _SHORT_S:
        yield (
            f"a run takes {format_duration(found.wall_s)}, of which starting it is a large part: let the command repeat"
            " its work, such as by a larger input"
        )
    if loaded and found.sd is not None and found.sd < _CLOCKED and found.wall_s > 1:
        yield (
            "its load takes the same time whatever the server does, as one that runs by the clock: let it do a fixed"
            " work, or have a value judged that it prints (--value)"
        )
    if uncounted:
        yield (
            "how much its load does is not known, only how long it takes: one that does less under a setting would seem"
            " better; name the count in its output (--value 'operations,neutral=regex:PATTERN'), and the time for each"
            " is judged"
        )
    if found.same_output is False:
        yield "its output differs between runs of the same: see that each does the same work"
