"""A host that lies: with its own certificate it gives no orders, and nothing that it sends is carried out elsewhere."""

import asyncio
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import HugewiseError
from hugewise.fleet.dask import settings
from hugewise.fleet.dask.engine import DaskEngine
from hugewise.fleet.dask.worker import WorkerSettings
from hugewise.fleet.protocol import Assignment, AssignmentSeen, LookOrder
from tests.fleet.dask.local import NOWHERE, Local
from tests.wait import until

LOOK = LookOrder(assignment=NOWHERE)


class Evil:
    """Unpickled, it leaves the pid of who did so."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return done_to, (self.mark,)


def done_to(mark: Path) -> None:
    mark.mkdir(exist_ok=True)
    (mark / str(os.getpid())).touch()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    return Local(tmp_path_factory.mktemp("fleet"))


PLANTED = ("msgspec", "hugewise", "sitecustomize")


@pytest.fixture(scope="module")
def began_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that have names of modules, each of which would leave a mark."""
    folder = tmp_path_factory.mktemp("planted")
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'mark')!r}, 'w')\n")
    return folder


@pytest.fixture(scope="module")
def engine(local: Local, began_in: Path) -> Iterator[DaskEngine]:
    """It is begun in the folder of such files."""
    with ExitStack() as stack:
        with chdir(began_in):
            engine = stack.enter_context(local.up())
        yield engine


@pytest.fixture
def mark(tmp_path: Path, engine: DaskEngine, local: Local) -> Iterator[Path]:
    """Nobody but a liar itself makes this folder; and afterwards the fleet goes on."""
    mark = tmp_path / "mark"
    yield mark
    local.unreachable.clear()
    # Dask unpickles an error where it is raised, to see whether that can be done.
    assert {path.name for path in mark.glob("*")} <= {(tmp_path / "liar").read_text()} if mark.exists() else True
    until(lambda: engine.present() == {"alpha", "beta"}, "both workers are registered", seen=engine.present)
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def said(local: Local, message: dict[str, Any], address: str | None = None) -> object:
    """What alpha is answered there, or by the scheduler, or the error that comes of it."""
    config = msgspec.json.decode(local.given["alpha"], type=WorkerSettings)
    options = settings.security(config.identity).get_connection_args("worker")

    async def say() -> object:
        from distributed.comm import connect

        comm = await connect(address or config.scheduler, timeout=60, **options)
        try:
            await comm.write(message)
            return await asyncio.wait_for(comm.read(), 60)
        finally:
            await comm.close()

    try:
        return asyncio.run(say())
    except (OSError, pickle.UnpicklingError, TimeoutError) as error:  # also Dask's, of a connection that is refused
        return error


def test_the_mark_is_made_where_a_pickle_is_believed(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Evil(tmp_path / "mark")))  # noqa: S301
    assert [path.name for path in (tmp_path / "mark").iterdir()] == [str(os.getpid())]


@pytest.mark.parametrize(
    "op",
    [
        *("run_function", "broadcast", "terminate", "register_scheduler_plugin", "register_worker_plugin", "restart"),
        *("connection_stream", "dump_state", "update_data", "scatter", "set_metadata", "retire_workers", "proxy"),
    ],
)
def test_operations_of_dask_s_are_not_there(engine: DaskEngine, local: Local, mark: Path, op: str) -> None:
    evil = pickle.dumps(Evil(mark))
    asked = {
        "op": op,
        "function": evil,
        "plugin": evil,
        "msg": {"op": "run", "function": evil},
        "args": (),
        "name": "x",
    }
    assert said(local, asked) is None


@pytest.mark.parametrize("op", ["register-client", "gather", "identity", "hosts"])
def test_operations_of_the_coordinator_are_not_for_a_host(
    engine: DaskEngine, local: Local, mark: Path, op: str
) -> None:
    reply = said(local, {"op": op, "client": "c", "versions": {}, "keys": []})
    refused = isinstance(reply, pickle.UnpicklingError)  # of the error that it is answered
    assert refused or (isinstance(reply, dict) and reply["status"] == "uncaught-error"), reply


@pytest.mark.parametrize(
    ("name", "address", "resources"),
    [
        ("beta", "tls://127.0.0.11:9", {"host:beta": 1.0}),
        ("alpha", "tls://127.0.0.12:9", {"host:alpha": 1.0}),
        ("alpha", "tls://127.0.0.11:9", {"host:alpha": 1.0, "host:beta": 1.0}),
    ],
)
def test_a_host_does_not_register_as_another(
    engine: DaskEngine, local: Local, name: str, address: str, resources: dict[str, float]
) -> None:
    asked = {"op": "register-worker", "address": address, "name": name, "resources": resources}
    said(local, asked)
    assert engine.present() == {"alpha", "beta"}


def test_a_host_does_not_send_another_away(engine: DaskEngine, local: Local, mark: Path) -> None:
    beta = next(iter(_addresses(local, "beta")))
    said(local, {"op": "unregister", "address": beta, "stimulus_id": "x"})
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def test_a_host_gives_no_orders_to_another(engine: DaskEngine, local: Local, mark: Path) -> None:
    beta = next(iter(_addresses(local, "beta")))
    reply = said(local, {"op": "run", "function": pickle.dumps(Evil(mark)), "args": pickle.dumps(())}, beta)
    assert isinstance(reply, OSError)


def _addresses(local: Local, host: str) -> list[str]:
    """Where that host's worker listens: this fleet's, beside which those of other tests may run."""
    from tests.fleet.dask.local import listening

    return [f"tls://{at}" for at in listening(local.worker(host))]


