"""Each check finds what it is for, and passes the real method, in small versions."""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hugewise.analysis import combining, earlier
from hugewise.cli import main
from hugewise.errors import UserError
from hugewise.model.trial import commitment, draw_order
from hugewise.report import cell_answers
from hugewise.stats import pooling, signflip
from hugewise.stats.method import Numbers
from hugewise.store.records import BlockClosed, BlockOpened, Closed
from hugewise.study.load import load
from tests.build import trials as examples
from tools.results import programs
from tools.verification import (
    blocks,
    candidate,
    coverage,
    edges,
    enumeration,
    fleets,
    futility,
    independent,
    metamorphic,
    orders,
    planning,
    power,
    replay,
    reruns,
    screenings,
    selftest,
    studies,
    suite,
)
from tools.verification.__main__ import verify_statistics
from tools.verification.block_streams import BlockScene
from tools.verification.candidate import PUBLIC, Candidate, CheckResult
from tools.verification.generators import FAMILIES, Family, autoregression, generator, log_ratios
from tools.verification.matched import OTHER_SHAPES, SHAPES, MatchedBenchmark, Moments, benchmarks
from tools.verification.selftest import FAULTS, DoubledAlpha, DroppedZero, OffByOneSpending, PeekedT, SignDependentRank

STUDY = Path(__file__).parents[2] / "studies" / "demo.toml"


def assert_all(findings: object, passed: bool = True) -> None:
    assert isinstance(findings, (list, tuple))
    assert findings
    assert [finding for finding in findings if finding.passed != passed] == []


@pytest.mark.parametrize("kind", enumeration.KINDS)
def test_size_holds_for_every_kind_and_alpha(kind: str) -> None:
    for alpha in enumeration.SIZE_ALPHAS:
        assert_all(enumeration.size(PUBLIC, kind, enumeration.draw(kind, 9, 4), alpha))


def test_every_sign_vector_goes_through_the_verdict() -> None:
    seen: set[tuple[float, ...]] = set()

    class Recorder(Candidate):
        def verdict(self, differences: Numbers, alpha: float, budget: int) -> int:
            assert budget == len(differences) == 6
            seen.add(tuple(np.sign(differences)))
            return super().verdict(differences, alpha, budget)

    enumeration.size(Recorder(), "random", enumeration.draw("random", 6, 1), 0.2)
    assert len(seen) == 64


def test_the_independent_ledger_knows_a_case_by_hand() -> None:
    # Three equal magnitudes, all sums of +-a: at alpha 0.3 two of eight vectors (all alike) may cross at the third.
    bounds, spent = independent.boundaries([1.0, 1.0, 1.0], 0.3, 3)
    assert bounds == [None, None, sum(independent.scores([1.0, 1.0, 1.0]))]
    assert spent == [0, 0, 0.25]
    assert independent.scores([5.0, 0.0, 1e9]) == [7, 0, 14]
    assert independent.allowed(2, 0.3, 3) == 0
    assert independent.allowed(3, 0.3, 3) == pytest.approx(0.3)


def test_the_independent_implementation_shares_no_code() -> None:
    text = Path(independent.__file__).read_text(encoding="utf-8")
    assert "import hugewise" not in text
    assert "from hugewise" not in text
    assert "numpy" not in text


def test_the_ledger_agrees_and_a_wrong_one_does_not() -> None:
    for kind in enumeration.KINDS:
        vector = enumeration.draw(kind, 60, 1)
        assert_all(enumeration.recomputed(PUBLIC, kind, vector, 1e-4, 6000))
        assert_all(enumeration.counted(PUBLIC, kind, vector[:7], 0.2))
        assert_all(enumeration.recomputed(OffByOneSpending(), kind, vector, 0.05, 60), passed=False)
    assert_all(enumeration.recomputed(DroppedZero(), "zeros", enumeration.draw("zeros", 60, 1), 0.05, 60), passed=False)
    assert_all(enumeration.counted(PeekedT(), "random", enumeration.draw("random", 8, 1), 0.2), passed=False)


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
        assert_all(enumeration.e_process(kind, enumeration.draw(kind, 7, 1)))


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
            made = draw_order(bytes(16), 3, arms, slots, 100)
            again = orders.places(bytes(16), 3, arms, slots, 100)
            assert [trial.arm for trial in made] == list(again)
            assert [(trial.order, trial.slot, trial.environment_pad) for trial in made] == list(again.values())


