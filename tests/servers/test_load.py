"""The load generator against real redis and memcached servers."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from hugewise.machine import probe
from hugewise.machine.probe import Load, Timed
from tests.build import known
from tests.servers.running import Running, memcached, redis
from tests.wait import until

KEYS = 20_000

Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(params=["redis", "memcached"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    with redis() if request.param == "redis" else memcached() as running:
        yield running


def command(servers: list[Running], *options: str, keys: int = KEYS) -> list[str]:
    named = [word for server in servers for word in ("--server", server.address)]
    return [probe.find(), "load", "--protocol", servers[0].protocol, *named, "--keys", str(keys), *options]


def done(servers: list[Running], *options: str, keys: int = KEYS) -> tuple[int, list[probe.Event]]:
    """Its exit status, and what it said."""
    ended = subprocess.run(
        command(servers, *options, keys=keys),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    return ended.returncode, list(probe.decode(ended.stdout.splitlines(keepends=True)))


@contextmanager
def let_go(servers: list[Running], *options: str, stopped: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """One that waited at the gate until it was ready, and runs; the servers may have been `stopped` before."""
    with subprocess.Popen(
        command(servers, *options, "--gate"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert b'"ready"' in known(process.stdout).readline()
        for server in servers if stopped else ():
            server.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
        known(process.stdin).write(b"g")
        known(process.stdin).flush()
        yield process


def load(servers: list[Running], *options: str, keys: int = KEYS) -> Load:
    status, events = done(servers, *options, keys=keys)
    assert status == 0, events
    (said,) = (event for event in events if isinstance(event, Load))
    return said


def timed(servers: list[Running], *options: str, keys: int = KEYS) -> Timed:
    return known(load(servers, *options, keys=keys).timed)


def fail(servers: list[Running], *options: str, keys: int = KEYS) -> tuple[int, probe.Error]:
    status, events = done(servers, *options, keys=keys)
    (error,) = (event for event in events if isinstance(event, probe.Error))
    return status, error


@pytest.mark.parametrize("start", [redis, memcached])
def test_the_preload_stores_every_key_with_the_same_bytes_every_time(start: Start) -> None:
    hashes, bytes_held = [], []
    for seed in ("1", "1", "2"):
        with start() as fresh:
            stored = known(load([fresh], "--preload", "--operations", "0", "--seed", seed).stored)
            assert (stored.keys, stored.counts, fresh.items()) == (KEYS, [KEYS], KEYS)
            hashes.append(stored.hash)
            if fresh.protocol == "memcached":
                bytes_held.append(fresh.stat("bytes"))
    assert hashes[0] == hashes[1] != hashes[2]
    assert bytes_held[:1] == bytes_held[1:2]


def test_what_was_stored_is_read_back_byte_by_byte_and_another_seed_is_noticed(server: Running) -> None:
    said = load([server], "--preload", "--touch", "--operations", "0")
    assert known(said.touched).keys == KEYS
    assert said.timed is None
    status, error = fail([server], "--touch", "--seed", "2")
    assert (status, error.fault, error.before_timed) == (1, "workload", True)
    assert "another value" in error.message
    status, error = fail([server], "--touch", keys=KEYS + 100)
    assert "does not have key number" in error.message


def test_the_mix_has_the_shares_asked_for_and_the_fill_does_not_grow(server: Running) -> None:
    found = timed([server], "--preload", "--operations", "60000", "--pipeline", "8", "--hit-ratio", "0.9")
    assert found.operations == 60_000 == found.sets + found.gets
    assert found.gets == found.hits + found.misses
    assert found.lost == 0
    # Six standard deviations of a binomial share.
    assert found.sets / found.operations == pytest.approx(1 / 11, abs=0.0071)
    assert found.hits / found.gets == pytest.approx(0.9, abs=0.0079)
    assert server.items() == KEYS
    assert not found.per_operation


def test_the_server_counts_what_the_client_counts(server: Running) -> None:
    found = timed([server], "--preload", "--operations", "30000")
    names = ("keyspace_hits", "keyspace_misses") if server.protocol == "redis" else ("get_hits", "get_misses")
    assert (server.stat(names[0]), server.stat(names[1])) == (found.hits, found.misses)


def test_an_open_loop_says_whether_it_kept_the_rate() -> None:
    with redis() as server:
        load([server], "--preload")
        found = timed([server], "--rate", "2000", "--duration", "1.5")
        assert found.rate_met is (abs(found.achieved_rate / 2000 - 1) <= 0.01)
        assert found.operations + found.unsent == 3000
        beyond = timed([server], "--rate", "50000000", "--duration", "0.02", "--connections", "1")
        assert beyond.rate_met is False
        assert beyond.achieved_rate < 0.99 * 50_000_000
        assert beyond.operations + beyond.unsent == 1_000_000


def test_a_stop_of_the_server_shows_in_the_open_loop(server: Running) -> None:
    load([server], "--preload")
    rate, duration = 1000, 2.0
    # It stands still from before the measured part on. A client that is slow to begin has it stand still for longer.
    for pause in (0.25, 5.0, 30.0):
        with let_go([server], "--rate", str(rate), "--duration", str(duration), stopped=True) as process:
            time.sleep(pause)
            goes_on = time.monotonic_ns()
            server.process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=120)
        said = next(event for event in probe.decode(output.splitlines(keepends=True)) if isinstance(event, Load))
        found = known(said.timed)
        if goes_on - found.start_ns >= 200e6:
            break
    latency = known(found.latency)
    # A request that was due just after the stop waits for all of it; so do the 0.1% that came within 2 ms after it.
    assert latency.max_ns >= 195e6
    assert latency.p999_ns >= 190e6
    # 200 of 2,000 requests were due while it stood still: each waits for the rest of the stop, so the p99 is high too.
    assert latency.p99_ns >= 100e6
    assert latency.count == rate * duration == found.operations + found.unsent


def test_instances_are_served_evenly_and_the_merge_is_their_sum() -> None:
    with redis() as one, redis() as two:
        both = [one, two]
        cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])
        load(both, "--preload")
        assert (one.items(), two.items()) == (KEYS, KEYS)
        found = timed(both, "--cpus", cpus, "--operations", "20000", "--connections", "3")
        assert [instance.operations for instance in found.instances] == [10_000, 10_000]
        assert [instance.server for instance in found.instances] == [one.address, two.address]
        latencies = [instance.latency for instance in found.instances if instance.latency is not None]
        assert found.latency is not None
        assert found.latency.count == sum(latency.count for latency in latencies) == found.operations
        assert found.latency.max_ns == max(latency.max_ns for latency in latencies)
        assert found.worst is not None
        assert found.worst.p99_ns == max(latency.p99_ns for latency in latencies)
        assert min(x.p99_ns for x in latencies) <= found.latency.p99_ns <= found.worst.p99_ns
        assert sum(found.per_second) <= found.operations
        assert [thread.cpu for thread in found.client.threads] == [int(cpu) for cpu in cpus.split(",")]


def test_a_server_that_ends_while_another_is_asked_is_noticed() -> None:
    with redis() as one, redis() as two:
        options = ("--preload", "--groups", "2", "--turns", "01", "--slice-operations", "20000000")
        with let_go([one, two], *options) as process:
            until(lambda: one.stat("keyspace_hits") > 0, "the first turn has begun")
            two.process.kill()
            output, _ = process.communicate(timeout=60)
        (error,) = (e for e in probe.decode(output.splitlines(keepends=True)) if isinstance(e, probe.Error))
        assert (error.fault, error.before_timed) == ("workload", False)
        assert two.address in error.message


def test_nothing_is_timed_before_the_gate_and_connections_are_held_after_it(server: Running) -> None:
    options = ("--preload", "--touch", "--lead", "0.05", "--operations", "1000", "--gate", "--hold")
    with subprocess.Popen(command([server], *options), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        lines = [known(process.stdout).readline()]
        known(process.stdin).write(b"g")
        known(process.stdin).flush()
        while b'"held"' not in lines[-1]:
            lines.append(known(process.stdout).readline())
            assert lines[-1], "it ended without holding"
        connected = "connected_clients" if server.protocol == "redis" else "curr_connections"
        assert server.stat(connected) >= 8
        assert process.poll() is None
        known(process.stdin).close()
        assert process.wait(60) == 0
    phases = [event for event in probe.decode(lines) if isinstance(event, probe.Phase)]
    assert [phase.name for phase in phases] == ["ready", "setup", "preload", "touch", "lead", "timed", "held"]
    times = [phase.t_ns for phase in phases]
    assert times[1:] == sorted(times[1:])
    assert times[4] < times[0] < times[5]


def test_a_lead_does_not_change_what_is_timed() -> None:
    with redis() as server:
        load([server], "--preload")
        bare, led = (timed([server], "--operations", "5000", *more) for more in ((), ("--lead", "0.05")))
    assert (bare.sequence, bare.sets, bare.hits) == (led.sequence, led.sets, led.hits)
    assert bare.sequence is not None


def test_a_server_that_is_not_there_is_named_with_the_cure() -> None:
    with redis() as server:
        gone = server
    status, error = fail([gone], "--duration", "1")
    assert (status, error.fault, error.before_timed) == (1, "host", True)
    assert gone.address in error.message
    assert "is the server started" in error.message


def test_a_server_that_ends_in_the_timed_phase_is_the_workloads_fault(server: Running) -> None:
    load([server], "--preload")
    gets = "keyspace_hits" if server.protocol == "redis" else "get_hits"
    with let_go([server], "--duration", "60") as process:
        until(lambda: server.stat(gets) > 0, "the timed phase has begun")
        server.process.kill()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    errors = [e for e in probe.decode(output.splitlines(keepends=True)) if isinstance(e, probe.Error)]
    assert [(error.fault, error.before_timed) for error in errors] == [("workload", False)]
    assert server.address in errors[0].message
    assert "has it ended" in errors[0].message


def test_a_full_server_is_quoted() -> None:
    with redis("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as small:
        status, error = fail([small], "--preload", keys=200_000)
        assert (status, error.fault, error.before_timed) == (1, "workload", True)
        assert "OOM command not allowed" in error.message
    with memcached("-m", "2", "-M") as small:
        status, error = fail([small], "--preload", keys=200_000)
        assert (status, error.fault) == (1, "workload")
        assert "SERVER_ERROR out of memory" in error.message


def test_a_server_that_evicts_is_noticed() -> None:
    # Its maintainer's thread moves items to where they can be evicted: until then a full memcached refuses to store.
    with memcached("-m", "2", "-o", "no_lru_maintainer") as small:
        status, error = fail([small], "--preload", keys=200_000)
        assert (status, error.fault) == (1, "workload")
        assert "after 200000 were stored" in error.message


def test_a_server_of_another_protocol_is_noticed() -> None:
    with memcached() as server:
        other = Running("redis", server.socket, server.process)
        status, error = fail([other], "--operations", "10")
        assert (status, error.fault) == (1, "workload")


def test_the_search_reports_its_path_and_its_bracket() -> None:
    with redis() as server:
        load([server], "--preload")
        options = ("--duration", "0.1", "--repeats", "1", "--resolution", "0.5")
        found = known(load([server], *options, "--sla", "p99:5s").search)
        assert found.limit_ns == 5_000_000_000
        assert found.capacity > 0
        assert found.steps
        for step in found.steps:
            assert len(step.p99_ns) == len(step.achieved) == 1
            assert not step.passed or step.p99_ns[0] <= found.limit_ns
        passed = [step.rate for step in found.steps if step.passed]
        assert found.rate == (max(passed) if passed else None)
        assert found.failed is None or found.failed > (found.rate or 0)
        never = load([server], *options, "--sla", "p99:1us")
        assert known(never.search).rate is None


def test_values_larger_than_the_socket_pass_in_parts(server: Running) -> None:
    found = timed(
        [server], "--preload", "--touch", "--payload", "300k:1", "--set-get", "1:1", "--operations", "400",
        "--pipeline", "8", "--connections", "2", keys=50,
    )  # fmt: skip
    assert found.operations == 400
    assert found.bytes_received > found.hits * 300 * 1024


def unused() -> int:
    """A port that nobody has, and that the kernel gives to nobody who asks for any."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(lowest - 1 - os.getpid() % 1000, 1024, -1):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("every port is taken")


def test_tcp_is_asked_the_same() -> None:
    with redis("--bind", "127.0.0.1", "--port", str(port := unused())) as server:
        stored = load([server], "--preload", "--operations", "0").stored
        words = command([server], "--touch", "--operations", "2000", "--pipeline", "4")
        words[words.index(server.address)] = f"127.0.0.1:{port}"
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=True)
        said = next(e for e in probe.decode(done.stdout.splitlines(keepends=True)) if isinstance(e, Load))
        assert stored is not None
        assert said.timed is not None
        assert (known(said.touched).keys, said.timed.operations, said.timed.lost) == (KEYS, 2000, 0)
