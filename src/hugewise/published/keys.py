"""The keys of a study that say which published experiment it restates, and what its arms and workloads stand for.

    published = "lpc-2024-mthp-arm64"
    published_arms = { base = "4K (4KPS)", thp = "2M (4KPS)", mthp-64k = "64K (4KPS)" }

    [[workload]]
    name = "memcached"
    published = "memcached"

Only names are checked here: what stands beside what is decided in `published.beside`, from the results.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hugewise import published
from hugewise import study_keys as keys
from hugewise.study_keys import Kind, Place

if TYPE_CHECKING:
    from hugewise.study import Study

__all__ = ["ARMS", "SOURCE", "check"]


def _source(value: object, place: Place) -> str:
    known = published.names()
    if not isinstance(value, str) or value not in known:
        begun = [name for name in known if isinstance(value, str) and value and name.startswith(value)]
        hint = f"did you mean {' or '.join(begun)}?" if begun else keys.near(str(value), known, what="sources")
        raise place.wrong("is not a published source", value, hint=hint)
    return value


SOURCE = Kind("a source's name", _source)
ARMS = keys.mapping(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "a policy's name", keys.text())


def check(study: Study, place: Place) -> None:
    """That the names are those of the source, and of the study. Raises StudyError."""
    named = [(place.at("workload").item(n), use.published) for n, use in enumerate(study.workload, 1) if use.published]
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
