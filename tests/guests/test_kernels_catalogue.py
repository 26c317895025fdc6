"""Kernels by the names that a user types, and the commands that show and make them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hugewise.cli.main import cli
from hugewise.errors import UserError
from hugewise.guests import kernels
from hugewise.guests.kernels import build, store
from hugewise.model.guest import Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse

Hugewise = Callable[..., str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(build, "missing_tools", lambda arch: ())
    monkeypatch.setattr(build, "compiler_version", lambda arch: "gcc 12; ld 2")
    return tmp_path / "cache"


@pytest.fixture
def call() -> Hugewise:
    def called(*words: str) -> str:
        done = CliRunner().invoke(cli, ["guest", "kernel", *words], catch_exceptions=False, standalone_mode=False)
        return str(done.output)

    return called


def put(name: str, text: str, suite: str = "trixie") -> Kernel:
    """A kernel of that name in the cache, with the configuration `text`."""
    use, arch = kernels.use_of(name)
    asked = build.build_key(kernels.recipe(name, arch), suite) if use.build else kernels.package_key(name, arch, suite)

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / store.IMAGE).write_bytes(b"")
        (folder / store.CONFIG).write_text(text)
        store.write(
            folder,
            Kernel(
                name=name,
                arch=arch,
                image=store.IMAGE,
                digest="0",
                release=f"6.12-{name}",
                config=store.CONFIG,
                origin="x",
            ),
        )

    return store.make_or_find(asked, {"of": name}, make)


@pytest.mark.parametrize(
    ("name", "use", "arch"),
    [
        ("pv-xxl", KernelUse(name="pv-xxl", build="pv-xxl"), "x86-64"),
        ("arm64-64k", KernelUse(name="arm64-64k", build="arm64-64k"), "arm64"),
        ("linux-image-arm64-16k", KernelUse(name="linux-image-arm64-16k", package="linux-image-arm64-16k"), "arm64"),
        ("linux-image-rt-amd64", KernelUse(name="linux-image-rt-amd64", package="linux-image-rt-amd64"), "x86-64"),
    ],
)
def test_a_name_is_a_recipe_or_a_package(name: str, use: KernelUse, arch: str) -> None:
    assert kernels.use_of(name) == (use, arch)


def test_names_that_mean_nothing() -> None:
    with pytest.raises(UserError, match="no recipe, and no Debian package that says its architecture"):
        kernels.use_of("arm64k")
    assert kernels.use_of("mine", "arm64")[1] == "arm64"
    with pytest.raises(UserError, match="is for x86-64, not arm64"):
        kernels.use_of("pv-none", "arm64")
    with pytest.raises(UserError, match="is for x86-64, not arm64"):
        kernels.use_of("linux-image-amd64", "arm64")
    with pytest.raises(UserError, match="there is no recipe pv-xl") as raised:
        kernels.recipe("pv-xl", "x86-64")
    assert raised.value.hint == "did you mean pv-xxl?"
    with pytest.raises(UserError, match="is for arm64, and the guests are x86-64"):
        kernels.recipe("arm64-4k", "x86-64")


def test_fragments_of_the_users_own_are_over_what_guests_need() -> None:
    asked = store.merged_fragments(kernels.own_recipe("mine", [("f", "CONFIG_ARM64_16K_PAGES=y\n")], "arm64").texts)
    assert asked["VIRTIO_CONSOLE"] == "y"
    assert asked["ARM64_16K_PAGES"] == "y"
    assert kernels.own_recipe("mine", [("f", "CONFIG_ARM64_16K_PAGES=y\n")], "arm64").page_size == 16384
    assert kernels.own_recipe("mine", [("f", "# CONFIG_TRANSPARENT_HUGEPAGE is not set\n")], "x86-64").own == 1
    over = kernels.own_recipe("pv-none", [("f", "CONFIG_PSI=y\n")], None)
    assert store.merged_fragments(over.texts)["PSI"] == "y"
    assert store.merged_fragments(over.texts)["HYPERVISOR_GUEST"] == "n"
    for name, text, arch, why in (
        ("Mine!", "", "arm64", "cannot be a kernel's name"),
        ("mine", "PSI=y", "arm64", "f: line 1: 'PSI=y' is neither"),
        ("mine", "CONFIG_PSI=y\n# CONFIG_SYSFS is not set", "arm64", "f: a kernel without CONFIG_SYSFS cannot be a"),
        ("mine", "", None, "the architecture of the kernel mine is not said"),
        ("pv-none", "", "arm64", "is for x86-64, not arm64"),
    ):
        with pytest.raises(UserError, match=why):
            kernels.own_recipe(name, [("f", text)], arch)  # type: ignore[arg-type]


def test_the_list_says_what_is_in_the_cache(call: Hugewise) -> None:
    put("linux-image-arm64-16k", "CONFIG_ARM64_16K_PAGES=y\n")
    put("pv-none", "CONFIG_NET=y\n")
    rows = {line.split()[0]: line.split()[1:4] for line in call("list").splitlines()}
    assert rows["pv-none"] == ["x86-64", "4k", "6.12-pv-none"]
    assert rows["pv-plain"] == ["x86-64", "4k", "no"]
    assert rows["arm64-64k"] == ["arm64", "64k", "no"]
    assert rows["linux-image-arm64-16k"] == ["arm64", "16k", "6.12-linux-image-arm64-16k"]
    other = {line.split()[0]: line.split()[3] for line in call("list", "--suite", "bookworm").splitlines()}
    assert other["linux-image-arm64-16k"] == "no"


def test_what_is_there_is_got_without_the_archive(call: Hugewise) -> None:
    kernel = put("arm64-16k", "CONFIG_ARM64_16K_PAGES=y\n")
    said = call("get", "arm64-16k")
    assert f"kernel:  {kernel.image}\n" in said
    assert "release: 6.12-arm64-16k (arm64, base page 16k)\n" in said


def test_the_difference_of_two_kernels(call: Hugewise) -> None:
    put("pv-none", "CONFIG_NET=y\n# CONFIG_PARAVIRT is not set\n")
    with pytest.raises(UserError, match="the kernel pv-plain is not in the cache") as raised:
        call("diff", "pv-none", "pv-plain")
    assert raised.value.hint == "hugewise guest kernel get pv-plain --suite trixie"
    put("pv-plain", "CONFIG_NET=y\nCONFIG_PARAVIRT=y\n")
    assert call("diff", "pv-none", "pv-plain").split() == [
        *("symbol", "pv-none", "pv-plain"),
        *("CONFIG_PARAVIRT", "n", "y"),
    ]


def test_a_kernel_that_was_removed_from_the_cache_is_not_there(cache: Path) -> None:
    kernel = put("pv-none", "CONFIG_NET=y\n")
    assert kernels.cached_kernel("pv-none", "trixie") == kernel
    Path(kernel.image).unlink()
    assert kernels.cached_kernel("pv-none", "trixie") is None


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


def test_kernels_of_the_users_own_are_listed_and_compared(call: Hugewise, cache: Path) -> None:
    """By the name that they were built under, and by their file, which a study names."""
    put("pv-none", "CONFIG_NET=y\n")

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / store.IMAGE).write_bytes(b"x")
        (folder / store.CONFIG).write_text("CONFIG_NET=y\nCONFIG_PSI=y\n")
        origin = "built from linux.tar.xz (SHA-256 0) by the recipe mine, gcc 12"
        mine = Kernel(
            name="mine", arch="x86-64", image=store.IMAGE, digest="1", release="6.12-mine", config=store.CONFIG,
            origin=origin,
        )  # fmt: skip
        store.write(folder, mine)

    kernel = store.make_or_find({"asked": "mine"}, {"of": "mine"}, make)
    (row,) = [line for line in call("list").splitlines() if line.startswith("mine ")]
    assert row.split()[:4] == ["mine", "x86-64", "4k", "6.12-mine"]
    assert row.split()[-1] == kernel.image
    assert [line.split()[0] for line in call("list").splitlines()].count("pv-none") == 1
    assert call("diff", "pv-none", "mine").split()[-3:] == ["CONFIG_PSI", "n", "y"]
