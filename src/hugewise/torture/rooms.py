"""File systems with little room, and namespaces that see them alone: what `faults` puts a run into."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hugewise import processes
from hugewise.errors import HugewiseError
from hugewise.machine.proc import kernel_text, mounts

__all__ = ["PAGE", "alone", "enlarge", "small", "unmount_below"]

PAGE = 4096
_PATIENCE_S = 10.0


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    if done.returncode:
        raise HugewiseError(
            f"{' '.join(words)}: {done.stderr.strip()}", hint="torture it as root, outside of containers"
        )


@contextmanager
def small(place: Path, size: int) -> Iterator[None]:
    """A tmpfs of `size` bytes in whole pages, at a new folder. Raises HugewiseError."""
    place.mkdir(parents=True)
    _command("mount", "-t", "tmpfs", "-o", f"size={size // PAGE * PAGE},mode=755", "tmpfs", str(place))
    try:
        yield
    finally:
        _command("umount", "--lazy", str(place))


def enlarge(place: Path) -> None:
    """Room enough for whatever goes there. Raises HugewiseError."""
    _command("mount", "-o", "remount,size=64m", str(place))


@contextmanager
def alone(work: Path, place: Path, size: int) -> Iterator[tuple[str, ...]]:
    """A mount namespace in which `place` has so much room: the words that have a command run in it, begun in `work`.

    Nobody else sees that mount, and it goes with the namespace, also when this process is killed.
    """
    words = ["unshare", "--mount", "--propagation", "private", "sleep", "3600"]
    holder = subprocess.Popen(words, preexec_fn=processes.die_with_parent)  # noqa: PLW1509  (no thread is running here)
    try:
        name, end = Path(f"/proc/{holder.pid}/ns/mnt"), time.monotonic() + _PATIENCE_S
        own = Path("/proc/self/ns/mnt").readlink()
        while name.readlink() == own and time.monotonic() < end:
            time.sleep(0.005)
        if name.readlink() == own:
            raise HugewiseError("no mount namespace can be made", hint="torture it as root, outside of containers")
        enter = ("nsenter", f"--mount={name}", f"--wd={work}")
        _command(*enter, "mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place))
        yield enter
    finally:
        holder.kill()
        holder.wait()


def unmount_below(folder: Path) -> None:
    """Mounts of a torture that was killed. Raises HugewiseError."""
    for one in mounts(kernel_text(Path("/proc/self/mountinfo"))):
        if Path(one.point).is_relative_to(folder):
            _command("umount", "--lazy", one.point)
