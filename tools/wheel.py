"""The build backend (PEP 517): uv_build's wheel with the static probe and launcher in it, the layout library, their
licences, and the studies.

So whoever installs the wheel needs no cargo. An editable installation and a source distribution are uv_build's alone; a
wheel that pip builds from the latter comes here, and takes cargo and a C compiler. As a program it builds both:
`python tools/wheel.py FOLDER`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uv_build
from uv_build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "assemble",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# Static programs, and a library that uses what it finds, need no version of glibc: the oldest known tag will do.
TAGS = ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
RUST = "x86_64-unknown-linux-gnu"
LINKED = """\
What the program hugewise-probe of this wheel is made of, beside the sources of hugewise (MIT).

The C library of GNU is linked into it, which is under the GNU Lesser General Public License, version 2.1 or later (the
file LGPL-2.1.txt has it). The source distribution of this version of hugewise has all that is needed to link the
program again with another version of that library: run tools/guest-probe.sh there.

The standard library of Rust (MIT OR Apache-2.0): copyright of the Rust Project contributors. Crates:
"""


def build_wheel(
    wheel_directory: str, config_settings: Mapping[Any, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel for x86-64 in that folder; return its name."""
    with tempfile.TemporaryDirectory() as made:
        pure = Path(made, uv_build.build_wheel(made, config_settings, metadata_directory))
        probes = Path(made, "probes")
        subprocess.run([str(Path("tools/guest-probe.sh").absolute()), str(probes)], check=True)
        if not (probes / "probe-x86-64").is_file():
            sys.exit("hugewise: a wheel is built on x86-64 only")
        launcher = Path(made, "launcher")
        subprocess.run([str(Path("tools/launcher.sh").absolute()), str(launcher)], check=True)
        name = pure.name.replace("-any.whl", f"-{'.'.join(TAGS)}.whl")
        assemble(pure, probes, launcher, Path(wheel_directory, name))
    return name


def assemble(pure: Path, probes: Path, launcher: Path, target: Path) -> None:
    """Assemble the wheel from `pure` and the added files, under its new tag; the same inputs give the same bytes.

    `launcher` is a folder as tools/launcher.sh makes it.
    """
    project = "-".join(pure.name.split("-")[:2])
    shared, info = f"{project}.data/data/share/hugewise", f"{project}.dist-info"
    with zipfile.ZipFile(pure) as reading:
        files = {name: (reading.read(name), 0o644) for name in reading.namelist() if not name.endswith("/")}
    del files[f"{info}/RECORD"]
    said = files[f"{info}/WHEEL"][0].decode()
    tags = "\n".join(f"Tag: py3-none-{tag}" for tag in TAGS)
    said = said.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").replace("Tag: py3-none-any", tags)
    files[f"{info}/WHEEL"] = (said.encode(), 0o644)
    files[f"{info}/licenses/probe/linked.txt"] = ("\n".join(_linked()).encode(), 0o644)
    files[f"{project}.data/scripts/hugewise-probe"] = ((probes / "probe-x86-64").read_bytes(), 0o755)
    files[f"{project}.data/scripts/hugewise-exec"] = ((launcher / "bin" / "hugewise-exec").read_bytes(), 0o755)
    library = launcher / "share" / "hugewise" / "libhugewise-layout.so"
    files[f"{shared}/{library.name}"] = (library.read_bytes(), 0o644)
    if (arm := probes / "probe-arm64").is_file():
        files[f"{shared}/probe-arm64"] = (arm.read_bytes(), 0o755)
    for study in sorted(Path("studies").glob("*.toml")):
        files[f"{shared}/studies/{study.name}"] = (study.read_bytes(), 0o644)
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, (data, _) in sorted(files.items())]
    files[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,", ""]).encode(), 0o644)
    with zipfile.ZipFile(target, "w") as writing:
        for name, (data, mode) in files.items():
            entry = zipfile.ZipInfo(name)  # dated 1980, not now
            entry.external_attr = (0o100000 | mode) << 16
            writing.writestr(entry, data, zipfile.ZIP_DEFLATED)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _linked() -> Iterator[str]:
    """Yield the licences of the crates linked into the probe, not of macros, which run while it is built."""
    asked = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={RUST}"]
    found = json.loads(
        subprocess.run([*asked, "--manifest-path=probe/Cargo.toml"], check=True, capture_output=True).stdout
    )
    packages = {each["id"]: each for each in found["packages"]}
    needs = {node["id"]: node["deps"] for node in found["resolve"]["nodes"]}
    linked, todo = set[str](), [found["resolve"]["root"]]
    while todo:
        identity = todo.pop()
        macro = any("proc-macro" in target["kind"] for target in packages[identity]["targets"])
        if identity not in linked and not macro:
            linked.add(identity)
            todo += [need["pkg"] for need in needs[identity] if any(kind["kind"] is None for kind in need["dep_kinds"])]
    yield LINKED
    foreign = (packages[each] for each in linked if packages[each]["source"] is not None)
    for crate in sorted(foreign, key=lambda each: str(each["name"])):
        yield f"* {crate['name']} {crate['version']}: {crate['license']}; {', '.join(crate['authors'])}"
        for path in sorted(Path(crate["manifest_path"]).parent.glob("LICENSE*")):
            if "-" not in path.name or path.name == "LICENSE-MIT":  # each crate may be used under it
                yield f"\n{path.read_text(encoding='utf-8').strip()}\n"


if __name__ == "__main__":
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    for build in (build_sdist, build_wheel):
        sys.stdout.write(f"{to / build(str(to))}\n")
