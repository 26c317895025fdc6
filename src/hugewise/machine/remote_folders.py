"""Private folders of an attempt in a place of another machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hugewise.machine.foreign import heard
from hugewise.machine.remote import RemoteMachine

__all__ = ["RemoteFolders"]


@dataclass(frozen=True)
class RemoteFolders:
    """`machine.Folders` of another machine; `owner` and `group` are whom the attempts run as (None: root)."""

    machine: RemoteMachine
    path: Path
    owner: int | None
    group: int | None

    @classmethod
    def open(cls, machine: RemoteMachine, place: str, owner: int | None, group: int | None) -> RemoteFolders:
        """The folders in `place`, which is made unless it is there. Raises StorageError."""
        machine.make(place, 0o711)
        return cls(machine, Path(place), owner, group)

    def folder(self, name: str) -> Path:
        """A fresh, empty folder of that name for the account. Raises StorageError."""
        path = self.path / name
        self.machine.folder(str(path), self.owner, self.group)
        return path

    def within(self, name: str) -> RemoteFolders:
        """The same in a folder of that name. Raises StorageError."""
        return RemoteFolders.open(self.machine, str(self.path / name), self.owner, self.group)

    def clear(self) -> None:
        """Remove what is inside; a machine that is gone has taken it along. Raises MachineError, StorageError."""
        if self.machine.agent.ended():
            return
        with heard(self.machine.agent.name, f"the files in {self.path}"):
            names = self.machine.agent.names(str(self.path))
        for name in names:
            self.machine.remove(str(self.path / name))
