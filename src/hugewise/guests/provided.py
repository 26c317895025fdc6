"""What the guests of a study need, had before anything is planned: kernels and their surveys, an image, an accelerator.

`provide` fetches and builds what is not in the cache yet, and says so; `look` only looks. Nothing is installed on this
host, and what is fetched goes into the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hugewise.errors import UserError
from hugewise.guests import accelerator, boot, disks, image, initramfs, kernels, own_image, program, survey
from hugewise.guests.accelerator import Choice, NoKvm
from hugewise.guests.debian import Say
from hugewise.guests.hosting import for_one_boot
from hugewise.guests.kernels.modules import without_disks, without_nfs
from hugewise.machine import programs
from hugewise.machine.agent import Agent
from hugewise.machine.foreign import heard
from hugewise.machine.remote import RemoteMachine
from hugewise.model.guest import HARDWARE, Architecture, Backing, Disk, Image, Initramfs, Kernel
from hugewise.model.guest_record import GuestsRecord, KernelRecord, Option
from hugewise.model.workload import Missing
from hugewise.plan.arms import Platform
from hugewise.study.guest import GuestUse, KernelUse
from hugewise.study.study import Study

__all__ = ["FOR_A_DISK", "ForImage", "Provided", "look", "provide", "wanted_kernels", "without_disk"]

_SOURCES = "/usr/src"

FOR_A_DISK = "remove counting = true from [guest], or these workloads from the study"


class ForImage(NamedTuple):
    """Debian packages, each once, that are lacked by the workloads of a part of a study, and by those of the whole."""

    part: tuple[str, ...]
    whole: tuple[str, ...]


@dataclass(frozen=True)
class Provided:
    """What is there for a study's guests: `venue.GuestHouse`.

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
    surveys: Mapping[str, survey.Survey | str] = field(default_factory=dict)
    pending: bool = False
    initramfs: Mapping[str, Initramfs] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether the guests' clock means nothing."""
        return self.choice.accelerator == "tcg"

    @property
    def counting(self) -> bool:
        """Whether the guests' instructions are counted."""
        return self.use.counting

    @property
    def resident(self) -> bool:
        """Whether one guest is there for all attempts of a session."""
        return self.use.resident

    @property
    def memory(self) -> int:
        """Bytes of memory of each guest."""
        return self.use.memory

    @property
    def cpu(self) -> str:
        """QEMU's CPU model."""
        return cpu_model(self.use, self.choice)

    def machine(self, kernel: str) -> Platform | str:
        """A guest under that kernel as its survey found it, or why there can be none.

        One that is still to be asked is planned as if it had every page size.
        """
        found = self.surveys[kernel]
        if isinstance(found, str):
            if not self.pending:
                return found
            found, sizes = survey.unasked()
            return Platform(survey.Surveyed(found, kernel), sizes, "system")
        return Platform(survey.Surveyed(found, kernel), found.sizes, "system")

    def versions(self) -> Mapping[str, str]:
        """What takes part in a run, by name: QEMU and accelerator, kernels, the agent with their modules, image."""
        found = {
            "qemu": program.version(program.find(self.arch, self.use.qemu)),
            "accelerator": f"{self.choice.accelerator}: {self.choice.why}",
            "cpu model": self.cpu,
        }
        for name, kernel in self.kernels.items():
            if isinstance(kernel, Kernel):
                found[f"kernel {name}"] = f"{kernel.release}, SHA-256 {kernel.digest[:16]}, {kernel.origin}"
        for name, agent in self.initramfs.items():
            found[f"initramfs {name}"] = f"SHA-256 {agent.digest[:16]}"
        if self.image.drive:
            found["image"] = self.image.digest[:16]
        return found

    def identity(self, kernel: str, backing: Backing) -> Mapping[str, Any]:
        """What makes a guest under that kernel another machine than others, with values that JSON has."""
        found = self.kernels[kernel]
        return {
            "accelerator": self.choice.accelerator,
            "backing": backing.said(),
            "counting": self.counting,
            "cpu": self.cpu,
            "cpus": self.use.cpus,
            "kernel": found.digest if isinstance(found, Kernel) else "",
            "memory": self.memory,
            **({"resident": True} if self.resident else {}),  # what is kept of others from before is found by the rest
        }

    def record(self, study: Study) -> GuestsRecord:
        """What the run's folder keeps of them. The configurations of the kernels are compared here and now."""
        wanted = {use.name: use for use in wanted_kernels(study)}
        named = next(use for use in study.policies if use.name == study.compared_with)
        baseline = study.kernel_of(named).name
        first = self.kernels[baseline]
        kept = []
        for name, kernel in self.kernels.items():
            if not isinstance(kernel, Kernel) or not isinstance(first, Kernel):
                continue
            found = kernels.difference(first, kernel)
            use = wanted[name]
            kept.append(
                KernelRecord(
                    name=name,
                    release=kernel.release,
                    origin=kernel.origin,
                    sha256=kernel.digest,
                    had="build" if use.build is not None else "package" if use.package is not None else "path",
                    base_page=kernels.base_page(kernel) or self._surveyed_page(name),
                    differs=None if found is None else tuple(Option(d.symbol, d.first, d.second) for d in found),
                )
            )
        return GuestsRecord(
            arch=self.arch,
            accelerator=self.choice.accelerator,
            why=self.choice.why,
            counting=self.use.counting,
            resident=self.resident,
            baseline=baseline,
            kernels=tuple(kept),
            packages=dict(self.image.packages),
        )

    def _surveyed_page(self, kernel: str) -> int | None:
        """Bytes of its base page as it said when it was booted: a kernel by path may have no configuration."""
        found = self.surveys.get(kernel)
        return found.page_size if isinstance(found, survey.Survey) else None

    def within(self) -> AbstractContextManager[None]:
        """Meanwhile programs are looked for in the image."""
        return programs.looking_in(
            self.image.programs,
            packages=dict(self.image.packages),
            files=self.image.files,
            cpus=self.use.cpus,
            machine=HARDWARE[self.arch],
        )


