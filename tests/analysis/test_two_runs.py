"""`hugewise compare` on run folders that are written here: what differs, whose effects do, what is never claimed."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from hugewise.analysis import analysis, combining
from hugewise.analysis.combining import compared
from hugewise.cli import compare as verb
from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.model.metric import Metric
from hugewise.model.two_runs import TwoRuns
from hugewise.report.reasons import in_words, worded
from tests.analysis.test_combining import a_run
from tests.analysis.test_forecast import cell, the_study, write_run
from tests.build import known
from tests.build.logs import rewritten

FIXED = the_study(method="fixed-n", budget={"blocks": 12})


def test_a_run_is_judged_by_the_rule_that_it_began_with(tmp_path: Path) -> None:
    """Three blocks whose coins agree: enough for Student's t, by which runs of before were judged, not for coins."""
    of = the_study(method="fixed-n", budget={"blocks": 3})
    said = []
    for coins in (False, True):
        run = write_run(tmp_path / str(coins), of, [-0.0999, -0.1, -0.1001], run={"coins": coins})
        said.append(analysis.analyze(run).cells[0].comparisons[0].verdict)
    assert said == ["better", "undecided"]


def called(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["compare", *map(str, arguments)])


def flat(text: str) -> str:
    return " ".join(text.split())


def test_an_effect_that_differs_is_told_with_its_interval_and_one_that_does_not_is_not(tmp_path: Path) -> None:
    one, other = a_run(tmp_path, 1, mean=-0.1), a_run(tmp_path, 2, mean=-0.5)
    found = compared(one, other)
    assert [(each.arm, each.relation, each.runs) for each in found.effects] == [
        ("thp", "spread unknown", (1, 1)),
        ("mthp", "spread unknown", (1, 1)),
    ]
    for each in found.effects:
        assert each.first.low is not None and each.first.high is not None
        assert each.second.low is not None and each.second.high is not None
        assert each.low == pytest.approx(each.second.low / each.first.high)
        assert each.high == pytest.approx(each.second.high / each.first.low)
        assert each.low is not None and each.high is not None
        assert each.low < np.exp(-0.4) < each.high < 1
    assert found.confidence == pytest.approx(0.98)
    again = compared(a_run(tmp_path, 3, mean=-0.1), one)
    assert {each.relation for each in again.effects} == {"spread unknown"}
    assert all("two of each show how far runs spread" in in_words(each.reason) for each in again.effects)
    said = flat(called(one, other).output)
    assert "mthp against base, ns_per_load: second over first -3" in said and "in these two runs alone" in said
    assert "higher in the second" not in said and "lower in the second" not in said


def test_the_comparisons_that_both_runs_have_share_the_error_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[float] = []
    both = combining._both

    def noted(*given: Any) -> Any:
        levels.append(given[-1])
        return both(*given)

    monkeypatch.setattr(combining, "_both", noted)
    found = compared(a_run(tmp_path, 1), a_run(tmp_path, 2))
    assert levels == pytest.approx([(1 - found.confidence) / 2] * 2)


def kinds(results: Path, *runs: tuple[str, float], **of: Any) -> list[Path]:
    """Runs of a host in one folder of results, one after another: the kernel of each, and its effect."""
    found = []
    for seed, (kernel, mean) in enumerate(runs, 1):
        differences = list(np.random.default_rng(seed).normal(mean, 0.02, 12))
        path = write_run(results, of.get("of", the_study()), differences, seed=seed)
        host = {"name": "here", "machine": "m1", "kernel": {"release": kernel}}
        changed = {"run": f"20261120T210000Z-{seed:04x}", "seed_hash": f"{seed:064x}", "t": float(seed), "host": host}
        rewritten(path, lambda records, changed=changed: [records[0] | changed, *records[1:]])  # type: ignore[misc]
        found.append(path)
    return found


def test_a_difference_is_claimed_with_the_spread_between_runs(tmp_path: Path) -> None:
    each = [("old", -0.1), ("new", -0.6), ("old", -0.11), ("new", -0.61), ("old", -0.1), ("new", -0.6)]
    *_, one, other = kinds(tmp_path, *each)
    (found,) = compared(one, other).effects
    assert (found.relation, found.runs) == ("lower", (3, 3))
    assert known(found.low) < np.exp(-0.5) < known(found.high) < 1
    assert "lower in the second, in favour of thp: second over first -39" in flat(called(one, other).output)
    assert "over 3 and 3 runs" in flat(called(one, other).output)
    assert "higher in the second, against thp: second over first +" in flat(called(other, one).output)


