"""Building a kernel, of a source of Linux that is a small Makefile: what is kept, and what is said when it fails."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache, kernels
from hugewise.guests.kernels import build, store
from hugewise.guests.kernels.build import Recipe
from hugewise.model.guest import Kernel
from hugewise.model.workload import Missing
from hugewise.unprivileged import Finished
from tests.build import known
from tests.requirements import need_program, need_root
from tests.wait import until

COMPILER = build.compiler_version  # as it is where no test says what it says
NEEDED = "".join(f"CONFIG_{symbol}=y\n" for symbol in store.NEEDED)
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


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and a machine that has all that kernels are built with."""
    for name in ("make", "tar", "gzip"):
        need_program(name, name)
    monkeypatch.setenv("HUGEWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "missing_tools", lambda arch: ())
    monkeypatch.setattr(build, "compiler_version", lambda arch: "gcc 12; ld 2")
    monkeypatch.setenv("KCFLAGS", "-DNOT_FOR_KERNELS")
    yield tmp_path / "cache" / "kernels"


def linux(folder: Path, step: str = "true") -> Path:
    tree = folder / "linux-6.12"
    tree.mkdir(parents=True)
    (tree / "Kbuild").touch()
    (tree / "Makefile").write_text(MAKEFILE.replace("STEP", step))
    with tarfile.open(folder / "linux.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)
    return folder / "linux.tar.gz"


def recipe(*more: str, own: int = 0) -> Recipe:
    texts = (("needed", NEEDED), *((str(number), text) for number, text in enumerate(more)))
    return Recipe(name="small", arch="x86-64", fragments=texts, page_size=4096, about="of a test", own=own)


def provided(tarball: Path, wanted: Recipe, lines: list[str]) -> Kernel:
    origin = build.of_file(tarball)
    return build.provide(wanted, origin, build.build_key(wanted, origin.sha256), lines.append)


def test_a_kernel_is_built_once_and_nothing_of_the_build_stays(tmp_path: Path, cached: Path) -> None:
    tarball, lines = linux(tmp_path), list[str]()
    kernel = provided(tarball, recipe("CONFIG_NET=y\n"), lines)
    assert Path(kernel.image).read_text() == "kernel for x86_64 by hugewise"
    assert (kernel.name, kernel.arch, kernel.release) == ("small", "x86-64", "6.12.0-small")
    assert kernel.digest == cache.sha256(Path(kernel.image))
    assert "CONFIG_NET=y" in Path(known(kernel.config)).read_text()
    assert cache.sha256(tarball) in kernel.origin
    assert "gcc 12" in kernel.origin
    folder = Path(kernel.image).parent
    assert sorted(path.name for path in folder.iterdir()) == [".sealed", "config", "image", "kernel.json"]
    assert json.loads((folder / "kernel.json").read_text())["image"] == "image"
    assert [line.partition(" ")[0] for line in lines] == ["unpacking", "building", "built"]
    assert "s of CPU time" in lines[-1]
    (log,) = cached.glob("*.log")
    assert "  CC      init/main.o" in log.read_text()
    lines.clear()
    assert provided(tarball, recipe("CONFIG_NET=y\n"), lines) == kernel
    assert lines == []
    assert store.find(build.build_key(recipe("CONFIG_NET=y\n"), cache.sha256(tarball))) == kernel


def test_the_makefile_of_a_source_is_never_run_by_root(tmp_path: Path, reached: Path) -> None:
    """Nor can it put anything of its own where root takes the kernel from."""
    need_root()
    (reached / "told").mkdir()
    (reached / "told").chmod(0o1777)
    (reached / "secret").write_text("of root's")
    (reached / "secret").chmod(0o600)
    tarball = linux(tmp_path, f"id -u > {reached}/told/as; id -G > {reached}/told/groups")
    kernel = provided(tarball, recipe(), [])
    nobody = pwd.getpwnam("nobody")
    assert (reached / "told/as").read_text() == f"{nobody.pw_uid}\n"
    assert len((reached / "told/groups").read_text().split()) == 1
    assert (reached / "told/groups").read_text() not in ("0\n", f"{nobody.pw_gid}\n")
    assert all(path.stat().st_uid == 0 for path in Path(kernel.image).parent.iterdir())
    # In place of the kernel, a link to a file that root alone may read.
    tarball = linux(reached, f"mkdir -p $(O)/../made; ln -s {reached}/secret $(O)/../made/image")
    with pytest.raises(HugewiseError):
        provided(tarball, recipe("CONFIG_ANOTHER=n\n"), [])


def test_a_tarball_reaches_nothing_outside(tmp_path: Path, reached: Path) -> None:
    outside = reached / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    tree = tmp_path / "linux-6.12"
    tree.mkdir()
    (tree / "Kbuild").touch()
    with tarfile.open(tmp_path / "linux.tar", "w") as tar:
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
        provided(tmp_path / "linux.tar", recipe(), [])
    assert list(outside.iterdir()) == []


def test_a_truncated_image_in_the_cache_is_found_said_and_built_anew(tmp_path: Path) -> None:
    tarball, lines = linux(tmp_path), list[str]()
    kernel = provided(tarball, recipe(), lines)
    os.truncate(kernel.image, 5)
    assert store.find(build.build_key(recipe(), cache.sha256(tarball))) is None
    lines.clear()
    assert provided(tarball, recipe(), lines) == kernel
    assert (
        lines[0]
        == f"{Path(kernel.image).parent} is damaged (image has other bytes than it was made with): it is made anew"
    )
    assert cache.sha256(Path(kernel.image)) == kernel.digest


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
        provided(linux(tmp_path), recipe("CONFIG_UNKNOWN=y\n"), [])
    assert not [path for path in cached.iterdir() if path.is_dir()]


def test_a_fragment_of_the_users_comes_before_what_hugewise_asks_for(tmp_path: Path, cached: Path) -> None:
    """Without THP hugewise's own symbols of THP cannot be had: they go, which is said, and nothing is blamed."""
    lines: list[str] = []
    mine = recipe(
        "CONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_UNKNOWN=y\n", "# CONFIG_TRANSPARENT_HUGEPAGE is not set\n", own=1
    )
    kernel = provided(linux(tmp_path), mine, lines)
    assert "CONFIG_TRANSPARENT_HUGEPAGE=n" in Path(known(kernel.config)).read_text()
    assert "small: with your fragments, also CONFIG_UNKNOWN=n" in lines
    with pytest.raises(UserError, match=r"does not take CONFIG_UNKNOWN_OF_MINE=y"):
        provided(linux(tmp_path / "again"), recipe("", "CONFIG_UNKNOWN_OF_MINE=y\n", own=1), lines)


def test_a_kernel_that_no_guest_could_boot_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be a guest's: it lacks .*VIRTIO_CONSOLE"):
        build.check_config(Recipe(name="s", arch="arm64", fragments=(), page_size=4096, about=""), "CONFIG_NET=y\n")


def test_a_build_that_fails_says_the_logs_last_lines(tmp_path: Path, cached: Path) -> None:
    with pytest.raises(HugewiseError, match="error: 'x' undeclared") as raised:
        provided(linux(tmp_path, "echo \"init/main.c:7: error: 'x' undeclared\"; exit 1"), recipe(), [])
    assert "make bzImage failed" in raised.value.message
    (log,) = cached.glob("*.log")
    assert str(log) in str(raised.value.hint)
    assert not [path for path in cached.iterdir() if path.is_dir()]


def test_a_full_disk_is_said_with_what_a_build_needs(tmp_path: Path, cached: Path) -> None:
    step = "echo 'ld: final link failed: No space left on device'; exit 1"
    with pytest.raises(StorageError, match="no space is left on the disk of") as raised:
        provided(linux(tmp_path, step), recipe(), [])
    assert f"{build.BUILD_DISK} below /var/tmp" in known(raised.value.hint)


def test_a_disk_that_is_full_when_the_source_is_unpacked_says_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: it said 2 GB, and what a build is told to need is 3."""

    def full(*_: object, **__: object) -> Finished:
        return Finished(status=2, stdout="", stderr="tar: x: Cannot write: No space left on device\n")

    monkeypatch.setattr(unprivileged, "run", full)
    (tmp_path / "linux.tar").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot unpack linux.tar to .*: tar: x: Cannot write: No space") as raised:
        build.of_file(tmp_path / "linux.tar").unpack(tmp_path / "linux.tar", tmp_path / "tree")
    assert raised.value.hint == "a build needs 3 GB there: free space, or mount some at it"
    assert " and 3 GB below /var/tmp meanwhile" in kernels.build_cost()


def test_an_interrupted_build_leaves_no_process_and_no_folder(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_EVERY_S", 0)

    def interrupt(line: str) -> None:
        if "2 files made" in line:
            raise KeyboardInterrupt

    tarball = linux(tmp_path, 'sleep 300 & echo "  CC      sleeper $$!"; wait')
    wanted, origin = recipe(), build.of_file(tarball)
    with pytest.raises(KeyboardInterrupt):
        build.provide(wanted, origin, build.build_key(wanted, "x"), interrupt)
    assert not [path for path in cached.iterdir() if path.is_dir()]
    (log,) = cached.glob("*.log")
    found = known(re.search(r"sleeper (\d+)", log.read_text()))
    until(lambda: ended(int(found[1])), "the compiler has ended")


def ended(pid: int) -> bool:
    """Whether the process has ended; nobody may have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("inside", [None, "README"])
def test_what_is_no_source_of_linux(tmp_path: Path, inside: str | None) -> None:
    path = tmp_path / "a.tar"
    if inside is None:
        path.write_text("text")
    else:
        (tmp_path / inside).touch()
        with tarfile.open(path, "w") as tar:
            tar.add(tmp_path / inside, f"folder/{inside}")
    with pytest.raises((UserError, StorageError), match=r"a\.tar is not a source of Linux|cannot unpack .*a\.tar"):
        provided(path, recipe(), [])
    with pytest.raises(UserError, match="the source cannot be read"):
        build.of_file(tmp_path / "none.tar")
