"""Whole runs of a workload in a test: a study of a few attempts, through the same doors as `hugewise run`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.attempt.service import ServiceDriver
from hugewise.machine.machine import Running
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt
from hugewise.model.workload import ParameterValue
from tests.build.studies import study_of
from tests.requirements import need
from tests.state import changed, page_state

__all__ = ["accepted", "alongside", "attempts", "last", "need_pages", "quick", "short_pool", "tried"]


def need_pages() -> None:
    """Root turns transparent huge pages and a pool of 2 MiB pages here."""
    need(os.geteuid() == 0, "root")
    need(Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), "a kernel with transparent huge pages")
    need(Path("/sys/kernel/mm/hugepages/hugepages-2048kB").exists(), "a kernel with hugetlb pages of 2m")


# What a rejected attempt says where the machine had no huge page left that was free before.
NO_PAGE = ("Cannot allocate memory", "could not map anonymous shared memory", "cannot be held back")


def tried(folder: Path, workload: Mapping[str, Any], policies: Sequence[Any], **keys: Any) -> dict[str, Attempt]:
    """The last attempt of each policy in two blocks, by arm. The page state is as it was after it.

    `policies`: the first is the baseline. `keys`: further keys of the study.
    """
    need_pages()
    return last(attempts(folder, workload, policies, blocks=2, **keys))


def last(made: Sequence[Attempt]) -> dict[str, Attempt]:
    """The last attempt of each arm. Those before it have ended as it did; one alone may have been rejected, for want of
    huge pages.
    """
    found = {attempt.arm: attempt for attempt in made}
    other = [(each.arm, each.state, each.reason) for each in made if each.state != found[each.arm].state]
    rejected = [
        reason for _, state, reason in other if state == "rejected" and any(no in str(reason) for no in NO_PAGE)
    ]
    assert len(other) == len(rejected) <= 1, other
    return found


def alongside(monkeypatch: pytest.MonkeyPatch, act: Callable[[ServiceDriver], None]) -> None:
    """Have it called in each attempt when its clients were let go, before anybody waits for their end."""
    timing = ServiceDriver.timing

    def acting(play: ServiceDriver, *, held: bool) -> Callable[[Sequence[Running]], None]:
        attend = timing(play, held=held)

        def attending(launched: Sequence[Running]) -> None:
            act(play)
            attend(launched)

        return attending

    monkeypatch.setattr(ServiceDriver, "timing", acting)


def quick(folder: Path, name: str, policies: Sequence[Any], parameters: Any, **workload: Any) -> dict[str, Attempt]:
    """`tried` of the workload of that name: a block is enough, and nothing is tried again."""
    given = {"name": name, "parameters": parameters, **workload}
    return tried(folder, given, policies, budget={"blocks": 2, "time": "1s"}, attempt={"retries": 0})


def attempts(
    folder: Path, workload: Mapping[str, Any], policies: Sequence[Any], *, blocks: int, **keys: Any
) -> list[Attempt]:
    """All attempts of a run, in the order in which they were stored."""
    before = page_state()
    keys = {"budget": {"blocks": blocks}, **keys}
    study = study_of(policies=list(policies), workload=[dict(workload)], **keys)
    results = hugewise.run(study, results=folder / "results")
    assert (differing := changed(before)) == {}, differing  # pytest explains assertions in test modules only
    return list(results.attempts)


def accepted(found: Mapping[str, Attempt], *arms: str) -> None:
    """Each of these arms (all of them, where none is named) has an attempt that counts."""
    said = {arm: (attempt.state, attempt.reason) for arm, attempt in found.items()}
    assert said == dict.fromkeys(arms or found, ("accepted", None)), said


def short_pool(monkeypatch: pytest.MonkeyPatch, workload: type, share: float | None = None, size: int = 0) -> None:
    """The workload asks for that share of the pool that it needs, or for so many bytes."""
    whole = workload.pool  # type: ignore[attr-defined]

    def short(self: Any, treatment: Treatment, values: Mapping[str, ParameterValue]) -> int:
        needed: int = whole(self, treatment, values)
        return min(needed, size) if share is None else int(needed * share)

    monkeypatch.setattr(workload, "pool", short)
