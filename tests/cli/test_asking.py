"""What the words of a call ask for: commands as values of options, and names between commas."""

from __future__ import annotations

import pytest

from hugewise.cli import asking
from hugewise.errors import UserError
from tests.cli.conftest import Call


def test_the_words_of_a_command_are_split_and_nothing_else_of_a_shell_is_there() -> None:
    assert asking.words("prepare", None) == []
    assert asking.words("prepare", "rm -f 'a b' $HOME;x >y") == ["rm", "-f", "a b", "$HOME;x", ">y"]


@pytest.mark.parametrize("text", ["", "  ", "''", "rm 'a", "rm \\"])
def test_a_command_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--prepare") as caught:
        asking.words("prepare", text)
    assert "rm -f out.dat" in (caught.value.hint or "")


def test_what_is_run_before_each_attempt_is_in_the_plan(call: Call) -> None:
    status, out, _ = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm -f x", "--", "true")
    assert status == 0
    assert "command" in out
    status, _, err = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm 'x", "--", "true")
    assert status == 2
    assert "no closing quotation" in err
    status, _, err = call("run", "--dry-run", "--prepare", "rm x", "demo")
    assert status == 2
    assert "--prepare belongs to --policy" in err
    status, _, err = call("run", "--policy", "base,thp", "--prepare", "no-such-program -x", "--", "true")
    assert status == 2
    assert "no-such-program: no such program on PATH" in err
