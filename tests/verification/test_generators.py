from __future__ import annotations

import numpy as np
import pytest

from tools.verification import candidate
from tools.verification.generators import FAMILIES, Family, autoregression, generator, log_ratios


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_in_a_null_family_either_place_may_be_the_arms(family: Family) -> None:
    raw = family.draw(generator(3, family.name), 40, 250)
    assert raw.arm.shape == raw.baseline.shape == (40, 250)
    assert raw.arm.min() > 0
    assert raw.baseline.min() > 0
    signs = np.sign(log_ratios(raw))
    assert abs(signs.sum()) < 4 * np.sqrt(np.count_nonzero(signs))
    assert (np.count_nonzero(signs == 0) > 0) == (not family.continuous)


def test_the_same_seed_and_label_draw_the_same_and_others_do_not() -> None:
    drawn = [generator(seed, label).random() for seed, label in ((1, "a"), (1, "a"), (1, "b"), (2, "a"))]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_an_autoregression_has_unit_variance_and_its_memory() -> None:
    noise = autoregression(generator(1, "ar"), 400, 200, 0.9)
    assert noise.std() == pytest.approx(1, abs=0.05)
    assert np.mean(noise[:, 1:] * noise[:, :-1]) == pytest.approx(0.9, abs=0.05)


def test_a_place_that_is_slower_or_drifts_shows_in_the_magnitudes() -> None:
    families = {family.name: family for family in FAMILIES}
    biased = log_ratios(families["place-bias"].draw(generator(1, "bias"), 20, 500))
    assert np.abs(biased).mean() > 0.04
    drifting = log_ratios(families["place-drift-.99"].draw(generator(1, "drift"), 20, 500))
    magnitudes = np.abs(drifting) - np.abs(drifting).mean()
    assert np.mean(magnitudes[:, 1:] * magnitudes[:, :-1]) > 0


def test_naive_tests_fail_as_they_should_and_hold_at_one_look() -> None:
    raw = FAMILIES[0].draw(generator(2, "control"), 400, 600)
    assert candidate.paired_t(raw, 0.05) > 0.35
    assert candidate.welch(raw, 0.05) > 0.35
    once = FAMILIES[0].draw(generator(2, "once"), 400, candidate.FIRST_LOOK)
    assert candidate.paired_t(once, 0.05) < 0.09
    assert candidate.welch(once, 0.05) < 0.09


def test_naive_tests_are_scipys() -> None:
    from scipy import stats

    raw = FAMILIES[1].draw(generator(4, "scipy"), 50, candidate.FIRST_LOOK)
    paired = stats.ttest_rel(np.log(raw.arm), np.log(raw.baseline), axis=1).pvalue
    welch = stats.ttest_ind(np.log(raw.arm), np.log(raw.baseline), axis=1, equal_var=False).pvalue
    for level in (0.05, 0.2, 0.5):
        assert candidate.paired_t(raw, level) == pytest.approx(np.mean(paired <= level))
        assert candidate.welch(raw, level) == pytest.approx(np.mean(welch <= level))
