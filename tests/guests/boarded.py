"""What boards guests, with everything faked that boots."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError
from hugewise.guests import boot, hypervisor
from hugewise.guests.backing import Proof
from hugewise.guests.counted import Survey
from hugewise.guests.hypervisor import Choice
from hugewise.guests.machines import GuestPerAttempt
from hugewise.guests.resources import GuestResources
from hugewise.host.scratch import Scratch
from hugewise.model.guest import Backing, Image, Initramfs
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Trial
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.study.guest import GuestUse
from tests.build.agents import HELLO, FakeGuest
from tests.build.guests import kernel
from tests.build.studies import an_arm, cell_of, workloads

GIB = 1 << 30
TARGET = PageTarget("base", 4096)
PROVEN = Proof(
    promised="hugetlb-1g", memory=GIB, resident=GIB, bytes={f"hugetlb:{GIB}": GIB}, share=1.0, accepted=True, why="all"
)


def answer(request: dict[str, Any]) -> bytes:
    """A guest in which nothing is there, and everything can be done."""
    if request["do"] == "names":
        return b'{"id":ID,"ok":{"names":[]}}\n'
    if request["do"] == "read":
        return b'{"id":ID,"error":{"errno":2,"message":"No such file or directory"}}\n'
    return b'{"id":ID,"ok":{}}\n'


class FakeBooted:
    """`boot.BootedGuest`: `proof` is what is found of its memory, `obeys` whether it ends when it is told to."""

    def __init__(self, proof: Proof | MachineError, *, obeys: bool) -> None:
        self.proof, self.obeys, self.stopped = proof, obeys, 0
        self.agent, theirs = socket.socketpair()
        self.guest = FakeGuest(theirs, answer)
        self.guest.say(HELLO)

    def prove(self) -> Proof:
        if isinstance(self.proof, MachineError):
            raise self.proof
        return self.proof

    def stop(self) -> bool:
        self.stopped += 1
        return self.obeys

    def error(self, message: str) -> MachineError:
        return MachineError(f"{message}\n  console: the last line")


@dataclass
class Leaf:
    """`machine.Contained` of QEMU."""

    name: str
    acts: list[str] = field(default_factory=list)

    def kill(self) -> int:
        self.acts.append("kill")
        return 0

    def remove(self) -> None:
        self.acts.append("remove")


@dataclass
class Yard:
    """What was booted, with what, and in which cgroups."""

    place: Path
    proof: Proof | MachineError = PROVEN
    obeys: bool = True
    refuses: MachineError | None = None
    boots: list[tuple[Any, boot.Hosting, float | None]] = field(default_factory=list)
    images: list[Path] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    booted: list[FakeBooted] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)

    def boot(self, guest: Any, image: Path, hosting: boot.Hosting, *, program: str, timeout: float | None) -> Any:
        self.boots.append((guest, hosting, timeout))
        self.images.append(image)
        self.contents.append(image.read_bytes() if image.exists() else b"")
        if self.refuses is not None:
            raise self.refuses
        self.booted.append(FakeBooted(self.proof, obeys=self.obeys))
        return self.booted[-1]

    def contain(self, name: str) -> Any:
        self.leaves.append(Leaf(name))
        return self.leaves[-1]

    def boarding(self, link: Any = None, seed: bytes = bytes(16), **use: Any) -> GuestPerAttempt:
        provided = GuestResources(
            use=GuestUse(memory=GIB, cpus=2 if not use.get("counting") else 1, **use),
            arch="x86-64",
            choice=Choice("tcg", "as the study says"),
            image=Image(arch="x86-64", root="/images/i/root.ext4", digest="d" * 64),
            kernels={"k": kernel()},
            surveys={"k": Survey(release="6.12.1", page_size=4096, files={})},
            initramfs={"k": Initramfs(path=str(self.place / "initramfs"), digest="a" * 64)},
        )
        return GuestPerAttempt(
            provided=provided,
            place=Scratch(self.place, None, None),
            account=None,
            contain=self.contain,
            slots=((3,), (5,)),
            link=lambda _: link,
            hugetlbfs={GIB: "/mounted"},
            append={"k": ("nosoftlockup",)},
            seed=seed,
        )


@contextmanager
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    made = Yard(tmp_path / "place")
    made.place.mkdir()
    (made.place / "initramfs").write_bytes(b"")
    monkeypatch.setattr(boot, "boot", made.boot)
    monkeypatch.setattr(hypervisor, "find_qemu", lambda *_: "/usr/bin/qemu")
    monkeypatch.setattr(hypervisor, "qemu_version", lambda _: "7.2.22")
    yield made
    for each in made.booted:
        each.agent.close()
        each.guest.end()


def arm(pages: Any = "hugetlb-1g") -> Arm:
    return msgspec.structs.replace(an_arm("shp1g", TARGET, kernel="k"), backing=Backing(pages=pages))


def cell(*, together: bool = False) -> Cell:
    return cell_of(workloads()["fault"], arm(), together=together)


def trial(block: int = 1, order: int = 0, slot: int = 1) -> Trial:
    return Trial(block=block, cell="fault", arm="shp1g", order=order, slot=slot, environment_pad=0)
