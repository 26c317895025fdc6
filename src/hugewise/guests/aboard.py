"""A guest that was boarded: booted, made ready for policies, proven, ended. It knows what it was."""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hugewise.attempt import emulation
from hugewise.attempt.boarding import Backed
from hugewise.errors import HugewiseError, MachineError
from hugewise.guests import boot, initramfs, own_image, program, qemu
from hugewise.guests.backing import Proof
from hugewise.guests.boot import Booted, Hosting
from hugewise.guests.counted import CountingKnobs, CountingMachine
from hugewise.guests.knobs import GuestSettings, OwnSettings
from hugewise.guests.leaf import Groups
from hugewise.guests.nfs import Export
from hugewise.guests.orders import NAME
from hugewise.guests.provided import Provided
from hugewise.host.network import Link
from hugewise.host.pool import Pools
from hugewise.host.scratch import discard
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.machine.machine import Contained, Folders
from hugewise.machine.noise import Snapshot, snapshot
from hugewise.machine.probe import Event
from hugewise.machine.remote import RemoteMachine
from hugewise.machine.remote_folders import RemoteFolders
from hugewise.machine.site import Site
from hugewise.model.guest import Guest, Initramfs
from hugewise.model.scene import Peer
from hugewise.plan.plan import Arm, Cell
from hugewise.quantity import format_size
from hugewise.study.guest import NFS
from hugewise.study.tables import Slots

__all__ = ["Aboard", "pages_of"]

_SERVED, _SCRATCH = "/nfs", "/run/hugewise-scratch"  # in the guest: by NFS, and on its tmpfs


