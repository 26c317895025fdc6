"""What a study may say of a build: words that make and its shells leave as they are."""

from __future__ import annotations

from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.plan import cells
from hugewise.study.keys import Place
from hugewise.study.workload import WorkloadUse
from hugewise.workloads import discover
from tests.build.studies import study_of

BUILD = discover()["build"]


def used(**given: str) -> WorkloadUse:
    return study_of(workload=[{"name": "build", "parameters": given}]).workload[0]


def levels(**given: str) -> dict[str, Any]:
    return cells.parameter_levels(used(**given), BUILD, Place("s.toml").at("workload").item(1), "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("target", text)
            for text in ("$(shell id)", "a`id`", "a;b", "a\nb", "--eval=x", "src/--eval=x", "CC=x", "a b")
        ),
        *(
            ("config", text)
            for text in ("-DX=$(shell id)", "-O0 `id`", "-O0; id", "-O0 | id", "-O0 > x", "a\nb", "a&b")
        ),
    ],
)
def test_what_make_or_a_shell_would_expand_is_refused_with_file_and_key(key: str, value: str) -> None:
    with pytest.raises(StudyError) as caught:
        levels(**{"project": "lua", key: value})
    assert str(caught.value).startswith(f"s.toml: workload[1].parameters.{key}")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("target", text) for text in ("", "mm/", "src/all", "vmlinux", "all-gdb", "kernel/sched/core.o")),
        *(
            ("config", text)
            for text in ("", "defconfig", "-O0 -march=x86-64-v3 -DN=1", "--disable-nls --with-gmp=/usr")
        ),
    ],
)
def test_usual_words_are_taken_as_they_are(key: str, value: str) -> None:
    assert levels(**{"project": "gdb", key: value})[key] == (value,)
