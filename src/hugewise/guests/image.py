"""Boot media of a guest: an initramfs with the agent, an image of Debian packages, or a disk of the user's own.

The initramfs has the probe as its init, and the modules of its kernel: a cpio archive in the `newc` form
(Documentation/driver-api/early-userspace/buffer-format.rst of the kernel) in which everything is fixed, so that the
same entries give the same bytes. The kernel unpacks archives that follow each other. It is not compressed: an emulated
boot is no faster when gzip makes 3 MB of its 10 MB.

An image is an ext4 of Debian packages, unpacked without root and without their scripts: what those would have done and
programs need is in two small tables here (accounts, alternatives). Documentation is left out.

A disk of the user's own is asked once what programs it has. The guest boots its kernel of the study with the agent as
init, which makes the disk's root folder its own; nothing is written to the disk.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from hugewise import files, reading, unprivileged
from hugewise.beneath import DirFd
from hugewise.errors import HugewiseError, ProbeError, StorageError, UserError
from hugewise.guests import cache, debian, disks, hypervisor
from hugewise.guests.cache import open_sandbox
from hugewise.guests.debian import resolve_inside, walk
from hugewise.guests.kernels import unpacked
from hugewise.machine import probe, programs
from hugewise.machine.agent import Agent
from hugewise.machine.loader import started
from hugewise.machine.messages import parse_foreign
from hugewise.model.guest import HARDWARE, Architecture, Disk, Guest, Image, Initramfs, Kernel
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
    """Return a regular file."""
    return ArchiveEntry(path=path, mode=stat.S_IFREG | mode, data=data)


def directory(path: str) -> ArchiveEntry:
    """Return a folder."""
    return ArchiveEntry(path=path, mode=stat.S_IFDIR | 0o755)


def device_node(path: str, major: int, minor: int) -> ArchiveEntry:
    """Return a character device."""
    return ArchiveEntry(path=path, mode=stat.S_IFCHR | 0o600, device=(major, minor))


def cpio_archive(entries: Iterable[ArchiveEntry]) -> bytes:
    """Return the archive of the entries in order; missing folders above them come before, with mode 0755."""
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
_INITRAMFS_FOLDERS: Final = ("dev", "modules", "proc", "root", "run", "sys", "tmp")


def guest_probe(arch: Architecture) -> Path | Missing:
    """Return the static probe for such guests, by variable, by `make guest-probes` or the host's own; or what is
    missing. Raises UserError where another account can change root's.
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
            if _unfit_reason(own, arch) is None:
                return own
    return Missing(f"no agent for guests of {arch}: {path} is not there ({_CURE} builds it)")


def need_probe(arch: Architecture) -> Path:
    """Return the static probe, looked at: it is for that architecture and needs no libraries. Raises UserError."""
    path = guest_probe(arch)
    if isinstance(path, Missing):
        raise UserError(path.reason, hint=_CURE)
    if (why := _unfit_reason(path, arch)) is not None:
        raise UserError(f"{path}: {why}", hint=_CURE)
    return path


def _unfit_reason(path: Path, arch: Architecture) -> str | None:
    with path.open("rb") as file:
        kind = started(file, HARDWARE[arch])
    if kind in ("static", "go"):
        return None
    if kind == "foreign":
        return f"not a program for {arch}"
    if kind in ("unknown", "script"):
        return "not a program of 64 bits"
    return "not static: it needs libraries, which an initramfs does not have"


def build(kernel: Kernel) -> Path:
    """Return the initramfs for `kernel`, from the cache or made now. Raises UserError, StorageError."""
    data = cpio_archive(_entries(kernel, need_probe(kernel.arch)))
    path = cache.cached("images", data, lambda path: path.write_bytes(data))
    if cache.sha256(path) != reading.key_digest(data):  # it was changed since it was made
        return cache.replace_entry("images", data, lambda path: path.write_bytes(data))
    return path


