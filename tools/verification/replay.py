"""Null replay: streams in which nothing differs, under every kind of noise; how often is there a verdict?

The harness control runs naive tests on the same streams: where they do not fail, the streams would prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.verification.candidate import Candidate, CheckResult, Task, paired_t, welch
from tools.verification.generators import FAMILIES, PairedTimes, generator, log_ratios

ALPHA = 0.05
PAIRS = 1000
CONTROL = 0.4  # least share of findings by peeking at a naive test
CONTROLS = 1000  # streams that the naive tests get at least: they cost little, and fewer would miss 0.4 by chance


def limit(streams: int) -> float:
    """Largest share of verdicts: 0.065 with 2,000 streams (3 standard errors above 0.05), wider with fewer."""
    return ALPHA + 0.015 * float(np.sqrt(2000 / streams))


def replay(candidate: Candidate, family: str, seed: int, streams: int, pairs: int = PAIRS) -> Sequence[CheckResult]:
    """Count the verdicts on one family's streams, and those of the control."""
    chosen = next(known for known in FAMILIES if known.name == family)
    raw = chosen.draw(generator(seed, "replay", family), max(streams, CONTROLS), pairs)
    verdicts = 0
    for arm, baseline in zip(raw.arm[:streams], raw.baseline[:streams], strict=True):
        verdicts += candidate.verdict(log_ratios(PairedTimes(arm, baseline)), ALPHA, pairs) != 0
    share, most = verdicts / streams, limit(streams)
    what = f"{family}: {chosen.what}"
    findings = [CheckResult("null replay", what, f"{share:.4f}", f"<= {most:.3f}", share <= most)]
    controls = [("peeked paired t", paired_t)] if chosen.continuous else []
    if chosen.uncorrelated:
        controls.append(("peeked Welch", welch))
    for name, test in controls:
        share = test(raw, ALPHA)
        findings.append(CheckResult("control", f"{family}: {name}", f"{share:.3f}", f"> {CONTROL}", share > CONTROL))
    return findings


def tasks(candidate: Candidate, seed: int, streams: int, pairs: int = PAIRS) -> list[Task]:
    """Return one task a family."""
    return [
        Task(f"null replay: {family.name}", replay, (candidate, family.name, seed, streams, pairs))
        for family in FAMILIES
    ]
