"""The layout library's place, and the environment of what loads it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.machine import loader, programs
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from tests.requirements import need_root


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
