from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from hugewise.attempt.outcome import (
    Outcome,
    coverage_proof,
    outcome,
    pool_unseen,
    staged,
    with_kernel_work,
    with_memory_kills,
    with_output,
)
from hugewise.machine import probe
from hugewise.machine.noise import difference, snapshot
from hugewise.model.pages import PageTarget
from hugewise.model.procedure import Reading, RoleUse
from tests.build.studies import KnobFiles

EXIT = probe.Exit(t_ns=9, wall_ns=2_000_000_000, code=0, signal=None, timed_out=False, early_exits=0, killed=0)
USAGE = probe.Usage(
    user_s=1.0, system_s=0.5, peak_bytes=4096, minor_faults=7, major_faults=1, voluntary=0, involuntary=0
)
RESULT = probe.Result(workload="chase", wall_ns=500_000_000, metrics={"ns_per_load": 12.5}, facts={})


def counters(scope: Any, **values: int | None) -> probe.Counters:
    counts = {
        name if name == "walk_steps" else name.replace("_", "-"): probe.Count(
            value=value, reason=None if value is not None else "ENOENT", enabled_ns=1, running_ns=1
        )
        for name, value in values.items()
    }
    return probe.Counters(scope=scope, values=counts)


def exited(**changes: Any) -> probe.Exit:
    return msgspec.structs.replace(EXIT, **changes)


def test_micro_workload_gives_its_own_time_and_the_timed_counters() -> None:
    events: list[probe.Event] = [
        RESULT,
        counters("timed", page_faults=3, cycles=None),
        counters("command", page_faults=99),
        USAGE,
        EXIT,
    ]
    found = outcome(events, micro=True, timeout_s=60)
    assert found.state == "accepted"
    assert found.wall_s == 0.5
    assert found.metrics["ns_per_load"] == 12.5
    assert found.metrics["page_faults"] == 3
    assert found.metrics["cycles"] is None
    assert found.absent["cycles"] == "ENOENT"
    assert found.absent["instructions"] == "instructions was not counted"


def test_cpu_time_is_told_apart_where_the_kernel_does() -> None:
    found = outcome([USAGE, EXIT], micro=False, timeout_s=60)
    assert (found.metrics["user_s"], found.metrics["system_s"]) == (1.0, 0.5)
    turns = msgspec.structs.replace(RESULT, metrics={"cpu_s": 0.2})
    found = outcome([turns, USAGE, EXIT], micro=True, timeout_s=60)
    assert (found.metrics["cpu_s"], found.metrics["user_s"], found.metrics["system_s"]) == (0.2, None, None)
    assert found.absent["system_s"] == "its CPU time was counted as a whole"
    unknown = outcome([EXIT], micro=False, timeout_s=60)
    assert unknown.metrics["user_s"] is None


def test_stalls_are_those_of_the_machine_meanwhile() -> None:
    host = KnobFiles({"/proc/vmstat": "compact_stall 5\nthp_fault_fallback 7\n", "/proc/stat": "cpu 1 0 0 0 0 0 0 0\n"})
    before = snapshot(host)
    after = msgspec.structs.replace(before, vmstat={"compact_stall": 8, "thp_fault_fallback": 7})
    change = difference(before, after)
    found = with_kernel_work(outcome([USAGE, EXIT], micro=False, timeout_s=60), change, 4096)
    assert (found.metrics["compact_stalls"], found.metrics["thp_fallbacks"]) == (3, 0)
    silent = difference(bare := msgspec.structs.replace(before, vmstat={}), bare)
    found = with_kernel_work(outcome([USAGE, EXIT], micro=False, timeout_s=60), silent, 4096)
    assert (found.metrics["compact_stalls"], found.absent["thp_fallbacks"]) == (None, "/proc/vmstat does not say")
    shared = with_kernel_work(outcome([USAGE, EXIT], micro=False, timeout_s=60), change, 4096, alone=False)
    assert shared.metrics["compact_stalls"] is None


