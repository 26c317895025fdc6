"""Resources of a study's guests, collected before anything is planned: kernels and surveys, an image, an accelerator.

`provide` fetches and builds into the cache; `look` only looks; `checks` is what `hugewise doctor STUDY` says of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from hugewise.errors import UserError
from hugewise.guests import counted, debian, disks, hypervisor, image, kernels, nfs, qemu
from hugewise.guests.hypervisor import Choice, NoKvm, qemu_account
from hugewise.guests.kernels import without_disks, without_nfs
from hugewise.host import network
from hugewise.machine import programs
from hugewise.machine.messages import parse_foreign
from hugewise.machine.remote import RemoteMachine
from hugewise.model.guest import (
    HARDWARE,
    PAGE_OF,
    Architecture,
    Disk,
    GuestsRecord,
    Image,
    Initramfs,
    Kernel,
    KernelRecord,
    Option,
)
from hugewise.model.host import Check, State
from hugewise.model.results import LeftOut
from hugewise.model.workload import Missing
from hugewise.plan.arms import Platform
from hugewise.study.guest import GuestUse, KernelUse
from hugewise.study.study import Study
from hugewise.unprivileged import Say

_SOURCES = "/usr/src"

FOR_A_DISK = "remove counting = true from [guest], or these workloads from the study"


class ImagePackages(NamedTuple):
    """Debian packages, each once, that are lacked by the workloads of a part of a study, and by those of the whole."""

    part: tuple[str, ...]
    whole: tuple[str, ...]


@dataclass(frozen=True)
class GuestResources:
    """Resources that exist for a study's guests: `arms.GuestHouse`.

    kernels    by their names in the study; a text is why there is none
    surveys    likewise
    pending    the image is still to be made, and a kernel without a survey to be asked
    first      what a run does before it begins, in words
    disks      those of somebody's own, beside that of the image
    initramfs  of each kernel: one for all attempts of a session, also if another agent is built meanwhile
    """

    use: GuestUse
    arch: Architecture
    choice: Choice
    image: Image
    kernels: Mapping[str, Kernel | str]
    surveys: Mapping[str, counted.Survey | str] = field(default_factory=dict)
    pending: bool = False
    initramfs: Mapping[str, Initramfs] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()

    @property
    def emulated(self) -> bool:
        return self.choice.accelerator == "tcg"

    @property
    def counting(self) -> bool:
        return self.use.counting

    @property
    def memory(self) -> int:
        return self.use.memory

    @property
    def cpu(self) -> str:
        return cpu_model(self.use, self.choice)

    def machine(self, kernel: str) -> Platform | str:
        """Return a guest under that kernel by its survey (pending: every page size); or why none."""
        surveyed = self.surveys[kernel]
        if isinstance(surveyed, str):
            if not self.pending:
                return surveyed
            surveyed, sizes = counted.assumed_survey()
            return Platform(counted.SurveyedHost(surveyed, kernel), sizes, "system")
        return Platform(counted.SurveyedHost(surveyed, kernel), surveyed.sizes, "system")

    def versions(self) -> Mapping[str, str]:
        versions = {
            "qemu": hypervisor.qemu_version(hypervisor.find_qemu(self.arch, self.use.qemu)),
            "accelerator": f"{self.choice.accelerator}: {self.choice.why}",
            "cpu model": self.cpu,
        }
        for name, kernel in self.kernels.items():
            if isinstance(kernel, Kernel):
                versions[f"kernel {name}"] = f"{kernel.release}, SHA-256 {kernel.digest[:16]}, {kernel.origin}"
        for name, agent in self.initramfs.items():
            versions[f"initramfs {name}"] = f"SHA-256 {agent.digest[:16]}"
        if self.image.drive:
            versions["image"] = self.image.digest[:16]
        return versions

    def record(self, study: Study) -> GuestsRecord:
        """Return the guests' record for the run's folder. The configurations of the kernels are compared now."""
        wanted = {use.name: use for use in wanted_kernels(study)}
        named = next(use for use in study.policies if use.name == study.compared_with)
        baseline = study.kernel_of(named).name
        first = self.kernels[baseline]
        kept = []
        for name, kernel in self.kernels.items():
            if not isinstance(kernel, Kernel) or not isinstance(first, Kernel):
                continue
            differences = kernels.difference(first, kernel)
            use = wanted[name]
            kept.append(
                KernelRecord(
                    name=name,
                    release=kernel.release,
                    origin=kernel.origin,
                    sha256=kernel.digest,
                    had="build" if use.build is not None else "package" if use.package is not None else "path",
                    base_page=kernels.base_page(kernel) or self._surveyed_page(name),
                    differs=None
                    if differences is None
                    else tuple(Option(d.symbol, d.first, d.second) for d in differences),
                )
            )
        return GuestsRecord(
            arch=self.arch,
            accelerator=self.choice.accelerator,
            why=self.choice.why,
            counting=self.use.counting,
            baseline=baseline,
            kernels=tuple(kept),
            packages=dict(self.image.packages),
        )

    def _surveyed_page(self, kernel: str) -> int | None:
        # the survey's base page: a kernel by path may have no configuration
        surveyed = self.surveys.get(kernel)
        return surveyed.page_size if isinstance(surveyed, counted.Survey) else None

    def within(self) -> AbstractContextManager[None]:
        return programs.looking_in(
            self.image.programs,
            packages=dict(self.image.packages),
            files=self.image.files,
            cpus=self.use.cpus,
            machine=HARDWARE[self.arch],
        )


def cpu_model(use: GuestUse, choice: Choice) -> str:
    """Return the study's CPU model, else `host` under KVM, or `max` (see `qemu.cpu_model`)."""
    return use.cpu or ("host" if choice.accelerator == "kvm" else "max")


