"""Layouts of a program's heap in an advice: the programs that the library reaches, and the library's part of a gain.

A layout changes two things at once: the program has another heap (one contiguous arena that returns no memory), and
that heap has other pages. A run of its own separates them, in a fixed number of blocks of three arms: the program as it
is, with the library alone, and with the layout. The library's effect is its ratio to the program as it is; the effect
of the pages is the layout's ratio to the library alone.

`hugewise advise --curve` measures the gain against the memory backed. Every arm loads the layout library with a heap of
the same size, and backs a first part of it with huge pages: from a pool of 2 MiB pages where one can be filled, else
transparent ones. The 100% arm backs the whole heap, so that the pool is filled for all arms alike. `stats.knee` finds
where the curve bends. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hugewise.advise import candidates
from hugewise.advise.candidates import ProgramHere, SettingCandidate
from hugewise.advise.question import Question
from hugewise.errors import UserError
from hugewise.machine import loader
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment, laid_pool
from hugewise.model.results import CellResult, Comparison
from hugewise.model.trial import Block
from hugewise.quantity import format_duration, format_size
from hugewise.report import numbers
from hugewise.stats.knee import KEEP, GainKnee, knee
from hugewise.study.study import Study

LIBRARY = "library"
"""The arm that loads the library, and has its heap laid out without advice."""
KEPT = 0.25
"""Share of the time of a layout's confirmation that is kept for telling it apart."""

_FEWEST, _MOST = 6, 24  # blocks
_ARMS = 3  # arms; the pilot's blocks have two runs


