"""Each check finds what it is for, and passes the real method, in small versions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hugewise.errors import UserError
from hugewise.model import randomisation
from hugewise.stats import signflip
from hugewise.stats.method import Numbers
from hugewise.stats.signflip import Boundary
from hugewise.store.records import BlockClosed, BlockOpened, Closed
from hugewise.study.load import load
from tests.build import trials as examples
from tools.verification import (
    coverage,
    evalue,
    independent,
    ledger,
    magnitudes,
    metamorphic,
    orders,
    power,
    replay,
    selftest,
    size,
)
from tools.verification.candidate import PUBLIC, Candidate, CheckResult
from tools.verification.matched import benchmarks
from tools.verification.selftest import FAULTS, DoubledAlpha, DroppedZero, OffByOneSpending, PeekedT, SignDependentRank

STUDY = Path(__file__).parents[2] / "studies" / "demo.toml"


def assert_all(findings: object, passed: bool = True) -> None:
    assert isinstance(findings, (list, tuple))
    assert findings
    assert [finding for finding in findings if finding.passed != passed] == []


@pytest.mark.parametrize("kind", magnitudes.KINDS)
def test_size_holds_for_every_kind_and_alpha(kind: str) -> None:
    for alpha in size.ALPHAS:
        assert_all(size.size(PUBLIC, kind, magnitudes.draw(kind, 9, 4), alpha))


def test_every_sign_vector_goes_through_the_verdict() -> None:
    seen: set[tuple[float, ...]] = set()

    class Recorder(Candidate):
        def verdict(self, differences: Numbers, alpha: float, budget: int) -> int:
            assert budget == len(differences) == 6
            seen.add(tuple(np.sign(differences)))
            return super().verdict(differences, alpha, budget)

    size.size(Recorder(), "random", magnitudes.draw("random", 6, 1), 0.2)
    assert len(seen) == 64


def test_the_independent_ledger_knows_a_case_by_hand() -> None:
    # Three equal magnitudes, all sums of +-a: at alpha 0.3 two of eight vectors (all alike) may cross at the third.
    bounds, spent = independent.boundaries([1.0, 1.0, 1.0], 0.3, 3)
    assert bounds == [None, None, sum(independent.scores([1.0, 1.0, 1.0]))]
    assert spent == [0, 0, 0.25]
    assert independent.scores([5.0, 0.0, 1e9]) == [7, 0, 14]
    assert independent.allowed(2, 0.3, 3) == 0
    assert independent.allowed(3, 0.3, 3) == pytest.approx(0.3)


def test_the_independent_boundaries_are_the_public_ones() -> None:
    # The public one may be lower where no sum lies in between; whoever crosses one crosses the other.
    for kind in magnitudes.KINDS:
        vector = magnitudes.draw(kind, 120, 2)
        bounds, spent = independent.boundaries(vector.tolist(), 0.01, 120)
        public = Boundary(0.01, 120)
        scores = independent.scores(vector.tolist())
        for score, own, exact in zip(scores, bounds, spent, strict=True):
            other = public.step(score)
            assert (other is None) == (own is None)
            assert other is None or own is None or other <= own
            assert public.spent == pytest.approx(float(exact), rel=1e-12, abs=0)
        assert signflip.run(vector, 0.01, 120).walk == sum(scores)


def test_the_independent_implementation_shares_no_code() -> None:
    text = Path(independent.__file__).read_text(encoding="utf-8")
    assert "import hugewise" not in text
    assert "from hugewise" not in text
    assert "numpy" not in text


def test_the_ledger_agrees_and_a_wrong_one_does_not() -> None:
    for kind in magnitudes.KINDS:
        vector = magnitudes.draw(kind, 60, 1)
        assert_all(ledger.recomputed(PUBLIC, kind, vector, 1e-4, 6000))
        assert_all(ledger.counted(PUBLIC, kind, vector[:7], 0.2))
        assert_all(ledger.recomputed(OffByOneSpending(), kind, vector, 0.05, 60), passed=False)
    assert_all(ledger.recomputed(DroppedZero(), "zeros", magnitudes.draw("zeros", 60, 1), 0.05, 60), passed=False)
    assert_all(ledger.counted(PeekedT(), "random", magnitudes.draw("random", 8, 1), 0.2), passed=False)


def test_null_replay_and_its_control() -> None:
    findings = replay.replay(PUBLIC, "heavy-tail", 2, 60, 400)
    assert [finding.check for finding in findings] == ["null replay", "control", "control"]
    assert replay.limit(2000) == pytest.approx(0.065)
    assert findings[0].passed
    assert_all(replay.replay(PeekedT(), "ties", 2, 100, 400), passed=False)


@pytest.mark.parametrize("case", ["a constant effect", "unequal sd, skewed"])
def test_coverage_of_the_typical_ratio(case: str) -> None:
    assert_all(coverage.typical(case, 1, 10))


def test_coverage_of_the_campaign_average_of_costs_and_of_sessions() -> None:
    assert_all(coverage.average("drift AR(.95)", 1, 40))
    assert_all(coverage.average("25 pairs a session", 1, 40))
    assert_all(coverage.costs(1, 40))
    assert_all(coverage.beyond(1, 40))
    assert coverage.limit(1000) == pytest.approx(0.0707, abs=1e-4)


def test_the_e_process_has_mean_one() -> None:
    for kind in ("random", "zeros", "failures"):
        assert_all(evalue.exhaustive(kind, magnitudes.draw(kind, 7, 1)))


def test_metamorphic_relations_hold_and_catch() -> None:
    assert_all(metamorphic.metamorphic(PUBLIC, 1, 2))
    broken = {finding.case for finding in metamorphic.metamorphic(SignDependentRank(), 1, 2) if not finding.passed}
    assert "labels exchanged: same pair, opposite sign" in broken


@pytest.fixture(scope="module", autouse=True)
def _one_battery_a_method() -> Iterator[None]:
    """What the battery finds of a method is found once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "battery", functools.cache(selftest.battery))
        yield