def emulated_model(use: GuestUse) -> str:
    """Return the CPU model of an emulated guest."""
    return cpu_model(use, Choice("tcg", ""))


def guest_architecture(use: GuestUse) -> Architecture:
    """Return the guests' architecture. Raises UserError where it is to be the host's and QEMU knows no such guests."""
    if use.arch is not None:
        return use.arch
    here = os.uname().machine
    for arch, hardware in HARDWARE.items():
        if hardware == here:
            return arch
    raise UserError(f"guests of {here} are not supported", hint='name another: [guest] arch = "x86-64"')


def without_disk(use: GuestUse, packages: Iterable[str]) -> str | None:
    """Return why the guests cannot have the packages that workloads need, or None: a counting guest has no disk."""
    wanted = " ".join(sorted(packages))
    return f"a counting guest runs micro-workloads alone, and others need {wanted}" if use.counting and wanted else None


def missing(use: GuestUse) -> tuple[Missing, ...]:
    """Return what this host lacks to run the guests: QEMU, and the agent that runs in them."""
    arch = guest_architecture(use)
    lacking = [hypervisor.missing(arch, use.qemu)]
    agent = image.guest_probe(arch)
    if isinstance(agent, Missing):
        lacking.append(agent)
    return tuple(entry for entry in lacking if entry is not None)


def provide(study: Study, packages: Callable[[GuestResources], ImagePackages], say: Say) -> GuestResources:
    """Have all that the guests of `study` need; `packages`: what its workloads lack. Raises HugewiseError."""
    use, arch = _needed(study)
    by_name: dict[str, Kernel | str] = {}
    for wanted in wanted_kernels(study):
        kernel = kernels.provide(wanted, arch, wanted.suite or use.suite, say)
        kernel = kernel if use.image is not None else without_disks(kernel)
        by_name[wanted.name] = kernel if use.nfs else without_nfs(kernel)
    choice = _accelerator(use, [had for had in by_name.values() if isinstance(had, Kernel)])
    if use.accelerator == "auto" and not use.counting and choice.accelerator == "tcg":
        say(_emulated(choice))
    surveys: dict[str, counted.Survey | str] = {}
    agents: dict[str, Initramfs] = {}
    for name, had in by_name.items():
        assert isinstance(had, Kernel)
        surveys[name] = _surveyed(had, use, choice, say)
        agents[name] = image.existing_initramfs(image.build(had))
    bare = GuestResources(use, arch, choice, Image(arch=arch), by_name, surveys, initramfs=agents)
    own, beside = own_disks(use)
    if own is not None:
        name, kernel = next((name, had) for name, had in by_name.items() if isinstance(had, Kernel))
        asking = hypervisor.minimal_guest(kernel, choice.accelerator, cpu=bare.cpu)
        seen = image.own_disk_image(own, use, asking, Path(agents[name].path), say)
        return replace(bare, image=seen, disks=beside)
    bare = replace(bare, disks=beside)
    lacking = packages(bare)
    if (why := without_disk(use, lacking.part)) is not None:
        raise UserError(f"{study.name}: {why}", hint=FOR_A_DISK)
    return replace(bare, image=_image(use, arch, lacking, say))


