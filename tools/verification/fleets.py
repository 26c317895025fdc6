"""Fleets of hosts whose runs stopped early: the pooled effect, its interval, and the interval for the next host.

Every host is a stream of closed blocks through the method that users get, which ends it; what it hands to its fleet is
what a real run does. Each promise has its planted fault: the corrected estimates weighed by deviation / sqrt(pairs),
the usual prediction interval, and the mean over hosts of a fleet whose sample is not made as the fleet is. Each must be
seen to be wrong.

Nor is it by chance which hosts have a run when somebody looks (`absent`): the first that come back, and those that are
not lost, have too large effects; that is why a report claims nothing of them (`hugewise.fleet.pooled`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from hugewise.model.results import DIRECTIONS
from hugewise.stats import pooling
from hugewise.stats.pooling import FEWEST, HostEstimate, Hosts, estimate_of
from hugewise.stats.sequential import Sequential
from tools.verification.block_streams import CONTRAST, pair
from tools.verification.candidate import CheckResult, Task
from tools.verification.generators import generator

HOSTS = 10
DEVIATION = 0.05  # standard deviation of a pair's log-ratio
BIAS = 0.05
"""Allowed distance of the mean of pooled effects from the truth, as a share of it."""
LEAST, MOST = 0.93, 0.97
"""Allowed shares of next hosts inside their interval; the upper one applies where hosts spread at least as much as a
host's error.
"""
SKEW, MOVED = 0.003, 0.0003
_LEVEL = 0.01
_LIVES = 100  # pairs that a host makes on average before it is lost
_DRIFT = 0.1  # standard deviation of the log-time of blocks, common to both arms


class FleetCase(NamedTuple):
    """Hosts whose effects are normal around log(`ratio`), spread by `spread` of it; each ends by its own test."""

    ratio: float
    spread: float
    alpha: float
    budget: int


CONTROL = FleetCase(1.02, 0.0, 0.01, 200)
"""Case in which weights that know of the stop must be seen to be wrong."""
_FLAT = FleetCase(1.05, 0.25, 0.01, 200)
"""Case in which the usual prediction interval must hold: hosts spread as much as a host's error."""
CASES = (
    CONTROL,
    FleetCase(1.02, 0.3, 0.01, 200),
    FleetCase(1.02, 1.0, 0.01, 200),
    FleetCase(1.02, 0.3, 0.0025, 1000),
    FleetCase(1.05, 0.0, 0.01, 200),
    _FLAT,
    FleetCase(1.05, 0.5, 0.01, 200),
    FleetCase(1.01, 0.3, 0.01, 300),
    FleetCase(1.2, 0.1, 0.01, 100),
)


def host(
    random: Generator, effect: float, alpha: float, budget: int, *, deviation: float = DEVIATION, level: float = 0.0
) -> HostEstimate:
    """Run a host to its end: blocks around the log-time `level`, with this true `effect` (log-ratio)."""
    made = Sequential(CONTRAST, planned=budget, alpha=alpha, margin=0.005)
    number, going = 0, True
    while going:
        number += 1
        arm, base = deviation / math.sqrt(2) * random.standard_normal(2) + _DRIFT * random.standard_normal() + level
        going = made.observe(pair(number, float(arm) + effect, float(base))).status == "continue"
    found = estimate_of(made)
    assert isinstance(found, HostEstimate)  # more pairs than it takes, and no failure
    return found


