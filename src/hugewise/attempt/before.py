"""A command that is run before each attempt of another, outside its timed region: it clears what a run left behind."""

from __future__ import annotations

import pwd
import shlex
from dataclasses import dataclass
from pathlib import Path

from hugewise.attempt import believed, outcome
from hugewise.attempt.play import Surroundings
from hugewise.errors import UserError
from hugewise.files import storing
from hugewise.host.local_machine import apart, groups_of
from hugewise.machine import probe, serving
from hugewise.machine.machine import Machine

__all__ = ["Before"]

_LAST_LINES = 3
_HINT = "it must end with status 0 whenever it is run (rm -f, mkdir -p), without a terminal; no shell reads it"


@dataclass(frozen=True)
class Before:
    """A command before another: as the same account, in the same folder, with the same environment but for what the
    treatment puts there. What it leaves running is ended with it.

    outputs  the attempt's folder, for what it says
    timeout  seconds that it has
    """

    argv: tuple[str, ...]
    machine: Machine
    outputs: Path
    account: pwd.struct_passwd | None
    timeout: float

    def __call__(self, around: Surroundings) -> None:
        """Run it to its end. Raises UserError where it fails, ProbeError."""
        environment, cwd, cpus = around
        who = self.account
        spec = probe.Spec(
            argv=self.argv,
            env=environment,
            cwd=cwd,
            stdout=str(self.outputs / "prepare.stdout"),
            stderr=str(self.outputs / "prepare.stderr"),
            uid=None if who is None else who.pw_uid,
            gid=None if who is None else who.pw_gid,
            cpus=cpus,
            timeout_s=self.timeout,
            limits=probe.Limits(rooms=(cwd,)),
            own_ipc=apart(self.machine, who),
            groups=groups_of(self.machine, who),
        )
        job = probe.Job.below(self.outputs, "prepare", spec)
        with storing(str(self.outputs)):
            serving.run([(self.machine, job)])
        if (why := self._failed(job)) is not None:
            raise UserError(f"the command that prepares an attempt fails: {shlex.join(self.argv)}: {why}", hint=_HINT)

    def _failed(self, job: probe.Job) -> str | None:
        """Why it did not do its work, with its last lines; None where it did."""
        events = serving.events(job)
        ended = outcome.last(events, probe.Exit)
        if ended is None:
            said = outcome.last(events, probe.Error)
            return "it did not start" if said is None else said.message
        if ended.timed_out:
            return f"it has not ended after {self.timeout:g} s"
        if ended.exceeded is None and ended.code == 0:
            return None
        how = ended.exceeded or (f"signal {ended.signal}" if ended.code is None else f"exit status {ended.code}")
        for stream in ("stderr", "stdout"):
            if lines := believed.last_lines(self.outputs / f"prepare.{stream}", _LAST_LINES):
                return f"{how}: {' | '.join(lines)[:600]}"
        return how
