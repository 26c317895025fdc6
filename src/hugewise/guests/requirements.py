"""What `hugewise doctor STUDY` says of a study whose arms run in guests; nothing is fetched, built or booted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hugewise.doctor import Check
from hugewise.errors import UserError
from hugewise.guests import accelerator, initramfs, kernels, network, nfs, program, provided, survey
from hugewise.guests.definition import Architecture
from hugewise.study import Study
from hugewise.study_guest import KernelUse, kernel_of
from hugewise.workload import Missing

__all__ = ["checks"]

_SECTION = "its guests"


def checks(study: Study, packages: Iterable[str]) -> Iterator[Check]:
    """What this host has of what the guests of `study` need, in the order in which a run asks for it.

    `packages` are those that its workloads need. Raises UserError where the architecture is none of a guest's.
    """
    use = study.guest
    assert use is not None
    arch = provided.architecture(use)
    yield _qemu(arch)
    agent = initramfs.guest_probe(arch)
    yield _missing("agent", agent) if isinstance(agent, Missing) else Check(_SECTION, "agent", "ok", str(agent))
    yield _accelerator(study, arch)
    for kernel in {kernel_of(study, each).name: kernel_of(study, each) for each in study.policies}.values():
        yield from _kernel(kernel, arch, kernel.suite or use.suite, provided.emulated_model(use))
    if use.network == "tap":
        yield from (_missing("network", each) for each in network.missing())
    if use.nfs:
        yield from (_missing("NFS server", each) for each in nfs.missing())
    wanted = sorted({*use.packages, *packages})
    if (why := provided.without_disk(use, wanted)) is not None:
        yield Check(_SECTION, "image", "missing", why, provided.FOR_A_DISK)
    elif wanted or use.sources:
        sources = f"; sources of {' '.join(use.sources)}" if use.sources else ""
        yield Check(
            _SECTION, "image", "ok", f"made by the first run, of Debian {use.suite}: {' '.join(wanted)}{sources}"
        )


def _qemu(arch: Architecture) -> Check:
    lacking = program.missing(arch)
    if lacking is not None:
        return _missing("QEMU", lacking)
    return Check(_SECTION, "QEMU", "ok", program.version(program.find(arch)))


def _accelerator(study: Study, arch: Architecture) -> Check:
    use = study.guest
    assert use is not None
    if use.counting:
        return Check(_SECTION, "accelerator", "ok", "tcg: instructions are counted by emulation")
    why = "as the study says" if use.accelerator == "tcg" else accelerator.refusal(arch)
    if why is None:
        return Check(_SECTION, "accelerator", "ok", "KVM is tried when a run begins, by a boot of 10 s at most")
    if use.accelerator == "kvm":
        return Check(_SECTION, "accelerator", "missing", why, 'write accelerator = "auto" to be emulated instead')
    return Check(
        _SECTION, "accelerator", "limited", f"tcg: counts and sizes, and never a time ({why})", "measure on a KVM host"
    )


def _kernel(use: KernelUse, arch: Architecture, suite: str, model: str) -> Iterator[Check]:
    name = f"kernel {use.name}"
    try:
        found = kernels.available(use, arch, suite)
    except UserError as error:
        yield Check(_SECTION, name, "missing", error.message, error.hint)
        return
    if found is not None:
        taken = survey.find(found, model)
        sizes = "" if taken is None else f", base pages of {taken.page_size >> 10}k"
        yield Check(_SECTION, name, "ok", f"{found.release}{sizes}")
        return
    if use.build is None:
        yield Check(_SECTION, name, "ok", f"{use.package} of Debian {suite}: the first run fetches it")
        return
    yield from (_missing(name, each) for each in kernels.missing(use, arch))
    yield Check(
        _SECTION,
        name,
        "limited",
        f"the first run builds it by the recipe {use.build}, which takes minutes",
        f"hugewise guest kernel build {use.build}",
    )


def _missing(name: str, lacking: Missing) -> Check:
    cure = f"apt install {lacking.package}" if lacking.package else None
    return Check(_SECTION, name, "missing", lacking.reason, cure, tuple((lacking.package or "").split()))
