"""A folder of wheels that a fleet is provisioned from: hugewise's own, whole, and what it needs by name only.

Whatever it needs is in a wheel that says so and holds nothing but a path: to where it is installed here. So nothing is
fetched, and a host has it within seconds.
"""

import importlib.util
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from packaging.requirements import Requirement

from tests.requirements import need, need_program

ROOT = Path(__file__).parents[2]
_PROBES = Path(sys.prefix, "share", "hugewise")
_NAME = "hugewise-{version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


def wheels(folder: Path) -> Path:
    """They are in `folder` afterwards."""
    need((_PROBES / "probe-x86-64").is_file(), "the static probe (make guest-probes)")
    need((_PROBES / "libhugewise-layout.so").is_file(), "the layout library (make setup)")
    need_program("cargo", "cargo-web")
    folder.mkdir(parents=True, exist_ok=True)
    with mock.patch.dict(os.environ, {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}), _working_in(ROOT):
        backend = _backend()
        pure = folder / backend.uv_build.build_wheel(str(folder))
        backend.assemble(pure, _PROBES, Path(sys.prefix), folder / _NAME.format(version=metadata.version("hugewise")))
    pure.unlink()
    for name, version in sorted(_needed("hugewise", frozenset({"fleet"}))):
        _by_name(folder, name, version)
    return folder


def of_another_version(folder: Path, target: Path) -> Path:
    """The same wheels; hugewise's says that it is 0.0.9."""
    target.mkdir()
    for path in folder.iterdir():
        if not path.name.startswith("hugewise-"):
            (target / path.name).write_bytes(path.read_bytes())
            continue
        version = path.name.split("-")[1]
        with zipfile.ZipFile(path) as read, zipfile.ZipFile(target / _NAME.format(version="0.0.9"), "w") as to:
            for entry in read.infolist():
                data = read.read(entry)
                entry.filename = entry.filename.replace(f"hugewise-{version}.", "hugewise-0.0.9.")
                if entry.filename.endswith("/METADATA"):
                    data = data.replace(f"\nVersion: {version}\n".encode(), b"\nVersion: 0.0.9\n")
                if entry.filename.endswith("/RECORD"):
                    data = re.sub(rb",sha256=[^,]*,[0-9]*", b",,", data)
                    data = data.replace(f"hugewise-{version}.".encode(), b"hugewise-0.0.9.")
                to.writestr(entry, data)
    return target


def _backend() -> Any:
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "tools" / "wheel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _working_in:  # noqa: N801  (a context)
    def __init__(self, folder: Path) -> None:
        self._folder, self._before = folder, Path.cwd()

    def __enter__(self) -> None:
        os.chdir(self._folder)

    def __exit__(self, *_: object) -> None:
        os.chdir(self._before)


def _needed(name: str, extras: frozenset[str], known: set[str] | None = None) -> Iterator[tuple[str, str]]:
    """All that it needs, by name and version as they are here."""
    known = set() if known is None else known
    for line in metadata.requires(name) or ():
        one = Requirement(line)
        if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            continue
        if one.name.lower() not in known:
            known.add(one.name.lower())
            yield one.name, metadata.version(one.name)
            yield from _needed(one.name, frozenset(one.extras), known)


def _by_name(folder: Path, name: str, version: str) -> None:
    plain = re.sub(r"[-_.]+", "_", name).lower()
    info = f"{plain}-{version}.dist-info"
    files = {
        f"{plain}_elsewhere.pth": f"{sysconfig.get_path('purelib')}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{plain}-{version}-py3-none-any.whl", "w") as to:
        for each, text in {**files, f"{info}/RECORD": record}.items():
            to.writestr(each, text)