def cpu_model(use: GuestUse, choice: Choice) -> str:
    """The model that the study names; else the host's own under KVM, or all that QEMU can emulate.

    QEMU is told it less what emulation does badly: `qemu.cpu_model`.
    """
    return use.cpu or ("host" if choice.accelerator == "kvm" else "max")


def emulated_model(use: GuestUse) -> str:
    """The CPU model of an emulated guest."""
    return cpu_model(use, Choice("tcg", ""))


def architecture(use: GuestUse) -> Architecture:
    """The guests' architecture. Raises UserError where it is to be the host's and QEMU knows no such guests."""
    if use.arch is not None:
        return use.arch
    here = os.uname().machine
    for arch, hardware in HARDWARE.items():
        if hardware == here:
            return arch
    raise UserError(f"guests of {here} are not supported", hint='name another: [guest] arch = "x86-64"')


def without_disk(use: GuestUse, packages: Iterable[str]) -> str | None:
    """Why the guests cannot have the packages that workloads need, or None: one that counts has no disk."""
    wanted = " ".join(sorted(packages))
    return f"a counting guest runs micro-workloads alone, and others need {wanted}" if use.counting and wanted else None


def missing(use: GuestUse) -> tuple[Missing, ...]:
    """What this host lacks to run the guests: QEMU, and the agent that runs in them."""
    arch = architecture(use)
    lacking = [program.missing(arch, use.qemu)]
    agent = initramfs.guest_probe(arch)
    if isinstance(agent, Missing):
        lacking.append(agent)
    return tuple(each for each in lacking if each is not None)


