"""Which programs load a library that LD_PRELOAD names, and its place: real programs, and broken object files."""

import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugewise.errors import UserError
from hugewise.machine import loader, programs
from hugewise.machine.loader import (
    Section,
    UntoldError,
    executed,
    gains,
    interpreter,
    preload_obstacle,
    sections,
    started,
)
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from tests.requirements import need, need_program, need_root


def elf(*segments: tuple[int, bytes], machine: int = 62, kind: int = 3, bits: int = 2) -> bytes:
    """ELF-64 with program headers of these kinds and contents."""
    table = 64 + 56 * len(segments)
    headers, contents = b"", b""
    for each, data in segments:
        headers += struct.pack("<IIQQQQQQ", each, 4, table + len(contents), 0, 0, len(data), len(data), 1)
        contents += data
    head = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return head + headers + contents


def refusal(program: str) -> str | None:
    return preload_obstacle([program])


ABSENT = ("gosu", "numactl", "prlimit", "setpriv", "tini")
"""Wrappers that are told by their names, whether they are installed here or not."""

script = loader._script  # as it was
GLIBC = (3, b"/lib64/ld-linux-x86-64.so.2\0")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (elf(GLIBC), "glibc"),
        (elf((3, b"/nix/store/x/ld-linux-x86-64.so.2\0")), "glibc"),
        (elf((3, b"/lib/ld-musl-x86_64.so.1\0")), "musl"),
        (elf((3, b"/system/bin/linker64\0")), "other loader"),
        (elf((1, b"code")), "static"),
        (elf(GLIBC, (4, struct.pack("<III", 4, 4, 4) + b"Go\0\0" + b"idid")), "go"),
        (elf(GLIBC, (4, struct.pack("<III", 4, 4, 1) + b"GNU\0" + b"idid")), "glibc"),
        (elf(GLIBC, machine=183), "foreign"),
        (elf(GLIBC, bits=1), "foreign"),
        (elf(GLIBC, kind=1), "unknown"),
        (elf(), "unknown"),
        (b"#!/bin/sh\n", "script"),
        (b"", "unknown"),
        (b"text", "unknown"),
        (elf(GLIBC)[:60], "unknown"),
    ],
)
def test_programs_are_told_apart(data: bytes, kind: str) -> None:
    assert started(io.BytesIO(data), "x86_64") == kind


@given(st.data())
def test_what_is_broken_ends_in_an_answer(data: st.DataObject) -> None:
    whole = bytearray(elf(GLIBC, (4, b"x" * 16)))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert started(io.BytesIO(cut), "x86_64") in (
        *("glibc", "musl", "other loader", "static", "go", "foreign", "script", "unknown"),
    )


def test_programs_of_this_machine_load_it() -> None:
    assert refusal(shutil.which("ls") or "/bin/ls") is None
    assert refusal(sys.executable) is None


def test_scripts_are_what_their_interpreters_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    (tmp_path / "static").write_bytes(elf((1, b"code"), machine={"aarch64": 183}.get(os.uname().machine, 62)))
    (tmp_path / "static").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{tmp_path}")
    assert refusal(script("fine", "#!/bin/sh\n")) is None
    assert refusal(script("env", "#!/usr/bin/env -S sh -e\n")) is None
    assert refusal(script("new-env", "#!/usr/bin/env --new-option static\n")) is None  # nobody can tell
    # The kernel gives it one word, so that env sets A, and starts the script anew.
    assert "too many interpreters" in str(refusal(script("plain-env", "#!/usr/bin/env A=1 static\n")))
    for name, text in (
        ("own", f"#! {tmp_path}/static x\n"),
        ("nested", f"#!{tmp_path}/own\n"),
        ("by-env", "#!/usr/bin/env static\n"),
        ("by-env-with", "#!/usr/bin/env -S A=1 static -x\n"),
    ):
        why = refusal(script(name, text))
        assert why is not None
        assert f"{tmp_path}/{name}: " in why
        assert "statically linked" in why
    assert "too many interpreters" in str(refusal(script("self", f"#!{tmp_path}/self\n")))
    assert "names no interpreter" in str(refusal(script("none", "#!\n")))
    assert "cannot be read" in str(refusal(script("lost", "#!/nowhere/at/all\n")))
    assert "nobody-has-this: no such program" in str(refusal(script("lost-env", "#!/usr/bin/env nobody-has-this\n")))


