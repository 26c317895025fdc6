"""Guests for attempts: booted for each attempt, made ready for policies, proven, ended.

The page settings of a guest are set by `hugewise.host.knob` without a journal: they go with the guest.
"""

from __future__ import annotations

import errno
import hashlib
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec

from hugewise.attempt import recording
from hugewise.attempt.context import Backed
from hugewise.errors import HugewiseError, MachineError, UserError
from hugewise.guests import boot, hypervisor, image, qemu
from hugewise.guests.backing import Proof
from hugewise.guests.boot import BootedGuest, Hosting
from hugewise.guests.counted import NAME, CountingMachine
from hugewise.guests.disks import HeldDisks
from hugewise.guests.hypervisor import private_folder, qemu_account
from hugewise.guests.image import extended
from hugewise.guests.nfs import Export, serve
from hugewise.guests.resources import GuestResources
from hugewise.host import cgroup
from hugewise.host.cgroup import Freezer
from hugewise.host.knob import Settings
from hugewise.host.ledger import JournalRecord, Mounted
from hugewise.host.local_machine import LocalMachine
from hugewise.host.memory_state import HugetlbMount
from hugewise.host.network import USER, Bridge, Link
from hugewise.host.pool import Pools
from hugewise.host.scratch import Scratch, discard
from hugewise.machine.agent import Agent
from hugewise.machine.machine import Contained, Drift, Folders, Site
from hugewise.machine.messages import parse_foreign
from hugewise.machine.noise import Snapshot, snapshot
from hugewise.machine.probe import Event
from hugewise.machine.remote import RemoteFolders, RemoteMachine
from hugewise.model.guest import PAGE_OF, Guest, Initramfs, Kernel
from hugewise.model.host import Host
from hugewise.model.procedure import Peer, RoleUse
from hugewise.model.trial import Trial
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.quantity import format_size
from hugewise.reading import whole
from hugewise.study.guest import NFS
from hugewise.study.study import Study
from hugewise.study.tables import Slots

_GROUPS_ROOT = "/sys/fs/cgroup/hugewise"
_CONTROLLERS = ("memory", "pids")
_MOST_PROCESSES = 10_000  # that are reported
_PATIENCE_S = 60.0  # an emulated guest may share its CPU with many others
_PAUSE_S = 0.01