def provide(study: Study, packages: Callable[[Provided], ForImage], say: Say) -> Provided:
    """Have everything that the guests of `study` need.

    `packages` plans with what is there and returns the Debian packages that its workloads lack: the image is made of
    those of the whole study and of what it names. Raises UserError where this host lacks a program, or guests that
    count would need an image; HugewiseError where something cannot be fetched or built.
    """
    use, arch = _begin(study)
    found: dict[str, Kernel | str] = {}
    for wanted in wanted_kernels(study):
        kernel = kernels.provide(wanted, arch, wanted.suite or use.suite, say)
        kernel = kernel if use.image is not None else without_disks(kernel)
        found[wanted.name] = kernel if use.nfs else without_nfs(kernel)
    choice = _accelerator(use, [each for each in found.values() if isinstance(each, Kernel)])
    if use.accelerator == "auto" and not use.counting and choice.accelerator == "tcg":
        say(_emulated(choice))
    surveys: dict[str, survey.Survey | str] = {}
    agents: dict[str, Initramfs] = {}
    for name, had in found.items():
        assert isinstance(had, Kernel)
        surveys[name] = _surveyed(had, use, choice, say)
        agents[name] = initramfs.told(initramfs.build(had))
    bare = Provided(use, arch, choice, Image(arch=arch), found, surveys, initramfs=agents)
    own, beside = own_disks(use)
    if own is not None:
        name, kernel = next((name, each) for name, each in found.items() if isinstance(each, Kernel))
        booted = own_image.Booting(kernel, agents[name], choice.accelerator, bare.cpu, use.qemu)
        seen = own_image.image(own, use, booted, say)
        return replace(bare, image=seen, disks=beside)
    bare = replace(bare, disks=beside)
    lacking = packages(bare)
    if (why := without_disk(use, lacking.part)) is not None:
        raise UserError(f"{study.name}: {why}", hint=FOR_A_DISK)
    return replace(bare, image=_image(use, arch, lacking, say))


def look(study: Study) -> Provided:
    """What is there already, and what a run does first: nothing is fetched, built or booted here.

    A kernel without a survey is a reason in words.
    """
    assert study.guest is not None
    use, arch = study.guest, architecture(study.guest)
    found: dict[str, Kernel | str] = {}
    surveys: dict[str, survey.Survey | str] = {}
    first = []
    choice = (
        Choice("tcg", "not tried yet") if use.accelerator == "auto" else Choice(use.accelerator, "as the study says")
    )
    if use.accelerator == "auto" and not use.counting:
        no = accelerator.refusal(arch)
        first.append("KVM is tried, by a boot of 10 s at most" if no is None else _emulated(no))
    if use.resident:
        first.append("one guest is booted with the first attempt, for all attempts: verdicts are for this boot")
    for wanted in wanted_kernels(study):
        kernel = kernels.available(wanted, arch, wanted.suite or use.suite)
        found[wanted.name] = kernel or f"the kernel {wanted.name} is not in the cache yet: the first run fetches it"
        taken = survey.find(kernel, cpu_model(use, choice)) if kernel is not None else None
        surveys[wanted.name] = taken or f"the kernel {wanted.name} was not booted yet: the first run asks it"
        if kernel is None:
            first.append(_to_have(wanted, arch, wanted.suite or use.suite))
    if unasked := [name for name, taken in surveys.items() if isinstance(taken, str)]:
        first.append(
            f"{', '.join(unasked)}: booted once and asked for page sizes. Until then arms are planned as if there were"
            " all; those whose kernel lacks theirs are left out when the run begins"
        )
    if use.image is not None:
        own, _ = disks.of_study(use)
        assert own is not None
        seen = own_image.known(own, use, arch)
        first += [] if seen is not None else [f"{use.image}: booted once and asked for its programs"]
        planned = seen or Image(arch=arch)
    else:
        # Archives of sources will be there by names that begin so.
        planned = Image(arch=arch, files=tuple(f"{_SOURCES}/{name}_VERSION.orig.tar.xz" for name in use.sources))
    return Provided(use, arch, choice, planned, found, surveys, pending=True, first=tuple(first))


def _to_have(kernel: KernelUse, arch: Architecture, suite: str) -> str:
    """How a run has a kernel that is not in the cache."""
    if kernel.build is None:
        return f"the kernel {kernel.name} is fetched: {kernels.fetched_by(kernel, arch, suite)}"
    return f"the kernel {kernel.name} is built by the recipe {kernel.build}: {kernels.build_takes()}"


