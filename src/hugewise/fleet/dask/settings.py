"""How Dask is set in every process of a fleet: quiet, encrypted, and deaf to pickles.

Whose an answer is: each carries a code that only its host can make, over the order that it answers.

A second lock beside TLS, which does not rest on what Dask does with its messages. HMAC with SHA-256 (RFC 2104), a key
of 32 bytes for each host, which goes to its worker with the other ones; an order begins with 16 random bytes, so that
no answer is ever right twice.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import io
import pickle
import secrets
import sys
from collections.abc import Mapping
from importlib import resources
from types import ModuleType
from typing import Any, Final

from hugewise.errors import HugewiseError, UserError
from hugewise.fleet import certificates
from hugewise.fleet.certificates import Identity

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


_ONCE: Final = 16
_CODE: Final = hashlib.sha256().digest_size


def key() -> str:
    """One that is new, in hexadecimal digits."""
    return secrets.token_hex(32)


def seal_order(order: bytes) -> bytes:
    """An order as it is carried."""
    return secrets.token_bytes(_ONCE) + order


def opened(carried: bytes) -> bytes:
    """The order in what was carried."""
    return carried[_ONCE:]


def sealed(key: str, carried: bytes, answer: bytes) -> bytes:
    """The answer to what was carried, as it is carried back."""
    return _code(key, carried, answer) + answer


def checked(key: str, carried: bytes, back: bytes) -> bytes | None:
    """The answer in what came back; None where it is not that host's to that order."""
    code, answer = back[:_CODE], back[_CODE:]
    return answer if hmac.compare_digest(code, _code(key, carried, answer)) else None


def _code(key: str, carried: bytes, answer: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), hashlib.sha256(carried).digest() + answer, "sha256")
