"""Coverage: does an interval that one looks at after every pair ever lose the truth? With a known truth, counted.

The typical ratio's interval only shrinks, so that losing the truth at any time is losing it at the end. The campaign
average moves with the pairs that were run: there every look is compared with the average so far. The interval beyond
the sessions is looked at after every session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from hugewise.stats import campaign, inversion, sessions, signflip
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import STEPS
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import CV, PairedTimes, autoregression, generator, heavy, log_ratios, randomised
from tools.verification.matched import benchmarks

ALPHA = 0.05
PAIRS = 400
LONG = 1000
SESSIONS = 60
EFFECT = 0.02


def limit(repeats: int) -> float:
    """Most misses: 3 standard errors above alpha."""
    return ALPHA + 3 * float(np.sqrt(ALPHA * (1 - ALPHA) / repeats))


def typical(case: str, seed: int, repeats: int) -> Sequence[CheckResult]:
    """Check the typical ratio by inversion: constant effects, and arms that differ in spread or in their tails."""
    draw = _TYPICAL[case]
    truth = EFFECT if case in _SYMMETRIC else _balanced(log_ratios(draw(generator(seed, "truth", case), 400, LONG)))
    misses = 0
    raw = draw(generator(seed, "coverage", case), repeats, PAIRS)
    for arm, baseline in zip(raw.arm, raw.baseline, strict=True):
        low, high = inversion.interval(log_ratios(PairedTimes(arm, baseline)), ALPHA, PAIRS, 1e-3)
        misses += not low <= truth <= high
    return [_finding(f"typical ratio, {case}", misses, repeats)]


def lasting(case: str, seed: int, repeats: int) -> Sequence[CheckResult]:
    """Check the typical ratio after 1,000 pairs: is the truth among what was ever rejected?

    Where one arm alone is skewed, stalls or has modes, differences are not symmetric about the truth, and the interval
    is approximate. How far is held to twice alpha for skew and stalls; what two modes do is shown and not judged.
    """
    draw, most = _LASTING[case]
    random = generator(seed, "lasting", case)
    truth = EFFECT if most == ALPHA else _balanced(log_ratios(draw(generator(seed, "truth", case), 400, LONG)))
    raw = draw(random, repeats, LONG)
    misses = sum(
        signflip.verdict(log_ratios(PairedTimes(arm, baseline)) - truth, ALPHA, LONG) != 0
        for arm, baseline in zip(raw.arm, raw.baseline, strict=True)
    )
    share = misses / repeats
    least = 1.0 if most is None else most + limit(repeats) - ALPHA
    required = "not judged" if most is None else f"<= {least:.3f}"
    case = f"typical ratio, {case}, {LONG} pairs: ever missed"
    return [CheckResult("coverage", case, f"{share:.4f}", required, share <= least)]


def average(case: str, seed: int, repeats: int) -> Sequence[CheckResult]:
    """Check the campaign average while the effect drifts; every look from the hundredth pair on."""
    random = generator(seed, "campaign", case)
    effect = EFFECT + 2 * EFFECT * _DRIFTS[case](random, repeats)
    places = [CV * autoregression(random, repeats, LONG, 0.9) for _ in range(2)]
    coin = np.where(random.random((repeats, LONG)) < 0.5, 1, -1)
    averages = np.cumsum(effect, axis=1) / np.arange(1, LONG + 1)
    misses = 0
    for differences, truths in zip(effect + coin * (places[0] - places[1]), averages, strict=True):
        seen = campaign.Campaign(ALPHA)
        for difference, truth in zip(differences.tolist(), truths.tolist(), strict=True):
            seen.add(difference)
            found = seen.interval()
            if found is not None and not found[0] <= truth <= found[1]:
                misses += 1
                break
    return [_finding(f"campaign average, {case}", misses, repeats)]


def costs(seed: int, repeats: int) -> Sequence[CheckResult]:
    """Return the ratio of arithmetic means on heavy-tailed times, looked at after 100, 200, 400 and 800 pairs."""
    random = generator(seed, "costs")
    truth = float(np.exp(EFFECT))
    misses = 0
    for _ in range(repeats):
        raw = _heavy(random, 1, LONG)
        arm, baseline = raw.arm[0].tolist(), raw.baseline[0].tolist()
        looks = (campaign.ratio_of_means(arm[:n], baseline[:n], ALPHA) for n in (100, 200, 400, 800))
        misses += any(found is not None and not found[1] <= truth <= found[2] for found in looks)
    return [_finding("ratio of means, a constant effect", misses, repeats)]


def beyond(seed: int, repeats: int) -> Sequence[CheckResult]:
    """Check the effect beyond the sessions: session effects are normal, looked at after every session."""
    random = generator(seed, "sessions")
    within = CV / np.sqrt(25)  # standard error of the mean of 25 pairs
    misses = 0
    for _ in range(repeats):
        means = EFFECT + random.normal(0, EFFECT, SESSIONS) + random.normal(0, within, SESSIONS)
        looks = (sessions.interval(means[:n].tolist(), ALPHA) for n in range(2, SESSIONS + 1))
        misses += any(found is not None and not found[0] <= EFFECT <= found[1] for found in looks)
    return [_finding("beyond these sessions, session effects", misses, repeats)]


def tasks(seed: int, repeats: int) -> list[Task]:
    """Return one task a case."""
    found = [Task(f"coverage: {case}", typical, (case, seed, repeats)) for case in _TYPICAL]
    found += [Task(f"coverage: {case}, long", lasting, (case, seed, repeats)) for case in _LASTING]
    found += [Task(f"coverage: {case}", average, (case, seed, repeats)) for case in _DRIFTS]
    found.append(Task("coverage: ratio of means", costs, (seed, repeats)))
    found.append(Task("coverage: sessions", beyond, (seed, repeats)))
    return found


def _finding(case: str, misses: int, repeats: int) -> CheckResult:
    share, most = misses / repeats, limit(repeats)
    return CheckResult("coverage", f"{case}: ever missed", f"{share:.4f}", f"<= {most:.3f}", share <= most)


def _heavy(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw heavy-tailed times whose bulk correlates by 0.8."""
    host = np.sqrt(0.8) * random.standard_normal((streams, pairs))
    own = np.sqrt(0.2) * random.standard_normal((2, streams, pairs))
    return _own(random, CV * heavy(random, host + own))


