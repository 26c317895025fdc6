"""Dask's settings in every process of a fleet: quiet, encrypted, and closed to pickles.

TLS 1.3 with two authorities, which live as long as the coordinator: one signs for its side, which alone a host trusts,
the other for hosts; certificates are for the address that was called. No key is ever in a file: keys travel on standard
input and reach OpenSSL in memory (memfd_create(2)). See RFC 5280.

Each answer also carries an HMAC-SHA-256 (RFC 2104) over its order, which begins with 16 random bytes, by a key of its
host: this does not rest on what Dask does with its messages.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import importlib
import io
import ipaddress
import os
import pickle
import secrets
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from hugewise.errors import HugewiseError, UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, KeyUsage


Side = Literal["coordinator", "host"]

_EARLIER: Final = datetime.timedelta(days=2)  # a host's clock may be behind
_LATER: Final = datetime.timedelta(days=800)  # longer than any fleet; keys are gone with the coordinator


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of one side of a connection, and the authorities that it trusts. All are texts of PEM.

    certificate  its own, with its address as the only name
    key          of it: never in argv, an environment, a log or a file
    callers      the authorities of who may connect to it
    called       the authorities of whom it connects to
    """

    certificate: str
    key: str
    callers: str
    called: str

    def __repr__(self) -> str:
        # without the key, which a careless print would show
        return "Identity(...)"


class Authority:
    """Both authorities of a fleet, in memory. Raises UserError where the extra is not installed."""

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._keys: dict[Side, EllipticCurvePrivateKey] = {"coordinator": _key(), "host": _key()}
        self._own: dict[Side, Certificate] = {
            "coordinator": self._signed("coordinator", f"{fleet} coordinator", None),
            "host": self._signed("host", f"{fleet} hosts", None),
        }

    def scheduler(self, address: str) -> Identity:
        return self._identity("coordinator", "scheduler", address, callers=("coordinator", "host"), called=("host",))

    def coordinator(self, address: str) -> Identity:
        return self._identity("coordinator", "coordinator", address, callers=(), called=("coordinator",))

    def host(self, name: str, address: str) -> Identity:
        return self._identity("host", name, address, callers=("coordinator",), called=("coordinator",))

    def _identity(
        self, side: Side, name: str, address: str, *, callers: tuple[Side, ...], called: tuple[Side, ...]
    ) -> Identity:
        key = _key()
        signed = self._signed(side, name, (key, address))
        return Identity(
            certificate=_pem(signed),
            key=_pem_of_key(key),
            callers="".join(_pem(self._own[authority]) for authority in callers),
            called="".join(_pem(self._own[authority]) for authority in called),
        )

    def _signed(self, side: Side, name: str, whose: tuple[EllipticCurvePrivateKey, str] | None) -> Certificate:
        from cryptography import x509  # noqa: PLC0415  (an extra)
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

        signer = self._keys[side]
        key = signer if whose is None else whose[0]
        issuer = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"hugewise {self._fleet}"[:64]),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, side),
            ]
        )
        subject = issuer if whose is None else x509.Name([*issuer, x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _LATER)
            .add_extension(x509.BasicConstraints(ca=whose is None, path_length=0 if whose is None else None), True)
            .add_extension(_usage(signs=whose is None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
        )
        if whose is not None:
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            made = made.add_extension(x509.ExtendedKeyUsage(both), False)
            made = made.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(whose[1]))]), False
            )
        return made.sign(signer, hashes.SHA256())


def _key() -> EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise UserError(
            "a fleet over dask needs its extra: cryptography is not installed", hint="pip install 'hugewise[fleet]'"
        ) from None
    return ec.generate_private_key(ec.SECP256R1())


def _usage(*, signs: bool) -> KeyUsage:
    from cryptography import x509  # noqa: PLC0415

    nothing = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=False, decipher_only=False, **nothing
    )


def _pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM).decode()


