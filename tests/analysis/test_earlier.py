"""The runs that were begun before a run, by what its folder and theirs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hugewise.analysis import analysis
from hugewise.analysis.earlier import comparable, earlier_runs
from hugewise.report.sentences import earlier
from hugewise.session import session
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, Opened
from hugewise.study.load import parse, part
from hugewise.study.study import Study
from tests.build import logs
from tests.build import trials as examples
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


def the_study(name: str = "mine", size: str = "4m") -> Study:
    return parse(STUDY.replace("NAME", name).replace("SIZE", size), f"{name}.toml")


def begun(results: Path, study: Study, t: float, **changes: Any) -> RunFolder:
    """A run that was killed after its first record."""
    return examples.begun(results, study, t=t, **{"host": HOST, **changes})


def names(results: Path, study: Study, **changes: Any) -> tuple[str, ...]:
    return earlier_runs(study, opened("now", **{"host": HOST, **changes}), results)[0]


def test_every_run_that_began_counts_the_newest_first(tmp_path: Path) -> None:
    assert names(tmp_path, the_study()) == ()
    old = begun(tmp_path, the_study(), 10.0)
    pilot = begun(tmp_path, the_study("mine-pilot"), 30.0)
    new = begun(tmp_path, the_study(), 20.0)
    assert names(tmp_path, the_study()) == (f"mine-pilot/{pilot.run}", f"mine/{new.run}", f"mine/{old.run}")


def test_the_run_itself_is_not_before_itself(tmp_path: Path) -> None:
    folder = begun(tmp_path, the_study(), 10.0)
    assert earlier_runs(the_study(), folder.opened(), tmp_path) == ((), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": {"name": "here", "machine": "m2"}},
        {"mechanism": "process"},
        {"versions": {"kernel stock": "6.1"}},
    ],
)
def test_runs_of_another_machine_are_not_of_this_host(tmp_path: Path, changes: dict[str, Any]) -> None:
    begun(tmp_path, the_study(), 10.0, **changes)
    assert names(tmp_path, the_study()) == ()
    assert len(names(tmp_path, the_study(), **changes)) == 1


def test_another_study_of_the_same_name_is_not_the_same(tmp_path: Path) -> None:
    begun(tmp_path, the_study(size="8m"), 10.0)
    assert names(tmp_path, the_study()) == ()


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
    assert earlier_runs(the_study(), opened("now", host=HOST), tmp_path)[1] == 4


def test_only_the_first_record_of_a_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path, the_study(), 10.0)
    folder.append(BlockOpened(t=11.0, block=1, cell="chase", session=1, arms=["base", "thp"]))
    folder.append(BlockClosed(t=12.0, block=1, state="complete"))  # its attempts are gone: the run cannot be reported
    monkeypatch.setattr(RunFolder, "read", lambda self: pytest.fail("more than the first record was read"))
    assert names(tmp_path, the_study()) == (f"mine/{folder.run}",)


def test_a_run_from_before_they_were_looked_for_still_loads(tmp_path: Path) -> None:
    folder = begun(tmp_path, the_study(), 10.0, earlier=("mine/x",))
    assert folder.opened().earlier == ("mine/x",)
    (record,) = logs.lines(folder.path)
    logs.write_lines(folder.path, [json.dumps({**json.loads(record), "earlier": None}).encode() + b"\n"])
    logs.of_before(folder.path)
    assert folder.opened().earlier is None
    assert "was not recorded" in earlier(analysis.analyze(folder.path))


@pytest.mark.usefixtures("unchanged")
def test_a_run_names_those_before_it_and_one_that_is_resumed_keeps_them(tmp_path: Path) -> None:
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
        (f"mine/{first.run}",),
        (f"mine/{second.run}", f"mine/{first.run}"),
    ]
    stream = session.run(study, tmp_path / "calibration", calibrating=True)
    assert stream.opened().earlier is None


def test_the_first_record_is_an_opened_one(tmp_path: Path) -> None:
    folder = begun(tmp_path, the_study(), 10.0)
    assert isinstance(folder.opened(), Opened)
    assert folder.read().opened == folder.opened()
