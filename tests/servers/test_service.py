"""A server of the user's under a load of theirs, in whole runs: what is counted and proven, and each way to fail."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import hugewise
from hugewise.attempt import procedure
from hugewise.errors import HugewiseError
from hugewise.model.procedure import OutputReady, PortReady
from hugewise.model.results import Results
from hugewise.model.trial import Attempt
from hugewise.report.reasons import in_words
from tests.build import known
from tests.build.services import SERVER, service
from tests.build.studies import study_of
from tests.requirements import need_program
from tests.servers.trying import accepted, attempts, quick
from tests.wait import until

pytestmark = pytest.mark.whole

OPERATIONS = "operations,neutral=regex:did ([0-9]+)"
ARMS = ("as-is", {"name": "again", "from": "as-is", "environment": {"AGAIN": "1"}})


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """No server of a test goes on, in whatever session of its own, and no folder of it is there."""
    yield
    mark = SERVER.splitlines()[2].encode()
    there = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            there += [process.name] if mark in line else []
    assert there == []
    assert list(Path("/dev/shm").glob(f"hugewise-{os.getpid()}*")) == []


def run(folder: Path, parameters: Mapping[str, Any], *policies: Any, **more: Any) -> dict[str, Attempt]:
    return quick(folder, "service", policies or ARMS, parameters, timeout="120s", **more)


def refused(folder: Path, parameters: Mapping[str, Any]) -> str:
    """Why no attempt of it counts; a run of which none does may end with that as its error."""
    try:
        found = run(folder, parameters)
    except HugewiseError as error:
        return str(error)
    assert {one.state for one in found.values()} <= {"rejected", "abandoned"}, "its block does not count"
    return "; ".join(known(one.reason) for one in found.values())


def test_the_server_is_treated_counted_and_proven_and_not_the_load(tmp_path: Path) -> None:
    found = run(tmp_path, service(values=[OPERATIONS], environment=["HELD=64"]), "base", "thp", metric="wall_s")
    accepted(found, "base", "thp")
    assert found["thp"].delivery.coverage["anon:2097152"] > 60 << 20
    assert found["base"].delivery.coverage["anon:4096"] > 64 << 20
    for one in found.values():
        assert one.delivery.proof == "live"
        assert known(one.wall_s) > 0
        assert one.metrics["operations"] == 50
        spent = known(one.metrics["server_cpu_s"])
        assert 0 < spent < 1.5 * known(one.wall_s)
        assert known(one.metrics["wall_us"]) == pytest.approx(known(one.wall_s) * 1e6 / 50)
        assert known(one.metrics["server_cpu_us"]) == pytest.approx(spent * 1e6 / 50)
        assert known(one.peak_bytes) > 64 << 20
        assert known(one.metrics["peak_bytes"]) > 64 << 20
        assert known(one.metrics["footprint_bytes"]) > 64 << 20
        assert one.facts["load_cpu_s"] is not None


def test_a_load_that_does_less_under_an_arm_has_no_verdict_on_its_time(tmp_path: Path) -> None:
    """Under the tunable the server refuses all that it is asked, and its load is done at once."""
    lazy = {"name": "lazy", "from": "as-is", "environment": {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}}

    def compared(**more: Any) -> Results:
        use = {"name": "service", "parameters": service("lazy", environment=["ROUNDS=20"], **more), "metric": "wall_s"}
        study = study_of(workload=[use], policies=["as-is", lazy], budget={"blocks": 2}, method="fixed-n")
        return hugewise.run(study, results=tmp_path)

    told = compared(values=[OPERATIONS])
    assert {(each.arm, each.metrics["operations"]) for each in told.attempts} == {("as-is", 50), ("lazy", 0)}
    (one,) = told.cells[0].comparisons
    assert one.ratio is not None, "by its time it is compared all the same"
    assert one.verdict == "none"
    assert "under lazy it did 100% less work than under as-is (operations, 2 pairs)" in in_words(one.reason)
    (unknown,) = compared().cells[0].comparisons
    assert any("as much work under both is not known" in in_words(said) for said in unknown.warnings)


def test_a_server_takes_the_pool_by_itself_and_no_other_arm_has_its_pages(tmp_path: Path) -> None:
    """A pool is there for all arms of a run: a server that takes what it finds has it in each."""
    own = {"name": "own", "from": "reserved-2m", "mechanism": "process"}
    taking = {**own, "parameters": {"own_pool": True, "pool_bytes": "8m"}}
    setting = {"delivery": {"share": 0.0}}
    found = run(tmp_path / "takes", service("takes"), "as-is", taking, **setting)
    assert found["own"].delivery.delivered is True
    assert found["own"].delivery.coverage["hugetlb:2097152"] == 8 << 20
    assert found["own"].delivery.coverage.get("anon:2097152", 0) == 0
    assert found["as-is"].delivery.delivered is False
    assert "it took pages of the pool that this run has reserved for other arms" in known(
        found["as-is"].delivery.reason
    )
    assert found["as-is"].begun["shared_bytes"] == 8 << 20
    other = run(tmp_path / "not", service(), "as-is", taking, **setting)
    assert other["as-is"].delivery.delivered is True
    assert known(other["own"].delivery.reason).startswith("the server has no page of the pool, of 8m")


def test_all_processes_of_a_server_are_looked_at_and_what_it_leaves_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, service("children", environment=["HELD=32"]), "base", "thp")["base"]
    assert found.state == "accepted"
    # What the child had of its parent counts for both.
    assert found.delivery.coverage["anon:4096"] > (32 + 32 + 24) << 20
    (mark,) = (disturbance for disturbance in found.disturbances if "server" in disturbance)
    assert mark == "server left a process when it was stopped, which had to be killed"
    assert dict(found.begun) == {"forked": 1, "executed": 0, "threads": 0, "ended": 0, "shared_bytes": 0}


def test_a_child_that_is_gone_is_seen_by_what_its_parent_counts(tmp_path: Path) -> None:
    """As after the background save of a redis."""
    for words, ended in (("saves",), 1), ((), 0):
        found = run(tmp_path / str(ended), service(*words, asked=2))
        assert {tuple(one.begun.items()) for one in found.values()} == {
            (("forked", 0), ("executed", 0), ("threads", 0), ("ended", ended), ("shared_bytes", 0))
        }


AWAITS = """
import socket, sys, time
while True:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("ready", ["tcp:{port}", "line:^ready at [0-9]+$", "exec:/usr/bin/true {port}"])
def test_it_is_known_to_be_up_in_each_way(tmp_path: Path, ready: str) -> None:
    load = service(asked=2)["load"]
    # Where a command of no use says that it is up, the load has to wait itself.
    patient = [*load[:-3], AWAITS + load[-3], *load[-2:]] if ready.startswith("exec") else load
    accepted(run(tmp_path, {**service(asked=2), "load": patient, "ready": ready}), "as-is", "again")


