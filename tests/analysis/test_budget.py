"""A budget that decides nothing is told before the run, with what it would take."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import hugewise
from hugewise.analysis import budget, forecast
from hugewise.cli.main import cli
from hugewise.plan.cells import resolve
from hugewise.session import progress, session
from hugewise.stats import power
from hugewise.study import load
from hugewise.study.study import Study
from hugewise.workloads import discover
from tests.analysis.test_forecast import NS, cell, normal, the_study, write_run
from tests.build import known
from tests.build.studies import an_arm, as_toml, cell_of, study_data, workloads


def timed(name: str, *arms: str, **values: Any) -> Any:
    """A cell of that name whose workload has these parameters."""
    return cell_of(workloads()["chase"], *(an_arm(each) for each in arms), id=name, metric=NS, values=values)


LEAST = known(power.least_pairs(0.01, 200))  # of one comparison of `the_study`


def test_a_round_takes_what_the_newest_run_took_and_that_is_held_against_the_time(tmp_path: Path) -> None:
    """Blocks of `write_run` take 3 s."""
    record, of = cell("chase", "thp"), the_study(budget={"blocks": 200, "time": f"{3 * LEAST - 1}s"})
    assert budget.measured(of, [record], tmp_path) is None
    run = write_run(tmp_path, of, normal(0.02, 8))
    found = known(budget.measured(of, [record], tmp_path))
    assert found.seconds == pytest.approx(3.0) and found.source.endswith(f" in {run}")
    assert budget.measured(of, [record, cell("fault", "thp")], tmp_path) is None, "a cell that it did not measure"
    assert budget.measured(of, [cell("chase", "thp", "madvise")], tmp_path) is None, "an arm that it did not measure"
    planned = [timed("chase", "base", "thp")]
    told = known(budget.too_small(of, planned, tmp_path))
    assert f"has room for {LEAST - 1} blocks of each cell (a round took 3.0 s in {run})" in told
    assert f"none of its comparisons is decided before block {LEAST}: 1 min 00 s or more" in told
    enough = the_study(budget={"blocks": 200, "time": f"{3 * LEAST}s"})
    assert budget.too_small(enough, planned, tmp_path) is None
    assert budget.too_small(the_study(), planned, tmp_path) is None, "no limit of time"


def test_without_a_run_the_measured_parts_and_leads_are_what_a_round_takes_at_least(tmp_path: Path) -> None:
    cells = [timed("a", "base", "thp", duration=10.0, lead=2.0), timed("b", "base", "thp", "madvise", duration=4)]
    assert budget.declared(cells).seconds == 2 * 12 + 3 * 4
    resident = [msgspec.structs.replace(cells[0], kind="interleaved")]
    assert budget.declared(resident).seconds == 0, "arms that take turns share one lead"
    given = [timed("a", "base", duration=10.0, operations=5), timed("b", "base", duration=10.0, transactions=5)]
    assert budget.declared(given).seconds == 0, "the work is given, not the time"
    of = the_study(budget={"blocks": 200, "time": "30s"})
    assert "ends within the first round (a round takes 36.0 s at least" in known(budget.too_small(of, cells, tmp_path))
    assert budget.too_small(of, given, tmp_path) is None


def test_a_fixed_number_of_blocks_needs_the_time_for_all_of_them(tmp_path: Path) -> None:
    of = the_study(method="fixed-n", budget={"blocks": 20, "time": "6m"})
    told = known(budget.too_small(of, [timed("a", "base", "thp", duration=10)], tmp_path))
    assert "has room for 18 blocks" in told and "decides after all of its 20 blocks: 7 min 00 s or more" in told
    assert budget.too_small(the_study(method="screening"), [timed("a", "base", "thp", duration=999)], tmp_path) is None


def test_too_few_blocks_decide_nothing_and_the_number_that_is_told_does(tmp_path: Path) -> None:
    cells = [timed("a", "base", "thp", "madvise")]
    told = known(budget.too_small(the_study(budget={"blocks": 5}), cells, tmp_path))
    assert "5 blocks cannot decide 2 comparisons at a confidence of 0.99 together" in told
    needed = int(told.rpartition("--blocks ")[2].split()[0])
    level = forecast.level(the_study(), 2)
    assert power.least_pairs(level, needed) is not None and power.least_pairs(level, needed - 1) is None
    assert budget.too_small(the_study(budget={"blocks": needed}), cells, tmp_path) is None


def test_too_few_blocks_of_fixed_n_have_no_coins_for_a_verdict(tmp_path: Path) -> None:
    """Ten coins that agree are rare enough for each of five comparisons at 99%, nine are not."""
    arms = [f"arm{k}" for k in range(5)]
    few = the_study(method="fixed-n", budget={"blocks": 9})
    told = known(budget.too_small(few, [timed("a", "base", *arms)], tmp_path))
    assert told.endswith(
        "9 blocks cannot decide 5 comparisons at a confidence of 0.99 together, however large an effect"
        " is: --blocks 10 or more"
    )
    enough = the_study(method="fixed-n", budget={"blocks": 10})
    assert budget.too_small(enough, [timed("a", "base", *arms)], tmp_path) is None
    pilot = msgspec.structs.replace(few, name=forecast.pilot_name(few.name))
    assert budget.too_small(pilot, [timed("a", "base", *arms)], tmp_path) is None, "it asks for no verdict"


@pytest.mark.parametrize("scale", ["small", "published"])
@pytest.mark.parametrize(
    "name", ["lkml-2009-paravirt", "lpc-2024-base-pages", "lpc-2024-base-pages-debian", "redhat-2021-vm"]
)
def test_our_studies_of_fixed_n_have_coins_for_a_verdict(name: str, scale: str, tmp_path: Path) -> None:
    study = load.load(load.folder() / f"{name}.toml", scale=scale)
    assert study.method == "fixed-n"
    unlimited = msgspec.structs.replace(study, budget=msgspec.structs.replace(study.budget, time=None))
    assert budget.too_small(unlimited, every_cell(study), tmp_path) is None


def every_cell(study: Study) -> list[Any]:
    """The study's cells as they would be on a host that offers all."""
    return [
        cell_of(
            one.workload,
            *(an_arm(name) for name in one.used.policies or [use.name for use in study.policies]),
            id=one.id,
            metric=one.metric,
            values=one.values,
        )
        for one in resolve(study, discover())
    ]


@pytest.mark.parametrize("verb", ["dry run", "run"])
def test_it_is_told_before_anything_is_measured(tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(as_toml(study_data(name="mine", method="sequential", budget={"blocks": 5})))
    results = tmp_path / "results"
    if verb == "dry run":
        done = CliRunner().invoke(cli, ["run", str(path), "--dry-run", "--results", str(results)])
        assert done.exit_code == 0, done.output
        told = done.output
    else:
        events: list[progress.Event] = []
        monkeypatch.setattr(session, "_hold", lambda _: None)  # all that would be measured
        session.run(load.load(path), results, listener=events.append)
        told = "\n".join(each.text for each in events if isinstance(each, progress.Message))
    assert told.count("the budget is too small to decide anything: 5 blocks cannot") == 1


@pytest.mark.parametrize("name", load.names())
def test_no_study_of_ours_has_a_budget_that_decides_nothing(name: str, tmp_path: Path) -> None:
    """On a host that has all that its workloads need: what cannot run here is left out, and takes no time."""
    study: Study = load.load(load.folder() / f"{name}.toml")
    planned = hugewise.make_plan(study)
    assert budget.too_small(study, planned.cells, tmp_path) is None