def _begin(study: Study) -> tuple[GuestUse, Architecture]:
    assert study.guest is not None
    lacking = missing(study.guest)
    if lacking:
        packages = " ".join(each.package for each in lacking if each.package)
        raise UserError(
            f"{study.name} runs in guests: " + "; ".join(each.reason for each in lacking),
            hint=f"apt install {packages}" if packages else "see: hugewise doctor",
        )
    return study.guest, architecture(study.guest)


def wanted_kernels(study: Study) -> list[KernelUse]:
    """The kernels that arms of the study boot, each once."""
    return list({kernel.name: kernel for kernel in (study.kernel_of(use) for use in study.policies)}.values())


def _accelerator(use: GuestUse, found: list[Kernel]) -> Choice:
    """One accelerator for the whole run. Raises UserError where the study insists on KVM and it does not work."""
    if use.counting:
        return Choice("tcg", "instructions are counted by emulation")
    if use.accelerator == "tcg":
        return Choice("tcg", "as the study says")
    choice = accelerator.choose(found[0], initramfs.build(found[0]), use.qemu)
    if use.accelerator == "kvm" and choice.accelerator != "kvm":
        cure = f"{choice.cure}; or " if choice.cure else ""
        hint = f'{cure}write accelerator = "auto" to be emulated instead'
        raise UserError(f'accelerator = "kvm": {choice.why}', hint=hint)
    return choice


def _emulated(choice: NoKvm | Choice) -> str:
    """That `auto` emulates, why, and what would give KVM."""
    cure = f" (for KVM: {choice.cure})" if choice.cure else ""
    why = choice.why.removeprefix("no KVM: ")
    return f"guests are emulated, so that counts and sizes are measured and never a time; no KVM: {why}{cure}"


def _surveyed(kernel: Kernel, use: GuestUse, choice: Choice, say: Say) -> survey.Survey:
    """The survey of a kernel, taken now if need be: a guest is booted, asked, and ended."""
    model = cpu_model(use, choice)
    if (found := survey.find(kernel, model)) is not None:
        return found
    say(f"asking {kernel.name} ({kernel.release}) once for its page sizes")
    guest = accelerator.bare(kernel, choice.accelerator, cpu=model)
    here, qemu = initramfs.build(kernel), program.find(kernel.arch, use.qemu)
    with for_one_boot() as hosting, boot.boot(guest, here, hosting, program=qemu) as booted:
        agent = Agent(booted.agent, f"guest {kernel.name}", booted.error)
        hello = agent.hello()
        machine = RemoteMachine(agent, emulated=choice.accelerator == "tcg")
        with heard(agent.name, "its page sizes"):
            found = survey.take(machine.host, hello.release, hello.page_size)
        agent.close()
    survey.keep(kernel, model, found)
    return found


def _image(use: GuestUse, arch: Architecture, packages: ForImage, say: Say) -> Image:
    """The image that workloads run in, of the whole study; without packages there is nothing but the agent."""
    part, whole = (tuple(dict.fromkeys((*use.packages, *each))) for each in packages)
    if not part and not use.sources:
        return Image(arch=arch, programs=tuple(use.files))
    files = {path: Path(here) for path, here in use.files.items()}
    try:
        return image.image(whole, arch, use.suite, sources=use.sources, files=files, say=say)
    except UserError as error:
        if set(part) == set(whole):
            raise
        # What another workload needs and nobody has is no reason against this one.
        say(f"no image of the whole study ({error.message}): one is made of what was chosen of it")
        return image.image(part, arch, use.suite, sources=use.sources, files=files, say=say)


def own_disks(use: GuestUse) -> tuple[Disk | None, tuple[Disk, ...]]:
    """Those that a study names, which nobody else writes now. Raises UserError."""
    own, beside = disks.of_study(use)
    for each in (*beside, *([] if own is None else [own])):
        disks.must_be_free(each)
    return own, beside
