"""The source of Linux that kernels are built from: Debian's, or a tarball of the user's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian
from hugewise.guests.debian import Say
from hugewise.model.guest import Architecture

__all__ = ["KernelSource", "of_debian", "of_file"]

_PACKAGE = re.compile(r"linux-source-\d[0-9.]*")


@dataclass(frozen=True)
class KernelSource:
    """A source that can be had.

    name      in words: the package and its version, or the file
    sha256    of the package or the file
    unpack    puts the tree into an empty folder
    """

    name: str
    sha256: str
    unpack: Callable[[Path], None]


def of_debian(suite: str, arch: Architecture, say: Say) -> KernelSource:
    """The suite's `linux-source`, resolved but not fetched yet. Raises UserError."""
    resolved = debian.resolve(["linux-source"], suite, debian.ARCHITECTURES[arch], say)
    found = [each for each in resolved if _PACKAGE.fullmatch(each.name)]
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise UserError(f"linux-source of Debian {suite} does not bring one source of Linux: it brings {names}")
    package = found[0]

    def unpack(folder: Path) -> None:
        (file,) = debian.fetch([package], say)
        say(f"unpacking {package.name} {package.version}")
        inside = folder / "usr" / "src"
        debian.unpack(file, folder, only=["./usr/src/*"])
        tarballs = sorted(inside.glob("linux-source-*.tar.*"))
        if len(tarballs) != 1:
            raise UserError(f"{package.name} {package.version} has {len(tarballs)} tarballs below /usr/src, not one")
        _extract(tarballs[0], folder)
        tarballs[0].unlink()

    return KernelSource(f"{package.name} {package.version}", package.sha256, unpack)


def of_file(tarball: Path, say: Say) -> KernelSource:
    """A tarball with one folder in it, as kernel.org has them. Raises UserError."""
    try:
        digest = cache.sha256(tarball)
    except OSError as error:
        raise UserError(f"the source cannot be read: {tarball}: {error.strerror}") from None

    def unpack(folder: Path) -> None:
        say(f"unpacking {tarball.name}")
        _extract(tarball, folder)

    return KernelSource(tarball.name, digest, unpack)


def _extract(tarball: Path, folder: Path) -> None:
    """Put what is in the tarball's one folder into `folder`. tar knows the compression by the file's content."""
    command = ("tar", "--extract", "--file", str(tarball.absolute()), "--directory", str(folder))
    done = subprocess.run(
        (*command, "--strip-components=1", "--no-same-owner"), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        why = done.stderr.strip().splitlines() or ["no reason given"]
        raise StorageError(f"cannot unpack {tarball} to {folder}: {why[0]}", hint="free space there: it needs 2 GB")
    if not (folder / "Kbuild").is_file():
        raise UserError(f"{tarball} is not a source of Linux: there is no Kbuild in it")
