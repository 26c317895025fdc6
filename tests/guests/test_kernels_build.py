"""Building a kernel, of a source of Linux that is a small Makefile: what is kept, and what is said when it fails."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hugewise import unprivileged
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import cache, debian
from hugewise.guests.debian import Package
from hugewise.guests.kernels import build
from hugewise.guests.kernels.build import Recipe
from hugewise.model.guest import Kernel
from hugewise.model.workload import Missing
from hugewise.unprivileged import Finished
from tests.build import known
from tests.requirements import need_program, need_root
from tests.wait import until

COMPILER = build.compiler_version  # as it is where no test says what it says
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


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and a machine that has all that kernels are built with."""
    for name in ("make", "tar", "gzip", "dpkg-deb"):
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
    texts = (("needed", NEEDED), *((str(number), text) for number, text in enumerate(more)))
    return Recipe(name="small", arch="x86-64", fragments=texts)


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


def test_a_kernel_that_no_guest_could_boot_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be a guest's: it lacks .*VIRTIO_CONSOLE"):
        build.check_config(Recipe(name="s", arch="arm64", fragments=()), "CONFIG_NET=y\n")


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
    until(lambda: ended(int(found[1])), "the compiler has ended")


def ended(pid: int) -> bool:
    """Whether the process has ended; nobody may have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_package_without_a_source_of_linux_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linux.tar.xz").write_text("text")
    with pytest.raises(StorageError, match=r"cannot unpack linux-source-6\.12"):
        provided(tmp_path / "linux.tar.xz", recipe(), print)
    (tmp_path / "none.zip").touch()
    with pytest.raises(UserError, match="has 0 tarballs below /usr/src, not one"):
        provided(tmp_path / "none.zip", recipe(), print)