def run_folder(tmp_path: Path, *, ended: bool = True, honest: bool = True) -> Path:
    seed = bytes(range(16))
    of = load(STUDY)
    committed = commitment(seed if honest else bytes(16))
    folder = examples.begun(tmp_path, of, seed=seed, t=0.0, seed_hash=committed, mechanism="none")
    for block in range(1, 9):
        folder.append(BlockOpened(t=float(block), block=block, cell="c", session=1, arms=["base", "thp"]))
        trials = list(draw_order(seed, block, ["base", "thp"], pad_max=of.attempt.environment_pad))
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


SOME = [
    number
    for number, case in enumerate(blocks.NULLS)
    if "undelivered in 30%" in case.what or "duet" in case.what or "late" in case.what
]


@pytest.mark.parametrize("number", [SOME[0], *(pytest.param(number, marks=pytest.mark.soak) for number in SOME[1:])])
def test_a_null_passes_and_its_fault_is_found(number: int) -> None:
    findings = blocks.nulls(number, 3, 30)
    assert len(findings) == 2
    assert [finding for finding in findings if not finding.passed] == []
    assert "(planted)" in findings[1].case


@pytest.mark.parametrize(
    ("number", "streams"),
    [
        pytest.param(number, 300, marks=pytest.mark.soak) if case in studies.EDGES else (number, 60)
        for number, case in enumerate(edges.EDGES)
    ],
    ids=[case.planted for case in edges.EDGES],
)
def test_the_verdicts_beside_the_sequential_ones_hold_and_their_faults_are_found(number: int, streams: int) -> None:
    findings = edges.edge(number, 3, streams)
    assert len(findings) == 2 and all(finding.passed for finding in findings), findings


@pytest.mark.parametrize("check", [blocks.equivalence, blocks.untouched])
def test_the_other_promises_and_their_faults(check: object) -> None:
    assert callable(check)
    findings = check(3, 20)
    assert findings
    assert [finding for finding in findings if not finding.passed] == []


def test_the_ends_of_early_stops() -> None:
    findings = blocks.ends(3, 20)
    assert [finding for finding in findings if not finding.passed] == []
    assert signflip.STEPS[0] == 0.0  # the fault that was planted is gone


def test_a_scene_is_what_it_says() -> None:
    procedure = BlockScene(share=0.3, slower=0.1, arm=1.0)
    made = list(procedure.blocks(np.random.default_rng(1), 2000))
    lost = [one for one in made if any(attempt.delivery.delivered is False for attempt in one.attempts)]
    assert {one.attempts[0].arm for one in made} == {"arm"}
    assert len(lost) / len(made) == pytest.approx(0.3, abs=0.03)
    assert all(one.attempts[1].delivery.delivered for one in lost)
    slow = [one.attempts[0].metrics["wall_s"] or 0.0 for one in lost]
    assert np.mean(np.log(slow)) == pytest.approx(0.1, abs=0.01)


def test_every_revert_is_planted_somewhere() -> None:
    planted = {case.fault for case in (*blocks.NULLS, blocks.LONG)}
    assert {blocks.DeclaredBudget, blocks.UsableAlone, blocks.BlocksReplaced, blocks.LateIsUsual} <= planted


