from typing import Any

import msgspec
import pytest

from hugewise.advise.candidates import RULES, ProgramHere, candidates
from hugewise.advise.pilot import _most
from hugewise.advise.question import Question, command, confirmation, screening
from tests.build.trials import attempt

HERE = ProgramHere(
    root=True, mode="madvise", top="madvise", pmd=2 << 20, mthp=(64 << 10, 1 << 20), pools=(2 << 20,), huge=0.0,
    memory=1 << 30, tuned=True,
)  # fmt: skip


def tried(**changes: Any) -> list[str]:
    return [each.name for each in candidates(msgspec.structs.replace(HERE, **changes), 6)[0]]


def left(name: str, **changes: Any) -> str:
    return {one.name: one.reason for one in candidates(msgspec.structs.replace(HERE, **changes), 6)[1]}[name]


def test_what_reaches_least_comes_first() -> None:
    assert tried() == ["advised", "pool-2m", "always", "always-64k"]
    reach = [each.reach for each in candidates(HERE, 6)[0]]
    assert reach == sorted(reach, key=["process", "pool", "host"].index)


def test_a_program_smaller_than_one_huge_page_has_nothing_to_try() -> None:
    assert tried(memory=(2 << 20) - 4096) == []
    assert left("always", memory=512 << 10) == "it has 512 KiB of memory at most, less than one huge page of 2m"
    assert len({one.reason for one in candidates(msgspec.structs.replace(HERE, memory=512 << 10), 6)[1]}) == 1
    assert tried(memory=2 << 20) == tried()
    assert tried(memory=512 << 10, pmd=None) != []


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("off", {}, "has base pages already"),
        ("off", {"huge": 0.5, "pmd": None}, "the kernel has no transparent huge pages"),
        ("advised", {"tuned": False, "why": "it is a Go program"}, "do not reach it: it is a Go program"),
        ("advised", {"mode": "always"}, "is set to always"),
        ("advised", {"mode": "never"}, "is set to never"),
        ("advised", {"top": "always"}, "is set to always"),
        ("pool", {"memory": 0}, "name it with --pool"),
        ("advised", {"huge": 0.99}, "in huge pages already"),
        ("pool", {"root": False}, "filling a pool needs root"),
        ("pool", {"pools": (1 << 30,)}, "no pool of pages of that size"),
        ("pool", {"tuned": False, "why": "it has jemalloc"}, "it has jemalloc"),
        ("always", {"root": False}, "needs root"),
        ("always", {"mode": "always"}, "it is set so already"),
        ("always-64k", {"mthp": ()}, "no transparent huge pages of 64k"),
        ("own-thp", {"option": "MALLOC_CONF is set already"}, "MALLOC_CONF is set already"),
        ("own-thp", {"option": {}, "mode": "never"}, "is set to never"),
        ("own-thp", {"option": {}, "huge": 0.99}, "in huge pages already"),
        ("own-thp", {"option": {}, "pmd": None}, "the kernel has no transparent huge pages"),
        (
            "heap-thp",
            {"disabled": True, "threads": 3, "top": "always"},
            "turns transparent huge pages off for itself",
        ),
        ("always", {"disabled": True}, "turns transparent huge pages off for itself"),
        ("always-shared", {}, "its pages were not seen"),
        ("always-shared", {"shared": 0.05}, "hardly any of its memory is shared"),
        ("always-shared", {"shared": 0.6, "root": False}, "needs root"),
        ("always-shared", {"shared": 0.6, "shared_mode": "always"}, "it is set so already"),
        ("always-shared", {"shared": 0.6, "pmd": None}, "the kernel has no transparent huge pages"),
    ],
)
def test_what_cannot_reach_the_program_is_left_out_by_name(name: str, changes: dict[str, Any], words: str) -> None:
    assert words in left(name, **changes)


def test_shared_memory_has_a_setting_of_its_own() -> None:
    assert tried(shared=0.6) == ["advised", "pool-2m", "always", "always-shared", "always-64k"]


LAID: dict[str, Any] = {"allocator": "glibc", "forked": 0, "executed": 0, "threads": 0}
OLD: dict[str, Any] = {**LAID, "allocator": "glibc 2.31", "tuned": False, "why": "its glibc is older"}
GIANT: dict[str, Any] = {**LAID, "pools": (2 << 20, 1 << 30), "memory": 3 << 30}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("heap-thp", {**LAID, "mode": "always", "top": "always"}),
        ("heap-thp", {**LAID, "threads": 2}),
        ("heap-thp", {**LAID, "allocator": "CPython"}),
        ("heap-thp", {**LAID, "allocator": "jemalloc", "tuned": False}),
        ("heap-thp", {**OLD, "root": False}),
        ("heap-2m", OLD),
        ("heap-2m", {**OLD, "ended": 0}),
        ("heap-1g", GIANT),
    ],
)
def test_a_layout_is_tried_where_nothing_plainer_does_the_same(name: str, changes: dict[str, Any]) -> None:
    assert name in tried(**changes)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("heap-thp", LAID, "`advised` gives the same heap the same pages"),
        ("heap-thp", {**LAID, "unlaid": "a layout does not reach x: it is static"}, "it is static"),
        ("heap-thp", {**OLD, "mode": "never"}, "set to never"),
        ("heap-thp", {**OLD, "pmd": 512 << 20}, "of 2m alone"),
        ("heap-thp", {**OLD, "pmd": None}, "no transparent huge pages"),
        ("heap-thp", {**OLD, "huge": 0.99}, "in huge pages already"),
        ("heap-thp", {**OLD, "allocator": "tcmalloc"}, "its memory comes from tcmalloc"),
        ("heap-2m", LAID, "`pool-2m` takes the same pages"),
        ("heap-2m", {**OLD, "forked": 3}, "forks without exec (3 in a run)"),
        ("heap-2m", {**OLD, "forked": None}, "whether it forks was not seen"),
        ("heap-2m", {**OLD, "executed": 1}, "begins other programs (1 in a run)"),
        ("heap-2m", {**OLD, "ended": 1}, "it had children that have ended"),
        ("heap-1g", {**GIANT, "ended": 2}, "whether they were copies of it (a background save) was not seen"),
        ("heap-2m", {**OLD, "allocator": "jemalloc"}, "jemalloc unmaps pieces"),
        ("heap-2m", {**OLD, "root": False}, "needs root"),
        ("heap-2m", {**OLD, "memory": 0}, "name it with --pool"),
        ("heap-1g", {**GIANT, "memory": 1 << 29}, "less memory than one page"),
        ("heap-1g", {**GIANT, "forked": 1}, "a child is killed"),
        ("heap-1g", LAID, "no pool of pages of that size"),
    ],
)
def test_a_layout_that_is_not_tried_is_left_out_with_the_reason(name: str, changes: dict[str, Any], words: str) -> None:
    assert words in left(name, **changes)


