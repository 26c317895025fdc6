"""What others wrote reaches a terminal as text: no escape sequence, no control, no mark of text direction."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

import hugewise
from hugewise.cli.main import main
from hugewise.cli.progress import show_progress
from hugewise.console import TextConsole
from hugewise.session import progress
from hugewise.visible import printable, say, say_json
from tests.fuzz.inputs import fuzzed
from tests.terminal import drained

SOURCE = Path(hugewise.__file__).parent
NASTY = "\x1b]0;owned\x07 \x1b[2J\x1b[31m\x9b31m\x7f\b\u202egnp.exe\u2066 [red]red[/red] [/] \udcff"
# What rich writes: colours and styles, cursor and line for a bar, whether the cursor is shown.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*[AGK]|\?25[lh])")


def foreign(told: str) -> list[str]:
    """Characters in an output that are neither printable nor of an escape sequence of ours."""
    return [one for one in OURS.sub("", told) if not one.isprintable() and one not in "\n\r"]


def seen(*words: str, cwd: Path) -> str:
    """What a terminal of 80 columns is sent by the command."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "TERM": "xterm-256color", "COLUMNS": "80"}
    argv = [sys.executable, "-c", "from hugewise.cli.main import main; main()", *words]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment) as command:
        os.close(theirs)
        told = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # its last writer is gone
                break
            if not part:
                break
            told += part
        command.wait()
    os.close(ours)
    return told.decode("utf-8", "surrogateescape")


def test_nothing_prints_but_through_the_console() -> None:
    allowed = {"console.py": "Console(", "visible.py": "sys.stdout.write", "report/terminal.py": "console.file.write"}
    pattern = re.compile(r"click\.echo|(?<![\w.])Console\(|(?<![\w.])print\(|sys\.std(?:out|err)\.write|\.file\.write")
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8")
        code = text.partition('if __name__ == "__main__"')[0]  # makers of documents, from our own words
        assert {found for found in pattern.findall(code) if found not in allowed.get(name, "")} == set(), name


@pytest.mark.parametrize(
    "content", [f'"{NASTY}",b\n1,2\n', f"arm,{NASTY},seconds\na,1,2\n", f"arm,seconds\n{NASTY},x\n"]
)
def test_a_hostile_csv_on_a_terminal(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b]0;owned\x07\u202e.csv"
    path.write_bytes(content.encode("utf-8", "ignore"))
    told = seen("analyze", "--value", "seconds", path.name, cwd=tmp_path)
    assert "owned" in told and foreign(told) == []


def test_hostile_arms_of_a_file_on_a_terminal(tmp_path: Path) -> None:
    hostile = NASTY.replace("\udcff", "")
    rows = "".join(f'{number},"{arm}",{1 + number / 10}\n' for number in range(8) for arm in ("a", hostile))
    (tmp_path / "file.csv").write_text(f'round,arm,"seconds {hostile}"\n{rows}', encoding="utf-8")
    told = seen("analyze", "--better", "lower", "--value", f"seconds {hostile}", "file.csv", cwd=tmp_path)
    assert "owned" in told and "[red]red[/red]" in told.replace("\r\n", "") and foreign(told) == []
    assert "\x1b[31mred" not in told


def test_a_hostile_domain_of_libvirt_on_a_terminal(tmp_path: Path) -> None:
    name = "\x9b31m\u202egnp \x7f [red]"
    (tmp_path / "wrong.xml").write_text(f"<domain><memory unit='{name}'>1</memory></domain>", encoding="utf-8")
    told = seen("guest", "study", "wrong.xml", "--workload", "fault", cwd=tmp_path)
    assert "is not one of libvirt's" in told and foreign(told) == []


def test_a_hostile_study_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('name = "a\\u001b[31m\\u202e"\n"\\u001b]0;owned\\u0007" = 1\n', encoding="utf-8")
    told = seen("run", "--dry-run", "s.toml", cwd=tmp_path)
    assert "owned" in told and foreign(told) == []


def test_the_progress_of_a_run_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8", errors="replace") as stream:
        with show_progress(stream) as listener:
            listener(progress.Started(NASTY, NASTY, 3, 0, 9.0))
            listener(progress.AttemptStarted(1, NASTY, NASTY))
            listener(progress.Message(f"a step: {NASTY}"))
            one = progress.OpenComparison(NASTY, NASTY, NASTY, 0.9, 0.8, 1.1)
            listener(progress.BlockEnded(1, NASTY, "complete", 1, 3, 9.0, 0, 0, 1, lambda: (one,)))
        told = drained(ours)
    assert "a step" in told and "to +10%" in told and foreign(told) == []


@pytest.mark.parametrize("words", [["report", f"a\n{NASTY}"], ["run", "--seed", NASTY, "x"], ["no", NASTY], [NASTY]])
def test_errors_are_printable_text(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and foreign(capsys.readouterr().err) == []


def test_whatever_is_said_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    @fuzzed(300)
    @given(st.text(st.characters(), max_size=80))
    def every(text: str) -> None:
        assert printable(text).isprintable()
        say(text)
        told = io.StringIO()
        console = TextConsole(told)
        table = Table("head", text)
        table.add_row(text, Text(text))
        console.print(table)
        console.print(text, soft_wrap=True)
        for output in (capsys.readouterr().out, told.getvalue()):
            assert [one for one in output if not one.isprintable() and one not in "\n\t"] == []

    every()


def test_json_says_the_same_without_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": "\x9b31m\u202e\x7f\U000e0001ä漢", "b": [1.5, None]}
    say_json(value)
    told = capsys.readouterr().out
    assert foreign(told) == [] and msgspec.json.decode(told) == value and "ä漢" in told
