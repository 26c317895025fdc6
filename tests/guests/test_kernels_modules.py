"""What kernels and modules say of themselves, and the order to load modules in."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import UserError
from hugewise.guests import kernels
from hugewise.guests.kernels import Module, about_image, about_module, build, parse_modinfo
from hugewise.model.guest import Kernel
from tests.build import known

# `depends` and `softdep` of Debian's 6.12.107+deb13-arm64, in the order of the alphabet.
DEBIAN = {
    "crc16": Module(),
    "crc32c_generic": Module(),
    "dns_resolver": Module(),
    "ext4": Module(("jbd2", "mbcache", "crc16"), ("crypto_crc32c",)),
    "failover": Module(),
    "grace": Module(),
    "jbd2": Module(),
    "lockd": Module(("sunrpc", "grace")),
    "mbcache": Module(),
    "net_failover": Module(("failover",)),
    "netfs": Module(),
    "nfs": Module(("sunrpc", "netfs", "lockd")),
    "nfs_acl": Module(("sunrpc",)),
    "nfsv3": Module(("nfs", "sunrpc", "lockd", "nfs_acl")),
    "nfsv4": Module(("nfs", "sunrpc", "dns_resolver", "lockd")),
    "sunrpc": Module(),
    "virtio_blk": Module(),
    "virtio_mmio": Module(),
    "virtio_net": Module(("net_failover",)),
}


def module(modinfo: bytes) -> bytes:
    """Something like an ELF file with that section."""
    return b"\x7fELF\2\1\1\0.shstrtab\0.modinfo\0depends\0" + modinfo + b"__UNIQUE_ID_depends274\0"


EXT4 = b"license=GPL\0softdep=pre: crypto-crc32c\0alias=fs-ext4\0depends=jbd2,mbcache,crc16\0name=ext4\0"


def test_what_a_module_says_that_it_needs(tmp_path: Path) -> None:
    said = DEBIAN["ext4"]
    assert parse_modinfo(EXT4) == said
    data = module(EXT4)
    for name, text in (("ext4.ko", data), ("ext4.ko.xz", lzma.compress(data)), ("ext4.ko.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(text)
        assert about_module(tmp_path / name) == said
    assert parse_modinfo(b"depends=\0softdep=post: a-b pre: c-d e\0") == Module((), ("c_d", "e"))
    assert parse_modinfo(b"\0depends=a\0text\0depends=%s\0") == Module(("a",), ())  # what comes first is the module's


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.ko", b"text", "does not say what it depends on"),
        ("a.ko.xz", b"text", "is not a kernel module"),
        ("a.ko", module(b"x=1\0"), "is not a kernel module"),
        ("a.ko", b"text\0depends=b\0", "is not a kernel module"),
        ("a.ko.zst", b"text", "cannot unpack modules that end with .zst"),
    ],
)
def test_what_is_no_module_is_said_to_be_none(name: str, data: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=why):
        about_module(tmp_path / name)


def test_each_module_is_loaded_after_what_it_needs() -> None:
    found = kernels.load_order(kernels.WANTED, DEBIAN, DEBIAN.__getitem__)
    assert sorted(found) == sorted(DEBIAN)
    for name, about in DEBIAN.items():
        assert all(found.index(needed) < found.index(name) for needed in about.depends)
    assert found.index("crc32c_generic") < found.index("ext4")  # by its alias, which is no dependency
    assert found[0] == "virtio_mmio"  # virtio_pci and virtio_console are built in


def test_a_guest_that_mounts_no_nfs_goes_without_its_modules(tmp_path: Path) -> None:
    order = kernels.load_order(kernels.WANTED, DEBIAN, DEBIAN.__getitem__)
    paths = tuple(f"/c/modules/{number:02}-{name}.ko" for number, name in enumerate(order))
    kernel = Kernel(name="k", arch="arm64", image="", digest="", release="", modules=paths, origin="")
    kept = [each.partition("-")[2].removesuffix(".ko") for each in kernels.without_nfs(kernel).modules]
    assert kept == kernels.load_order(
        [n for n in kernels.WANTED if not n.startswith("nfs")], DEBIAN, DEBIAN.__getitem__
    )
    own_files = msgspec.structs.replace(kernel, modules=("/lib/modules/6/nfs-acl.ko.xz", "/lib/modules/6/9p.ko.xz"))
    assert kernels.without_nfs(own_files).modules == ("/lib/modules/6/9p.ko.xz",)


def test_modules_that_need_each_other_do_not_go_round() -> None:
    about = {"a": Module(("b",)), "b": Module((), ("a",))}
    assert kernels.load_order(["a"], about, about.__getitem__) == ["b", "a"]


def test_the_modules_below_a_folder(tmp_path: Path) -> None:
    below = tmp_path / "kernel" / "drivers"
    below.mkdir(parents=True)
    (below / "virtio_net.ko.xz").write_bytes(lzma.compress(module(b"depends=net-failover\0")))
    (below / "net-failover.ko.xz").write_bytes(lzma.compress(module(b"depends=\0")))
    (below / "sound.ko.xz").write_bytes(b"is not read")
    (tmp_path / "modules.order").touch()
    assert kernels.needed_in(tmp_path) == (below / "net-failover.ko.xz", below / "virtio_net.ko.xz")
    with pytest.raises(UserError, match="no kernel modules below it"):
        kernels.needed_in(tmp_path / "nothing")


def bzimage(release: bytes) -> bytes:
    data = bytearray(0x400)
    data[0x202:0x206] = b"HdrS"
    data[0x20E:0x210] = struct.pack("<H", 0x100)
    data[0x300 : 0x300 + len(release)] = release
    return bytes(data)


ARM64 = b"MZ\0\0".ljust(0x38, b"\0") + b"ARM\x64" + b"\0" * 64 + b"Linux version 6.12.107+deb13-arm64-16k (debian) "


def test_what_an_image_says() -> None:
    assert about_image(bzimage(b"6.1.0-56-cloud-amd64 (debian) #1 SMP\0")) == ("x86-64", "6.1.0-56-cloud-amd64")
    assert about_image(ARM64) == ("arm64", "6.12.107+deb13-arm64-16k")
    assert about_image(gzip.compress(ARM64)) == ("arm64", "6.12.107+deb13-arm64-16k")
    assert about_image(ARM64[:0x40]) == ("arm64", None)
    for other in (b"", b"text", b"\x1f\x8bnothing", module(b"")):
        assert about_image(other) is None


def test_a_kernel_that_is_a_file(tmp_path: Path) -> None:
    image = tmp_path / "vmlinuz-6.1.0"
    image.write_bytes(bzimage(b"6.1.0 (me)\0"))
    built_in = "".join(f"CONFIG_{symbol}=y\n" for symbol in build.NEEDED)
    (tmp_path / "config-6.1.0").write_text(built_in)  # of a kernel without THP, which nothing of a guest needs
    (tmp_path / "virtio_net.ko").write_bytes(module(b"depends=\0"))
    found = kernels.kernel_of_path("mine", str(image), str(tmp_path), "x86-64")
    assert (found.name, found.release, found.image) == ("mine", "6.1.0", str(image))
    assert found.config == str(tmp_path / "config-6.1.0")
    assert found.modules == (str(tmp_path / "virtio_net.ko"),)
    assert kernels.kernel_of_path("mine", str(image), None, "x86-64").modules == ()
    with pytest.raises(UserError, match="is one of x86-64, and the guests are arm64"):
        kernels.kernel_of_path("mine", str(image), None, "arm64")
    with pytest.raises(UserError, match="cannot be read"):
        kernels.kernel_of_path("mine", str(tmp_path / "none"), None, "arm64")
    (tmp_path / "config-6.1.0").write_text(built_in.replace("VIRTIO_BLK=y", "VIRTIO_BLK=m"))
    assert kernels.kernel_of_path("mine", str(image), str(tmp_path), "x86-64").name == "mine"
    with pytest.raises(UserError, match="config-6.1.0 lacks CONFIG_VIRTIO_BLK") as caught:
        kernels.kernel_of_path("mine", str(image), None, "x86-64")
    assert "name its modules" in known(caught.value.hint)
    with pytest.raises(UserError, match="neither a bzImage nor"):
        kernels.kernel_of_path("mine", str(tmp_path / "config-6.1.0"), None, "arm64")


def test_a_file_that_unpacks_to_more_than_there_is_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_MOST", 1 << 20)
    for name, packed in (("a.ko.gz", gzip.compress(bytes(4 << 20))), ("a.ko.xz", lzma.compress(bytes(4 << 20)))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(UserError, match="is not a kernel module that can be read: more than 1,048,576 bytes"):
            kernels.unpacked(tmp_path / name)
    assert kernels.about_image(gzip.compress(bytes(4 << 20))) is None


@pytest.mark.parametrize("path", ["/dev/zero", "/proc", "/nowhere"])
def test_a_kernel_that_is_no_file_is_never_waited_for(path: str) -> None:
    with pytest.raises(UserError, match=f"the kernel mine cannot be read: {path}: "):
        kernels.kernel_of_path("mine", path, None, "x86-64")
