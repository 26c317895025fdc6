"""Kernels of guests: their modules, packages of Debian, configurations and recipes, and how one is built."""

import gzip
import io
import json
import lzma
import os
import pwd
import re
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache, debian, kernels
from hugewise.guests.debian import Package
from hugewise.guests.kernels import Module, about_image, about_module, build, parse_modinfo
from hugewise.guests.kernels.build import _BASE, RECIPES, Recipe, SymbolDifference, _fragment
from hugewise.model.guest import Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse
from hugewise.unprivileged import Finished
from tests.build import known
from tests.requirements import need, need_program, need_root
from tests.wait import has_ended, until


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a machine that has all that kernels are built with; the kernels' folder there."""
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "missing_tools", lambda arch: ())
    monkeypatch.setattr(build, "compiler_version", lambda arch: "gcc 12; ld 2")
    monkeypatch.setenv("KCFLAGS", "-DNOT_FOR_KERNELS")
    return tmp_path / "cache" / "kernels"


COMPILER = build.compiler_version  # as it is where no test says what it says
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
    circle = {"a": Module(("b",)), "b": Module((), ("a",))}
    assert kernels.load_order(["a"], circle, circle.__getitem__) == ["b", "a"]


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


def test_a_meta_package_means_the_version_that_it_brings_with_its_modules() -> None:
    resolved = debian.parse_uris(SAID, ("trixie", "arm64"))
    assert len(resolved) == 4
    for asked in ("linux-image-arm64", NAME):
        (found,) = kernels.chosen(asked, resolved)
        assert (found.name, found.version, found.sha256) == (NAME, "6.12.107-1", "2" * 64)
    more = "'http://x/y' linux-modules-7.1.3-arm64_7.1.3-1_arm64.deb 4 SHA256:" + "5" * 64
    both = debian.parse_uris(SAID + more, ("forky", "arm64"))
    assert [each.name for each in kernels.chosen("linux-image-arm64", both)] == [NAME, "linux-modules-7.1.3-arm64"]
    others = [package for package in resolved if not package.name.startswith("linux-im")]
    with pytest.raises(UserError, match="redis does not bring one kernel: it brings none"):
        kernels.chosen("redis", others)


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


# As the kernel writes them.
HERE = """#
# Automatically generated file; DO NOT EDIT.
# Linux/arm64 6.12.107 Kernel Configuration
#
CONFIG_CC_VERSION_TEXT="aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0"
CONFIG_PGTABLE_LEVELS=4
CONFIG_ARM64_4K_PAGES=y
# CONFIG_ARM64_16K_PAGES is not set
# CONFIG_SWAP is not set
CONFIG_NET=y
# end of Kernel Features
"""


def test_the_form_of_configurations_and_the_base_page_that_they_say() -> None:
    assert build.parse_config(HERE) == {
        "CC_VERSION_TEXT": '"aarch64-linux-gnu-gcc (Debian 12.2.0-14) 12.2.0"',
        "PGTABLE_LEVELS": "4",
        "ARM64_4K_PAGES": "y",
        "ARM64_16K_PAGES": "n",
        "SWAP": "n",
        "NET": "y",
    }
    assert build.base_page(build.parse_config(HERE)) == 4096
    assert build.base_page({"ARM64_16K_PAGES": "y"}) == 16384
    assert build.base_page({"ARM64_64K_PAGES": "y", "ARM64_4K_PAGES": "n"}) == 65536


@pytest.mark.parametrize("line", ["NET=y", "CONFIG_NET", "CONFIG-NET=y", "export X=1"])
def test_a_line_that_is_no_symbol_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        build.parse_config(f"# words\n{line}\n")


def test_fragments_take_the_place_of_what_is_there_and_later_ones_of_earlier_ones() -> None:
    text = build.merged_config(HERE, ["CONFIG_SWAP=y\nCONFIG_NET=y\n", "# CONFIG_SWAP is not set\nCONFIG_EXT4_FS=y\n"])
    assert build.parse_config(text) == {**build.parse_config(HERE), "SWAP": "n", "NET": "y", "EXT4_FS": "y"}
    assert text.count("CONFIG_SWAP") == 1


def test_what_was_asked_for_and_dropped_is_named() -> None:
    asked = ["CONFIG_NET=y\nCONFIG_EXT4_FS=y\nCONFIG_PGTABLE_LEVELS=3\n", "# CONFIG_GONE is not set\nCONFIG_SWAP=y\n"]
    assert build.unmet_symbols(asked, HERE) == [
        SymbolDifference("EXT4_FS", "y", "n"),
        SymbolDifference("PGTABLE_LEVELS", "3", "4"),
        SymbolDifference("SWAP", "y", "n"),
    ]
    assert build.unmet_symbols([*asked, "# CONFIG_SWAP is not set"], HERE)[-1].symbol == "PGTABLE_LEVELS"