def test_a_pilot_that_followed_every_run_says_what_was_begun() -> None:
    counts = {"forked": 1, "executed": 0, "threads": 4}
    ran = attempt("as-is", 1.0, cell="command", begun=counts)
    again = msgspec.structs.replace(ran, begun={**counts, "forked": 3})
    assert [_most([ran, again], name) for name in counts] == [3, 0, 4]
    assert _most([ran, msgspec.structs.replace(ran, begun={})], "forked") is None


def test_pages_that_nobody_saw_and_an_allocator_that_nobody_knows_leave_nothing_out() -> None:
    assert tried(huge=None)[:2] == ["off", "advised"]
    assert "advised" in tried(tuned=None)


def test_at_most_so_many_are_tried() -> None:
    few, others = candidates(HERE, 2)
    assert [each.name for each in few] == ["advised", "pool-2m"]
    assert "those that reach least are tried" in {one.name: one.reason for one in others}["always"]
    of_servers = [rule for rule in RULES if rule.name.startswith("own-")]
    assert len(few) + len(others) == len(RULES) - len(of_servers), "which have nothing to do with it"


OWN = {2 << 20: {"server": ["postgres", "-c", "huge_pages=on"], "own_pool": True, "pool_bytes": 5 << 30}}


def test_a_server_with_an_option_of_its_own_is_told_it() -> None:
    shared: dict[str, Any] = {"own": OWN, "shared": 0.8, "memory": 6 << 30}
    assert tried(**shared) == ["own-2m", "always", "always-shared", "always-64k"]
    assert "most of its memory is shared" in left("advised", **shared)
    assert "most of its memory is shared" in left("pool", **shared)
    assert left("own-1g", **shared) == "the kernel has no pool of pages of that size"
    (use,) = (each.use for each in candidates(msgspec.structs.replace(HERE, **shared), 1)[0])
    assert use == {"name": "own-2m", "from": "reserved-2m", "mechanism": "process", "parameters": OWN[2 << 20]}
    assert left("own-2m", **shared, root=False) == "filling a pool needs root"
    said = {"own": {2 << 20: "its command says huge_pages itself"}}
    assert left("own-2m", **said) == "its command says huge_pages itself"


def test_candidates_are_arms_of_ordinary_studies() -> None:
    asked = Question(workload=command(("true",)))
    chosen, _ = candidates(HERE, 6)
    study = screening(asked, chosen, 1 << 30, 60.0, 24)
    assert [use.name for use in study.policies] == ["as-is", "advised", "pool-2m", "always", "always-64k"]
    assert (study.method, study.confidence, study.compared_with, study.budget.time) == ("screening", 0.9, "as-is", 60.0)
    assert [use.mechanism for use in study.policies[1:]] == ["process", "process", "system", "system"]
    last = confirmation(asked, chosen[0], 0, 200.4, 48)
    assert (last.method, last.confidence, len(last.policies), last.budget.time) == ("sequential", 0.99, 2, 200.0)
    assert (study.budget.futility, last.budget.futility) == (0.05, 0.05)
    assert (study.budget.blocks, last.budget.blocks) == (24, 48)
    assert (
        confirmation(Question(workload=command(("true",)), margin=0.1), chosen[0], 0, 60.0, 48).budget.futility == 0.1
    )
    assert last.workload[0].delivery.share == 0.0, "the setting is judged, with what it delivered beside it"


def test_where_the_machine_is_not_set_to_always_redis_turns_nothing_off() -> None:
    """Its checkTHPEnabled looks for [always]."""
    assert {"heap-thp", "always-64k"} <= set(tried(disabled=True, threads=3))


def test_an_option_of_the_program_itself_comes_before_a_pool_and_the_host() -> None:
    option = {"environment": {"A": "b"}, "parameters": {"server": ["redis-server", "--disable-thp", "no"]}}
    (own, *_), _ = candidates(msgspec.structs.replace(HERE, tuned=False, why="jemalloc", option=option), 6)
    assert (own.name, own.reach) == ("own-thp", "process")
    assert own.use == {"name": "own-thp", "from": "thp", "mechanism": "process", **option}
    assert "own-thp" not in {one.name for one in candidates(HERE, 6)[1]}, "nothing is said where no option is known"