def test_the_typical_ratio_of_a_known_distribution() -> None:
    values = np.random.default_rng(2).normal(0.03, 0.1, 40_000)
    assert coverage._balanced(values) == pytest.approx(0.03, abs=0.002)
    (finding,) = coverage.lasting("both arms in two modes", 5, 40)
    assert finding.passed


@pytest.mark.parametrize(
    "case", [pytest.param(fleets.CONTROL, marks=pytest.mark.soak), fleets.FleetCase(1.05, 0.5, 0.01, 200)]
)
def test_fleets_keep_their_promise_and_the_planted_fault_does_not(case: fleets.FleetCase) -> None:
    findings = fleets.together(case, 1, 20)
    assert [finding.check for finding in findings] == ["fleet", "fleet", *(["control"] * (case == fleets.CONTROL))]
    for finding in findings:
        assert finding.passed, finding


@pytest.mark.soak
def test_a_machine_type_in_unequal_numbers_moves_nothing() -> None:
    findings = fleets.skew(1, 20)
    assert [finding.check for finding in findings] == ["fleet", "fleet", "control", "control"]
    for finding in findings:
        assert finding.passed, finding


@pytest.mark.soak
def test_hosts_that_are_not_there_are_seen_to_matter_and_bounded_do_not() -> None:
    findings = fleets.absent(1, 25)
    assert [finding.check for finding in findings] == ["control", "control", "control", "fleet"]
    for finding in findings:
        assert finding.passed, finding


def test_below_five_hosts_none_is_shown() -> None:
    (finding,) = fleets.fewest(1)
    assert finding.passed, finding


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


def test_naive_tests_are_scipys() -> None:
    from scipy import stats

    raw = FAMILIES[1].draw(generator(4, "scipy"), 50, candidate.FIRST_LOOK)
    paired = stats.ttest_rel(np.log(raw.arm), np.log(raw.baseline), axis=1).pvalue
    welch = stats.ttest_ind(np.log(raw.arm), np.log(raw.baseline), axis=1, equal_var=False).pvalue
    for level in (0.05, 0.2, 0.5):
        assert candidate.paired_t(raw, level) == pytest.approx(np.mean(paired <= level))
        assert candidate.welch(raw, level) == pytest.approx(np.mean(welch <= level))


DRAWS = 30
SIDES = [(benchmark, side) for benchmark in benchmarks() for side in ("arm", "baseline")]


def drawn(benchmark: MatchedBenchmark, side: str, rho: float = 0.8) -> Numbers:
    values: Numbers = getattr(benchmark.draw(generator(7, benchmark.name), DRAWS, benchmark.n, rho), side)
    return values


@pytest.mark.parametrize(("benchmark_", "side"), SIDES, ids=lambda value: getattr(value, "name", value))
def test_generators_meet_the_published_moments_and_extremes(benchmark_: MatchedBenchmark, side: str) -> None:
    published: Moments = getattr(benchmark_, side)
    values = drawn(benchmark_, side)
    assert values.mean() == pytest.approx(published.mean, rel=0.002)
    assert values.std() == pytest.approx(published.sd, rel=0.03)
    # An extreme hangs on one or two samples: the published one must be nothing special among those drawn, within 1%.
    least, greatest = values.min(axis=1), values.max(axis=1)
    assert 0.99 * least.min() <= published.least <= 1.01 * least.max()
    assert 0.99 * greatest.min() <= published.greatest <= 1.01 * greatest.max()


def test_the_builds_have_as_many_outliers_as_published() -> None:
    builds = next(benchmark for benchmark in benchmarks() if benchmark.name == "gdb-build")
    values = drawn(builds, "baseline")
    away = (values - values.mean()) / values.std()
    assert np.count_nonzero(away > 3) / DRAWS == pytest.approx(135, rel=0.15)
    assert 5 <= np.count_nonzero(away > 6) / DRAWS <= 16


