"""The paragraph behind a verdict, from a real run to what people read."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

import hugewise
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.report.markdown import escape
from hugewise.report.sections.answer import evidence
from hugewise.report.write import write
from tests.build import known
from tests.requirements import need_root

pytestmark = pytest.mark.usefixtures("unchanged")

STUDY = """
format = 1
name = "why"
policies = ["base", "thp"]
confidence = 0.9

[budget]
blocks = 16

[between]
settle = "0ms"

[[workload]]
name = "fault"
timeout = "30s"
parameters = { bytes = "32m", rounds = 2 }

[[workload]]
name = "chase"
timeout = "30s"
parameters = { bytes = "16m", loads = 400_000 }
"""


def median(results: Results, cell: str, arm: str, name: str) -> float:
    mine: list[Attempt] = [a for a in results.attempts if (a.cell, a.arm, a.state) == (cell, arm, "accepted")]
    return statistics.median(known(a.metrics[name]) for a in mine)


@pytest.mark.soak
def test_a_run_explains_its_verdicts_in_every_report(tmp_path: Path) -> None:
    need_root()
    study = tmp_path / "why.toml"
    study.write_text(STUDY)
    results = hugewise.run(hugewise.load(study), results=tmp_path / "results", seed=bytes(16))
    fault, chase = results.cells
    verdict = fault.comparisons[0].verdict
    assert verdict != "none", fault.comparisons[0].reason

    (why,) = fault.causes  # which verdict it explains, and by what, hangs on this machine's times
    assert [one.faults for one in why.faults] == [
        median(results, fault.cell, arm, "page_faults") for arm in ("base", "thp")
    ]
    assert known(why.faults[0].faults) >= 2 * 8192, "each base page of both rounds"
    assert all(known(one.typical) > 0 for one in why.faults)
    assert (why.delivered[0], round(known(why.delivered[1]), 2)) == (0.0, 1.0)
    (touched,) = chase.causes
    assert known(touched.faults[0].faults) < 100, "its memory was there before the clock"

    pmu = results.host["pmu"]
    assert (pmu["slots"] is None) == any(one.what == "page walks and their cycles" for one in why.unseen)
    assert {cost["size"] for cost in results.host["fault_costs"]} >= {results.host["pages"]["base"]}

    folder = Path(results.folder)
    write(results, folder)
    text = " ".join(evidence(why, verdict))
    assert ("mostly page faults" in text) == (why.told == "faults")
    for name, form in (("report.html", text.split(":")[0]), ("report.md", escape(text))):
        assert form in (folder / name).read_text(encoding="utf-8"), name
    again = hugewise.open_results(folder)
    assert again.cells[0].causes == fault.causes
