"""A user space that is somebody's own disk: asked once what programs it has, and kept by what the disk is.

The guest boots its kernel of the study with the agent as init, which makes the disk's root folder its own: nothing is
installed on the disk, and nothing is written to it. What its distribution starts at boot is not started.
"""

from __future__ import annotations

import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise import reading
from hugewise.errors import StorageError, UserError
from hugewise.guests import accelerator, boot, cache, disks, program
from hugewise.guests.debian import Say
from hugewise.guests.hosting import for_one_boot
from hugewise.machine import programs
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.model.guest import Accelerator, Architecture, Disk, Image, Initramfs, Kernel
from hugewise.study.guest import GuestUse

__all__ = ["Booting", "image", "known", "put"]

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


def image(own: Disk, use: GuestUse, booting: Booting, say: Say) -> Image:
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
    bare = accelerator.bare(booting.kernel, booting.accelerator, cpu=booting.cpu)
    guest = msgspec.structs.replace(bare, image=wanted, memory=_MEMORY)
    qemu = program.find(booting.kernel.arch, booting.qemu)
    with (
        for_one_boot() as hosting,
        boot.boot(guest, Path(booting.initramfs.path), hosting, program=qemu) as booted,
    ):
        agent = Agent(booted.agent, "guest of your own disk", booted.error)
        agent.hello()
        found: list[str] = []
        with heard(agent.name, "what programs it has"):
            for folder in programs.PATH.split(":"):
                with suppress(OSError):
                    found += (f"{folder}/{name}" for name in agent.names(folder))
        agent.close()
    if len(found) > _MOST_PROGRAMS:
        raise UserError(f"{wanted.place} has more than {_MOST_PROGRAMS:,} programs", hint="name another disk")
    return tuple(sorted(found))


def _key(own: Disk, use: GuestUse) -> dict[str, object]:
    return {"format": _FORMAT, "disk": disks.identity(own), "root": use.root or ""}
