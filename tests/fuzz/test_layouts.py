"""What a program may write to the report of the layout library, and what stands in a command: never an error."""

import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hugewise.attempt.context import reported, summary, undelivered
from hugewise.machine.loader import UntoldError, executed
from tests.attempt.test_laying import LAID, treatment
from tests.fuzz.inputs import broken, fuzzed, in_time

WORDS = [
    "env",
    "-S",
    "-i",
    "-u",
    "A=1",
    "nice",
    "-n",
    "5",
    "timeout",
    "-k",
    "taskset",
    "-c",
    "0",
    "--",
    "sort",
    "'",
    "",
]


def test_a_broken_report_is_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"

        @fuzzed(40)
        @given(broken([msgspec.json.encode(LAID) + b"\n" + msgspec.json.encode(LAID) + b"\n"]))
        def every(content: bytes) -> None:
            report.write_bytes(content)
            with in_time():
                lines = reported(Path(folder))
                assert summary(lines)["processes"] == len(lines)
                assert lines or undelivered(lines, treatment("thp"))

        every()


@fuzzed(40)
@given(
    words=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=12), st.just("/x\0")), min_size=1, max_size=30)
)
def test_whatever_a_command_says_it_ends(words: list[str]) -> None:
    with in_time(), suppress(UntoldError):
        assert executed(words, {"PATH": "/usr/bin"}).path