def together(case: FleetCase, seed: int, fleets: int) -> Sequence[CheckResult]:
    """Fleet after fleet of one case."""
    random = generator(seed, "fleet", *case)
    truth = math.log(case.ratio)
    tau = case.spread * truth
    centres: list[float] = []
    covered: list[float] = []
    next_: list[float] = []
    usual: list[float] = []
    naive: list[float] = []
    errors: list[float] = []
    spreads: list[float] = []
    for _ in range(fleets):
        true = truth + tau * random.standard_normal(HOSTS)
        found = [host(random, effect, case.alpha, case.budget) for effect in true.tolist()]
        hosts = pooling.pooled(found)
        typical, interval = hosts.typical(), hosts.next_host()
        assert typical is not None and interval is not None
        luck = float(true.mean()) - truth  # a control variate: that of the draw of hosts is known
        centres.append(typical.centre - luck)
        half = -_student(typical.freedom, 0.025) * typical.error
        covered.append(float(abs(typical.centre - truth) <= half))
        next_.append(_held(interval, truth, tau))
        usual.append(_held(_usual(hosts), truth, tau))
        knowing = Hosts(hosts.estimates.tolist(), [one.scale / math.sqrt(one.pairs) for one in found]).typical()
        assert knowing is not None
        naive.append(knowing.centre - luck)
        errors.append(float(np.sqrt(np.mean(hosts.errors**2))))
        spreads.append(hosts.tau() or 0.0)
    error = fmean(errors)
    what = f"{HOSTS} hosts, {case.ratio:g}, spread {case.spread:g} of it, alpha {case.alpha:g}"
    bias, seen = fmean(centres) / truth, fmean(next_)
    told = f"interval {fmean(covered):.1%}; spread {fmean(spreads) / truth:.2f}, error {error / truth:.2f} of it"
    within = f"{1 - BIAS:g} to {1 + BIAS:g}"
    asked, kept = f">= {LEAST:.0%}", seen >= LEAST
    if tau >= error:
        asked, kept = f"{LEAST:.0%} to {MOST:.0%}", LEAST <= seen <= MOST
    found_ = [
        CheckResult("fleet", f"{what}: pooled over true", f"{bias:.3f} ({told})", within, abs(bias - 1) <= BIAS),
        CheckResult("fleet", f"{what}: the next host is in its interval", f"{seen:.1%} of {fleets}", asked, kept),
    ]
    if case == CONTROL:
        off = fmean(naive) / truth
        planted = f"{what}: weighed by deviation / sqrt(pairs)"
        found_.append(CheckResult("control", planted, f"{off:.3f}", f"< {1 - BIAS:g}", off < 1 - BIAS))
    if case == _FLAT:
        planted = f"{what}: the usual interval"
        short = fmean(usual)
        found_.append(CheckResult("control", planted, f"{short:.1%}", f"< {LEAST:.0%}", short < LEAST))
    return found_


def skew(seed: int, fleets: int) -> Sequence[CheckResult]:
    """Check two machine types in unequal numbers: one 0.3% slower as such, or with an effect that is 0.3% another.

    As such: eight of ten hosts of one arm and two of ten of another are of the slower type. The same coins and noise
    with it and without. By its effect: eight of ten hosts are of it, of a fleet in which half are.
    """
    still: list[float] = []
    slower: list[float] = []
    cross: list[float] = []
    weighed: list[float] = []
    plain: list[float] = []
    truth, deviation = math.log(1.02), 0.003
    for number in range(fleets):
        of_type = [[True] * 8 + [False] * 2, [True] * 2 + [False] * 8]
        for level, kept in ((0.0, still), (SKEW, slower)):
            random = generator(seed, "fleet", "skew", number)
            arms = [
                [host(random, truth, 0.01, 100, deviation=deviation, level=level * slow) for slow in types]
                for types in of_type
            ]
            kept.append(_centre(arms[0]) - _centre(arms[1]))
            if level:  # a comparison over hosts would show this
                cross.append(level * (fmean(of_type[0]) - fmean(of_type[1])))
        random = generator(seed, "fleet", "skewed effect", number)
        effects = {"other": truth + SKEW, "one": truth}
        strata = {
            name: [host(random, effects[name], 0.01, 100, deviation=deviation) for _ in range(count)]
            for name, count in (("other", 8), ("one", 2))
        }
        typical = {name: pooling.pooled(found).typical() for name, found in strata.items()}
        known = {name: one for name, one in typical.items() if one is not None}
        shares = pooling.shares({"one": 50, "other": 50}, list(known))
        weighed.append(pooling.fleet_effect(known, shares).centre - (truth + SKEW / 2))
        plain.append(_centre([one for found in strata.values() for one in found]) - (truth + SKEW / 2))
    moved = max(abs(before - after) for before, after in zip(still, slower, strict=True))
    most = f"<= {MOVED:.2%}"
    return [
        CheckResult("fleet", f"a machine type {SKEW:.1%} slower, 8 of 10 and 2 of 10: arms move by at most",
                    f"{moved:.4%}", most, moved <= MOVED),
        CheckResult("fleet", f"a machine type with an effect {SKEW:.1%} larger, 8 of 10 hosts, half of the fleet",
                    f"{fmean(weighed):+.4%}", most, abs(fmean(weighed)) <= MOVED),
        CheckResult("control", "the same: arms compared over hosts", f"{fmean(cross):.3%}", f"> {MOVED:.2%}",
                    fmean(cross) > MOVED),
        CheckResult("control", "the same: the mean over the hosts that measured", f"{fmean(plain):+.3%}",
                    f"> {MOVED:.2%}", fmean(plain) > MOVED),
    ]  # fmt: skip