@pytest.mark.parametrize("rho", [0.8, 0.95])
def test_pairs_correlate_as_stated(rho: float) -> None:
    for benchmark in benchmarks():
        raw = benchmark.draw(generator(5, benchmark.name), 10, 20_000, rho)
        assert np.corrcoef(raw.arm.ravel(), raw.baseline.ravel())[0, 1] == pytest.approx(rho, abs=0.012)


def test_the_effects_are_the_articles() -> None:
    effects = {known.name: known.arm.mean / known.baseline.mean - 1 for known in benchmarks()}
    assert effects == pytest.approx({"sysbench-memory": -0.0244, "gdb-build": -0.0112, "iperf3": 0.0037}, abs=1e-4)
    assert {known.name: known.n for known in benchmarks()} == {
        "sysbench-memory": 5000,
        "gdb-build": 24000,
        "iperf3": 37000,
    }
    assert [known.direction for known in benchmarks()] == [-1, -1, 1]


def test_other_shapes_have_the_same_moments() -> None:
    for benchmark in benchmarks(OTHER_SHAPES):
        values = drawn(benchmark, "baseline")
        assert values.mean() == pytest.approx(benchmark.baseline.mean, rel=0.002)
        assert values.std() == pytest.approx(benchmark.baseline.sd, rel=0.03)
        assert SHAPES[benchmark.name] != benchmark.shape


def test_pilots_deliver_what_they_promise_and_the_planted_fault_does_not() -> None:
    findings = planning.pairs(planning.PilotCase(1.0, 0.01, 500), 1, 200)
    assert [finding.case for finding in findings if not finding.passed] == []
    assert {finding.required for finding in findings} == {"88 to 92%", "45 to 55%", "outside 88 to 92%", "not judged"}
    for finding in (*planning.budgets(0.01, 1, 200), *planning.fixed(1.0, 0.01, 1, 200)):
        assert finding.passed, finding


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(screenings.ScreeningCase("normal", 6, 0.0), marks=pytest.mark.soak),
        screenings.ScreeningCase("normal", 2, 1.05),
        screenings.ScreeningCase("normal", 2, 2.5),
    ],
)
def test_screenings_keep_their_promise_and_the_planted_faults_do_not(case: screenings.ScreeningCase) -> None:
    findings = screenings.together(case, 1, 150)
    promised = 1 if case.gain else 2  # where nothing differs, also that the runner-up has no part in it
    planted = ["control"] if case.gain < 2 else []
    assert [finding.check for finding in findings] == ["screening"] * promised + planted
    for finding in findings:
        assert finding.passed, finding


def test_an_early_end_loses_few_verdicts_and_the_planted_one_loses_many() -> None:
    findings = [*futility.ended(futility.CONTROL, 1, 40), *futility.ended(futility.CASES[1], 1, 20)]
    assert [finding.check for finding in findings] == ["futility", "control", "futility"]
    for finding in findings:
        assert finding.passed, finding


SMALL = suite.Options(
    streams=10,
    pairs=60,
    replays=2,
    repeats=2,
    lengths=(6,),
    ledger=20,
    relations=1,
    jobs=1,
    checks=("size", "ledger", "coins"),
)


def test_a_small_suite_passes_and_says_how_far_it_is() -> None:
    heard: list[tuple[str, int, int]] = []
    report = suite.verify(SMALL, lambda name, done, of: heard.append((name, done, of)))
    assert report.passed
    assert [done for _, done, _ in heard] == list(range(1, len(heard) + 1))
    assert {of for *_, of in heard} == {len(heard)}
    checks = list(dict.fromkeys(finding.check for finding in report.findings))
    assert checks == ["exhaustive size", "ledger", "coins"]


def test_processes_find_the_same_in_the_same_order() -> None:
    options = msgspec.structs.replace(SMALL, checks=("size", "ledger"))
    alone = suite.verify(options)
    together = suite.verify(msgspec.structs.replace(options, jobs=2))
    assert together.findings == alone.findings


