"""What an attempt left behind, for tests of `read`: recorded outputs without the attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hugewise.model.scene import RoleUse

__all__ = ["NOT_COUNTED", "Said"]

NOT_COUNTED = RoleUse()


class Said:
    """Texts by step (`timed` is the timed command), and files of `places.run` by name."""

    def __init__(
        self,
        stdout: Mapping[str, str],
        *,
        stderr: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        sut: RoleUse = NOT_COUNTED,
        client: RoleUse = NOT_COUNTED,
        seconds: float = 1.0,
    ) -> None:
        self._stdout, self._stderr, self._files = stdout, stderr or {}, files or {}
        self.begin, self.end = 1000.0, 1000.0 + seconds
        self.sut, self.client = sut, client

    def stdout(self, step: str = "timed") -> str:
        return self._stdout[step]

    def stderr(self, step: str = "timed") -> str:
        return self._stderr.get(step, "")

    def files(self, pattern: re.Pattern[str]) -> Iterable[bytes]:
        return [self._files[name] for name in sorted(self._files) if pattern.fullmatch(name)]
