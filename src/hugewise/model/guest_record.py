"""What a run's folder keeps of its guests beside its attempts: `guests.json`, written once, before the first block.

A report is made from the folder alone, on any machine: so the configurations of kernels are compared while they are
there, and their difference is kept. Nothing here knows QEMU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from hugewise import reading
from hugewise.errors import RunError
from hugewise.files import write_whole
from hugewise.model.guest import Accelerator, Architecture

__all__ = ["NAME", "GuestsRecord", "KernelRecord", "Option", "read", "write"]

NAME = "guests.json"


class Option(msgspec.Struct, frozen=True):
    """A symbol that two kernels' configurations set differently, without `CONFIG_`; `n`: not set, or not there."""

    symbol: str
    baseline: str
    kernel: str


class KernelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that arms of the run boot.

    name       the study's
    had        how it was had: by a recipe of hugewise, by a Debian package, or by a file. Memory is compared only
               between kernels that were had in the same way
    base_page  bytes of its base page; null where its configuration is not known
    differs    in which symbols from the baseline's kernel (of which it is empty); null where one of the two
               configurations is not known
    """

    name: str
    release: str
    origin: str
    sha256: str
    had: Literal["build", "package", "path"]
    base_page: int | None
    differs: tuple[Option, ...] | None


class GuestsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `guests.json`. `why`: how the accelerator was chosen; `baseline`: the kernel of the study's
    baseline; `packages`: what the image is made of, with versions; `resident`: one guest is there for all attempts of a
    session.
    """

    format: int = 1
    arch: Architecture
    accelerator: Accelerator
    why: str
    counting: bool
    baseline: str
    kernels: tuple[KernelRecord, ...]
    packages: Mapping[str, str] = {}
    resident: bool = False


def write(folder: Path, record: GuestsRecord) -> str:
    """Keep it in the run's folder; its SHA-256. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    write_whole(folder / NAME, text)
    return hashlib.sha256(text).hexdigest()


def read(folder: Path, digest: str | None = None, *, demanded: bool = False) -> GuestsRecord | None:
    """What was kept; None of a run without guests. `digest`: the SHA-256 that it must have where that is `demanded`.

    Raises RunError where it cannot be read, or is not what was kept.
    """
    path = folder / NAME
    try:
        text = reading.kept(path)
        found = reading.decoded(msgspec.json.Decoder(GuestsRecord), text)
    except FileNotFoundError:
        text, found = b"", None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint="check its permissions") from None
    except reading.UnreadableError as error:
        raise RunError(
            f"{path} cannot be read: {error}", hint="put a copy of it back, or start a new run of its study"
        ) from None
    if demanded and digest != (None if found is None else hashlib.sha256(text).hexdigest()):
        raise RunError(f"{path} is not what the run began with", hint="put a copy of it back")
    return found
