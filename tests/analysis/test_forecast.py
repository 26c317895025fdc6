"""Forecasts from run folders that are written here, of known spread; and the verb around them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from hugewise.analysis import earlier, forecast
from hugewise.cli.main import cli
from hugewise.cli.plan import PlanOptions, answer
from hugewise.errors import RunError, UserError
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.trial import DeliveryThreshold
from hugewise.report import forecast as report
from hugewise.report.reasons import in_words
from hugewise.stats import paired, power
from hugewise.store.folder import RunFolder
from hugewise.store.records import ArmRecord, Begun, BlockClosed, BlockOpened, CellRecord, Resumed
from hugewise.study.load import read
from hugewise.study.study import Study
from tests.build import known
from tests.build.studies import study_data
from tests.build.trials import attempt, begun, delivery
from tests.report.told import printed

DATA = study_data(name="mine", margin="1%", method="sequential", budget={"blocks": 200})
NS = Metric("ns_per_load", "ns", "lower", "time")


def the_study(**changes: Any) -> Study:
    return read(DATA | changes, "mine.toml")


def arm(name: str) -> ArmRecord:
    kind: Any = "base" if name == "base" else "thp"
    treatment = Treatment(policy=name, mechanism="system", target=PageTarget(kind, 4096))
    return ArmRecord(name, treatment, 0, Deployment(note=""))


def cell(name: str, *arms: str, metric: Metric = NS, also: tuple[Metric, ...] = ()) -> CellRecord:
    return CellRecord(
        id=name,
        workload="chase",
        values={},
        metric=metric,
        baseline="base",
        delivery=DeliveryThreshold(0.95, 0.01),
        arms=tuple(arm(each) for each in ("base", *arms)),
        also=also,
    )


def write_run(
    results: Path,
    of: Study,
    differences: list[float | None],
    *,
    cells: tuple[CellRecord, ...] = (cell("chase", "thp"),),
    shared: float = 0.05,
    sessions: int = 1,
    seed: int = 0,
    run: Mapping[str, Any] | None = None,
    beside: Mapping[str, float | None] | None = None,
    pace: float = 1.0,
) -> Path:
    """A run whose pairs have these log-ratios (None: the arm failed); blocks of 3 s, of which attempts take 2 s, times
    the `pace`.

    `run` is in its first record, beside what is always there. `beside`: other metrics, with the log-ratio of their
    pairs, which differ by a twentieth as much (None: the arms do not have it).
    """
    folder = begun(results, of, **{"t": 0.0, "cells": cells, **(run or {})})
    random = np.random.default_rng(seed)
    block, clock, session = 0, 100.0, 1
    for index, difference in enumerate(differences):
        now = 1 + index * sessions // len(differences)
        if now != session:
            session = now
            folder.append(Resumed(t=clock, session=session, boot_id="b"))
        for record in cells:
            block += 1
            folder.append(
                BlockOpened(t=clock, block=block, cell=record.id, session=session, arms=[a.name for a in record.arms])
            )
            level = 100 * math.exp(random.normal(0, shared))
            for place, each in enumerate(record.arms):
                folder.append(Begun(t=clock + place, block=block, arms=[each.name], number=1))
                value = level * math.exp(difference or 0.0) if each.name != "base" else level
                failed = difference is None and each.name != "base"
                made = attempt(
                    each.name,
                    None if failed else value,
                    block=block,
                    cell=record.id,
                    session=session,
                    state="failed" if failed else "accepted",
                    started=clock + place * pace,
                    ended=clock + (place + 1) * pace,
                    delivery=delivery(target=each.treatment.target),
                )
                for name, shift in (beside or {}).items():
                    if shift is not None or each.name == "base":
                        moved = 0.0 if each.name == "base" else (shift or 0.0) + (difference or 0.0) / 20
                        made.metrics[name] = level * math.exp(moved)  # type: ignore[index]
                folder.accept(folder.draft(f"b{block:05d}-{each.name}"), made)
            clock += 3.0 * pace
            folder.append(BlockClosed(t=clock, block=block, state="complete"))
    return folder.path


def normal(sd: float, pairs: int, seed: int = 1, mean: float = 0.0) -> list[float | None]:
    values = np.random.default_rng(seed).normal(0, 1, pairs)
    return [float(x) for x in mean + sd * (values - values.mean()) / values.std(ddof=1)]


def test_a_forecast_from_a_run(tmp_path: Path) -> None:
    of = the_study()
    run = write_run(tmp_path, of, normal(0.02, 60))
    found = forecast.forecast(of, [run])
    assert (found.effect, found.comparisons) == (0.01, 1)
    assert found.level == pytest.approx(0.01)
    assert found.least == power.least_pairs(1 - of.confidence, 200)
    (row,) = found.rows
    assert (row.pairs, row.failures, row.budget) == (60, 0, 200)
    assert row.sd == pytest.approx(0.02)
    assert row.sd_low is not None and row.sd_high is not None and row.sd_low < 0.02 < row.sd_high
    assert row.scale == pytest.approx(0.02, rel=0.25)
    assert row.scale is not None and row.needed is not None
    # The level of a block is common to both sides (sd 0.05), the difference is not.
    assert row.correlation == pytest.approx(1 / math.sqrt(1 + 0.02**2 / 0.05**2), abs=0.05)
    shift, freedom = math.log(1.01) / row.scale, paired.freedom(60)
    assert row.needed == power.pairs_for_assurance(shift, freedom, found.level, budget=200)
    plugged = power.pairs_for_assurance(shift, power.KNOWN, found.level, budget=200)
    assert plugged is not None and plugged < row.needed < 1.2 * plugged
    assert known(row.needed_low) < row.needed < known(row.needed_high)
    assert row.typical is not None and row.typical < row.needed
    # Blocks of 3 s, two attempts: nothing is left out of the time.
    assert row.seconds == pytest.approx(3.0)
    assert found.seconds == pytest.approx(3.0 * row.needed)
    shown, hidden = (power.shift_shown(200, freedom, found.level, chance=chance) for chance in (0.9, 0.1))
    assert shown is not None and hidden is not None
    assert row.smallest == pytest.approx(math.expm1(shown * row.scale))
    assert row.hidden == pytest.approx(math.expm1(hidden * row.scale))
    assert math.expm1(hidden * row.scale) < 0.6 * math.expm1(shown * row.scale)


def test_comparisons_and_end_points_share_the_error_rate(tmp_path: Path) -> None:
    of = the_study(policies=["base", "thp", "mthp-64k"], end_points=["mean"])
    cells = (cell("chase", "thp", "mthp-64k"), cell("count", "thp", metric=Metric("n", "1", "neutral", "count")))
    run = write_run(tmp_path, of, normal(0.02, 12), cells=cells)
    found = forecast.forecast(of, [run])
    assert [row.arm for row in found.rows] == ["thp", "mthp-64k"]
    assert found.level == pytest.approx(0.01 / 4)
    # The baseline is run once for both arms, at 1 s an attempt.
    needed = [row.needed or 0 for row in found.rows]
    assert found.seconds == pytest.approx(sum(needed) + max(needed), rel=0.01)


def test_the_time_budget_limits_what_can_be_shown(tmp_path: Path) -> None:
    of = the_study(budget={"blocks": 200, "time": "90s"})
    found = forecast.forecast(of, [write_run(tmp_path, of, normal(0.02, 20))])
    assert found.time_blocks == 30
    assert found.rows[0].budget == 30
    all_blocks = forecast.forecast(the_study(), [write_run(tmp_path, the_study(), normal(0.02, 20))])
    assert (found.rows[0].smallest or 0) > (all_blocks.rows[0].smallest or 0)


def test_fixed_n_has_the_power_of_its_t_test(tmp_path: Path) -> None:
    of = the_study(method="fixed-n")
    found = forecast.forecast(of, [write_run(tmp_path, of, normal(0.02, 40))])
    (row,) = found.rows
    shift = math.log(1.01) / known(row.scale)
    assert row.needed == power.student_needed(shift, paired.freedom(40), 1 - of.confidence)
    plugged = power.student_needed(shift, power.KNOWN, 1 - of.confidence)
    assert plugged is not None and row.needed is not None and plugged < row.needed
    assert row.typical == row.needed


def test_failures_count_as_the_worst_and_hardly_widen_the_forecast(tmp_path: Path) -> None:
    of = the_study()
    plain = forecast.forecast(of, [write_run(tmp_path, of, normal(0.02, 40))]).rows[0]
    (row,) = forecast.forecast(of, [write_run(tmp_path, of, [*normal(0.02, 40), None])]).rows
    assert (row.pairs, row.failures) == (41, 1)
    assert row.scale == pytest.approx(plain.scale, rel=0.2)
    (row,) = forecast.forecast(of, [write_run(tmp_path, of, [*normal(0.02, 8), *[None] * 9])]).rows
    assert row.needed is None and "9 of 17 pairs have a failure" in (in_words(row.reason or ""))


def test_equal_pairs_have_no_spread(tmp_path: Path) -> None:
    of = the_study()
    (row,) = forecast.forecast(of, [write_run(tmp_path, of, [0.1] * 10, shared=0.0)]).rows
    assert (
        row.needed is None and in_words(row.reason or "") == "all pairs have the same ratio: any number of them will do"
    )


def test_a_screening_makes_no_verdict_that_could_be_planned(tmp_path: Path) -> None:
    of = msgspec.structs.replace(the_study(), method="screening")
    with pytest.raises(UserError, match="makes no verdict") as error:
        forecast.forecast(of, [write_run(tmp_path, the_study(), normal(0.02, 20))])
    assert "sequential" in (error.value.hint or "")


def test_what_cannot_be_planned_says_what_to_do(tmp_path: Path) -> None:
    of = the_study()
    short = write_run(tmp_path, of, normal(0.02, 5))
    with pytest.raises(UserError, match="too few pairs to plan with: 5") as error:
        forecast.forecast(of, [short])
    assert error.value.hint == "a fresh pilot: hugewise plan mine.toml --pilot 20"
    with pytest.raises(UserError, match="no complete block"):
        forecast.forecast(of, [write_run(tmp_path, of, [])])
    run = write_run(tmp_path, of, normal(0.02, 20))
    for change, key in (
        ({"workload": [{"name": "chase", "parameters": {"bytes": "1m"}}]}, "workload"),
        ({"policies": ["base", "thp", "madvise"]}, "policies"),
        ({"policies": ["base", "thp"], "baseline": "thp"}, "baseline"),
        ({"between": {"settle": "1s"}}, "between"),
    ):
        with pytest.raises(UserError, match=f"measured another study: `{key}` differs from mine's"):
            forecast.forecast(the_study(**change), [run])
    guests: dict[str, Any] = {
        "guest": {"arch": "x86-64", "memory": "1g"},
        "kernel": [{"name": "k", "package": "linux-image-amd64"}],
    }
    inside = write_run(tmp_path, the_study(**guests), normal(0.02, 20))
    for other_guests, key in (
        ({**guests, "guest": {"arch": "x86-64", "memory": "2g"}}, "guest"),
        ({**guests, "guest": {"arch": "x86-64", "memory": "1g", "cpu": "qemu64"}}, "guest"),
        ({**guests, "kernel": [{"name": "k", "build": "pv-none"}]}, "kernel"),
        (dict[str, Any](), "guest"),
    ):
        with pytest.raises(UserError, match=f"measured another study: `{key}` differs from mine's"):
            forecast.forecast(the_study(**other_guests), [inside])
    with pytest.raises(RunError):
        forecast.forecast(of, [tmp_path / "nothing"])
    # Budget, margin, confidence, method and name may differ: they change no pair.
    other = the_study(name="other", margin="2%", confidence=0.999, budget={"blocks": 9}, method="fixed-n")
    assert forecast.forecast(other, [run]).rows[0].pairs == 20


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"versions": {"accelerator": "kvm: a guest booted with it"}}, "accelerator is kvm, there tcg"),
        ({"versions": {"accelerator": "tcg: no KVM", "cpu model": "qemu64"}}, "cpu model is qemu64, there none"),
        ({"versions": {"accelerator": "tcg: no KVM", "kernel k": "6.12.2"}}, "kernel k is 6.12.2, there none"),
        ({"host": {"name": "h", "machine": "m2"}}, "host is m2, there m1"),
        ({"mechanism": "process"}, "mechanism is process, there system"),
    ],
)
def test_runs_on_different_machines_are_not_put_together(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    of = the_study()
    host: dict[str, Any] = {"host": {"name": "h", "machine": "m1"}, "versions": {"accelerator": "tcg: no KVM"}}
    runs = [write_run(tmp_path, of, normal(0.02, 8), run=record) for record in (host, {**host, **other})]
    with pytest.raises(UserError, match=f"another machine than .*: {said}") as error:
        forecast.forecast(of, runs)
    assert "plan from each by itself" in (error.value.hint or "")
    assert forecast.forecast(of, runs[1:]).rows[0].pairs == 8


def test_runs_of_different_designs_are_not_put_together(tmp_path: Path) -> None:
    """Under `kind = "auto"` a cell is resident from the calibration on that lets it be."""
    of = the_study()
    resident = (msgspec.structs.replace(cell("chase", "thp"), kind="interleaved"),)
    runs = [write_run(tmp_path, of, normal(0.02, 8)), write_run(tmp_path, of, normal(0.02, 8), cells=resident)]
    with pytest.raises(UserError, match="measured chase in another design than"):
        forecast.forecast(of, runs)
    assert forecast.forecast(of, runs[1:]).rows[0].pairs == 8


def test_runs_on_one_machine_are_put_together_whatever_else_changed(tmp_path: Path) -> None:
    of = the_study()
    host = {"name": "h", "machine": "m", "boot_id": "one"}
    first = {"host": host, "versions": {"accelerator": "tcg: no KVM", "hugewise": "1"}}
    second = {
        "host": host | {"boot_id": "two", "name": "renamed"},
        "versions": {"accelerator": "tcg: as the study says", "hugewise": "2"},
    }
    runs = [write_run(tmp_path, of, normal(0.02, 8), run=record) for record in (first, second)]
    assert forecast.forecast(of, runs).rows[0].pairs == 16


def test_without_a_pilot_it_is_said_what_is_missing(tmp_path: Path) -> None:
    of = the_study()
    cells = (cell("chase", "thp"),)
    said = forecast.missing(of, cells, tmp_path)
    assert "no measured pairs to plan mine from" in said.message
    assert "1 comparison at an error of 0.01 each; none is decided before pair" in said.message
    few = forecast.missing(the_study(budget={"blocks": 7}), cells, tmp_path)
    assert "7 declared blocks decide none" in few.message
    assert said.hint == "a short pilot: hugewise plan mine.toml --pilot 20"
    write_run(tmp_path, the_study(name="else", policies=["base", "madvise"]), normal(0.02, 8))
    run = write_run(tmp_path, of, normal(0.02, 8))
    assert forecast.past_runs(of, tmp_path) == [run]
    assert forecast.missing(of, cells, tmp_path).hint == f"a past run of it: hugewise plan mine.toml --from {run}"


def test_a_pilot_is_a_run_of_its_own_that_judges_nothing_early(tmp_path: Path) -> None:
    asked: list[Study] = []

    def run(of: Study, results: Path) -> RunFolder:
        asked.append(of)
        return RunFolder(write_run(results, of, normal(0.02, of.budget.blocks)))

    of = the_study(end_points=["mean"])
    path = forecast.pilot(of, 8, tmp_path, run=run)
    assert path.parent.name == "mine-pilot"
    assert (asked[0].budget.blocks, asked[0].method, asked[0].end_points) == (8, "fixed-n", ())
    assert forecast.forecast(of, [path]).rows[0].pairs == 8


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    of = the_study()
    runs = [write_run(tmp_path, of, normal(0.4, 20, seed=s, mean=s)) for s in (1, 2)]
    text = printed(report.study(forecast.forecast(of, runs)))
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines())
    for expected in ("chase", "sd of a pair (95%)", "pairs for 1%", "half of such campaigns"):
        assert expected in text


def test_the_verb(tmp_path: Path) -> None:
    of = the_study()
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 1\nname = "mine"\npolicies = ["base", "thp"]\nmethod = "sequential"\n[[workload]]\nname = "chase"\n'
    )
    run = write_run(tmp_path, of, normal(0.02, 20))
    told = CliRunner().invoke(cli, ["plan", str(path), "--from", str(run), "--effect", "2%", "--json"])
    assert told.exit_code == 0, told.output
    data = json.loads(told.stdout)
    assert data["effect"] == 0.02 and data["rows"][0]["pairs"] == 20 and data["runs"] == [str(run)]
    told = CliRunner().invoke(cli, ["plan", "--from", str(run)])  # the study is the run's own
    assert told.exit_code == 0 and told.stdout.startswith("mine: what it takes to show a change of 1%")
    assert "pairs for 1%" in told.stdout


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (PlanOptions(), "name a study, or a run of one"),
        (PlanOptions(study=Path("x.toml"), effect="much"), "--effect much: not a share"),
        (PlanOptions(study=Path("x.toml"), effect="0"), "no number of pairs shows an effect of 0"),
    ],
)
def test_options_that_make_no_sense(asked: PlanOptions, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        answer(asked)
    assert error.value.hint


def test_an_arm_that_is_not_judged_is_not_planned_for() -> None:
    keys = {"policies": ["base", "thp", "mthp-64k"], "method": "sequential"}
    treatment = Treatment(policy="p", mechanism="system", target=PageTarget("any", 4096))
    cell = CellRecord(
        id="chase", workload="chase", values={}, metric=Metric("ns", "ns", "lower", "time"), baseline="base",
        delivery=DeliveryThreshold(0.0, 0.01),
        arms=tuple(ArmRecord(name, treatment, 0, Deployment(note="")) for name in keys["policies"]),
    )  # fmt: skip
    whole, beside = read(study_data(**keys), "s"), read(study_data(**keys, unjudged=["mthp-64k"]), "s")
    assert [one.arm for one in earlier.judged_comparisons(whole, [cell])] == ["thp", "mthp-64k"]
    assert [one.arm for one in earlier.judged_comparisons(beside, [cell])] == ["thp"]