def _pem_of_key(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


def listening(identity: Identity) -> ssl.SSLContext:
    """Return the context for those that connect: only with a certificate that `callers` signed. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _with_identity(context, identity, identity.callers)


def calling(identity: Identity) -> ssl.SSLContext:
    """Return the context to connect to the holder of a certificate by `called` for the address. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the address (check_hostname)
    return _with_identity(context, identity, identity.called)


def _with_identity(context: ssl.SSLContext, identity: Identity, trusted: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if trusted:
        context.load_verify_locations(cadata=trusted)
    with _in_memory(identity.certificate) as certificate, _in_memory(identity.key) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("hugewise", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def issued_to(certificate: object) -> tuple[str, str] | None:
    """Return the side and name in a verified peer's certificate (`ssl.SSLSocket.getpeercert`); None without one."""
    if not isinstance(certificate, dict):
        return None
    names = {key: value for part in certificate.get("subject", ()) for key, value in part}
    side, name = names.get("organizationalUnitName"), names.get("commonName")
    return (side, name) if isinstance(side, str) and isinstance(name, str) else None


TASK: Final = ("hugewise.fleet.dask.task", "obey")

FROM_COORDINATOR: Final = frozenset(
    {("dask._expr", "Expr._reconstruct"), ("dask._expr", "LLGExpr"), ("dask._task_spec", "Task"), TASK}
)
"""Types that a scheduler unpickles: one task."""

FROM_SCHEDULER: Final = frozenset(
    {
        ("builtins", "bytes"),
        # KilledWorker, with its description of the worker
        ("distributed.scheduler", "KilledWorker"),
        ("distributed.scheduler", "WorkerState"),
        ("distributed.core", "Status"),
        ("collections", "deque"),
        ("collections", "defaultdict"),
        ("builtins", "int"),
    }
)
"""Types that the coordinator unpickles: an answer, or an error in its place. A host may have made the pickle."""


def resource(host: str) -> dict[str, float]:
    """Return the resource of a host's tasks, which only its worker has. Names of resources have no case or place."""
    return {f"host:{host}": 1.0}


def load() -> None:
    """Import Dask with the quiet preset, whatever environment and user files say. Raises UserError without it."""
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
    """Return a `distributed.Security` of that identity, without key files: TLS 1.3 with the address checked."""
    distributed = importlib.import_module("distributed.security")

    class _Security(distributed.Security):  # type: ignore[misc, name-defined]
        __slots__ = ()

        def get_connection_args(self, role: str) -> dict[str, Any]:
            return {
                "ssl_context": calling(identity),
                "require_encryption": True,
                "extra_conn_args": {},
            }

        def get_listen_args(self, role: str) -> dict[str, Any]:
            return {"ssl_context": listening(identity), "require_encryption": True}

    return _Security(require_encryption=True)


class _PickleProbe:
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.setrecursionlimit, (sys.getrecursionlimit(),)


def guard(known: frozenset[tuple[str, str]]) -> None:
    """Let Dask unpickle nothing but `known` (module, name), as a pickle can call any function. Raises HugewiseError."""
    guarded = _Guarded(known)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("dask", "distributed") and vars(module).get("pickle") is pickle:
            vars(module)["pickle"] = guarded
    protocol = importlib.import_module("distributed.protocol")
    try:
        header, frames = protocol.serialize(_PickleProbe())
        protocol.deserialize(header, frames)
    except pickle.UnpicklingError:
        return
    version = importlib.import_module("distributed").__version__
    raise HugewiseError(
        f"dask distributed {version} unpickles whatever a host sends", hint='write: engine = "ssh", and tell us'
    )


class _Guarded(ModuleType):
    def __init__(self, known: frozenset[tuple[str, str]]) -> None:
        super().__init__("pickle")
        self._known = known

    def loads(self, data: bytes, **how: Any) -> Any:
        return _Unpickler(io.BytesIO(data), self._known, how).load()

    def load(self, file: Any, **how: Any) -> Any:
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


def new_key() -> str:
    """Return a new key, in hexadecimal digits."""
    return secrets.token_hex(32)


def with_nonce(order: bytes) -> bytes:
    """Return an order as it is carried."""
    return secrets.token_bytes(_ONCE) + order


def order_in(carried: bytes) -> bytes:
    """Return the order in what was carried."""
    return carried[_ONCE:]


def sign_answer(key: str, carried: bytes, answer: bytes) -> bytes:
    """Return the answer to what was carried, as it is carried back."""
    return _code(key, carried, answer) + answer


def verified_answer(key: str, carried: bytes, back: bytes) -> bytes | None:
    """Return the answer in what came back; None where it is not that host's to that order."""
    code, answer = back[:_CODE], back[_CODE:]
    return answer if hmac.compare_digest(code, _code(key, carried, answer)) else None


def _code(key: str, carried: bytes, answer: bytes) -> bytes:
    return hmac.digest(bytes.fromhex(key), hashlib.sha256(carried).digest() + answer, "sha256")