def test_what_differs_between_two_configurations() -> None:
    other = HERE.replace("CONFIG_ARM64_4K_PAGES=y", "# CONFIG_ARM64_4K_PAGES is not set")
    other = other.replace("# CONFIG_ARM64_16K_PAGES is not set", "CONFIG_ARM64_16K_PAGES=y").replace("12.2.0", "14.2.0")
    other = other.replace("# CONFIG_SWAP is not set\n", "")  # not there is not set
    differences = build.differing_symbols(HERE, other)
    assert [each.symbol for each in differences] == ["ARM64_16K_PAGES", "ARM64_4K_PAGES", "CC_VERSION_TEXT"]
    assert differences[0] == SymbolDifference("ARM64_16K_PAGES", "n", "y")
    assert build.differing_symbols(HERE, HERE) == []


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_differ_from_their_base_in_one_fragment(name: str) -> None:
    recipe = RECIPES[name]
    assert len(recipe.texts) == len(_BASE[recipe.arch]) + 1
    asked = build.merged_fragments(recipe.texts)
    # No fragment takes back what the base asks for: comparisons are of what is added.
    base = build.merged_fragments(_fragment(each) for each in _BASE[recipe.arch])
    assert {symbol: asked[symbol] for symbol in base} == base


def test_the_arm64_kernels_differ_in_their_page_size_alone() -> None:
    own = {name: build.parse_config(_fragment(name)) for name in RECIPES if name.startswith("arm64")}
    assert own == {
        "arm64-4k": {"ARM64_4K_PAGES": "y"},
        "arm64-16k": {"ARM64_16K_PAGES": "y"},
        "arm64-64k": {"ARM64_64K_PAGES": "y"},
    }


def put(name: str, text: str, suite: str = "trixie") -> Kernel:
    """A kernel of that name in the cache, with the configuration `text`."""
    found = build.RECIPES[name]

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / build.IMAGE).write_bytes(b"")
        (folder / build.CONFIG).write_text(text)
        kernel = Kernel(name=name, arch=found.arch, image=build.IMAGE, digest="0", release=f"6.12-{name}", origin="x")
        build.write_record(folder, msgspec.structs.replace(kernel, config=build.CONFIG))

    return build.make_or_find(build.build_key(found, suite), {"of": name}, make)


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
    for arch, own in (("arm64", "gcc-aarch64-linux-gnu"), ("x86-64", "libelf-dev")):
        assert {tool.package for tool in build.missing_tools(arch)} == {"flex", "bison", "bc", "dpkg", own}  # type: ignore[arg-type]
    # All in one go: without a compiler nobody can tell whether the header is there.
    monkeypatch.setattr(build, "_on_path", lambda name: name != "gcc")
    assert build.missing_tools("x86-64") == (
        Missing("no gcc to build kernels with", "gcc"),
        Missing("no gcc to look for gelf.h with", "libelf-dev"),
    )


NEEDED = "".join(f"CONFIG_{symbol}=y\n" for symbol in build.NEEDED)
MAKEFILE = """
# What hugewise asks of the kernel's own.
tinyconfig:
\t@printf '# CONFIG_MODULES is not set\\nCONFIG_NET=n\\n' > $(O)/.config
olddefconfig:
\t@sed -i '/CONFIG_UNKNOWN/d' $(O)/.config
bzImage:
\t@mkdir -p $(O)/arch/x86/boot $(O)/include/config
\t@echo '  CC      init/main.o'
\t@STEP
\t@printf 'kernel for %s by %s' $(ARCH) $$KBUILD_BUILD_USER > $(O)/arch/x86/boot/bzImage
\t@echo 6.12.0$(LOCALVERSION) > $(O)/include/config/kernel.release
"""


def linux(folder: Path, step: str = "true") -> Path:
    for name in ("make", "tar", "gzip", "dpkg-deb"):
        need_program(name, name)
    tree = folder / "linux-6.12"
    tree.mkdir(parents=True)
    (tree / "Kbuild").touch()
    (tree / "Makefile").write_text(MAKEFILE.replace("STEP", step))
    with tarfile.open(folder / "linux.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)
    return folder / "linux.tar.gz"


def packaged(tarball: Path) -> Path:
    """The package of Debian's that has such a tarball."""
    tree = tarball.with_name("package")
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "usr/src").mkdir(parents=True)
    shutil.copy(tarball, tree / f"usr/src/linux-source-6.12.{tarball.name.partition('.')[2]}")
    (tree / "DEBIAN").mkdir()
    control = "Package: linux-source-6.12\nVersion: 6.12-1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    (tree / "DEBIAN/control").write_text(control)
    deb = tarball.with_name("linux-source.deb")
    subprocess.run(["dpkg-deb", "-Znone", "--build", str(tree), str(deb)], check=True, capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
    )  # fmt: skip
    return deb


