"""What every case has: a folder to work in, the machine as it was before, and what to hold against it afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hugewise.errors import UserError
from hugewise.torture import descent, kept, studies, traces
from hugewise.torture.findings import Draws, Ordeal
from hugewise.torture.subject import CommandEnded, Subject

__all__ = ["Rack"]

_LOCKED = "another hugewise run holds this host"


@dataclass
class Rack:
    """One case under way, in the empty folder `work`.

    command  the hugewise that is tortured
    life     seconds that an untouched run of its study takes here
    owed     it is to be resumed, where there is something to resume
    """

    command: Sequence[str]
    work: Path
    found: Ordeal
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
        """Where runs put what they find."""
        return self.work / "results"

    @property
    def run(self) -> Path | None:
        """The folder of the run that is tortured."""
        return kept.only_run(self.results)

    @property
    def resumable(self) -> bool:
        """Whether the run has begun and has not ended."""
        return kept.resumable(self.run)

    def study(self, text: str) -> str:
        """The words that run it."""
        return str(studies.write(self.work, text))

    def words(self, study: str) -> tuple[str, ...]:
        """Run the study in `results`."""
        return ("run", study, "--results", str(self.results))

    def did(self, ended: CommandEnded) -> CommandEnded:
        """Remember it. Raises UserError where another run holds the host, and not what is left of this one."""
        if _LOCKED in ended.said and not descent.descendants():
            raise UserError(
                f"{_LOCKED}: torture needs it for itself", hint="wait until it has ended, and call it again"
            )
        self.done.append(f"{ended.verb} {'killed' if ended.hit else f'({ended.status})'} at {ended.seconds:.2f} s")
        return ended

    def broke(self, what: str) -> None:
        """A promise did not hold."""
        self.found.broken.append(what)

    def clear(self, ended: CommandEnded, *allowed: int) -> None:
        """The exit status is one of those allowed, and no error is a traceback."""
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
            descent.end_all()  # the next case begins without them
        again = self.subject.run("restore")
        if again.status or "nothing to restore" not in again.said:
            self.found.differences.append(f"restored once more there was something left: {again.told()}")

    def resume(self) -> bool:
        """Resume the run, where it can be, and see that it is whole; whether it was."""
        run = self.run
        if run is None or not self.resumable:
            return False
        had = kept.stored(run)
        ended = self.did(self.subject.run("resume", str(run)))
        self.clear(ended, 0)
        lost, repeated, other = kept.whole(run, had)
        self.found.resumed = True
        self.found.kept = kept.accepted(had)
        self.found.lost += lost
        self.found.repeated += repeated
        self.found.broken += other
        return True

    def had(self) -> dict[str, kept.StoredAttempt]:
        """What is stored of the run by now."""
        return kept.stored(self.run)

    def keeps(self, had: dict[str, kept.StoredAttempt]) -> None:
        """What was stored is there, and is what it was."""
        self.found.lost += kept.missing(had, self.had())