def existing_initramfs(initramfs: Path) -> Initramfs:
    """Return an initramfs that is there, with its hash. Raises StorageError."""
    with files.storing(str(initramfs)):
        return Initramfs(path=str(initramfs), digest=cache.sha256(initramfs))


def extended(initramfs: Path, more: Mapping[str, bytes], target: Path) -> Path:
    """Write `initramfs` with `more` (path -> content) to the new file `target`, for one boot. Raises StorageError."""
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


def _entries(kernel: Kernel, agent: Path) -> Iterator[ArchiveEntry]:
    yield from map(directory, _INITRAMFS_FOLDERS)
    # The kernel opens it before it starts init; devtmpfs covers it later.
    yield device_node("dev/console", 5, 1)
    yield regular_file("init", agent.read_bytes(), 0o755)
    for number, module in enumerate(kernel.modules):
        name, data = _module(Path(module))
        yield regular_file(f"modules/{number:03}-{name}", data)


def _module(path: Path) -> tuple[str, bytes]:
    return f"{path.name.partition('.ko')[0]}.ko", unpacked(path)


# Path of the probe in every image, and folder of source archives.
PROBE: Final = "/usr/bin/hugewise-probe"
SOURCES: Final = "/usr/src"

# Packages of every image: a shell for make and for recipes, and programs for recipes (tar with its compressors).
_BASE: Final = ("base-files", "coreutils", "dash", "findutils", "grep", "gzip", "mawk", "sed", "tar", "xz-utils")

# Raise it when the tables or the written files change, so that the cache makes images anew.
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

# Links that update-alternatives would have made: the first target that exists.
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

# Makes the same contents give nearly the same file (mke2fs 1.47.0 still copies times of change from the disk).
_UUID: Final = "68756765-7769-7365-0000-000000000001"
_EPOCH: Final = 1_700_000_000
_BLOCK: Final = 4096
_INODE: Final = 256
_SPARE: Final = 2 << 30  # bytes for a workload's writes: builds, databases; a hole until then
_SPARE_FILES: Final = 100_000
_PATIENCE_S: Final = 1800.0
_TOLD_EVERY_S: Final = 15.0


class _Contents(msgspec.Struct, frozen=True):
    programs: tuple[str, ...]
    files: tuple[str, ...]


def image(
    packages: Sequence[str],
    arch: Architecture,
    suite: str,
    *,
    sources: Sequence[str] = (),
    files: Mapping[str, Path] | None = None,
    say: Say = lambda _: None,
) -> Image:
    """Return an image of Debian packages and their needs; `sources` go below /usr/src. Raises UserError."""
    archives = [debian.source(name, suite, say) for name in sources]
    added = {PROBE: need_probe(arch), **{f"{SOURCES}/{path.name}": path for path in archives}, **(files or {})}
    for path, here in added.items():
        if not path.startswith("/") or ".." in path.split("/") or not here.is_file():
            raise UserError(f"{here} cannot be put at {path} of an image", hint="name a file, and an absolute path")
    resolved = debian.resolve(sorted({*_BASE, *packages}), suite, debian.ARCHITECTURES[arch], say)
    key = {
        "form": _FORM,
        "packages": sorted([package.name, package.version, package.sha256] for package in resolved),
        "files": sorted([path, cache.sha256(here), stat.S_IMODE(here.stat().st_mode)] for path, here in added.items()),
    }
    folder = cache.cached("images", key, lambda place: _make(place, resolved, added, say))
    contents = msgspec.json.decode((folder / "contents.json").read_bytes(), type=_Contents)
    return Image(
        arch=arch,
        root=str(folder / "root.ext4"),
        digest=reading.key_digest(key),
        programs=contents.programs,
        files=contents.files,
        packages=tuple((package.name, f"{package.version} sha256:{package.sha256}") for package in resolved),
    )


def missing() -> tuple[Missing, ...]:
    """Return what this machine lacks to make an image, besides the programs that fetch and unpack packages."""
    return tuple(
        Missing(f"images of guests need {name} on this machine", "e2fsprogs")
        for name in ("mke2fs", "debugfs")
        if _program(name) is None
    )


