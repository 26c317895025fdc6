"""In what the keys of a study file must agree with each other, whatever the machine; those of guests apart. Pure."""

from __future__ import annotations

from hugewise import published
from hugewise.model import age
from hugewise.study import keys
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import Design

__all__ = ["check"]


def check(study: Study, place: Place) -> None:
    """That the keys of the study agree with each other, at every scale. Raises StudyError."""
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
    if twice := [one for one in dict.fromkeys(study.end_points) if study.end_points.count(one) > 1]:
        raise place.at("end_points").wrong(
            f"names {twice[0]} twice", list(study.end_points), hint="name each end point once"
        )
    if study.end_points and study.method != "sequential":
        raise place.at("end_points").wrong(
            f"cannot be judged by the method {study.method}", list(study.end_points), hint='write method = "sequential"'
        )
    if study.covariate is not None and study.method != "sequential":
        raise place.at("covariate").wrong(
            f"has no part in the method {study.method}", study.covariate, hint='write method = "sequential"'
        )

    if study.not_worse and study.method != "sequential":
        raise place.at("not_worse").wrong(
            f"has no part in the method {study.method}", study.not_worse, hint='write method = "sequential"'
        )
    _check_unjudged(study, place)


def _check_unjudged(study: Study, place: Place) -> None:
    """They are policies of the study beside those that are judged, in every workload."""
    here, given = place.at("unjudged"), list(study.unjudged)
    if given and study.method != "sequential":
        raise here.wrong(f"has no part in the method {study.method}", given, hint='write method = "sequential"')
    names = [use.name for use in study.policies]
    for number, name in enumerate(given, 1):
        if name not in names:
            raise here.item(number).wrong("is not one of the study's policies", name, hint=keys.near(name, names))
        if name == study.compared_with:
            raise here.item(number).wrong("is the baseline", name, hint="remove it: the others are compared with it")
        if name in given[: number - 1]:
            raise here.item(number).wrong("stands twice", name, hint="remove one of them")
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
    """A workload's own choice among the study's policies."""
    if chosen is None:
        return
    for number, policy in enumerate(chosen, 1):
        if policy not in names:
            raise place.item(number).wrong("is not one of the study's policies", policy, hint=keys.near(policy, names))
        if policy in chosen[: number - 1]:
            raise place.item(number).wrong("stands twice", policy, hint="remove one of them")
    if baseline not in chosen:
        raise place.wrong("lacks the baseline", list(chosen), hint=f'add "{baseline}"')


def _check_ages(study: Study, place: Place) -> None:
    """Aged memory is this host's, wants a limit where it is short, and leaves nobody the pages that were promised."""
    for here, use in place.items("workload", study.workload):
        aged = [one for one in use.memory_age if one != "fresh"]
        if not aged:
            continue
        there = here.at("memory_age")
        if study.guest is not None:
            raise there.wrong("ages the memory of this host, not of guests", aged[0], hint="remove it, or [guest]")
        limits = (use.memory, *(entry.workload.memory or use.memory for entry in use.scales.values()))
        if any(age.pressed(one) for one in aged) and None in limits:
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
    if layout.kind == "duet" and len(layout.slots) < 2:
        raise here.at("slots").wrong(
            "a duet needs a CPU for each arm", list(layout.slots), hint="write for example slots = [0, 1]"
        )

    if layout.kind == "resident" and layout.slots:
        raise here.at("slots").wrong(
            "all arms of a resident design have the same CPUs", list(layout.slots), hint="remove it"
        )


def _check_published(study: Study, place: Place) -> None:
    """The names are those of the source, and of the study."""
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
