"""What a played scene left behind, for the workload that reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hugewise.attempt import believed
from hugewise.attempt.stage import Stage
from hugewise.model.scene import Part, RoleUse

__all__ = ["Played"]


@dataclass
class Played:
    """What an attempt left behind: `hugewise.model.scene.Outputs`."""

    stage: Stage
    begin: float
    end: float
    sut: RoleUse
    client: RoleUse
    parts: tuple[Part, ...]

    def stdout(self, step: str = "timed") -> str:
        """What a step said."""
        # Of a micro-workload the probe's JSON Lines.
        return self._said(f"{step}.stdout", *(("stdout", "events.jsonl") if step == "timed" else ()))

    def stderr(self, step: str = "timed") -> str:
        """What a step said on stderr."""
        return self._said(f"{step}.stderr", *(("stderr",) if step == "timed" else ()))

    def _said(self, *names: str) -> str:
        """What stands in the first of these files that has anything. Raises UnreadableError."""
        return next(filter(None, (believed.said(self.stage.outputs / name) for name in names)), "")

    def files(self, pattern: re.Pattern[str]) -> Iterator[bytes]:
        """Regular files by name: of the run folder, or of the clients' own where they are elsewhere."""
        far = self.stage.far
        if far is not None:
            return far.machine.files(far.folder, pattern)
        return self.stage.machine.files(self.stage.places.run, pattern)
