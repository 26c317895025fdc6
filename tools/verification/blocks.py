"""Closed blocks through `Sequential`, from their state and proof to the verdict, while things go wrong.

The exactness of the test in the middle (size, ledger, replay) says nothing of which pairs reach it, of what stands
beside its verdict, or of the words. Here whole comparisons are played, with non-delivery, starts that fail, blocks that
break off, absent values and failures, and a verdict counts as wrong whatever it says. Each promise has its
planted fault: the method as it was before the promise was kept, which must be seen to break it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from hugewise.model.reason import Reason
from hugewise.model.results import DECIDED, DIRECTIONS, Comparison, Verdict
from hugewise.model.trial import Block
from hugewise.stats import campaign, inversion, signflip
from hugewise.stats.method import Contrast, Decision
from hugewise.stats.pairs import Pair, Pairs
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import stopped
from tools.verification.block_streams import CONTRAST, BlockScene, Fate, pair
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator


class UsableAlone(Sequential):
    """No test of the kept-in pairs."""

    name = "no kept-in test"

    def _add(self, kept: Sequence[Pair], usable: Sequence[Pair]) -> None:
        super()._add(usable, usable)


class _Declared(Pairs):
    """The tolerated share is held against all pairs that were declared, and of absent values and starts nothing is."""

    def refusal(self, planned: int) -> Reason | None:
        return self._never(max(0, planned - len(self.usable)))


class DeclaredBudget(UsableAlone):
    """The delivery rule against the declared budget, and no test of the kept-in pairs."""

    name = "rule against the budget"

    def __init__(self, contrast: Contrast, **given: Any) -> None:
        super().__init__(contrast, **given)
        self.pairs = _Declared(contrast, spared=given["planned"] // 100)


class BlocksReplaced(UsableAlone):
    """A block that lost an arm to its start counts nowhere, and another takes its place."""

    name = "blocks replaced without limit"

    def observe(self, block: Block) -> Decision:
        return self.decision() if block.unstarted else super().observe(block)


class LateIsUsual(UsableAlone):
    """Faulty method: an attempt that started at a later try, or was made anew, counts like any other."""

    name = "made again, it counts as usual"

    def observe(self, block: Block) -> Decision:
        return super().observe(msgspec.structs.replace(block, late=(), redone=()))


class LostIsNothing(Sequential):
    """A pair of which nothing is known is no difference, or no pair: as if it were dropped."""

    name = "what is lost is dropped"

    def _add(self, kept: Sequence[Pair], usable: Sequence[Pair]) -> None:
        if usable or not any(pair.lost for pair in kept):
            super()._add([msgspec.structs.replace(pair, lost=False) for pair in kept], usable)


class ScoredByLabel(Sequential):
    """Faulty method: a lost pair counts against the side that lost it, without a limit on the share of late starts."""

    name = "lost pairs scored against their label"

    def observe(self, block: Block) -> Decision:
        self._side = -1.0 if self.contrast.baseline in block.late else 1.0
        return super().observe(msgspec.structs.replace(block, late=(), redone=block.late))

    def _add(self, kept: Sequence[Pair], usable: Sequence[Pair]) -> None:
        failed = {"arm_failed": self._side > 0, "baseline_failed": self._side < 0}
        whole = [msgspec.structs.replace(pair, lost=False, **failed) if pair.lost else pair for pair in kept]
        super()._add(whole, usable)


class ToTheEnd(Sequential):
    """No fault: it is only asked what it would say after all pairs, and not stopped by what it said before."""

    def observe(self, block: Block) -> Decision:
        self.take(block)
        return Decision("continue", None, "undecided", "it is asked at the end")


class PseudoMedian(ToTheEnd):
    """The estimate is another test's: the median of all means of two differences, which Wilcoxon's ranks belong to."""

    name = "the pseudo-median"

    def _fits(self, low: float, high: float) -> bool:
        return True

    def comparison(self) -> Comparison:
        values = np.array(self.usable.pairs.values)
        sums = (values[:, None] + values[None, :])[np.triu_indices(len(values))]
        return msgspec.structs.replace(super().comparison(), ratio=math.exp(float(np.median(sums)) / 2))


class _Unasked(campaign.Campaign):
    def within(self, most: float) -> bool:
        return True


class TypicalAlone(Sequential):
    """Equivalence by the typical pair alone."""

    name = "the typical pair alone"

    def __init__(self, contrast: Contrast, **given: Any) -> None:
        super().__init__(contrast, **given)
        self._average = _Unasked(given["alpha"])

    def _fits(self, low: float, high: float) -> bool:
        return True


@contextlib.contextmanager
def low_ranks_at_zero() -> Iterator[None]:
    """Scores as they were: 0 for the lowest ranks."""
    table = signflip.STEPS
    first = math.erf(0.5 / signflip.UNIT / math.sqrt(2))
    signflip.STEPS = [first, *table[1:]]
    try:
        yield
    finally:
        signflip.STEPS = table


ALPHA = 0.01
BUDGET = 2000
MARGIN = 0.005

Made = type[Sequential]
"""`Sequential`, or a fault in its place."""


def limit(alpha: float, streams: int) -> float:
    """Most of so many streams that may end wrongly: 3 standard errors above alpha."""
    return alpha + 3 * float(np.sqrt(alpha * (1 - alpha) / streams))


def play(made: Sequential, blocks: Iterable[Block]) -> Sequential:
    """Play blocks one after the other, until the comparison asks for no more."""
    for block in blocks:
        if made.observe(block).status == "stop":
            break
    return made


class Null(NamedTuple):
    """A scene without any effect, in which the fault must make more wrong verdicts than alpha.

    pairs  blocks of a stream; of: the share of `streams` that is played, as long ones take longer
    """

    what: str
    scene: BlockScene
    fault: Made | None = None
    pairs: int = 300
    of: float = 1.0


def _selecting(
    what: str,
    fault: Made,
    *,
    fate: Fate = "undelivered",
    share: float = 0.2,
    slower: float = 0.1,
    sd: float = 0.02,
    arm: float = 1.0,
    **more: Any,
) -> Null:
    """Return a null case in which something befalls one label in slow places, which selects among the rest."""
    baseline = 1.0 - arm
    return Null(what, BlockScene(share, slower, sd, fate, arm, baseline), fault, **more)


LONG = _selecting(
    "0.9% undelivered, 10% slower: within the rule, 20,000 pairs",
    UsableAlone,
    share=0.009,
    sd=0.01,
    pairs=20_000,
    of=0.1,
)
"""Case whose losses are within the rule: their effect is too small to be seen in fewer pairs."""
_SLOW = BlockScene(share=0.2, slower=0.1)
NULLS: tuple[Null, ...] = (
    Null("nothing goes wrong, slow places", _SLOW),
    _selecting("arm undelivered in 10% of places, 5% slower", DeclaredBudget, share=0.1, slower=0.05, sd=0.01),
    _selecting("arm undelivered in 20%, 10% slower", DeclaredBudget),
    _selecting("arm undelivered in 30%, 10% slower", DeclaredBudget, share=0.3),
    _selecting("baseline unproven in 20%, 10% slower", DeclaredBudget, fate="unproven", arm=0),
    _selecting("arm cannot start in 10%, 10% slower", BlocksReplaced, fate="unstarted", share=0.1),
    _selecting("baseline cannot start in 10%, 10% slower", BlocksReplaced, fate="unstarted", share=0.1, arm=0),
    _selecting("duet: arm cannot start in 10%, 10% slower", BlocksReplaced, fate="unstarted alone", share=0.1),
    _selecting("arm starts late in 20%, 10% slower: it waits until they are not", LateIsUsual, fate="late"),
    _selecting("arm without a value in 20%, 10% slower", DeclaredBudget, fate="absent"),
    _selecting("hugewise ends under the arm in 20%, 10% slower: made anew", LateIsUsual, fate="redone"),
    _selecting("the same in 20% that are 10% faster", LateIsUsual, fate="redone", slower=-0.1),
    _selecting(
        "arm starts late in 20% that are 10% faster: failures to start would agree",
        ScoredByLabel,
        fate="late",
        slower=-0.1,
    ),
    _selecting("a guest that is gone takes its neighbour with it, arm in 20%, 10% slower", LostIsNothing, fate="both"),
    _selecting("blocks break off under the arm in 20%, 10% slower", LostIsNothing, fate="incomplete"),
    Null("both fail at 5% of attempts", _SLOW._replace(fate="failed", anyhow=0.05)),
    Null("3% of blocks break off", _SLOW._replace(fate="incomplete", anyhow=0.03)),
    Null("1 in 200 cannot start, either label", _SLOW._replace(fate="unstarted", anyhow=0.005)),
)


def nulls(number: int, seed: int, streams: int) -> Sequence[CheckResult]:
    """Verdicts where no attempt's time hangs on its label, of the method and of its fault on the same streams."""
    case = (*NULLS, LONG)[number]
    of = max(20, round(streams * case.of))
    randoms = (generator(seed, "blocks", case.what, stream) for stream in range(of))
    played = (list(case.scene.blocks(random, case.pairs)) for random in randoms)
    return _held(
        case.what, "wrong verdicts", DIRECTIONS, played, of=of, fault=case.fault, planned=max(BUDGET, case.pairs)
    )


