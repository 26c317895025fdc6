"""Context of every case: a folder to work in, the machine's state before, and comparisons with it afterwards.

File systems with little room, and namespaces that see them alone, are what `faults` puts a run into.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hugewise import processes
from hugewise.errors import HugewiseError, UserError
from hugewise.machine.proc import kernel_text, mounts
from tools.torture import subject, traces
from tools.torture.findings import Draws, FaultCase
from tools.torture.subject import CommandEnded, Subject

_LOCKED = "another hugewise run holds this host"


@dataclass
class CaseContext:
    """One case under way, in the empty folder `work`.

    command  the hugewise that is tortured
    life     seconds that an untouched run of its study takes here
    owed     it is to be resumed, where there is something to resume
    """

    command: Sequence[str]
    work: Path
    found: FaultCase
    draws: Draws
    life: float
    owed: bool = False
    done: list[str] = field(default_factory=list)
    subject: Subject = field(init=False)
    before: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.subject = Subject(self.command, self.work)
        self.before = traces.look(self.work)

    @property
    def results(self) -> Path:
        """Folder of the runs' results."""
        return self.work / "results"

    @property
    def run(self) -> Path | None:
        """The folder of the run that is tortured."""
        return traces.only_run(self.results)

    @property
    def resumable(self) -> bool:
        """True if the run has begun and has not ended."""
        return traces.resumable(self.run)

    def study(self, text: str) -> str:
        """Return the words that run it."""
        return str(subject.write_study(self.work, text))

    def words(self, study: str) -> tuple[str, ...]:
        """Run the study in `results`."""
        return ("run", study, "--results", str(self.results))

    def did(self, ended: CommandEnded) -> CommandEnded:
        """Remember it. Raises UserError where another run holds the host, and not what is left of this one."""
        if _LOCKED in ended.said and not traces.descendants():
            raise UserError(
                f"{_LOCKED}: torture needs it for itself", hint="wait until it has ended, and call it again"
            )
        self.done.append(f"{ended.verb} {'killed' if ended.hit else f'({ended.status})'} at {ended.seconds:.2f} s")
        return ended

    def broke(self, what: str) -> None:
        """Record a broken promise."""
        self.found.broken.append(what)

    def clear(self, ended: CommandEnded, *allowed: int) -> None:
        """Check that the exit status is one of those allowed, and that no error is a traceback."""
        if ended.status not in allowed:
            self.broke(f"{ended.told()} (as documented: {', '.join(map(str, allowed))})")
        elif ended.traceback:
            self.broke(f"an error without a cure: {ended.told()}")

    def restore(self) -> CommandEnded:
        """`hugewise restore`, which must succeed."""
        ended = self.did(self.subject.run("restore"))
        self.clear(ended, 0)
        return ended

    def same(self) -> None:
        """Everything is as it was before, and the next `restore` has nothing to do."""
        self.found.differences += traces.remaining(self.before, self.work)
        if self.found.differences:
            traces.end_all()  # the next case begins without them
        again = self.subject.run("restore")
        if again.status or "nothing to restore" not in again.said:
            self.found.differences.append(f"restored once more there was something left: {again.told()}")

    def resume(self) -> bool:
        """Resume the run, where it can be, and see that it is whole; whether it was."""
        run = self.run
        if run is None or not self.resumable:
            return False
        had = traces.stored(run)
        ended = self.did(self.subject.run("resume", str(run)))
        self.clear(ended, 0)
        lost, repeated, other = traces.whole(run, had)
        self.found.resumed = True
        self.found.kept = traces.accepted(had)
        self.found.lost += lost
        self.found.repeated += repeated
        self.found.broken += other
        return True

    def had(self) -> dict[str, traces.StoredAttempt]:
        """Return the attempts that are stored of the run by now."""
        return traces.stored(self.run)

    def keeps(self, had: dict[str, traces.StoredAttempt]) -> None:
        """Check that the stored attempts are there, unchanged."""
        self.found.lost += traces.missing(had, self.had())


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
    """Mount a tmpfs of `size` bytes, in whole pages, at a new folder. Raises HugewiseError."""
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
    """Yield the words that run a command in a mount namespace in which `place` has so much room, begun in `work`.

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
    for mount in mounts(kernel_text(Path("/proc/self/mountinfo"))):
        if Path(mount.point).is_relative_to(folder):
            _command("umount", "--lazy", mount.point)
