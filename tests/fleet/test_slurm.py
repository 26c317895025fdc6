"""Slurm as Debian has it: jobs that are queued, run, cancelled and killed, and a node that is drained."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hugewise
from hugewise.errors import HostLostError
from hugewise.fleet import inventory
from hugewise.fleet.engine import ask
from hugewise.fleet.protocol import (
    Assignment,
    AssignmentSeen,
    BeginOrder,
    Done,
    EndOrder,
    FleetQuestion,
    ForgetOrder,
    Greeting,
    HelloOrder,
    LookOrder,
    ManifestFound,
    ManifestOrder,
)
from hugewise.fleet.slurm import SlurmEngine
from tests.fleet.cluster import NODES, Cluster
from tests.fleet.driven import STUDY

HOSTS = """
[fleet]
engine = "slurm"
installation = "{install}"
spool = "{spool}"
partition = "all"

"""
QUESTION = FleetQuestion(text=STUDY.format(name="small", blocks=2, settle=0))
LONG = FleetQuestion(text=STUDY.format(name="long", blocks=200, settle=200))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    import tempfile

    from hugewise import beneath

    folder = Path(tempfile.mkdtemp(prefix="hw-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with Cluster(folder) as cluster:
            yield cluster
    finally:
        beneath.discard(folder)


@pytest.fixture(scope="module")
def engine(cluster: Cluster) -> Iterator[SlurmEngine]:
    text = HOSTS.format(install=cluster.installed(), spool=cluster.folder / "shared")
    text += "".join(f'[[host]]\nname = "host-{node}"\nslurm = "{node}"\n\n' for node in NODES)
    with SlurmEngine(inventory.parse(text, "hosts.toml")) as engine:
        yield engine


def until(
    engine: SlurmEngine, host: str, number: int, holds: Callable[[AssignmentSeen], bool], timeout: float = 60.0
) -> AssignmentSeen:
    """Look until it holds."""
    end = time.monotonic() + timeout
    found: object = None
    while time.monotonic() < end:
        try:
            if holds(found := look(engine, host, number)):
                return found
        except HostLostError as error:
            found = error
        time.sleep(0.2)
    raise AssertionError(found)


def look(engine: SlurmEngine, host: str, number: int) -> AssignmentSeen:
    answer = ask(engine, host, LookOrder(assignment=Assignment("f", number)))
    assert isinstance(answer, AssignmentSeen)
    return answer


def begin(number: int, question: FleetQuestion = QUESTION) -> BeginOrder:
    return BeginOrder(assignment=Assignment("f", number), question=question)


def jobs(cluster: Cluster, number: int, host: str) -> list[str]:
    """The states of all jobs of an assignment, the oldest first."""
    named = f"--name=hugewise-f-{number}-{host}"
    return cluster.said("squeue", "--noheader", "--states=all", "--sort=i", named, "--format=%T").split()


@pytest.mark.soak
def test_a_run_is_queued_measures_and_is_brought(engine: SlurmEngine, cluster: Cluster) -> None:
    """The body of the job is the keeper, in the foreground; asked twice it is queued once. First the host says who it
    is, by a job too.
    """
    assert isinstance(ask(engine, "host-n1", HelloOrder(), timeout=60), Greeting)
    shared = cluster.folder / "shared" / "host-n1"
    assert [path.name for path in shared.iterdir() if path.name.startswith(".hello")] == []
    assert ask(engine, "host-n1", begin(1)) == Done()
    assert ask(engine, "host-n1", begin(1)) == Done()
    first = look(engine, "host-n1", 1)
    assert first.state in ("starting", "running")
    answer = until(engine, "host-n1", 1, lambda seen: seen.state == "ended")
    assert answer.closed == 2
    assert jobs(cluster, 1, "host-n1") in (["COMPLETED"], ["COMPLETING"], ["RUNNING"])
    manifest = ask(engine, "host-n1", ManifestOrder(assignment=Assignment("f", 1)))
    assert isinstance(manifest, ManifestFound)
    (run,) = (cluster.folder / "shared" / "host-n1" / "f" / "1" / "results" / "small").iterdir()
    assert hugewise.open_results(run).state == "finished"
    until_over(cluster, 1, "host-n1")
    assert ask(engine, "host-n1", ForgetOrder(assignment=Assignment("f", 1))) == Done()
    assert not run.exists()


def until_over(cluster: Cluster, number: int, host: str, timeout: float = 20.0) -> list[str]:
    end = time.monotonic() + timeout
    while {"RUNNING", "COMPLETING"} & set(found := jobs(cluster, number, host)):
        assert time.monotonic() < end, found
        time.sleep(0.2)
    return found


@pytest.mark.soak
def test_a_job_that_somebody_cancels_is_queued_again_as_the_same_run(engine: SlurmEngine, cluster: Cluster) -> None:
    ask(engine, "host-n3", begin(4, LONG))
    before = until(engine, "host-n3", 4, lambda seen: seen.closed >= 1)
    cluster.said("scancel", "--name=hugewise-f-4-host-n3")
    until_over(cluster, 4, "host-n3")
    after = until(engine, "host-n3", 4, lambda seen: seen.state == "running" and seen.closed > before.closed)
    assert after.run == before.run
    assert jobs(cluster, 4, "host-n3") == ["CANCELLED", "RUNNING"]
    ask(engine, "host-n3", EndOrder(assignment=Assignment("f", 4)))
    until(engine, "host-n3", 4, lambda seen: seen.state == "interrupted")
    until_over(cluster, 4, "host-n3")
