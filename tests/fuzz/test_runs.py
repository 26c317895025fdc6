"""Folders of runs that somebody else made, broken: they are reported, or refused with the file and a cure."""

import re
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hugewise
from hugewise.cli.main import main
from hugewise.errors import UserError
from hugewise.report.data_files import attempt_lines, comparisons_csv, report_json
from hugewise.report.markdown import markdown
from hugewise.report.summary import summary
from hugewise.report.write import report
from tests.fuzz.inputs import broken, fuzzed, in_time
from tests.golden import GOLDEN

RUNS = GOLDEN / "runs"
FILES = [
    path.relative_to(RUNS)
    for path in sorted(RUNS.rglob("*"))
    if path.is_file() and path.name not in ("verdicts.json", "study.toml", "seed")
]


def judged(folder: Path) -> None:
    """All that a reader sees of the folder, but for the drawing of figures."""
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = hugewise.open_results(folder)
            markdown(report(found))
            summary(found)
            report_json(found)
            list(attempt_lines(found))
            comparisons_csv(found)
    except UserError as error:
        assert str(folder) in error.message and error.hint


@pytest.mark.parametrize("name", ["ended", "interrupted", "guests"])
def test_a_broken_folder_is_reported_or_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(RUNS / name, folder)
    mine = [path for path in FILES if path.parts[0] == name]

    @fuzzed(25, of=3)
    @given(st.data())
    def every(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(mine))
        whole = (RUNS / path).read_bytes()
        (tmp_path / path).write_bytes(data.draw(broken([whole])))
        try:
            judged(folder)
        finally:
            (tmp_path / path).write_bytes(whole)

    every()


VALUES = [
    *(("t", value) for value in ("1e300", "-1", "1e999", "9" * 400, "9" * 5000, "[1]", '"x"', "NaN")),
    *(("blocks", value) for value in ("1e300", "9" * 400, "-1")),
    *(("pool_bytes", value) for value in ("9" * 400, "9" * 18, "-1")),
    *(("host", value) for value in ('"\\ud800"', "[" * 3000, '{"boot": 1e300}')),
]
# One of each key is reported by the whole command in every run: two that are read and two that are refused.
COMMANDED = (("t", "-1"), ("blocks", "9" * 400), ("pool_bytes", "9" * 18), ("host", "[" * 3000))


def foreign(path: Path, key: str, value: str) -> Path:
    """A run whose record says this."""
    folder = path / "run"
    shutil.copytree(RUNS / "ended", folder)
    log = folder / "run.jsonl"
    text = log.read_text(encoding="utf-8")
    pattern = rf'"{key}":(?:[0-9.]+|"[^"]*"|\{{[^{{}}]*\}})'
    log.write_text(re.sub(pattern, lambda _: f'"{key}":{value}', text), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_value_of_a_foreign_record_is_read_or_refused(key: str, value: str, tmp_path: Path) -> None:
    judged(foreign(tmp_path, key, value))


@pytest.mark.parametrize(
    ("key", "value"), [pytest.param(*each, marks=[] if each in COMMANDED else pytest.mark.soak) for each in VALUES]
)
def test_a_value_of_a_foreign_record_is_reported_or_refused(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = foreign(tmp_path, key, value)
    with in_time():
        try:
            main(["report", str(folder)])
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
    told = capsys.readouterr()
    assert status in (0, 2) and "Traceback" not in told.err
    if status == 2:
        assert str(folder) in told.err and "cure: " in told.err


@pytest.mark.parametrize("key", ["started", "ended", "wall_s", "cpu_s", "steal_s", "peak_bytes", "block", "order"])
@pytest.mark.parametrize("value", ["1e300", "-1e300", "1e-320", "9" * 400, "null"])
def test_a_value_of_a_foreign_attempt_is_reported_or_refused(key: str, value: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "interrupted", folder)
    for path in (folder / "attempts").glob("*/attempt.json"):
        path.write_text(re.sub(rf'"{key}": ?[-0-9.e]+', f'"{key}": {value}', path.read_text(encoding="utf-8")))
    judged(folder)
