"""A host that lies: with its own certificate it gives no orders, and nothing that it sends is carried out elsewhere."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import HugewiseError
from hugewise.fleet.certificates import Identity
from hugewise.fleet.dask import settings
from hugewise.fleet.dask.engine import DaskEngine
from hugewise.fleet.dask.worker import WorkerSettings
from hugewise.fleet.orders import AssignmentSeen, LookOrder
from tests.fleet.dask.local import NOWHERE, Local, until

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


@pytest.fixture(scope="module")
def engine(local: Local) -> Iterator[DaskEngine]:
    with local.up() as engine:
        yield engine


@pytest.fixture
def mark(tmp_path: Path, engine: DaskEngine) -> Iterator[Path]:
    """Nobody but a liar itself makes this folder; and afterwards the fleet goes on."""
    mark = tmp_path / "mark"
    yield mark
    # Dask unpickles an error where it is raised, to see whether that can be done.
    assert {path.name for path in mark.glob("*")} <= {(tmp_path / "liar").read_text()} if mark.exists() else True
    until(lambda: engine.present() == {"alpha", "beta"})
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def settings_of(local: Local, host: str) -> WorkerSettings:
    return msgspec.json.decode(local.given[host], type=WorkerSettings)


def said(identity: Identity, address: str, message: dict[str, Any]) -> object:
    """What it answers, or the error that comes of it."""

    async def say() -> object:
        from distributed.comm import connect

        comm = await connect(address, timeout=5, **settings.security(identity).get_connection_args("worker"))
        try:
            await comm.write(message)
            return await asyncio.wait_for(comm.read(), 5)
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
    told = settings_of(local, "alpha")
    evil = pickle.dumps(Evil(mark))
    asked = {
        "op": op,
        "function": evil,
        "plugin": evil,
        "msg": {"op": "run", "function": evil},
        "args": (),
        "name": "x",
    }
    assert said(told.identity, told.scheduler, asked) is None


@pytest.mark.parametrize("op", ["register-client", "gather", "identity", "hosts"])
def test_operations_of_the_coordinator_are_not_for_a_host(
    engine: DaskEngine, local: Local, mark: Path, op: str
) -> None:
    told = settings_of(local, "alpha")
    found = said(told.identity, told.scheduler, {"op": op, "client": "c", "versions": {}, "keys": []})
    refused = isinstance(found, pickle.UnpicklingError)  # of the error that it is answered
    assert refused or (isinstance(found, dict) and found["status"] == "uncaught-error"), found


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
    told = settings_of(local, "alpha")
    asked = {"op": "register-worker", "address": address, "name": name, "resources": resources}
    said(told.identity, told.scheduler, asked)
    assert engine.present() == {"alpha", "beta"}


def test_a_host_does_not_send_another_away(engine: DaskEngine, local: Local, mark: Path) -> None:
    told = settings_of(local, "alpha")
    beta = next(iter(_addresses(engine, "beta")))
    said(told.identity, told.scheduler, {"op": "unregister", "address": beta, "stimulus_id": "x"})
    assert engine.call("beta", LOOK) == AssignmentSeen(assignment=NOWHERE, state="unknown")


def test_a_host_gives_no_orders_to_another(engine: DaskEngine, local: Local, mark: Path) -> None:
    told = settings_of(local, "alpha")
    beta = next(iter(_addresses(engine, "beta")))
    found = said(told.identity, beta, {"op": "run", "function": pickle.dumps(Evil(mark)), "args": pickle.dumps(())})
    assert isinstance(found, OSError)


def _addresses(engine: DaskEngine, host: str) -> list[str]:
    from tests.fleet.dask.local import listening

    workers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"fleet\0work" in path.read_bytes()]
    found = [at for path in workers for at in listening(int(path.parent.name))]
    address = {"alpha": "127.0.0.11", "beta": "127.0.0.12"}[host]
    return [f"tls://{at}" for at in found if at.startswith(f"{address}:")]


def test_what_a_host_sends_is_not_unpickled_by_the_scheduler(engine: DaskEngine, local: Local, mark: Path) -> None:
    from distributed.protocol.serialize import Serialize, ToPickle

    told = settings_of(local, "alpha")
    for evil in (ToPickle(Evil(mark)), Serialize(Evil(mark))):
        said(
            told.identity, told.scheduler, {"op": "heartbeat_worker", "address": "tls://127.0.0.11:9", "metrics": evil}
        )
        said(told.identity, told.scheduler, {"op": "gather", "keys": evil})


LIAR = """
import sys
from pathlib import Path
from hugewise.fleet.dask import worker
from tests.fleet.dask.test_hostile import Evil
import pickle

def obeying(told, everywhere):
    def lie(order):
        evil = Evil(Path({mark!r}))
        if {how!r} == "event":
            from distributed import get_worker
            get_worker().log_event("warn", {{"message": pickle.dumps(evil), "category": pickle.dumps(evil)}})
            get_worker().log_event("print", {{"args": pickle.dumps(evil)}})
            return b'{{"answer":"done"}}'
        if {how!r} == "error":
            raise ValueError(evil)
        return evil
    return lie

worker._obeying = obeying
sys.exit(worker.main())
"""


@pytest.mark.parametrize("how", ["answer", "error", "event"])
def test_what_a_host_answers_is_not_unpickled_by_the_coordinator(
    engine: DaskEngine, local: Local, mark: Path, how: str
) -> None:
    local.unreachable.add("alpha")
    lying = [sys.executable, "-c", LIAR.format(mark=str(mark), how=how)]
    subprocess.run(lying, input=local.given["alpha"], timeout=60, check=True, capture_output=True)
    until(lambda: engine.present() == {"alpha", "beta"} and b"-c\0" in _command(local.worker("alpha")))
    mark.with_name("liar").write_text(str(local.worker("alpha")))
    if how == "event":
        engine.call("alpha", LOOK, timeout=5)
    else:
        with pytest.raises(HugewiseError):
            engine.call("alpha", LOOK, timeout=5)
    local.unreachable.clear()


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_version_of_dask_that_gets_around_the_guard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed.protocol

    monkeypatch.setattr(distributed.protocol, "deserialize", lambda *_: None)
    with pytest.raises(HugewiseError, match="unpickles whatever a host sends"):
        settings.guard(settings.FROM_SCHEDULER)
