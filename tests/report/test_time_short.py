"""A run whose time was up before a verdict was possible says so, with what would do."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hugewise.analysis import analysis
from hugewise.model.results import Results
from hugewise.report.document import Note
from hugewise.report.remarks import time_short
from hugewise.report.summary import summary
from hugewise.report.write import report
from hugewise.stats import power
from hugewise.store.folder import RunFolder
from hugewise.store.records import Closed
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build import known

LEAST = known(power.least_pairs(0.01, 200))


def ended(results: Path, pairs: int, **changes: object) -> Results:
    """Of a run whose time was up after so many pairs."""
    study = the_study(budget={"blocks": 200, "time": "3m"}, **changes)
    run = RunFolder(write_run(results, study, normal(0.02, pairs)))
    run.append(Closed(t=1e4, state="time is up", seed=bytes(16).hex()))
    return replace(analysis.analyze(run.path), command=("hugewise", "run", "mine"))


def test_what_a_verdict_takes_is_a_note_of_the_report(tmp_path: Path) -> None:
    results = ended(tmp_path, 9)
    minutes = -(-3 * 1.1 * LEAST // 9)
    said = (
        f"The time was up after 9 pairs of each comparison, and a verdict takes at least {LEAST}: begin it anew with"
        f" --time {minutes:.0f}m or more, or with fewer cells and arms (--only, --arms)."
    )
    assert list(time_short(results)) == [said]
    for told in (report(results), summary(results)):
        assert Note(said) in told.lead
    (by_a_program,) = time_short(replace(results, command=()))
    assert by_a_program.endswith(f"{LEAST}: {minutes:.0f} min 00 s or more.")


def test_a_run_that_ended_otherwise_or_had_its_pairs_says_nothing(tmp_path: Path) -> None:
    results = ended(tmp_path, 9)
    assert list(time_short(replace(results, state="interrupted"))) == []
    assert list(time_short(ended(tmp_path / "enough", LEAST))) == []
    (cell,) = results.cells
    better = replace(cell, comparisons=(replace(cell.comparisons[0], verdict="better"),))
    assert list(time_short(replace(results, cells=(better,)))) == []


def test_a_fixed_number_of_blocks_takes_all_of_them(tmp_path: Path) -> None:
    (said,) = time_short(ended(tmp_path, 9, method="fixed-n"))
    assert "a verdict takes at least 200" in said
