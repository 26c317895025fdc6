"""The benchmark of resident blocks: its arithmetic, and the studies that it runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from bench import resident
from hugewise.study.study import Study


def collected(differences: Sequence[float], seconds: float, metric: str = "ops_per_s") -> resident.Collected:
    found = resident.Collected(seconds=[seconds])
    found.pairs[metric] = [(100.0, 100.0 * math.exp(each)) for each in differences]
    return found


def normal(seed: int, sd: float, n: int = 13) -> list[float]:
    return np.random.default_rng(seed).normal(0.1, sd, n).tolist()  # type: ignore[no-any-return]


def test_the_interval_of_normal_deviations_is_the_one_by_f() -> None:
    one, other = [-1.0, 1.0] * 7, [-3.0, 3.0] * 7  # of so little kurtosis that all degrees of freedom are left
    ratio, low, high = resident.ratio_of_deviations(one, other)
    assert ratio == pytest.approx(1 / 3)
    assert low == pytest.approx(ratio / math.sqrt(stats.f.ppf(0.975, 13, 13)))
    assert high == pytest.approx(ratio / math.sqrt(stats.f.ppf(0.025, 13, 13)))


def test_the_interval_covers_as_often_as_it_says() -> None:
    intervals = [resident.ratio_of_deviations(normal(2 * n, 1.0), normal(2 * n + 1, 2.0)) for n in range(400)]
    covered = sum(low <= 0.5 <= high for _, low, high in intervals)
    assert 0.91 < covered / 400 < 0.985


def test_an_outlier_widens_the_interval() -> None:
    plain, other = normal(1, 0.1), normal(2, 0.1)
    _, low, high = resident.ratio_of_deviations(plain, other)
    _, below, above = resident.ratio_of_deviations([*plain[:-1], 1.0], other)
    assert above / below > 1.5 * high / low


def test_a_finding_has_both_designs_and_is_judged_by_the_target() -> None:
    found = resident.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(normal(2, 0.02), 9.0))
    sequential, in_turns = found.lines
    assert (sequential.kind, in_turns.kind) == ("sequential", "resident")
    assert sequential.sd == pytest.approx(np.std(normal(1, 0.1), ddof=1))
    assert sequential.effect == pytest.approx(math.expm1(np.mean(normal(1, 0.1))))
    interval = stats.t.interval(0.95, 12, np.mean(normal(2, 0.02)), stats.sem(normal(2, 0.02)))
    assert (math.log1p(in_turns.low), math.log1p(in_turns.high)) == pytest.approx(interval)
    assert found.ratio == pytest.approx(in_turns.sd / sequential.sd)
    assert found.sooner == pytest.approx((sequential.sd / in_turns.sd) ** 2 * 8 / 9)
    shown = resident.show("redis", {"ops_per_s": found})
    assert "target at most 0.33 -> met" in shown
    assert "no difference of the effects is seen" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    worse = resident.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(normal(2, 0.09), 9.0))
    assert "MISSED" in resident.show("redis", {"ops_per_s": worse})


@pytest.mark.parametrize(("differences", "said"), [(normal(1, 0.1, 5), "5 usable pairs"), ([0.1] * 13, "all alike")])
def test_what_says_nothing_of_a_spread_is_refused(differences: Sequence[float], said: str) -> None:
    with pytest.raises(resident.TooFewError, match=said):
        resident.found("ops_per_s", collected(normal(1, 0.1), 8.0), collected(differences, 9.0))


@pytest.mark.parametrize("blocks", [6, 7, 13, 40])
def test_both_designs_have_all_their_blocks_in_turns(blocks: int) -> None:
    parts = list(resident.parts(blocks))
    assert Counter({kind: sum(n for each, n in parts if each == kind) for kind in resident.KINDS}) == Counter(
        dict.fromkeys(resident.KINDS, blocks)
    )
    assert max(size for _, size in parts) <= resident.PART
    firsts = Counter(kind for kind, _ in parts[::2])
    assert abs(firsts["sequential"] - firsts["resident"]) <= 1


@pytest.mark.parametrize("name", resident.WORKLOADS)
def test_both_designs_have_one_study(name: str) -> None:
    one, other = (resident.study(name, kind, 4) for kind in resident.KINDS)

    def but_for_the_design(study: Study) -> tuple[object, ...]:
        return study.policies, study.workload, study.budget, study.method, study.between

    assert but_for_the_design(one) == but_for_the_design(other)
    assert (one.design.kind, other.design.kind) == resident.KINDS


def test_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert resident.asked([]) == (13, tuple(resident.WORKLOADS))
    assert resident.asked(["--short", "redis"]) == (6, ["redis"])
    assert resident.asked(["--short", "--blocks", "20"])[0] == 20
    for wrong in (["apache"], ["--blocks", "3"]):
        with pytest.raises(SystemExit):
            resident.asked(wrong)
    assert "apache: known are redis" in capsys.readouterr().err
