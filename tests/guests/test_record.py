"""`guests.json`: what a run's folder keeps of its guests, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.errors import RunError
from hugewise.guests.hypervisor import Choice
from hugewise.guests.resources import GuestResources
from hugewise.guests.survey import Survey
from hugewise.model import guest
from hugewise.model.guest import GuestsRecord, Image, Kernel, Option
from hugewise.report.sections.guests import kernels_table
from hugewise.study.load import parse
from tests.build import known
from tests.build.booted import lpc

STUDY = """
format = 1
name = "kernels"
policies = ["base", { name = "other", from = "base", kernel = "xxl" }, { name = "own", from = "base", kernel = "file" }]
baseline = "base"

[guest]
arch = "x86-64"
counting = true

[[kernel]]
name = "none"
build = "pv-none"

[[kernel]]
name = "xxl"
build = "pv-xxl"

[[kernel]]
name = "file"
path = "/boot/vmlinuz"

[[workload]]
name = "mmap-perf"
"""


def kernel(folder: Path, name: str, config: str | None) -> Kernel:
    path = folder / f"{name}.config"
    if config is not None:
        path.write_text(config, encoding="utf-8")
    return Kernel(
        name=name,
        arch="x86-64",
        image=f"/kernels/{name}",
        digest=name * 8,
        release=f"6.12-{name}",
        config=str(path) if config is not None else None,
        origin=f"recipe {name}",
    )


def made(folder: Path, **surveys: Survey) -> GuestsRecord:
    study = parse(STUDY, "kernels.toml")
    assert study.guest is not None
    kernels = {
        "none": kernel(folder, "none", "CONFIG_SMP=y\n# CONFIG_PARAVIRT is not set\n"),
        "xxl": kernel(folder, "xxl", "CONFIG_SMP=y\nCONFIG_PARAVIRT=y\nCONFIG_PARAVIRT_XXL=y\n"),
        "file": kernel(folder, "file", None),
    }
    image = Image(arch="x86-64", packages=(("libc6", "2.41"),))
    return GuestResources(study.guest, "x86-64", Choice("tcg", "counted"), image, dict(kernels), surveys).record(study)


def test_kernels_are_compared_with_the_baselines_while_they_are_there(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert (found.baseline, found.accelerator, found.why, found.counting) == ("none", "tcg", "counted", True)
    none, xxl, file = found.kernels
    assert none.differs == ()
    assert xxl.differs == (Option("PARAVIRT", "n", "y"), Option("PARAVIRT_XXL", "n", "y"))
    assert (xxl.release, xxl.origin, xxl.base_page, xxl.had) == ("6.12-xxl", "recipe xxl", 4096, "build")
    assert (file.differs, file.base_page, file.had) == (None, None, "path")
    assert found.packages == {"libc6": "2.41"}


def test_a_kernel_by_path_has_the_base_page_that_it_told_when_it_was_booted(tmp_path: Path) -> None:
    """It may have no configuration; where there is one, that says it. The report shows what is kept."""
    told = Survey(release="6.12-own", page_size=64 << 10, files={})
    kept = made(tmp_path, file=told, none=told)
    assert {kernel.name: kernel.base_page for kernel in kept.kernels} == {"none": 4096, "xxl": 4096, "file": 64 << 10}
    shown = known(kernels_table(replace(known(lpc().guests), kernels=kept.kernels, baseline=kept.baseline)))
    assert [row[2] for row in shown.rows] == ["4k", "4k", "64k"]


def test_it_is_kept_and_read_back(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert guest.read(tmp_path) is None
    guest.write(tmp_path, found)
    assert guest.read(tmp_path) == found


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / guest.NAME).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"guests\.json cannot be read"):
        guest.read(tmp_path)