# The others are caught by a check of the battery each in the tests above. That of the doubled alpha is asked for below.
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if isinstance(each, DoubledAlpha) else pytest.mark.soak) for each in FAULTS],
    ids=lambda fault: fault.name,
)
def test_every_fault_is_caught(fault: Candidate) -> None:
    (finding,) = selftest.caught(fault, 5)
    assert finding.passed, finding.seen


def test_the_method_itself_passes_the_battery_that_catches_the_faults() -> None:
    assert_all(selftest.clean(PUBLIC, 5))
    (finding,) = selftest.clean(FAULTS[3], 5)
    assert not finding.passed


def test_what_passes_the_battery_is_reported_as_not_caught() -> None:
    (finding,) = selftest.caught(PUBLIC, 5)
    assert (finding.passed, finding.seen) == (False, "not caught")


def test_power_on_the_quickest_benchmark() -> None:
    (quickest,) = (known for known in benchmarks() if known.name == "sysbench-memory")
    pairs, verdicts = power.stops(PUBLIC, quickest, 0.95, 1, 30)
    assert np.median(pairs) <= power.MOST[0.95]["sysbench-memory"]
    assert set(verdicts) == {-1}


def test_orders_are_made_again() -> None:
    assert_all(orders.of_design(1, 200))
    for arms in (["a"], ["b", "a"], list("abcdefg")):
        for slots in (1, 2, 8):
            made = randomisation.order(bytes(16), 3, arms, slots, 100)
            again = orders.places(bytes(16), 3, arms, slots, 100)
            assert [trial.arm for trial in made] == list(again)
            assert [(trial.order, trial.slot, trial.environment_pad) for trial in made] == list(again.values())


def run_folder(tmp_path: Path, *, ended: bool = True, honest: bool = True) -> Path:
    seed = bytes(range(16))
    of = load(STUDY)
    commitment = randomisation.commitment(seed if honest else bytes(16))
    folder = examples.begun(tmp_path, of, seed=seed, t=0.0, seed_hash=commitment, mechanism="none")
    for block in range(1, 9):
        folder.append(BlockOpened(t=float(block), block=block, cell="c", session=1, arms=["base", "thp"]))
        trials = list(randomisation.order(seed, block, ["base", "thp"], pad_max=of.attempt.environment_pad))
        if not honest and block == 4:
            trials.reverse()
        for position, trial in enumerate(trials):
            started = block + 0.1 + 0.2 * position
            accepted = examples.attempt(
                trial.arm,
                1.0,
                block=block,
                order=position,
                slot=trial.slot,
                environment_pad=trial.environment_pad,
                started=started,
            )
            folder.accept(folder.draft(f"b{block}-{trial.arm}"), accepted)
        folder.append(BlockClosed(t=block + 0.5, block=block, state="complete"))
    if ended:
        folder.append(Closed(t=9.0, state="finished", seed=seed.hex()))
    return folder.path


def test_a_runs_revealed_seed_gives_its_orders(tmp_path: Path) -> None:
    findings = orders.of_run(run_folder(tmp_path))
    assert_all(findings)
    assert findings[1].seen == "0 of 16"


def test_a_run_with_another_seed_or_order_is_found_out(tmp_path: Path) -> None:
    findings: list[CheckResult] = list(orders.of_run(run_folder(tmp_path, honest=False)))
    assert [finding.passed for finding in findings] == [False, False, False, True]
    assert [finding.seen for finding in findings[1:3]] == ["2 of 16", "1 of 8"]


def test_a_run_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has not ended"):
        orders.of_run(run_folder(tmp_path, ended=False))


def test_own_vectors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vector.txt"
    path.write_text("0.1, -0.2 0\n1e6\n")
    assert magnitudes.read(path).tolist() == [0.1, 0.2, 0.0, 1e6]


@pytest.mark.parametrize(
    ("text", "message"),
    [("0.1\nabc", "line 2: abc is not a number"), ("1 nan", "line 1: nan"), ("", "0 numbers"), ("1 " * 17, "17 num")],
)
def test_bad_vectors_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "vector.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        magnitudes.read(path)


def test_a_missing_vector_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.txt"):
        magnitudes.read(tmp_path / "none.txt")
