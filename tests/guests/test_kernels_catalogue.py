"""Kernels by their names in a study, and what this machine lacks to build one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.guests import kernels
from hugewise.guests.kernels import build
from hugewise.model.guest import Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "missing_tools", lambda arch: ())
    monkeypatch.setattr(build, "compiler_version", lambda arch: "gcc 12; ld 2")
    return tmp_path / "cache"


def put(name: str, text: str, suite: str = "trixie") -> Kernel:
    """A kernel of that name in the cache, with the configuration `text`."""
    arch = build.RECIPES[name].arch
    asked = build.build_key(build.RECIPES[name], suite)

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / build.IMAGE).write_bytes(b"")
        (folder / build.CONFIG).write_text(text)
        build.write_record(
            folder,
            Kernel(
                name=name,
                arch=arch,
                image=build.IMAGE,
                digest="0",
                release=f"6.12-{name}",
                config=build.CONFIG,
                origin="x",
            ),
        )

    return build.make_or_find(asked, {"of": name}, make)


def test_a_recipe_that_is_not_there_or_for_another_architecture() -> None:
    with pytest.raises(UserError, match="there is no recipe pv-xl") as raised:
        kernels.recipe("pv-xl", "x86-64")
    assert raised.value.hint == "did you mean pv-xxl?"
    with pytest.raises(UserError, match="is for arm64, and the guests are x86-64"):
        kernels.recipe("arm64-4k", "x86-64")


def test_a_study_names_kernels_its_own_way() -> None:
    put("pv-none", "CONFIG_NET=y\n")
    found = kernels.available(KernelUse(name="without", build="pv-none"), "x86-64", "bookworm")
    assert found is not None
    assert found.name == "without"


def test_a_recipe_is_not_there_and_not_asked_for_where_no_compiler_says_which_build_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put("pv-none", "CONFIG_NET=y\n")
    use = KernelUse(name="k", build="pv-none")
    monkeypatch.setattr(build, "missing_tools", lambda arch: (Missing("no gcc", "gcc"),))
    assert kernels.missing(use, "x86-64") == (Missing("no gcc", "gcc"),)
    assert kernels.missing(KernelUse(name="k", package="linux-image-amd64"), "x86-64") == ()
    assert kernels.available(use, "x86-64", "trixie") is None


def test_what_building_needs_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(build, "_on_path", lambda name: name in ("make", "gcc", "ld", "perl", "tar", "xz", "gzip"))
    monkeypatch.setattr(build, "_includes", lambda header: False)
    monkeypatch.setattr(build, "cross_compile_prefix", lambda arch: "aarch64-linux-gnu-" if arch == "arm64" else "")
    lacking = {tool.package for tool in build.missing_tools("arm64")}
    assert lacking == {"flex", "bison", "bc", "dpkg", "gcc-aarch64-linux-gnu"}
    assert {tool.package for tool in build.missing_tools("x86-64")} == {
        "flex",
        "bison",
        "bc",
        "dpkg",
        "libelf-dev",
    }
    # All in one go: without a compiler nobody can tell whether the header is there.
    monkeypatch.setattr(build, "_on_path", lambda name: name != "gcc")
    assert build.missing_tools("x86-64") == (
        Missing("no gcc to build kernels with", "gcc"),
        Missing("no gcc to look for gelf.h with", "libelf-dev"),
    )