def equivalence(seed: int, streams: int) -> Sequence[CheckResult]:
    """Never the same: +3% in 62% of pairs and -3% in the others; and an arm that is exactly at the margin."""
    findings = []
    for what, draw, fault in (
        ("+3% in 62% of pairs, -3% in 38%", _two_points, TypicalAlone),
        ("an effect of the margin itself", _at_margin, None),
    ):
        random = generator(seed, "equivalence", what)
        played = (list(draw(random, 300)) for _ in range(streams))
        findings += _held(what, "called equivalent", ("equivalent",), played, of=streams, fault=fault)
    return findings


def _two_points(random: Generator, count: int) -> Iterator[Block]:
    for number, up in enumerate((random.random(count) < 0.62).tolist(), 1):
        yield pair(number, 0.03 * (1 if up else -1) + 0.0005 * float(random.standard_normal()), 0.0)


def _at_margin(random: Generator, count: int) -> Iterator[Block]:
    for number, noise in enumerate((0.002 * random.standard_normal(count)).tolist(), 1):
        yield pair(number, float(np.log1p(MARGIN)) + noise, 0.0)


def estimates(seed: int, streams: int) -> Sequence[CheckResult]:
    """-1% in 72% of pairs and +10% in 28%: a verdict must have its estimate in its interval, on its side of 1.

    At a nominal 5%, read after 1,000 pairs: such pairs share no one effect, and the first of them may have excluded
    what all of them say.
    """
    count = max(20, streams // 10)
    random = generator(seed, "estimates")
    outside = verdicts = planted = 0
    for _ in range(count):
        modes = np.where(random.random(1000) < 0.72, -0.01, 0.095) + 0.002 * random.standard_normal(1000)
        blocks = [pair(number, value, 0.0) for number, value in enumerate(modes.tolist(), 1)]
        found, anyhow = (_to_the_end(made, blocks) for made in (ToTheEnd, PseudoMedian))
        outside += _astray(found)
        planted += _astray(anyhow)
        verdicts += found.verdict in DECIDED
    what = "two modes, 1,000 pairs"
    return [
        _share(f"{what}: estimate outside the interval of a verdict (of {verdicts} verdicts)", outside, count, 0.0),
        _caught(f"{what}: {PseudoMedian.name}", planted, count, 0.25),
    ]


def _to_the_end(made: Made, blocks: Iterable[Block]) -> Comparison:
    method = made(CONTRAST, planned=1000, alpha=0.05, margin=MARGIN)
    for block in blocks:
        method.observe(block)
    return method.comparison()


def _astray(found: Comparison) -> bool:
    if found.verdict not in DECIDED:
        return False
    assert found.ratio is not None
    low, high = found.low or 0.0, found.high or np.inf
    return not (low <= found.ratio <= high) or (low > 1) != (found.ratio > 1 and found.verdict == "worse")


def ends(seed: int, streams: int) -> Sequence[CheckResult]:
    """Clear effects, no ties: at an early stop both ends of the interval are there, and the stop is no later."""
    findings = []
    for effect, alpha in ((0.1, 0.0025), (0.2, 0.0025), (0.2, 1e-4)):
        random = generator(seed, "ends", effect, alpha)
        missing = old_missing = later = 0
        for _ in range(streams):
            differences = (-effect + 0.05 * random.standard_normal(60)).tolist()
            blocks = [pair(number, value, 0.0) for number, value in enumerate(differences, 1)]
            found, old = _ended(blocks, alpha), _ended(blocks, alpha, old=True)
            missing += found.interval is None
            old_missing += old.interval is None
            later += found.pairs > old.pairs + 1
        what = f"early stops, {effect / 0.05:g} sd, alpha {alpha:g}, no ties"
        findings += [
            _share(f"{what}: an end is missing", missing, streams, 0.0),
            _caught(f"{what}: an end is missing, low ranks at 0", old_missing, streams, 0.0),
            _share(f"{what}: more than a pair later", later, streams, 0.02),
        ]
    return findings


class _Ended(NamedTuple):
    pairs: int
    interval: tuple[float, float] | None


def _ended(blocks: Sequence[Block], alpha: float, *, old: bool = False) -> _Ended:
    with low_ranks_at_zero() if old else contextlib.nullcontext():
        method = play(Sequential(CONTRAST, planned=BUDGET, alpha=alpha, margin=MARGIN), blocks)
        values = [one.log_ratio for one in method.pairs.usable if one.log_ratio is not None]
        found = inversion.interval(values, alpha, BUDGET)
    return _Ended(len(values), found if np.isfinite(found).all() else None)


def untouched(seed: int, streams: int) -> Sequence[CheckResult]:
    """Check that the method stops where the bare test does if nothing fails; half undelivered is no verdict."""
    random = generator(seed, "untouched")
    same, count = 0, max(20, streams // 4)
    for _ in range(count):
        blocks = list(BlockScene(sd=0.05).blocks(random, 200))
        shifted = [pair(block.number, _log(block, 0) - 0.04, _log(block, 1)) for block in blocks]
        bare = stopped((round(_log(one, 0) - _log(one, 1), 9) for one in shifted), ALPHA, BUDGET)
        found = _ran(Sequential, shifted)
        same += (found.decision().verdict == "better", len(found.pairs.usable)) == (bare.sign < 0, bare.pairs)
    half = [
        pair(number, -0.5 + 0.01 * float(random.standard_normal()), 0.0, ("undelivered" if number % 2 else None, None))
        for number in range(1, 25)
    ]
    case = "nothing goes wrong: verdict and pair of the bare test"
    findings = [CheckResult("blocks", case, f"{same} of {count}", "all", same == count)]
    real = "12 of 24 undelivered, a real -40%"
    for case, made, wanted in (
        (real, Sequential, "none"),
        (f"{real}: {DeclaredBudget.name} (planted)", DeclaredBudget, "better"),
    ):
        verdict = _ran(made, half).decision().verdict
        findings.append(CheckResult("blocks", case, verdict, wanted, verdict == wanted))
    return findings


def _log(block: Block, side: int) -> float:
    value = block.attempts[side].metrics[CONTRAST.metric.name]
    assert value is not None
    return float(np.log(value))


def _ran(made: Made, blocks: Iterable[Block], *, planned: int = BUDGET, **more: Any) -> Sequential:
    return play(made(CONTRAST, planned=planned, alpha=ALPHA, margin=MARGIN, **more), blocks)


def _held(
    what: str,
    said: str,
    wrong: Sequence[Verdict],
    streams: Iterable[Sequence[Block]],
    *,
    of: int,
    fault: Made | None,
    **more: Any,
) -> list[CheckResult]:
    """Check how many `of` the streams end in wrong verdicts: at most alpha of them, and more than that by the fault,
    which plays them until it is seen.
    """
    most = limit(ALPHA, of)
    count = planted = played = 0
    for blocks in streams:
        count += _ran(Sequential, blocks, **more).decision().verdict in wrong
        if fault is not None and planted <= most * of:
            played += 1
            planted += _ran(fault, blocks, **more).decision().verdict in wrong
    found = [_share(f"{what}: {said}", count, of, most)]
    if fault is not None:
        seen, required = f"{planted} of the first {played}", f"> {math.floor(most * of)} of {of}"
        found.append(CheckResult("blocks", f"{what}: {fault.name} (planted)", seen, required, planted > most * of))
    return found


def _share(case: str, count: int, of: int, most: float) -> CheckResult:
    share = count / of
    return CheckResult("blocks", case, f"{count} of {of} ({share:.4f})", f"<= {most:.4f}", share <= most)


def _caught(case: str, count: int, of: int, most: float) -> CheckResult:
    share = count / of
    return CheckResult("blocks", f"{case} (planted)", f"{count} of {of} ({share:.4f})", f"> {most:.4f}", share > most)


def tasks(seed: int, streams: int, *, long: bool = False) -> list[Task]:
    """Return one task a null, and one for each of the other promises."""
    cases = (*NULLS, LONG) if long else NULLS
    found = [Task(f"blocks: {case.what}", nulls, (number, seed, streams)) for number, case in enumerate(cases)]
    others = (equivalence, estimates, ends, untouched)
    return found + [Task(f"blocks: {check.__name__}", check, (seed, streams)) for check in others]