@dataclass(frozen=True)
class GuestLeaf(cgroup.Leaf):
    """The group of one attempt, or of one role in it, in the guest `host`; it is counted as one of the host is.

    emulated  its CPU time means nothing
    gone      whether the guest is, and with it the group
    discard   removes a folder there
    """

    emulated: bool = False
    gone: Callable[[], bool] = lambda: False
    discard: Callable[[str], None] = lambda _: None

    @property
    def path(self) -> Path:
        return self.folders[0]

    def kill(self) -> int:
        """Kill every process inside and below, and return how many were seen when all are gone. Raises MachineError."""
        seen: set[int] = set()
        end = time.monotonic() + _PATIENCE_S
        while not self.gone() and self._populated():
            left = self.processes()
            seen |= set(left)
            try:
                self.host.write(f"{self.path}/cgroup.kill", "1")
            except OSError as error:
                raise MachineError(f"cannot kill what is in {self._named}: {error.strerror}") from None
            if time.monotonic() > end:
                raise MachineError(
                    f"{len(left)} processes in {self._named} do not die, such as pid {min(left, default=0)}"
                )
            time.sleep(_PAUSE_S)
        return len(seen)

    def _turn(self, *, frozen: bool) -> None:
        with parse_foreign(self.host.name, f"the freezer of {self.path}"):
            try:
                has_freezer = Freezer(self.host, (self.path,), self.processes, _PATIENCE_S).by_kernel(frozen=frozen)
            except MachineError:
                raise
            except HugewiseError as error:
                raise MachineError(f"{self.host.name}: {error.message}", hint=error.hint) from None
        if not has_freezer:
            raise MachineError(
                f"nothing in {self._named} can be frozen: its kernel has no cgroup.freeze",
                hint="give the study a kernel of Linux 5.2 or later",
            )

    def peak_bytes(self) -> int | None:
        with parse_foreign(self.host.name, f"the memory of {self.path}"):
            peak = super().peak_bytes()
            return None if peak is None else whole(str(peak), "memory.peak")

    def used(self) -> RoleUse:
        with parse_foreign(self.host.name, f"what {self.path} used"):
            return RoleUse(faults=self.faults()) if self.emulated else super().used()

    def processes(self) -> list[int]:
        with parse_foreign(self.host.name, f"{self.path}/cgroup.procs"), suppress(OSError):
            pids = self.host.read(f"{self.path}/cgroup.procs").split()
            return sorted({whole(pid, "the number of a process", low=1) for pid in pids[:_MOST_PROCESSES]})
        return []

    def table(self, folder: Path, file: str) -> dict[str, int]:
        """Return the numbers in a file of names and numbers; empty where there is none. Raises MachineError."""
        with parse_foreign(self.host.name, f"{folder}/{file}"):
            return {name: whole(str(value), name) for name, value in super().table(folder, file).items()}

    def limit_memory(self, size: int, *, swapping: bool = False) -> None:
        """Let the processes inside, and the page cache they fill, have at most `size` bytes. Raises MachineError."""
        if self.memory is None:
            raise MachineError(
                f"memory = ... needs the memory controller, and the kernel of {self.host.name} has none",
                hint="give the study a kernel with CONFIG_MEMCG",
            )
        try:
            self.host.write(f"{self.path}/memory.max", str(size))
        except OSError as error:
            raise MachineError(f"cannot limit the memory of {self._named}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the group, and those made inside. Raises MachineError while processes are inside."""
        end = time.monotonic() + _PATIENCE_S
        while not self.gone():
            try:
                self.discard(str(self.path))
                break
            except OSError as error:
                if error.errno != errno.EBUSY or self._populated() or time.monotonic() > end:
                    raise MachineError(f"cannot remove {self._named}: {error.strerror}") from None
                time.sleep(_PAUSE_S)  # the last process is gone but not yet taken off the books

    @property
    def _named(self) -> str:
        return f"the cgroup {self.path} of {self.host.name}"

    def _populated(self) -> bool:
        return self.table(self.path, "cgroup.events").get("populated", 0) != 0


class Groups:
    """The folder of the groups in a guest; it is made with the first one."""

    def __init__(self, machine: RemoteMachine, root: str = _GROUPS_ROOT) -> None:
        self._agent, self._emulated, self._root = machine.agent, machine.emulated, root
        self._ready = False

    def create(self, name: str) -> GuestLeaf:
        """Return the group of that name, with the memory controller where the kernel has one. Raises MachineError."""
        path = Path(self._root, name)
        try:
            if not self._ready:
                self._prepare()
            self._agent.make(str(path), 0o755)
            counted = "memory.stat" in self._agent.names(str(path))
        except OSError as error:
            raise MachineError(
                f"cannot make the cgroup {path} of {self._agent.name}: {error.strerror}",
                hint="give the study a kernel with CONFIG_CGROUPS",
            ) from None
        return GuestLeaf(
            (path,), path if counted else None, self._agent, self._emulated, self._agent.ended, self._agent.remove
        )

    def _prepare(self) -> None:
        with suppress(FileExistsError):
            self._agent.make(self._root, 0o755)
        offered = self._agent.read(f"{self._root}/cgroup.controllers").split()
        for name in _CONTROLLERS:
            if name in offered:
                self._agent.write(f"{self._root}/cgroup.subtree_control", f"+{name}")
        self._ready = True


_WHAT = "its page settings"


class _NoJournal:
    def append(self, record: JournalRecord, *, sync: bool = True) -> None: ...

    def keep_open(self) -> None: ...


class GuestSettings(Settings):
    """The knobs of a guest. What it says of them that no kernel says is a MachineError."""

    def __init__(self, host: Host) -> None:
        with parse_foreign(host.name, _WHAT):
            super().__init__(host, _NoJournal())

    def drift(self) -> list[Drift]:
        with parse_foreign(self.host.name, _WHAT):
            return super().drift()

    def apply(self, wanted: Mapping[str, str]) -> list[Drift]:
        with parse_foreign(self.host.name, _WHAT):
            return super().apply(wanted)


_SERVED, _SCRATCH = "/nfs", "/run/hugewise-scratch"  # in the guest: by NFS, and on its tmpfs


@dataclass
class GuestMachine:
    """Guest: `context.AcquiredMachine`. It is the attempt's alone, with all that runs in it.

    export   the host's folder that it mounts
    """

    provided: GuestResources
    export: Export | None
    cell: Cell
    arm: Arm
    guest: Guest
    hosting: Hosting
    link: Link | None
    name: str
    booted: BootedGuest | None = None
    agent: Agent | None = None
    site: Site = field(init=False)
    own: bool = True
    meets: bool = False
    cwd: str = "/"
    far: None = None
    places: Slots = ()  # QEMU as a whole has its slot

    @property
    def environment(self) -> Mapping[str, str]:
        return self.site.machine.environment

    def look(self, here: Snapshot) -> Snapshot | None:
        # a counting guest must not be observed
        if self.guest.counting:
            return None
        with parse_foreign(f"guest {self.name}", "what its kernel counts"):
            return snapshot(self.site.host)

    def instructions(self, events: Sequence[Event]) -> int | None:
        # only a counting guest counts instructions
        return recording.instructions(events) if self.guest.counting else None

    @property
    def initramfs(self) -> Initramfs:
        assert self.arm.kernel is not None
        return self.provided.initramfs[self.arm.kernel]

    def begin(self) -> None:
        """Boot it and make it ready for policies; one that counts boots when all its orders are known."""
        with parse_foreign(f"guest {self.name}", "what it said when it had booted"):
            self.site = self._counting() if self.guest.counting else self._live()

    def _boot(self, orders: bytes | None = None) -> Agent:
        image = Path(self.initramfs.path)
        timeout = self.provided.use.boot
        with ExitStack() as at_end:
            if orders is not None:
                # Below the caller's folder: in a folder of the guest's account that account would choose the contents.
                # The file is large, and not needed after the boot.
                ordered = self.hosting.outputs / "initramfs.orders"
                at_end.callback(discard, str(ordered))
                image = extended(image, {NAME: orders}, ordered)
                timeout = self._until_done  # it says hello when its orders are done
            qemu = hypervisor.find_qemu(self.guest.arch, self.provided.use.qemu)
            self.booted = boot.boot(self.guest, image, self.hosting, program=qemu, timeout=timeout)
        self.agent = Agent(self.booted.agent, f"guest {self.name}", self.booted.error)
        return self.agent

    @property
    def _until_done(self) -> float:
        # seconds in which a counting guest boots and carries out its orders
        return (self.provided.use.boot or boot.PATIENCE_S["tcg"]) + self.cell.timeout

    def _counting(self) -> Site:
        assert self.arm.kernel is not None
        survey = self.provided.surveys[self.arm.kernel]
        assert not isinstance(survey, str)
        settle, patience = self.provided.use.settle, self._until_done + boot.filling_s(self.guest)
        machine = CountingMachine(survey, f"guest {self.name}", self._boot, settle=settle, patience=patience)
        return Site(
            machine=machine,
            knobs=machine,
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
        image.put_files(agent, self.provided.use, self.guest.image)
        settings = GuestSettings(machine.host)
        self._fill_pools(settings)
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

    def _fill_pools(self, settings: Settings) -> None:
        # the guest's own pools, with the pages that the workload takes under the arm
        size = self.arm.treatment.target.size
        pool = self.cell.workload.pool(self.arm.treatment, self.cell.given(self.arm))
        if not pool or not size:
            return
        wanted = -(-pool // size)
        if (granted := Pools(settings).fill({size: wanted}).get(size, 0)) < wanted:
            assert self.booted is not None
            message = f"the guest needs {wanted} pages of {format_size(size)}; its kernel granted {granted}"
            raise self.booted.error(message)

    def leave(self) -> Backed:
        if self.booted is None:
            return Backed({}, "it was never booted")
        guest = self.guest
        try:
            proof: Proof | MachineError = self.booted.prove()
        except MachineError as error:  # the guest is gone: its facts are known all the same
            proof = error
        facts: dict[str, str | int | float] = {
            "accelerator": guest.accelerator,
            "qemu": hypervisor.qemu_version(hypervisor.find_qemu(guest.arch, self.provided.use.qemu)),
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
        if not self.booted.stop():
            facts["ended"] = "killed: it did not end when it was told to"
        if isinstance(proof, MachineError):
            return Backed(facts, f"backing {guest.backing.pages}: {proof.message}")
        facts |= {"backing_share": proof.share, "backing_proof": proof.why}
        facts |= {f"backing_{kind}": size for kind, size in proof.bytes.items()}
        facts |= {f"kvm_mapped_{size}": mapped for size, mapped in (proof.kvm or {}).items()}
        facts |= {} if proof.kvm_share is None else {"kvm_share": proof.kvm_share}
        return Backed(facts, None if proof.accepted else f"backing {guest.backing.pages}: {proof.why}")

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()
        if self.booted is not None:
            with suppress(HugewiseError):
                self.booted.stop()
        self.hosting.leaf.kill()
        self.hosting.leaf.remove()


def _no_folders(place: str) -> Folders:
    raise MachineError(f"a guest that counts runs micro-workloads alone: it has no folder {place}")


_SEEDS = b"hugewise/guest/1"


@dataclass(frozen=True)
class GuestPerAttempt:
    """Resources of this host that a session's guests share.

    place      private folder of the session, for sockets
    account    whom QEMU runs as; None: as the caller
    contain    makes cgroups
    slots      CPUs of each slot of the design, of which each guest of a block that runs together has its own
    link       the network of the guest in a slot
    export     the folder that is served to them by NFS
    hugetlbfs  folders of mounted hugetlbfs by page size in bytes, for backings by file
    append     words of a kernel's command line, by the kernel's name in the study
    seed       the run's, of which those of the guests are made
    held       disks of somebody's own
    paired     all guests of a block have one seed (method `exact`)
    """

    provided: GuestResources
    place: Scratch
    account: pwd.struct_passwd | None
    contain: Callable[[str], Contained]
    slots: Slots
    link: Callable[[int], Link | None]
    export: Export | None = None
    hugetlbfs: dict[int, str] = field(default_factory=dict)
    append: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seed: bytes = b""
    paired: bool = False
    held: HeldDisks | None = None

    @classmethod
    def open(
        cls,
        study: Study,
        provided: GuestResources,
        contain: Callable[[str], Contained],
        closing: ExitStack,
        note: Callable[[JournalRecord], None],
        *,
        seed: bytes,
        privileged: bool,
    ) -> GuestPerAttempt:
        """Make what guests share; `closing` undoes it, `note` (the journal) hears of it before. Raises UserError."""
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
        mounts, held = {}, None
        if provided.image.disk is not None or provided.disks:
            held = HeldDisks(provided.image.disk, provided.disks)
            closing.callback(held.close)
        filed = (use.backed_by for use in study.policies if use.backed_by.source == "file")
        for page in sorted({page for backing in filed for kind in backing.kinds if (page := PAGE_OF.get(kind))}):
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
            paired=study.method == "exact",
            held=held,
        )

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> GuestMachine:
        """Return a guest for one attempt, with its agent there. Raises MachineError with the last console lines."""
        numbers = (trial.block,) if self.paired else (trial.block, trial.order, number)
        link = self.link(trial.slot)
        hosting = Hosting(
            outputs=outputs,
            run=self.place.folder(f"g{trial.order}"),
            account=self.account,
            leaf=self.contain(f"qemu-{outputs.name.removeprefix('.')}"),
            cpus=self._cpus(cell, trial),
            hugetlbfs=self.hugetlbfs,
            tap=None if link is None else link.tap,
        )
        guest, name = self._guest(arm, _seed(self.seed, *numbers)), f"{arm.name}-b{trial.block}"
        machine = GuestMachine(self.provided, self.export, cell, arm, guest, hosting, link, name)
        try:
            machine.begin()
        except BaseException:
            machine.close()
            raise
        return machine

    def _guest(self, arm: Arm, seed: int) -> Guest:
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
            seed=seed,
            network=use.network,
            append=self.append.get(arm.kernel, ()),
            disks=self.provided.disks,
            pins=use.pin,
        )
        if self.held is None:
            return guest
        self.held.checked()
        own = guest.image.disk
        image = guest.image if own is None else msgspec.structs.replace(guest.image, disk=self.held.opened(own))
        return msgspec.structs.replace(guest, image=image, disks=tuple(map(self.held.opened, guest.disks)))

    def _cpus(self, cell: Cell, trial: Trial) -> tuple[int, ...] | None:
        # A counting guest has a single CPU. When it halts, QEMU's main loop moves the clock to the next timer; running
        # beside the virtual CPU, it may do so before the last instructions are added (QEMU 7.2, softmmu/icount.c:
        # icount_start_warp_timer looks at `halted` without waiting for the slice to end).
        if self.provided.use.pin:
            return tuple(sorted(set(chain.from_iterable(self.provided.use.pin))))
        cpus = self.slots[trial.slot] if cell.together else tuple(chain.from_iterable(self.slots)) or None
        return (cpus or LocalMachine().cpus())[-1:] if self.provided.use.counting else cpus


def _seed(run: bytes, block: int, order: int = 0, number: int = 0) -> int:
    # The first 53 bits of SHA-256("hugewise/guest/1" || the run's seed || block || order || number), these as 8 bytes
    # big-endian: every reader of JSON represents such numbers exactly. Where all attempts of a block have one seed,
    # order and number are 0.
    digest = hashlib.sha256(_SEEDS + run + b"".join(part.to_bytes(8) for part in (block, order, number)))
    return int.from_bytes(digest.digest()[:8]) >> 11
