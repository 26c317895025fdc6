"""What the layout library says of an attempt, from lines that it and others write."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.attempt.context import LayoutLine, reported, reporting, summary, undelivered
from hugewise.machine.loader import REPORT
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from tests.requirements import need_root

LAID = LayoutLine(
    pid=10, layout="hugetlb-2m,heap=64m", heap_bytes=64 << 20, heap_from=1 << 30, short_bytes=0, ranges=1, refused=0
)


def line(**changes: Any) -> LayoutLine:
    return msgspec.structs.replace(LAID, **changes)


def treatment(words: str) -> Treatment:
    return Treatment(policy="p", mechanism="process", target=PageTarget("any", 4096), layout=words)


def test_what_the_library_appends_is_read(tmp_path: Path) -> None:
    folder, variables = reporting(tmp_path, 3, None)
    assert variables == {REPORT: str(folder / "report")}
    assert (folder.stat().st_mode & 0o777, (folder / "report").stat().st_mode & 0o777) == (0o700, 0o600)
    assert reported(folder) == []
    told = msgspec.json.encode(LAID) + b"\n"
    old = {name: value for name, value in json.loads(told).items() if name not in ("ranges", "refused")}
    (folder / "report").write_bytes(told + b"what a program says\n{\n" + json.dumps(old).encode() + b"\n" + told[:20])
    assert reported(folder) == [LAID, line(ranges=0)]
    again, _ = reporting(tmp_path, 3, None)
    assert (again, reported(again)) == (folder, []), "each attempt has a new one"


def test_the_report_is_the_account_s_own_and_nobody_else_s(tmp_path: Path) -> None:
    need_root()
    folder, _ = reporting(tmp_path, 0, pwd.getpwnam("nobody"))
    report = folder / "report"
    assert {(each.stat().st_uid, each.stat().st_gid) for each in (folder, report)} == {(65534, 65534)}
    report.write_bytes(msgspec.json.encode(LAID) + b"\n")
    assert reported(folder) == [LAID]
    (tmp_path / "secret").write_bytes(msgspec.json.encode(LAID) + b"\n")
    report.unlink()
    os.link(tmp_path / "secret", report)
    assert reported(folder) == [], "a file of another account is not read for it"


def test_a_report_that_was_taken_away_or_led_elsewhere_is_none(tmp_path: Path) -> None:
    folder, _ = reporting(tmp_path, 0, None)
    (folder / "report").unlink()
    assert reported(folder) == []
    (tmp_path / "other").write_bytes(msgspec.json.encode(LAID) + b"\n")
    (folder / "report").symlink_to(tmp_path / "other")
    assert reported(folder) == []
    (folder / "report").unlink()
    os.mkfifo(folder / "report")
    assert reported(folder) == [], "nobody waits for a pipe"
    (folder / "report").unlink()
    folder.rmdir()
    assert reported(folder) == []


def test_the_record_has_sums() -> None:
    short = line(pid=11, short_bytes=2 << 20, refused=1, ranges=0, why="the pool is short")
    assert summary([LAID, short]) == {
        "processes": 2, "heap_bytes": 128 << 20, "short_bytes": 2 << 20, "ranges": 1, "refused": 1,
        "why": "the pool is short",
    }  # fmt: skip
    assert summary([])["processes"] == 0


@pytest.mark.parametrize(
    ("lines", "words", "reason"),
    [
        ([], "thp", "the program did not load it"),
        ([LAID], "hugetlb-2m", None),
        ([LAID, line(pid=11, short_bytes=64 << 20)], "hugetlb-2m", "the pool was short: 64m are base pages, in 1 of 2"),
        ([line(refused=1, why="the kernel refuses the advice")], "thp", "the kernel refused the advice, in 1 of 1"),
        (
            [line(heap_bytes=0, why="the heap cannot be made so large: a limit")],
            "base",
            "no heap was laid out: the heap",
        ),
        ([line(heap_bytes=0, foreign=True, why="malloc is not glibc's")], "thp", None),
        (
            [line(heap_bytes=0, foreign=True, why="malloc is not glibc's", short_bytes=5)],
            "hugetlb-2m",
            "malloc is not glibc's",
        ),
        ([line(pid=11, heap_bytes=0, foreign=True, why="malloc is not glibc's"), LAID], "hugetlb-2m", None),
        ([LAID, line(heap_bytes=0, why="the heap cannot be")], "thp", "no heap was laid out: the heap cannot be"),
        ([line(heap_bytes=0, why="the heap cannot be"), LAID], "thp", None),
        ([line(heap_bytes=0, why="the program is not one of glibc")], "none", "not one of glibc"),
    ],
)
def test_a_layout_that_was_not_laid_is_not_delivered(lines: list[LayoutLine], words: str, reason: str | None) -> None:
    found = undelivered(lines, treatment(words))
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
