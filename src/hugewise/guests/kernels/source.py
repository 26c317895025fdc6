"""The source of Linux that kernels are built from: Debian's, or a tarball of the user's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hugewise import unprivileged
from hugewise.errors import StorageError, UserError
from hugewise.guests import cache, debian, unpacking
from hugewise.guests.debian import Say
from hugewise.guests.workshop import Workshop
from hugewise.model.guest import Architecture

__all__ = ["BUILD_DISK", "KernelSource", "of_debian", "of_file"]

BUILD_DISK = "3 GB"
"""What a build takes below /var/tmp: most of it is the source, unpacked."""

_PATIENCE_S = 3600.0
_FULL = f"a build needs {BUILD_DISK} there: free space, or mount some at it"
_PACKAGE = re.compile(r"linux-source-\d[0-9.]*")


@dataclass(frozen=True)
class KernelSource:
    """A source that can be had.

    name      in words: the package and its version, or the file
    sha256    of the package or the file
    file      has it here, fetched if need be
    package   whether it is a package, with the tarball in it
    """

    name: str
    sha256: str
    file: Callable[[], Path]
    package: bool

    def lend(self, shop: Workshop) -> Path:
        """Lend it to who builds. Raises UserError where it is not what it was, StorageError."""
        lent = shop.lend(self.file(), f"source{'.deb' if self.package else ''}", kept=self.package)
        if cache.sha256(lent) != self.sha256:
            raise UserError(f"the source {self.name} was changed meanwhile", hint="try again")
        return lent

    def unpack(self, lent: Path, folder: Path) -> None:
        """Put the tree into the folder, by who builds; `folder` is made. Raises UserError, StorageError."""
        tarball = lent
        if self.package:
            beside = folder.with_name(f"{folder.name}.deb")
            beside.mkdir()
            unpacking.unpack(lent, beside, only=["./usr/src/*"])
            tarballs = sorted(unpacking.inside(beside, "/usr/src").glob("linux-source-*.tar.*"))
            if len(tarballs) != 1 or tarballs[0].is_symlink():
                raise UserError(f"{self.name} has {len(tarballs)} tarballs below /usr/src, not one")
            tarball = tarballs[0]
        folder.mkdir()
        _extract(tarball, folder, self.name)
        if self.package:
            tarball.unlink()


def of_debian(suite: str, arch: Architecture, say: Say) -> KernelSource:
    """The suite's `linux-source`, resolved but not fetched yet. Raises UserError."""
    resolved = debian.resolve(["linux-source"], suite, debian.ARCHITECTURES[arch], say)
    found = [each for each in resolved if _PACKAGE.fullmatch(each.name)]
    if len(found) != 1:
        names = ", ".join(each.name for each in found) or "none"
        raise UserError(f"linux-source of Debian {suite} does not bring one source of Linux: it brings {names}")
    package = found[0]
    name = f"{package.name} {package.version}"
    return KernelSource(name, package.sha256, lambda: debian.fetch([package], say)[0], package=True)


def of_file(tarball: Path) -> KernelSource:
    """A tarball with one folder in it, as kernel.org has them. Raises UserError."""
    try:
        digest = cache.sha256(tarball)
    except OSError as error:
        raise UserError(f"the source cannot be read: {tarball}: {error.strerror}") from None
    return KernelSource(tarball.name, digest, lambda: tarball, package=False)


def _extract(tarball: Path, folder: Path, name: str) -> None:
    """Put what is in the tarball's one folder into `folder`. tar knows the compression by the file's content, and
    follows no link of the tarball out of the folder.
    """
    command = ("tar", "--extract", "--file", str(tarball), "--directory", str(folder))
    done = unprivileged.run((*command, "--strip-components=1", "--no-same-owner"), timeout=_PATIENCE_S)
    if done.status != 0:
        why = done.stderr.strip().splitlines() or ["no reason given"]
        raise StorageError(f"cannot unpack {name} to {folder}: {why[0]}", hint=_FULL)
    if not (folder / "Kbuild").is_file():
        raise UserError(f"{name} is not a source of Linux: there is no Kbuild in it")