def _drifting_places(random: Generator, streams: int, pairs: int) -> PairedTimes:
    return _own(random, [CV * autoregression(random, streams, pairs, 0.99) for _ in range(2)])


def _unequal(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw from the published bandwidths: skewed, with standard deviations of 1.58 and 1.40."""
    return next(known for known in benchmarks() if known.name == "iperf3").draw(random, streams, pairs, 0.8)


def _more_stalls(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times in which the arm stalls in another 1% of its runs, for up to five times the time."""
    raw = _heavy(random, streams, pairs)
    struck = random.random((streams, pairs)) < 0.01
    return PairedTimes(raw.arm * np.where(struck, random.uniform(1.5, 5, (streams, pairs)), 1.0), raw.baseline)


def _balanced(differences: Numbers) -> float:
    """Return the typical log-ratio of differences whose ranks are those of their distribution (`inversion`)."""
    values = differences.ravel()
    scores = np.searchsorted(STEPS, (np.arange(len(values)) + 0.5) / len(values), "right")
    low, high = float(values.min()), float(values.max())
    while high - low > 1e-6:
        middle = (low + high) / 2
        rest = values - middle
        walk = float(np.sum(np.sign(rest[np.argsort(np.abs(rest))]) * scores))
        low, high = (middle, high) if walk > 0 else (low, middle)
    return (low + high) / 2


def _own(random: Generator, places: Sequence[Numbers] | Numbers) -> PairedTimes:
    """Return pairs from the noise of two places, the arm taking exp(EFFECT) times as long."""
    raw = randomised(random, places[0], places[1])
    return PairedTimes(raw.arm * np.exp(EFFECT), raw.baseline)


def _both_in_modes(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times that are fast, or one time in five slow by a half."""
    slow = random.random((2, streams, pairs)) < 0.2
    return _own(random, 0.02 * random.standard_normal((2, streams, pairs)) + np.where(slow, 0.4, 0.0))


def _both_skewed(random: Generator, streams: int, pairs: int) -> PairedTimes:
    return _own(random, CV * random.exponential(1, (2, streams, pairs)))


def _both_stall(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times of which one in twenty stalls, for up to five times the time."""
    struck = random.random((2, streams, pairs)) < 0.05
    stalls = np.where(struck, np.log(random.uniform(1.5, 5, (2, streams, pairs))), 0.0)
    return _own(random, 0.3 * CV * random.standard_normal((2, streams, pairs)) + stalls)


def _arm_skewed(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw skewed noise for the arm, and normal noise for the baseline."""
    arm = 0.05 * random.exponential(1, (streams, pairs))
    return PairedTimes(np.exp(arm), np.exp(0.02 * random.standard_normal((streams, pairs))))


def _arm_stalls(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw times in which the arm alone stalls, in a twentieth of its runs."""
    noise = 0.02 * random.standard_normal((2, streams, pairs))
    struck = np.where(random.random((streams, pairs)) < 0.05, random.exponential(0.5, (streams, pairs)), 0.0)
    return PairedTimes(np.exp(noise[0] + struck), np.exp(noise[1]))


def _arm_in_modes(random: Generator, streams: int, pairs: int) -> PairedTimes:
    """Draw effects of -1% in 72% of pairs, and of +10% in the others."""
    arm = np.where(random.random((streams, pairs)) < 0.72, -0.01, 0.095)
    return PairedTimes(np.exp(arm + 0.005 * random.standard_normal((streams, pairs))), np.ones((streams, pairs)))


_SYMMETRIC = ("a constant effect", "a constant effect, places drift")
_TYPICAL: dict[str, Callable[[Generator, int, int], PairedTimes]] = {
    "a constant effect": _heavy,
    "a constant effect, places drift": _drifting_places,
    "unequal sd, skewed": _unequal,
    "the arm stalls more often": _more_stalls,
}
_LASTING: dict[str, tuple[Callable[[Generator, int, int], PairedTimes], float | None]] = {
    "both arms in two modes": (_both_in_modes, ALPHA),
    "both arms skewed": (_both_skewed, ALPHA),
    "both arms stall": (_both_stall, ALPHA),
    "the arm alone skewed": (_arm_skewed, 2 * ALPHA),
    "the arm alone stalls": (_arm_stalls, 2 * ALPHA),
    "the arm alone in two modes": (_arm_in_modes, None),
}
"""Cases with the share that may be missed, besides 3 standard errors."""
_DRIFTS: dict[str, Callable[[Generator, int], Numbers]] = {
    "25 pairs a session": lambda random, streams: np.repeat(random.standard_normal((streams, LONG // 25)), 25, axis=1),
    "50 pairs a session": lambda random, streams: np.repeat(random.standard_normal((streams, LONG // 50)), 50, axis=1),
    "drift AR(.95)": lambda random, streams: autoregression(random, streams, LONG, 0.95),
    "drift AR(.99)": lambda random, streams: autoregression(random, streams, LONG, 0.99),
}