def look(study: Study) -> GuestResources:
    """Return what is there, and what a run does first; for a kernel without a survey the reason in words."""
    assert study.guest is not None
    use, arch = study.guest, guest_architecture(study.guest)
    by_name: dict[str, Kernel | str] = {}
    surveys: dict[str, counted.Survey | str] = {}
    first = []
    choice = (
        Choice("tcg", "not tried yet") if use.accelerator == "auto" else Choice(use.accelerator, "as the study says")
    )
    if use.accelerator == "auto" and not use.counting:
        no = hypervisor.refusal(arch)
        first.append("KVM is tried, by a boot of 10 s at most" if no is None else _emulated(no))
    for wanted in wanted_kernels(study):
        kernel = kernels.available(wanted, arch, wanted.suite or use.suite)
        by_name[wanted.name] = kernel or f"the kernel {wanted.name} is not in the cache yet: the first run fetches it"
        taken = counted.find_survey(kernel, cpu_model(use, choice)) if kernel is not None else None
        surveys[wanted.name] = taken or f"the kernel {wanted.name} was not booted yet: the first run asks it"
        if kernel is None:
            first.append(_to_have(wanted, wanted.suite or use.suite))
    if unasked := [name for name, taken in surveys.items() if isinstance(taken, str)]:
        first.append(
            f"{', '.join(unasked)}: booted once and asked for page sizes. Until then arms are planned as if there were"
            " all; those whose kernel lacks theirs are left out when the run begins"
        )
    if use.image is not None:
        own, _ = disks.study_disks(use)
        assert own is not None
        seen = image.known_disk_image(own, use, arch)
        first += [] if seen is not None else [f"{use.image}: booted once and asked for its programs"]
        planned = seen or Image(arch=arch)
    else:
        # Archives of sources will be there by names that begin so.
        planned = Image(arch=arch, files=tuple(f"{_SOURCES}/{name}_VERSION.orig.tar.xz" for name in use.sources))
    return GuestResources(use, arch, choice, planned, by_name, surveys, pending=True, first=tuple(first))


def _to_have(kernel: KernelUse, suite: str) -> str:
    if kernel.build is None:
        return f"the kernel {kernel.name} is fetched: {kernel.package} of Debian {suite}"
    return f"the kernel {kernel.name} is built by the recipe {kernel.build}: {kernels.build_cost()}"


def _needed(study: Study) -> tuple[GuestUse, Architecture]:
    assert study.guest is not None
    lacking = missing(study.guest)
    if lacking:
        packages = " ".join(lacked.package for lacked in lacking if lacked.package)
        raise UserError(
            f"{study.name} runs in guests: " + "; ".join(lacked.reason for lacked in lacking),
            hint=f"apt install {packages}" if packages else "see: hugewise doctor",
        )
    return study.guest, guest_architecture(study.guest)


def wanted_kernels(study: Study) -> list[KernelUse]:
    """Return the kernels that arms of the study boot, each once."""
    return list({kernel.name: kernel for kernel in (study.kernel_of(use) for use in study.policies)}.values())


def _accelerator(use: GuestUse, by_name: list[Kernel]) -> Choice:
    if use.counting:
        return Choice("tcg", "instructions are counted by emulation")
    if use.accelerator == "tcg":
        return Choice("tcg", "as the study says")
    choice = hypervisor.choose(by_name[0], image.build(by_name[0]), use.qemu)
    if use.accelerator == "kvm" and choice.accelerator != "kvm":
        cure = f"{choice.cure}; or " if choice.cure else ""
        hint = f'{cure}write accelerator = "auto" to be emulated instead'
        raise UserError(f'accelerator = "kvm": {choice.why}', hint=hint)
    return choice


def _emulated(choice: NoKvm | Choice) -> str:
    cure = f" (for KVM: {choice.cure})" if choice.cure else ""
    why = choice.why if isinstance(choice, Choice) else f"no KVM: {choice.why}"
    return f"guests are emulated, so that counts and sizes are measured and never a time; {why}{cure}"


