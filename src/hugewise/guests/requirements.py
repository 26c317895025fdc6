"""What `hugewise doctor STUDY` says of a study whose arms run in guests; nothing is fetched, built or booted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hugewise.errors import UserError
from hugewise.guests import accelerator, debian, disks, image, initramfs, kernels, nfs, program, provided, qmp, survey
from hugewise.guests.hosting import qemu_account
from hugewise.host import network
from hugewise.model.check import Check, State
from hugewise.model.guest import PAGE_OF, Architecture
from hugewise.model.results import LeftOut
from hugewise.model.workload import Missing
from hugewise.study.guest import GuestUse, KernelUse
from hugewise.study.study import Study

__all__ = ["checks", "refusals"]

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
    yield _qemu(arch, use.qemu)
    if qmp.missing():
        yield Check(_SECTION, "qemu.qmp", "missing", qmp.LACKING, qmp.CURE)
    agent = initramfs.guest_probe(arch)
    yield _missing("agent", agent) if isinstance(agent, Missing) else Check(_SECTION, "agent", "ok", str(agent))
    yield _accelerator(study, arch)
    yield from _root(study, privileged=privileged)
    wanted = sorted({*use.packages, *packages})
    # What a study refuses cannot be had: a guest that counts has no image.
    made = bool(wanted or use.sources) and use.image is None and provided.without_disk(use, wanted) is None
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
    yield from _disks(use)
    if use.image is not None:
        return
    if (why := provided.without_disk(use, wanted)) is not None:
        yield Check(_SECTION, "image", "missing", why, provided.FOR_A_DISK)
    elif made:
        yield from (_missing("image", each) for each in ([] if cached else image.missing()))
        sources = f"; sources of {' '.join(use.sources)}" if use.sources else ""
        when = "in the cache" if cached else "made by the first run"
        takes = "" if cached else f"; {image.takes(wanted, arch, use.suite)}"
        yield Check(_SECTION, "image", "ok", f"{when}, of Debian {use.suite}: {' '.join(wanted)}{sources}{takes}")


def refusals(left_out: Iterable[LeftOut], *, nothing: bool) -> Iterator[Check]:
    """What a dry run leaves out for another reason than a package: each reason once. `nothing`: no cell is left."""
    reasons: dict[str, list[str]] = {}
    for left in left_out:
        reasons.setdefault(left.reason, []).append(left.what)
    for reason, of in reasons.items():
        more = f" and {len(of) - 1} more" if len(of) > 1 else ""
        yield Check(_SECTION, f"{of[0]}{more}", "missing" if nothing else "limited", f"left out: {reason}")


def _disks(use: GuestUse) -> Iterator[Check]:
    """Disks of one's own: that they are there, and that nobody writes them."""
    try:
        root, others = disks.of_study(use)
    except UserError as error:
        yield Check(_SECTION, "disks", "missing", error.message, error.hint)
        return
    for name, each in [("image", root), *(("disk", disk) for disk in others)]:
        if each is None:
            continue
        try:
            disks.must_be_free(each)
        except UserError as error:
            yield Check(_SECTION, name, "missing", error.message, error.hint)
        else:
            below = f", which stands on {each.files[1].path}" if each.files[1:] else ""
            said = f"{each.files[0].path} ({each.files[0].format}){below}: read alone, through a throw-away overlay"
            yield Check(_SECTION, name, "ok", said)


def _root(study: Study, *, privileged: bool) -> Iterator[Check]:
    """What of the study only root can have on this host."""
    use = study.guest
    assert use is not None
    pools = [each.name for each in study.policies if PAGE_OF.keys() & set(each.backed_by.kinds)]
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


def _qemu(arch: Architecture, named: str | None) -> Check:
    lacking = program.missing(arch, named)
    if lacking is not None:
        return _missing("QEMU", lacking)
    return Check(_SECTION, "QEMU", "ok", program.version(program.find(arch, named)))


def _accelerator(study: Study, arch: Architecture) -> Check:
    use = study.guest
    assert use is not None
    if use.counting:
        return Check(_SECTION, "accelerator", "ok", "tcg: instructions are counted by emulation")
    if use.accelerator == "tcg":
        told = "tcg: counts and sizes, and never a time (as the study says)"
        return Check(_SECTION, "accelerator", "limited", told, 'write accelerator = "auto" where there is KVM')
    no = accelerator.refusal(arch)
    if no is None:
        return Check(_SECTION, "accelerator", "ok", "KVM is tried when a run begins, by a boot of 10 s at most")
    if use.accelerator == "kvm":
        cure = f'{no.cure}; or write accelerator = "auto" to be emulated instead'
        return Check(_SECTION, "accelerator", "missing", no.why, cure)
    return Check(_SECTION, "accelerator", "limited", f"tcg: counts and sizes, and never a time ({no.why})", no.cure)


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
        yield Check(_SECTION, name, "ok", f"{kernels.fetched_by(use, arch, suite)}: the first run fetches it")
        return
    yield from (_missing(name, each) for each in kernels.missing(use, arch))
    yield Check(
        _SECTION,
        name,
        "limited",
        f"the first run builds it by the recipe {use.build}, {kernels.build_takes()}",
        f"hugewise guest kernel build {use.build}",
    )


def _missing(name: str, lacking: Missing) -> Check:
    packages = tuple((lacking.package or "").split())
    return Check(_SECTION, name, "missing", lacking.reason, _install(packages), packages)


def _install(packages: tuple[str, ...]) -> str | None:
    return f"apt install {' '.join(packages)}" if packages else None
