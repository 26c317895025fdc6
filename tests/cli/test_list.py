"""How long a run takes, as a dry run says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.analysis import budget
from hugewise.analysis.budget import Round
from hugewise.cli import list as listing
from hugewise.model.pages import PageTarget
from hugewise.plan.plan import Plan
from tests.build.studies import an_arm, cell_of, study_of, workloads

ARMS = (an_arm("base", PageTarget("base", 4096)), an_arm("thp", PageTarget("thp", 2 << 20)))
PLAN = Plan((cell_of(workloads()["chase"], *ARMS),), ())
EMULATED = {"guest": {"arch": "arm64"}, "kernel": [{"name": "4k", "package": "linux-image-arm64"}]}


@pytest.mark.parametrize(
    ("keys", "round_", "said"),
    [
        ({}, Round(90.0, "took 1 min 30 s in results/s/1"), "time: 30 min 00 s for 20 blocks of each cell"),
        ({}, Round(0.0, "takes 0 ms"), "time: not known before a first run (--blocks 2): 40 attempts"),
        (EMULATED, Round(0.0, ""), "time: not known before a first run (--blocks 2): 40 attempts, most with a boot of"),
        ({"budget": {"blocks": 20, "time": "5m"}}, Round(0.0, ""), ""),
    ],
)
def test_a_dry_run_says_how_long_a_run_takes(
    keys: dict[str, object], round_: Round, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "measured", lambda *_: round_ if round_.seconds else None)
    monkeypatch.setattr(budget, "declared", lambda *_: round_)
    study = study_of(**{"budget": {"blocks": 20}, **keys})
    lines = list(listing._time(study, PLAN, Path("results")))
    assert "".join(lines[:1]).startswith(said)
    assert bool(lines) == bool(said)
    assert lines[1:] == ([f"  a round of all cells {round_.source}"] if round_.seconds else [])