def _surveyed(kernel: Kernel, use: GuestUse, choice: Choice, say: Say) -> counted.Survey:
    model = cpu_model(use, choice)
    if (surveyed := counted.find_survey(kernel, model)) is not None:
        return surveyed
    say(f"asking {kernel.name} ({kernel.release}) once for its page sizes")
    guest = hypervisor.minimal_guest(kernel, choice.accelerator, cpu=model)
    with hypervisor.asked(guest, image.build(kernel), f"guest {kernel.name}", use.qemu) as agent:
        hello = agent.hello()
        machine = RemoteMachine(agent, emulated=choice.accelerator == "tcg")
        with parse_foreign(agent.name, "its page sizes"):
            surveyed = counted.take_survey(machine.host, hello.release, hello.page_size)
    counted.keep_survey(kernel, model, surveyed)
    return surveyed


def _image(use: GuestUse, arch: Architecture, packages: ImagePackages, say: Say) -> Image:
    part, whole = (tuple(dict.fromkeys((*use.packages, *names))) for names in packages)
    if not part and not use.sources:
        return Image(arch=arch, programs=tuple(use.files))
    files = {path: Path(here) for path, here in use.files.items()}
    try:
        return image.image(whole, arch, use.suite, sources=use.sources, files=files, say=say)
    except UserError as error:
        if set(part) == set(whole):
            raise
        # Packages that another workload lacks are no reason against this one.
        say(f"no image of the whole study ({error.message}): one is made of what was chosen of it")
        return image.image(part, arch, use.suite, sources=use.sources, files=files, say=say)


def own_disks(use: GuestUse) -> tuple[Disk | None, tuple[Disk, ...]]:
    """Return the disks that a study names, after checking that nothing writes them now. Raises UserError."""
    own, beside = disks.study_disks(use)
    for disk in (*beside, *([] if own is None else [own])):
        disks.refuse_written(disk)
    return own, beside


_SECTION = "its guests"


def checks(
    study: Study, packages: Iterable[str], beside: Iterable[LeftOut] = (), *, privileged: bool
) -> Iterator[Check]:
    """Yield checks of this host for the guests of `study`. Raises UserError for an architecture without guests."""
    use = study.guest
    assert use is not None
    arch = guest_architecture(use)
    yield _qemu(arch, use.qemu)
    if qemu.missing():
        yield Check(_SECTION, "qemu.qmp", "missing", qemu.LACKING, qemu.CURE)
    agent = image.guest_probe(arch)
    yield _missing("agent", agent) if isinstance(agent, Missing) else Check(_SECTION, "agent", "ok", str(agent))
    yield _hypervisor_checks(study, arch)
    yield from _root(study, privileged=privileged)
    wanted = sorted({*use.packages, *packages})
    # A study's refusals remain: a guest that counts has no image.
    made = bool(wanted or use.sources) and use.image is None and without_disk(use, wanted) is None
    used = wanted_kernels(study)
    if made or any(_to_fetch(kernel, arch, kernel.suite or use.suite) for kernel in used):
        yield from (_missing("packages", lacked) for lacked in debian.missing())
    for kernel in used:
        yield from _kernel(kernel, arch, kernel.suite or use.suite, emulated_model(use))
    yield Check(
        _SECTION,
        "policies",
        "ok",
        "each kernel is asked for its own when it is first booted; those of this host and its counters are not theirs"
        " (hugewise doctor, without a study, lists them)",
    )
    if use.network == "tap":
        account = qemu_account(privileged=privileged)
        lacking = network.missing(None if account is None else account.pw_uid)
        yield from (_missing("network", lacked) for lacked in lacking)
    if use.nfs:
        yield from (_missing("NFS server", lacked) for lacked in nfs.missing())
    for left in beside:
        yield Check(_SECTION, left.cell, "missing", left.reason, _install(left.packages), left.packages)
    yield from _disks(use)
    if use.image is not None:
        return
    if (why := without_disk(use, wanted)) is not None:
        yield Check(_SECTION, "image", "missing", why, FOR_A_DISK)
    elif made:
        yield from (_missing("image", lacked) for lacked in image.missing())
        sources = f"; sources of {' '.join(use.sources)}" if use.sources else ""
        yield Check(_SECTION, "image", "ok", f"made once, of Debian {use.suite}: {' '.join(wanted)}{sources}")


def refusals(left_out: Iterable[LeftOut], *, nothing: bool) -> Iterator[Check]:
    """Yield what a dry run leaves out for other reasons than packages, each reason once. `nothing`: no cell is left."""
    reasons: dict[str, list[str]] = {}
    for left in left_out:
        reasons.setdefault(left.reason, []).append(left.what)
    for reason, of in reasons.items():
        more = f" and {len(of) - 1} more" if len(of) > 1 else ""
        yield Check(_SECTION, f"{of[0]}{more}", "missing" if nothing else "limited", f"left out: {reason}")


