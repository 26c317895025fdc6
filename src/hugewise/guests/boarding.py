"""Boots a guest for each attempt, and gives it up after it: `attempt.boarding.Boarding`."""

from __future__ import annotations

import hashlib
import pwd
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import msgspec

from hugewise.errors import UserError
from hugewise.guests.aboard import Aboard, pages_of
from hugewise.guests.boot import Hosting
from hugewise.guests.disks import HeldDisks
from hugewise.guests.hosting import private_folder, qemu_account
from hugewise.guests.nfs import Export, serve
from hugewise.guests.provided import Provided
from hugewise.host.hugetlbfs import HugetlbMount
from hugewise.host.ledger import JournalRecord, Mounted
from hugewise.host.local_machine import LocalMachine
from hugewise.host.network import USER, Bridge, Link
from hugewise.host.scratch import Scratch, discard
from hugewise.machine.machine import Contained
from hugewise.model.guest import PAGE_OF, Guest, Kernel
from hugewise.model.trial import Trial
from hugewise.plan.plan import Arm, Cell
from hugewise.study.study import Study
from hugewise.study.tables import Slots

__all__ = ["GuestBoarding"]

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
    held       disks of somebody's own
    paired     all guests of a block have one seed (method `exact`)
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
    paired: bool = False
    held: HeldDisks | None = None

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
        mounts, held = {}, None
        if wanted := (*([] if provided.image.disk is None else [provided.image.disk]), *provided.disks):
            held = HeldDisks(wanted)
            closing.callback(held.close)
        filed = (use.backed_by for use in study.policies if use.backed_by.source == "file")
        for page in sorted({page for each in filed for kind in each.kinds if (page := PAGE_OF.get(kind))}):
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

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> Aboard:
        """A guest for one attempt, with its agent there. Raises MachineError with the last console lines."""
        numbers = (trial.block,) if self.paired else (trial.block, trial.order, number)
        seed, pages = _seed(self.seed, *numbers), pages_of(cell, arm)
        aboard = self._aboard(cell, arm, trial, outputs, name=f"{arm.name}-b{trial.block}", seed=seed, pools=pages)
        return _begun(aboard, pages)

    def stay(self, cell: Cell, arm: Arm, session: int, outputs: Path, pools: Mapping[int, int]) -> Aboard:
        """A guest for all attempts of a session, which have the arm's kernel and backing. Likewise."""
        first = Trial(block=0, cell=cell.id, arm=arm.name, order=0, slot=0, environment_pad=0)  # of no block
        seed = _seed(self.seed, first.block, first.order, session)
        aboard = self._aboard(cell, arm, first, outputs, name=f"resident-{session}", seed=seed, pools=pools)
        return _begun(replace(aboard, stays=True))

    def _aboard(
        self, cell: Cell, arm: Arm, trial: Trial, outputs: Path, *, name: str, seed: int, pools: Mapping[int, int]
    ) -> Aboard:
        """A guest that is not booted yet."""
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
        return Aboard(self.provided, self.export, cell, arm, self._guest(arm, seed), hosting, link, name, pools)

    def _guest(self, arm: Arm, seed: int) -> Guest:
        """What QEMU is told of the guest. Raises UserError where a disk was changed meanwhile."""
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
        """The host's CPUs that the guest is pinned to; None: wherever.

        One that counts has a single CPU. When it halts, QEMU's main loop moves the clock to the next timer; running
        beside the virtual CPU, it may do so before the last instructions are added, and the clock is ahead by them
        (QEMU 7.2, softmmu/icount.c: icount_start_warp_timer looks at `halted` without waiting for the slice to end).
        """
        if self.provided.use.pin:
            return tuple(sorted(set(chain.from_iterable(self.provided.use.pin))))
        cpus = self.slots[trial.slot] if cell.together else tuple(chain.from_iterable(self.slots)) or None
        return (cpus or LocalMachine().cpus())[-1:] if self.provided.use.counting else cpus


def _begun(aboard: Aboard, needed: Mapping[int, int] | None = None) -> Aboard:
    """Boot it, with the pages that it must have; where it does not come up, nothing of it stays."""
    try:
        aboard.begin()
        aboard.must_have(needed or {})
    except BaseException:
        aboard.close()
        raise
    return aboard


def _seed(run: bytes, block: int, order: int = 0, number: int = 0) -> int:
    """QEMU's seed: another one for every attempt of every run, and the same for an attempt that is made again; where
    all attempts of a block have one seed, order and number are 0.

    The first 53 bits of SHA-256("hugewise/guest/1" || the run's seed || block || order || number), these as 8 bytes
    big-endian: every reader of JSON has such numbers exactly.
    """
    digest = hashlib.sha256(_SEEDS + run + b"".join(each.to_bytes(8) for each in (block, order, number)))
    return int.from_bytes(digest.digest()[:8]) >> 11
