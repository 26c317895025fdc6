"""Every form of a report says whether the run's folder holds what was written, and how the host was held."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from hugewise.model.results import Integrity
from hugewise.report.summary import summary
from hugewise.report.terminal import show
from hugewise.report.write import write
from tests.build.results import plain
from tests.report.conftest import without_png

HASH = "ab" * 32
LINE = "run.jsonl, line 7: it is not a record (JSON is malformed: <b>)"
SAID = [
    (Integrity(state="consistent", hash=HASH), f"Its records are consistent; their last hash is {HASH}."),
    (Integrity(state="unaltered", hash=HASH), f"Its records are unaltered: their last hash is the expected {HASH}."),
    (Integrity(state="salvaged", hash=None, left_out=(LINE,)), "Salvaged: what was not what hugewise had written"),
    (Integrity(state="salvaged", hash=None, left_out=(LINE,)), "run.jsonl, line 7: it is not a record"),
    (Integrity(state="no running hash", hash=None), "the version that made them kept nothing to tell it by"),
]
ANYWAY = "session 1: root went on (--anyway) beside nobody (pid 7), who has the lock that accounts share"
NEAR = "session 1: the lock of this host reaches only as far as /run/hugewise.lock"


@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_a_run_without_a_last_record_says_that_its_end_may_be_missing(tmp_path: Path, state: str) -> None:
    for integrity in (SAID[0][0], SAID[1][0]):
        results = replace(plain(), integrity=integrity, state=state)
        with without_png():
            paths = write(results, tmp_path)
        terminal = StringIO()
        show(summary(results), console=Console(file=terminal, width=400), width=400)
        for text in (terminal.getvalue(), *(paths[name].read_text(encoding="utf-8") for name in ("markdown", "html"))):
            unknown = state == "interrupted" and integrity.state == "consistent"
            assert ("or have ended and lost its last records: nobody can tell" in text) == unknown


@pytest.mark.parametrize(("integrity", "said"), SAID, ids=lambda each: getattr(each, "state", None))
def test_every_form_says_whether_the_records_are_what_was_written(
    tmp_path: Path, integrity: Integrity, said: str
) -> None:
    results = replace(plain(), integrity=integrity, disturbances=(ANYWAY, NEAR))
    with without_png():
        paths = write(results, tmp_path)
    terminal = StringIO()
    show(summary(results), console=Console(file=terminal, width=400), width=400)
    assert (f"Last hash: {HASH}" if integrity.state == "consistent" else said) in terminal.getvalue()
    markdown, html = (paths[name].read_text(encoding="utf-8") for name in ("markdown", "html"))
    for text in (markdown.replace("\\", ""), html):
        for part in (said, ANYWAY, NEAR):
            assert part in text
    assert "<b>" not in html or integrity.state != "salvaged" or "&lt;b&gt;" in html
    told = json.loads(paths["json"].read_bytes())
    assert told["integrity"] == {
        "state": integrity.state,
        "hash": integrity.hash,
        "left_out": list(integrity.left_out),
    }
    assert told["disturbances"] == [ANYWAY, NEAR]
