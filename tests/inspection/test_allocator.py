"""Which allocator a program has, from real programs and from what others may put into theirs."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.inspection.allocator import NEEDLES, ProgramFile, allocator, read_program, tunable
from tests.inspection.running import built
from tests.requirements import need_program

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
DYNAMIC = ProgramFile(elf=True, interpreter="/lib64/ld-linux-x86-64.so.2")
STATIC = ProgramFile(elf=True)


def read(path: Path) -> ProgramFile:
    with path.open("rb") as file:
        return read_program(file)


def test_programs_of_this_compiler_are_told_apart(tmp_path: Path) -> None:
    dynamic, static = read(built(tmp_path)), read(built(tmp_path, "-static"))
    assert dynamic.interpreter is not None
    assert "ld-linux" in dynamic.interpreter
    assert (static.interpreter, static.elf, "tunable" in static.holds) == (None, True, True)
    pie = read(built(tmp_path, "-static-pie"))
    assert (pie.interpreter, "tunable" in pie.holds) == (None, True)


def test_a_program_without_a_library_has_no_tunable(tmp_path: Path) -> None:
    compiler = need_program("gcc", "gcc libc6-dev")
    source = tmp_path / "bare.c"
    source.write_text("void _start(void) { for (;;); }")
    subprocess.run([compiler, "-nostdlib", "-static", "-o", tmp_path / "bare", source], check=True)
    found = allocator(read(tmp_path / "bare"), (str(tmp_path / "bare"),), {}, secure=False)
    assert (found.tuned, "static" in found.why) == (False, True)


@pytest.mark.soak
def test_a_go_program_is_known(tmp_path: Path) -> None:
    go = need_program("go", "golang-go")
    (tmp_path / "main.go").write_text("package main\nfunc main() {}\n")
    given = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(tmp_path / "c"), "GOFLAGS": "", "CGO_ENABLED": "0"}
    command = [go, "build", "-o", "p", "main.go"]
    subprocess.run(command, check=True, cwd=tmp_path, env=given, timeout=250)
    found = allocator(read(tmp_path / "p"), (), {}, secure=False)
    assert (found.name, found.tuned) == ("Go", False)


def test_this_python_is_cpython() -> None:
    names = [line.split(None, 5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if line.count("/")]
    found = allocator(read(Path(sys.executable)), names, {}, secure=False)
    assert found.name == "CPython"
    assert "arenas" in found.why
    assert allocator(None, names, {"PYTHONMALLOC": "malloc_debug"}, secure=False).why == ""


@pytest.mark.parametrize(
    ("file", "mapped", "secure", "name", "tuned"),
    [
        (DYNAMIC, [LIBC], False, "glibc", True),
        (DYNAMIC, [LIBC], True, "glibc", False),
        (DYNAMIC, [LIBC, "/usr/lib/libjemalloc.so.2"], False, "jemalloc", False),
        (DYNAMIC, [LIBC, "/usr/lib/libtcmalloc_minimal.so.4"], False, "tcmalloc", False),
        (DYNAMIC, [LIBC, "/opt/libmimalloc.so.2.1"], False, "mimalloc", False),
        (DYNAMIC, [LIBC, "/usr/lib/jvm/x/lib/server/libjvm.so"], False, "the JVM", False),
        (DYNAMIC, ["/lib/ld-musl-x86_64.so.1"], False, "musl", False),
        (DYNAMIC, ["/lib/x86_64-linux-gnu/libc-2.31.so"], False, "glibc 2.31", False),
        (ProgramFile(elf=True, holds=frozenset({"tunable", "jemalloc"})), [], False, "jemalloc", False),
        (ProgramFile(elf=True, holds=frozenset({"tunable"})), [], False, "glibc (static)", True),
        (STATIC, [], False, "its own (static)", False),
        (None, [], None, "not known", None),
        # A folder of that name is none.
        (DYNAMIC, [LIBC, "/home/libjemalloc/x"], False, "glibc", True),
    ],
)
def test_by_its_libraries_and_how_it_was_begun(
    file: ProgramFile | None, mapped: list[str], secure: bool | None, name: str, tuned: bool | None
) -> None:
    found = allocator(file, mapped, {}, secure=secure)
    assert (found.name, found.tuned) == (name, tuned)
    assert bool(found.why) == (tuned is False)


def test_a_library_that_was_put_before_all_others_counts() -> None:
    mapped = [LIBC, "/usr/lib/libjemalloc.so.2"]
    found = allocator(DYNAMIC, mapped, {"LD_PRELOAD": "/opt/x.so:libc.so.6"}, secure=False)
    assert (found.name, found.tuned) == ("glibc (preloaded)", True)
    assert allocator(DYNAMIC, mapped, {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, secure=False).name == "jemalloc"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("glibc.malloc.hugetlb=1", 1),
        ("glibc.malloc.top_pad=1:glibc.malloc.hugetlb=2", 2),
        ("glibc.malloc.hugetlb=0x200000", 2 << 20),
        ("glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=2", 2),
        ("glibc.malloc.hugetlb=", None),
        ("glibc.malloc.hugetlb=-1", None),
        ("glibc.malloc.hugetlb=１", None),
        (f"glibc.malloc.hugetlb={'9' * 400}", None),
        ("", None),
        (":::=", None),
    ],
)
def test_the_tunable_is_read_as_glibc_does(text: str, value: int | None) -> None:
    assert tunable({"GLIBC_TUNABLES": text}) == value


@given(st.integers(0, 4 << 20), st.sampled_from(sorted(NEEDLES)))
def test_what_is_looked_for_is_found_wherever_it_stands(place: int, name: str) -> None:
    """Also where two pieces that are read meet."""
    for at in (place, (4 << 20) - len(NEEDLES[name]) // 2):
        assert name in read_program(io.BytesIO(bytes(at) + NEEDLES[name] + bytes(10))).holds
