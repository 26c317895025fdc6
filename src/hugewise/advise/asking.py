"""An advice under way: its time, its record, and the runs of its phases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hugewise.advise import question as questions
from hugewise.advise.advice import Advice
from hugewise.advise.record import RECORD, AdviceFolder
from hugewise.analysis.analysis import analyze
from hugewise.errors import UserError
from hugewise.files import own
from hugewise.model.results import Results
from hugewise.session import progress, session
from hugewise.store.folder import RunFolder
from hugewise.study.study import Study

__all__ = ["Asking", "InterruptedPhaseError", "ended"]


@dataclass
class Asking:
    """An advice under way."""

    advice: Advice
    record: AdviceFolder
    results: Path
    listener: progress.Listener
    anyway: bool
    began: float

    @property
    def folder(self) -> Path:
        """Of its record, as people call it."""
        return self.record.path

    @property
    def left(self) -> float:
        """Seconds of the time that was given, 0 where it is over."""
        return max(0.0, self.advice.question.seconds - self.spent)

    @property
    def spent(self) -> float:
        return self.advice.seconds + time.monotonic() - self.began

    def say(self, text: str) -> None:
        self.listener(progress.Message(text))

    def keep(self) -> None:
        """Have on disk what is known; the folder is made when the first run has begun."""
        self.advice.seconds, self.began = self.spent, time.monotonic()
        self.put(RECORD, msgspec.json.format(msgspec.json.encode(self.advice), indent=1))

    def put(self, name: str, data: bytes) -> None:
        """Have a file beside the record."""
        self.record.put(name, data)

    def run(self, study: Study, phase: str) -> RunFolder:
        """A phase's run: a new one, or the one that was begun, which somebody may have gone on with to its end."""
        name = f"{phase}_folder"
        begun = getattr(self.advice, name)
        if begun:
            return self._taken_up(study, Path(begun))

        def listener(event: progress.Event) -> None:
            if isinstance(event, progress.Started):  # known as soon as it is there: whoever is killed can go on with it
                setattr(self.advice, name, str(Path(event.folder).absolute()))
                self.keep()
            self.pass_on(event)

        return session.run(study, self.results, listener=listener, anyway=self.anyway, command=self.advice.command)

    def pass_on(self, event: progress.Event) -> None:
        """Tell what a phase's run says, but for how that alone goes on: it is the advice that does."""
        if not isinstance(event, progress.Interrupted):
            self.listener(event)

    def _taken_up(self, study: Study, path: Path) -> RunFolder:
        own(path, f"the run {path}")
        folder = RunFolder(path)
        run = folder.read()
        if questions.asks(run.study) != questions.asks(study):
            raise UserError(f"{path} is no run of this advice", hint="ask for a new advice")
        if run.closed is not None:
            return folder
        return session.resume(path, listener=self.pass_on, anyway=self.anyway)


class InterruptedPhaseError(Exception):
    """A phase was interrupted: what it has measured stays."""


def ended(folder: RunFolder) -> Results:
    """What a phase's run found. Raises InterruptedPhaseError where it has not ended."""
    found = analyze(folder.path)
    if found.state in ("running", "interrupted"):
        raise InterruptedPhaseError
    return found