def test_what_a_host_sends_is_not_unpickled_by_the_scheduler(engine: DaskEngine, local: Local, mark: Path) -> None:
    from distributed.protocol.serialize import Serialize, ToPickle

    for evil in (ToPickle(Evil(mark)), Serialize(Evil(mark))):
        said(local, {"op": "heartbeat_worker", "address": "tls://127.0.0.11:9", "metrics": evil})
        said(local, {"op": "gather", "keys": evil})


LIAR = """
import sys
from pathlib import Path
from hugewise.fleet.dask import worker
from tests.fleet.dask.test_hostile import Evil
import pickle
from distributed import get_worker
from distributed.utils import sync

real = worker._order_handler

def obeying(told, everywhere):
    honest = real(told, everywhere)

    def lie(order):
        evil = Evil(Path({mark!r}))
        worker = get_worker()
        if {how!r} == "resources":
            stolen = {{"host:alpha": 1.0, "host:beta": 1.0}}
            sync(worker.loop, worker.scheduler.heartbeat_worker, address=worker.contact_address, now=1.0,
                 resources=stolen, metrics=sync(worker.loop, worker.get_metrics))
            return honest(order)
        if {how!r} == "pause":
            for port in {ports!r}:
                said = {{"op": "worker-status-change", "status": "paused", "stimulus_id": "x"}}
                worker.loop.add_callback(worker.batched_send, said | {{"worker": f"tls://127.0.0.12:{{port}}"}})
            return honest(order)
        if {how!r} == "words":
            worker.log_event("print", {{"args": ("beta: the check passed \\x1b]0;title\\x07",)}})
            worker.log_event("warn", {{"message": "beta: the check passed"}})
            return honest(order)
        if {how!r} == "unsealed":
            return bytes(32) + b'{{"answer":"done"}}'
        if {how!r} == "event":
            worker.log_event("warn", {{"message": pickle.dumps(evil), "category": pickle.dumps(evil)}})
            worker.log_event("print", {{"args": pickle.dumps(evil)}})
            return honest(order)
        if {how!r} == "error":
            raise ValueError(evil)
        return evil
    return lie

worker._order_handler = obeying
sys.exit(worker.main())
"""


def lying(engine: DaskEngine, local: Local, mark: Path, how: str) -> None:
    """Have alpha's worker be a liar."""
    local.unreachable.add("alpha")
    ports = [int(address.rpartition(":")[2]) for address in _addresses(local, "beta")]
    words = [sys.executable, "-c", LIAR.format(mark=str(mark), how=how, ports=ports)]
    subprocess.run(words, input=local.given["alpha"], timeout=60, check=True, capture_output=True)
    until(
        lambda: engine.present() == {"alpha", "beta"} and b"-c\0" in _command(local.worker("alpha")),
        "the liar is alpha's worker",
    )
    mark.with_name("liar").write_text(str(local.worker("alpha")))


@pytest.mark.parametrize("how", ["answer", "error", "event"])
def test_what_a_host_answers_is_not_unpickled_by_the_coordinator(
    engine: DaskEngine, local: Local, mark: Path, how: str
) -> None:
    lying(engine, local, mark, how)
    if how == "event":
        engine.call("alpha", LOOK, timeout=60)
    else:
        with pytest.raises(HugewiseError):
            engine.call("alpha", LOOK, timeout=2)


def test_a_host_does_not_get_the_orders_of_another(engine: DaskEngine, local: Local, mark: Path) -> None:
    """By its heartbeat it claims the other's resource: nothing comes of it."""
    lying(engine, local, mark, "resources")
    engine.call("alpha", LOOK, timeout=60)
    for number in range(6):
        asked = LookOrder(assignment=Assignment("other", number + 1))
        assert engine.call("beta", asked) == AssignmentSeen(assignment=asked.assignment, state="unknown")


def test_a_host_does_not_silence_another(engine: DaskEngine, local: Local, mark: Path) -> None:
    lying(engine, local, mark, "pause")
    engine.call("alpha", LOOK, timeout=60)
    for _ in range(3):
        assert engine.call("beta", LOOK, timeout=60) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def test_a_host_writes_nothing_on_the_coordinator_s_terminal(
    engine: DaskEngine, local: Local, mark: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lying(engine, local, mark, "words")
    for _ in range(3):
        engine.call("alpha", LOOK, timeout=60)
    time.sleep(0.5)
    assert capfd.readouterr() == ("", "")


def test_an_answer_that_its_host_did_not_seal_is_none(engine: DaskEngine, local: Local, mark: Path) -> None:
    lying(engine, local, mark, "unsealed")
    with pytest.raises(HugewiseError, match="^alpha: what came back is not this host's answer"):
        engine.call("alpha", LOOK, timeout=60)


def test_an_answer_is_sealed_for_one_order_and_one_host() -> None:
    key, other = settings.new_key(), settings.new_key()
    asked = settings.with_nonce(b"order")
    assert settings.order_in(asked) == b"order"
    back = settings.sign_answer(key, asked, b"answer")
    assert settings.verified_answer(key, asked, back) == b"answer"
    assert settings.verified_answer(other, asked, back) is None
    assert settings.verified_answer(key, settings.with_nonce(b"order"), back) is None
    assert settings.verified_answer(key, asked, back[:-1] + b"R") is None
    assert settings.verified_answer(key, asked, b"") is None


def test_no_file_of_the_folder_that_the_coordinator_is_in_is_run(engine: DaskEngine, began_in: Path) -> None:
    assert engine.present() == {"alpha", "beta"}
    assert {path.name for path in began_in.iterdir()} == {f"{name}.py" for name in PLANTED}


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_version_of_dask_that_gets_around_the_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed.protocol

    monkeypatch.setattr(distributed.protocol, "deserialize", lambda *_: None)
    with pytest.raises(HugewiseError, match="unpickles whatever a host sends"):
        settings.guard(settings.FROM_SCHEDULER)
