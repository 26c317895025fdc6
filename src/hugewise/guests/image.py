"""A guest's user space: an ext4 of Debian packages, made without root and without running anything of theirs.

Where hugewise is root, the unprivileged account unpacks them and makes the file system, in a workshop; root takes the
finished file.
The packages are unpacked, not installed: what their scripts would have done and programs need is in two small tables
here (accounts, alternatives). Documentation is left out. Names are looked up in /etc only.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from hugewise import unprivileged
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, coming, debian, foreseen, initramfs, unpacking
from hugewise.guests.debian import Say
from hugewise.guests.unpacking import inside, tree
from hugewise.guests.workshop import workshop
from hugewise.model.guest import Architecture, Image
from hugewise.model.workload import Missing

__all__ = ["PROBE", "SOURCES", "archives", "cached", "image", "missing", "takes"]

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
    added = {PROBE: initramfs.need_probe(arch), **archives(sources, suite, say), **(files or {})}
    for path, here in added.items():
        if not path.startswith("/") or ".." in path.split("/") or not here.is_file():
            raise UserError(f"{here} cannot be put at {path} of an image", hint="name a file, and an absolute path")
    found = debian.resolve(sorted({*_BASE, *packages}), suite, debian.ARCHITECTURES[arch], say)
    key = {
        "form": _FORM,
        "packages": sorted([package.name, package.version, package.sha256] for package in found),
        "files": sorted([path, cache.sha256(here), stat.S_IMODE(here.stat().st_mode)] for path, here in added.items()),
    }
    folder = cache.kept("images", key, lambda place: _make(place, found, added, say), say)
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
    probe = initramfs.guest_probe(arch)
    if isinstance(probe, Missing):
        return False
    note = _note(packages, suite, arch, sources, cache.sha256(probe))
    return any(path.with_name("root.ext4").exists() for path in cache.folder("images").glob(f"*/{note}"))


def takes(packages: Sequence[str], arch: Architecture, suite: str) -> str:
    """What it takes to make the image of these packages, in words, as far as that is known without fetching."""
    found = foreseen.foreseen(sorted({*_BASE, *packages}), suite, debian.ARCHITECTURES[arch])
    if found is None:
        return "how much that is, the run says when it has read Debian's lists of packages"
    kept = "" if found.unpacked is None else f", and about {found.unpacked / 1e6:.0f} MB of the cache are taken"
    return f"{foreseen.to_fetch(found.packages) / 1e6:.1f} MB are fetched{kept}"


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
        unpacking.unpack(deb, root, without=_WITHOUT)
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
    with coming.watched("written", lambda: coming.written(image), written, say, every=coming.EVERY_S):
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