def test_runs_that_spread_as_far_as_they_differ_are_not_told_apart(tmp_path: Path) -> None:
    each = [("old", -0.1), ("old", -0.4), ("new", -0.1), ("new", -0.4), ("old", -0.1), ("new", -0.4)]
    *_, one, other = kinds(tmp_path, *each)
    (found,) = compared(one, other).effects
    assert (found.relation, found.runs) == ("not told apart", (3, 3))
    assert known(found.first.high) > known(found.second.high) and known(found.low) < 1 < known(found.high)


@pytest.mark.parametrize("first", ["odd", "old"])
def test_a_run_of_another_kernel_or_begun_later_repeats_neither(first: str, tmp_path: Path) -> None:
    """The two runs of `new` agree in the kernel, which an older run does not."""
    _, one, other, _ = kinds(tmp_path, (first, -0.1), ("old", -0.1), ("new", -0.6), ("new", -0.6))
    assert compared(one, other).effects[0].runs == ((1, 1) if first == "odd" else (2, 1))


def test_a_run_of_another_budget_repeats_where_the_budget_is_no_difference_of_the_two(tmp_path: Path) -> None:
    (few,) = kinds(tmp_path, ("same", -0.1), of=the_study(budget={"blocks": 12}))
    named = {"run": "20261120T200000Z-0000", "seed_hash": "f" * 64, "t": 0.0}
    rewritten(few, lambda records: [records[0] | named, *records[1:]])
    _, one, other = kinds(tmp_path, *[("same", -0.1)] * 3)
    assert compared(one, other).effects[0].runs == (3, 1)
    assert compared(few, other).effects[0].runs == (1, 3)


def test_where_nothing_differs_the_runs_of_before_are_the_first_ones(tmp_path: Path) -> None:
    _, one, _, other = kinds(tmp_path, *[("same", -0.1)] * 4)
    assert compared(one, other).effects[0].runs == (2, 2)
    assert compared(other, one).effects[0].runs == (2, 2)


def test_the_second_over_the_first_is_turned_with_the_runs(tmp_path: Path) -> None:
    *_, one, other = kinds(tmp_path, *[("old", -0.1), ("new", -0.6)] * 3)
    there, back = compared(one, other), compared(other, one)
    for each, turned in zip(there.effects, back.effects, strict=True):
        assert (turned.relation, turned.first, turned.second) == ("higher", each.second, each.first)
        assert turned.ratio == pytest.approx(1 / each.ratio if each.ratio else None)
        assert turned.low == pytest.approx(1 / each.high if each.high else None)


def test_alike_is_said_only_when_all_of_the_interval_is_within_the_margin(tmp_path: Path) -> None:
    of = the_study(method="fixed-n", budget={"blocks": 12}, margin="20%")
    *_, one, other = kinds(tmp_path, *[("old", -0.1), ("new", -0.1)] * 3, of=of)
    assert {each.relation for each in compared(one, other).effects} == {"alike"}
    assert "alike: second over first" in flat(called(one, other).output)


def test_before_the_planned_number_nothing_is_said_of_a_fixed_n(tmp_path: Path) -> None:
    of = the_study(method="fixed-n", budget={"blocks": 200})
    found = compared(a_run(tmp_path, 1, of=of), a_run(tmp_path, 2, of=FIXED, mean=-0.5))
    assert {each.relation for each in found.effects} == {"not comparable"}
    assert all(each.low is None and each.high is None for each in found.effects)
    assert "has 12 of 200 planned pairs" in in_words(found.effects[0].reason)


