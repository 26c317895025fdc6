"""What programs of an attempt print, broken: it is read, or the attempt has failed with the reason; the run goes on."""

import gzip
import inspect
import io
import math
import re
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from hugewise import reading
from hugewise.attempt import outcome
from hugewise.model.procedure import Part, Reading, Staged
from hugewise.reading import UnreadableError
from hugewise.workloads import _mariadb, discover
from hugewise.workloads._outputs import extract, parse
from tests.build.workloads import Said, given, use
from tests.fuzz.inputs import HOSTILE, broken, fuzzed, in_time

TESTS = Path(__file__).parents[1]
STATS = b"n:1 mse_avg:0.53 psnr_avg:50.00 psnr_y:49.12\nn:2 mse_avg:0.53 psnr_avg:inf psnr_y:49.12 \n"
STATUS = b"Innodb_buffer_pool_bytes_data\t52000000\nInnodb_buffer_pool_read_ahead\t5\nInnodb_buffer_pool_reads\t9\n"
NODES = b"Total time (ms) : 7\nNodes searched  : 3595441\nNodes/second    : 9\n"


def bytes_of(*parts: str) -> bytes:
    return TESTS.joinpath(*parts).read_bytes()


def archive(**members: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


LIBRARY = archive(library=b"!<arch>\nx", notes=b"text")


@dataclass
class Case:
    """What a workload is asked, and a whole output of each of its programs."""

    workload: str
    values: Mapping[str, Any] = field(default_factory=dict)
    stdout: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    turns: bool = False


REDIS, INFO = bytes_of("golden/keyvalue/redis.jsonl"), bytes_of("golden/keyvalue/redis-info.txt")
NO_RATE, SYSBENCH = bytes_of("golden/keyvalue/sla-none.jsonl"), bytes_of("golden/mysql-ro/sysbench.txt")
TURNS = b'"turns":{"count":1,"slice_operations":9,"washed":2,"operations":9,"wall_ns":5,"turn_ns":[4]},'
MYSQL = {"timed": SYSBENCH, "cpus": b"1\n", "begun": STATUS, "ended": STATUS}
CASES = {
    "redis": Case("redis", {}, {"timed": REDIS, "told-0": INFO}),
    "redis-saving": Case("redis", {"bgsave": True}, {"timed": REDIS, "told-0": INFO}),
    "redis-sla": Case("redis", {"mode": "sla"}, {"timed": NO_RATE, "told-0": INFO}),
    "memcached": Case(
        "memcached",
        {},
        {
            "timed": bytes_of("golden/keyvalue/memcached.jsonl"),
            "told-0": bytes_of("golden/keyvalue/memcached-stats.txt"),
        },
    ),
    "go-tpc": Case(
        "tpcc",
        {"duration": "15s"},
        {"timed": bytes_of("golden/tpcc/go-tpc-touching.jsonl"), "cpus": b"1\n", "lead": b"21\n"},
    ),
    "mysql-ro": Case("mysql-ro", {}, MYSQL),
    "mysql-ro-turns": Case(
        "mysql-ro",
        {"threads": 2},
        MYSQL,
        {f"transactions.{n}": b"%d 1 500 0 999 0\n%d 2 400 0 1000 500000\n" % (n, n) for n in range(2)},
        turns=True,
    ),
    "redis-turns": Case(
        "redis",
        {},
        {
            "timed": REDIS.replace(b'"sequence":', TURNS + b'"sequence":', 1),
            "fill": REDIS,
            "told-0": INFO,
        },
    ),
    "pgbench": Case(
        "pgbench",
        {"clients": 2},
        {
            "timed": bytes_of("golden/pgbench/stdout.txt"),
            "begun": b"760708455|1000\n",
            "ended": b"760708455|6900\n",
        },
        {name: bytes_of("golden/pgbench", name) for name in ("transactions.30569", "transactions.30569.1")},
    ),
    "service": Case(
        "service",
        {"server": ("s",), "load": ("l",), "values": ("operations,neutral=regex:([0-9.]+) requests",)},
        {"timed": b"SET: 99304.87 requests per second\n100000 requests completed\n"},
    ),
    "iperf3": Case("iperf3", {}, {"timed": bytes_of("servers/data/iperf3.json")}),
    "sysbench-memory": Case("sysbench-memory", {}, {"timed": bytes_of("servers/data/sysbench-memory.txt")}),
    "x264": Case(
        "x264",
        {},
        {"timed": b""},
        {
            name.format(clip): content
            for clip in range(4)
            for name, content in {
                "out-000-{:03d}.h264": b"stream",
                "reference-{:03d}.h264": b"stream",
                "out-000-{:03d}.progress": b"frame=2\nprogress=continue\nframe=5\nprogress=end\n",
                "psnr-{:03d}.psnr": STATS,
                "reference-{:03d}.psnr": STATS,
            }.items()
        },
    ),
    "integer-set": Case("integer-set", {"program": "stockfish"}, {"timed": NODES}, {"reference": NODES}),
    "build": Case(
        "build",
        {"project": "/p", "target": "all", "artefact": "a", "reference": True},
        {"files": b"a\nb\n"},
        {"artefact.tar": LIBRARY, "reference.tar": LIBRARY, "reference.files": b"a\nb\n"},
    ),
}


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB seems to be installed, here or not."""
    found = _mariadb.MariadbPrograms("/s/mariadbd", "/s/mariadb-install-db", "/s/mariadb", "10.11.19")
    monkeypatch.setattr(_mariadb, "find", lambda folder="": found)


@cache
def staged(name: str) -> Staged:
    found = discover()[name]
    assert isinstance(found, Staged)
    return found


def test_every_workload_that_reads_outputs_is_here() -> None:
    assert {case.workload for case in CASES.values()} == {
        name for name, found in discover().items() if isinstance(found, Staged)
    }


def outputs(case: Case, part: str | None = None, content: bytes = b"") -> Said:
    """What the case's programs left, with other content of one part."""
    said = {name: (content if name == part else told).decode(errors="replace") for name, told in case.stdout.items()}
    files = {name: content if name == part else told for name, told in case.files.items()}
    silent = {f"told-{number}": "" for number in range(3)} | {"timed": ""}
    found = Said(silent | said, stderr={"timed": ""}, files=files, sut=use(0.5), client=use(0.1), seconds=1.0)
    if case.turns:
        found.turns = (Part(1000.2, 1000.9, 1000.0),)
    if case.workload == "pgbench":
        found.begin, found.end = 1795263458.8055, 1795263458.8105
    return found


def judged(case: Case, found: Said) -> None:
    """It is a reading that can be kept, or the reason; and the reader itself raises nothing but ValueError."""
    workload, values = staged(case.workload), given(staged(case.workload), **case.values)
    with in_time():
        with suppress(ValueError):
            workload.read(found, values)
        try:
            told = outcome.read(workload, found, values)
        except UnreadableError as error:
            assert 0 < len(error.reason) < 1100
            return
    assert all(value is None or 0 <= value < math.inf for value in told.metrics.values())
    assert len(msgspec.json.encode(told)) < 1 << 22


@pytest.mark.parametrize("name", CASES)
def test_what_is_whole_is_read(name: str) -> None:
    case = CASES[name]
    workload = staged(case.workload)
    assert outcome.read(workload, outputs(case), given(workload, **case.values)) != Reading()


@pytest.mark.parametrize("name", CASES)
def test_what_is_broken_is_read_or_has_failed(name: str) -> None:
    case = CASES[name]
    parts = {**case.stdout, **case.files}

    @fuzzed(40)
    @drawn(st.data())
    def every(data: st.DataObject) -> None:
        part = data.draw(st.sampled_from(sorted(parts)))
        judged(case, outputs(case, part, data.draw(broken([parts[part]]))))

    every()


@pytest.mark.parametrize("name", CASES)
def test_what_readers_have_stumbled_over_is_read_or_has_failed(name: str) -> None:
    """Of parts that differ by a number in their names, such as those of several clips or threads, one has them all."""
    case, kinds = CASES[name], set[str]()
    for part, whole in {**case.stdout, **case.files}.items():
        kind = re.sub(r"[0-9]+", "0", part)
        if kind in kinds:
            continue
        kinds.add(kind)
        for content in (*HOSTILE, *(each + whole for each in HOSTILE), gzip.compress(whole), whole * 200):
            judged(case, outputs(case, part, content))


VALUES = (
    "v,lower=regex:([0-9.]+) MiB/s",
    "v,lower=regex:x",
    "v,lower=json:.a[0].b",
    'v,lower=json:$["a"][-1]["b"]',
)
# JSON in which a step of a path finds a list that is too short, or no list.
WITHOUT = (b'{"a": []}', b'{"a": {}}', b'{"a": [[]]}', b'{"a": [1]}', b'{"a": "text"}')
PRINTED = (b'{"a": [{"b": 1.5, "c": "1"}, {"b": 2}]}', b"1.5 MiB/s\n22 MiB/s\n")


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_found_in_what_a_command_said_or_the_reason_is_told(value: str) -> None:
    def judged(content: bytes) -> None:
        try:
            with in_time():
                found = extract(parse(value), content.decode(errors="replace"), "")
        except ValueError as error:
            assert len(str(error)) < 1000
        else:
            assert math.isfinite(found)

    for content in (*HOSTILE, *WITHOUT):
        judged(content)
    fuzzed(50)(drawn(broken(PRINTED))(judged))()


def test_a_value_is_written_as_it_should_be_or_refused() -> None:
    @fuzzed(50)
    @drawn(broken([value.encode() for value in VALUES]))
    def every(content: bytes) -> None:
        try:
            with in_time():
                parse(content.decode(errors="replace"))
        except ValueError as error:
            assert str(error)

    every()


def test_a_pattern_of_which_python_warns_is_taken_as_it_is() -> None:
    """The warning would be printed beside the progress of a run; here it is an error."""
    assert extract(parse("v,lower=regex:([[0-9.]+) MiB"), "1.5 MiB, 2 MiB", "") == 2


def test_a_pattern_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 5 s of processor time; here after a fifth of one, as nothing else depends on how many they are."""
    assert inspect.signature(reading.patiently).parameters["seconds"].default == 5
    monkeypatch.setattr(reading, "patiently", partial(reading.patiently, seconds=0.2))
    with pytest.raises(UnreadableError, match="not done after 0.2 s of processor time"):
        extract(parse("v,lower=regex:(a+)+$"), "a" * 60 + "b", "")


def test_a_reader_that_breaks_fails_the_attempt_and_not_the_run() -> None:
    """Whatever comes out of a reader, but for what is hugewise's own."""

    def breaks(error: Exception) -> Callable[..., Any]:
        def read(*_: object) -> Any:
            raise error

        return read

    workload = staged("iperf3")
    for kind in (RecursionError, OSError, OverflowError, TypeError, KeyError, IndexError):
        breaking = type("Breaking", (type(workload),), {"read": breaks(kind("x"))})()
        with pytest.raises(UnreadableError, match=kind.__name__):
            outcome.read(breaking, Said({}), {})
