"""Files of measurements that are broken: `hugewise analyze` says what they hold, or names file and cure and exits 2."""

import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hugewise.cli.main import cli, main
from hugewise.errors import UserError
from hugewise.external.analyze import analyze
from hugewise.external.reader import Ask, DataError, head_of
from hugewise.external.readers import discover
from hugewise.report.external import json_of, report
from tests.fuzz.inputs import broken, fuzzed, in_time, kept

EXTERNAL = Path(__file__).parents[1] / "external"
WHOLE = sorted([*(EXTERNAL / "readers" / "data").iterdir(), *(EXTERNAL / "cases").rglob("*.*")])
READERS = discover()
COLUMNS = (
    b"round,arm,seconds\n1,a,1.5\n1,b,1.4\n2,a,1.6\n2,b,1.3\n3,a,1.5\n3,b,1.2\n",
    b"round;at;arm;seconds\n1;2026-01-01T00:00:00;a;1.5\n1;2026-01-02;b;1.4\n",
    b"seconds\n1\n2\n3\n",
)
FILES: dict[str, list[Path | bytes]] = {
    name: [path for path in WHOLE if path.is_file() and reader.recognises(head_of(path))]
    for name, reader in READERS.items()
}
FILES["columns"] += COLUMNS
ASKS = (Ask(), Ask(value="seconds", block="round"), Ask(value="seconds", order="at", arm_column="arm"))


def test_every_reader_has_files_to_break() -> None:
    assert set(FILES) == set(READERS) and all(FILES.values())


def judged(path: Path, ask: Ask, format_: str | None) -> None:
    """What a user sees of the file, but for the drawing of figures."""
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = analyze([path], ask=ask, format_=format_)
            json_of(found)
            report(found)
    except UserError as error:
        assert error.hint
        if isinstance(error, DataError):
            assert str(path) in error.message
        assert len(error.message) < 600


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    @fuzzed(40)
    @given(broken(FILES[name]), st.sampled_from(ASKS if name == "columns" else ASKS[:1]), st.booleans())
    def every(content: bytes, ask: Ask, named: bool) -> None:
        path = tmp_path / "file"
        path.write_bytes(content)
        judged(path, ask, name if named else None)

    every()


@kept("external")
def test_what_once_broke_a_reader_is_refused(path: Path) -> None:
    """The name of a file is that of its reader, and what is wrong with it; the whole command, as a user calls it."""
    name = path.name.split(".", 1)[0]
    with in_time():
        ran = CliRunner().invoke(cli, ["analyze", "--format", name, str(path)])
    assert isinstance(ran.exception, DataError) and ran.exception.exit_code == 2, ran.exception
    assert str(path) in ran.exception.message and ran.exception.hint


@fuzzed(30)
@given(content=broken([file for files in FILES.values() for file in files]))
def test_a_broken_file_ends_the_command_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "--confidence", "0.99", "--value", "seconds", str(path), "--output", str(path / "x")])
    # A report cannot be written below a file: whatever is read ends there, before figures are drawn.
    said = capsys.readouterr().err
    assert ended.value.code in (1, 2) and "Traceback" not in said
    assert (ended.value.code == 1) == ("the report cannot be written" in said), said
