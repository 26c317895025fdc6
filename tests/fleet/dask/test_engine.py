"""Dask as it is: a real scheduler and real workers on addresses of the loopback, killed, stopped and lied to."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from hugewise.errors import HostLostError, HugewiseError, UserError
from hugewise.fleet.dask.engine import DaskEngine
from hugewise.fleet.dask.settings import Identity
from hugewise.fleet.dask.worker import WorkerSettings, spool_folder
from hugewise.fleet.protocol import Assignment, AssignmentSeen, ForgetOrder, Greeting, HelloOrder, LookOrder
from hugewise.fleet.spool import identify, obeying_order
from tests.fleet.dask.local import COORDINATOR, NOWHERE, Local, listening, opened
from tests.wait import until

LOOK = LookOrder(assignment=NOWHERE)
BOTH = {"alpha", "beta"}
CPU = max(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    return Local(tmp_path_factory.mktemp("fleet"), cpu=CPU)


@pytest.fixture(scope="module")
def engine(local: Local) -> Iterator[DaskEngine]:
    with local.up() as engine:
        yield engine


@pytest.fixture(autouse=True)
def whole(engine: DaskEngine, local: Local) -> Iterator[None]:
    """Each test begins with both workers, and nothing told."""
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)
    local.told.clear()
    local.starts.clear()
    yield
    local.unreachable.clear()
    local.may_start.set()


def test_orders_are_obeyed_by_their_hosts(engine: DaskEngine) -> None:
    for host in ("alpha", "beta", "alpha"):
        assert engine.call(host, LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    answer = engine.call("beta", HelloOrder())
    assert isinstance(answer, Greeting)
    assert answer.root == (os.geteuid() == 0)
    assert answer.examined.error is None


def test_nothing_listens_elsewhere_than_at_the_addresses(engine: DaskEngine, local: Local) -> None:
    assert engine.scheduler is not None
    assert {each.partition(":")[0] for each in listening(engine.scheduler)} == {COORDINATOR}
    assert len(listening(engine.scheduler)) == 1
    for host, address in (("alpha", "127.0.0.11"), ("beta", "127.0.0.12")):
        (at,) = listening(local.worker(host))
        assert at.startswith(f"{address}:")


def test_an_idle_worker_is_bound_to_its_cpu(engine: DaskEngine, local: Local) -> None:
    """What it takes is measured in `make bench`. Orders may run anywhere."""
    assert engine.call("alpha", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    for task in Path(f"/proc/{local.worker('alpha')}/task").iterdir():
        with suppress(ProcessLookupError):  # of a thread that has ended
            assert os.sched_getaffinity(int(task.name)) == {CPU}


def test_no_key_is_in_a_list_of_processes_or_in_a_file(engine: DaskEngine, local: Local) -> None:
    assert engine.scheduler is not None
    secret = local.given["alpha"].partition(b"PRIVATE KEY-----\\n")[2][:40]
    assert len(secret) == 40
    for pid in (engine.scheduler, local.worker("alpha"), local.worker("beta"), os.getpid()):
        for name in ("cmdline", "environ"):
            found = Path(f"/proc/{pid}/{name}").read_bytes()
            assert b"PRIVATE" not in found
            assert secret not in found
    files = [path for path in local.folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"PRIVATE" in path.read_bytes()]


def test_a_worker_that_is_killed_is_started_again(engine: DaskEngine, local: Local) -> None:
    before = local.worker("alpha")
    local.may_start.clear()
    os.kill(before, signal.SIGKILL)
    until(lambda: "alpha" not in engine.present(), "its loss is seen")
    with pytest.raises(HostLostError, match="^alpha: no worker is registered"):
        engine.call("alpha", LOOK)
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    local.may_start.set()
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)
    assert local.worker("alpha") != before
    assert engine.call("alpha", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    assert local.told == ["alpha: its worker is gone; its run goes on, and another worker is started"]
    assert local.starts == ["alpha"]


def test_a_worker_that_is_lost_with_an_order_is_told_and_the_order_is_not_made_again(
    engine: DaskEngine, local: Local
) -> None:
    pid, held = local.worker("beta"), Assignment("f-held", 1)
    order = local.folder / "beta" / held.fleet / "order"
    order.parent.mkdir(0o700)
    with obeying_order(order, alone=True), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.call, "beta", ForgetOrder(assignment=held))
        try:
            until(lambda: str(order) in opened(pid), "the worker has the order, and waits for its turn")
        finally:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(HostLostError, match="^beta: its worker was lost while it had an order$"):
            asked.result(60)
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)
    # A worker obeys one order after the other: one that had come a second time would be done by now.
    assert engine.call("beta", LookOrder(assignment=held)) == AssignmentSeen(assignment=held, state="unknown")
    assert not order.with_name("fence").exists()


def test_the_scheduler_is_killed_and_all_goes_on(engine: DaskEngine, local: Local) -> None:
    before, workers = engine.scheduler, [local.known("alpha"), local.known("beta")]
    assert before is not None
    local.may_start.clear()
    os.kill(before, signal.SIGKILL)
    until(lambda: not engine.present(), "its loss is seen", seen=engine.present)
    with pytest.raises(HostLostError):
        engine.call("alpha", LOOK)
    local.may_start.set()
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)
    assert engine.scheduler not in (None, before)
    assert [identify(worker.pid) == worker for worker in workers] == [False, False]  # they ended by themselves
    for host in BOTH:
        assert engine.call(host, LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    message = (
        "Dask's scheduler ended (killed by SIGKILL); a new one is started, and the runs on the hosts go on meanwhile"
    )
    assert local.told == [message]


def test_a_worker_that_is_stopped_stays_registered_and_answers_when_it_goes_on(
    engine: DaskEngine, local: Local
) -> None:
    pid = local.worker("alpha")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(HostLostError, match="^alpha gave no answer within 3 s$"):
            engine.call("alpha", LOOK, timeout=3)
        assert engine.present() == BOTH
        with subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pid}"]):
            assert engine.call("alpha", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert local.told == []


def test_another_worker_of_a_host_ends_the_earlier_one(engine: DaskEngine, local: Local) -> None:
    """As after a link that was cut: the old one may be anywhere, even stopped."""
    local.unreachable.add("beta")  # for the engine, which sees that the old one is gone
    before = local.known("beta")
    os.kill(before.pid, signal.SIGSTOP)
    local.started(local.given["beta"])
    until(lambda: identify(before.pid) != before, "the earlier worker is gone")
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def test_a_host_that_is_not_reached_is_tried_again_and_told_why(engine: DaskEngine, local: Local) -> None:
    local.unreachable.add("alpha")
    os.kill(local.worker("alpha"), signal.SIGKILL)
    until(lambda: "alpha" not in engine.present(), "its loss is seen")
    until(lambda: engine.why("alpha"), "why it is not started is known")
    with pytest.raises(HostLostError) as lost:
        engine.call("alpha", LOOK)
    assert lost.value.message == "alpha: no worker is registered: alpha: ssh: No route to host"
    assert lost.value.hint == "try: ssh it"
    local.unreachable.clear()
    until(lambda: engine.present() == BOTH, "both workers are registered", seen=engine.present)


def test_a_fleet_that_is_over_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    other = Local(tmp_path)
    with other.up() as engine:
        scheduler, workers = engine.scheduler, [other.known("alpha"), other.known("beta")]
        assert engine.call("alpha", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")
    assert scheduler is not None
    assert not Path(f"/proc/{scheduler}").exists()
    until(lambda: all(identify(worker.pid) != worker for worker in workers), "the workers are gone")
    until(
        lambda: not [*tmp_path.rglob(".worker*")],
        "no file of theirs is left",
        seen=lambda: [*tmp_path.rglob(".worker*")],
    )


def test_the_user_s_own_settings_for_dask_reach_no_fleet(tmp_path: Path) -> None:
    (tmp_path / "dask.yaml").write_text("distributed: {scheduler: {worker-ttl: 1s}, comm: {require-encryption: false}}")
    asked = (
        "from hugewise.fleet.dask import settings; settings.load(); import dask; get = dask.config.get;"
        "print(get('distributed.scheduler.allowed-failures'), get('distributed.scheduler.worker-ttl'),"
        " get('distributed.comm.require-encryption'), get('distributed.scheduler.work-stealing'))"
    )
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "5"}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "None", "True", "False"]


def test_without_the_extra_it_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    other = Local(tmp_path)
    with pytest.raises(UserError, match='engine = "dask" needs its extra: distributed is not installed') as error:
        other.up().__enter__()
    assert error.value.hint == "pip install 'hugewise[fleet]', or write: engine = \"ssh\""
    assert other.starts == []


def test_an_address_that_is_not_this_machine_s_is_told(tmp_path: Path) -> None:
    other = Local(tmp_path)
    other.inventory = replace(other.inventory, fleet=replace(other.inventory.fleet, address="192.0.2.1"))
    with pytest.raises(HugewiseError, match=r"^Dask's scheduler cannot listen at 192\.0\.2\.1: ") as error:
        other.up().__enter__()
    assert error.value.hint == "[fleet] address is one of this machine's own, and port a free one"
    assert other.starts == []


TOLD = WorkerSettings(
    identity=Identity(certificate="", key="", callers="", called=""),
    seal="",
    fleet="f",
    host="alpha",
    scheduler="tls://127.0.0.1:1",
    address="127.0.0.1",
    installation="/opt/hugewise",
    spool="/srv/spool",
)


@pytest.mark.parametrize(("root", "uid", "spool"), [(False, 1000, True), (True, 0, True), (True, 1000, False)])
def test_it_makes_no_spool_of_root_s_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool, uid: int, spool: bool
) -> None:
    """With `root = true` orders go through sudo: root would refuse a spool that this account has made."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = Path("/srv/spool") if spool else tmp_path / ".local/state/hugewise/fleet"
    assert spool_folder(replace(TOLD, root=root)) == wanted