def _disks(use: GuestUse) -> Iterator[Check]:
    try:
        root, others = disks.study_disks(use)
    except UserError as error:
        yield Check(_SECTION, "disks", "missing", error.message, error.hint)
        return
    for name, opened in [("image", root), *(("disk", disk) for disk in others)]:
        if opened is None:
            continue
        try:
            disks.refuse_written(opened)
        except UserError as error:
            yield Check(_SECTION, name, "missing", error.message, error.hint)
        else:
            below = f", which stands on {opened.files[1].path}" if opened.files[1:] else ""
            finding = (
                f"{opened.files[0].path} ({opened.files[0].format}){below}: read alone, through a throw-away overlay"
            )
            yield Check(_SECTION, name, "ok", finding)


def _root(study: Study, *, privileged: bool) -> Iterator[Check]:
    use = study.guest
    assert use is not None
    pools = [policy.name for policy in study.policies if PAGE_OF.keys() & set(policy.backed_by.kinds)]
    needing = [
        *(['network = "tap"'] if use.network == "tap" else []),
        *(["nfs = true"] if use.nfs else []),
        *([f"memory from a pool of this host ({', '.join(pools)})"] if pools else []),
    ]
    if not needing:
        return
    needs = ", ".join(needing)
    if privileged:
        yield Check(_SECTION, "root", "ok", f"for {needs}")
    else:
        # Without a pool its arms are left out; without the other two nothing runs.
        state: State = "missing" if use.nfs or use.network == "tap" else "limited"
        yield Check(_SECTION, "root", state, f"an ordinary user cannot have {needs}", "sudo hugewise run ...")


def _to_fetch(use: KernelUse, arch: Architecture, suite: str) -> bool:
    try:
        return use.path is None and kernels.available(use, arch, suite) is None
    except UserError:
        return False  # said of the kernel


def _qemu(arch: Architecture, named: str | None) -> Check:
    lacking = hypervisor.missing(arch, named)
    if lacking is not None:
        return _missing("QEMU", lacking)
    return Check(_SECTION, "QEMU", "ok", hypervisor.qemu_version(hypervisor.find_qemu(arch, named)))


def _hypervisor_checks(study: Study, arch: Architecture) -> Check:
    use = study.guest
    assert use is not None
    if use.counting:
        return Check(_SECTION, "accelerator", "ok", "tcg: instructions are counted by emulation")
    if use.accelerator == "tcg":
        finding = "tcg: counts and sizes, and never a time (as the study says)"
        return Check(_SECTION, "accelerator", "limited", finding, 'write accelerator = "auto" where there is KVM')
    no = hypervisor.refusal(arch)
    if no is None:
        return Check(_SECTION, "accelerator", "ok", "KVM is tried when a run begins, by a boot of 10 s at most")
    if use.accelerator == "kvm":
        cure = f'{no.cure}; or write accelerator = "auto" to be emulated instead'
        return Check(_SECTION, "accelerator", "missing", no.why, cure)
    return Check(_SECTION, "accelerator", "limited", f"tcg: counts and sizes, and never a time ({no.why})", no.cure)


def _kernel(use: KernelUse, arch: Architecture, suite: str, model: str) -> Iterator[Check]:
    name = f"kernel {use.name}"
    try:
        kernel = kernels.available(use, arch, suite)
    except UserError as error:
        yield Check(_SECTION, name, "missing", error.message, error.hint)
        return
    if kernel is not None:
        taken = counted.find_survey(kernel, model)
        sizes = "" if taken is None else f", base pages of {taken.page_size >> 10}k"
        yield Check(_SECTION, name, "ok", f"{kernel.release}{sizes}")
        return
    if use.build is None:
        yield Check(_SECTION, name, "ok", f"{use.package} of Debian {suite}: the first run fetches it")
        return
    yield from (_missing(name, lacked) for lacked in kernels.missing(use, arch))
    yield Check(
        _SECTION,
        name,
        "limited",
        f"the first run builds it by the recipe {use.build}, {kernels.build_cost()}",
    )


def _missing(name: str, lacking: Missing) -> Check:
    packages = tuple((lacking.package or "").split())
    return Check(_SECTION, name, "missing", lacking.reason, _install(packages), packages)


def _install(packages: tuple[str, ...]) -> str | None:
    return f"apt install {' '.join(packages)}" if packages else None