def _make(place: Path, packages: Sequence[debian.Package], added: Mapping[str, Path], say: Say) -> None:
    debs = debian.fetch(packages, say)
    with open_sandbox() as sandbox:
        lent = [sandbox.lend(deb, f"{number}.deb", kept=True) for number, deb in enumerate(debs)]
        put = {path: sandbox.lend(here, f"added/{number}") for number, (path, here) in enumerate(added.items())}
        sandbox.do(lambda tell: _fill(sandbox.own, lent, put, tell), say)
        sandbox.take("made", place)


def _fill(own: Path, debs: Sequence[Path], added: Mapping[str, Path], say: Say) -> None:
    root, made = own / "root", own / "made"
    root.mkdir()
    made.mkdir()
    _prepare(root)
    say(f"unpacking {len(debs)} packages")
    reported = time.monotonic()
    for number, deb in enumerate(debs):
        if time.monotonic() - reported >= _TOLD_EVERY_S:
            say(f"unpacked {number} of {len(debs)} packages")
            reported = time.monotonic()
        debian.unpack(deb, root, without=_WITHOUT)
    _finish(root, added)
    contents = _contents(root, added)
    _file_system(root, made / "root.ext4", say)
    (made / "contents.json").write_bytes(msgspec.json.encode(contents))


def _prepare(root: Path) -> None:
    for folder, mode in _FOLDERS.items():
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    for link, target in _LINKS.items():
        (root / link).symlink_to(target)


