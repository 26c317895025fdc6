"""Builds: what a study may say, and what is made of projects' trees. Nothing is built here."""

from pathlib import Path
from typing import Any

import pytest

from hugewise.errors import StudyError
from hugewise.machine import programs
from hugewise.model.workload import ParameterValue
from hugewise.plan import cells
from hugewise.study.keys import Place
from hugewise.study.workload import WorkloadUse
from hugewise.workloads import build, discover
from hugewise.workloads.build import WORKLOAD
from tests.build.studies import study_of
from tests.build.workloads import BASE, MIB
from tests.build.workloads import given as defaults

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


def values(project: str, **given: ParameterValue) -> dict[str, ParameterValue]:
    """The parameters of a build, as they are where nothing else is said."""
    return {**defaults(WORKLOAD), "project": project, **given}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (values("linux"), ("make", "-j3", "mm/")),
        (values("lua"), ("make", "-j3", "linux")),
        (values("lua", target="src/all"), ("make", "-j3", "-C", "src", "all")),  # a target of that folder's makefile
        (values("lua", config="-O3"), ("make", "-j3", "linux", "MYCFLAGS=-O3")),
        (values("make", target="src/all"), ("make", "-j3", "src/all")),
    ],
)
def test_the_target_is_made_as_the_project_has_it(given: dict[str, ParameterValue], words: tuple[str, ...]) -> None:
    assert build.make_command(given, "/tree", 3) == words


def test_what_is_compared_follows_the_target() -> None:
    assert build.artefact_path(values("linux")) == "mm"
    assert build.artefact_path(values("linux", target="vmlinux")) == "vmlinux"
    assert build.artefact_path(values("gdb")) == "gdb/gdb"
    assert build.artefact_path(values("gdb", artefact="bfd")) == "bfd"
    assert build.artefact_path(values("gdb", target="all-libiberty")) == "libiberty"


def test_only_parts_of_a_kernel_are_unpacked_in_part_and_with_their_own_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "machine", lambda: "aarch64")
    left_out = build.excluded_patterns(values("linux"))
    assert "*/arch/mips/*.*" in left_out
    assert not {"*/arch/arm64/*.*", "*/arch/arm/*.*"} & {*left_out}
    assert build.excluded_patterns(values("linux", target="vmlinux")) == build.excluded_patterns(values("gdb")) == ()


def test_a_library_of_gdb_needs_little_of_the_tree_and_no_memory_of_its_programs() -> None:
    library, whole = (values("gdb", target=target, jobs=1) for target in ("all-libiberty", "all-gdb"))
    assert {"*/gdb", "*/bfd", "*/sim"} <= {*build.excluded_patterns(library)}
    assert not {"*/libiberty", "*/include", "*/config"} & {*build.excluded_patterns(library)}
    assert WORKLOAD.memory(BASE, library) < 128 * MIB < WORKLOAD.memory(BASE, whole)


def test_the_newest_of_the_usual_archives_is_taken_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["/usr/src/linux-source-6.9.tar.xz", "/usr/src/linux-source-6.12.tar.xz"]
    monkeypatch.setattr(programs, "matching", lambda pattern: there)
    assert build.source_archive(values("linux")) == there[1]
    assert build.source_archive(values("make")) is None
    assert build.source_archive(values("gdb", source="/a.tar.xz")) == "/a.tar.xz"


def test_archives_that_an_image_has_are_found_by_debians_names() -> None:
    there = {"/usr/src/gdb_16.3.orig.tar.xz", "/usr/src/lua5.4_5.4.7.orig.tar.gz", "/usr/src/linux-source-6.12.tar.xz"}
    with programs.looking_in((), files=there):
        assert {build.source_archive(values(name)) for name in ("gdb", "lua", "linux")} == there


def test_headers_are_looked_for_where_a_configuration_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "which", lambda *_: "/usr/bin/any")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert [program.package for program in build.missing_programs(values("gdb"))] == [
        "libc6-dev",
        "libgmp-dev",
        "libmpfr-dev",
    ]
    assert [each.package for each in build.missing_programs(values("make"))] == ["libc6-dev"]
    assert [each.package for each in build.missing_programs(values("linux"))] == ["libc6-dev"]
    assert [each.package for each in build.missing_programs(values("linux", config="defconfig"))] == [
        "libc6-dev",
        "libelf-dev",
        "libssl-dev",
    ]