@pytest.mark.parametrize(
    ("words", "program", "given"),
    [
        (["env", "A=2", "B=x=y", "sort", "-n"], "sort", {"A": "2", "B": "x=y", "C": "3"}),
        (["env", "-i", "A=2", "sort"], "sort", {"A": "2"}),
        (["env", "-", "sort"], "sort", {}),
        (["env", "-u", "A", "--unset=C", "--", "sort"], "sort", {}),
        (["env", "-S", "A='x y' sort -n", "in"], "sort", {"A": "x y", "C": "3"}),
        (["env", "--split-string=sort -n"], "sort", {"A": "1", "C": "3"}),
        (["env", "-C", "/", "sort"], "sort", {"A": "1", "C": "3"}),
        (["nice", "-n", "5", "sort"], "sort", {"A": "1", "C": "3"}),
        (["nice", "-5", "sort"], "sort", {"A": "1", "C": "3"}),
        (["timeout", "-k", "3", "--foreground", "5", "env", "A=9", "sort"], "sort", {"A": "9", "C": "3"}),
        (["taskset", "-c", "0-1", "chrt", "-i", "0", "sort"], "sort", {"A": "1", "C": "3"}),
        (["stdbuf", "-oL", "nohup", "setsid", "-w", "sort"], "sort", {"A": "1", "C": "3"}),
        (["ionice", "-c", "3", "sort"], "sort", {"A": "1", "C": "3"}),
        (["numactl", "--membind", "0", "-N", "0", "sort"], "sort", {"A": "1", "C": "3"}),
        (["setpriv", "--reuid", "1000", "--regid=1000", "--clear-groups", "sort"], "sort", {"A": "1", "C": "3"}),
        (["prlimit", "--nofile=9", "tini", "-g", "--", "gosu", "nobody", "sort"], "sort", {"A": "1", "C": "3"}),
        (["sh", "-c", "exec sort -n"], "sort", {"A": "1", "C": "3"}),
        (["sh", "-c", "sort -n"], "sort", {"A": "1", "C": "3"}),
        (
            ["bash", "-ec", "ulimit -l unlimited; export A=2; B=7 exec sort > log 2>&1"],
            "sort",
            {"A": "2", "B": "7", "C": "3"},
        ),
        (["sh", "-c", "cd /tmp && exec taskset -c 0 env D=4 sort -p {port}"], "sort", {"A": "1", "C": "3", "D": "4"}),
        # What nobody can tell without being a shell is the shell.
        (["sh", "-c", "sort | sort"], "sh", {"A": "1", "C": "3"}),
        (["sh", "-c", "for i in 1 2; do sort; done"], "sh", {"A": "1", "C": "3"}),
        (["sh", "-c", "exec $SERVER"], "sh", {"A": "1", "C": "3"}),
        (["sh", "-c", "cd /nowhere && ./sort"], "sh", {"A": "1", "C": "3"}),
        (["sh", "-c", "own() { sort; }; own"], "sh", {"A": "1", "C": "3"}),
        (["sh", "-c", "'"], "sh", {"A": "1", "C": "3"}),
        (["sh", "script", "-c", "sort"], "sh", {"A": "1", "C": "3"}),
    ],
)
def test_wrappers_are_what_they_become(
    words: list[str], program: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    need_program("taskset", "util-linux")
    which = shutil.which
    monkeypatch.setattr(programs, "which", lambda name: f"/usr/bin/{name}" if name in ABSENT else which(name))
    monkeypatch.setattr(loader, "_script", lambda path: None if Path(path).name in ABSENT else script(path))
    found = executed(words, {"A": "1", "C": "3"})
    assert (found.path, found.environment) == (shutil.which(program), given)
    assert program == words[0] or found.through[0] == words[0]


@pytest.mark.parametrize(
    ("words", "reason", "unknown"),
    [
        (["env", "--argv0", "x", "sort"], "not known here", True),
        (["env", "-S", "'sort"], "quotes do not match", False),
        (["env", "A=1"], "it names no program", False),
        (["taskset", "-pc", "1", "5"], "it starts no program", False),
        (["ionice", "-p", "5"], "it starts no program", False),
        (["chrt", "-p", "5"], "it starts no program", False),
        (["timeout", "5"], "it names no program", False),
        (["nice", "nobody-has-this"], "nobody-has-this: no such program", False),
    ],
)
def test_what_starts_nothing_is_told(words: list[str], reason: str, unknown: bool) -> None:
    with pytest.raises(UntoldError, match=reason) as caught:
        executed(words, {})
    assert caught.value.unknown is unknown


def test_rights_of_a_file_are_none_to_whom_it_belongs(tmp_path: Path) -> None:
    path = tmp_path / "program"
    shutil.copy("/bin/true", path)
    mine = (os.getuid(), os.getgid())
    assert gains(str(path)) is None
    path.chmod(0o4755)
    assert (gains(str(path)), gains(str(path), mine)) == ("setuid", None)
    assert gains(str(path), (mine[0] + 1, mine[1])) == "setuid"
    assert "setuid or setgid" in str(refusal(str(path)))
    path.chmod(0o2755)
    assert (gains(str(path), (mine[0], mine[1] + 1)), gains(str(path), mine)) == ("setgid", None)
    assert "setuid or setgid" in str(refusal(str(path)))
    path.chmod(0o2644)
    assert gains(str(path)) is None, "a mark for locking, not a right"


def test_the_loader_that_a_file_names() -> None:
    assert interpreter(io.BytesIO(elf(GLIBC))) == "/lib64/ld-linux-x86-64.so.2"
    assert interpreter(io.BytesIO(elf((1, b"code")))) is None
    assert interpreter(io.BytesIO(b"#!/bin/sh\n")) is None
    narrow = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHH", 2, 3, 1, 0, 64, 0, 0, 52, 32, 1)
    narrow = narrow.ljust(64, b"\0") + struct.pack("<IIIIIIII", 3, 96, 0, 0, 18, 18, 4, 1) + b"/lib/ld-linux.so.2"
    assert interpreter(io.BytesIO(narrow)) == "/lib/ld-linux.so.2"


def test_nor_does_what_has_capabilities(tmp_path: Path) -> None:
    need_root()
    setcap = need_program("setcap", "libcap2-bin")
    path = tmp_path / "capable"
    shutil.copy("/bin/true", path)
    done = subprocess.run([setcap, "cap_net_raw=ep", str(path)], check=False, capture_output=True)
    need(done.returncode == 0, "a file system that keeps capabilities")
    assert "has capabilities" in str(refusal(str(path)))
    assert (gains(str(path), (1, 1)), gains(str(path), (0, 0))) == ("capabilities", None)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "absent", "."):
        assert "cannot be read" in str(refusal(str(tmp_path / name)))


