"""Every error that hugewise raises on purpose.

HugewiseError                 exit 1: hugewise or the host failed
├── UserError                 exit 2: what was asked cannot be done; says where, what and the cure
│   ├── StudyError            a mistake in a study file: names file, key, value and cure
│   ├── LockedError           another run holds this host: names its pid, user and command
│   ├── DataError             a file of measurements made elsewhere (external.reader): names file, place and cure
│   └── RunError              a run folder that cannot be continued or reported
├── SettingError              a page setting could not be turned, or not be put back
├── ProbeError                the probe is missing, is another version, or broke its protocol
│   └── AttemptLostError      it ended without a word: whether the clock of the attempt ran is not known
├── MachineError              a guest did not boot, hung, panicked or is gone: says its last console lines
├── HostLostError             a host of a fleet gave no answer
├── FencedError               a host of a fleet refuses a number that is over there
└── StorageError              results cannot be written (disk full, read-only)

A `UserError` is printed as its message and its hint, never as a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class HugewiseError(Exception):
    """A failure of hugewise or of the host; `hint` says what cures it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(HugewiseError):
    """Something that the user asked for cannot be done as asked."""

    exit_code = 2


class StudyError(UserError):
    """A mistake in a study file: `file: key = value: message`."""

    def __init__(
        self,
        message: str,
        *,
        file: str,
        key: str | None = None,
        value: object = None,
        hint: str | None = None,
    ) -> None:
        where = file if key is None else f"{file}: {key}" if value is None else f"{file}: {key} = {value!r}"
        super().__init__(f"{where}: {message}", hint=hint)
        self.file = file
        self.key = key
        self.value = value


class LockedError(UserError):
    """Another hugewise run holds this host. `pid` is None where it is not to be seen from here.

    account   whose socket it is, where it is another account's: a run of hugewise, or what passes for one
    anyway    whether root may go on beside it
    about     what else is known of the process: its user, the time that it has left
    command   its command line; empty where it is not to be seen
    """

    def __init__(
        self,
        pid: int | None,
        *,
        account: str | None = None,
        anyway: bool = False,
        about: Sequence[str] = (),
        command: str = "",
    ) -> None:
        where = "in another pid namespace" if pid is None and account is None else f"pid {pid or 'unknown'}"
        known = ", ".join((where, *about))
        message = f"another hugewise run holds this host ({known})"
        if account is not None:
            message = f"{account} holds the lock of this host ({known}): a run of hugewise, or what passes for one"
        cures = [
            "wait for it (run and advise: --wait)",
            f"end it with: kill {pid}" if pid else "",
            "go on beside it with: --anyway",
        ]
        super().__init__(
            f"{message}: {command}" if command else message,
            hint=", or ".join(cure for cure in (cures if anyway else cures[:2]) if cure),
        )
        self.pid = pid


class RunError(UserError):
    """A run folder that cannot be resumed or reported."""


class SettingError(HugewiseError):
    """A page setting could not be read, turned, or put back."""


class ProbeError(HugewiseError):
    """The Rust probe is missing, too old, or broke its protocol."""


class AttemptLostError(ProbeError):
    """The probe ended under an attempt and said nothing: whether the clock ran is not known, so it is not made again.

    `arm`: whose, where several ran at once.
    """

    arm: str | None = None


class MachineError(HugewiseError):
    """A guest did not boot, hung, panicked, or is gone.

    `arm`: whose, where several were to run at once; if known. `emulator`: that is at fault, and nothing that was
    measured.
    """

    arm: str | None = None
    emulator: bool = False


class StorageError(HugewiseError):
    """Results cannot be written."""


class HostLostError(HugewiseError):
    """A host of a fleet gave no answer: whether it did what was ordered is not known."""


class FencedError(HugewiseError):
    """A host of a fleet refuses an assignment: a higher number was begun there, or this one is over."""
