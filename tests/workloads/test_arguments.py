"""Files of commands for xargs: what is written is what the program gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.workloads import x264
from tests.requirements import need_program

ODD = ("a b", "it's", '"quoted"', "back\\slash", "tab\there", "-x", "$HOME", "*", "[a];b", "é")


def test_every_argument_arrives_as_it_is(tmp_path: Path) -> None:
    need_program("xargs", "findutils")
    show = (sys.executable, "-c", "import sys; print(sys.argv[1:])")
    path = tmp_path / "a file"
    path.write_text(x264.argument_lines([(*show, *ODD), (*show, "second")]))
    done = subprocess.run(x264.sequential_command(str(path)), capture_output=True, text=True, check=True)
    assert done.stdout == f"{list(ODD)}\n['second']\n"


def test_a_command_that_fails_fails_the_whole(tmp_path: Path) -> None:
    need_program("xargs", "findutils")
    path = tmp_path / "list"
    path.write_text(x264.argument_lines([("true",), ("false",)]))
    assert subprocess.run(x264.sequential_command(str(path)), check=False).returncode == 123


def test_each_line_is_pinned_to_its_cpu(tmp_path: Path) -> None:
    need_program("taskset", "util-linux")
    show = (sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    (tmp_path / "inner").write_text(x264.argument_lines([show]))
    (tmp_path / "list").write_text(x264.argument_lines([("0", *x264.sequential_command(str(tmp_path / "inner")))]))
    argv = x264.pinned_command(str(tmp_path / "list"), 1)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "{0}\n"


@pytest.mark.parametrize("word", ["", "two\nlines"])
def test_what_no_line_can_hold_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match="cannot be an argument"):
        x264.argument_lines([("x", word)])