def test_a_failed_attempt_says_that_the_oom_killer_acted_meanwhile() -> None:
    before = msgspec.structs.replace(
        snapshot(KnobFiles({"/proc/stat": "cpu 1 0 0 0 0 0 0 0\n"})), vmstat={"oom_kill": 1}
    )
    after = msgspec.structs.replace(before, vmstat={"oom_kill": 3})
    killed = msgspec.structs.replace(EXIT, code=None, signal=9)
    failed, accepted = (outcome([USAGE, each], micro=False, timeout_s=60) for each in (killed, EXIT))
    assert with_memory_kills(failed, difference(before, after)).reason == (
        "killed by signal 9; the kernel's OOM killer acted meanwhile (oom_kill in /proc/vmstat: +2)"
    )
    assert with_memory_kills(failed, difference(before, before)) == failed
    assert with_memory_kills(accepted, difference(before, after)) == accepted


def test_command_is_timed_whole_and_its_faults_fall_back_on_rusage() -> None:
    found = outcome([USAGE, EXIT], micro=False, timeout_s=60)
    assert (found.wall_s, found.cpu_s, found.metrics["page_faults"]) == (2.0, 1.5, 8)
    assert "page_faults" not in found.absent


@pytest.mark.parametrize(
    ("events", "state", "said"),
    [
        ([exited(code=3)], "failed", "exit status 3"),
        ([exited(code=None, signal=9)], "failed", "signal 9"),
        ([exited(timed_out=True)], "failed", "timed out after 60 s"),
        ([exited(exceeded="its stdout has more")], "failed", "its stdout has more"),
        ([EXIT], "failed", "no result"),
        ([probe.Error(fault="workload", before_timed=True, message="nosuch: not found")], "failed", "nosuch"),
        ([probe.Error(fault="host", before_timed=True, message="EAGAIN")], "rejected", "EAGAIN"),
        ([probe.Error(fault="host", before_timed=False, message="launcher killed")], "failed", "launcher killed"),
        ([], "failed", "did not start"),
        ([RESULT, probe.Error(fault="host", before_timed=False, message="scan"), USAGE, EXIT], "accepted", None),
    ],
)
def test_states(events: list[probe.Event], state: str, said: str | None) -> None:
    found = outcome(events, micro=True, timeout_s=60)
    assert found.state == state
    assert found.timed_out == ("timed out" in (said or ""))
    assert not found.failed("server: it ended").timed_out, "why it had no end is another reason"
    assert said in (found.reason or "") if said else found.reason is None


def coverage(size: int, command: str = "x", disabled: bool = False) -> probe.Coverage:
    return probe.Coverage(
        pid=1,
        command=command,
        named=False,
        source="kpageflags",
        bytes={"anon:2097152": size},
        thp_disabled=disabled,
        scan_ns=1,
    )


def proof(
    events: list[probe.Event],
    twin: list[probe.Event] | None,
    allocated: Mapping[str, int] | None = {"anon:4096": 5},
    **changes: Any,
) -> Any:
    given: dict[str, Any] = {
        "target": PageTarget("thp", 2 << 20),
        "proof": "exit",
        "source": "smaps",
        "share": 0.95,
        "base_above": 0.01,
        "base_size": 4096,
        "thp_disabled_by_us": False,
    }
    return coverage_proof(events, twin, allocated, **(given | changes))


def test_the_twin_goes_before_the_attempt_and_is_named() -> None:
    found = proof([coverage(1)], [coverage(2), coverage(3)])
    assert found.proof == "twin"
    assert found.coverage == {"anon:2097152": 5}
    assert found.source == "kpageflags"


def test_counters_only_where_asked_for() -> None:
    assert proof([coverage(1)], None).coverage == {"anon:2097152": 1}
    found = proof([coverage(1)], None, proof="counters")
    assert (found.coverage, found.source, found.delivered) == ({"anon:4096": 5}, "counters", False)


def test_a_failed_scan_is_unproven_with_its_reason() -> None:
    found = proof([probe.Error(fault="host", before_timed=False, message="cannot read pagemap")], None)
    assert found.delivered is None
    assert found.reason == "cannot read pagemap"
    killed = proof([coverage(1)], [probe.Error(fault="host", before_timed=False, message="the launcher was killed")])
    assert (killed.delivered, killed.reason, killed.proof) == (None, "the launcher was killed", "twin")


