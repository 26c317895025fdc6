"""The page settings of a guest: turned by the rules of `hugewise.host.setting`, and journalled nowhere.

A guest is thrown away with what was turned in it, so nothing is put back.
"""

from __future__ import annotations

from collections.abc import Mapping

from hugewise.host import knob
from hugewise.host.ledger import JournalRecord
from hugewise.host.setting import Settings
from hugewise.machine.drift import Drift
from hugewise.machine.foreign import heard
from hugewise.model.host import Host

__all__ = ["GuestSettings", "OwnSettings"]

_WHAT = "its page settings"


class _Forgotten:
    """A `ledger.Log` that keeps nothing."""

    def append(self, record: JournalRecord, *, sync: bool = True) -> None:
        """Nothing of a guest has to be found again."""

    def keep_open(self) -> None:
        """There is no next call."""


class GuestSettings(Settings):
    """The knobs of a guest; its pools are filled by `hugewise.host.pool` as on the host.

    What it says of them that no kernel says is a MachineError.
    """

    def __init__(self, host: Host) -> None:
        with heard(host.name, _WHAT):
            super().__init__(host, _Forgotten())

    def drift(self) -> list[Drift]:
        with heard(self.host.name, _WHAT):
            return super().drift()

    def apply(self, wanted: Mapping[str, str]) -> list[Drift]:
        with heard(self.host.name, _WHAT):
            return super().apply(wanted)


class OwnSettings(GuestSettings):
    """The knobs of a guest that stays. Nobody else is in it: what an attempt's own program turned is turned back."""

    def apply(self, wanted: Mapping[str, str]) -> list[Drift]:
        """Make `wanted` hold over the state of the start. Raises SettingError."""
        with heard(self.host.name, _WHAT):
            if turned := {each.path: each.expected for each in self.drift() if each.found is not None}:
                knob.turn(self.host, turned)
        return super().apply(wanted)