def absent(seed: int, fleets: int) -> Sequence[CheckResult]:
    """Check fleets of which not all hosts are there: the first half to come back, those that are not lost on the way,
    and as many again in their place; and one in ten lost, taken for hosts without any effect.
    """
    random = generator(seed, "fleet", "absent")
    truth = math.log(CONTROL.ratio)
    first: list[float] = []
    left: list[float] = []
    replaced: list[float] = []
    bounded: list[float] = []
    for _ in range(fleets):
        found: list[HostEstimate] = []
        there: list[HostEstimate] = []
        while len(found) < HOSTS or len(there) < HOSTS:
            true = truth * (1 + 0.3 * random.standard_normal())
            one = host(random, true, CONTROL.alpha, CONTROL.budget)
            found.append(one)
            if one.pairs < random.exponential(_LIVES):
                there.append(one)
        first.append(_centre(sorted(found[:HOSTS], key=lambda one: one.pairs)[: HOSTS // 2]))
        stayed = [one for one in found[:HOSTS] if one in there]
        left += [_centre(stayed)] if len(stayed) > 1 else []
        replaced.append(_centre(there[:HOSTS]))
        last = max(found[:HOSTS], key=lambda one: one.pairs)  # the worst that a loss of one can be
        hosts = pooling.pooled([one for one in found[:HOSTS] if one is not last], lost=1).typical()
        assert hosts is not None
        bounded.append(hosts.centre)
    most = f"> {1 + BIAS:g}"
    controls = {
        f"the first {HOSTS // 2} of {HOSTS} hosts to come back": first,
        f"hosts lost once in {_LIVES} pairs": left,
        f"the same, replaced until there are {HOSTS}": replaced,
    }
    seen = fmean(bounded) / truth
    return [
        *(
            CheckResult("control", f"{what}: pooled over true", f"{fmean(each) / truth:.2f}", most,
                        fmean(each) / truth > 1 + BIAS)
            for what, each in controls.items()
        ),
        CheckResult("fleet", f"the slowest of {HOSTS} lost, taken for one without effect: pooled over true",
                    f"{seen:.3f}", f"<= {1 + BIAS:g}", seen <= 1 + BIAS),
    ]  # fmt: skip


def skewed(seed: int, fleets: int) -> Sequence[CheckResult]:
    """Check fleets of hosts whose effects are exponential with mean 0, and fleets in which one host has another effect.
    Hosts make 100 pairs each, whatever they find.
    """
    random = generator(seed, "fleet", "skewed effects")

    def measured(effects: Sequence[float]) -> Hosts:
        found = [effect + 0.002 * float(random.standard_normal()) for effect in effects]
        return pooling.pooled([HostEstimate(one, 0.02, 100, 1.0, 100, crossed=False, stops=False) for one in found])

    wrong = student = missed = named = 0
    for _ in range(fleets):
        hosts = measured((0.02 * (random.exponential(size=HOSTS) - 1)).tolist())
        typical = hosts.typical()
        assert typical is not None
        (one,) = pooling.held([pooling.OverHosts(typical, hosts.estimates.tolist())], [True], _LEVEL, 0.001)
        wrong += one.verdict in DIRECTIONS
        student += one.p <= _LEVEL
    others = max(40, fleets // 5)
    for _ in range(others):
        alike = (0.03 + 0.005 * random.standard_normal(HOSTS - 1)).tolist()
        named += bool(measured(alike).outlying())
        missed += HOSTS - 1 not in measured([*alike, 0.2]).outlying()
    most = math.floor(fleets * _LEVEL + 3 * math.sqrt(fleets * _LEVEL * (1 - _LEVEL)))
    few = math.floor(others * 0.05 + 3 * math.sqrt(others * 0.05 * 0.95))
    return [
        CheckResult("fleet", f"effects of {HOSTS} hosts exponential, mean 0: verdicts", f"{wrong} of {fleets}",
                    f"<= {most}", wrong <= most),
        CheckResult("control", "the same by Student's t alone", f"{student} of {fleets}", f"> {most}", student > most),
        CheckResult("fleet", "hosts alike: one is said not to fit", f"{named} of {others}", f"<= {few}", named <= few),
        CheckResult("fleet", f"one of {HOSTS} hosts at 22%, the others at 3%: not named", f"{missed} of {others}", "0",
                    not missed),
    ]  # fmt: skip


def fewest(seed: int) -> Sequence[CheckResult]:
    """Check that nothing is said of the next host below five hosts."""
    random = generator(seed, "fleet", "fewest")
    found = [host(random, math.log(1.05), 0.01, 100) for _ in range(FEWEST)]
    shown = [pooling.pooled(found[:count]).next_host() is not None for count in range(1, FEWEST + 1)]
    told = ", ".join(str(count) for count, one in enumerate(shown, 1) if one)
    passed = shown == [False] * (FEWEST - 1) + [True]
    return [CheckResult("fleet", "hosts from which the next one is spoken of, of 1 to 5", told, str(FEWEST), passed)]


def tasks(seed: int, fleets: int) -> list[Task]:
    """Return one task a case."""
    named = [(f"fleet: {case.ratio:g}, {case.spread:g}, {case.alpha:g}", case) for case in CASES]
    return [
        *(Task(name, together, (case, seed, fleets)) for name, case in named),
        Task("fleet: skew", skew, (seed, max(20, fleets // 4))),
        Task("fleet: absent", absent, (seed, max(20, fleets // 2))),
        Task("fleet: skewed", skewed, (seed, max(1000, fleets))),
        Task("fleet: fewest", fewest, (seed,)),
    ]


def _centre(found: Sequence[HostEstimate]) -> float:
    typical = pooling.pooled(found).typical()
    assert typical is not None
    return typical.centre


def _held(interval: tuple[float, float], truth: float, tau: float) -> float:
    """Return the share of next hosts whose effect lies within the interval."""
    low, high = interval
    if tau == 0:
        return float(low <= truth <= high)
    return _below((high - truth) / tau) - _below((low - truth) / tau)


def _below(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


def _usual(hosts: Hosts) -> tuple[float, float]:
    """Return the interval of Higgins, Thompson and Spiegelhalter with the standard error of Hartung and Knapp."""
    typical, tau = hosts.typical(), hosts.tau()
    assert typical is not None and tau is not None
    half = -_student(hosts.count - 2, 0.025) * math.hypot(tau, typical.error)
    return typical.centre - half, typical.centre + half


def _student(freedom: int, chance: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415  (slow to load)

    return float(stdtrit(freedom, chance))
