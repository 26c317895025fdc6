"""Boots a guest for each attempt, and gives it up after it: `attempt.boarding.Boarding`."""

from __future__ import annotations

import hashlib
import pwd
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from hugewise.attempt import emulation
from hugewise.attempt.boarding import Backed
from hugewise.errors import HugewiseError, MachineError, UserError
from hugewise.guests import boot, initramfs, program, qemu
from hugewise.guests.backing import Proof
from hugewise.guests.boot import Booted, Hosting
from hugewise.guests.counted import CountingKnobs, CountingMachine
from hugewise.guests.hosting import private_folder, qemu_account
from hugewise.guests.knobs import GuestSettings
from hugewise.guests.leaf import Groups
from hugewise.guests.nfs import Export, serve
from hugewise.guests.orders import NAME
from hugewise.guests.provided import Provided
from hugewise.host.hugetlbfs import HugetlbMount
from hugewise.host.ledger import JournalRecord, Mounted
from hugewise.host.local_machine import LocalMachine
from hugewise.host.network import USER, Bridge, Link
from hugewise.host.pool import Pools
from hugewise.host.scratch import Scratch, discard
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.machine.machine import Contained, Folders
from hugewise.machine.noise import Snapshot, snapshot
from hugewise.machine.probe import Event
from hugewise.machine.remote import RemoteMachine
from hugewise.machine.remote_folders import RemoteFolders
from hugewise.machine.site import Site
from hugewise.model.guest import PAGE_OF, Backing, Guest, Initramfs, Kernel
from hugewise.model.scene import Peer
from hugewise.model.trial import Trial
from hugewise.plan.plan import Arm, Cell
from hugewise.quantity import format_size
from hugewise.study.guest import NFS
from hugewise.study.study import Study
from hugewise.study.tables import Slots

__all__ = ["GuestBoarding"]

_BOOT_S = 120.0
_SERVED, _SCRATCH = "/nfs", "/run/hugewise-scratch"  # in the guest: by NFS, and on its tmpfs
_SEEDS = b"hugewise/guest/1"


@dataclass(frozen=True)
class GuestBoarding:
    """What the guests of a session share on this host.

    place      private folder of the session, for sockets
    account    whom QEMU runs as; None: as the caller
    contain    makes cgroups
    slots      CPUs of each slot of the design, of which each guest of a block that runs together has its own
    link       the network of the guest in a slot
    export     the folder that is served to them by NFS
    hugetlbfs  folders of mounted hugetlbfs by page size in bytes, for backings by file
    append     words of a kernel's command line, by the kernel's name in the study
    seed       the run's, of which those of the guests are made
    """

    provided: Provided
    place: Scratch
    account: pwd.struct_passwd | None
    contain: Callable[[str], Contained]
    slots: Slots
    link: Callable[[int], Link | None]
    export: Export | None = None
    hugetlbfs: dict[int, str] = field(default_factory=dict)
    append: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seed: bytes = b""

    @classmethod
    def open(
        cls,
        study: Study,
        provided: Provided,
        contain: Callable[[str], Contained],
        closing: ExitStack,
        note: Callable[[JournalRecord], None],
        *,
        seed: bytes,
        privileged: bool,
    ) -> GuestBoarding:
        """Make what guests share; `closing` undoes it, `note` (the journal) hears of it before. Raises UserError.

        `seed` is the run's.
        """
        use, who = provided.use, qemu_account(privileged=privileged)
        place = private_folder(who, note)
        closing.callback(discard, str(place.path))
        links: Callable[[int], Link | None] = lambda _: USER if use.network == "user" else None  # noqa: E731
        if use.network == "tap":
            owner = None if who is None else who.pw_uid
            links = closing.enter_context(Bridge.open(max(1, len(study.design.slots)), owner, note)).link
        export, link = None, links(0)
        if use.nfs:
            if who is None or link is None:
                raise UserError("nfs = true needs root and a network", hint='sudo hugewise ...; network = "user"')
            export = closing.enter_context(serve(place, link, who))
        mounts = {}
        for page in sorted({_page(use.backed_by) for use in study.policies if use.backed_by.source == "file"}):
            mount = HugetlbMount.open(page, who, lambda path: note(Mounted(path)))
            mounts[page] = closing.enter_context(mount).path
        return cls(
            provided=provided,
            place=place,
            account=who,
            contain=contain,
            slots=study.design.places,
            link=links,
            export=export,
            hugetlbfs=mounts,
            append={kernel.name: kernel.append for kernel in study.kernel},
            seed=seed,
        )

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> _Aboard:
        """A guest for one attempt, with its agent there. Raises MachineError with the last console lines."""
        assert arm.kernel is not None and arm.backing is not None
        kernel = self.provided.kernels[arm.kernel]
        assert isinstance(kernel, Kernel)
        use = self.provided.use
        guest = Guest(
            arch=self.provided.arch,
            kernel=kernel,
            image=self.provided.image,
            backing=arm.backing,
            accelerator=self.provided.choice.accelerator,
            memory=use.memory,
            cpus=use.cpus,
            cpu=self.provided.cpu,
            counting=use.counting,
            seed=_seed(self.seed, trial, number),
            network=use.network,
            append=self.append.get(arm.kernel, ()),
        )
        name = f"{arm.name}-b{trial.block}"
        link = self.link(trial.slot)
        hosting = Hosting(
            outputs=outputs,
            run=self.place.folder(f"g{trial.order}"),
            account=self.account,
            leaf=self.contain(f"qemu-{outputs.name.removeprefix('.')}"),
            cpus=self._cpus(cell, trial),
            hugetlbfs=self.hugetlbfs.get(_page(arm.backing)),
            tap=None if link is None else link.tap,
        )
        aboard = _Aboard(self, cell, arm, guest, hosting, link, name)
        try:
            aboard.begin()
        except BaseException:
            aboard.close()
            raise
        return aboard

    def _cpus(self, cell: Cell, trial: Trial) -> tuple[int, ...] | None:
        """The host's CPUs that the guest is pinned to; None: wherever.

        One that counts has a single CPU. When it halts, QEMU's main loop moves the clock to the next timer; running
        beside the virtual CPU, it may do so before the last instructions are added, and the clock is ahead by them
        (QEMU 7.2, softmmu/icount.c: icount_start_warp_timer looks at `halted` without waiting for the slice to end).
        """
        cpus = self.slots[trial.slot] if cell.together else tuple(chain.from_iterable(self.slots)) or None
        return (cpus or LocalMachine().cpus())[-1:] if self.provided.use.counting else cpus


