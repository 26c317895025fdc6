"""What a foreign machine says becomes an error that can be shown."""

from __future__ import annotations

import pytest

from hugewise.errors import MachineError, StorageError
from hugewise.machine.messages import parse_foreign, plain


def test_a_text_is_shown_without_what_a_terminal_obeys() -> None:
    assert plain("a\x1b]0;title\x07b\u202ec\x9bd\n" + "x" * 1000) == "a\ufffd]0;title\ufffdb\ufffdc\ufffdd " + "x" * 283


@pytest.mark.parametrize(
    "wrong",
    [ValueError("int"), KeyError("x"), IndexError(), OSError(5, "no"), OverflowError(), RecursionError(), TypeError()],
)
def test_whatever_reading_it_raises_names_the_guest_and_what_was_read(wrong: Exception) -> None:
    with (
        pytest.raises(MachineError, match=r"^guest g: its knobs: this makes no sense \(.+"),
        parse_foreign("guest g", "its knobs"),
    ):
        raise wrong


def test_an_error_of_hugewise_stays_what_it_is() -> None:
    for error in (MachineError("gone"), StorageError("full")):
        with pytest.raises(type(error), match=error.message), parse_foreign("guest g", "its knobs"):
            raise error
