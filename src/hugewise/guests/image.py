"""What a guest boots from: an initramfs with the agent, an image of Debian packages, or a disk of the user's own.

A guest's user space: an ext4 of Debian packages, made without root and without running anything of theirs.

Where hugewise is root, the unprivileged account unpacks them and makes the file system, in a workshop; root takes the
finished file.
The packages are unpacked, not installed: what their scripts would have done and programs need is in two small tables
here (accounts, alternatives). Documentation is left out. Names are looked up in /etc only.

cpio archives in the `newc` form that the kernel unpacks as an initramfs. Pure.

The form is that of Documentation/driver-api/early-userspace/buffer-format.rst of the kernel. Everything in it is fixed
(inode numbers count up, the time is 0, the owner is root), so that the same entries give the same bytes. The kernel
unpacks archives that follow each other, so that `one + other` is an initramfs with what both hold.

The initramfs of a guest: the probe as its init, and the modules of its kernel. No script, no shell, nothing else.

It is not compressed: it has some 10 MB, and an emulated boot is no faster when gzip makes 3 MB of it.

A user space that is somebody's own disk: asked once what programs it has, and kept by what the disk is.

The guest boots its kernel of the study with the agent as init, which makes the disk's root folder its own: nothing is
installed on the disk, and nothing is written to it. What its distribution starts at boot is not started.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from hugewise import files, reading, unprivileged
from hugewise.beneath import DirFd
from hugewise.errors import HugewiseError, ProbeError, StorageError, UserError
from hugewise.guests import boot, cache, debian, disks, hypervisor, packages
from hugewise.guests.hypervisor import for_one_boot
from hugewise.guests.kernels.modules import unpacked
from hugewise.guests.packages import inside, package_sizes, to_fetch, tree
from hugewise.guests.sandbox import workshop
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.messages import parse_foreign
from hugewise.model.guest import Accelerator, Architecture, Disk, Image, Initramfs, Kernel
from hugewise.model.workload import Missing
from hugewise.study.guest import GuestUse
from hugewise.unprivileged import Say

MAGIC: Final = b"070701"
TRAILER: Final = "TRAILER!!!"
_CPIO_BLOCK: Final = 512  # an archive ends at a multiple of it, zeros between


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or device (major, minor); `path` is relative to the root."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def regular_file(path: str, data: bytes, mode: int = 0o644) -> ArchiveEntry:
    """A regular file."""
    return ArchiveEntry(path=path, mode=stat.S_IFREG | mode, data=data)


def directory(path: str, mode: int = 0o755) -> ArchiveEntry:
    """A folder."""
    return ArchiveEntry(path=path, mode=stat.S_IFDIR | mode)


def device_node(path: str, major: int, minor: int, mode: int = 0o600) -> ArchiveEntry:
    """A character device."""
    return ArchiveEntry(path=path, mode=stat.S_IFCHR | mode, device=(major, minor))


def cpio_archive(entries: Iterable[ArchiveEntry]) -> bytes:
    """The archive of the entries in their order; folders above them that are not named come before, with mode 0755."""
    blocks = [_member(entry, number) for number, entry in enumerate(_with_folders(entries), start=1)]
    data = b"".join([*blocks, _member(ArchiveEntry(path=TRAILER, mode=0), 0)])
    return data + bytes(-len(data) % _CPIO_BLOCK)


def _with_folders(entries: Iterable[ArchiveEntry]) -> Iterator[ArchiveEntry]:
    seen: set[str] = set()
    for entry in entries:
        parts = entry.path.strip("/").split("/")
        for above in ("/".join(parts[:length]) for length in range(1, len(parts))):
            if above not in seen:
                seen.add(above)
                yield directory(above)
        path = "/".join(parts)
        if path in seen and not stat.S_ISDIR(entry.mode):
            raise HugewiseError(f"an archive has {path} twice")
        if path not in seen:
            seen.add(path)
            yield msgspec.structs.replace(entry, path=path)


def _member(entry: ArchiveEntry, number: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
    head = MAGIC + b"".join(b"%08x" % field for field in fields) + name
    return head + bytes(-len(head) % 4) + entry.data + bytes(-len(entry.data) % 4)


_CURE: Final = "make guest-probes"
_MACHINE: Final[Mapping[Architecture, int]] = {"x86-64": 62, "arm64": 183}  # e_machine, elf(5)
_INTERPRETER: Final = 3  # PT_INTERP
_INITRAMFS_FOLDERS: Final = ("dev", "modules", "proc", "root", "run", "sys", "tmp")


def guest_probe(arch: Architecture) -> Path | Missing:
    """The static probe for guests of that architecture, or that it is not there.

    `$HUGEWISE_GUEST_PROBE_X86_64` or `$HUGEWISE_GUEST_PROBE_ARM64`, else where `make guest-probes` puts it, else the
    host's own, where that is static: a wheel has one for both. Raises UserError where root would take one that another
    account can change.
    """
    variable = f"HUGEWISE_GUEST_PROBE_{arch.replace('-', '_').upper()}"
    chosen = os.environ.get(variable)
    path = Path(chosen) if chosen else Path(sys.prefix, "share", "hugewise", f"probe-{arch}")
    if path.is_file():
        if chosen:
            files.own(path, f"the agent of guests {chosen}", f"unset {variable}, or name a file of root's")
        return path.absolute()
    if not chosen:
        with suppress(ProbeError, OSError):
            own = Path(probe.find()).absolute()
            if _unfit(_head(own), arch) is None:
                return own
    return Missing(f"no agent for guests of {arch}: {path} is not there ({_CURE} builds it)")


def need_probe(arch: Architecture) -> Path:
    """The static probe, looked at: it is for that architecture and needs no libraries. Raises UserError."""
    found = guest_probe(arch)
    if isinstance(found, Missing):
        raise UserError(found.reason, hint=_CURE)
    if (why := _unfit(_head(found), arch)) is not None:
        raise UserError(f"{found}: {why}", hint=_CURE)
    return found


def _head(path: Path) -> bytes:
    with path.open("rb") as reading:
        return reading.read(4096)


def _unfit(head: bytes, arch: Architecture) -> str | None:
    """Why a program cannot be the init of such a guest, by its first 4 KiB; see elf(5)."""
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":
        return "not a program of 64 bits"
    (machine,) = struct.unpack_from("<H", head, 18)
    if machine != _MACHINE[arch]:
        return f"not a program for {arch} (ELF machine {machine})"
    (offset,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    kinds = [head[offset + each * size :][:4] for each in range(count)]
    if struct.pack("<I", _INTERPRETER) in kinds:
        return "not static: it needs libraries, which an initramfs does not have"
    return None


def build(kernel: Kernel) -> Path:
    """The initramfs for `kernel`, from the cache or made now. What is in it alone decides its bytes.

    Raises UserError, StorageError.
    """
    data = cpio_archive(_entries(kernel, need_probe(kernel.arch)))
    path = cache.cached("images", data, lambda path: _write(path, data))
    if cache.sha256(path) != cache.digest(data):  # it was changed since it was made
        return cache.replaced("images", data, lambda path: _write(path, data))
    return path


def existing_initramfs(initramfs: Path) -> Initramfs:
    """An initramfs that is there, with its hash. Raises StorageError."""
    with files.storing(str(initramfs)):
        return Initramfs(path=str(initramfs), digest=cache.sha256(initramfs))


def extended(initramfs: Path, more: Mapping[str, bytes], target: Path) -> Path:
    """Write an initramfs with what `initramfs` has and `more` (path -> content) to `target`; returns `target`.

    For files that one boot alone is given, which do not belong in the cache. `target` is new: nothing that was there
    is written to. Raises StorageError.
    """
    behind = cpio_archive(regular_file(path, data) for path, data in sorted(more.items()))
    with (
        files.storing(str(target)),
        initramfs.open("rb") as given,
        DirFd.open(target.parent) as held,
        held.new(target.name, 0o644) as made,
    ):
        shutil.copyfileobj(given, made)
        made.write(behind)
    return target


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _entries(kernel: Kernel, agent: Path) -> Iterator[ArchiveEntry]:
    yield from map(directory, _INITRAMFS_FOLDERS)
    # The kernel opens it before it starts init; devtmpfs covers it later.
    yield device_node("dev/console", 5, 1)
    yield regular_file("init", agent.read_bytes(), 0o755)
    for number, module in enumerate(kernel.modules):
        name, data = _module(Path(module))
        yield regular_file(f"modules/{number:03}-{name}", data)


def _module(path: Path) -> tuple[str, bytes]:
    """A module as the kernel takes it: `name.ko` and its bytes, decompressed. Raises UserError."""
    return f"{path.name.partition('.ko')[0]}.ko", unpacked(path)


# Where the probe is in every image, and where archives of sources are.
PROBE: Final = "/usr/bin/hugewise-probe"
SOURCES: Final = "/usr/src"

# What every image has: a shell for make and for recipes, and what a recipe may use (tar with its compressors).
_BASE: Final = ("base-files", "coreutils", "dash", "findutils", "grep", "gzip", "mawk", "sed", "tar", "xz-utils")

# Raise it when the tables or what is written here change, so that the cache makes images anew.
_FORM: Final = 2

_WITHOUT: Final = tuple(
    f"./usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info", "lintian", "bug", "doc-base")
)

# /bin and its like are links in Debian since 12; some packages of 12 still bring files below them.
_LINKS: Final = {
    **{name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")},
    "var/run": "/run",
    "var/lock": "/run/lock",
}
_FOLDERS: Final = {
    "usr/bin": 0o755, "usr/sbin": 0o755, "usr/lib": 0o755, "usr/lib64": 0o755, "usr/src": 0o755, "etc": 0o755,
    "dev": 0o755, "proc": 0o555, "sys": 0o555, "run": 0o755, "tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700,
    "home": 0o755, "usr/local/bin": 0o755, "usr/local/sbin": 0o755, "var/log": 0o755, "var/lib": 0o755,
    "var/cache": 0o755, "mnt": 0o755, "srv": 0o755, "opt": 0o755,
}  # fmt: skip

_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost hugewise\n::1 localhost\n",
    "etc/hostname": "hugewise\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
}

# Links that update-alternatives would have made, where what they point to is there: the first that is.
_ALTERNATIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "usr/bin/awk": ("gawk", "mawk"),
    "usr/bin/c++": ("g++",),
    "usr/bin/c89": ("c89-gcc",),
    "usr/bin/c99": ("c99-gcc",),
    "usr/bin/cc": ("gcc",),
    "usr/bin/nc": ("nc.openbsd", "nc.traditional"),
    "usr/bin/which": ("which.debianutils",),
    "usr/bin/yacc": ("bison.yacc",),
}

# So that the same content gives nearly the same file (mke2fs 1.47.0 still copies times of change from the disk).
_UUID: Final = "68756765-7769-7365-0000-000000000001"
_EPOCH: Final = 1_700_000_000
_BLOCK: Final = 4096
_INODE: Final = 256
_SPARE: Final = 2 << 30  # bytes for what a workload writes: builds, databases; a hole until then
_SPARE_FILES: Final = 100_000
_PATIENCE_S: Final = 1800.0
_TOLD_EVERY_S: Final = 15.0


class _Contents(msgspec.Struct, frozen=True):
    """Kept beside an image: what was found in it."""

    programs: tuple[str, ...]
    files: tuple[str, ...]


def archives(names: Iterable[str], suite: str, say: Say = lambda _: None) -> dict[str, Path]:
    """The upstream archives of Debian source packages: path in the guest -> file here. Raises UserError."""
    found = (debian.source(name, suite, say) for name in names)
    return {f"{SOURCES}/{path.name}": path for path in found}


def image(
    packages: Sequence[str],
    arch: Architecture,
    suite: str,
    *,
    sources: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    say: Say = lambda _: None,
) -> Image:
    """An image of Debian packages and all that they need, from the cache or made now.

    `sources` are source packages whose archives are put below /usr/src; `files` (path in the guest -> file here) are
    added last. The probe is at PROBE. Its digest is that of what it is made of. Raises UserError, StorageError.
    """
    added = {PROBE: need_probe(arch), **archives(sources, suite, say), **(files or {})}
    for path, here in added.items():
        if not path.startswith("/") or ".." in path.split("/") or not here.is_file():
            raise UserError(f"{here} cannot be put at {path} of an image", hint="name a file, and an absolute path")
    found = debian.resolve(sorted({*_BASE, *packages}), suite, debian.ARCHITECTURES[arch], say)
    key = {
        "form": _FORM,
        "packages": sorted([package.name, package.version, package.sha256] for package in found),
        "files": sorted([path, cache.sha256(here), stat.S_IMODE(here.stat().st_mode)] for path, here in added.items()),
    }
    folder = cache.cached("images", key, lambda place: _make(place, found, added, say), say)
    contents = msgspec.json.decode((folder / "contents.json").read_bytes(), type=_Contents)
    if not files:
        with suppress(OSError):  # another account's cache may only be read
            (folder / _note(packages, suite, arch, sources, cache.sha256(added[PROBE]))).touch()
    return Image(
        arch=arch,
        root=str(folder / "root.ext4"),
        digest=cache.digest(key),
        programs=contents.programs,
        files=contents.files,
        packages=tuple((package.name, f"{package.version} sha256:{package.sha256}") for package in found),
    )


def cached(packages: Sequence[str], arch: Architecture, suite: str, sources: Sequence[str] = ()) -> bool:
    """Whether an image that was had for these packages and sources, with this agent, is in the cache."""
    probe = guest_probe(arch)
    if isinstance(probe, Missing):
        return False
    note = _note(packages, suite, arch, sources, cache.sha256(probe))
    return any(path.with_name("root.ext4").exists() for path in cache.folder("images").glob(f"*/{note}"))


def takes(packages: Sequence[str], arch: Architecture, suite: str) -> str:
    """What it takes to make the image of these packages, in words, as far as that is known without fetching."""
    found = package_sizes(sorted({*_BASE, *packages}), suite, debian.ARCHITECTURES[arch])
    if found is None:
        return "how much that is, the run says when it has read Debian's lists of packages"
    kept = "" if found.unpacked is None else f", and about {found.unpacked / 1e6:.0f} MB of the cache are taken"
    return f"{to_fetch(found.packages) / 1e6:.1f} MB are fetched{kept}"


def missing() -> tuple[Missing, ...]:
    """What this machine lacks to make an image, beside what fetches and unpacks packages."""
    return tuple(
        Missing(f"images of guests need {name} on this machine", "e2fsprogs")
        for name in ("mke2fs", "debugfs")
        if _program(name) is None
    )


def _note(packages: Sequence[str], suite: str, arch: Architecture, sources: Sequence[str], probe: str) -> str:
    """The name of an empty file in an image's folder: what the image was had for. Lists of packages may differ."""
    asked = {"packages": sorted(set(packages)), "suite": suite, "arch": arch, "sources": sorted(set(sources))}
    return f"had-for-{cache.digest({**asked, 'probe': probe})[:32]}"


