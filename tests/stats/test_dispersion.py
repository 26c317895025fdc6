from __future__ import annotations

import math
from itertools import product
from statistics import median

import numpy as np
import pytest

from hugewise.stats.dispersion import FEWEST, WINDOW, Dispersion
from hugewise.stats.signflip import SignFlip
from tools.verification import dispersion as check
from tools.verification.generators import PairedTimes, generator

Sides = list[tuple[float | None, float | None]]


def run(pairs: Sides, alpha: float = 0.01, budget: int | None = None) -> Dispersion:
    test = Dispersion(alpha, budget or len(pairs))
    for arm, baseline in pairs:
        test.add(arm, baseline)
    return test


def noisy(fold: float, pairs: int, shift: float = 0.0, seed: int = 1) -> Sides:
    noise = 0.05 * np.random.default_rng(seed).standard_normal((pairs, 2))
    return [(math.exp(fold * a + shift), math.exp(b)) for a, b in noise.tolist()]


@pytest.mark.parametrize("alpha", [0.3, pytest.param(0.1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["normal", "one side noisier", "wild", "ties", "growing", "failures"])
def test_the_size_is_exact_on_raw_values(kind: str, alpha: float) -> None:
    """Every outcome of 10 coins, each judged through the public class."""
    raw = check._SHORT[kind](generator(7, kind))
    values = [
        (None if math.isnan(a) else a, None if math.isnan(b) else b)
        for a, b in zip(raw.arm.tolist()[:10], raw.baseline.tolist()[:10], strict=True)
    ]
    found = exact = 0
    sizes = set()
    for swaps in product((False, True), repeat=len(values)):
        test = run([(b, a) if swap else (a, b) for swap, (a, b) in zip(swaps, values, strict=True)], alpha)
        found += test.finding().shown is not None
        exact += test.exact.sign != 0
        sizes.add(tuple(test.exact.ledger))
    assert found <= exact <= alpha * 2**10
    assert exact > 0 or kind in {"ties", "failures"}
    assert len(sizes) == 1  # no label has any part in the sizes


@pytest.mark.parametrize("digits", [2, 9])
def test_by_definition(digits: int) -> None:
    """The medians of the latest pairs taken anew for each pair; with ties, and failures."""
    generator_ = np.random.default_rng(digits)
    logs = np.round(0.05 * generator_.standard_normal((200, 2)) + (0.03, 0), digits)
    pairs: Sides = [(math.exp(a), math.exp(b)) for a, b in logs.tolist()]
    pairs[70], pairs[90] = (None, 1.0), (1.0, None)
    exact, aligned = SignFlip(0.01, 200), SignFlip(0.005, 200)
    seen: list[tuple[float, float]] = []
    for arm, baseline in pairs:
        one = other = 0.0
        if arm is not None and baseline is not None:
            x, y = round(math.log(arm), 9), round(math.log(baseline), 9)
            latest = seen[-WINDOW:]
            if len(latest) >= FEWEST:
                centres = median(map(min, latest)), median(map(max, latest))
                far = [min(abs(value - centre) for centre in centres) for value in (x, y)]
                one = round(far[0] - far[1], 9)
                other = round(abs(x - median(a for a, _ in latest)) - abs(y - median(b for _, b in latest)), 9)
            seen.append((x, y))
        exact.add(one)
        aligned.add(other)
    found = run(pairs)
    assert (found.exact.ledger, found.aligned.ledger) == (exact.ledger, aligned.ledger)
    assert (found.exact.walk, found.aligned.walk) == (exact.walk, aligned.walk)


def test_swapped_labels_swap_the_finding() -> None:
    pairs = noisy(6, 60)
    wider, narrower = run(pairs).finding(), run([(b, a) for a, b in pairs]).finding()
    assert (wider.shown, narrower.shown) == ("wider", "narrower")
    assert wider.pairs == narrower.pairs
    assert wider.ratio is not None and narrower.ratio == pytest.approx(1 / wider.ratio)
    assert 4 < wider.ratio < 9


@pytest.mark.parametrize("shift", [-0.3, 0.0, 1.0])
def test_spread_is_found_wherever_the_arm_lies(shift: float) -> None:
    found = run(noisy(10, 80, shift), 0.01, 1000).finding()
    assert found.shown == "wider" and found.pairs is not None and found.pairs <= 60


def test_the_unit_does_not_matter() -> None:
    pairs = noisy(3, 100)
    assert run([((a or 0) * 1e6, (b or 0) * 1e6) for a, b in pairs]).finding().pairs == run(pairs).finding().pairs


@pytest.mark.parametrize(("noise", "shift"), [("normal", 0.5), ("normal", 5.0), ("exponential", 2.0)])
def test_a_mere_shift_is_no_spread(noise: str, shift: float) -> None:
    log = 0.1 * check._NOISE[noise](generator(3, noise), 60)
    log[0] += shift * np.std(log)
    raw = PairedTimes(*np.exp(log[:, :, :120]))
    exact = found = 0
    for arm, baseline in zip(raw.arm, raw.baseline, strict=True):
        test = run(list(zip(arm.tolist(), baseline.tolist(), strict=True)), 0.05)
        exact += test.exact.sign != 0
        found += test.finding().shown is not None
    assert found <= 8  # of 60 at 5%, 3 standard errors
    assert exact > 20 or noise == "normal"  # the second half is what keeps it so


def test_both_halves_have_to_agree() -> None:
    test = run(noisy(10, 60))
    assert test.exact.sign == test.aligned.sign == 1
    test.aligned.sign = -1
    assert test.finding().shown is None and test.finding().pairs is None
    test.aligned.sign, test.aligned.crossed_at = 0, None
    assert test.finding().shown is None


def test_what_was_shown_stays() -> None:
    pairs = noisy(10, 60)
    early = run(pairs, budget=300).finding()
    late = run([*pairs, *((b, a) for a, b in noisy(10, 200, seed=2))], budget=300).finding()
    assert early.shown == late.shown == "wider" and early.pairs == late.pairs


def test_failures_say_nothing_and_count() -> None:
    pairs = noisy(10, 60)
    failing: Sides = [pair for good in pairs for pair in (good, (None, good[1]), (None, None))]
    plain, spoiled = run(pairs, budget=200), run(failing, budget=200)
    assert spoiled.exact.pairs == 3 * plain.exact.pairs
    assert spoiled.finding().shown == "wider"
    assert run([(None, 1.0)] * 50, 0.2).exact.walk == 0


def test_nothing_is_said_of_the_first_pairs_and_of_values_that_do_not_vary() -> None:
    few = run(noisy(50, FEWEST), 0.3)
    assert few.exact.walk == few.aligned.walk == 0
    assert few.finding().ratio is None
    same = run([(1.0, 1.0)] * 40).finding()
    assert (same.shown, same.ratio, same.pairs, same.alpha) == (None, None, None, 0.01)
    one = run([(math.exp(0.01 * k % 0.07), 1.0) for k in range(40)]).finding()
    assert one.shown == "wider" and one.ratio is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_value_without_a_logarithm_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Dispersion(0.01, 100).add(value, 1.0)


@pytest.mark.parametrize(("nulls", "effects"), [(20, 10), pytest.param(40, 20, marks=pytest.mark.soak)])
def test_the_checks_pass_and_their_faults_show(nulls: int, effects: int) -> None:
    findings = [*check.enumerated("one side noisier", 1, 0.05), *check.null("heavy-tail", 1, nulls)]
    findings += check.power(10.0, 2.0, 1, effects)
    assert [finding for finding in findings if not finding.passed] == []
    assert [finding.check for finding in findings].count("control") == 2
