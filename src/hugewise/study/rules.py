"""Rules by which the keys of a study file must agree, whatever the machine; also the keys of guests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hugewise import published
from hugewise.model import pages
from hugewise.model.guest import PAGE_OF
from hugewise.quantity import format_size
from hugewise.study import keys
from hugewise.study.guest import NFS, GuestUse
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import Design, Slots
from hugewise.study.workload import ParameterInput, WorkloadUse


def check(study: Study, place: Place) -> None:
    """Check that the keys of the study agree with each other, at every scale. Raises StudyError."""
    _check_method(study, place)
    _check_policies(study, place)
    _check_workloads(study, place)
    _check_design(study.design, place.at("design"))
    _check_published(study, place)
    _check_ages(study, place)
    for scale, changed in study.scales.items():
        if changed.design is not None:
            _check_design(changed.design, place.at("scales").at(scale).at("design"))


def _check_method(study: Study, place: Place) -> None:
    place.at("end_points").once(study.end_points)
    if study.method != "sequential":
        for key, value in (("end_points", list(study.end_points)), ("unjudged", list(study.unjudged))):
            if value:
                hint = 'write method = "sequential"'
                raise place.at(key).wrong(f"has no part in the method {study.method}", value, hint=hint)
    _check_unjudged(study, place)


def _check_unjudged(study: Study, place: Place) -> None:
    here, given = place.at("unjudged"), list(study.unjudged)
    names = [use.name for use in study.policies]
    here.once(given)
    for number, name in enumerate(given, 1):
        if name not in names:
            raise here.item(number).wrong("is not one of the study's policies", name, hint=keys.near(name, names))
        if name == study.compared_with:
            raise here.item(number).wrong("is the baseline", name, hint="remove it: the others are compared with it")
    for use in study.workload if given else ():
        for own in (use.policies, *(entry.workload.policies for entry in use.scales.values())):
            if not {*(names if own is None else own)} - {study.compared_with, *given}:
                raise here.wrong(f"leaves nothing to judge of {use.called}", given, hint="take a policy out of it")


def _check_policies(study: Study, place: Place) -> None:
    names = [use.name for use in study.policies]
    place.at("policies").once(names)
    if study.compared_with not in names:
        raise place.at("baseline").wrong(
            "is not one of the study's policies", study.baseline, hint=keys.near(study.compared_with, names)
        )


def _check_workloads(study: Study, place: Place) -> None:
    names = [use.name for use in study.policies]
    called: set[str] = set()
    for here, use in place.items("workload", study.workload):
        if use.called in called:
            raise here.at("label" if use.label else "name").wrong(
                "two workloads are called so", use.called, hint=f'give this one a label = "{use.called}-2"'
            )
        called.add(use.called)
        _check_chosen(use.policies, names, study.compared_with, here.at("policies"))
        for scale, entry in use.scales.items():
            chosen = here.at("scales").at(scale).at("workload").at("policies")
            _check_chosen(entry.workload.policies, names, study.compared_with, chosen)


def _check_chosen(chosen: tuple[str, ...] | None, names: list[str], baseline: str, place: Place) -> None:
    if chosen is None:
        return
    place.once(chosen)
    for number, policy in enumerate(chosen, 1):
        if policy not in names:
            raise place.item(number).wrong("is not one of the study's policies", policy, hint=keys.near(policy, names))
    if baseline not in chosen:
        raise place.wrong("lacks the baseline", list(chosen), hint=f'add "{baseline}"')


def _check_ages(study: Study, place: Place) -> None:
    for here, use in place.items("workload", study.workload):
        aged = [one for one in use.memory_age if one != "fresh"]
        if not aged:
            continue
        there = here.at("memory_age")
        if study.guest is not None:
            raise there.wrong("ages the memory of this host, not of guests", aged[0], hint="remove it, or [guest]")
        limits = (use.memory, *(entry.workload.memory or use.memory for entry in use.scales.values()))
        if any(pages.pressed(one) for one in aged) and None in limits:
            raise there.wrong("needs a limit that makes the programs swap", aged[0], hint='add: memory = "512m"')
        for arm, policy in place.items("policies", study.policies):
            if policy.judged == "backing" and (use.policies is None or policy.name in use.policies):
                why = "cannot be judged in aged memory: a condition on its pages would choose the attempts with luck"
                raise arm.at("judged").wrong(
                    why, "backing", hint=f'write judged = "setting"; {use.called} has memory_age = "{aged[0]}"'
                )


def _check_design(layout: Design, here: Place) -> None:
    taken: set[int] = set()
    for (there, slot), cpus in zip(here.items("slots", layout.slots), layout.places, strict=True):
        if twice := taken & set(cpus):
            raise there.wrong(f"CPU {min(twice)} is in two slots", slot, hint="remove it from one of them")
        taken |= set(cpus)
    if layout.kind == "interleaved" and layout.slots:
        raise here.at("slots").wrong(
            "all arms that take turns have the same CPUs", list(layout.slots), hint="remove it"
        )


def _check_published(study: Study, place: Place) -> None:
    named = [(here, use.published) for here, use in place.items("workload", study.workload) if use.published]
    if study.published is None:
        cure = f'name the source: published = "{published.names()[0]}", or remove this key'
        if study.published_arms:
            raise place.at("published_arms").wrong("the study names no published source", hint=cure)
        for here, entry in named:
            raise here.at("published").wrong("the study names no published source", entry, hint=cure)
        return
    source = published.load(study.published)
    policies = [use.name for use in study.policies]
    for arm, stands_for in study.published_arms.items():
        here = place.at("published_arms").at(arm)
        if arm not in policies:
            raise here.wrong("is not one of the study's policies", arm, hint=keys.near(arm, policies, what="policies"))
        if stands_for not in source.arms:
            hint = keys.near(stands_for, source.arms, what=f"arms of {source.name}")
            raise here.wrong(f"is not an arm of {source.name}", stands_for, hint=hint)
    for here, entry in named:
        if entry not in source.entries:
            hint = keys.near(entry, source.entries, what=f"entries of {source.name}")
            raise here.at("published").wrong(f"is not an entry of {source.name}", entry, hint=hint)


_MIB = 1 << 20
# The parameter and value by which a workload's server runs on the host beside the guest (`procedure.Server`).
_PEER, _BESIDE = "peer", "host"


def check_guests(study: Study, place: Place) -> None:
    """Check that the keys of guests agree with each other, at every scale. Raises StudyError."""
    if study.guest is None:
        _check_host(study, place)
        return
    _check_kernels(study, study.guest, place)
    guests = [(study.guest, place.at("guest"))]
    for scale, changed in study.scales.items():
        if changed.guest is not None:
            guests.append((changed.guest, place.at("scales").at(scale).at("guest")))
    for guest, here in guests:
        _check_guest(guest, here)
        _check_arms(study, guest, place, here)
    if study.design.first != "sequential":
        cure = 'write kind = "sequential"; for guests that run at once, concurrency = "together" in the workload'
        here = place.at("design").at("kind")
        raise here.wrong("is of processes of one machine, not of guests", study.design.kind, hint=cure)
    for here, use in place.items("workload", study.workload):
        _check_workload(study, use, here)


def _check_host(study: Study, place: Place) -> None:
    # keys of guests mean nothing where there are no guests
    cure = "add a table [guest], or remove this key"
    if study.method == "exact":
        raise place.at("method").wrong(
            "judges counts of guests that are booted anew, and the study has none",
            study.method,
            hint='write method = "sequential"',
        )
    if study.kernel:
        raise place.at("kernel").wrong("is what guests boot, and the study has none", hint=cure)
    for here, use in place.items("policies", study.policies):
        if use.kernel is not None:
            raise here.at("kernel").wrong("is what guests boot, and the study has none", use.kernel, hint=cure)
        if use.backing is not None:
            raise here.at("backing").wrong(
                "is of the memory of guests, and the study has none", use.backing.pages, hint=cure
            )
    for scale, changed in study.scales.items():
        if changed.guest is not None:
            cure = "add a table [guest] to the study, or remove this one"
            raise place.at("scales").at(scale).at("guest").wrong("changes guests, and the study has none", hint=cure)
    for here, used in place.items("workload", study.workload):
        if used.concurrency != ("alone",):
            raise here.at("concurrency").wrong(
                "is of guests, and the study has none", list(used.concurrency), hint=cure
            )
        if used.counted is not None:
            raise here.at("counted").wrong(
                "is judged of emulated guests, and the study has none", used.counted, hint=cure
            )
        for where, storage in _storages(used, here):
            if storage == NFS:
                raise where.wrong("is of guests, and the study has none", storage, hint="name a folder")


def _check_kernels(study: Study, guest: GuestUse, place: Place) -> None:
    if not study.kernel:
        package = "linux-image-arm64" if guest.arch == "arm64" else "linux-image-amd64"
        raise place.at("kernel").wrong(
            "guests need one", hint=f'add a table [[kernel]] with name = "debian" and package = "{package}"'
        )
    names = [kernel.name for kernel in study.kernel]
    for index, (here, kernel) in enumerate(place.items("kernel", study.kernel)):
        if kernel.name in names[:index]:
            raise here.at("name").wrong("two kernels are called so", kernel.name, hint="rename one of them")
        ways = {"package": kernel.package, "build": kernel.build, "path": kernel.path}
        named = [way for way, value in ways.items() if value is not None]
        if len(named) != 1:
            cure = "keep one of them" if named else 'add package = "...", build = "..." or path = "..."'
            said = f"is named in {len(named)} ways: {', '.join(named)}" if named else "is named in no way"
            raise here.wrong(f"the kernel {kernel.name} {said}", hint=cure)
        if kernel.modules is not None and kernel.path is None:
            raise here.at("modules").wrong(
                f"a kernel by {named[0]} brings its own", kernel.modules, hint="remove it, or name the kernel by path"
            )
        if kernel.suite is not None and kernel.path is not None:
            raise here.at("suite").wrong("is of a package, and the kernel is a file", kernel.suite, hint="remove it")
        other = {"x86-64": "arm64", "arm64": "amd64"}.get(guest.arch or "")
        if other is not None and kernel.package is not None and other in kernel.package.split("-"):
            cure = "name a package of that architecture, or change arch of [guest]"
            raise here.at("package").wrong(f"is not of an {guest.arch} kernel", kernel.package, hint=cure)
    for here, use in place.items("policies", study.policies):
        if use.kernel is not None and use.kernel not in names:
            hint = keys.near(use.kernel, names, what="its kernels")
            raise here.at("kernel").wrong("is not one of the study's kernels", use.kernel, hint=hint)


def _check_guest(guest: GuestUse, here: Place) -> None:
    if guest.memory % _MIB:
        whole = format_size(-(-guest.memory // _MIB) * _MIB)
        cure = f'write for example memory = "{whole}"'
        raise here.at("memory").wrong("QEMU gives a guest whole MiB", format_size(guest.memory), hint=cure)
    _check_nodes(guest, here)
    _check_disks(guest, here)
    if guest.pin and len(guest.pin) != guest.cpus:
        said = f"names {len(guest.pin)} virtual CPUs, and the guest has {guest.cpus}"
        raise here.at("pin").wrong(said, [list(cpus) for cpus in guest.pin], hint="write one list for each of them")
    if guest.counting:
        if guest.cpus != 1:
            raise here.at("cpus").wrong("a counting guest has one virtual CPU", guest.cpus, hint="write cpus = 1")
        if guest.accelerator == "kvm":
            cure = 'write accelerator = "tcg", or counting = false'
            raise here.at("accelerator").wrong("KVM cannot count instructions exactly", guest.accelerator, hint=cure)
        if guest.network != "none":
            cure = 'write network = "none", or counting = false'
            raise here.at("network").wrong("nothing reaches a counting guest from outside", guest.network, hint=cure)
        for key, names in (("packages", guest.packages), ("sources", guest.sources)):
            if names:
                cure = "remove it, or write counting = false"
                raise here.at(key).wrong("a counting guest has no disk that they could be on", list(names), hint=cure)
    if guest.nfs and guest.network == "none":
        raise here.at("nfs").wrong("needs a network", guest.nfs, hint='write network = "user"')


def _check_nodes(guest: GuestUse, here: Place) -> None:
    if not guest.node:
        return
    whole = sum(node.memory for node in guest.node)
    if whole != guest.memory:
        said = f"is not what its nodes have together, {format_size(whole)}"
        cure = f'write memory = "{format_size(whole)}"'
        raise here.at("memory").wrong(said, format_size(guest.memory), hint=cure)
    seen = sorted(cpu for node in guest.node for cpu in node.cpus or ())
    if seen != list(range(guest.cpus)):
        cure = f"write cpus in each [[guest.node]], so that each of 0 to {guest.cpus - 1} stands once"
        raise here.at("node").wrong("do not have each of the guest's CPUs once", seen, hint=cure)
    for where, node in here.items("node", guest.node):
        if node.memory % _MIB:
            raise where.at("memory").wrong("QEMU gives a node whole MiB", format_size(node.memory))
    if guest.counting:
        raise here.at("node").wrong("a counting guest has one node", len(guest.node), hint="remove them")


def _check_disks(guest: GuestUse, here: Place) -> None:
    if guest.image is None:
        for key, value in (("image_format", guest.image_format), ("root", guest.root)):
            if value is not None:
                raise here.at(key).wrong("is of a disk of yours, and image names none", value, hint="add image = ...")
    for key, names in (("packages", guest.packages), ("sources", guest.sources)):
        if guest.image is not None and names:
            cure = "install them on that disk, or remove image"
            raise here.at(key).wrong("are not added to a disk of yours", list(names), hint=cure)
    if guest.counting and (guest.image is not None or guest.disk or guest.files):
        key = "image" if guest.image is not None else "disk" if guest.disk else "files"
        raise here.at(key).wrong("a counting guest has no disk", hint="remove it, or write counting = false")


def _check_arms(study: Study, guest: GuestUse, place: Place, here: Place) -> None:
    for there, use in place.items("policies", study.policies):
        _check_peer(use.parameters, guest, there.at("parameters"))
        by_node = use.backed_by.by_node
        if by_node and len(by_node) != len(guest.node):
            cure = "name the pages of each [[guest.node]], or leave it out"
            said = f"names {len(by_node)} nodes, and the guest has {len(guest.node) or 1}"
            raise there.at("backing").at("by_node").wrong(said, list(by_node), hint=cure)
        nodes = [node.memory for node in guest.node] or [guest.memory]
        for number, memory in enumerate(nodes):
            page = PAGE_OF.get(by_node[number] if by_node else use.backed_by.pages, 1)
            if memory % page:
                less, more = memory // page * page, -(-memory // page) * page
                sizes = " or ".join(f'"{format_size(size)}"' for size in (less, more) if size)
                where = here.at("node").item(number + 1) if guest.node else here
                raise where.at("memory").wrong(
                    f"is not a multiple of {format_size(page)}, the pages that back {use.name} ({there.key})",
                    format_size(memory),
                    hint=f"write memory = {sizes}",
                )


def _check_workload(study: Study, used: WorkloadUse, here: Place) -> None:
    assert study.guest is not None
    for scale in ("", *dict.fromkeys([*study.scales, *used.scales])):
        changed = study.scales.get(scale)
        guest = changed.guest if changed is not None and changed.guest is not None else study.guest
        own = used.at(scale)
        where = here.at("scales").at(scale).at("workload") if scale in used.scales else here
        for key, cpus in (("cpus", own.cpus), ("client_cpus", own.client_cpus)):
            for cpu in cpus or ():
                if cpu >= guest.cpus:
                    raise where.at(key).wrong(
                        f"the guest has CPUs 0 to {guest.cpus - 1}" if guest.cpus > 1 else "the guest has CPU 0 alone",
                        list(cpus or ()),
                        hint="name CPUs of the guest, or change cpus of [guest]",
                    )
        scaled = used.scales[scale].parameters if scale in used.scales else {}
        _check_peer(own.parameters, guest, here.at("scales").at(scale) if _PEER in scaled else here.at("parameters"))
        if given := own.parameters.get("stdin"):
            cure = "have the command read a file of the guest: its name as an argument"
            raise (
                here.at("parameters")
                .at("stdin")
                .wrong("the guest does not have the files of the host", given, hint=cure)
            )
        if own.storage == NFS and not guest.nfs:
            raise where.at("storage").wrong(
                "the host serves none to the guests", own.storage, hint="write nfs = true in [guest]"
            )
        if "together" in own.concurrency and guest.pin:
            cure = "remove pin: guests that run together are pinned by the design's slots"
            raise here.at("concurrency").wrong("the guest is pinned by itself", "together", hint=cure)
        if "together" in own.concurrency:
            arms = len(study.policies if own.policies is None else own.policies)
            layout = (changed.design if changed is not None else None) or study.design
            at = f"at the scale {scale}, " if scale else ""
            _check_slots(layout.places, arms, guest.cpus, at, here.at("concurrency"))


def _check_slots(slots: Slots, arms: int, cpus: int, at: str, here: Place) -> None:
    each = [f'"{n * cpus}-{n * cpus + cpus - 1}"' if cpus > 1 else str(n) for n in range(arms)]
    cure = f"write slots = [{', '.join(each)}] in [design]"
    if len(slots) < arms:
        raise here.wrong(
            f"{at}{arms} guests at once need {arms} slots, and the design has {len(slots)}",
            "together",
            hint=f"{cure}, or policies = [...] here",
        )
    if any(len(slot) < cpus for slot in slots):
        raise here.wrong(
            f"{at}each guest has {cpus} virtual CPUs, and a slot of the design {min(map(len, slots))}",
            "together",
            hint=f"{cure}, or fewer cpus in [guest]",
        )


def _check_peer(parameters: Mapping[str, ParameterInput], guest: GuestUse, here: Place) -> None:
    given = parameters.get(_PEER)
    if guest.network == "none" and (given == _BESIDE or (isinstance(given, tuple) and _BESIDE in given)):
        raise here.at(_PEER).wrong(
            "the guest has no network to reach the host by",
            list(given) if isinstance(given, tuple) else given,
            hint='write network = "user" in [guest], or have the server in the guest',
        )


def _storages(used: WorkloadUse, here: Place) -> Iterator[tuple[Place, str]]:
    yield here.at("storage"), used.storage
    for scale, entry in used.scales.items():
        if entry.workload.storage is not None:
            yield here.at("scales").at(scale).at("workload").at("storage"), entry.workload.storage
