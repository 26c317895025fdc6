"""Texts of a megabyte, of which an engine lays out each letter: refused where they come in, cut where drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import RunError
from hugewise.store.folder import RunFolder
from tests.analysis.test_forecast import normal, the_study, write_run
from tests.build.logs import rewritten
from tests.cli.conftest import HUGEWISE

LONG = 1_000_000
DRAWN = """
from hugewise.report import images
long = "x" * 1_000_000
rows = [{"arm": long + "a", "value": 1}, {"arm": "b", "value": 2}]
spec = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "title": long,
    "data": {"values": rows},
    "mark": "bar",
    "encoding": {
        "x": {"field": "value", "type": "quantitative", "title": long, "axis": {"labelExpr": "datum.label"}},
        "y": {"field": "arm", "type": "nominal", "sort": [long + "a", "b"]},
    },
}
drawn = images.render(spec)
assert "x" * 256 + "\\u2026" in drawn
assert len(drawn) < 20_000
"""


def test_a_text_without_end_is_cut_in_a_figure() -> None:
    done = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_name_of_a_megabyte_is_refused_by_analyze(tmp_path: Path) -> None:
    rows = [f"{'x' * LONG}{arm},{1 + number / 10}" for number in range(20) for arm in "ab"]
    file = tmp_path / "long.csv"
    file.write_text("\n".join(["arm,seconds", "short,1", "short,1.1", *rows]) + "\n")
    command = [*HUGEWISE, "analyze", str(file), "--value", "seconds", "--better", "lower", "--unit", "s"]
    command += ["--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}: the arm 'xxxx" in done.stderr
    assert "has a name of 1,000,001 characters" in done.stderr
    assert "cure: name each arm, in their order: --arm base --arm thp" in done.stderr
    assert len(done.stderr) < 1000
    command += ["--arm", "short", "--arm", "base", "--arm", "thp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_arm_of_a_run_has_a_name_that_can_be_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", the_study(), normal(0.01, 3))

    def longer(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        records[0]["cells"][0]["arms"][1]["name"] = "x" * 257
        return records

    rewritten(run, longer)
    with pytest.raises(RunError, match=r"run\.jsonl has no first record") as caught:
        RunFolder(run).read()
    assert caught.value.hint