def test_the_intervals_of_fixed_n_are_at_levels_that_do_not_hang_on_the_data(tmp_path: Path) -> None:
    one = a_run(tmp_path, 1, of=FIXED)
    shown = [each.first for each in compared(one, a_run(tmp_path, 2, of=FIXED)).effects]
    by_holm = analysis.analyze(one).cells[0].comparisons
    for mine, held in zip(shown, by_holm, strict=True):
        assert mine.low is not None and mine.high is not None and held.low is not None and held.high is not None
        assert mine.low <= held.low and held.high <= mine.high
    assert [held.confidence for held in by_holm] != [0.995, 0.995]  # or nothing was shown


def test_what_differs_stands_first_and_by_its_key(tmp_path: Path) -> None:
    kernels = [{"name": "a", "machine": "m", "kernel": {"release": each}} for each in ("6.1.0", "6.12.0")]
    one, other = (
        a_run(tmp_path, seed, host=host, versions={"hugewise": "0.1.0", "redis": f"7.{seed}"}, settings={"/k": "never"})
        for seed, host in zip((1, 2), kernels, strict=True)
    )
    found = compared(one, other)
    told = {(each.aspect, each.key): (each.first, each.second) for each in found.differences}
    assert told == {("host", "kernel.release"): ("6.1.0", "6.12.0"), ("versions", "redis"): ("7.1", "7.2")}
    assert (found.same_study, found.same_host) == (True, True)
    out = called(one, other).output
    assert out.index("kernel.release: 6.1.0 / 6.12.0") < out.index("second over first")
    assert "No coin chose which of the two runs came first" in flat(out)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_what_a_kernel_had_begun_to_use_of_a_node_is_no_difference_of_hosts(tmp_path: Path) -> None:
    """Older runs kept that of a node, which grows on some kernels; newer ones what lies in it."""
    older = [{"cpus": "0-15", "bytes": each << 30} for each in (6, 15)]
    newer = [{"cpus": "0-15", "present_bytes": each << 30} for each in (135, 135, 67)]
    nodes = [*older, *newer]
    runs = [a_run(tmp_path, n, host={"name": "a", "memory": {"nodes": {"node0": of}}}) for n, of in enumerate(nodes, 1)]
    for first, second in ((0, 1), (1, 2), (2, 1), (2, 3)):
        assert compared(runs[first], runs[second]).differences == (), (first, second)
    (only,) = compared(runs[3], runs[4]).differences
    assert (only.key, only.first, only.second) == ("memory.nodes.node0.present_bytes", f"{135 << 30}", f"{67 << 30}")


def test_what_else_there_was_to_choose_is_no_difference(tmp_path: Path) -> None:
    """A part of a study with guests keeps all of that study beside its own keys."""
    part = msgspec.structs.replace(the_study(), whole=the_study(question="Which of all?"))
    found = compared(a_run(tmp_path, 1), a_run(tmp_path, 2, of=part))
    assert [each.key for each in found.differences if each.aspect == "study"] == []
    assert found.same_study


def test_runs_of_other_parameters_are_shown_and_nothing_is_concluded(tmp_path: Path) -> None:
    small = msgspec.structs.replace(cell("chase", "thp"), values={"bytes": 1 << 20, "loads": 5})
    large = msgspec.structs.replace(small, values={"bytes": 1 << 30, "loads": 5})
    found = compared(a_run(tmp_path, 1, cells=(small,)), a_run(tmp_path, 2, cells=(large,), mean=-0.9))
    (only,) = found.effects
    assert only.relation == "not comparable"
    assert only.unlike == ("parameter bytes: 1048576 / 1073741824",)
    assert only.ratio is not None and only.low is not None
    assert {level.ratio for level in found.levels} == {None}
    assert all("not the same work: parameter bytes" in level.reason for level in found.levels)


def test_a_treatment_that_is_another_and_another_unit_are_no_one_question(tmp_path: Path) -> None:
    mine = cell("chase", "thp")
    base, thp = mine.arms
    by_process = msgspec.structs.replace(
        thp, treatment=msgspec.structs.replace(thp.treatment, mechanism="process", advice="huge")
    )
    other = msgspec.structs.replace(mine, arms=(base, by_process), metric=Metric("ns_per_load", "us", "lower", "time"))
    (only,) = compared(a_run(tmp_path, 1, cells=(mine,)), a_run(tmp_path, 2, cells=(other,))).effects
    assert only.relation == "not comparable"
    assert len(only.unlike) == 2
    assert "thp is not set alike: system: nothing is turned" in only.unlike[1]
    assert "process: madvise(huge)" in only.unlike[1]