def _make(place: Path, packages: Sequence[debian.Package], added: Mapping[str, Path], say: Say) -> None:
    """Fill the folder `place` with `root.ext4` and `contents.json`."""
    debs = debian.fetch(packages, say)
    with workshop() as shop:
        lent = [shop.lend(deb, f"{number}.deb", kept=True) for number, deb in enumerate(debs)]
        put = {path: shop.lend(here, f"added/{number}") for number, (path, here) in enumerate(added.items())}
        shop.do(lambda tell: _fill(shop.own, lent, put, tell), say)
        shop.take("made", place)


def _fill(own: Path, debs: Sequence[Path], added: Mapping[str, Path], say: Say) -> None:
    """Make the image's files in `own`/made. Raises OSError, UserError, StorageError."""
    root, made = own / "root", own / "made"
    root.mkdir()
    made.mkdir()
    _prepare(root)
    say(f"unpacking {len(debs)} packages")
    told = time.monotonic()
    for number, deb in enumerate(debs):
        if time.monotonic() - told >= _TOLD_EVERY_S:
            say(f"unpacked {number} of {len(debs)} packages")
            told = time.monotonic()
        packages.unpack(deb, root, without=_WITHOUT)
    _finish(root, added)
    contents = _contents(root, added)
    _file_system(root, made / "root.ext4", say)
    (made / "contents.json").write_bytes(msgspec.json.encode(contents))


