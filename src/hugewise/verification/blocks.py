"""Closed blocks through `Sequential`, from their state and proof to the verdict, while things go wrong.

The exactness of the test in the middle (size, ledger, replay) says nothing of which pairs reach it, of what stands
beside its verdict, or of the words. Here whole comparisons are played, with non-delivery, starts that fail, blocks that
break off, absent values, failures and covariates, and a verdict counts as wrong whatever it says. Each promise has its
planted fault: the method as it was before the promise was kept, which must be seen to break it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from hugewise.model.results import Comparison
from hugewise.model.trial import Block
from hugewise.stats import inversion
from hugewise.stats.sequential import Sequential
from hugewise.stats.signflip import SignFlip
from hugewise.verification import reverts
from hugewise.verification.finding import Finding, Task
from hugewise.verification.generators import autoregression, generator
from hugewise.verification.scenes import CONTRAST, Scene, pair

__all__ = ["ALPHA", "NULLS", "Made", "Null", "limit", "nulls", "play", "tasks"]

ALPHA = 0.01
BUDGET = 2000
MARGIN = 0.005

Made = type[Sequential]
"""`Sequential`, or a fault in its place."""


def limit(alpha: float, streams: int) -> float:
    """Most of so many streams that may end wrongly: 3 standard errors above alpha."""
    return alpha + 3 * float(np.sqrt(alpha * (1 - alpha) / streams))


def play(made: Sequential, blocks: Iterable[Block]) -> Sequential:
    """Blocks one after the other, until the comparison asks for no more."""
    for block in blocks:
        if made.observe(block).status == "stop":
            break
    return made


class Null(NamedTuple):
    """A scene without any effect, in which the fault must make more wrong verdicts than alpha.

    pairs  blocks of a stream; of: the share of `streams` that is played, as long ones take longer
    """

    what: str
    scene: Scene
    fault: Made | None = None
    pairs: int = 300
    of: float = 1.0


LONG = Null(
    "0.9% undelivered, 10% slower: within the rule, 20,000 pairs",
    Scene(share=0.009, slower=0.1, sd=0.01, arm=1),
    reverts.UsableAlone,
    pairs=20_000,
    of=0.1,
)
"""What the rule lets through is too little to be seen in fewer pairs."""
NULLS: tuple[Null, ...] = (
    Null("nothing goes wrong, slow places", Scene(share=0.2, slower=0.1)),
    Null(
        "arm undelivered in 10% of places, 5% slower",
        Scene(share=0.1, slower=0.05, sd=0.01, arm=1),
        reverts.DeclaredBudget,
    ),
    Null("arm undelivered in 20%, 10% slower", Scene(share=0.2, slower=0.1, sd=0.02, arm=1), reverts.DeclaredBudget),
    Null("arm undelivered in 30%, 10% slower", Scene(share=0.3, slower=0.1, sd=0.02, arm=1), reverts.DeclaredBudget),
    Null(
        "baseline unproven in 20%, 10% slower",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="unproven", baseline=1),
        reverts.DeclaredBudget,
    ),
    Null(
        "arm cannot start in 10%, 10% slower",
        Scene(share=0.1, slower=0.1, sd=0.02, fate="unstarted", arm=1),
        reverts.BlocksReplaced,
    ),
    Null(
        "baseline cannot start in 10%, 10% slower",
        Scene(share=0.1, slower=0.1, sd=0.02, fate="unstarted", baseline=1),
        reverts.BlocksReplaced,
    ),
    Null(
        "duet: arm cannot start in 10%, 10% slower",
        Scene(share=0.1, slower=0.1, sd=0.02, fate="unstarted alone", arm=1),
        reverts.BlocksReplaced,
    ),
    Null(
        "arm starts late in 20%, 10% slower: it waits until they are not",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="late", arm=1),
        reverts.LateIsUsual,
    ),
    Null(
        "arm without a value in 20%, 10% slower",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="absent", arm=1),
        reverts.DeclaredBudget,
    ),
    Null(
        "hugewise ends under the arm in 20%, 10% slower: made anew",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="redone", arm=1),
        reverts.LateIsUsual,
    ),
    Null(
        "the same in 20% that are 10% faster",
        Scene(share=0.2, slower=-0.1, sd=0.02, fate="redone", arm=1),
        reverts.LateIsUsual,
    ),
    Null(
        "arm starts late in 20% that are 10% faster: failures to start would agree",
        Scene(share=0.2, slower=-0.1, sd=0.02, fate="late", arm=1),
        reverts.ScoredByLabel,
    ),
    Null(
        "a guest that is gone takes its neighbour with it, arm in 20%, 10% slower",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="both", arm=1),
        reverts.LostIsNothing,
    ),
    Null(
        "blocks break off under the arm in 20%, 10% slower",
        Scene(share=0.2, slower=0.1, sd=0.02, fate="incomplete", arm=1),
        reverts.LostIsNothing,
    ),
    Null("both fail at 5% of attempts", Scene(share=0.2, slower=0.1, fate="failed", anyhow=0.05)),
    Null("3% of blocks break off", Scene(share=0.2, slower=0.1, fate="incomplete", anyhow=0.03)),
    Null("1 in 200 cannot start, either label", Scene(share=0.2, slower=0.1, fate="unstarted", anyhow=0.005)),
)


def nulls(number: int, seed: int, streams: int) -> Sequence[Finding]:
    """Verdicts where no attempt's time hangs on its label, of the method and of its fault on the same streams."""
    case = (*NULLS, LONG)[number]
    count = max(20, round(streams * case.of))
    wrong = faulty = 0
    for stream in range(count):
        blocks = list(case.scene.blocks(generator(seed, "blocks", case.what, stream), case.pairs))
        planned = max(BUDGET, case.pairs)
        wrong += _decided(play(_made(Sequential, planned=planned), blocks))
        faulty += case.fault is not None and _decided(play(_made(case.fault, planned=planned), blocks))
    most = limit(ALPHA, count)
    found = [_share(f"{case.what}: wrong verdicts", wrong, count, most)]
    if case.fault is not None:
        found.append(_caught(f"{case.what}: {case.fault.name}", faulty, count, most))
    return found