def recipe(*more: str) -> Recipe:
    return Recipe(name="small", arch="x86-64", texts=(NEEDED, *more))


def provided(tarball: Path, wanted: Recipe, say: Callable[[str], None]) -> Kernel:
    deb = packaged(tarball)
    source = Package(
        name="linux-source-6.12", version="6.12-1", arch="all", sha256=cache.sha256(deb), size=1, file=deb.name,
        of=("trixie", "amd64"),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debian, "fetch", lambda packages, say: [deb])
        return build.provide(wanted, source, build.build_key(wanted, "trixie"), say)


def test_a_kernel_is_built_once_and_nothing_of_the_build_stays(tmp_path: Path, cached: Path) -> None:
    tarball, lines = linux(tmp_path), list[str]()
    kernel = provided(tarball, recipe("CONFIG_NET=y\n"), lines.append)
    assert Path(kernel.image).read_text() == "kernel for x86_64 by hugewise"
    assert (kernel.name, kernel.arch, kernel.release) == ("small", "x86-64", "6.12.0-small")
    assert kernel.digest == cache.sha256(Path(kernel.image))
    assert "CONFIG_NET=y" in Path(known(kernel.config)).read_text()
    assert "linux-source-6.12 6.12-1 (SHA-256 " in kernel.origin
    assert "gcc 12" in kernel.origin
    folder = Path(kernel.image).parent
    assert sorted(path.name for path in folder.iterdir()) == ["config", "image", "kernel.json"]
    assert json.loads((folder / "kernel.json").read_text())["image"] == "image"
    assert [line.partition(" ")[0] for line in lines] == ["unpacking", "building", "built"]
    assert "s of CPU time" in lines[-1]
    (log,) = cached.glob("*.log")
    assert "  CC      init/main.o" in log.read_text()
    lines.clear()
    assert provided(tarball, recipe("CONFIG_NET=y\n"), lines.append) == kernel
    assert lines == []
    assert build.find_kernel(build.build_key(recipe("CONFIG_NET=y\n"), "trixie")) == kernel


def test_the_makefile_of_a_source_is_never_run_by_root(tmp_path: Path, reached: Path) -> None:
    """Nor can it put anything of its own where root takes the kernel from."""
    need_root()
    (reached / "told").mkdir()
    (reached / "told").chmod(0o1777)
    (reached / "secret").write_text("of root's")
    (reached / "secret").chmod(0o600)
    tarball = linux(tmp_path, f"id -u > {reached}/told/as; id -G > {reached}/told/groups")
    kernel = provided(tarball, recipe(), print)
    nobody = pwd.getpwnam("nobody")
    assert (reached / "told/as").read_text() == f"{nobody.pw_uid}\n"
    assert len((reached / "told/groups").read_text().split()) == 1
    assert (reached / "told/groups").read_text() not in ("0\n", f"{nobody.pw_gid}\n")
    assert all(path.stat().st_uid == 0 for path in Path(kernel.image).parent.iterdir())
    # In place of the kernel, a link to a file that root alone may read.
    tarball = linux(reached, f"mkdir -p $(O)/../made; ln -s {reached}/secret $(O)/../made/image")
    with pytest.raises(HugewiseError):
        provided(tarball, recipe("CONFIG_ANOTHER=n\n"), print)


