"""Metamorphic checks: what must not change a verdict, and what must turn it round (Chen et al. 1998).

On raw times of every noise family with a planted effect, so that most streams end in a verdict: exchanging the labels
keeps the pair at which the verdict falls and turns its sign; another unit of time, or a factor common to both times of
a pair, changes nothing; a failure is as bad for either side; more pairs never take a verdict back, and fewer than it
needed never give one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tools.verification.candidate import Candidate, CheckResult, Task
from tools.verification.generators import CV, FAMILIES, PairedTimes, generator, log_ratios

ALPHA = 0.05
PAIRS = 200
EFFECT = 0.5 * CV

_Relation = Callable[[Candidate, PairedTimes], bool]
_FACTORS = generator(1, "common factors").lognormal(0, 1, PAIRS)


def metamorphic(candidate: Candidate, seed: int, streams: int) -> Sequence[CheckResult]:
    """Check every relation on `streams` streams of every family."""
    broken = dict.fromkeys(_RELATIONS, 0)
    verdicts = 0
    for family in FAMILIES:
        drawn = family.draw(generator(seed, "metamorphic", family.name), streams, PAIRS)
        for stream in range(streams):
            raw = PairedTimes(drawn.arm[stream] * np.exp(EFFECT), drawn.baseline[stream])
            verdicts += candidate.stop(log_ratios(raw), ALPHA, PAIRS)[1] != 0
            for name, holds in _RELATIONS.items():
                broken[name] += not holds(candidate, raw)
    total = streams * len(FAMILIES)
    findings = [
        CheckResult("metamorphic", name, f"broken in {count} of {total} streams", "in none", count == 0)
        for name, count in broken.items()
    ]
    seen = f"{verdicts} of {total}"
    ended = CheckResult("metamorphic", "streams that end in a verdict", seen, f">= {total // 2}", 2 * verdicts >= total)
    return [*findings, ended]


def _stop(candidate: Candidate, raw: PairedTimes) -> tuple[int, int]:
    return candidate.stop(log_ratios(raw), ALPHA, PAIRS)


def _swap(candidate: Candidate, raw: PairedTimes) -> bool:
    pairs, verdict = _stop(candidate, raw)
    swapped = PairedTimes(raw.baseline, raw.arm)
    same = candidate.verdict(log_ratios(swapped), ALPHA, PAIRS) == -candidate.verdict(log_ratios(raw), ALPHA, PAIRS)
    return same and _stop(candidate, swapped) == (pairs, -verdict)


def _unit(candidate: Candidate, raw: PairedTimes) -> bool:
    return _stop(candidate, raw) == _stop(candidate, PairedTimes(raw.arm * 1000, raw.baseline * 1000))


def _common(candidate: Candidate, raw: PairedTimes) -> bool:
    return _stop(candidate, raw) == _stop(candidate, PairedTimes(raw.arm * _FACTORS, raw.baseline * _FACTORS))


def _for_good(candidate: Candidate, raw: PairedTimes) -> bool:
    differences = log_ratios(raw)
    pairs, verdict = _stop(candidate, raw)
    before = candidate.verdict(differences[: pairs - 1], ALPHA, PAIRS) if verdict else 0
    at, after = (candidate.verdict(some, ALPHA, PAIRS) for some in (differences[:pairs], differences))
    return (before, at, after) == (0, verdict, verdict)


def _failures(candidate: Candidate, raw: PairedTimes) -> bool:
    differences = log_ratios(raw)
    differences[_FACTORS > 8] = np.inf  # about one in fifty
    pairs, verdict = candidate.stop(differences, ALPHA, PAIRS)
    return candidate.stop(-differences, ALPHA, PAIRS) == (pairs, -verdict)


_RELATIONS: dict[str, _Relation] = {
    "labels exchanged: same pair, opposite sign": _swap,
    "milliseconds for seconds: the same": _unit,
    "a common factor in each pair: the same": _common,
    "a verdict stays, and never falls before its pair": _for_good,
    "failures, labels exchanged: same pair, opposite sign": _failures,
}


def tasks(candidate: Candidate, seed: int, streams: int) -> list[Task]:
    """Return one task."""
    return [Task("metamorphic", metamorphic, (candidate, seed, streams))]