def test_memory_given_back_before_the_exit_is_proven_by_the_counters_and_named_so() -> None:
    big = msgspec.structs.replace(USAGE, peak_bytes=64 << 20)
    events: list[probe.Event] = [coverage(1 << 20), big, EXIT]
    assert proof(events, None).proof == "counters"
    assert proof(events, None).coverage == {"anon:4096": 5}
    assert proof([coverage(60 << 20), big, EXIT], None).proof == "exit"
    assert proof([coverage(1 << 20), USAGE, EXIT], None).proof == "exit"
    assert proof(events, None, proof="ranges").proof == "ranges"


def test_the_rest_of_a_pool_at_the_exit_proves_nothing_of_what_was_given_back() -> None:
    """An array of numpy is gone at the exit: 39% of what was left had pool pages, and 98% at the peak. The peak that
    the kernel keeps has no page of a pool.
    """
    pool = PageTarget("hugetlb", 2 << 20)
    left = msgspec.structs.replace(coverage(0), bytes={"hugetlb:2097152": 6 << 20, "anon:4096": 10 << 20})
    full = msgspec.structs.replace(coverage(0), bytes={"hugetlb:2097152": 500 << 20, "anon:4096": 10 << 20})
    usage = msgspec.structs.replace(USAGE, peak_bytes=20 << 20)
    for counted in (None, {"anon:4096": 5}):
        unproven = proof([left, usage, EXIT], None, counted, target=pool)
        assert (unproven.delivered, unproven.coverage, unproven.proof) == (None, {}, "exit")
        assert unproven.reason == "pages of a pool that it gave back before its exit are not seen"
    assert proof([full, usage, EXIT], None, target=pool).delivered is True
    twin = proof([left, usage, EXIT], [full, usage, EXIT], target=pool)
    assert (twin.delivered, twin.coverage, twin.proof) == (True, full.bytes, "twin")
    short = proof([left, usage, EXIT], [left, usage, EXIT], target=pool)
    assert (short.delivered, short.proof) == (False, "twin")


def test_a_scan_of_which_as_much_as_promised_lies_in_the_pool_proves_it() -> None:
    pool = PageTarget("hugetlb", 2 << 20)
    assert not pool_unseen({"hugetlb:2097152": 8}, pool, 1.0)
    assert not pool_unseen({"hugetlb:2097152": 3, "anon:4096": 1}, pool, 0.75)
    assert not pool_unseen({}, pool, 1.0), "nothing was scanned: that is another reason"
    assert pool_unseen({"hugetlb:2097152": 3, "anon:4096": 2}, pool, 0.75)


def test_what_remained_is_no_proof_where_there_are_no_counters() -> None:
    big = msgspec.structs.replace(USAGE, peak_bytes=64 << 20)
    found = proof([coverage(1 << 20), big, EXIT], None, None)
    assert found.delivered is None
    assert "given back" in (found.reason or "")


def test_a_twin_that_did_not_run_to_its_end_proves_nothing() -> None:
    found = proof([coverage(5)], [coverage(5), exited(code=1)])
    assert (found.delivered, found.proof) == (None, "twin")
    assert "did not run to its end" in (found.reason or "")
    assert proof([coverage(5)], [coverage(5), EXIT]).delivered is True
    solver = proof([coverage(5)], [coverage(5), exited(code=10)], success=(0, 10, 20))
    assert solver.delivered is True


def test_a_twin_that_took_other_faults_than_the_attempt_proves_nothing() -> None:
    def took(faults: int) -> probe.Usage:
        return msgspec.structs.replace(USAGE, minor_faults=faults, major_faults=0)

    def judged(faults: int, of_twin: int, **changes: Any) -> Any:
        return proof([coverage(5), took(faults)], [coverage(5), took(of_twin), EXIT], **changes)

    assert judged(100_000, 103_000).delivered is True
    assert judged(100, 600).delivered is True  # what any start may take more of
    few = [proof([took(4000)], [coverage(size), took(600), EXIT]).delivered for size in (1 << 30, 64 << 20)]
    assert few == [True, None]  # what they can be about is little of a large memory, and much of a small one
    # The pages are those of the attempt's machine, which may be a guest with larger ones than this host.
    large: list[probe.Event] = [coverage(1 << 30), took(600), EXIT]
    found = {size: proof([took(4000)], large, base_size=size).delivered for size in (4096, 16384, 65536)}
    assert found == {4096: True, 16384: None, 65536: None}
    apart = judged(306_641, 68_395)
    assert (apart.delivered, apart.share, apart.coverage, apart.proof) == (None, None, {}, "twin")
    assert "68,395 page faults against 306,641 of the attempt (more than 3% apart)" in (apart.reason or "")
    # A setting is judged all the same; that nothing is known of its pages is said.
    setting = judged(306_641, 68_395, share=0.0)
    assert (setting.delivered, setting.share) == (True, None)
    assert "its untimed twin had other pages" in (setting.reason or "")


