"""What a shell's text becomes: plain commands are followed, all else is left to the shell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.machine.loader import ShellCommand, program_started, shell_text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("sh", "-c", "a"), "a"),
        (("bash", "--norc", "-o", "pipefail", "-ec", "a b", "name"), "a b"),
        (("sh", "-c", "--", "a"), "a"),
        (("sh", "script", "-c", "a"), None),
        (("sh",), None),
        (("sh", "-c"), None),
    ],
)
def test_the_text_of_a_call(words: tuple[str, ...], text: str | None) -> None:
    assert shell_text(words) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("exec serve --port {port}", ShellCommand(("serve", "--port", "{port}"))),
        ("serve 'a b' \"$HOME\"", ShellCommand(("serve", "a b", "$HOME"))),
        ("A=1 exec -a name serve >log 2>&1", ShellCommand(("serve", "2"), (("A", "1"),))),
        ("A=1; export B=2; mkdir -p x && cd x; exec serve", ShellCommand(("serve",), (("B", "2"),), moved=True)),
        ("fill\nserve # with this", ShellCommand(("serve",))),
    ],
)
def test_plain_commands_are_followed(text: str, found: ShellCommand) -> None:
    assert program_started(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "serve & wait", "serve | tee log", "if true; then serve; fi", "{ serve; }", "exec $(which serve)"),
        *("exec `which serve`", "serve <<END\nEND", "(serve)", "serve || true", ". ./serve", "exec", "ulimit -n 9"),
        *("exec 'serve", "exec ~/serve", "x" * 100_000),
    ],
)
def test_what_only_a_shell_can_tell_is_not_told(text: str) -> None:
    assert program_started(text) is None


@given(st.text(st.sampled_from("a=1 ;&|'\"\\\n$(){}<>#-`exc"), max_size=60))
def test_any_text_ends_in_an_answer(text: str) -> None:
    found = program_started(text)
    assert found is None or found.words
