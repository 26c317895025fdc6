"""redis and memcached: what is run under each treatment, and what outputs mean.

Those in tests/golden/keyvalue are real: redis 7.0.15 and memcached 1.6.18 with 200,000 keys, on a busy machine.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.machine import programs
from hugewise.machine.probe import Load, LoadTurns
from hugewise.model.design import TakingTurns, Visited
from hugewise.model.pages import THP
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Places, Procedure
from hugewise.workloads import _keyvalue, memcached, redis
from hugewise.workloads._keyvalue import KeyValue
from tests.build import known
from tests.build.workloads import HUGE, MIB, POOL, Said, given, treatment, use

TESTS = Path(__file__).parent.parent
GOLDEN = TESTS / "golden" / "keyvalue"
PLACES = Places(data="/d", run="/r", ports=(), sut=(0, 2), client=(1, 3))
REDIS, MEMCACHED = redis.WORKLOAD, memcached.WORKLOAD
BOTH = pytest.mark.parametrize("workload", [REDIS, MEMCACHED], ids=["redis", "memcached"])


BASE = treatment("base", 4096, knobs={f"{THP}/enabled": "never"})
ADVISED = treatment("thp", 2 * MIB, advice="huge", environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


def played(workload: KeyValue, treated: Treatment = BASE, **parameters: Any) -> Procedure:
    return workload.procedure(treated, given(workload, **parameters), PLACES)


def text(name: str) -> str:
    return (GOLDEN / name).read_text()


def said(name: str, event: str | None = None, **more: Any) -> Said:
    told = {"redis": "redis-info.txt", "memcached": "memcached-stats.txt"}[name]
    texts = {"timed": text(f"{name}.jsonl") if event is None else event, "told-0": text(told), "told-1": ""}
    return Said(texts, **more)


@BOTH
def test_one_server_a_cpu_and_a_client_that_waits_at_the_gate(workload: KeyValue) -> None:
    procedure = played(workload, keys=1000, pipeline=4)
    assert [server.cpus for server in procedure.servers] == [(0,), (2,)]
    assert procedure.gate is True
    assert procedure.timed.micro is True
    assert procedure.timed.proof == "live"
    argv = procedure.timed.argv
    sockets = [argv[n + 1] for n, word in enumerate(argv) if word == "--server"]
    assert sockets == [f"unix:/r/{workload.name}-0", f"unix:/r/{workload.name}-1"]
    for server, socket in zip(procedure.servers, sockets, strict=True):
        assert socket.removeprefix("unix:") in server.argv
    assert argv[argv.index("--cpus") + 1] == "1,3"
    assert argv[argv.index("--pipeline") + 1] == "4"
    assert "--preload" in argv
    assert not {"--touch", "--rate", "--sla"} & set(argv)
    assert [step.name for step in procedure.after] == ["told-0", "told-1"]


@BOTH
def test_the_modes_are_those_of_the_load_generator(workload: KeyValue) -> None:
    rate, sla = (
        played(workload, mode="rate", rate=5000).timed.argv,
        played(workload, mode="sla", verify=True).timed.argv,
    )
    assert rate[-2:] == ("--rate", "5000")
    assert sla[-2:] == ("--sla", "p99:1000us")
    assert "--touch" in sla


@BOTH
def test_a_fixed_amount_of_work_has_neither_duration_nor_lead(workload: KeyValue) -> None:
    argv = played(workload, operations=5000).timed.argv
    assert argv[-2:] == ("--operations", "5000")
    assert "--preload" in argv
    assert not {"--duration", "--lead"} & set(argv)


@BOTH
def test_every_arm_is_filled_by_itself_and_all_are_asked_by_one_client(workload: KeyValue) -> None:
    assert isinstance(workload, Visited)
    values = given(workload, keys=1000, pipeline=4, lead="500ms", verify=True)
    assert workload.turns_refused(values) is None and workload.visited(values)
    other = msgspec.structs.replace(PLACES, run="/r2")
    (fill,) = workload.fill(values, other)
    assert fill.micro and fill.argv[:2] == ("load", "--protocol") and fill.argv[-2:] == ("--preload", "--touch")
    assert sockets(fill.argv) == [f"unix:/r2/{workload.name}-0", f"unix:/r2/{workload.name}-1"]
    assert not {"--lead", "--duration", "--operations"} & set(fill.argv)
    visit = workload.visit(values, [other, PLACES], "011001", 0.25, 0.2)
    assert (visit.micro, visit.proof) == (True, "live")
    assert sockets(visit.argv) == [f"unix:{run}/{workload.name}-{n}" for run in ("/r2", "/r") for n in (0, 1)]
    assert option(visit.argv, "--turns", "--groups", "--slice", "--wash-out", "--lead") == [
        *("011001", "2", "0.25", "0.2", "0.5")
    ]
    assert not {"--preload", "--touch", "--duration", "--operations"} & set(visit.argv)
    timed = played(workload, keys=1000, pipeline=4).timed
    same = ("--cpus", "--connections", "--pipeline", "--keys", "--set-get", "--hit-ratio", "--payload", "--seed")
    assert option(visit.argv, *same) == option(fill.argv, *same) == option(timed.argv, *same)


def sockets(argv: tuple[str, ...]) -> list[str]:
    return [argv[place + 1] for place, word in enumerate(argv) if word == "--server"]


def option(argv: tuple[str, ...], *names: str) -> list[str]:
    return [argv[argv.index(name) + 1] for name in names]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"mode": "sla"}, "mode = 'sla' searches a rate"),
        ({"mode": "rate", "rate": 5}, "sends requests on time"),
        ({"operations": 5}, "operations are given"),
        ({"bgsave": True}, "a background save goes on"),
        ({}, None),
    ],
)
def test_what_cannot_be_asked_in_slices_is_refused_with_the_reason(values: dict[str, Any], why: str | None) -> None:
    assert isinstance(REDIS, TakingTurns)
    refused = REDIS.turns_refused(given(REDIS, **values))
    assert refused is None if why is None else why in known(refused)


@BOTH
def test_what_counts_of_the_turns_is_the_figure_and_cpu_time_is_of_all(workload: KeyValue) -> None:
    turns = LoadTurns(count=3, slice_operations=1000, washed=200, operations=3000, wall_ns=10, turn_ns=[1, 2, 3])
    event = changed(f"{workload.name}.jsonl", operations=2400, achieved_rate=5000.0, turns=turns)
    visited = json.loads(event)
    filled = {**visited, "timed": None}
    outputs = said(workload.name, json.dumps(visited | {"stored": None}, separators=(",", ":")), sut=use(0.3))
    outputs.steps["fill"] = '{"ev":"phase"}\n' + json.dumps(filled, separators=(",", ":"))
    found = workload.read(outputs, given(workload))
    plain = workload.read(said(workload.name, sut=use(0.3)), given(workload))
    assert found.metrics["ops_per_s"] == 5000
    assert found.metrics["server_cpu_us"] == pytest.approx(100)
    assert (found.series, found.problem) == ((), None)
    own = {"turns": 3, "slice_operations": 1000, "operations_with_wash_out": 3000, "operations": 2400}
    assert found.facts == {**plain.facts, **own}
    assert found.facts["stored_hash"] == visited["stored"]["hash"]


@BOTH
def test_work_that_was_not_done_whole_is_a_problem(workload: KeyValue) -> None:
    done = changed(f"{workload.name}.jsonl", operations=4000)
    reading = workload.read(said(workload.name, done), given(workload, operations=5000))
    assert reading.problem == "4000 operations were done of 5000"
    assert workload.read(said(workload.name, done), given(workload, operations=4000)).problem is None


def test_an_image_needs_what_the_tool_of_memcached_is_written_with() -> None:
    tools = ("/usr/bin/memcached", "/usr/share/memcached/scripts/memcached-tool")
    with programs.looking_in(tools):
        (lacking,) = MEMCACHED.missing(given(MEMCACHED))
        assert (lacking.reason, lacking.package) == ("URI::Escape: no such module of Perl", "liburi-perl")
    with programs.looking_in(tools, packages={"liburi-perl": "5.30"}):
        assert MEMCACHED.missing(given(MEMCACHED)) == ()


@BOTH
def test_all_arms_run_the_same_command(workload: KeyValue) -> None:
    """But for what the treatment itself puts into the environment."""
    libc = {"allocator": "libc"} if workload is REDIS else {}
    procedures = [played(workload, treated, **libc) for treated in (BASE, HUGE, POOL)]
    assert all(procedure.servers[0].argv == procedures[0].servers[0].argv for procedure in procedures)
    assert all(procedure.timed == procedures[0].timed for procedure in procedures)
    base, _, pool = (dict(procedure.servers[0].environment) for procedure in procedures)
    tunables = pool.pop("GLIBC_TUNABLES").split(":")
    assert tunables[0] == "glibc.malloc.hugetlb=2"
    assert ":".join(tunables[1:]) == base.pop("GLIBC_TUNABLES")
    assert base == pool


def test_redis_is_told_not_to_switch_huge_pages_off() -> None:
    argv = played(REDIS).servers[0].argv
    assert argv[argv.index("--disable-thp") + 1] == "no"
    assert argv[argv.index("--save") + 1] == ""
    assert argv[argv.index("--appendonly") + 1] == "no"
    as_packaged = played(REDIS, disable_thp=True).servers[0].argv
    assert as_packaged[as_packaged.index("--disable-thp") + 1] == "yes"


def test_the_allocator_of_redis_is_told_in_its_own_way() -> None:
    def environment(treated: Treatment, **parameters: Any) -> dict[str, str]:
        return dict(played(REDIS, treated, **parameters).servers[0].environment)

    assert environment(HUGE) == {}
    assert environment(ADVISED) == {"MALLOC_CONF": "thp:always"}
    assert environment(POOL, allocator="libc") == {
        "LD_PRELOAD": "libc.so.6",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=2:glibc.malloc.top_pad=67108864",
    }


def test_memcached_heap_grows_in_large_steps_unless_told_not_to() -> None:
    assert dict(played(MEMCACHED).servers[0].environment) == {
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.top_pad=67108864"
    }
    assert dict(played(MEMCACHED, heap="packaged").servers[0].environment) == {}


@pytest.mark.parametrize(
    ("keys", "power"), [(1000, 16), (6_291_456, 22), (6_291_457, 23), (7_200_000, 23), (13_600_000, 24)]
)
def test_the_hash_table_of_memcached_has_its_last_size_from_the_start(keys: int, power: int) -> None:
    """It grows when there are more than 1.5 keys a bucket."""
    assert f"hashpower={power}" in played(MEMCACHED, keys=keys).servers[0].argv


@BOTH
def test_the_pool_holds_what_is_touched_and_is_asked_for_hugetlb_alone(workload: KeyValue) -> None:
    values = given(workload, instances=2)
    assert workload.pool(BASE, values) == 0
    pool = workload.pool(POOL, values)
    assert pool % (2 * MIB) == 0
    assert pool >= 2 * 1200 * MIB  # seen: 1,140 MB of redis, 1,204 MB of memcached, at these sizes
    assert workload.memory(POOL, values) >= 2 << 30
    assert workload.pool(POOL, given(workload, instances=1)) * 2 == pool


def test_a_background_save_begins_with_the_measured_part_and_may_copy_everything() -> None:
    assert played(REDIS).beside == ()
    saves = played(REDIS, bgsave=True).beside
    assert [step.argv[-1] for step in saves] == ["BGSAVE", "BGSAVE"]
    saving, not_saving = given(REDIS, bgsave=True, allocator="libc"), given(REDIS, allocator="libc")
    assert REDIS.pool(POOL, saving) == 2 * REDIS.pool(POOL, not_saving)
    assert REDIS.memory(BASE, saving) > 2 * REDIS.memory(BASE, not_saving)


def test_redis_outputs_are_read() -> None:
    reading = REDIS.read(said("redis", sut=use(0.551)), given(REDIS, bgsave=True))
    assert set(reading.metrics) == {metric.name for metric in REDIS.metrics} - {"p9999_us"}
    assert (
        "too few are slower: it takes 100,000" in reading.absent["p9999_us"]
        or "whole histogram" in reading.absent["p9999_us"]
    )
    assert reading.metrics["ops_per_s"] == pytest.approx(55098.7, abs=0.1)
    assert reading.metrics["p99_us"] == pytest.approx(1992.703)
    assert reading.metrics["server_cpu_us"] == pytest.approx(0.551e6 / 55101)
    assert reading.metrics["hit_ratio"] == pytest.approx(47682 / 50208)
    assert (reading.metrics["cow_bytes"], reading.metrics["fork_us"], reading.metrics["save_s"]) == (14262272, 1926, 1)
    assert reading.series == (55093.0,)
    assert reading.facts["stored_hash"] == "c552572da51aa842"
    assert reading.facts["redis_version"] == "7.0.15"
    assert (reading.problem, reading.marks) == (None, ())


def test_a_save_that_goes_on_or_failed_or_was_not_asked_for_is_said() -> None:
    values, info = given(REDIS, bgsave=True), text("redis-info.txt")
    going = info.replace("rdb_bgsave_in_progress:0", "rdb_bgsave_in_progress:1")
    broken = info.replace("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err")
    event = text("redis.jsonl")
    reading = REDIS.read(Said({"timed": event, "told-0": going, "told-1": ""}), values)
    assert "was not over" in reading.absent["fork_us"]
    assert len(reading.marks) == 1
    assert REDIS.read(Said({"timed": event, "told-0": broken, "told-1": ""}), values).problem is not None
    reading = REDIS.read(said("redis"), given(REDIS))
    assert reading.absent["cow_bytes"] == "no background save was asked for: bgsave = true"
    assert reading.absent["server_cpu_us"] == "the servers' CPU time was not counted"
    assert "cow_bytes" not in reading.metrics


def test_memcached_outputs_are_read() -> None:
    reading = MEMCACHED.read(said("memcached"), given(MEMCACHED, mode="rate", rate=10_000))
    assert set(reading.metrics) | {"server_cpu_us", "p9999_us"} == {metric.name for metric in MEMCACHED.metrics}
    assert reading.metrics["ops_per_s"] == 9999
    assert reading.metrics["evictions"] == 0
    assert reading.facts["version"] == "1.6.18"
    assert reading.facts["curr_items"] == 200_000


def changed(name: str, **changes: Any) -> str:
    """The recorded event with other values in its timed phase."""
    load = msgspec.json.decode(text(name).strip(), type=Load)
    timed = msgspec.structs.replace(known(load.timed), **changes)
    return msgspec.json.encode(msgspec.structs.replace(load, timed=timed)).decode()


def test_what_makes_the_figures_those_of_something_else_is_marked() -> None:
    load = msgspec.json.decode(text("memcached.jsonl").strip(), type=Load)
    client = msgspec.structs.replace(known(load.timed).client, busy=0.99, saturated=True)
    event = changed("memcached.jsonl", client=client, rate_met=False, achieved_rate=5000.0, lost=12)
    reading = MEMCACHED.read(said("memcached", event), given(MEMCACHED))
    assert reading.marks == (
        "the client was busy for 99% of the time: it may be what was measured",
        "5,000 operations/s were reached of 10,000 asked for",
        "12 gets missed a key that had been stored: the server evicted it",
    )
    # Where the machine is emulated, only what was counted is told.
    assert [mark for mark in reading.marks if mark not in reading.of_time] == [reading.marks[2]]


def test_the_highest_rate_within_a_limit_is_the_figure_and_there_may_be_none() -> None:
    reading = REDIS.read(said("redis", text("sla-none.jsonl")), given(REDIS, mode="sla"))
    assert reading.absent["ops_per_s"] == "at no rate was p99 within 1 ms"
    assert "ops_per_s" not in reading.metrics
    assert reading.facts["rates_tried"] == 7
    load = msgspec.json.decode(text("sla-none.jsonl").strip(), type=Load)
    found = msgspec.structs.replace(load, search=msgspec.structs.replace(known(load.search), rate=900.0))
    reading = REDIS.read(said("redis", msgspec.json.encode(found).decode()), given(REDIS, mode="sla"))
    assert reading.metrics["ops_per_s"] == 900
    assert reading.series == ()
    assert "many rates" in reading.absent["server_cpu_us"]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"timed": "", "told-0": "redis_version:7\r\n", "told-1": ""}, "told no result"),
        (
            {
                "timed": '{"ev":"error","fault":"workload","before_timed":true,"message":"load: it is full"}\n',
                "told-0": "redis_version:7\r\n",
                "told-1": "",
            },
            "^load: it is full$",
        ),
        (
            {"timed": text("redis.jsonl"), "told-0": "NOAUTH", "told-1": ""},
            "INFO of redis is not as expected: 'NOAUTH'",
        ),
        ({"timed": text("redis.jsonl"), "told-0": ""}, "nothing was told"),
    ],
)
def test_an_output_that_is_not_as_expected_names_what_was_found(texts: dict[str, str], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        REDIS.read(Said(texts), given(REDIS))


@pytest.mark.parametrize(
    ("operations", "counts", "p9999", "why"),
    [
        (100_000, (99_989, 1, 10), 2.0, None),  # ten are slower
        (100_000, (99_990, 0, 10), 1.0, None),
        (100_000, (0, 0, 100_000), 3.0, None),
        (99_999, (99_989, 0, 10), None, "of 99,999 operations, too few are slower: it takes 100,000"),
        (100_000, (), None, "the probe did not tell its whole histogram"),
    ],
)
def test_the_rarest_latencies_are_those_of_the_whole_histogram(
    operations: int, counts: tuple[int, ...], p9999: float | None, why: str | None
) -> None:
    """The smallest value that so many operations did not exceed."""
    event = json.loads(text("redis.jsonl"))
    event["timed"]["latency"]["count"] = operations
    event["timed"]["buckets"] = {"digits": 3, "up_to_ns": [1000, 2000, 3000], "counts": counts} if counts else None
    reading = _keyvalue.read_load(Said({"timed": json.dumps(event, separators=(",", ":"))}))
    assert reading.metrics.get("p9999_us") == p9999
    assert reading.absent.get("p9999_us") == why