def test_a_tarball_reaches_nothing_outside(tmp_path: Path, reached: Path) -> None:
    outside = reached / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    tree = tmp_path / "linux-6.12"
    tree.mkdir()
    (tree / "Kbuild").touch()
    with tarfile.open(tmp_path / "linux.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)
        for name in ("a", "a"):
            link = tarfile.TarInfo(f"linux-6.12/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, str(outside)
            tar.addfile(link)
            below = tarfile.TarInfo("linux-6.12/a/made")
            tar.addfile(below, io.BytesIO())
        climbing = tarfile.TarInfo("linux-6.12/" + "../" * 20 + str(outside)[1:] + "/climbed")
        tar.addfile(climbing, io.BytesIO())
        rights = tarfile.TarInfo("linux-6.12/su")
        rights.mode = 0o4755
        tar.addfile(rights, io.BytesIO())
    with pytest.raises(HugewiseError):  # tar refuses, or the Makefile that is not there does
        provided(tmp_path / "linux.tar.gz", recipe(), print)
    assert list(outside.iterdir()) == []


def test_a_compiler_is_said_in_its_own_words_or_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"gcc": "gcc (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright\n", "ld": "GNU ld (GNU Binutils) 2.40\nmore\n"}

    def run(argv: Sequence[str], **_: object) -> Finished:
        name = argv[0].removeprefix(build.cross_compile_prefix("arm64"))
        assert argv[1:] == ["--version"]
        return Finished(status=0 if name in words else 127, stdout=words.get(name, ""), stderr="not found\n")

    monkeypatch.setattr(unprivileged, "run", run)
    once = COMPILER.__wrapped__
    assert once("arm64") == "gcc (Debian 12.2.0-14+deb12u1) 12.2.0; GNU ld (GNU Binutils) 2.40"
    del words["ld"]
    with pytest.raises(UserError, match="^kernels of arm64 cannot be built here: .*ld: not found$") as raised:
        once("arm64")
    assert re.fullmatch(r"is .*ld whole\?", known(raised.value.hint))
    lacking = (Missing("no ld", "binutils"), Missing("no gelf.h", "binutils"), Missing("no make", "make"))
    monkeypatch.setattr(build, "missing_tools", lambda arch: lacking)
    with pytest.raises(UserError) as raised:
        once("arm64")
    assert raised.value.hint == "apt install binutils make"


def test_what_is_built_is_known_by_its_symbols_source_and_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.build_key(recipe("CONFIG_NET=y\n"), "a")
    assert build.build_key(recipe("# another comment\n\nCONFIG_NET=y\n"), "a") == first
    assert build.build_key(recipe("CONFIG_NET=y\n"), "b") != first
    assert build.build_key(recipe(), "a") != first
    monkeypatch.setattr(build, "compiler_version", lambda arch: "gcc 14; ld 2")
    assert build.build_key(recipe("CONFIG_NET=y\n"), "a") != first


def test_a_symbol_that_the_source_drops_is_named(tmp_path: Path, cached: Path) -> None:
    with pytest.raises(UserError, match=r"does not take CONFIG_UNKNOWN=y \(it is n\)"):
        provided(linux(tmp_path), recipe("CONFIG_UNKNOWN=y\n"), print)
    assert not [path for path in cached.iterdir() if path.is_dir()]


def test_a_build_that_no_guest_could_boot_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be a guest's: it lacks .*VIRTIO_CONSOLE"):
        build.check_config(Recipe(name="s", arch="arm64", texts=()), "CONFIG_NET=y\n")


def test_a_build_that_fails_says_the_logs_last_lines(tmp_path: Path, cached: Path) -> None:
    with pytest.raises(HugewiseError, match="error: 'x' undeclared") as raised:
        provided(linux(tmp_path, "echo \"init/main.c:7: error: 'x' undeclared\"; exit 1"), recipe(), print)
    assert "make bzImage failed" in raised.value.message
    (log,) = cached.glob("*.log")
    assert str(log) in str(raised.value.hint)
    assert not [path for path in cached.iterdir() if path.is_dir()]


def test_a_full_disk_is_said_with_what_a_build_needs(tmp_path: Path, cached: Path) -> None:
    step = "echo 'ld: final link failed: No space left on device'; exit 1"
    with pytest.raises(StorageError, match="no space is left on the disk of") as raised:
        provided(linux(tmp_path, step), recipe(), print)
    assert f"{build.BUILD_DISK} below /var/tmp" in known(raised.value.hint)


def test_an_interrupted_build_leaves_no_process_and_no_folder(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_EVERY_S", 0)

    def interrupt(line: str) -> None:
        if "2 files made" in line:
            raise KeyboardInterrupt

    tarball = linux(tmp_path, 'sleep 300 & echo "  CC      sleeper $$!"; wait')
    with pytest.raises(KeyboardInterrupt):
        provided(tarball, recipe(), interrupt)
    assert not [path for path in cached.iterdir() if path.is_dir()]
    (log,) = cached.glob("*.log")
    found = known(re.search(r"sleeper (\d+)", log.read_text()))
    until(lambda: has_ended(int(found[1])), "the compiler has ended")


def test_a_package_without_a_source_of_linux_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linux.tar.xz").write_text("text")
    with pytest.raises(StorageError, match=r"cannot unpack linux-source-6\.12"):
        provided(tmp_path / "linux.tar.xz", recipe(), print)
    (tmp_path / "none.zip").touch()
    with pytest.raises(UserError, match="has 0 tarballs below /usr/src, not one"):
        provided(tmp_path / "none.zip", recipe(), print)
