"""Kernels of Debian packages: which of a meta-package's is meant, and a small one had for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.errors import UserError
from hugewise.guests import debian, kernels
from hugewise.guests.kernels import packages
from hugewise.guests.kernels.elf import about_image
from hugewise.study.guest import KernelUse
from tests.requirements import need, need_program

# Of what `apt-get install --print-uris` said on 2026-11-21, the lines about the kernel and some others.
SAID = "".join(
    f"'http://archive.example/pool/{file}' {file} {size} SHA256:{digit * 64}\n"
    for file, size, digit in (
        ("linux-base_4.12.1_all.deb", 25544, "1"),
        ("linux-image-6.12.107+deb13-arm64_6.12.107-1_arm64.deb", 92902468, "2"),
        ("linux-image-arm64_6.12.107-1_arm64.deb", 1444, "3"),
        ("libzstd1_1.5.7+dfsg-1_arm64.deb", 266052, "4"),
    )
)
NAME = "linux-image-6.12.107+deb13-arm64"


def test_a_meta_package_means_the_version_that_it_brings() -> None:
    resolved = debian.parse_uris(SAID, ("trixie", "arm64"))
    assert len(resolved) == 4
    for asked in ("linux-image-arm64", NAME):
        (found,) = packages.chosen(asked, resolved)
        assert (found.name, found.version, found.sha256) == (NAME, "6.12.107-1", "2" * 64)


def test_modules_of_a_package_of_their_own_come_along() -> None:
    more = "'http://x/y' linux-modules-7.1.3-arm64_7.1.3-1_arm64.deb 4 SHA256:" + "5" * 64
    resolved = debian.parse_uris(SAID + more, ("forky", "arm64"))
    assert [each.name for each in packages.chosen("linux-image-arm64", resolved)] == [NAME, "linux-modules-7.1.3-arm64"]


def test_a_package_without_a_kernel_is_no_kernel() -> None:
    resolved = [each for each in debian.parse_uris(SAID, ("trixie", "arm64")) if not each.name.startswith("linux-im")]
    with pytest.raises(UserError, match="redis does not bring one kernel: it brings none"):
        packages.chosen("redis", resolved)


@pytest.mark.soak  # it reads the lists of an archive and fetches a kernel
def test_a_real_package_is_unpacked_once_and_found_without_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        need_program(program, package)
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    use, told = KernelUse(name="debian", package="linux-image-cloud-amd64"), list[str]()
    assert kernels.available(use, "x86-64", "trixie") is None
    try:
        found = kernels.provide(use, "x86-64", "trixie", told.append)
    except UserError as error:
        need("cannot read the package lists" not in error.message, f"Debian's archive through apt ({error.message})")
        raise
    assert any("unpacking linux-image-" in line for line in told)
    assert found.name == "debian"
    assert found.arch == "x86-64"
    assert found.release.endswith("-cloud-amd64")
    assert about_image(Path(found.image).read_bytes()) == ("x86-64", found.release)
    assert kernels.base_page(found) == 4096
    names = [Path(each).name.partition("-")[2].partition(".")[0] for each in found.modules]
    assert names.index("failover") < names.index("net_failover") < names.index("virtio_net")
    assert names.index("sunrpc") < names.index("nfsv4")
    assert all(Path(each).is_file() for each in found.modules)
    assert f"{found.release} 6." in found.origin
    # Nothing but what is used stays, and nothing is asked of apt again.
    folder = Path(found.image).parent
    assert sorted(each.name for each in folder.iterdir()) == [".sealed", "config", "image", "kernel.json", "modules"]
    monkeypatch.setattr(debian, "resolve", None)
    told.clear()
    assert kernels.provide(use, "x86-64", "trixie", told.append) == found
    assert told == []
    assert kernels.available(use, "x86-64", "bookworm") is None
    assert kernels.difference(found, found) == []


def test_a_kernel_of_one_archive_is_not_had_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for host in ("one", "another"):
        chosen = tmp_path / f"{host}.list"
        chosen.write_text(f"deb http://{host}.example/debian bookworm main\n")
        monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(chosen))
        keys.append(packages.asked(NAME, "x86-64", "bookworm"))
    assert keys[0] != keys[1]
    monkeypatch.setenv("HUGEWISE_APT_SOURCES", str(tmp_path / "none.list"))
    assert packages.asked(NAME, "x86-64", "bookworm") not in keys
