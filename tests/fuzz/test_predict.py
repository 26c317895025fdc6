"""A program to trace, and the answer of the plugin, which the program could write: refused, or a prediction."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis import given

from hugewise.errors import HugewiseError, UserError
from hugewise.predict import trace
from hugewise.predict.prediction import rows
from tests.fuzz.inputs import broken, fuzzed, in_time
from tests.predict.test_prediction import CHOSEN, answer

ELF = Path("/proc/self/exe").resolve().read_bytes()[:4096]


def test_a_broken_program_is_refused_or_traced() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        program.touch(0o755)

        @fuzzed(40)
        @given(broken([ELF, b"#!/bin/sh\ntrue\n"]))
        def every(content: bytes) -> None:
            program.write_bytes(content)
            with in_time(), suppress(UserError):
                assert trace.target(str(program)) in ("x86_64", "aarch64")

        every()


def test_a_broken_answer_is_refused_or_shown() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "answer.json")

        @fuzzed(40)
        @given(broken([msgspec.json.encode(answer())]))
        def every(content: bytes) -> None:
            path.write_bytes(content)
            with in_time(), suppress(HugewiseError):
                found = trace._read(path, "program", 0)
                if len(found.configurations) == len(CHOSEN):
                    assert all(row.steps_pki.low <= row.steps_pki.high for row in rows(CHOSEN, found))

        every()
