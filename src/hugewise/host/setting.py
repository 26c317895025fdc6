"""The page settings of a run: turned by batches, journalled first, and never against somebody else in silence.

A treatment's knobs are meant over the state that was found at the start: a knob that an earlier arm turned and this
one does not name goes back to its original value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from hugewise.errors import SettingError, StorageError
from hugewise.host import knob
from hugewise.host.ledger import Intent, JournalRecord, KnobTurn, Ledger, Log, Turned, TurnedBeside, Yielded
from hugewise.machine.drift import Drift
from hugewise.model.host import Host

__all__ = ["Settings"]


class Settings:
    """The knobs of `host` during one run. Without a journal (an ordinary user) nothing can be turned."""

    def __init__(self, host: Host, journal: Log | None) -> None:
        self.host = host
        self.ledger = Ledger()
        self.initial = knob.knobs(host)
        self._journal = journal
        self._expected = dict(self.initial)
        self._seen = dict(self.initial)

    def values(self) -> Mapping[str, str]:
        """Every knob's value when `apply`, `drift` or `restore` last looked."""
        return dict(self._seen)

    def drift(self) -> list[Drift]:
        """Knobs that differ from what hugewise last wrote, or saw at the start where it wrote nothing."""
        found = knob.differing(self.host, self._expected)
        self._seen = self._expected | {each.path: each.found or "(gone)" for each in found}
        return found

    def apply(self, wanted: Mapping[str, str]) -> list[Drift]:
        """Make `wanted` hold over the state of the start, turning only what differs.

        Returns the drift that was there before, and turns nothing when there is any. Raises SettingError when a knob
        is unknown here or the kernel does not take a value, StorageError when the journal cannot be written.
        """
        self._check(wanted)
        if found := self.drift():
            return found
        target = {path: self.initial[path] for path in self.ledger.turned}
        target |= {path: knob.canonical(value) for path, value in wanted.items()}
        changes = {path: value for path, value in target.items() if self._expected[path] != value}
        if not changes:
            return []
        if self._journal is None:
            raise SettingError(f"cannot set {next(iter(changes))}: only root turns knobs", hint="run it with sudo")
        if not self.ledger.beside:
            self.note(TurnedBeside(knob.beside(self.host)), sync=False)
        self.note(Intent(tuple(KnobTurn(path, self._expected[path], value) for path, value in changes.items())))
        try:
            knob.turn(self.host, changes)
        except SettingError:
            missed = {each.path: each.found for each in knob.differing(self.host, changes)}
            self._expected |= {path: value for path, value in changes.items() if path not in missed}
            raise
        self._expected |= changes
        self._seen = dict(self._expected)
        self.note(Turned(), sync=False)
        return []

    def _check(self, wanted: Iterable[str]) -> None:
        for path in wanted:
            if path not in self.initial:
                near = difflib.get_close_matches(path, self.initial, n=3)
                raise SettingError(
                    f"{path}: this machine has no such page setting",
                    hint=f"near: {', '.join(near)}" if near else "see: hugewise doctor",
                )

    def acknowledge(self, drifts: Iterable[Drift]) -> None:
        """Take what others wrote as the state to go on from and to go back to, after it was named to the user."""
        for each in drifts:
            if each.found is None:
                raise SettingError(f"{each.path} is gone: this machine changed under the run")
            if self._journal is not None:
                self.note(Yielded(each.path, each.found))
            self.initial[each.path] = self._expected[each.path] = each.found

    def expect(self, values: Mapping[str, str]) -> None:
        """Take `values` as hugewise's own from now on; for pools, which are filled apart from the treatments."""
        self._expected |= values
        self._seen |= values

    def expected(self, path: str) -> str | None:
        """What the knob should hold."""
        return self._expected.get(path)

    def note(self, record: JournalRecord, *, sync: bool = True) -> None:
        """Journal a record, then take it into account."""
        if self._journal is not None:
            self._journal.append(record, sync=sync)
        self.ledger.add(record)

    def note_return(self, record: JournalRecord) -> None:
        """The same while putting back: a full disk must not keep the host from being restored."""
        with suppress(StorageError):
            if self._journal is not None:
                self._journal.append(record)
        self.ledger.add(record)

    @contextmanager
    def closing_only_when_done(self) -> Iterator[None]:
        """Whatever fails inside keeps the journal open, for the next root call to try again."""
        try:
            yield
        except BaseException:
            if self._journal is not None:
                self._journal.keep_open()
            raise

    def restore(self) -> list[Drift]:
        """Put back every knob that still holds what hugewise wrote, the last turned first; the others are returned.

        Idempotent. Raises SettingError when the kernel refuses a value.
        """
        with self.closing_only_when_done():
            back, left = knob.put_back(self.host, self.ledger.turned, self.ledger.beside)
        self.ledger.beside = {}
        self._expected |= {path: value for path, value in back.items() if path in self._expected}
        kept = {each.path for each in left}
        self.ledger.turned = {path: turned for path, turned in self.ledger.turned.items() if path in kept}
        self._seen = knob.knobs(self.host)
        return left
