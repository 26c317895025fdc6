"""Files of a host below a folder, read and never written. Reading always ends, and no link leads out of the folder.

A path is walked name by name below a descriptor. A link is followed within the folder alone: an absolute one begins at
the folder again, and `..` ends there. Nothing is opened before it is known to be a regular file or a folder, so no pipe
blocks and no device hears of it. Where the caller is root, a link of another account leads only to that account's own
files: it cannot have root read what it may not read itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 1 << 20
"""Bytes of a file of settings that are read; a larger one is none."""

_MOST_NAMES = 1 << 16
_MOST_LINKS = 40  # the kernel's limit
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
_PROCESS = re.compile(r"^/proc/\d+/")


class Root:
    """A host's files below `folder`, by their absolute paths; a `Host` that refuses to be written.

    `text` and `listed` give None for what is not there; what is there and cannot be read is noted in `unread`. The
    others raise OSError.
    """

    def __init__(self, folder: Path = Path("/")) -> None:
        self.folder = folder
        self.name = os.uname().nodename if folder == Path("/") else str(folder)
        self._unread: Counter[tuple[str, str]] = Counter()

    def privileged(self) -> bool:
        """Return whether the caller is root."""
        return os.geteuid() == 0

    def read(self, path: str) -> str:
        """Read the file's text, stripped. Raises OSError."""
        return self.content(path).decode("utf-8", "replace").strip()

    def write(self, path: str, text: str) -> None:
        """Raise OSError: an audit writes nothing."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def writable(self, path: str) -> bool:
        # nothing is writable
        return False

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; empty where there is none."""
        return self.listed(path) or []

    def content(self, path: str, most: int = MOST, *, whole: bool = True) -> bytes:
        """Return a regular file of at most `most` bytes, or the first bytes where not `whole`. Raises OSError."""
        with self._found(path) as (descriptor, status, _):
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            with os.fdopen(os.open(f"/proc/self/fd/{descriptor}", _READ), "rb", buffering=0) as file:
                data = bytearray()
                while len(data) <= most and (chunk := file.read(min(1 << 16, most + 1 - len(data)))):
                    data += chunk
        if whole and len(data) > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", path)
        return bytes(data[:most])

    def text(self, path: str, most: int = MOST, *, whole: bool = True) -> str | None:
        """Read the file as text; None where it is not there or cannot be read."""
        data = self.data(path, most, whole=whole)
        return None if data is None else data.decode("utf-8", "replace")

    def data(self, path: str, most: int = MOST, *, whole: bool = True) -> bytes | None:
        """Read the file; None where it is not there or cannot be read."""
        try:
            return self.content(path, most, whole=whole)
        except OSError as error:
            self.note(path, error)
            return None

    def listed(self, path: str) -> list[str] | None:
        """Return the sorted names in a folder; None where there is none."""
        entries = self.entries(path)
        return None if entries is None else sorted(entries)

    def entries(self, path: str) -> dict[str, bool] | None:
        """Return the names in a folder, and whether each is a folder (a link is none); None where there is none."""
        try:
            with self._found(path) as (descriptor, status, _):
                if not stat.S_ISDIR(status.st_mode):
                    return None
                held = os.open(f"/proc/self/fd/{descriptor}", _READ | os.O_DIRECTORY)
                try:
                    with os.scandir(held) as entries:
                        some = zip(entries, range(_MOST_NAMES), strict=False)
                        return {entry.name: entry.is_dir(follow_symlinks=False) for entry, _ in some}
                finally:
                    os.close(held)
        except OSError as error:
            self.note(path, error)
            return None

    def status(self, path: str) -> os.stat_result | None:
        """Return the status of a path, following links; None where the path leads nowhere."""
        try:
            with self._found(path) as (_, status, _):
                return status
        except OSError as error:
            self.note(path, error)
            return None

    def there(self, path: str) -> bool | None:
        """Return whether a path leads somewhere; None where that cannot be known, which is noted."""
        try:
            with self._found(path):
                return True
        except OSError as error:
            self.note(path, error)
            return False if error.errno in _GONE else None

    def target(self, path: str) -> str | None:
        """Return the target of a link; None where there is no link. A link of /proc is not followed either."""
        try:
            with self._found(path, last=False) as (descriptor, status, _):
                return os.readlink("", dir_fd=descriptor) if stat.S_ISLNK(status.st_mode) else None
        except OSError as error:
            self.note(path, error)
            return None

    def real(self, path: str) -> str | None:
        """Return the path without links that a path means; None where it leads nowhere."""
        try:
            with self._found(path) as (_, _, real):
                return real
        except OSError:
            return None

    def note(self, path: str, error: OSError) -> None:
        """Remember what is there and cannot be read; what is not there is nothing to tell."""
        if error.errno not in _GONE:
            self._unread[_PROCESS.sub("/proc/PID/", path), error.strerror or str(error)] += 1

    def tell(self, what: str, reason: str) -> None:
        """Remember what is not known for another reason."""
        self._unread[what, reason] += 1

    def unread(self) -> tuple[str, ...]:
        """Return what could not be read, with the reason; processes are counted."""
        return tuple(
            f"{path}: {reason}{f' ({count} processes)' if path.startswith('/proc/PID/') else ''}"
            for (path, reason), count in self._unread.items()
        )

    def _entered(self, descriptor: int, path: str) -> None:
        """Do something after the look-up of a name of the path; an override raises OSError to stop there."""

    @contextmanager
    def _found(self, path: str, *, last: bool = True) -> Iterator[tuple[int, os.stat_result, str]]:
        """Yield a descriptor of the path's target (O_PATH), its status, and its path without links. `last`: follow a
        link as the last name.
        """
        try:
            if b"\0" in os.fsencode(path):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ), path) from None
        top = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        held, here, real, owners = [top], [top], list[str](), set[int]()
        left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        try:
            links = 0
            while left:
                name = left.pop()
                if name == "..":
                    here, real = here[:-1] or [top], real[:-1]
                    continue
                descriptor = os.open(name, _LOOK, dir_fd=here[-1])
                held.append(descriptor)
                self._entered(descriptor, path)
                status = os.fstat(descriptor)
                if not stat.S_ISLNK(status.st_mode) or not (left or last):
                    here.append(descriptor)
                    real.append(name)
                    continue
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink("", dir_fd=descriptor)
                owners.add(status.st_uid)
                here, real = ([top], []) if target.startswith("/") else (here, real)
                left += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            status = os.fstat(here[-1])
            if (strangers := owners - {0, os.geteuid()}) and strangers != {status.st_uid}:
                raise OSError(errno.EACCES, "a link of another account to what is not its own", path)
            yield here[-1], status, "/" + "/".join(real)
        finally:
            for descriptor in held:
                os.close(descriptor)
