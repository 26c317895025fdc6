"""The package: its own names, what a wheel and a source distribution of it hold; an editable one has no more."""

import base64
import csv
import hashlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hugewise
from tests.requirements import need, need_program

ROOT = Path(__file__).parents[1]
PROBES = Path(sys.prefix, "share", "hugewise")
LAUNCHER = Path(sys.prefix)  # set-up puts it there as tools/launcher.sh does
NAME = "hugewise-0.1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
INFO, DATA = "hugewise-0.1.0.dist-info", "hugewise-0.1.0.data"


def test_no_module_takes_the_name_of_a_public_function() -> None:
    """Importing a module of that name would replace the function in the package."""
    assert not {info.name for info in pkgutil.iter_modules(hugewise.__path__)} & set(hugewise.__all__)


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    """tools/wheel.py, called as a frontend calls it: from the checkout, with what builds in PATH."""
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "tools" / "wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
        yield module


@pytest.fixture(scope="module")
def wheel(backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with the probes of `make guest-probes`, which are the very same: nothing is compiled here."""
    need((PROBES / "probe-x86-64").is_file(), "the static probe (make guest-probes)")
    need((PROBES / "libhugewise-layout.so").is_file(), "the layout library (make setup)")
    need_program("cargo", "cargo-web")
    folder = tmp_path_factory.mktemp("wheel")
    backend.assemble(folder / backend.uv_build.build_wheel(str(folder)), PROBES, LAUNCHER, folder / NAME)
    return folder / NAME


def test_the_wheel_is_for_its_platform_and_says_so(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as read:
        said = read.read(f"{INFO}/WHEEL").decode().splitlines()
    tags = {line.removeprefix("Tag: py3-none-") for line in said if line.startswith("Tag: ")}
    assert tags == set(NAME.removesuffix(".whl").rpartition("-")[2].split("."))
    assert "Root-Is-Purelib: false" in said
    auditwheel = Path(sys.prefix, "bin", "auditwheel")
    need(auditwheel.is_file(), "auditwheel (make setup)")
    shown = subprocess.run([str(auditwheel), "show", str(wheel)], capture_output=True, text=True, check=True).stdout
    assert "requires no external shared libraries" in shown
    assert 'is consistent with the following platform tag: "manylinux_2_5_x86_64"' in " ".join(shown.split())


def test_the_wheel_has_the_probe_the_studies_and_their_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as read:
        modes = {entry.filename: entry.external_attr >> 16 for entry in read.infolist()}
        probe = read.read(f"{DATA}/scripts/hugewise-probe")
        linked = read.read(f"{INFO}/licenses/probe/linked.txt").decode()
    assert modes[f"{DATA}/scripts/hugewise-probe"] == 0o100755
    assert probe == (PROBES / "probe-x86-64").read_bytes()
    for study in ROOT.glob("studies/*.toml"):
        assert f"{DATA}/data/share/hugewise/studies/{study.name}" in modes
    for licence in ("LICENSE", "src/hugewise/report/arimo-OFL.txt", "probe/licences/LGPL-2.1.txt"):
        assert f"{INFO}/licenses/{licence}" in modes
    assert "* rustix " in linked  # linked into it
    assert "* syn " not in linked  # of a macro, which runs while it is built
    assert "* tempfile " not in linked  # of tests
    assert linked.count("Permission is hereby granted") > 25


def test_the_wheel_has_the_launcher_and_the_layout_library_where_it_looks_for_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as read:
        modes = {entry.filename: entry.external_attr >> 16 for entry in read.infolist()}
        launcher = read.read(f"{DATA}/scripts/hugewise-exec")
        linked = read.read(f"{INFO}/licenses/probe/linked.txt").decode()
    assert modes[f"{DATA}/scripts/hugewise-exec"] == 0o100755
    assert modes[f"{DATA}/data/share/hugewise/libhugewise-layout.so"] == 0o100644
    assert len(launcher) < 600_000
    assert "* hugewise-" not in linked  # its licence is the wheel's


def test_its_record_has_every_file_and_the_same_inputs_give_the_same_bytes(wheel: Path, backend: Any) -> None:
    with zipfile.ZipFile(wheel) as read:
        record = {
            name: (digest, size) for name, digest, size in csv.reader(read.read(f"{INFO}/RECORD").decode().split())
        }
        assert set(record) == set(read.namelist())
        for name, (digest, size) in record.items():
            if digest:
                hashed = base64.urlsafe_b64encode(hashlib.sha256(read.read(name)).digest()).decode().rstrip("=")
                assert (digest, size) == (f"sha256={hashed}", str(read.getinfo(name).file_size))
    (pure,) = wheel.parent.glob("*-any.whl")
    backend.assemble(pure, PROBES, LAUNCHER, wheel.parent / "again.whl")
    assert (wheel.parent / "again.whl").read_bytes() == wheel.read_bytes()


def test_the_source_distribution_has_what_a_wheel_is_built_from(backend: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / backend.build_sdist(str(tmp_path))) as read:
        there = {name.partition("/")[2] for name in read.getnames()}
        executable = read.getmember("hugewise-0.1.0/tools/guest-probe.sh").mode & 0o111
        launcher = read.getmember("hugewise-0.1.0/tools/launcher.sh").mode & 0o111
    wanted = [*ROOT.glob("probe/Cargo.*"), *ROOT.glob("probe/src/**/*.rs"), *ROOT.glob("studies/*.toml")]
    wanted += [
        path for crate in ("ground", "exec", "layout") for path in ROOT.glob(f"probe/{crate}/**/*") if path.is_file()
    ]
    wanted += [
        ROOT / "tools" / "launcher.sh",
        ROOT / "tools" / "wheel.py",
        ROOT / "tools" / "guest-probe.sh",
        ROOT / "LICENSE",
    ]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= there
    assert executable
    assert launcher
    assert not [name for name in there if name.startswith(("tests", "probe/target", ".venv"))]


def test_an_editable_installation_builds_no_probe(backend: Any, tmp_path: Path) -> None:
    name = backend.build_editable(str(tmp_path))
    assert name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(tmp_path / name) as read:
        assert [each for each in read.namelist() if ".dist-info/" not in each] == ["hugewise.pth"]
