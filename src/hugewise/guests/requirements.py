"""What `hugewise doctor STUDY` says of a study whose arms run in guests; nothing is fetched, built or booted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hugewise.errors import UserError
from hugewise.guests import accelerator, debian, image, initramfs, kernels, nfs, program, provided, survey
from hugewise.guests.hosting import qemu_account
from hugewise.host import network
from hugewise.model.check import Check, State
from hugewise.model.guest import PAGE_OF, Architecture
from hugewise.model.results import LeftOut
from hugewise.model.workload import Missing
from hugewise.study.guest import KernelUse
from hugewise.study.study import Study

__all__ = ["checks"]

_SECTION = "its guests"


def checks(
    study: Study, packages: Iterable[str], beside: Iterable[LeftOut] = (), *, privileged: bool
) -> Iterator[Check]:
    """What this host has of what the guests of `study` need, in the order in which a run asks for it.

    `packages` are those that its workloads need in the guests, `beside` what they need on this host and do not find;
    `privileged`: this is root. Raises UserError where the architecture is none of a guest's.
    """
    use = study.guest
    assert use is not None
    arch = provided.architecture(use)
    yield _qemu(arch)
    agent = initramfs.guest_probe(arch)
    yield _missing("agent", agent) if isinstance(agent, Missing) else Check(_SECTION, "agent", "ok", str(agent))
    yield _accelerator(study, arch)
    yield from _root(study, privileged=privileged)
    wanted = sorted({*use.packages, *packages})
    # What a study refuses cannot be had: a guest that counts has no image.
    made = bool(wanted or use.sources) and provided.without_disk(use, wanted) is None
    cached = made and image.cached(wanted, arch, use.suite, use.sources)
    used = provided.wanted_kernels(study)
    if (made and not cached) or any(_to_fetch(kernel, arch, kernel.suite or use.suite) for kernel in used):
        yield from (_missing("packages", each) for each in debian.missing())
    for kernel in used:
        yield from _kernel(kernel, arch, kernel.suite or use.suite, provided.emulated_model(use))
    yield Check(
        _SECTION,
        "policies",
        "ok",
        "each kernel is asked for its own when it is first booted; those of this host, its TLBs and its counters are"
        " not theirs (hugewise doctor, without a study, lists them)",
    )
    if use.network == "tap":
        account = qemu_account(privileged=privileged)
        lacking = network.missing(None if account is None else account.pw_uid)
        yield from (_missing("network", each) for each in lacking)
    if use.nfs:
        yield from (_missing("NFS server", each) for each in nfs.missing())
    for left in beside:
        yield Check(_SECTION, left.cell, "missing", left.reason, _install(left.packages), left.packages)
    if (why := provided.without_disk(use, wanted)) is not None:
        yield Check(_SECTION, "image", "missing", why, provided.FOR_A_DISK)
    elif made:
        yield from (_missing("image", each) for each in ([] if cached else image.missing()))
        sources = f"; sources of {' '.join(use.sources)}" if use.sources else ""
        when = "in the cache" if cached else "made by the first run"
        yield Check(_SECTION, "image", "ok", f"{when}, of Debian {use.suite}: {' '.join(wanted)}{sources}")


def _root(study: Study, *, privileged: bool) -> Iterator[Check]:
    """What of the study only root can have on this host."""
    use = study.guest
    assert use is not None
    pools = [each.name for each in study.policies if each.backed_by.pages in PAGE_OF]
    needing = [
        *(['network = "tap"'] if use.network == "tap" else []),
        *(["nfs = true"] if use.nfs else []),
        *([f"memory from a pool of this host ({', '.join(pools)})"] if pools else []),
    ]
    if not needing:
        return
    told = ", ".join(needing)
    if privileged:
        yield Check(_SECTION, "root", "ok", f"for {told}")
    else:
        # Without a pool its arms are left out; without the other two nothing runs.
        state: State = "missing" if use.nfs or use.network == "tap" else "limited"
        yield Check(_SECTION, "root", state, f"an ordinary user cannot have {told}", "sudo hugewise run ...")


def _to_fetch(use: KernelUse, arch: Architecture, suite: str) -> bool:
    """Whether Debian packages are fetched for the kernel: its own, or the source that it is built from."""
    try:
        return use.path is None and kernels.available(use, arch, suite) is None
    except UserError:
        return False  # said of the kernel


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
        f"the first run builds it by the recipe {use.build}, {provided.BUILD_TAKES}",
        f"hugewise guest kernel build {use.build}",
    )


def _missing(name: str, lacking: Missing) -> Check:
    packages = tuple((lacking.package or "").split())
    return Check(_SECTION, name, "missing", lacking.reason, _install(packages), packages)


def _install(packages: tuple[str, ...]) -> str | None:
    return f"apt install {' '.join(packages)}" if packages else None