def test_runs_of_one_copy_and_of_two_have_one_direction_and_not_one_ratio(tmp_path: Path) -> None:
    """End points are made of pairs, whatever the copies."""
    once, of = cell("chase", "thp"), the_study(end_points=["mean"])
    runs = [
        a_run(tmp_path, seed, of=of, cells=(msgspec.structs.replace(once, copies=copies),))
        for seed, copies in ((1, 1), (2, 2))
    ]
    typical, mean = compared(*runs).effects
    assert (typical.relation, typical.unlike) == ("not comparable", ("attempts of each policy in a block: 1 / 2",))
    assert mean.unlike == ()
    together = combining.answer(runs).comparisons[0]
    assert together.direction != "refused"
    assert together.smaller == pytest.approx(np.prod([known(part.smaller) for part in together.parts]))


def test_other_studies_are_told_of_and_what_only_one_has_is_listed(tmp_path: Path) -> None:
    one = a_run(tmp_path, 1, cells=(cell("chase", "thp", "mthp"),))
    other = a_run(tmp_path, 2, cells=(cell("chase", "thp", "pool"),), of=the_study(name="yours"))
    found = compared(one, other)
    assert [each.arm for each in found.effects] == ["thp"]
    assert [text.partition(" against")[0] for text in found.alone] == ["mthp", "pool"]
    out = flat(called(one, other).output)
    assert "note: the two runs are of different studies" in out
    assert "name: mine / yours" in out


def test_levels_are_told_apart_from_effects_and_have_no_interval(tmp_path: Path) -> None:
    found = compared(a_run(tmp_path, 1), a_run(tmp_path, 2))
    base = found.levels[0]
    first, second = base.first, base.second
    assert (first.arm, second.arm, first.n, second.n) == ("base", "base", 12, 12)
    assert first.median and second.median and base.ratio == pytest.approx(second.median / first.median)
    assert first.low is not None and first.high is not None
    assert first.low <= first.median <= first.high
    assert "Levels: second over first, which nothing has randomised" in called(*_two(tmp_path)).output


def _two(tmp_path: Path) -> tuple[Path, Path]:
    return a_run(tmp_path, 11), a_run(tmp_path, 12)


def test_other_metrics_are_medians_and_shown_when_asked_for(tmp_path: Path) -> None:
    one, other = _two(tmp_path)
    assert "not judged" not in called(one, other).output
    assert "Other metrics, by medians: not judged" in called(one, other, "--metric", "*").output
    wrong = CliRunner().invoke(cli, ["compare", str(one), str(other), "--metric", "nothing"])
    assert isinstance(wrong.exception, UserError) and "they have: " in (wrong.exception.hint or "")


def test_json_is_the_type(tmp_path: Path) -> None:
    one, other = _two(tmp_path)
    done = called(one, other, "--json")
    told = json.loads(done.output)
    assert msgspec.convert(told, TwoRuns, strict=False) == msgspec.convert(worded(compared(one, other)), TwoRuns)


def test_a_run_and_its_copy_are_one_run(tmp_path: Path) -> None:
    one = a_run(tmp_path, 1)
    for other in (one, Path(shutil.copytree(one, tmp_path / "copy"))):
        with pytest.raises(UserError, match="is given twice"):
            compared(one, other)


def test_runs_that_share_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no comparison in common"):
        compared(a_run(tmp_path, 1), a_run(tmp_path, 2, cells=(cell("stream", "thp"),)))


def test_an_advice_stands_for_its_confirmation(tmp_path: Path) -> None:
    one, other = _two(tmp_path)
    advice = tmp_path / "advice"
    advice.mkdir()
    record: dict[str, Any] = {
        "question": {"workload": "command"},
        "confirmation_folder": one.name,
        "cwd": str(one.parent),
    }
    (advice / "advice.json").write_text(json.dumps(record))
    assert verb._run_of(advice) == one
    (advice / "advice.json").write_text(json.dumps(record | {"confirmation_folder": ""}))
    with pytest.raises(UserError, match="no confirmation"):
        verb._run_of(advice)
    assert verb._run_of(other) == other