# Kind, offset, size, link; the names of the sections lie at 64.
NAMES = b"\0.names\0.data\0"
SYMBOLS, NO_BITS = 2, 8
BROKEN = "an ELF file that is cut short"


def elf_with_sections(*rows: tuple[int, int, int, int], count: int | None = None, each: int = 64) -> bytes:
    """ELF-64, little-endian, for x86-64: a section of no kind, that of the names, and `rows`, all called .data."""
    table = 64 + len(NAMES)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    shown = len(rows) + 2 if count is None else count
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, each, shown, 1)
    every = [(0, 0, 0, 0, 0), (1, 3, 64, len(NAMES), 0), *((8, *row) for row in rows)]
    packed = (
        struct.pack("<IIQQQQIIQQ", name, *(kind, 0, 0, at, size, link), 0, 1, 0) for name, kind, at, size, link in every
    )
    return header + NAMES + b"".join(packed)


def test_each_section_with_its_type_as_a_number() -> None:
    found = sections(elf_with_sections((0x70000001, 64, 3, 0), (NO_BITS, 1 << 60, 1 << 40, 0), (77, 64, 1, 0)))
    assert found == [
        Section("", 0, b""),
        Section(".names", 3, NAMES),
        Section(".data", 0x70000001, b"\0.n"),
        Section(".data", NO_BITS, (1 << 40).to_bytes(8, "little")),
        Section(".data", 77, b"\0"),
    ]
    assert sections(elf_with_sections()[:40] + b"\0" * 60) == []  # a file without a table of sections


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (elf_with_sections()[:100], BROKEN),
        (elf_with_sections()[:-1], BROKEN),
        (elf_with_sections((1, 64, 1 << 40, 0)), BROKEN),
        (elf_with_sections((1, 1 << 63, 1, 0)), BROKEN),
        (elf_with_sections((SYMBOLS, 64, 24, 2)), BROKEN),  # its names are its own
        (elf_with_sections(count=9), BROKEN),
        (elf_with_sections(each=0), BROKEN),
        (elf_with_sections(each=0, count=0xFFFF), BROKEN),
        (elf_with_sections()[:4] + b"\3" + elf_with_sections()[5:], BROKEN),
        *((data, "not an ELF file") for data in (b"", b"#!/bin/sh" * 9, b"\x7fELF")),
    ],
)
def test_a_file_that_is_broken_or_another(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sections(data)


@pytest.fixture
def library(reached: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library that is named: what is in it does not matter here."""
    path = reached / "libhugewise-layout.so"
    path.write_bytes(b"library")
    path.chmod(0o644)
    monkeypatch.setenv(loader.LIBRARY, str(path))
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    return path.resolve()


def treatment(layout: str = "thp", **environment: str) -> Treatment:
    target = PageTarget("thp", 2 << 20)
    return Treatment(policy="p", mechanism="process", target=target, layout=layout, environment=environment)


def test_what_was_preloaded_stays(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader.environment(treatment(""), 5) == {}
    assert loader.environment(treatment(A="1"), 0) == {"A": "1", "LD_PRELOAD": str(library), "HUGEWISE_LAYOUT": "thp"}
    sized = loader.environment(treatment("hugetlb-2m"), 64 << 20)
    assert sized["HUGEWISE_LAYOUT"] == "hugetlb-2m,heap=64m"
    monkeypatch.setenv("LD_PRELOAD", f"/a.so {library}:/b.so")
    assert loader.environment(treatment(), 0)["LD_PRELOAD"] == f"{library}:/a.so:/b.so"
    assert loader.environment(treatment(LD_PRELOAD="/c.so"), 0)["LD_PRELOAD"] == f"{library}:/c.so"


def test_whom_it_does_not_reach(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader.unreached(("sh",), treatment()) is None
    assert loader.unreached(("no-such-program",), treatment()) is None  # the workload says so
    tuned = treatment(GLIBC_TUNABLES="glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1")
    assert "the same memory" in str(loader.unreached(("sh",), tuned))
    assert loader.unreached(("sh",), treatment(GLIBC_TUNABLES="glibc.malloc.hugetlb=0")) is None
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")
    assert "the same memory" in str(loader.unreached(("sh",), treatment()))
    monkeypatch.delenv("GLIBC_TUNABLES")
    with programs.looking_in({"/bin/sh"}):
        assert "not those in guests" in str(loader.unreached(("sh",), treatment()))
    library.unlink()
    assert "is not there; build it: make setup" in str(loader.unreached(("sh",), treatment()))


def test_a_library_that_is_not_there_is_an_error_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.LIBRARY, "/nowhere/libhugewise-layout.so")
    with pytest.raises(UserError, match="the layout library /nowhere/libhugewise-layout.so is not there") as caught:
        loader.environment(treatment(), 0)
    assert caught.value.hint == "build it: make setup"


def test_a_path_that_the_loader_would_take_for_two_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library.parent / "a b").mkdir()
    monkeypatch.setenv(loader.LIBRARY, str(shutil.copy(library, library.parent / "a b")))
    with pytest.raises(UserError, match="a blank or a colon"):
        loader.find()


def test_root_hands_out_what_all_may_read_and_it_alone_may_change(library: Path) -> None:
    need_root()
    library.chmod(0o600)
    with pytest.raises(UserError, match=f"cannot be read by other accounts.* see {library}"):
        loader.find()
    library.chmod(0o644)
    library.parent.chmod(0o700)
    with pytest.raises(UserError, match=f"see {library.parent}"):
        loader.find()
    library.parent.chmod(0o755)
    assert loader.find() == library
    os.chown(library, 65534, 65534)
    with pytest.raises(UserError, match="belongs to the account 65534"):
        loader.find()