def test_numbers_of_an_output_are_metrics_and_their_absence_a_failure() -> None:
    ran = outcome([USAGE, EXIT], micro=False, timeout_s=9)
    found = with_output(ran, {"rate": 2.5})
    assert (found.state, found.metrics["rate"], found.metrics["wall_s"]) == ("accepted", 2.5, ran.metrics["wall_s"])
    missed = with_output(ran, "nothing in its output matches")
    assert (missed.state, missed.reason, missed.metrics) == ("failed", "nothing in its output matches", {})
    timed_out = outcome([exited(timed_out=True)], micro=False, timeout_s=9)
    assert with_output(timed_out, "nothing") == timed_out


NOTHING = RoleUse()
USED = RoleUse(cpu_s=3.5, user_s=3.0, system_s=0.5, faults=77)


def served(counted: probe.Counters | str, servers: RoleUse = USED) -> Outcome:
    """The outcome of a client of servers whose counters are `counted`."""
    client = outcome(
        [counters("command", cycles=5, instructions=5, dTLB_load_misses=5), USAGE, EXIT], micro=False, timeout_s=9
    )
    return staged(client, None, Reading(), servers=servers, counted=counted, seconds=4.0, footprint=4096)


def test_counters_of_servers_are_the_servers_own_and_make_the_rates() -> None:
    found = served(
        counters(
            "timed",
            cycles=2000,
            instructions=4000,
            dTLB_load_misses=10,
            walk_steps=30,
            cache_references=1,
            cache_misses=1,
            branches=1,
            branch_misses=1,
            page_faults=5,
            context_switches=8,
            cpu_migrations=1,
        )
    )
    assert {name: found.metrics[name] for name in ("cycles", "instructions", "dtlb_load_misses")} == {
        "cycles": 2000,
        "instructions": 4000,
        "dtlb_load_misses": 10,
    }
    assert (found.metrics["ipc"], found.metrics["dtlb_mpki"], found.metrics["walk_steps_pki"]) == (2.0, 2.5, 7.5)
    assert (found.metrics["cpu_s"], found.metrics["page_faults"], found.wall_s) == (3.5, 77, 4.0)
    assert found.absent == {}


def test_what_is_not_counted_of_servers_has_the_probes_reason() -> None:
    found = served(counters("timed", cycles=None, instructions=4000, dTLB_load_misses=None))
    assert found.metrics["instructions"] == 4000
    for name in ("cycles", "dtlb_load_misses", "ipc", "dtlb_mpki"):
        assert (found.metrics[name], found.absent[name]) == (None, "ENOENT")
    assert found.absent["walk_steps_pki"] == "walk_steps was not counted"


def test_servers_that_could_not_be_counted_say_why_and_never_have_the_clients_counters() -> None:
    found = served("counting the servers ended early")
    for name in ("cycles", "instructions", "ipc", "dtlb_mpki", "walk_steps_pki"):
        assert (found.metrics[name], found.absent[name]) == (None, "counting the servers ended early")
    assert found.metrics["page_faults"] == 77


def test_faults_of_servers_without_a_cgroup_are_those_of_the_counter() -> None:
    found = served(counters("timed", page_faults=5), NOTHING)
    assert found.metrics["page_faults"] == 5
    assert found.metrics["cpu_s"] is None
    assert "cgroup" in found.absent["cpu_s"]
    found = served("no probe", NOTHING)
    assert (found.metrics["page_faults"], "cgroup" in found.absent["page_faults"]) == (None, True)