def test_what_fills_it_is_done_before_the_clock_runs(tmp_path: Path) -> None:
    parameters = service(asked=2, environment=["ROUNDS=5"])
    parameters["fill"] = [*parameters["load"][:-1], "600"]
    found = run(tmp_path, parameters)
    accepted(found, "as-is", "again")
    (first, *_) = found.values()
    assert known(first.metrics["server_cpu_s"]) < 0.4, "of some 1.5 ms for each that it was asked"


# -- each way to fail


def test_a_server_that_ends_early_is_told_with_what_it_said(tmp_path: Path) -> None:
    told = refused(tmp_path, service("early"))
    assert "server ended before it answered (exit status 9)" in told
    assert "no room for me" in told


@pytest.mark.soak
def test_a_server_that_is_never_up_is_told_with_what_it_waits_for(tmp_path: Path) -> None:
    told = refused(tmp_path, service("silent", ready_within="5s"))
    assert "server does not answer after 5 s: it does not listen at TCP port " in told
    assert "still thinking" in told
    told = refused(tmp_path / "line", service(ready="line:^never$", ready_within="500ms"))
    assert "it has not printed what matches '^never$'" in told
    told = refused(tmp_path / "unix", service(ready="unix:{folder}/socket", ready_within="5s"))
    assert "it does not listen at the socket /dev/shm/" in told and ", but at TCP port " in told


