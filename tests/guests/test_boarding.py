"""Boarding with everything faked that boots: what QEMU is told, what is kept of a guest, and that nothing stays."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import MachineError
from hugewise.guests import boot, program
from hugewise.guests.accelerator import Choice
from hugewise.guests.backing import Proof
from hugewise.guests.boarding import GuestBoarding
from hugewise.guests.provided import Provided
from hugewise.guests.survey import Survey
from hugewise.host.network import USER
from hugewise.host.pool import Pools
from hugewise.host.scratch import Scratch
from hugewise.model.guest import Backing, Image, Initramfs
from hugewise.model.pages import PageTarget
from hugewise.model.trial import Trial
from hugewise.plan.plan import Arm, Cell
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
    """`boot.Booted`: `proof` is what is found of its memory, `obeys` whether it ends when it is told to."""

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

    def boarding(self, link: Any = None, seed: bytes = bytes(16), **use: Any) -> GuestBoarding:
        provided = Provided(
            use=GuestUse(memory=GIB, cpus=2 if not use.get("counting") else 1, **use),
            arch="x86-64",
            choice=Choice("tcg", "as the study says"),
            image=Image(arch="x86-64", root="/images/i/root.ext4", digest="d" * 64),
            kernels={"k": kernel()},
            surveys={"k": Survey(release="6.12.1", page_size=4096, files={})},
            initramfs={"k": Initramfs(path=str(self.place / "initramfs"), digest="a" * 64)},
        )
        return GuestBoarding(
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


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yard]:
    made = Yard(tmp_path / "place")
    made.place.mkdir()
    (made.place / "initramfs").write_bytes(b"")
    monkeypatch.setattr(boot, "boot", made.boot)
    monkeypatch.setattr(program, "find", lambda _: "/usr/bin/qemu")
    monkeypatch.setattr(program, "version", lambda _: "7.2.22")
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


def test_qemu_is_told_what_the_study_says(yard: Yard, tmp_path: Path) -> None:
    aboard = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / ".b00001-0-shp1g-1")
    ((guest, hosting, timeout),) = yard.boots
    assert (guest.memory, guest.cpus, guest.cpu, guest.accelerator) == (GIB, 2, "max", "tcg")
    assert (guest.backing.pages, guest.append, guest.counting) == ("hugetlb-1g", ("nosoftlockup",), False)
    assert (hosting.cpus, hosting.outputs, timeout) == ((3, 5), tmp_path / ".b00001-0-shp1g-1", None)
    assert hosting.run == yard.place / "g0"
    assert hosting.run.is_dir()
    assert [leaf.name for leaf in yard.leaves] == ["qemu-b00001-0-shp1g-1"]
    site = aboard.site
    assert (site.base_size, site.machine.emulated, site.machine.counters) == (4096, True, False)
    assert site.peer.bind == "127.0.0.1"
    aboard.close()


def test_guests_of_a_block_that_run_together_have_the_cpu_of_their_slot(yard: Yard, tmp_path: Path) -> None:
    for slot in (0, 1):
        yard.boarding().board(cell(together=True), arm(), trial(order=slot, slot=slot), 1, tmp_path / str(slot)).close()
    assert [hosting.cpus for _, hosting, _ in yard.boots] == [(3,), (5,)]
    assert [hosting.run.name for _, hosting, _ in yard.boots] == ["g0", "g1"]


def test_a_backing_has_the_folder_of_its_page_size(yard: Yard, tmp_path: Path) -> None:
    for pages in ("hugetlb-1g", "hugetlb-2m", "thp"):
        yard.boarding().board(cell(), arm(pages), trial(), 1, tmp_path / "x").close()
    assert [hosting.hugetlbfs for _, hosting, _ in yard.boots] == ["/mounted", None, None]


def test_every_attempt_has_a_seed_of_its_own_and_the_same_again(yard: Yard, tmp_path: Path) -> None:
    made = yard.boarding()
    tries = [(1, 0, 1), (1, 1, 1), (2, 0, 1), (1, 0, 2), (1, 0, 1)]
    for block, order, number in tries:
        made.board(cell(), arm(), trial(block, order), number, tmp_path / "x").close()
    seeds = [guest.seed for guest, _, _ in yard.boots]
    assert len(set(seeds)) == len(tries) - 1
    assert seeds[0] == seeds[-1]
    assert all(0 <= seed < 1 << 53 for seed in seeds)


def test_runs_of_one_seed_have_guests_of_the_same_seeds_and_others_have_others(yard: Yard, tmp_path: Path) -> None:
    for seed in (b"one", b"one", b"another"):
        yard.boarding(seed=seed).board(cell(), arm(), trial(), 1, tmp_path / "x").close()
    one, again, other = (guest.seed for guest, _, _ in yard.boots)
    assert one == again != other


def test_a_guest_with_a_network_is_given_its_address_and_sees_this_host(yard: Yard, tmp_path: Path) -> None:
    aboard = yard.boarding(USER, network="user").board(cell(), arm(), trial(), 1, tmp_path / "x")
    (told,) = [heard for heard in yard.booted[0].guest.heard if heard["do"] == "network"]
    assert (told["interface"], told["address"]) == (USER.interface, USER.address)
    assert (aboard.site.peer.bind, aboard.site.peer.address) == (USER.bind, USER.host)
    assert yard.boots[0][0].network == "user"
    aboard.close()


def test_what_a_guest_was_is_kept_with_the_proof_of_its_memory(yard: Yard, tmp_path: Path) -> None:
    aboard = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = aboard.leave()
    assert backed.problem is None
    facts = backed.facts
    assert (facts["backing"], facts["backing_share"], facts[f"backing_hugetlb:{GIB}"]) == ("hugetlb-1g", 1.0, GIB)
    assert (facts["accelerator"], facts["qemu"], facts["cpu_model"]) == ("tcg", "7.2.22", "max,-cx16")
    assert (facts["kernel"], facts["kernel_sha256"], facts["image"]) == ("k", "0" * 64, "d" * 64)
    assert (facts["initramfs_sha256"], yard.images) == ("a" * 64, [yard.place / "initramfs"])
    assert facts["guest_seed"] == yard.boots[0][0].seed
    assert "ended" not in facts
    aboard.close()


def test_a_guest_without_its_backing_is_a_problem(yard: Yard, tmp_path: Path) -> None:
    why = "512 MiB of 1 GiB are base pages"
    yard.proof, yard.obeys = msgspec.structs.replace(PROVEN, accepted=False, share=0.5, why=why), False
    aboard = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = aboard.leave()
    assert backed.problem == f"backing hugetlb-1g: {why}"
    assert backed.facts["ended"] == "killed: it did not end when it was told to"
    aboard.close()


def test_one_that_is_gone_before_its_proof_is_known_all_the_same(yard: Yard, tmp_path: Path) -> None:
    yard.proof = MachineError("QEMU's smaps cannot be read")
    aboard = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    backed = aboard.leave()
    assert "cannot be read" in (backed.problem or "")
    assert backed.facts["kernel_release"] == "6.12.1"
    assert "backing_share" not in backed.facts
    aboard.close()


def test_close_ends_everything_and_may_be_called_again(yard: Yard, tmp_path: Path) -> None:
    aboard = yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    aboard.close()
    aboard.close()
    (booted,) = yard.booted
    assert booted.stopped >= 1
    assert aboard.agent is not None
    assert aboard.agent.ended()
    assert yard.leaves[0].acts[:2] == ["kill", "remove"]


def test_a_guest_that_does_not_boot_leaves_nothing(yard: Yard, tmp_path: Path) -> None:
    yard.refuses = MachineError("the guest did not say hello\n  console: Kernel panic")
    with pytest.raises(MachineError, match="Kernel panic"):
        yard.boarding().board(cell(), arm(), trial(), 1, tmp_path / "x")
    assert yard.leaves[0].acts == ["kill", "remove"]


def test_a_guest_that_lacks_pages_for_its_workload_is_refused_with_its_console(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pools, "fill", lambda *_: {2 << 20: 3})
    used = workloads()["fault"]
    monkeypatch.setattr(used, "pool", lambda *_: 8 << 20, raising=False)
    pool = msgspec.structs.replace(arm().treatment, target=PageTarget("hugetlb", 2 << 20))
    wanted = msgspec.structs.replace(cell(), workload=used)
    with pytest.raises(MachineError, match=r"needs 4 pages of 2m; its kernel granted 3(.|\n)*the last line"):
        yard.boarding().board(wanted, msgspec.structs.replace(arm(), treatment=pool), trial(), 1, tmp_path / "x")
    assert yard.booted[0].stopped == 1


def test_one_that_counts_is_booted_with_all_its_orders(yard: Yard, tmp_path: Path) -> None:
    outputs = tmp_path / "x"
    outputs.mkdir()
    aboard = yard.boarding(counting=True, settle=10.0).board(cell(), arm(), trial(), 1, outputs)
    assert yard.boots == []
    site = aboard.site
    assert (site.contain("sut").procs_files, site.machine.cpus(), site.base_size) == ((), (0,), 4096)
    with pytest.raises(MachineError, match="it has no folder /dev/shm"):
        site.scratch("/dev/shm")
    never = aboard.leave()  # nothing was launched in it
    assert never.problem == "it was never booted"
    assert never.facts == {}
    orders = b'{"id":1,"do":"settle","seconds":1}\n'
    assert aboard._boot(orders).hello().release == "6.12"
    # Not in the cache, as it is of this attempt alone; nor where QEMU's account could put a link in its place.
    assert yard.images[0] == outputs / "initramfs.orders"
    assert orders in yard.contents[0]
    assert list(outputs.iterdir()) == []  # gone once it has booted
    ((guest, hosting, timeout),) = yard.boots
    assert guest.counting
    assert hosting.cpus == (5,)  # one CPU, or QEMU's threads would race for its clock
    assert timeout is not None
    assert timeout > cell().timeout  # it says hello when its orders are done
    aboard.close()
