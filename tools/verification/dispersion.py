"""Spread as a finding: its size by enumeration and by null replay, what a mere shift does to it, and its power.

Three faults are planted, and each must show: each arm's own median alone (no error of its own is bounded then: counted
over all coins), an F test of the two variances that is peeked at, and, for arms that are shifted, the exact half alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.random import Generator

from hugewise.stats import signflip
from hugewise.stats.dispersion import Dispersion
from hugewise.stats.method import Numbers
from tools.verification.candidate import CheckResult, Task, peeked_f
from tools.verification.generators import CV, FAMILIES, PairedTimes, autoregression, generator
from tools.verification.replay import ALPHA, CONTROL, CONTROLS, limit

PAIRS = 300
LENGTH = 12  # pairs of which all coins are tried; the first 5 tell nothing
SHIFTS = (0.5, 2.0, 5.0)
"""Between the arms, in standard deviations of the noise."""
ROOM = 0.02
"""Allowed excess over alpha of the share of findings in shifted streams: the test is approximate there."""
FOLDS = {1.5: 260, 3.0: 60, 10.0: 30}
"""Noise of the arm over that of the baseline, and most pairs to the finding at the median; alpha 0.01."""


def enumerated(kind: str, seed: int, alpha: float) -> Sequence[CheckResult]:
    """Findings over all coins of a short stream, each a run of its own through the public class."""
    raw = _SHORT[kind](generator(seed, "dispersion", kind))
    faulty = (kind, alpha) == _FAULTY
    findings = own = 0
    for number in range(2**LENGTH):
        swapped = (number >> np.arange(LENGTH) & 1).astype(np.bool_)
        arm, baseline = np.where(swapped, raw.baseline, raw.arm), np.where(swapped, raw.arm, raw.baseline)
        findings += _run(arm, baseline, alpha).finding().shown is not None
        own += faulty and _own_medians(np.log(arm).tolist(), np.log(baseline).tolist(), alpha) != 0
    most = int(alpha * 2**LENGTH)
    what = f"{kind}, n {LENGTH}, alpha {alpha:g}"
    found = [_judged("exhaustive size", what, f"{findings} of {2**LENGTH}", f"<= {most}", findings <= most)]
    if faulty:
        found.append(_judged("control", f"{what}: own medians alone", f"{own}", f"> {most}", own > most))
    return found


def null(family: str, seed: int, streams: int) -> Sequence[CheckResult]:
    """Findings in streams in which nothing differs."""
    chosen = next(known for known in FAMILIES if known.name == family)
    raw = chosen.draw(generator(seed, "dispersion", family), max(streams, CONTROLS), PAIRS)
    share = _share(PairedTimes(raw.arm[:streams], raw.baseline[:streams]))
    required = f"<= {limit(streams):.3f}"
    found = [_judged("null replay", f"{family}: {chosen.what}", f"{share:.4f}", required, share <= limit(streams))]
    if family == _PEEKED:
        share = peeked_f(raw, ALPHA)
        found.append(_judged("control", f"{family}: peeked F", f"{share:.3f}", f"> {CONTROL}", share > CONTROL))
    return found


def shifted(noise: str, seed: int, streams: int) -> Sequence[CheckResult]:
    """Findings in streams whose arms lie apart, and differ in nothing else."""
    findings = []
    most = limit(streams) + ROOM
    for shift in SHIFTS:
        log = CV * _NOISE[noise](generator(seed, "shifted", noise), streams)
        log[0] += shift * np.std(log)
        raw = PairedTimes(*np.exp(log))
        share = _share(raw)
        what = f"{noise}, shifted by {shift:g} sd"
        findings.append(_judged("shift", what, f"{share:.4f}", f"<= {most:.3f}", share <= most))
        if (noise, shift) == _SKEWED:
            streams_ = zip(raw.arm, raw.baseline, strict=True)
            share = float(np.mean([_run(arm, baseline, ALPHA).exact.sign != 0 for arm, baseline in streams_]))
            what = f"{what}: the exact half alone"
            findings.append(_judged("control", what, f"{share:.3f}", f"> {CONTROL}", share > CONTROL))
    return findings


def power(fold: float, shift: float, seed: int, streams: int) -> Sequence[CheckResult]:
    """Measure the pairs to the finding where the arm has `fold` times the noise, `shift` of its own deviations away."""
    pairs = 1000
    noise = CV * generator(seed, "spread", fold, shift).standard_normal((2, streams, pairs))
    noise[0] = fold * (noise[0] + shift * CV)
    stops, wrong = [], 0
    for arm, baseline in zip(*np.exp(noise), strict=True):
        finding = _run(arm, baseline, 0.01).finding()
        stops.append(finding.pairs or pairs)
        wrong += finding.shown == "narrower"
    middle = median(stops)
    case = f"{fold:g} times the noise, shifted by {shift:g}: median pairs"
    seen, most = f"{middle:g} (90%: {np.quantile(stops, 0.9):.0f}; {wrong} the wrong way)", FOLDS[fold]
    return [_judged("power", case, seen, f"<= {most}, none the wrong way", middle <= most and not wrong)]


def tasks(seed: int, streams: int) -> list[Task]:
    """Return a task for each kind of short stream and alpha, family, noise, and spread; 15 ms for 300 pairs."""
    found = [
        Task(f"dispersion: all coins, {kind}", enumerated, (kind, seed, alpha))
        for kind in _SHORT
        for alpha in (0.2, 0.05)
    ]
    found += [Task(f"dispersion: null, {family.name}", null, (family.name, seed, streams)) for family in FAMILIES]
    found += [Task(f"dispersion: shifted, {noise}", shifted, (noise, seed, streams)) for noise in _NOISE]
    found += [
        Task(f"dispersion: power, {fold:g}", power, (fold, shift, seed, max(20, streams // 5)))
        for fold in FOLDS
        for shift in (0.0, 2.0)
    ]
    return found


def _run(arm: Numbers, baseline: Numbers, alpha: float) -> Dispersion:
    """Observe all pairs, or those up to the finding; a time that is NaN is a failure."""
    test = Dispersion(alpha, len(arm))
    for x, y in zip(arm.tolist(), baseline.tolist(), strict=True):
        test.add(None if np.isnan(x) else x, None if np.isnan(y) else y)
        if test.exact.sign and test.aligned.sign:
            break
    return test


def _own_medians(arm: Sequence[float], baseline: Sequence[float], alpha: float) -> int:
    """Apply the naive test: distances from each side's own median so far, whose sizes depend on earlier labels."""
    pairs = range(1, len(arm))
    distances = (abs(arm[t] - median(arm[:t])) - abs(baseline[t] - median(baseline[:t])) for t in pairs)
    return signflip.verdict([0.0, *distances], alpha, len(arm))


