"""How Dask is set in every process of a fleet: quiet, encrypted, and deaf to pickles."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Mapping
from importlib import resources
from types import ModuleType
from typing import Any, Final

from hugewise.errors import HugewiseError, UserError
from hugewise.fleet import certificates
from hugewise.fleet.certificates import Identity

__all__ = ["FROM_COORDINATOR", "FROM_SCHEDULER", "TASK", "guard", "load", "resource", "security"]

TASK: Final = ("hugewise.fleet.dask.task", "obey")

FROM_COORDINATOR: Final = frozenset(
    {("dask._expr", "Expr._reconstruct"), ("dask._expr", "LLGExpr"), ("dask._task_spec", "Task"), TASK}
)
"""What a scheduler unpickles: one task."""

FROM_SCHEDULER: Final = frozenset(
    {
        ("builtins", "bytes"),
        # KilledWorker, with what it says of the worker
        ("distributed.scheduler", "KilledWorker"),
        ("distributed.scheduler", "WorkerState"),
        ("distributed.core", "Status"),
        ("collections", "deque"),
        ("collections", "defaultdict"),
        ("builtins", "int"),
    }
)
"""What the coordinator unpickles: an answer, or that there is none. A host may have made it."""


def resource(host: str) -> dict[str, float]:
    """What a task for a host asks for, and that host's worker alone has. A name of a resource has no case or place."""
    return {f"host:{host}": 1.0}


def load() -> None:
    """Import Dask with the quiet preset, whatever the environment and the user's files say. Raises UserError where the
    extra is not installed.
    """
    try:
        dask = importlib.import_module("dask.config")
        yaml = importlib.import_module("yaml")
        preset = yaml.safe_load(resources.files(__package__).joinpath("quiet.yaml").read_text(encoding="utf-8"))
        dask.refresh(paths=[], env={})
        dask.update(dask.config, preset, priority="new")
        importlib.import_module("distributed")
    except ImportError as error:
        raise UserError(
            f'engine = "dask" needs its extra: {error.name or error} is not installed',
            hint="pip install 'hugewise[fleet]', or write: engine = \"ssh\"",
        ) from None


def security(identity: Identity) -> Any:
    """A `distributed.Security` of that identity: TLS 1.3 both ways, which looks at the address that is called. Dask's
    own does not, and has its keys in files.
    """
    distributed = importlib.import_module("distributed.security")

    class _Security(distributed.Security):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def get_connection_args(self, role: str) -> dict[str, Any]:
            return {
                "ssl_context": certificates.calling(identity),
                "require_encryption": True,
                "extra_conn_args": {},
            }

        def get_listen_args(self, role: str) -> dict[str, Any]:
            return {"ssl_context": certificates.listening(identity), "require_encryption": True}

    return _Security(require_encryption=True)


class _Evil:
    """Unpickled, it would call a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.setrecursionlimit, (sys.getrecursionlimit(),)


def guard(known: frozenset[tuple[str, str]]) -> None:
    """From now on Dask unpickles in this process nothing but what is `known`, as (module, name).

    Whatever it receives may hold a pickle, and unpickling is calling any function that the sender names: a host could
    do on the coordinator what it likes. Raises HugewiseError where this version of Dask gets around it.
    """
    guarded = _Guarded(known)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("dask", "distributed") and vars(module).get("pickle") is pickle:
            vars(module)["pickle"] = guarded
    protocol = importlib.import_module("distributed.protocol")
    try:
        header, frames = protocol.serialize(_Evil())
        protocol.deserialize(header, frames)
    except pickle.UnpicklingError:
        return
    version = importlib.import_module("distributed").__version__
    raise HugewiseError(
        f"dask distributed {version} unpickles whatever a host sends", hint='write: engine = "ssh", and tell us'
    )


class _Guarded(ModuleType):
    """The module `pickle`, in which loading knows so many names."""

    def __init__(self, known: frozenset[tuple[str, str]]) -> None:
        super().__init__("pickle")
        self._known = known

    def loads(self, data: bytes, **how: Any) -> Any:
        """`pickle.loads` of what is known. Raises UnpicklingError."""
        return _Unpickler(io.BytesIO(data), self._known, how).load()

    def load(self, file: Any, **how: Any) -> Any:
        """`pickle.load` of what is known. Raises UnpicklingError."""
        return _Unpickler(file, self._known, how).load()

    def __getattr__(self, name: str) -> Any:
        if name == "Unpickler":
            raise AttributeError(name)
        return getattr(pickle, name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, known: frozenset[tuple[str, str]], how: Mapping[str, Any]) -> None:
        super().__init__(file, **how)
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"{module}.{name} is nothing that a fleet carries")
        return super().find_class(module, name)