def test_a_faulty_method_fails_the_suite() -> None:
    report = suite.verify(msgspec.structs.replace(SMALL, checks=("size",)), candidate=DoubledAlpha())
    assert not report.passed


def test_bad_options_are_refused() -> None:
    for options, message in (
        (suite.Options(checks=("sizes",)), "no check is called sizes"),
        (suite.Options(seed=-1), "--seed -1"),
        (suite.Options(streams=0), "--streams 0"),
        (suite.Options(run=Path("/nowhere")), "/nowhere"),
    ):
        with pytest.raises(UserError, match=message):
            suite.verify(options)


def test_the_report_fits_80_columns_and_names_failures() -> None:
    long = CheckResult(check="a check", case="c" * 70, seen="s" * 40, required="r" * 30, passed=False)
    good = CheckResult(check="a check", case="[bold] case", seen="1", required="1", passed=True)
    report = suite.SuiteReport(passed=False, seed=7, seconds=1.0, findings=(long, good))
    written = io.StringIO()
    suite.show(report, written)
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "FAIL" in written.getvalue()
    assert "[bold] case" in written.getvalue()
    assert lines[-1] == "2 findings, 1 NOT as required (seed 7, 1 s)"


def test_progress_is_ten_lines() -> None:
    written = io.StringIO()
    listener = suite.progress(written)
    for done in range(1, 31):
        listener("piece", done, 30)
    assert len(written.getvalue().splitlines()) == 10


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["verify-statistics", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main(command=verify_statistics)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--check", "coins", "--jobs", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True
    assert found["seed"] == 1
    assert {finding["check"] for finding in found["findings"]} == {"coins"}


def test_the_command_fails_when_a_check_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(options: suite.Options, listener: suite.PieceListener) -> suite.SuiteReport:
        assert options.checks == ("power",)
        finding = CheckResult(check="power", case="x", seen="2", required="1", passed=False)
        return suite.SuiteReport(passed=False, seed=options.seed, seconds=0.0, findings=(finding,))

    monkeypatch.setattr(suite, "verify", failing)
    assert call(monkeypatch, "--power") == 1
    assert "NOT as required" in capsys.readouterr().out


def test_claims_over_several_runs_keep_their_error_and_each_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(findings: Sequence[CheckResult]) -> list[str]:
        return [finding.case for finding in findings if not finding.passed]

    assert failing(reruns.begun_anew(1, 15, 50)) == []
    with monkeypatch.context() as plant:
        plant.setattr(programs, "_by_itself", lambda _: True)
        plant.setattr(programs, "evidence_of", lambda _: earlier.AllRuns(1e6, 1e6, (), ()))
        assert failing(reruns.begun_anew(1, 15, 50)) == ["50 runs begun anew: a page says set"]
        assert failing(reruns.overview(1, 8, 50)) == ["an overview of 50 pages says set"]
    with monkeypatch.context() as plant:
        plant.setattr(earlier, "contradicted", lambda *_: None)
        plant.setattr(cell_answers, "contradicted", lambda *_: None)
        assert failing(reruns.begun_anew(1, 15, 50)) == [
            "50 runs begun anew: an answer says set",
            "50 runs begun anew: an advice says set",
        ]


def test_runs_of_one_effect_that_spread_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_all(reruns.two_kinds(1, 10, 0.02))
    monkeypatch.setattr(combining, "_between_runs", lambda of_runs, _: (of_runs[1][0] - of_runs[0][0],) * 3)
    told, claims, control = reruns.two_kinds(1, 10, 0.02)
    assert not told.passed and not claims.passed and control.passed


def test_skewed_effects_of_hosts_keep_the_error_and_an_outlying_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_all(fleets.skewed(1, 300))
    monkeypatch.setattr(pooling, "p_signs", lambda _: 0.0)
    assert [one.case for one in fleets.skewed(1, 150) if not one.passed] == [
        "effects of 10 hosts exponential, mean 0: verdicts"
    ]
