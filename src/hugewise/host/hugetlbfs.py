"""A private mount of hugetlbfs, in whose pages guests get their memory with the backing `file`.

The journal hears of it before it is made; what a killed run left is unmounted by the next root call.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import SettingError, UserError
from hugewise.machine import programs

__all__ = ["HugetlbMount", "is_own", "remove"]

_PARENT = "/run"
_OWN = re.compile(r"/run/hugewise-\d+-hugetlb-\d+")
_PATIENCE_S = 60


def is_own(path: str) -> bool:
    """Whether the path can be a session's mount: by its name, and (where it is there) its kind."""
    return _OWN.fullmatch(path) is not None and not Path(path).is_symlink()


@dataclass(frozen=True)
class HugetlbMount:
    """A mounted hugetlbfs with pages of one size; a context that unmounts it."""

    path: str

    @classmethod
    def open(cls, size: int, account: pwd.struct_passwd | None, note: Callable[[str], None]) -> HugetlbMount:
        """Mount one with pages of `size` bytes, which `account` alone may use (None: the caller).

        `note` (the journal) hears of its path before it is made. Needs root. Raises SettingError.
        """
        path = f"{_PARENT}/hugewise-{os.getpid()}-hugetlb-{size}"
        if os.geteuid() != 0:
            raise SettingError(
                "hugetlb pages of a file need a hugetlbfs, which root alone can mount",
                hint='use sudo, or source = "memfd" for the backing',
            )
        note(path)
        remove(path)  # of a killed run whose number is this process's now
        owner = "" if account is None else f",uid={account.pw_uid},gid={account.pw_gid}"
        try:
            Path(path).mkdir(mode=0o700)
            _command("mount", "-t", "hugetlbfs", "-o", f"pagesize={size},mode=0700{owner}", "hugewise", path)
        except (OSError, SettingError) as error:
            with suppress(OSError):
                Path(path).rmdir()
            said, hint = (error.strerror, None) if isinstance(error, OSError) else (error.message, error.hint)
            raise SettingError(f"cannot mount a hugetlbfs with pages of {size >> 10} kB: {said}", hint=hint) from error
        return cls(path)

    def close(self) -> None:
        """Unmount it; guests that used it have ended. Raises SettingError."""
        remove(self.path)

    def __enter__(self) -> HugetlbMount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove(path: str) -> None:
    """Unmount what is mounted there and remove the empty folder; nothing happens when it is gone.

    What is still in use loses its name at once and ends with its last user. Raises SettingError.
    """
    if not is_own(path):
        raise SettingError(f"{path} is no mount of hugewise's own: it is left as it is")
    try:
        while os.path.ismount(path):
            _command("umount", "--lazy", path)
        Path(path).rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingError(f"cannot remove {path}: {error.strerror}", hint=f"umount {path}; rmdir {path}") from error


def _command(*words: str) -> None:
    try:
        program = programs.of_root(words[0])
    except UserError as error:
        raise SettingError(error.message, hint=error.hint) from None
    if program is None:
        raise SettingError(f"{words[0]}: no such program on PATH", hint="apt install mount")
    try:
        done = subprocess.run((program, *words[1:]), capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise SettingError(f"{' '.join(words)} has not ended within {_PATIENCE_S} s") from None
    if done.returncode != 0:
        raise SettingError((done.stderr or done.stdout).strip() or f"{words[0]}: exit status {done.returncode}")
