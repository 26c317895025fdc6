"""The runs that were begun before a run, by what its folder and theirs say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pytest import approx

from hugewise.analysis import analysis
from hugewise.analysis.earlier import Earlier, Judged, comparable, earlier_runs, evidence_of
from hugewise.model.metric import Metric
from hugewise.model.results import EarlierComparison
from hugewise.report.data_files import report_json
from hugewise.report.remarks import earlier
from hugewise.session import session
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, CellRecord, Opened
from hugewise.study.load import parse, part
from hugewise.study.study import Study
from hugewise.study.tables import Design, PolicyUse
from tests.analysis import test_forecast as forecasts
from tests.analysis.test_forecast import arm, cell
from tests.build import known, logs
from tests.build import trials as examples
from tests.build.results import plain
from tests.build.studies import study_of
from tests.build.trials import opened

STUDY = """
format = 1
name = "NAME"
policies = ["base", "thp"]

[budget]
blocks = 3

[between]
settle = "0ms"

[[workload]]
name = "chase"
parameters = { bytes = "SIZE", loads = 1000 }
"""
HOST = {"name": "here", "machine": "m1"}
CELLS = (cell("chase", "thp"),)


def the_study(name: str = "mine", size: str = "4m") -> Study:
    return parse(STUDY.replace("NAME", name).replace("SIZE", size), f"{name}.toml")


def in_guests(cell: CellRecord, kernel: str) -> CellRecord:
    return replace(cell, arms=tuple(replace(each, kernel=kernel) for each in cell.arms))


def begun(results: Path, study: Study, t: float, **changes: Any) -> RunFolder:
    """A run that was killed after its first record."""
    return examples.begun(results, study, t=t, **{"host": HOST, "cells": CELLS, **changes})


def before(results: Path, study: Study, **changes: Any) -> Earlier:
    return earlier_runs(study, opened("now", **{"host": HOST, "cells": CELLS, **changes}), results)


def names(results: Path, study: Study, **changes: Any) -> tuple[str, ...]:
    return before(results, study, **changes).runs


def test_every_run_that_began_counts_the_newest_first(tmp_path: Path) -> None:
    assert names(tmp_path, the_study()) == ()
    old = begun(tmp_path, the_study(), 10.0)
    pilot = begun(tmp_path, the_study("mine-pilot"), 30.0)
    new = begun(tmp_path, the_study(), 20.0)
    assert names(tmp_path, the_study()) == (f"mine-pilot/{pilot.run}", f"mine/{new.run}", f"mine/{old.run}")


def test_the_run_itself_is_not_before_itself(tmp_path: Path) -> None:
    folder = begun(tmp_path, the_study(), 10.0)
    assert isinstance(folder.opened(), Opened)
    assert folder.read().opened == folder.opened()
    assert earlier_runs(the_study(), folder.opened(), tmp_path) == ((), {}, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": {"name": "here", "machine": "m2"}},
        {"mechanism": "process"},
        {"versions": {"accelerator": "tcg: no KVM"}},
        {"versions": {"kernel stock": "6.1"}, "cells": (in_guests(CELLS[0], "stock"),)},
    ],
)
def test_runs_of_another_machine_are_not_of_this_host(tmp_path: Path, changes: dict[str, Any]) -> None:
    begun(tmp_path, the_study(), 10.0, **changes)
    assert names(tmp_path, the_study()) == ()
    assert len(names(tmp_path, the_study(), **changes)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"values": {"bytes": 8 << 20}},
        {"workload": "fault"},
        {"metric": Metric("wall_s", "s", "lower", "time")},
        {"memory_age": "fragmented"},
        {"baseline": "thp"},
        {"arms": (arm("base"), replace(arm("thp"), treatment=replace(arm("thp").treatment, advice="huge")))},
        {},  # on other processors
    ],
)
def test_a_run_of_other_comparisons_is_not_the_same(tmp_path: Path, other: dict[str, Any]) -> None:
    use = the_study().workload[0] if other else replace(the_study().workload[0], cpus=(0,))
    begun(tmp_path, replace(the_study(), workload=(use,)), 10.0, cells=(replace(CELLS[0], **other),))
    assert names(tmp_path, the_study()) == ()


def test_another_design_is_the_same_question(tmp_path: Path) -> None:
    other = parse(STUDY.replace("0ms", "1s").replace("NAME", "mine").replace("SIZE", "4m"), "mine.toml")
    begun(tmp_path, replace(other, design=Design(kind="duet")), 10.0)
    values = {**CELLS[0].values, "pool_bytes": 4096, "ready_within": "9s"}
    begun(tmp_path, the_study(), 20.0, cells=(replace(CELLS[0], kind="duet", together=True, values=values),))
    assert len(names(tmp_path, the_study())) == 2


def test_a_run_of_another_part_is_named_with_what_it_had_of_this_one(tmp_path: Path) -> None:
    """Another `--arms`, or another `--only`, is no way to a run that seems to be the first."""
    more = (cell("chase", "thp", "mthp"), cell("store", "thp"))
    more = (more[0], replace(more[1], workload="redis"))
    study = the_study()
    arms = begun(tmp_path, replace(study, policies=(*study.policies, PolicyUse(name="mthp"))), 10.0, cells=(more[0],))
    cells = begun(tmp_path, study, 20.0, cells=more[1:])
    called = begun(tmp_path, study, 30.0, cells=(replace(CELLS[0], id="chase-again"),))
    found = before(tmp_path, study, cells=more)
    chase, mthp, store = (
        EarlierComparison(*one, "ns_per_load", 0, "undecided")
        for one in (("chase", "thp"), ("chase", "mthp"), ("store", "thp"))
    )
    assert found.shared == {
        f"mine/{called.run}": (chase,),
        f"mine/{cells.run}": (store,),
        f"mine/{arms.run}": (chase, mthp),
    }
    assert found.runs == tuple(found.shared)
    assert names(tmp_path, study, cells=(replace(more[0], values={"loads": 9}),)) == ()


def test_kernels_that_another_part_had_beside_are_no_other_machine(tmp_path: Path) -> None:
    two = replace(CELLS[0], arms=(*in_guests(CELLS[0], "stock").arms, replace(arm("mthp"), kernel="new")))
    begun(tmp_path, the_study(), 10.0, cells=(two,), versions={"kernel stock": "6.1", "kernel new": "6.18"})
    one = in_guests(CELLS[0], "stock")
    assert len(names(tmp_path, the_study(), cells=(one,), versions={"kernel stock": "6.1"})) == 1
    assert names(tmp_path, the_study(), cells=(one,), versions={"kernel stock": "6.2"}) == ()


def test_what_an_earlier_run_said_is_as_its_report_has_it_or_its_records(tmp_path: Path) -> None:
    study = forecasts.the_study()
    path = forecasts.write_run(tmp_path, study, forecasts.normal(0.02, 5), run={"host": HOST})
    name = f"mine/{path.name}"
    results = analysis.analyze(path)
    (one,) = results.cells[0].comparisons
    said = EarlierComparison(
        "chase", "thp", "ns_per_load", 5, "undecided", known(one.evidence_larger), known(one.evidence_smaller)
    )
    assert before(tmp_path, study).shared == {name: (said,)}  # broken off: it has no report
    (path / "report.json").write_bytes(report_json(results).replace(b'"n": 5', b'"n": 6'))
    assert before(tmp_path, study).shared == {name: (replace(said, pairs=6),)}
    for damaged in ("{", '{"cells": 3}', "[" * 5000):
        (path / "report.json").write_text(damaged)
        assert before(tmp_path, study).shared == {name: (said,)}


def test_of_pilots_and_of_the_same_coins_no_evidence_counts(tmp_path: Path) -> None:
    def has_evidence(seed: int, **changes: Any) -> list[bool]:
        found = before(tmp_path, forecasts.the_study(), seed_hash=f"{seed:064x}", **changes).shared
        assert all(one.pairs == 5 and one.verdict == "undecided" for (one,) in found.values())
        return [one.larger is not None and one.smaller is not None for (one,) in found.values()]

    def write(study: Study, seed: int) -> Path:
        opened = {"host": HOST, "seed_hash": f"{seed:064x}"}
        return forecasts.write_run(tmp_path, study, forecasts.normal(0.02, 5), run=opened)

    first = write(forecasts.the_study(), 1)
    assert (has_evidence(2), has_evidence(1)) == ([True], [False])
    shutil.copytree(first, tmp_path / "mine" / "copy")
    assert sorted(has_evidence(2)) == [False, True]
    write(replace(forecasts.the_study(), name="mine-pilot"), 3)
    write(replace(forecasts.the_study(), name="advise-screening"), 4)
    assert sorted(has_evidence(2)) == [False, False, False, True]


def test_runs_of_other_cells_ask_another_question() -> None:
    study = study_of(workload=[{"name": "chase", "parameters": {"loads": [5, 7]}}])
    one, other = (part(study, [f"chase-loads={loads}"]) for loads in (5, 7))
    assert comparable(one, other) == comparable(study, one) == "cells"
    assert comparable(one, part(study, ["chase-loads=5"])) is None


def test_damaged_folders_are_passed_over(tmp_path: Path) -> None:
    whole = begun(tmp_path, the_study(), 10.0)
    (begun(tmp_path, the_study(), 20.0).path / "study.json").write_text("{")
    (begun(tmp_path, the_study(), 30.0).path / "run.jsonl").write_text("torn")
    (begun(tmp_path, the_study(), 40.0).path / "study.json").unlink()
    (tmp_path / "mine" / "empty").mkdir()
    (tmp_path / "mine" / "odd" / "run.jsonl").mkdir(parents=True)
    assert names(tmp_path, the_study()) == (f"mine/{whole.run}",)
    # What may have been a run is not passed over in silence.
    assert before(tmp_path, the_study()).unread == 4


def test_of_a_run_of_other_comparisons_only_the_first_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(tmp_path, the_study(), 10.0)
    folder.append(BlockOpened(t=11.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    folder.append(BlockClosed(t=12.0, block=1, state="complete"))  # its attempts are gone: the run cannot be reported
    assert before(tmp_path, the_study()).shared[f"mine/{folder.run}"][0].pairs is None
    monkeypatch.setattr(RunFolder, "read", lambda self: pytest.fail("more than the first record was read"))
    assert names(tmp_path, the_study(), cells=(replace(CELLS[0], workload="fault"),)) == ()


def test_a_run_from_before_they_were_looked_for_still_loads(tmp_path: Path) -> None:
    folder = begun(tmp_path, the_study(), 10.0, earlier=("mine/x",))
    assert folder.opened().earlier == ("mine/x",)
    (record,) = logs.lines(folder.path)
    logs.write_lines(folder.path, [json.dumps({**json.loads(record), "earlier": None}).encode() + b"\n"])
    logs.of_before(folder.path)
    assert folder.opened().earlier is None
    assert "was not recorded" in earlier(analysis.analyze(folder.path))


def test_what_is_shared_is_kept_and_a_run_of_before_it_was_has_none(tmp_path: Path) -> None:
    shared = {"mine/x": (EarlierComparison("chase", "thp", "ns_per_load", 9, "undecided"),)}
    folder = begun(tmp_path, the_study(), 10.0, earlier=("mine/x",), earlier_shared=shared)
    assert analysis.analyze(folder.path).earlier_shared == shared
    (record,) = logs.lines(folder.path)
    kept = json.loads(record)
    del kept["earlier_shared"]
    logs.write_lines(folder.path, [json.dumps(kept).encode() + b"\n"])
    logs.of_before(folder.path)
    assert "1 earlier run of this study on this host: mine/x." in earlier(analysis.analyze(folder.path))


def test_evidence_of_all_runs_is_the_product_over_each_of_them_once() -> None:
    def named(run: str, started: float, own: float | None, **known: float | None) -> Judged:
        results = plain()
        cell = results.cells[0]
        one = replace(cell.comparisons[0], evidence_larger=own, evidence_smaller=own)
        shared = {
            f"mine/{name}": (EarlierComparison(cell.cell, one.arm, one.metric, 5, "undecided", value, value),)
            for name, value in known.items()
        }
        return Judged(replace(results, run=run, started=started, earlier_shared=shared), cell, one)

    alone = named("a", 1.0, 8.0, gone=0.5)
    assert evidence_of([alone]).larger == approx(4.0) and evidence_of([alone]).earlier == ("mine/gone",)
    newer = named("b", 2.0, 4.0, a=7.0, gone=0.25)  # knows of `a`, which speaks for itself
    for runs in ([alone, newer], [newer, alone]):
        every = evidence_of(runs)
        assert every.smaller == approx(8.0) and (every.earlier, every.unknown) == (("mine/gone",), ())
    assert evidence_of([named("a", 1.0, None, gone=None)]) == (1.0, 1.0, (), ("mine/gone",))


@pytest.mark.usefixtures("unchanged")
def test_a_run_names_those_before_it_and_one_that_is_resumed_looks_again(tmp_path: Path) -> None:
    study = the_study()
    first = session.run(study, tmp_path)

    def kill(step: str) -> None:
        if step == "touch":
            raise KeyboardInterrupt

    second = session.run(study, tmp_path, on_step=kill)
    third = session.run(study, tmp_path)
    session.resume(second.path)
    assert [analysis.analyze(run.path).earlier for run in (first, second, third)] == [
        (),
        (f"mine/{third.run}", f"mine/{first.run}"),
        (f"mine/{second.run}", f"mine/{first.run}"),
    ]
    assert second.opened().earlier == (f"mine/{first.run}",)
    stream = session.run(study, tmp_path / "calibration", on_step=kill, calibrating=True)
    session.resume(stream.path)
    assert stream.opened().earlier is analysis.analyze(stream.path).earlier is None