class GainPart(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its interval; an end, or all of it, is None where the data do not say it."""

    ratio: float | None
    low: float | None
    high: float | None


class GainParts(msgspec.Struct, frozen=True, kw_only=True):
    """Effects of a layout's library and of its pages. `folder`: of the run, of `n` blocks."""

    folder: str
    metric: str
    better: str
    n: int
    confidence: float
    library: GainPart
    pages: GainPart


def command_of(asked: Question) -> tuple[str, ...]:
    """Return the words of the command that is asked about; none where it is another workload."""
    if asked.workload.get("name") != "command":
        return ()
    return tuple(asked.workload.get("parameters", {}).get("argv", ()))


def unlaid(asked: Question) -> str | None:
    """Return why the layout library does not reach the program, or None where it does."""
    command = command_of(asked)
    if asked.of_service:
        command = tuple(asked.workload.get("parameters", {}).get("server", ()))
    if not command:
        return "layouts are for commands, and for services by --server and --load"
    any_size = PageTarget("any", 4096)
    return loader.unreached(command, Treatment(policy="any", mechanism="process", target=any_size, layout="none"))


def is_layout(chosen: SettingCandidate) -> bool:
    """Return whether the candidate is a layout of the heap."""
    return not isinstance(chosen.use, str) and str(chosen.use.get("from", "")).startswith("layout-")


def alone(chosen: SettingCandidate, mode: str) -> Mapping[str, Any]:
    """Return the policy that loads the same library as the layout, without its pages, over the same other settings.

    `mode` of transparent huge pages here. Where that is `always`, a heap in one piece has them without any advice: base
    pages are asked for then, so that pages are not taken for the library's doing.
    """
    assert not isinstance(chosen.use, str)
    of_pool = str(chosen.use["from"]).startswith("layout-hugetlb")
    source, words = ("layout-base", "none") if of_pool else ("layout-thp", "base" if mode == "always" else "none")
    return {"name": LIBRARY, "from": source, "layout": words, "mechanism": "process"}


def layout_blocks(seconds: float, block_s: float) -> int:
    """Return how many blocks of three arms fit into the time, by the pilot's blocks of `block_s`; 0: too few."""
    fit = int(seconds / (block_s * _ARMS / 2)) if block_s > 0 else _MOST
    return 0 if fit < _FEWEST else min(_MOST, fit)


def told_apart(folder: str, cell: CellResult, layout: str) -> GainParts | None:
    """Return the parts of the gain from the run against the library alone; None where an arm could not be run."""
    by_arm = {one.arm: one for one in cell.comparisons}
    pages, before = by_arm.get(layout), next((one for name, one in by_arm.items() if name != layout), None)
    if pages is None or before is None:
        return None
    return GainParts(
        folder=folder,
        metric=cell.metric.name,
        better=cell.metric.better,
        n=min(pages.n, before.n),
        confidence=pages.confidence,
        library=_turned(before),
        pages=GainPart(ratio=pages.ratio, low=pages.low, high=pages.high),
    )


def _turned(one: Comparison) -> GainPart:
    return GainPart(ratio=_over(one.ratio), low=_over(one.high), high=_over(one.low))


def _over(value: float | None) -> float | None:
    return 1 / value if value else None


def layout_sentence(parts: GainParts) -> str:
    """Return the sentence about the parts."""
    library, pages = (numbers.effect(one.ratio, one.low, one.high) for one in (parts.library, parts.pages))
    return (
        f"Of that, {parts.metric}: the library alone {library}, its pages {pages}"
        f" ({parts.n} blocks of their own at {100 * parts.confidence:.4g}%)."
    )


SHARES = (0, 5, 10, 25, 50, 100)
"""Percent of the heap on huge pages, each an arm."""
BASELINE = "backed-0"

LEAST = 40 << 20
"""Bytes of a heap whose smallest share is a huge page."""

_PAGE = 2 << 20
_BLOCK = len(SHARES) / 2  # in blocks of the pilot, which have two runs
_LOST = 0.25  # share of the blocks


class BackedShare(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against none of the heap backed: `ratio` of the metric with its interval, `size` in bytes."""

    percent: int
    size: int
    ratio: float | None
    low: float | None
    high: float | None


class CurveOfGain(msgspec.Struct, frozen=True, kw_only=True):
    """Curve of gain: `pages` are hugetlb-2m or thp, `heap` the bytes that are laid out.

    blocks      whole ones; `lost`: those in which an arm failed or had not its layout
    confidence  of the knee's interval, and of the ratios all together
    """

    folder: str
    metric: str
    better: str
    pages: str
    heap: int
    blocks: int
    lost: int
    confidence: float
    margin: float
    points: tuple[BackedShare, ...]
    knee: GainKnee

    @property
    def has_gain(self) -> bool:
        """True if the whole heap on huge pages gains more than the margin."""
        return self.knee.share is not None and math.expm1(self.knee.whole_high) > self.margin

    @property
    def smallest(self) -> int | None:
        """Bytes of the smallest pool that keeps at least 90% of the gain, in whole pages; None without a gain."""
        if not self.has_gain or self.knee.high is None:
            return None
        return min(self.heap, math.ceil(self.knee.high * self.heap / _PAGE) * _PAGE)

    @property
    def layout(self) -> str | None:
        """Layout that backs the smallest sufficient part of the heap."""
        size = self.smallest
        if size is None or size == self.heap:
            return None if size is None else f"{self.pages},heap={format_size(self.heap)}"
        return f"mosaic:0-{format_size(size)}={self.pages},heap={format_size(self.heap)}"


def pages_of(found: ProgramHere) -> str:
    """Return the pages that the curve is measured with: a pool's, else transparent ones. Raises UserError where neither
    are possible.
    """
    pool = candidates.heap_from_pool(found, _PAGE)
    if pool is None:
        return "hugetlb-2m"
    thp = candidates.laid_out(found) or (
        "transparent huge pages are set to never here" if found.mode == "never" else None
    )
    if thp is None:
        return "thp"
    told = f"there is no curve of it: {pool}" + (f"; and {thp}" if thp != pool else "")
    raise UserError(told, hint="it needs a command whose heap the layout library reaches: see docs/concepts/layouts.md")


def pages_measured(study: Study) -> str:
    """Return the pages of a curve's run; since the run began, the host's settings may call for others."""
    return study.policies[-1].registered.removeprefix("layout-")


def arms(pages: str, heap: int) -> list[Mapping[str, Any]]:
    """Return the policies of the curve, over a heap of so many bytes: the same settings for all, but for the pages."""
    of_pool = pages != "thp"
    source = "layout-base" if of_pool else "layout-thp"
    found: list[Mapping[str, Any]] = []
    for share in SHARES:
        made = {"name": f"backed-{share}", "from": source, "mechanism": "process"}
        if share == 100:
            made |= {"from": f"layout-{pages}"}
        else:
            made |= {"layout": f"mosaic:0-{share}%={pages},heap={format_size(heap)}" if share else "base"}
        found.append(made)
    return found


def curve_blocks(seconds: float, block_s: float) -> int:
    """Return how many blocks fit into the time, by the pilot's of `block_s`. Raises UserError where too few do."""
    each = block_s * _BLOCK
    fit = int(seconds / each) if each > 0 else _MOST
    if fit < _FEWEST:
        wanted = format_duration(math.ceil(1.5 * _FEWEST * each + 4 * block_s))
        told = f"{format_duration(seconds)} are enough for {fit} blocks of {len(SHARES)} runs, and {_FEWEST} are needed"
        raise UserError(told, hint=f"give more time: --time {wanted.replace(' ', '')}, or a shorter input")
    return min(_MOST, fit)


def measured(  # noqa: PLR0917
    folder: str, cell: CellResult, run: Sequence[Block], pages: str, heap: int, margin: float, confidence: float
) -> CurveOfGain:
    """Return the curve from its run's blocks. Raises UserError where too few of them are whole."""
    gains = [gain for block in run if (gain := _gains(block, cell.metric)) is not None]
    lost = len(run) - len(gains)
    if len(gains) < 3 or lost > _LOST * len(run):
        why = next((why for block in run if (why := _lacking(block)) is not None), "no block of it was whole")
        told = f"the curve could not be measured: {lost} of {len(run)} blocks were lost: {why}"
        raise UserError(told, hint=f"see the run: hugewise report {folder}")
    by_arm = {one.arm: one for one in cell.comparisons}
    points = [BackedShare(percent=0, size=0, ratio=1.0, low=1.0, high=1.0)]
    for share in SHARES[1:]:
        one = by_arm.get(f"backed-{share}")
        size = laid_pool(f"mosaic:0-{share}%=hugetlb-2m,heap={heap}")[1]  # rounded as the library does
        ratio, low, high = (None, None, None) if one is None else (one.ratio, one.low, one.high)
        points.append(BackedShare(percent=share, size=size, ratio=ratio, low=low, high=high))
    return CurveOfGain(
        folder=folder,
        metric=cell.metric.name,
        better=cell.metric.better,
        pages=pages,
        heap=heap,
        blocks=len(gains),
        lost=lost,
        confidence=confidence,
        margin=margin,
        points=tuple(points),
        knee=knee([share / 100 for share in SHARES[1:]], gains, 1 - confidence),
    )


def _gains(block: Block, metric: Metric) -> list[float] | None:
    """Return the gains of a block, in the order of the shares above none; None where an arm has no value."""
    if block.state != "complete" or _lacking(block) is not None:
        return None
    by_arm = {one.arm: one.value(metric.name) for one in block.attempts if one.state == "accepted"}
    values = [by_arm.get(f"backed-{share}") for share in SHARES]
    known = [value for value in values if value is not None and value > 0]
    if len(known) < len(SHARES):
        return None
    sign = -1 if metric.better == "higher" else 1
    return [sign * math.log(known[0] / value) for value in known[1:]]


def _lacking(block: Block) -> str | None:
    """Return why an arm of the block has no measurement of its layout."""
    for one in block.attempts:
        if one.state != "abandoned" and one.delivery.delivered is False:
            return f"{one.arm}: {one.delivery.reason}"
        if one.state == "failed":
            return f"{one.arm}: {one.reason}"
    return block.reason if block.state != "complete" else None


def curve_sentence(found: CurveOfGain) -> str:
    """Return the answer: the smallest pool that keeps the gain, or that there is none to share out."""
    whole = numbers.effect(*_as_ratio(found))
    sure = f"{found.blocks} blocks at {100 * found.confidence:.4g}%"
    what = "a pool" if found.pages != "thp" else "transparent huge pages"
    if not found.has_gain:
        seen = f"all of its heap from {what} changes {found.metric} by {whole} ({sure})."
        if math.expm1(found.knee.whole_high) <= found.margin:
            return f"There is no gain above {numbers.percent(found.margin)} to share out: {seen}"
        return f"Undecided: no gain is shown that could be shared out: {seen} More time may show one: --time."
    size, at = found.smallest, found.knee
    assert size is not None and at.share is not None and at.low is not None and at.high is not None
    keeps = f"{100 * KEEP:.0f}% of the gain ({found.metric} {whole} for all of it)"
    bend = f"the knee is at {_percent(at.share)} ({_percent(at.low)} to {_percent(at.high)}, {sure})"
    if size == found.heap:
        smaller = "pool" if found.pages != "thp" else "part"
        return f"No smaller {smaller} than all of its heap, {_mib(size)}, is shown to keep {keeps}: {bend}."
    share = f"{_mib(size)}, {_percent(size / found.heap)} of its heap,"
    who = f"A pool of {share} keeps" if found.pages != "thp" else f"Transparent huge pages for {share} keep"
    return f"{who} at least {keeps}: {bend}."


def lines(found: CurveOfGain, command: str) -> Iterator[str]:
    """Yield the details behind the curve, line by line; `command` as a shell reads it."""
    for one in found.points[1:]:
        yield f"Backed {one.percent}%, {_mib(one.size)}: {found.metric} {numbers.effect(one.ratio, one.low, one.high)}."
    if found.lost:
        yield f"Note: {found.lost} blocks were lost: an arm of them failed, or had not its pages."
    if (layout := found.layout) is not None:
        yield f"Use it: hugewise-exec --pages {layout} -- {command}"
        if found.pages != "thp" and found.smallest is not None:
            yield f"Its pool: vm.nr_hugepages of {found.smallest // _PAGE} pages of 2m more than others need."


def _as_ratio(found: CurveOfGain) -> tuple[float, float, float]:
    """Return the gain of the whole heap as a ratio of the metric, with its interval."""
    sign = 1 if found.better == "higher" else -1
    low, high = sorted(math.exp(sign * end) for end in (found.knee.whole_low, found.knee.whole_high))
    return math.exp(sign * found.knee.whole), low, high


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