def test_a_port_that_is_taken_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with monkeypatch.context() as held:
            unready = procedure.unready

            def listens(waited: PortReady | OutputReady, pids: Sequence[int], said: tuple[Path, Path]) -> str | None:
                """It is looked at when it listens where it was not to, however slow it begins."""
                until(lambda: said[0].exists() and "ready at" in said[0].read_text(), "the server listens")
                return unready(waited, pids, said)

            held.setattr(procedure, "unready", listens)
            told = refused(tmp_path / "other", service(ready=f"tcp:{port}", ready_within="500ms"))
        assert f"it does not listen at TCP port {port}, but at TCP port " in told
        assert "another program listens there already" in told
        parameters = service(ready=f"tcp:{port}")
        parameters["server"] = [word.replace("{port}", port) for word in parameters["server"]]
        assert "Address already in use" in refused(tmp_path / "same", parameters)


def test_a_server_that_goes_into_the_background_is_told_and_does_not_stay(tmp_path: Path) -> None:
    told = refused(tmp_path, service("daemon"))
    assert "exit status 0, and it left a process: it went into the background" in told
    assert "have it stay in the foreground" in told


def test_a_load_that_fails_counts_as_failed(tmp_path: Path) -> None:
    found = run(tmp_path, service(status=3))
    assert {(one.state, one.reason) for one in found.values()} == {("failed", "exit status 3")}
    assert all(one.metrics == {} for one in found.values())


def test_a_load_that_says_something_else_counts_as_failed(tmp_path: Path) -> None:
    found = run(tmp_path, service(values=["rate,higher=regex:rate ([0-9]+)"]))
    assert {one.state for one in found.values()} == {"failed"}
    assert all("nothing in its output matches 'rate ([0-9]+)'" in known(one.reason) for one in found.values())


def test_a_server_that_dies_under_its_load_is_the_cause(tmp_path: Path) -> None:
    found = run(tmp_path, service("mortal"))
    assert {one.state for one in found.values()} == {"failed"}
    assert all("server ended during the attempt (exit status 7)" in known(one.reason) for one in found.values())


def test_a_server_that_does_not_end_in_order_is_killed_and_told(tmp_path: Path) -> None:
    parameters = service(stop_within="300ms")
    parameters["server"][3] = "import signal; signal.signal(15, signal.SIG_IGN)\n" + parameters["server"][3]
    found = run(tmp_path, parameters)
    accepted(found, "as-is", "again")
    for one in found.values():
        assert any("server did not stop within 0.3 s" in disturbance for disturbance in one.disturbances)


# -- programs that people have


@pytest.mark.soak
def test_memcached_at_a_unix_socket(tmp_path: Path) -> None:
    need_program("memcached", "memcached")
    ask = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
    ask += "for _ in range(500):\n    s.sendall(b'version\\r\\n')\n    assert s.recv(99).startswith(b'VERSION')"
    parameters = {
        "server": ["memcached", "-s", "{folder}/socket", "-u", "root"],
        "load": ["/usr/bin/python3", "-IS", "-c", ask, "{folder}/socket"],
    }
    accepted(run(tmp_path, parameters), "as-is", "again")


def test_an_account_may_be_named_that_all_of_it_runs_as(tmp_path: Path) -> None:
    code = "import os; print('as', os.getuid(), os.getcwd())\n"
    parameters = service(asked=2)
    parameters["server"][3] = code + parameters["server"][3]
    parameters["server"][0] = "/usr/bin/python3"
    parameters["load"][0] = "/usr/bin/python3"
    found = attempts(tmp_path, {"name": "service", "user": "nobody", "parameters": parameters}, list(ARMS), blocks=2)
    assert {one.state for one in found} == {"accepted"}
    said = {path.read_text().splitlines()[0] for path in (tmp_path / "results").glob("**/server.stdout")}
    assert said == {f"as 65534 {Path.cwd()}"}


def test_each_workload_of_a_study_has_the_folders_of_its_own_account(tmp_path: Path) -> None:
    need_program("redis-server", "redis-server")
    redis = {"name": "redis", "parameters": {"keys": 2000, "instances": 1, "duration": "100ms", "lead": "50ms"}}
    ours = {"name": "service", "parameters": service(asked=2)}
    study = study_of(policies=list(ARMS), workload=[ours, redis], budget={"blocks": 2}, attempt={"retries": 0})
    found = hugewise.run(study, results=tmp_path).attempts
    assert {(one.cell, one.state) for one in found} == {("service", "accepted"), ("redis", "accepted")}
