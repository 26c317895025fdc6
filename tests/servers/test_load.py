"""The load generator against real redis and memcached servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from hugewise.host.local_machine import LocalMachine
from hugewise.machine import machine, probe
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


def test_values_have_the_sizes_asked_for(server: Running) -> None:
    stored = load([server], "--preload", "--payload", "16:56,64:30,128:12,1024:2", "--key-name", "key:%012d").stored
    assert stored is not None
    mean = 0.56 * 16 + 0.30 * 64 + 0.12 * 128 + 0.02 * 1024
    # Six standard errors of the mean: the standard deviation of a size is 141 B.
    assert stored.bytes / KEYS == pytest.approx(16 + mean, abs=6.0)


@pytest.mark.parametrize("law", ["uniform", "zipf:0.99", "gauss:0.1"])
def test_a_seed_is_a_sequence(server: Running, law: str) -> None:
    load([server], "--preload")
    options = ("--operations", "5000", "--popularity", law)
    first, again = (timed([server], *options).sequence for _ in range(2))
    assert first == again is not None
    assert timed([server], "--operations", "5000", "--popularity", "zipf:0.5").sequence != first


def test_a_lead_does_not_change_what_is_timed(server: Running) -> None:
    load([server], "--preload")
    bare = timed([server], "--operations", "5000")
    led = timed([server], "--operations", "5000", "--lead", "0.05")
    assert bare.sequence == led.sequence
    assert (bare.sets, bare.hits) == (led.sets, led.hits)


def test_an_open_loop_keeps_the_rate_and_says_when_it_could_not(server: Running) -> None:
    load([server], "--preload")
    found = timed([server], "--rate", "2000", "--duration", "1.5")
    assert found.asked_rate == 2000
    assert found.rate_met is (abs(found.achieved_rate / 2000 - 1) <= 0.01)
    assert found.operations + found.unsent == 3000
    assert found.late is not None
    assert len(found.per_second) == int(found.wall_ns / 1e9)
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


@pytest.mark.parametrize("start", [redis, memcached])
def test_groups_in_turns_do_the_same_work_one_at_a_time(start: Start) -> None:
    with start() as one, start() as two:
        servers = [one, two]
        options = ("--preload", "--groups", "2", "--turns", "0110", "--slice-operations", "5000")
        with let_go(servers, *options) as process:
            output, _ = process.communicate(timeout=60)
        said = list(probe.decode(output.splitlines(keepends=True)))
        groups = [known(event.timed) for event in said if isinstance(event, Load)]
        assert [[instance.server for instance in group.instances] for group in groups] == [[one.address], [two.address]]
        first, second = (
            (group.sequence, group.sets, group.hits, group.misses, group.bytes_sent, group.bytes_received)
            for group in groups
        )
        assert first == second
        for group, server in zip(groups, servers, strict=True):
            turns = known(group.turns)
            assert (turns.count, turns.slice_operations, turns.washed, turns.operations) == (2, 5000, 2000, 10_000)
            assert (group.operations, group.wall_ns) == (8000, sum(turns.turn_ns))
            assert group.wall_ns < turns.wall_ns
            prefix = "keyspace" if server.protocol == "redis" else "get"
            gets = server.stat(f"{prefix}_hits") + server.stat(f"{prefix}_misses")
            # Those of the wash-out too: a binomial share of 10,000 within six standard deviations.
            assert gets == pytest.approx(10_000 * 10 / 11, abs=173)
            assert gets > group.gets
        moments = {event.name: event.t_ns for event in said if isinstance(event, probe.Phase)}
        assert sum(known(group.turns).wall_ns for group in groups) < moments["held"] - moments["timed"]


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


def test_phases_are_said_in_order_and_connections_are_held(server: Running) -> None:
    options = ("--preload", "--touch", "--lead", "0.05", "--operations", "1000", "--gate", "--hold")
    with subprocess.Popen(command([server], *options), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        process.stdin.write(b"g")
        process.stdin.flush()
        while b'"hold"' not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended without holding"
        connected = "connected_clients" if server.protocol == "redis" else "curr_connections"
        assert server.stat(connected) >= 8
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 0
    phases = [event for event in probe.decode(lines) if isinstance(event, probe.Phase)]
    assert [phase.name for phase in phases] == ["ready", "setup", "preload", "touch", "lead", "timed", "held"]
    times = [phase.t_ns for phase in phases]
    assert times[1:] == sorted(times[1:])
    assert times[4] < times[0] < times[5]


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
    with memcached("-m", "2") as small:
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


def test_the_tuning_chooses_a_point_of_its_grid() -> None:
    with redis() as server:
        load([server], "--preload")
        found = load(
            [server], "--duration", "0.1", "--tune", "--tune-connections", "1,4", "--tune-pipelines", "1,8"
        ).tuning
        assert found is not None
        points = [(point.connections, point.pipeline) for point in found.points]
        assert sorted(points) == [(1, 1), (1, 8), (4, 1), (4, 8)]
        best = max(point.rate for point in found.points)
        chosen = next(point for point in found.points if point.rate >= 0.98 * best)
        assert (found.connections, found.pipeline) == (chosen.connections, chosen.pipeline)


def test_values_larger_than_the_socket_pass_in_parts(server: Running) -> None:
    found = timed(
        [server], "--preload", "--touch", "--payload", "300k:1", "--set-get", "1:1", "--operations", "400",
        "--pipeline", "8", "--connections", "2", keys=50,
    )  # fmt: skip
    assert found.operations == 400
    assert found.bytes_received > found.hits * 300 * 1024


def test_wrong_options_end_with_2() -> None:
    with redis() as server:
        for options in (
            (),
            ("--duration", "1", "--hit-ratio", "2"),
            ("--duration", "1", "--rate", "0"),
            ("--duration", "1", "--sla", "p99:1ms", "--pipeline", "4"),
            ("--operations", "5", "--key-name", "plain"),
            ("--operations", "5", "--cpus", "5000"),
        ):
            done = subprocess.run(command([server], *options), capture_output=True, timeout=120, check=False)
            assert done.returncode == 2, options


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


def test_the_launcher_opens_its_gate_and_lets_it_go(server: Running, tmp_path: Path) -> None:
    argv = command([server], "--preload", "--operations", "1000", "--gate", "--hold")[1:]
    spec = probe.Spec(
        argv=tuple(argv), micro=True, env={}, stdout=str(tmp_path / "out"), stderr=str(tmp_path / "err"), timeout_s=60,
    )  # fmt: skip
    job = probe.Job(spec, *(tmp_path / name for name in ("spec.json", "events", "stderr")))
    assert machine.run_launchers([(LocalMachine(), job)]) == [0]
    said = machine.read_events(job)
    found = next(event for event in said if isinstance(event, Load))
    assert known(found.timed).operations == 1000
    ended = said[-1]
    assert isinstance(ended, probe.Exit)
    assert ended.code == 0