def pages_of(cell: Cell, arm: Arm) -> dict[int, int]:
    """Pages of the guest's own pools that the workload takes under the arm, by their size in bytes."""
    size = arm.treatment.target.size
    pool = cell.workload.pool(arm.treatment, cell.given(arm))
    return {size: -(-pool // size)} if pool and size else {}


@dataclass
class Aboard:
    """One guest: `boarding.Boarded`. It is the attempt's alone, with all that runs in it.

    export   the host's folder that it mounts
    pools    pages that its own pools are filled with when it has booted, by size in bytes
    stays    it is for more attempts than one
    granted  how many of these pages its kernel gave
    """

    provided: Provided
    export: Export | None
    cell: Cell
    arm: Arm
    guest: Guest
    hosting: Hosting
    link: Link | None
    name: str
    pools: Mapping[int, int]
    stays: bool = False
    booted: Booted | None = None
    agent: Agent | None = None
    granted: dict[int, int] = field(default_factory=dict)
    own = True
    meets = False
    cwd = "/"
    far: None = None
    places: Slots = ()  # QEMU as a whole has its slot
    site: Site = field(init=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """Nothing of the caller's."""
        return self.site.machine.environment

    def look(self, here: Snapshot) -> Snapshot | None:
        """One that counts must not be looked at."""
        if self.guest.counting:
            return None
        with heard(f"guest {self.name}", "what its kernel counts"):
            return snapshot(self.site.host)

    def flush(self) -> None:
        """It is new: all that matters of its pages is written."""

    def instructions(self, events: Sequence[Event]) -> int | None:
        """Of one that counts."""
        return emulation.instructions(events) if self.guest.counting else None

    @property
    def initramfs(self) -> Initramfs:
        """What its kernel starts."""
        assert self.arm.kernel is not None
        return self.provided.initramfs[self.arm.kernel]

    def begin(self) -> None:
        """Boot it and make it ready for policies; one that counts boots when all its orders are known."""
        with heard(f"guest {self.name}", "what it said when it had booted"):
            self.site = self._counting() if self.guest.counting else self._live()

    def _boot(self, orders: bytes | None = None) -> Agent:
        image = Path(self.initramfs.path)
        timeout = self.provided.use.boot
        with ExitStack() as at_end:
            if orders is not None:
                # Below what is the caller's: in the folder of the guest's own account that account chooses what is read
                # and written there. It is large, and nobody needs it once it has booted.
                ordered = self.hosting.outputs / "initramfs.orders"
                at_end.callback(discard, str(ordered))
                image = initramfs.extended(image, {NAME: orders}, ordered)
                timeout = self._until_done  # it says hello when its orders are done
            qemu = program.find(self.guest.arch, self.provided.use.qemu)
            self.booted = boot.boot(self.guest, image, self.hosting, program=qemu, timeout=timeout)
        self.agent = Agent(self.booted.agent, f"guest {self.name}", self.booted.error)
        return self.agent

    @property
    def _until_done(self) -> float:
        """Seconds in which one that counts has booted and done all that it was told."""
        return (self.provided.use.boot or boot.PATIENCE_S["tcg"]) + self.cell.timeout

    def _counting(self) -> Site:
        assert self.arm.kernel is not None
        survey = self.provided.surveys[self.arm.kernel]
        assert not isinstance(survey, str)
        settle, patience = self.provided.use.settle, self._until_done + boot.filling_s(self.guest)
        machine = CountingMachine(survey, f"guest {self.name}", self._boot, settle=settle, patience=patience)
        return Site(
            machine=machine,
            knobs=CountingKnobs(machine),
            contain=lambda _: Contained(),
            scratch=_no_folders,
            source="kpageflags",
            base_size=survey.page_size,
        )

    def _live(self) -> Site:
        agent = self._boot()
        assert self.booted is not None
        hello = agent.hello()
        agent.watch()
        machine = RemoteMachine(agent, emulated=self.provided.emulated)
        if self.link is not None:
            agent.network(self.link.interface, self.link.address, self.link.prefix)
        if self.export is not None:
            assert self.link is not None
            self.export.mount(agent, self.link, self.name, _SERVED)
        with suppress(OSError):  # the guest is nobody else's
            machine.host.write("/proc/sys/kernel/perf_event_paranoid", "0")
        own_image.put(agent, self.provided.use, self.guest.image)
        settings = OwnSettings(machine.host) if self.stays else GuestSettings(machine.host)
        if self.pools:
            self.granted = Pools(settings).fill(self.pools)
        nobody = pwd.getpwnam("nobody")
        return Site(
            machine=machine,
            knobs=settings,
            contain=Groups(machine).create,
            scratch=lambda place: RemoteFolders.open(
                machine, f"{_SERVED}/{self.name}" if place == NFS else _SCRATCH, nobody.pw_uid, nobody.pw_gid
            ),
            source="kpageflags",
            base_size=hello.page_size,
            peer=Peer() if self.link is None else Peer(bind=self.link.bind, address=self.link.host),
        )

    def must_have(self, pages: Mapping[int, int]) -> None:
        """That its kernel granted these pages. Raises MachineError."""
        for size, wanted in pages.items():
            if (granted := self.granted.get(size, 0)) < wanted:
                assert self.booted is not None
                told = f"the guest needs {wanted} pages of {format_size(size)}; its kernel granted {granted}"
                raise self.booted.error(told)

    def leave(self) -> Backed:
        """The proof of what backs its memory, taken while it still runs; then it is ended."""
        if self.booted is None:
            return Backed({}, "it was never booted")
        found = self.proven(self.hosting.outputs)
        if self.booted.stop():
            return found
        return Backed({**found.facts, "ended": "killed: it did not end when it was told to"}, found.problem)

    def proven(self, outputs: Path) -> Backed:
        """What it is, and the proof of what backs its memory now; the mappings are kept in `outputs`."""
        assert self.booted is not None
        guest = self.guest
        try:
            proof: Proof | MachineError = self.booted.prove(outputs)
        except MachineError as error:  # it is gone: what it was is known all the same
            proof = error
        facts: dict[str, str | int | float] = {
            "accelerator": guest.accelerator,
            "qemu": program.version(program.find(guest.arch, self.provided.use.qemu)),
            "cpu_model": qemu.cpu_model(guest),
            "guest_seed": guest.seed,
            "guest_memory_bytes": guest.memory,
            "guest_cpus": guest.cpus,
            "kernel": guest.kernel.name,
            "kernel_release": guest.kernel.release,
            "kernel_sha256": guest.kernel.digest,
            "kernel_origin": guest.kernel.origin,
            "initramfs_sha256": self.initramfs.digest,
            "backing": guest.backing.pages,
        }
        if guest.image.drive:
            facts["image"] = guest.image.digest
        if isinstance(proof, MachineError):
            return Backed(facts, f"backing {guest.backing.pages}: {proof.message}")
        facts |= {"backing_share": proof.share, "backing_proof": proof.why}
        facts |= {f"backing_{kind}": size for kind, size in proof.bytes.items()}
        facts |= {f"kvm_mapped_{size}": mapped for size, mapped in (proof.kvm or {}).items()}
        facts |= {} if proof.kvm_share is None else {"kvm_share": proof.kvm_share}
        return Backed(facts, None if proof.accepted else f"backing {guest.backing.pages}: {proof.why}")

    def close(self) -> None:
        """End it at once, whatever happened."""
        if self.agent is not None:
            self.agent.close()
        if self.booted is not None:
            with suppress(HugewiseError):
                self.booted.stop()
        self.hosting.leaf.kill()
        self.hosting.leaf.remove()


def _no_folders(place: str) -> Folders:
    raise MachineError(f"a guest that counts runs micro-workloads alone: it has no folder {place}")