def _share(raw: PairedTimes) -> float:
    streams = zip(raw.arm, raw.baseline, strict=True)
    return float(np.mean([_run(arm, baseline, ALPHA).finding().shown is not None for arm, baseline in streams]))


def _judged(check: str, case: str, seen: str, required: str, passed: bool) -> CheckResult:
    return CheckResult(check, f"spread: {case}", seen, required, bool(passed))


def _growing(random: Generator) -> PairedTimes:
    """Draw pairs that each lie further out than all before, on either side."""
    noise = CV * 1.5 ** np.arange(LENGTH) * random.uniform(0.8, 1.2, (2, LENGTH))
    return PairedTimes(np.exp(noise[0]), np.exp(-noise[1]))


def _failing(random: Generator) -> PairedTimes:
    """Return four pairs in which a side failed, two of them both."""
    raw = _SHORT["normal"](random)
    raw.arm[[3, 8, 10]] = np.nan
    raw.baseline[[3, 6, 10]] = np.nan
    return raw


_SHORT: dict[str, Callable[[Generator], PairedTimes]] = {
    "normal": lambda random: PairedTimes(*np.exp(CV * random.standard_normal((2, LENGTH)))),
    # One of each pair has ten times the noise of the other.
    "one side noisier": lambda random: PairedTimes(*np.exp(CV * random.standard_normal((2, LENGTH)) * [[10.0], [1.0]])),
    "wild": lambda random: PairedTimes(*np.exp(CV * np.clip(random.standard_cauchy((2, LENGTH)), -100, 100))),
    # Ticks of a coarse clock.
    "ties": lambda random: PairedTimes(*(random.integers(8, 13, (2, LENGTH)) / 10)),
    "growing": _growing,
    "failures": _failing,
}
_FAULTY = ("one side noisier", 0.05)


def _correlated(random: Generator, streams: int) -> Numbers:
    """Draw exponential noise, most of which the two of a pair share."""
    shared, own = random.exponential(1, (1, streams, PAIRS)), random.exponential(1, (2, streams, PAIRS))
    return np.asarray(np.sqrt(0.8) * shared + np.sqrt(0.2) * own, dtype=np.float64)


def _places(random: Generator, streams: int) -> Numbers:
    """Draw two places that drift; a coin says which is the arm's."""
    places = np.stack([autoregression(random, streams, PAIRS, 0.9) for _ in range(2)])
    places += 0.5 * random.standard_normal((2, streams, PAIRS))
    return np.where(random.random((streams, PAIRS)) < 0.5, places, places[::-1])


_PEEKED = "heavy-tail"
_NOISE: dict[str, Callable[[Generator, int], Numbers]] = {
    "normal": lambda random, streams: random.standard_normal((2, streams, PAIRS)),
    "Student's t, 3 df": lambda random, streams: random.standard_t(3, (2, streams, PAIRS)),
    "exponential": lambda random, streams: random.exponential(1, (2, streams, PAIRS)),
    "log-normal": lambda random, streams: np.exp(random.standard_normal((2, streams, PAIRS))),
    "exponential, shared": _correlated,
    "the host drifts": lambda random, streams: (
        autoregression(random, streams, PAIRS, 0.99) + 0.5 * random.standard_normal((2, streams, PAIRS))
    ),
    "places drift": _places,
}
_SKEWED = ("exponential", 2.0)