def _prepare(root: Path) -> None:
    """The folders and links that packages expect to be there."""
    for folder, mode in _FOLDERS.items():
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    for link, target in _LINKS.items():
        (root / link).symlink_to(target)


def _finish(root: Path, added: Mapping[str, Path]) -> None:
    """What is written here comes after the packages, so that nothing of theirs replaces it."""
    for path, text in _FILES.items():
        place = inside(root, path)
        place.unlink(missing_ok=True)
        place.write_text(text)
    for link, candidates in _ALTERNATIVES.items():
        place = root / link
        found = next((name for name in candidates if os.path.lexists(place.with_name(name))), None)
        if found is not None and not os.path.lexists(place):
            place.symlink_to(found)
    for folder, mode in _FOLDERS.items():
        inside(root, folder).chmod(mode)  # whatever packages make of it
    for path, here in added.items():
        place = inside(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copyfile(here, place)
        place.chmod(0o755 if os.access(here, os.X_OK) else 0o644)
    for name, entry in tree(root):
        os.utime(root / name, (_EPOCH, _EPOCH), follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            (root / name).chmod(entry.stat(follow_symlinks=False).st_mode | stat.S_IRWXU)
    os.utime(root, (_EPOCH, _EPOCH))


def _contents(root: Path, added: Mapping[str, Path]) -> _Contents:
    found: list[str] = []
    for name, entry in tree(root):
        if entry.is_dir(follow_symlinks=False):
            continue
        real = inside(root, name) if entry.is_symlink() else root / name
        if real.is_file() and real.stat().st_mode & 0o111:
            found.append(f"/{name}")
    # /bin and /sbin are links to folders, which the tree does not follow; programs are named by both.
    short = (path.removeprefix("/usr") for path in found if path.startswith(("/usr/bin/", "/usr/sbin/")))
    programs = sorted({*found, *short})
    others = {path for path in added if path not in programs}
    for path in inside(root, SOURCES).rglob("*"):
        if (path.is_file() and "orig.tar" in path.name) or path.match("linux-source-*.tar.*"):
            others.add(f"/{path.relative_to(root)}")
    return _Contents(tuple(programs), tuple(sorted(others)))


def _file_system(root: Path, image: Path, say: Say) -> None:
    """An ext4 with the files below `root`, all of them root's. Raises UserError, StorageError."""
    names = ["", *(name for name, _ in tree(root))]
    sizes = ((root / name).lstat() for name in names)
    content = sum(-(-each.st_size // _BLOCK) * _BLOCK + _BLOCK for each in sizes)
    size = (content + content // 8 + _SPARE) // _BLOCK
    # What of it is no hole: the files, and a place for each that may come.
    written = content + (len(names) + _SPARE_FILES) * _INODE
    size_said = f"{written / 1e6:.0f} MB"
    say(f"making the file system of the image ({size_said})")
    cure = f"the image needs {size_said} in {image.parent}, and as much in the cache: free space there"
    make = (
        *("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-b", str(_BLOCK), "-m", "0", "-I", str(_INODE)),
        *("-N", str(len(names) + _SPARE_FILES), "-U", _UUID, "-L", "hugewise"),
        # Nothing is left for the guest's kernel to do in the background: it would show in what is measured.
        *("-E", f"hash_seed={_UUID},lazy_itable_init=0,root_owner=0:0", "-d", str(root), str(image), f"{size}"),
    )
    # The files are those of the account that unpacked them; in the guest all of them are root's.
    orders = image.with_name("orders")
    orders.write_text("".join(f'sif "/{name}" {field} 0\n' for name in names for field in ("uid", "gid")))
    with debian.watched("written", lambda: debian.written(image), written, say, every=debian.EVERY_S):
        _run(*make, cure=cure)
        _run("debugfs", "-w", "-f", str(orders), str(image), cure=cure)
    orders.unlink()


def _program(name: str) -> str | None:
    """Also where a user's PATH does not lead."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))


def _run(name: str, *arguments: str, cure: str) -> None:
    """Run it; `cure`: where it fails, which is mostly for want of space. Raises UserError, StorageError."""
    program = _program(name)
    if program is None:
        raise UserError(f"images of guests need {name} on this machine", hint="apt install e2fsprogs")
    fixed = {"SOURCE_DATE_EPOCH": str(_EPOCH), "E2FSPROGS_FAKE_TIME": str(_EPOCH), "LC_ALL": "C.UTF-8"}
    done = unprivileged.run((program, *arguments), timeout=_PATIENCE_S, environment=fixed, most=1 << 30)
    if done.status != 0:
        raise StorageError(f"{name}: {done.stderr.strip() or done.status}", hint=cure)


_FORMAT = 1
_MOST_PROGRAMS = 100_000
_MOST_FILE = 1 << 30
_MEMORY = 512 << 20


class _Found(msgspec.Struct, frozen=True):
    """Kept of a disk: the paths of its programs."""

    programs: tuple[str, ...]


@dataclass(frozen=True)
class Booting:
    """By what a disk is booted to be asked."""

    kernel: Kernel
    initramfs: Initramfs
    accelerator: Accelerator
    cpu: str
    qemu: str | None


def known(own: Disk, use: GuestUse, arch: Architecture) -> Image | None:
    """The image, where the disk was asked and has not changed since."""
    try:
        found = reading.stored(cache.entry("surveys", _key(own, use)), _Found)
    except reading.UnreadableError:
        return None
    return _image(own, use, arch, found.programs)


def own_disk_image(own: Disk, use: GuestUse, booting: Booting, say: Say) -> Image:
    """The image, from the disk that is asked now if need be. Raises HugewiseError."""
    arch = booting.kernel.arch
    if (found := known(own, use, arch)) is not None:
        return found
    say(f"asking {own.files[0].path} once for its programs")
    asked = _ask(_image(own, use, arch, ()), booting)

    def make(path: Path) -> None:
        try:
            path.write_bytes(msgspec.json.encode(_Found(asked)))
        except OSError as error:
            raise StorageError(f"cannot keep what is on {own.files[0].path}: {error.strerror}") from error

    cache.replaced("surveys", _key(own, use), make)
    return _image(own, use, arch, asked)


def put(agent: Agent, use: GuestUse, image: Image) -> None:
    """Put the study's files into a guest that has booted, where they are not in its image already. Raises UserError."""
    for path, here in use.files.items() if image.root is None else ():
        try:
            content = reading.content(Path(here), _MOST_FILE)
            mode = stat.S_IMODE(Path(here).stat().st_mode)
        except (reading.UnreadableError, OSError) as error:
            raise UserError(f"{here}: {error}", hint="correct files in [guest]") from None
        agent.put(path, content, 0o755 if mode & 0o111 else 0o644)


def _image(own: Disk, use: GuestUse, arch: Architecture, found: tuple[str, ...]) -> Image:
    return Image(
        arch=arch,
        disk=own,
        place=use.root or "/dev/vda",
        digest=cache.digest(_key(own, use)),
        programs=tuple(sorted({*found, *use.files})) if found else (),
    )


def _ask(wanted: Image, booting: Booting) -> tuple[str, ...]:
    """Boot the disk and look into the folders that programs are in."""
    bare = hypervisor.bare(booting.kernel, booting.accelerator, cpu=booting.cpu)
    guest = msgspec.structs.replace(bare, image=wanted, memory=_MEMORY)
    qemu = hypervisor.find_qemu(booting.kernel.arch, booting.qemu)
    with (
        for_one_boot() as hosting,
        boot.boot(guest, Path(booting.initramfs.path), hosting, program=qemu) as booted,
    ):
        agent = Agent(booted.agent, "guest of your own disk", booted.error)
        agent.hello()
        found: list[str] = []
        with parse_foreign(agent.name, "what programs it has"):
            for folder in programs.PATH.split(":"):
                with suppress(OSError):
                    found += (f"{folder}/{name}" for name in agent.names(folder))
        agent.close()
    if len(found) > _MOST_PROGRAMS:
        raise UserError(f"{wanted.place} has more than {_MOST_PROGRAMS:,} programs", hint="name another disk")
    return tuple(sorted(found))


def _key(own: Disk, use: GuestUse) -> dict[str, object]:
    return {"format": _FORMAT, "disk": disks.identity(own), "root": use.root or ""}