def covariate(seed: int, streams: int) -> Sequence[Finding]:
    """A canary that is 0.4% longer after the arm, at equal times; and one that nothing moves, on a drifting host."""
    findings = []
    for what, moved in (("0.4% longer after the arm, equal times", 0.004), ("moved by nothing, the host drifts", 0.0)):
        random = generator(seed, "covariate", what)
        count = max(20, streams // 10)
        wrong = faulty = 0
        for _ in range(count):
            blocks = list(_with_canary(random, 300, moved))
            wrong += _decided(play(_made(Sequential, covariate="canary"), blocks))
            faulty += bool(moved) and _decided(play(_made(reverts.NoBias, covariate="canary"), blocks))
        findings.append(_share(f"canary {what}: wrong verdicts", wrong, count, limit(ALPHA, count)))
        if moved:
            findings.append(_caught(f"canary {what}: no bound of the bias", faulty, count, limit(ALPHA, count)))
    return findings


def _with_canary(random: Generator, count: int, moved: float) -> Iterator[Block]:
    """Times and canaries share the noise of their place; the canary of the second place follows the first's label."""
    host = 0.02 * autoregression(random, 1, 2 * count, 0.9)[0].reshape(count, 2)
    places = host + 0.02 * random.standard_normal((count, 2))
    times, canaries = places + 0.014 * random.standard_normal((count, 2)), places
    for number, first in enumerate(random.integers(0, 2, count).tolist(), 1):
        arm = 0 if first else 1
        # What ran first leaves its mark on the second's canary: shorter after the baseline than after the arm.
        canary = canaries[number - 1].copy()
        canary[1] += 0.0 if first else 2 * moved
        yield pair(
            number,
            float(times[number - 1, arm]),
            float(times[number - 1, 1 - arm]),
            canaries=(float(canary[arm]), float(canary[1 - arm])),
        )


def equivalence(seed: int, streams: int) -> Sequence[Finding]:
    """Never the same: +3% in 62% of pairs and -3% in the others; and an arm that is exactly at the margin."""
    findings = []
    for what, draw, fault in (
        ("+3% in 62% of pairs, -3% in 38%", _two_points, reverts.TypicalAlone),
        ("an effect of the margin itself", _at_margin, None),
    ):
        random = generator(seed, "equivalence", what)
        wrong = faulty = 0
        for _ in range(streams):
            blocks = list(draw(random, 300))
            wrong += play(_made(Sequential), blocks).decision().verdict == "equivalent"
            faulty += fault is not None and play(_made(fault), blocks).decision().verdict == "equivalent"
        findings.append(_share(f"{what}: called equivalent", wrong, streams, limit(ALPHA, streams)))
        if fault is not None:
            findings.append(_caught(f"{what}: {fault.name}", faulty, streams, limit(ALPHA, streams)))
    return findings


def _two_points(random: Generator, count: int) -> Iterator[Block]:
    for number, up in enumerate((random.random(count) < 0.62).tolist(), 1):
        yield pair(number, 0.03 * (1 if up else -1) + 0.0005 * float(random.standard_normal()), 0.0)


def _at_margin(random: Generator, count: int) -> Iterator[Block]:
    for number, noise in enumerate((0.002 * random.standard_normal(count)).tolist(), 1):
        yield pair(number, float(np.log1p(MARGIN)) + noise, 0.0)


def estimates(seed: int, streams: int) -> Sequence[Finding]:
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
        found, anyhow = (_to_the_end(made, blocks) for made in (reverts.ToTheEnd, reverts.PseudoMedian))
        outside += _astray(found)
        planted += _astray(anyhow)
        verdicts += found.verdict in ("better", "worse", "equivalent")
    what = "two modes, 1,000 pairs"
    return [
        _share(f"{what}: estimate outside the interval of a verdict (of {verdicts} verdicts)", outside, count, 0.0),
        _caught(f"{what}: {reverts.PseudoMedian.name}", planted, count, 0.25),
    ]


def _to_the_end(made: Made, blocks: Iterable[Block]) -> Comparison:
    method = made(CONTRAST, planned=1000, alpha=0.05, margin=MARGIN)
    for block in blocks:
        method.observe(block)
    return method.comparison()


def _astray(found: Comparison) -> bool:
    if found.verdict not in ("better", "worse", "equivalent"):
        return False
    assert found.ratio is not None
    low, high = found.low or 0.0, found.high or np.inf
    return not (low <= found.ratio <= high) or (low > 1) != (found.ratio > 1 and found.verdict == "worse")


def ends(seed: int, streams: int) -> Sequence[Finding]:
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
    with reverts.low_ranks_at_zero() if old else contextlib.nullcontext():
        method = play(Sequential(CONTRAST, planned=BUDGET, alpha=alpha, margin=MARGIN), blocks)
        values = [one.log_ratio for one in method.pairs.usable if one.log_ratio is not None]
        found = inversion.interval(values, alpha, BUDGET)
    return _Ended(len(values), found if np.isfinite(found).all() else None)


def untouched(seed: int, streams: int) -> Sequence[Finding]:
    """Where nothing goes wrong, the method stops where the bare test stops; and half undelivered is no verdict."""
    random = generator(seed, "untouched")
    same, count = 0, max(20, streams // 4)
    for _ in range(count):
        blocks = list(Scene(sd=0.05).blocks(random, 200))
        shifted = [pair(one.number, _log(one, 0) - 0.04, _log(one, 1)) for one in blocks]
        bare = SignFlip(ALPHA, BUDGET)
        for one in shifted:
            bare.add(round(_log(one, 0) - _log(one, 1), 9))
            if bare.sign:
                break
        found = play(_made(Sequential), shifted)
        same += (found.decision().verdict == "better", len(found.pairs.usable)) == (bare.sign < 0, bare.pairs)
    half = [
        pair(number, -0.5 + 0.01 * float(random.standard_normal()), 0.0, ("undelivered" if number % 2 else None, None))
        for number in range(1, 25)
    ]
    findings = [
        Finding(
            check="blocks",
            case="nothing goes wrong: verdict and pair of the bare test",
            seen=f"{same} of {count}",
            required="all",
            passed=same == count,
        )
    ]
    for made, wanted in ((Sequential, "none"), (reverts.DeclaredBudget, "better")):
        verdict = play(_made(made), half).decision().verdict
        planted = made is not Sequential
        findings.append(
            Finding(
                check="blocks",
                case="12 of 24 undelivered, a real -40%" + (f": {made.name} (planted)" if planted else ""),
                seen=verdict,
                required=wanted,
                passed=verdict == wanted,
            )
        )
    return findings


def _log(block: Block, side: int) -> float:
    value = block.attempts[side].metrics[CONTRAST.metric.name]
    assert value is not None
    return float(np.log(value))


def _made(made: Made, *, planned: int = BUDGET, **more: Any) -> Sequential:
    return made(CONTRAST, planned=planned, alpha=ALPHA, margin=MARGIN, **more)


def _decided(method: Sequential) -> bool:
    return method.decision().verdict in ("better", "worse")


def _share(case: str, count: int, of: int, most: float) -> Finding:
    return Finding(
        check="blocks",
        case=case,
        seen=f"{count} of {of} ({count / of:.4f})",
        required=f"<= {most:.4f}",
        passed=count / of <= most,
    )


def _caught(case: str, count: int, of: int, most: float) -> Finding:
    return Finding(
        check="blocks",
        case=f"{case} (planted)",
        seen=f"{count} of {of} ({count / of:.4f})",
        required=f"> {most:.4f}",
        passed=count / of > most,
    )


def tasks(seed: int, streams: int, *, long: bool = False) -> list[Task]:
    """One task a null, and one for each of the other promises."""
    cases = (*NULLS, LONG) if long else NULLS
    found = [Task(f"blocks: {case.what}", nulls, (number, seed, streams)) for number, case in enumerate(cases)]
    others = (covariate, equivalence, estimates, ends, untouched)
    return found + [Task(f"blocks: {check.__name__}", check, (seed, streams)) for check in others]
