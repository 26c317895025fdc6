"""Runs that are gone on with, and those that are refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.build.logs import rewritten
from tests.cli.conftest import SEED, Call


def unfinished(run: Path) -> list[dict[str, Any]]:
    """Make a finished run what it was before its last record; returns its records."""
    (run / "seed").write_text(SEED)
    return rewritten(run, lambda records: records[:-1])


def test_a_finished_run_is_not_resumed(call: Call, finished: Path) -> None:
    status, _, err = call("resume", finished)
    assert status == 2
    assert "has ended: its seed is revealed" in err


def _remove(path: Path) -> None:
    path.unlink()


def _spoil(path: Path) -> None:
    path.write_text("{garbage")


def _edit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert '"margin":0.005' in text
    path.write_text(text.replace('"margin":0.005', '"margin":0.4'), encoding="utf-8")


def _tear_first(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize("verb", ["report", "resume"])
@pytest.mark.parametrize(
    "damage",
    [
        ("study.json", _remove, "study.json: No such file"),
        ("study.json", _spoil, "study.json cannot be read"),
        ("study.json", _edit, "study.json was changed since the run began"),
        ("run.jsonl", _remove, "is not a run's folder"),
        ("run.jsonl", _tear_first, "has no first record"),
        ("attempts.parquet", _spoil, "attempts.parquet cannot be read"),
        # Of a run that has ended it is known where its attempts were.
        ("attempts.parquet", _remove, {"report": "attempts.parquet", "resume": "attempts/b00001-0-"}),
    ],
    ids=lambda damage: f"{damage[0].rpartition('/')[2]}-{damage[1].__name__[1:]}",
)
@pytest.mark.usefixtures("unchanged")
def test_a_damaged_run_is_refused_by_name(
    call: Call, copy: Path, verb: str, damage: tuple[str, Callable[[Path], None], str | dict[str, str]]
) -> None:
    file, harm, message = damage
    if verb == "resume":  # as it was before its last record
        unfinished(copy)
    (harmed,) = copy.glob(file)
    harm(harmed)
    status, out, err = call(verb, copy)
    assert (status, out) == (2, "")
    assert (message if isinstance(message, str) else message[verb]) in err
    assert "cure: " in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "process" if os.geteuid() == 0 else "system"}, "its policies work by another mechanism"),
        ({"host": {"name": "elsewhere", "machine": "0123"}}, "was begun on another machine (elsewhere)"),
        ({"cells": []}, "no longer offers the same policies to the same workloads"),
        ({"format": "x"}, "has no first record"),
    ],
    ids=["user", "machine", "offer", "format"],
)
@pytest.mark.usefixtures("unchanged")
def test_a_run_of_another_user_or_machine_is_not_resumed(
    call: Call, copy: Path, change: dict[str, Any], message: str
) -> None:
    unfinished(copy)
    rewritten(copy, lambda records: [records[0] | change, *records[1:]])
    status, out, err = call("resume", copy)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.usefixtures("unchanged")
def test_a_run_under_another_kernel_is_not_resumed(call: Call, copy: Path) -> None:
    first, *others = unfinished(copy)
    first["host"]["kernel"]["release"] = "1.2.3"
    rewritten(copy, lambda _: [first, *others])
    status, _, err = call("resume", copy)
    assert status == 2
    assert "was begun under the kernel 1.2.3" in err


@pytest.mark.parametrize("kernel", [[], None, "6.1", 7])
@pytest.mark.usefixtures("unchanged")
def test_a_run_that_says_no_kernel_is_not_resumed(call: Call, copy: Path, kernel: object) -> None:
    first, *others = unfinished(copy)
    first["host"]["kernel"] = kernel
    rewritten(copy, lambda _: [first, *others])
    status, _, err = call("resume", copy)
    assert status == 2
    assert "was begun under the kernel None" in err


@pytest.mark.parametrize("text", ["", "zz", "ff" * 16, SEED + "\n0"])
def test_a_seed_that_is_not_the_runs_is_refused(call: Call, copy: Path, text: str) -> None:
    unfinished(copy)
    (copy / "seed").write_text(text)
    status, _, err = call("resume", copy)
    assert status == 2
    assert "is not the seed that the run began with" in err


@pytest.mark.usefixtures("unchanged")
def test_only_what_is_missing_is_made_again(call: Call, copy: Path) -> None:
    unfinished(copy)
    before = (copy / "attempts.parquet").read_bytes()
    status, out, err = call("resume", copy)
    assert status == 0, err
    assert "(finished)" in out.splitlines()[0]
    assert ", finished: 2 blocks complete, 0 incomplete" in (copy / "report.md").read_text(encoding="utf-8")
    assert (copy / "attempts.parquet").read_bytes() == before
    assert not [*copy.glob("attempts/*/attempt.json")]
