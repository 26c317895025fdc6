"""Whose allocator a command has in the end, with real programs and their files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.inspection.allocator import Allocator, allocator_of
from tests.requirements import need, need_program, need_root


def of(*command: str, **environment: str) -> Allocator:
    found = allocator_of(command, {"PATH": os.environ["PATH"], **environment})
    assert found is not None
    return found


def test_what_nobody_can_read_is_not_known(tmp_path: Path) -> None:
    assert allocator_of(["no-such-program-anywhere"]) is None
    os.mkfifo(tmp_path / "fifo")
    assert allocator_of([str(tmp_path / "fifo")]) is None, "nobody waits for it"
    assert allocator_of(["env", "--new-option", "sort"]) is None


def test_a_script_has_that_of_its_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env -S A=1 sh -e\nexit 0\n")
    script.chmod(0o755)
    assert of(str(script)) == of("sh")
    assert of("sort").name == "glibc"


def test_a_wrapper_has_that_of_what_it_becomes() -> None:
    python = sys.executable
    assert of("env", "A=1", "nice", "-n", "3", python, "x.py").name == "CPython"
    assert of("env", "PYTHONMALLOC=malloc", python).name == "CPython (malloc)"
    assert of(python, PYTHONMALLOC="malloc").name == "CPython (malloc)"


@pytest.mark.parametrize("listed", ["/opt/libjemalloc.so.2", "libx.so libjemalloc.so.2", "/a.so:/opt/libjemalloc.so.2"])
def test_a_library_that_is_preloaded_comes_first(listed: str) -> None:
    found = of("sort", LD_PRELOAD=listed)
    assert (found.name, found.tuned) == ("jemalloc", False)
    assert of("env", f"LD_PRELOAD={listed}", "sort").name == "jemalloc"
    assert of("env", "-u", "LD_PRELOAD", "sort", LD_PRELOAD=listed).name == "glibc"


def test_a_glibc_without_the_tunable_is_seen_by_its_loader(tmp_path: Path) -> None:
    """Of a loader that does not list it, as before glibc 2.35: the program runs, and no tunable reaches its malloc."""
    compiler = need_program("gcc", "gcc")
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    need(loader.exists(), "the loader of glibc on x86-64")
    text = loader.read_bytes()
    assert text.count(b"glibc.malloc.hugetlb\0") == 1
    old = tmp_path / loader.name
    old.write_bytes(text.replace(b"glibc.malloc.hugetlb\0", b"glibc.malloc.hugetlX\0"))
    old.chmod(0o755)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    for loaded, tuned in ((old, False), (loader, True)):
        made = tmp_path / f"main-{tuned}"
        words = [compiler, "-o", str(made), str(tmp_path / "main.c"), f"-Wl,--dynamic-linker={loaded}"]
        subprocess.run(words, check=True)
        subprocess.run([str(made)], check=True)
        found = of(str(made))
        assert (found.name, found.tuned) == ("glibc", tuned)
        assert ("older than 2.35" in found.why) != tuned


def program(folder: Path, mode: int, owner: int, group: int) -> str:
    path = folder / f"{mode:o}"
    shutil.copy(shutil.which("sort") or "/usr/bin/sort", path)
    os.chown(path, owner, group)
    path.chmod(mode)
    need(not os.statvfs(path).f_flag & os.ST_NOSUID, "a file system without nosuid")
    return str(path)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_rights_by_its_file_keep_tunables_and_libraries_out(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    another = program(tmp_path, mode, 65534, 65534)
    found = of(another, LD_PRELOAD="/opt/libjemalloc.so.2")
    assert (found.name, found.tuned) == ("glibc", False)
    assert "setuid" in found.why
    monkeypatch.setenv("SUDO_UID", "65534")  # then it is begun by another account, which can gain no rights
    assert of(another).tuned is True
    monkeypatch.delenv("SUDO_UID")
    os.chown(another, 0, 0)
    Path(another).chmod(mode)
    assert of(another).tuned is True, "they are the caller's already"


def test_capabilities_are_no_gain_to_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    monkeypatch.delenv("SUDO_UID", raising=False)
    setcap = need_program("setcap", "libcap2-bin")
    path = program(tmp_path, 0o755, 0, 0)
    done = subprocess.run([setcap, "cap_net_raw=ep", path], check=False, capture_output=True)
    need(done.returncode == 0, "a file system that keeps capabilities")
    assert of(path).tuned is True
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert of(path).tuned is False
