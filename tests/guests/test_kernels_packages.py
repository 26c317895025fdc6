"""Kernels of Debian packages: which of a meta-package's is meant, and a small one had for real."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest

from hugewise.errors import StorageError, UserError
from hugewise.guests import debian, kernels
from hugewise.guests.kernels import about_image, build
from hugewise.study.guest import KernelUse
from tests.guests.test_kernels_modules import module
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
        (found,) = kernels.chosen(asked, resolved)
        assert (found.name, found.version, found.sha256) == (NAME, "6.12.107-1", "2" * 64)


def test_modules_of_a_package_of_their_own_come_along() -> None:
    more = "'http://x/y' linux-modules-7.1.3-arm64_7.1.3-1_arm64.deb 4 SHA256:" + "5" * 64
    resolved = debian.parse_uris(SAID + more, ("forky", "arm64"))
    assert [each.name for each in kernels.chosen("linux-image-arm64", resolved)] == [NAME, "linux-modules-7.1.3-arm64"]


def test_a_package_without_a_kernel_is_no_kernel() -> None:
    resolved = [
        package for package in debian.parse_uris(SAID, ("trixie", "arm64")) if not package.name.startswith("linux-im")
    ]
    with pytest.raises(UserError, match="redis does not bring one kernel: it brings none"):
        kernels.chosen("redis", resolved)


RELEASE = "6.12.107-arm64"


def tree(folder: Path, config: str | None = None) -> Path:
    """What a package of a kernel unpacks to: an image, its configuration, and a module of each name."""
    (folder / "boot").mkdir(parents=True)
    (folder / f"boot/vmlinuz-{RELEASE}").write_bytes(b"a kernel")
    text = "".join(f"CONFIG_{symbol}=y\n" for symbol in build.NEEDED) if config is None else config
    (folder / f"boot/config-{RELEASE}").write_text(text)
    below = folder / f"usr/lib/modules/{RELEASE}/kernel/drivers"
    below.mkdir(parents=True)
    (below / "virtio_net.ko.xz").write_bytes(lzma.compress(module(b"depends=net_failover\0")))
    (below / "net_failover.ko").write_bytes(module(b"depends=\0"))
    return folder


def taken(tmp_path: Path, root: Path) -> Path:
    (made := tmp_path / "made").mkdir()
    kernels._take(NAME, "arm64", root, made, "Debian package x")
    return made


def test_of_a_package_the_kernel_its_configuration_and_modules_are_kept(tmp_path: Path) -> None:
    made = taken(tmp_path, tree(tmp_path / "tree"))
    assert (made / "image").read_bytes() == b"a kernel"
    assert "CONFIG_" in (made / "config").read_text()
    text = json.loads((made / "kernel.json").read_text())
    assert (text["name"], text["release"], text["origin"]) == (NAME, RELEASE, "Debian package x")
    assert text["modules"] == ["modules/00-net_failover.ko", "modules/01-virtio_net.ko"]
    assert (made / "modules/01-virtio_net.ko").read_bytes() == module(b"depends=net_failover\0")  # unpacked


def test_a_package_without_one_kernel_or_that_no_guest_could_boot_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "tree")
    (root / "boot/vmlinuz-6.1").touch()
    with pytest.raises(UserError, match=f"^the package {re.escape(NAME)} has 2 kernels below /boot, not one$"):
        taken(tmp_path, root)
    with pytest.raises(
        UserError, match=f"^the kernel of {re.escape(NAME)} cannot be a guest's: its configuration lacks"
    ):
        taken(tmp_path / "tree", tree(tmp_path / "other", "CONFIG_NET=y\n"))


@pytest.mark.parametrize("name", [f"boot/vmlinuz-{RELEASE}", f"boot/config-{RELEASE}"])
def test_a_link_of_a_package_is_not_followed_to_a_file_of_this_host(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path / "tree")
    (tmp_path / "secret").write_text((root / f"boot/config-{RELEASE}").read_text())
    (root / name).unlink()
    (root / name).symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match=f"{name} is a link, and no file$"):
        taken(tmp_path, root)


@pytest.mark.soak  # it reads the lists of an archive and fetches a kernel
def test_a_real_package_is_unpacked_once_and_found_without_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        need_program(program, package)
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    use, lines = KernelUse(name="debian", package="linux-image-cloud-amd64"), list[str]()
    assert kernels.available(use, "x86-64", "trixie") is None
    try:
        kernel = kernels.provide(use, "x86-64", "trixie", lines.append)
    except UserError as error:
        need("cannot read the package lists" not in error.message, f"Debian's archive through apt ({error.message})")
        raise
    assert any("unpacking linux-image-" in line for line in lines)
    assert kernel.name == "debian"
    assert kernel.arch == "x86-64"
    assert kernel.release.endswith("-cloud-amd64")
    assert about_image(Path(kernel.image).read_bytes()) == ("x86-64", kernel.release)
    assert kernels.base_page(kernel) == 4096
    names = [Path(each).name.partition("-")[2].partition(".")[0] for each in kernel.modules]
    assert names.index("failover") < names.index("net_failover") < names.index("virtio_net")
    assert names.index("sunrpc") < names.index("nfsv4")
    assert all(Path(each).is_file() for each in kernel.modules)
    assert f"{kernel.release} 6." in kernel.origin
    # Nothing but what is used stays, and nothing is asked of apt again.
    folder = Path(kernel.image).parent
    assert sorted(each.name for each in folder.iterdir()) == ["config", "image", "kernel.json", "modules"]
    monkeypatch.setattr(debian, "resolve", None)
    lines.clear()
    assert kernels.provide(use, "x86-64", "trixie", lines.append) == kernel
    assert lines == []
    assert kernels.available(use, "x86-64", "bookworm") is None
    assert kernels.difference(kernel, kernel) == []


def test_a_kernel_of_one_archive_is_not_had_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for host in ("one", "another"):
        monkeypatch.setattr(debian, "_archive_uri", lambda host=host: f"http://{host}.example/debian")
        keys.append(kernels.package_key(NAME, "x86-64", "bookworm"))
    assert keys[0] != keys[1]
