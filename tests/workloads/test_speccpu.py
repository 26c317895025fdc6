"""speccpu: its command line and SPEC's CSV, CONSTRUCTED after SPEC's documentation: no real run was at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.workloads.speccpu import WORKLOAD, SpecRow, results
from tests.build.workloads import BASE, PLACES, POOL, Said, given

VALUES = given(WORKLOAD)
CONSTRUCTED = (Path(__file__).parent / "data" / "speccpu-constructed.csv").read_text()
NAME = "CPU2017.001.intrate.test.csv"


def test_the_table_of_all_runs_is_read() -> None:
    rows = results(CONSTRUCTED)
    assert rows[0] == SpecRow("505.mcf_r", 20.5, None, "S")
    assert [row.run_s for row in rows if row.benchmark == "505.mcf_r"] == [20.5, 19.5, 21.25]
    assert [row.status for row in rows if row.benchmark == "557.xz_r"] == ["VE"]
    speed = CONSTRUCTED.replace("Est. ", "").replace("Base Rate", "Base Ratio").replace("20.5,,", "20.5,3.5,")
    assert results(speed)[0].ratio == 3.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no 'Full Results Table'"),
        ('"Full Results Table"\n\n', "not the columns expected"),
        ('"Full Results Table"\n\nBenchmark,"Base Status"\n', "not the columns expected"),
    ],
)
def test_another_csv_is_an_error_that_says_so(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        results(text)


def test_the_median_run_counts_and_a_ratio_needs_reference_inputs() -> None:
    reading = WORKLOAD.read(Said({"timed": ""}, files={NAME: CONSTRUCTED.encode()}), VALUES)
    assert reading.metrics == {"run_s": 20.5, "ratio": None}
    assert "reference inputs only" in reading.absent["ratio"]
    assert (reading.problem, reading.facts["iterations"]) == (None, 3)


def test_a_run_that_spec_did_not_validate_is_a_problem() -> None:
    wrong = {**VALUES, "program": "557.xz_r"}
    reading = WORKLOAD.read(Said({"timed": ""}, files={NAME: CONSTRUCTED.encode()}), wrong)
    assert reading.problem == "557.xz_r: SPEC did not validate it (status VE)"
    with pytest.raises(ValueError, match="no CSV"):
        WORKLOAD.read(Said({"timed": "runcpu: what?"}), VALUES)
    with pytest.raises(ValueError, match=r"500.perlbench_r is not in"):
        WORKLOAD.read(Said({"timed": ""}, files={NAME: CONSTRUCTED.encode()}), {**VALUES, "program": "500.perlbench_r"})


def test_runcpu_is_called_as_documented(tmp_path: Path) -> None:
    values = {**VALUES, "spec": str(tmp_path), "config": "mine"}
    procedure = WORKLOAD.procedure(BASE, values, PLACES)
    assert procedure.timed.argv[0] == f"{tmp_path}/bin/runcpu"
    assert procedure.timed.argv[-1] == "505.mcf_r"
    assert {"--config=mine", "--nobuild", "--noreportable", "--output_format=csv"} <= set(procedure.timed.argv)
    assert (procedure.timed.environment["SPEC"], WORKLOAD.account) == (str(tmp_path), "caller")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "proprietary" in WORKLOAD.missing(VALUES)[0].reason
    assert "no SPEC CPU 2017 here" in WORKLOAD.missing({**VALUES, "spec": str(tmp_path)})[0].reason
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "runcpu").touch()
    installed = {**VALUES, "spec": str(tmp_path), "config": "mine"}
    assert "no such file" in WORKLOAD.missing(installed)[0].reason
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.cfg").touch()
    assert WORKLOAD.missing(installed) == ()


def test_a_pool_is_as_large_as_is_named_in_whole_pages() -> None:
    assert WORKLOAD.pool(POOL, {**VALUES, "pool_bytes": (1 << 30) - 1}) == 1 << 30
