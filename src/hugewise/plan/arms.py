"""From a policy as a study uses it to an arm on this machine, or why the machine cannot offer it.

Pure but for the files that policies read through `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hugewise.model.guest import Backing
from hugewise.model.host import Host
from hugewise.model.pages import THP, PageSizes, PageTarget
from hugewise.model.policy import Mechanism, Policy, Treatment
from hugewise.model.trial import Judged
from hugewise.quantity import format_size, parse_size
from hugewise.study import keys
from hugewise.study.keys import Place
from hugewise.study.tables import PolicyUse

__all__ = ["Arm", "Platform", "offered"]

_SIZED = re.compile(r"(mthp|hugetlb|reserved|surplus)-(.+?)(-shmem)?")


class Arm(msgspec.Struct, frozen=True):
    """One policy within a cell. `name` is the study's; `policy` the registered one behind it.

    `judged` is what the study declares of it; see `Cell.threshold` for what that means. Of an arm in guests: the kernel
    that they boot, by its name in the study, and what their memory is made of.
    """

    name: str
    policy: Policy
    treatment: Treatment
    judged: Judged = "backing"
    kernel: str | None = None
    backing: Backing | None = None


class Platform(msgspec.Struct, frozen=True):
    """The machine's three sides: its files, its page sizes, and by what mechanism policies reach a program here."""

    host: Host
    sizes: PageSizes
    mechanism: Mechanism


def offered(use: PolicyUse, place: Place, policies: Mapping[str, Policy], machine: Platform) -> Arm | str:
    """The arm, or why this machine cannot offer it. Raises StudyError for a mistake of the study."""
    host, sizes, mechanism = machine.host, machine.sizes, use.mechanism or machine.mechanism
    registered = policies.get(use.registered)
    if registered is None:
        return _absent(use.registered, place, policies, sizes)
    if (use.changed or use.registered != use.name) and use.name in policies:
        raise place.at("name").wrong(
            "is the name of a registered policy, but it is changed here",
            use.name,
            hint="give the changed policy a name of its own",
        )
    reason = registered.missing(host, sizes, mechanism)
    if reason is not None:
        return reason
    treatment = registered.treatment(host, sizes, mechanism)
    if not use.changed:
        return Arm(use.name, registered, treatment, use.judged or "backing")
    if use.set and mechanism != "system":
        knobs = ", ".join(use.set)
        own = machine.mechanism == "system"  # the study's word, not the machine's
        return f"turning {knobs} needs " + ('mechanism = "system"' if own else "root")
    for knob, value in use.set.items():
        refusal = _knob_refuses(host, knob, value)
        if refusal is not None:
            return refusal
    if use.thp_disable:
        if treatment.map_hugetlb is not None:
            raise place.at("thp_disable").wrong(
                "does not reach pages of a pool", use.registered, hint="change a policy of transparent huge pages"
            )
        base = PageTarget("base", sizes.base)
        treatment = msgspec.structs.replace(treatment, thp_disable="all", advice="none", target=base)
    if use.layout:
        if not treatment.layout or treatment.target.kind == "hugetlb":
            hint = 'change one of those: from = "layout-thp", or from = "layout-base"'
            raise place.at("layout").wrong("is for the policies layout-thp and layout-base", use.layout, hint=hint)
        kind = use.layout.split(",")[0]
        # What a part of the heap is to have, or the system's setting, is no promise of all of it.
        any_size = PageTarget("any", sizes.base)
        target = treatment.target if kind == treatment.layout else any_size
        treatment = msgspec.structs.replace(treatment, layout=use.layout, target=target)
    changed = msgspec.structs.replace(
        treatment,
        policy=use.name,
        knobs={**treatment.knobs, **{f"{THP}/{knob}": value for knob, value in use.set.items()}},
        environment={**treatment.environment, **use.environment},
    )
    return Arm(use.name, registered, changed, use.judged or "backing")


def _absent(name: str, place: Place, policies: Mapping[str, Policy], sizes: PageSizes) -> str:
    """Why a policy that is not registered here is left out. Raises StudyError where no machine would have it."""
    if (name == "thp" or name.startswith("thp-")) and sizes.pmd is None:
        return "the kernel has no transparent huge pages"
    sized = _SIZED.fullmatch(name)
    size = _power_of_two(sized[2]) if sized else None
    if sized is None or size is None:
        raise place.wrong("is not a policy", name, hint=keys.near(name, policies.keys(), what="policies"))
    shared = sized[3] or ""
    canonical = f"{sized[1]}-{format_size(size)}{shared if sized[1] == 'mthp' else ''}"
    if canonical in policies or (shared and sized[1] != "mthp"):
        raise place.wrong("is not a policy", name, hint=f"did you mean {canonical}?")
    here = sizes.hugetlb if sized[1] != "mthp" else sizes.shmem if shared else sizes.mthp
    words = "transparent huge pages (mTHP)" if sized[1] == "mthp" else "pool of hugetlb pages"
    words += " for shared memory" if shared else ""
    offered = ", ".join(format_size(known) for known in here) or "none"
    return f"the kernel has no {words} of {format_size(size)} (it has: {offered})"


def _power_of_two(text: str) -> int | None:
    try:
        size = parse_size(text)
    except ValueError:
        return None
    return size if size > 0 and size & (size - 1) == 0 else None


def _knob_refuses(host: Host, knob: str, value: str) -> str | None:
    path = f"{THP}/{knob}"
    try:
        now = host.read(path)
    except OSError:
        return f"the kernel has no {path}"
    offered = now.replace("[", "").replace("]", "").split()
    if "[" in now and value not in offered:
        return f"{path} does not take {value!r} (it takes: {', '.join(offered)})"
    return None