def _finish(root: Path, added: Mapping[str, Path]) -> None:
    # these files come after the packages, so that no package replaces them
    for path, text in _FILES.items():
        place = resolve_inside(root, path)
        place.unlink(missing_ok=True)
        place.write_text(text)
    for link, candidates in _ALTERNATIVES.items():
        place = root / link
        target = next((name for name in candidates if os.path.lexists(place.with_name(name))), None)
        if target is not None and not os.path.lexists(place):
            place.symlink_to(target)
    for folder, mode in _FOLDERS.items():
        resolve_inside(root, folder).chmod(mode)  # whatever packages make of it
    for path, here in added.items():
        place = resolve_inside(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        shutil.copyfile(here, place)
        place.chmod(0o755 if os.access(here, os.X_OK) else 0o644)
    for name, entry in walk(root):
        os.utime(root / name, (_EPOCH, _EPOCH), follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            (root / name).chmod(entry.stat(follow_symlinks=False).st_mode | stat.S_IRWXU)
    os.utime(root, (_EPOCH, _EPOCH))


def _contents(root: Path, added: Mapping[str, Path]) -> _Contents:
    executables: list[str] = []
    for name, entry in walk(root):
        if entry.is_dir(follow_symlinks=False):
            continue
        real = resolve_inside(root, name) if entry.is_symlink() else root / name
        if real.is_file() and real.stat().st_mode & 0o111:
            executables.append(f"/{name}")
    # /bin and /sbin are links to folders, which the tree does not follow; programs are named by both.
    short = (path.removeprefix("/usr") for path in executables if path.startswith(("/usr/bin/", "/usr/sbin/")))
    programs = sorted({*executables, *short})
    others = {path for path in added if path not in programs}
    for path in resolve_inside(root, SOURCES).rglob("*"):
        if (path.is_file() and "orig.tar" in path.name) or path.match("linux-source-*.tar.*"):
            others.add(f"/{path.relative_to(root)}")
    return _Contents(tuple(programs), tuple(sorted(others)))


def _file_system(root: Path, image: Path, say: Say) -> None:
    names = ["", *(name for name, _ in walk(root))]
    sizes = ((root / name).lstat() for name in names)
    content = sum(-(-status.st_size // _BLOCK) * _BLOCK + _BLOCK for status in sizes)
    size = (content + content // 8 + _SPARE) // _BLOCK
    # Bytes that are no hole: the files, and a place for each that may come.
    written = content + (len(names) + _SPARE_FILES) * _INODE
    size_said = f"{written / 1e6:.0f} MB"
    say(f"making the file system of the image ({size_said})")
    cure = f"the image needs {size_said} in {image.parent}, and as much in the cache: free space there"
    make = (
        *("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-b", str(_BLOCK), "-m", "0", "-I", str(_INODE)),
        *("-N", str(len(names) + _SPARE_FILES), "-U", _UUID, "-L", "hugewise"),
        # The guest's kernel must have nothing left to do in the background: it would show in the measurement.
        *("-E", f"hash_seed={_UUID},lazy_itable_init=0,root_owner=0:0", "-d", str(root), str(image), f"{size}"),
    )
    # The files are those of the account that unpacked them; in the guest all of them are root's.
    orders = image.with_name("orders")
    orders.write_text("".join(f'sif "/{name}" {field} 0\n' for name in names for field in ("uid", "gid")))
    _run(*make, cure=cure)
    _run("debugfs", "-w", "-f", str(orders), str(image), cure=cure)
    orders.unlink()


def _program(name: str) -> str | None:
    # also in folders that a user's PATH lacks
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))


def _run(name: str, *arguments: str, cure: str) -> None:
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


class _DiskPrograms(msgspec.Struct, frozen=True):
    programs: tuple[str, ...]


def known_disk_image(own: Disk, use: GuestUse, arch: Architecture) -> Image | None:
    """Return the image, where the disk was asked and has not changed since."""
    kept = cache.find_survey(_key(own, use), _DiskPrograms)
    return None if kept is None else _image(own, use, arch, kept.programs)


def own_disk_image(own: Disk, use: GuestUse, bare: Guest, initramfs: Path, say: Say) -> Image:
    """Return the image, from the disk that is asked now if need be, by a guest without one. Raises HugewiseError."""
    if (kept := known_disk_image(own, use, bare.arch)) is not None:
        return kept
    say(f"asking {own.files[0].path} once for its programs")
    wanted = _image(own, use, bare.arch, ())
    guest, paths = msgspec.structs.replace(bare, image=wanted), list[str]()
    with (
        hypervisor.asked(guest, initramfs, "guest of your own disk", use.qemu) as agent,
        parse_foreign(agent.name, "what programs it has"),
    ):
        for folder in programs.PATH.split(":"):
            with suppress(OSError):
                paths += (f"{folder}/{name}" for name in agent.names(folder))
    if len(paths) > _MOST_PROGRAMS:
        raise UserError(f"{wanted.place} has more than {_MOST_PROGRAMS:,} programs", hint="name another disk")
    found = tuple(sorted(paths))
    cache.keep_survey(_key(own, use), _DiskPrograms(found))
    return _image(own, use, bare.arch, found)


def put_files(agent: Agent, use: GuestUse, image: Image) -> None:
    """Put the study's files into a guest that has booted, where they are not in its image already. Raises UserError."""
    for path, here in use.files.items() if image.root is None else ():
        try:
            content = reading.content(Path(here), _MOST_FILE)
            mode = stat.S_IMODE(Path(here).stat().st_mode)
        except (reading.UnreadableError, OSError) as error:
            raise UserError(f"{here}: {error}", hint="correct files in [guest]") from None
        agent.put(path, content, 0o755 if mode & 0o111 else 0o644)


def _image(own: Disk, use: GuestUse, arch: Architecture, paths: tuple[str, ...]) -> Image:
    return Image(
        arch=arch,
        disk=own,
        place=use.root or "/dev/vda",
        digest=reading.key_digest(_key(own, use)),
        programs=tuple(sorted({*paths, *use.files})) if paths else (),
    )


def _key(own: Disk, use: GuestUse) -> dict[str, object]:
    return {"format": _FORMAT, "disk": disks.identity(own), "root": use.root or ""}
