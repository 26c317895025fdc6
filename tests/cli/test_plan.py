"""What would run, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.session import feasibility
from tests.build.hosts import FakeHost
from tests.cli.conftest import Call, tiny


def test_dry_runs_differ_without_a_seed(call: Call, fake: FakeHost, tmp_path: Path) -> None:
    assert call("run", tiny(tmp_path), "--dry-run") != call("run", tiny(tmp_path), "--dry-run")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('method = "sequential"', "budget: at most 2 blocks of each cell; 2 comparisons, together at 99% (sequential)"),
        ("confidence = 0.9999", "budget: 2 blocks of each cell; 2 comparisons, together at 99.99% (fixed-n)"),
        ('method = "screening"', "budget: at most 2 blocks of each cell; claims nothing (screening)"),
    ],
)
def test_a_dry_run_says_in_a_line_how_much_and_how_sure(call: Call, tmp_path: Path, written: str, said: str) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(tiny(tmp_path, "base", "thp", "mthp-64k").read_text().replace("[budget]", f"{written}\n[budget]"))
    status, out, err = call("run", study, "--dry-run")
    assert status == 0, err
    assert said in out.splitlines()
    study.write_text(study.read_text().replace("blocks = 2", 'blocks = 2\ntime = "90s"'))
    assert " blocks of each cell, at most 1 min 30 s in all; " in call("run", study, "--dry-run")[1]


def test_a_cells_name_stands_in_one_piece(call: Call, tmp_path: Path) -> None:
    """As --only takes it: the defect broke it in two at 80 columns."""
    study = tiny(tmp_path, "base", "thp", "mthp-64k", "hugetlb-2m")
    name = "of-a-name-that-is-long"
    label = f'name = "chase"\nlabel = "{name}"\nalso = ["page_faults", "cpu_s"]'
    text = study.read_text().replace('name = "chase"', label)
    study.write_text(text.replace('"8m"', '["8388608", "16777216"]').replace("20000", "[1048576, 2097152]"))
    _, out, _ = call("run", study, "--dry-run")
    cells = [line.split()[0] for line in out.splitlines() if line.startswith(name)]
    assert len(cells) == 4
    assert all(f" ({cell}): " in out for cell in cells)


def test_a_dry_run_of_what_cannot_run_says_why(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(thp=False, capacity={})
    monkeypatch.setattr(feasibility, "LocalHost", lambda: host)
    status, out, _ = call("run", tiny(tmp_path), "--dry-run")
    assert status == 0
    assert "left out: thp: the kernel has no transparent huge pages" in out
    assert "left out: chase: only base is left to run" in out
    assert out.endswith("nothing of it can run here\n")


def test_what_cannot_run_is_said_before_pairs_are_asked_for(call: Call, tmp_path: Path) -> None:
    """A pilot of it could not be had either."""
    study = tmp_path / "s.toml"
    study.write_text(
        'format = 1\nname = "s"\npolicies = ["as-is", { name = "b", from = "as-is", environment = { A = "1" } }]\n'
        '[[workload]]\nname = "spin"\n[design]\nkind = "resident"\n'
    )
    status, _, said = call("plan", study)
    assert status == 2
    assert "nothing of s can run here: spin: spin is no workload whose arms can be resident together" in said
