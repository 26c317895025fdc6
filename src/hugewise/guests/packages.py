"""Debian packages as files below a folder, and what they will take before they are fetched.

The files of a package below a folder, as a guest that has the folder as its root would see them. Nothing is run.

Paths and links of a package mean places in the guest. So each is resolved below the folder, never by this host:
whatever a package holds, nothing is written outside. No file gets a bit that gives its caller another's rights.

What Debian packages will take, before they are fetched: by the lists that are in the cache, if they are.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final, NamedTuple

from hugewise import reading
from hugewise.errors import HugewiseError, StorageError, UserError
from hugewise.guests import debian
from hugewise.guests.debian import Package

_MOST_STEPS: Final = 400  # along a path and the links in it
_DEEPEST: Final = 100  # folders


def unpack(deb: Path, root: Path, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> None:
    """Put the files of a package below the folder `root`, which the caller alone can change.

    Links to folders that are there stay (a usr-merged tree takes packages that have /bin and /lib), and everything
    belongs to the caller. `only` and `without` are patterns such as `./usr/share/doc/*`; `*` takes in slashes. Times
    are not kept. Raises StorageError.
    """
    program = shutil.which("dpkg-deb")
    if program is None:
        raise UserError("guests of Debian packages need dpkg-deb on this machine", hint="apt install dpkg")
    argv = (program, "--fsys-tarfile", str(deb))
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        refused = broken = ""
        try:
            _extract(reading.stdout, root, only, without)
        except tarfile.TarError as error:
            broken = str(error)
        except OSError as error:
            refused = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        except (ValueError, OverflowError) as error:
            refused = str(error)
        reading.stdout.close()
        said = reading.stderr.read().decode(errors="replace").strip().partition("\n")[0]
    if refused or broken or reading.returncode != 0:
        why = refused or said or broken or f"exit status {reading.returncode}"
        raise StorageError(f"cannot unpack {deb} to {root}: {why}", hint="free space there, or remove the file")


def tree(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below `folder` as (path relative to it, entry), in the order of the paths; links are not followed."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        yield entry.name, entry
        if entry.is_dir(follow_symlinks=False):
            for name, below in tree(Path(entry.path)):
                yield f"{entry.name}/{name}", below


def inside(root: Path, path: str) -> Path:
    """Where a path of the guest is below `root`, all links followed as the guest would follow them.

    Raises StorageError where they have no end.
    """
    at = root
    parts = [part for part in reversed(path.split("/")) if part]
    for _ in range(_MOST_STEPS):
        if not parts:
            return at
        part = parts.pop()
        if part == ".." and at != root:
            at = at.parent
        elif part not in ("..", "."):
            step = at / part
            if step.is_symlink():
                target = str(step.readlink())
                at = root if target.startswith("/") else at
                parts.extend(each for each in reversed(target.split("/")) if each)
            else:
                at = step
    raise StorageError(f"{path} of an image follows links without end")


def _extract(stream: IO[bytes], root: Path, only: Sequence[str], without: Sequence[str]) -> None:
    with tarfile.open(fileobj=stream, mode="r|") as members:
        for member in members:
            name = member.name
            if only and not any(fnmatchcase(name, each) for each in only):
                continue
            if not any(fnmatchcase(name, each) for each in without):
                _put(members, member, root)


def _put(members: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    # A name may become a word of another program's orders.
    told = all(each.isprintable() and each != '"' for each in member.name)
    if ".." in parts or len(parts) > _DEEPEST or not told:
        raise ValueError(f"{member.name!r} is no place in a package")
    if not parts:
        return
    folder = inside(root, "/".join(parts[:-1]))
    folder.mkdir(parents=True, exist_ok=True)
    place, mode = folder / parts[-1], stat.S_IMODE(member.mode) & 0o777
    if member.isdir():
        if place.is_symlink():
            inside(root, member.name).mkdir(parents=True, exist_ok=True)
        else:
            place.mkdir(exist_ok=True)
            place.chmod(mode | stat.S_IRWXU)
        return
    place.unlink(missing_ok=True)
    if member.isreg():
        data = members.extractfile(member)
        assert data is not None
        with place.open("xb") as writing:
            shutil.copyfileobj(data, writing, 1 << 20)
        place.chmod(mode | stat.S_IRUSR)
    elif member.issym():
        place.symlink_to(member.linkname)
    elif member.islnk():
        first = inside(root, member.linkname)
        if first.is_symlink() or not first.is_file():
            raise ValueError(f"{member.name!r} is a link to {member.linkname!r}, which is no file of the package")
        os.link(first, place)
    else:
        raise ValueError(f"{member.name!r} is a device or a pipe")


_UNPACKED: Final = re.compile(
    r"^After this operation, (?P<number>\d[\d,]{0,9}(\.\d)?) (?P<unit>[kMGT]?)B of additional", re.M
)
_UNITS: Final[Mapping[str, int]] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class Foreseen(NamedTuple):
    """What packages take with all that they need: those, and bytes when they are unpacked (None: apt did not say)."""

    packages: tuple[Package, ...]
    unpacked: int | None


def package_sizes(packages: Sequence[str], suite: str, arch: str) -> Foreseen | None:
    """What `packages` take; None where the lists are not there, or do not have them. Nothing is fetched."""
    try:
        said = debian.listed(packages, suite, arch)
    except HugewiseError:  # who has them fetched is told why not
        return None
    return None if said is None else Foreseen(tuple(debian.parse_uris(said, (suite, arch))), unpacked_bytes(said))


def to_fetch(packages: Iterable[Package]) -> int:
    """Bytes of those that are not in the cache."""
    return sum(each.size for each in packages if not debian.is_cached(each))


def unpacked_bytes(text: str) -> int | None:
    """Bytes that `apt-get install` says its packages take on a disk; None where it does not. Pure."""
    found = _UNPACKED.search(text)
    if found is None:
        return None
    return round(reading.figure(found["number"].replace(",", ""), "what apt needs", low=0) * _UNITS[found["unit"]])
