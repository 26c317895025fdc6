"""One guest for all attempts of a session: booted once, and then as it is, `attempt.boarding.Boarding`.

What a host's user has, attempts in a machine that has been up: each finds the memory as those before it left it. Knobs
are turned over the state that the guest was found in, as on a host; what an attempt started is gone with its cgroup,
and what backs the guest is proven with each attempt, while it runs. A guest that is gone is not replaced in silence,
since verdicts are for the boot that they come from: the run stops, says why, and keeps what it has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise.attempt.boarding import Backed, Boarded
from hugewise.errors import HugewiseError, MachineError
from hugewise.files import storing
from hugewise.guests.aboard import Aboard, pages_of
from hugewise.guests.boarding import GuestBoarding
from hugewise.machine.foreign import heard
from hugewise.machine.free_memory import free_memory
from hugewise.machine.noise import Snapshot
from hugewise.machine.probe import Event
from hugewise.machine.site import Site
from hugewise.model.trial import Trial
from hugewise.plan.plan import Arm, Cell
from hugewise.study.tables import Slots

__all__ = ["ResidentBoarding"]

_OUTPUTS = "resident"
_SAID = ("console.txt", "qemu.stderr")  # of which an attempt has what was said meanwhile
_SYNC = ("/proc/sysrq-trigger", "s")


@dataclass
class ResidentBoarding:
    """Has one guest, which boots with the first attempt and ends with the session.

    boarding  boots it
    cells     of the plan: the guest's own pools are filled once, for the largest need of any arm
    session   its number in the run; each has another boot
    run       the run's folder, for who is to go on
    """

    boarding: GuestBoarding
    cells: Sequence[Cell]
    session: int
    run: str
    guest: Aboard | None = None
    _began: float = 0.0
    _attempts: int = 0
    _gone: str | None = None
    _said: dict[str, int] = field(default_factory=dict)

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> Boarded:
        """The guest. Raises HugewiseError where it does not boot or is gone, MachineError where it lacks the arm's
        pages.
        """
        guest = self._there(cell, arm)
        guest.must_have(pages_of(cell, arm))
        stay = Stay(self, guest, outputs, self._aged(guest))
        self._attempts += 1
        return stay

    def _there(self, cell: Cell, arm: Arm) -> Aboard:
        if self.guest is None:
            outputs = self.boarding.place.path / _OUTPUTS
            with storing(str(outputs)):
                outputs.mkdir(mode=0o700)
            try:
                self.guest = self.boarding.stay(cell, arm, self.session, outputs, self._pools())
            except MachineError as error:  # no arm's doing
                raise HugewiseError(
                    f"the guest of all attempts did not boot: {error.message}", hint=error.hint
                ) from None
            self._began = time.monotonic()
        assert self.guest.agent is not None
        self.guest.agent.renew()
        self.look()
        if self._gone is not None:
            raise self._lost(self._gone)
        return self.guest

    def _pools(self) -> dict[int, int]:
        wanted: dict[int, int] = {}
        for cell in self.cells:
            for arm in cell.arms:
                for size, pages in pages_of(cell, arm).items():
                    wanted[size] = max(wanted.get(size, 0), pages)
        return wanted

    def look(self) -> None:
        """See whether the guest is there still; of one that is gone QEMU ends, and why is kept with its last words."""
        if self.guest is None or self._gone is not None:
            return
        assert self.guest.agent is not None and self.guest.booted is not None
        if self.guest.agent.ended() or self.guest.booted.ended():
            self._gone = self.guest.agent.give_up("QEMU has ended").message
            self.guest.close()

    def _lost(self, why: str) -> HugewiseError:
        return HugewiseError(
            f"the guest of all attempts is gone after {self._attempts} of them: {why}",
            hint=f"what was measured is kept: hugewise report {self.run}; hugewise resume {self.run} boots another, and"
            " the verdicts are then for both boots",
        )

    def _aged(self, guest: Aboard) -> dict[str, str | int | float]:
        """How old the guest is, and what of its free memory a huge page would fit into."""
        assert guest.agent is not None and guest.arm.kernel is not None
        facts: dict[str, str | int | float] = {
            "resident_boot": guest.agent.hello().boot_id,
            "resident_s": round(time.monotonic() - self._began, 3),
            "resident_attempts": self._attempts,
        }
        found = self.boarding.provided.machine(guest.arm.kernel)
        if not isinstance(found, str) and found.sizes.pmd is not None:
            with heard(guest.agent.name, "its free memory"), suppress(OSError):
                free = free_memory(guest.agent, found.sizes.base, found.sizes.pmd)
                facts |= {"resident_free_bytes": free.all, "resident_free_huge_bytes": free.huge}
        return facts

    def hand_over(self, outputs: Path) -> None:
        """Give an attempt what QEMU was told, and what it and the console have said since the last one ended."""
        assert self.guest is not None
        here = self.guest.hosting.outputs
        with storing(str(outputs)):
            with suppress(FileNotFoundError):
                (outputs / "guest-argv.json").write_bytes((here / "guest-argv.json").read_bytes())
            for name in _SAID:
                with suppress(FileNotFoundError), (here / name).open("rb") as said:
                    said.seek(self._said.get(name, 0))
                    (outputs / name).write_bytes(said.read())
                    self._said[name] = said.tell()

    def end(self) -> None:
        """End the guest with the session."""
        if self.guest is not None:
            self.guest.close()


@dataclass
class Stay:
    """An attempt's time in the guest: `boarding.Boarded`. Nobody else is in it meanwhile."""

    boarding: ResidentBoarding
    guest: Aboard
    outputs: Path
    aged: Mapping[str, str | int | float]
    own = True
    meets = False
    cwd = "/"
    far: None = None
    places: Slots = ()
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.site = self.guest.site

    @property
    def environment(self) -> Mapping[str, str]:
        """Nothing of the caller's."""
        return self.guest.environment

    def look(self, here: Snapshot) -> Snapshot | None:
        """The guest's own counters, of which the attempt has the difference."""
        return self.guest.look(here)

    def flush(self) -> None:
        """Have it write what is still to be written, where its kernel can be told so (sysrq)."""
        assert self.guest.agent is not None
        with suppress(OSError):
            self.guest.agent.write(*_SYNC)

    def instructions(self, events: Sequence[Event]) -> None:
        """A guest that stays does not count them."""

    def leave(self) -> Backed:
        """The proof of what backs the guest now; it stays."""
        found = self.guest.proven(self.outputs)
        self.boarding.look()
        self.boarding.hand_over(self.outputs)
        return msgspec.structs.replace(found, facts={**found.facts, **self.aged})

    def close(self) -> None:
        """It stays, unless it is gone."""
        self.boarding.look()