@dataclass
class _Aboard:
    """One guest: `boarding.Boarded`. It is the attempt's alone, with all that runs in it."""

    boarding: GuestBoarding
    cell: Cell
    arm: Arm
    guest: Guest
    hosting: Hosting
    link: Link | None
    name: str
    booted: Booted | None = None
    agent: Agent | None = None
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
        return self.boarding.provided.initramfs[self.arm.kernel]

    def begin(self) -> None:
        """Boot it and make it ready for policies; one that counts boots when all its orders are known."""
        with heard(f"guest {self.name}", "what it said when it had booted"):
            self.site = self._counting() if self.guest.counting else self._live()

    def _boot(self, orders: bytes | None = None) -> Agent:
        image = Path(self.initramfs.path)
        timeout: float | None = None
        with ExitStack() as at_end:
            if orders is not None:
                # Below what is the caller's: in the folder of the guest's own account that account chooses what is read
                # and written there. It is large, and nobody needs it once it has booted.
                ordered = self.hosting.outputs / "initramfs.orders"
                at_end.callback(discard, str(ordered))
                image = initramfs.extended(image, {NAME: orders}, ordered)
                timeout = _BOOT_S + self.cell.timeout  # it says hello when its orders are done
            qemu = program.find(self.guest.arch)
            self.booted = boot.boot(self.guest, image, self.hosting, program=qemu, timeout=timeout)
        self.agent = Agent(self.booted.agent, f"guest {self.name}", self.booted.error)
        return self.agent

    def _counting(self) -> Site:
        assert self.arm.kernel is not None
        survey = self.boarding.provided.surveys[self.arm.kernel]
        assert not isinstance(survey, str)
        settle, patience = self.boarding.provided.use.settle, _BOOT_S + self.cell.timeout
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
        machine = RemoteMachine(agent, emulated=self.boarding.provided.emulated)
        if self.link is not None:
            agent.network(self.link.interface, self.link.address, self.link.prefix)
        if self.boarding.export is not None:
            assert self.link is not None
            self.boarding.export.mount(agent, self.link, self.name, _SERVED)
        with suppress(OSError):  # the guest is nobody else's
            machine.host.write("/proc/sys/kernel/perf_event_paranoid", "0")
        treatment = self.arm.treatment
        settings = GuestSettings(machine.host)
        if (pool := self.cell.workload.pool(treatment, self.cell.given(self.arm))) and treatment.target.size:
            wanted = -(-pool // treatment.target.size)
            granted = Pools(settings).fill({treatment.target.size: wanted})[treatment.target.size]
            if granted < wanted:
                size = format_size(treatment.target.size)
                raise self.booted.error(f"the guest needs {wanted} pages of {size}; its kernel granted {granted}")
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

    def leave(self) -> Backed:
        """The proof of what backs its memory, taken while it still runs; then it is ended."""
        if self.booted is None:
            return Backed({}, "it was never booted")
        guest = self.guest
        try:
            proof: Proof | MachineError = self.booted.prove()
        except MachineError as error:  # it is gone: what it was is known all the same
            proof = error
        obeyed = self.booted.stop()
        facts: dict[str, str | int | float] = {
            "accelerator": guest.accelerator,
            "qemu": program.version(program.find(guest.arch)),
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
        if guest.image.root is not None:
            facts["image"] = guest.image.digest
        if not obeyed:
            facts["ended"] = "killed: it did not end when it was told to"
        if isinstance(proof, MachineError):
            return Backed(facts, f"backing {guest.backing.pages}: {proof.message}")
        facts |= {"backing_share": proof.share, "backing_proof": proof.why}
        facts |= {f"backing_{kind}": size for kind, size in proof.bytes.items()}
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


def _seed(run: bytes, trial: Trial, number: int) -> int:
    """QEMU's seed: another one for every attempt of every run, and the same for an attempt that is made again.

    The first 53 bits of SHA-256("hugewise/guest/1" || the run's seed || block || order || number), these as 8 bytes
    big-endian: every reader of JSON has such numbers exactly.
    """
    digest = hashlib.sha256(_SEEDS + run + b"".join(each.to_bytes(8) for each in (trial.block, trial.order, number)))
    return int.from_bytes(digest.digest()[:8]) >> 11


def _page(backing: Backing) -> int:
    return PAGE_OF.get(backing.pages, 0)
