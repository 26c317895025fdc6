"""TLS of one fleet: two authorities that live as long as its coordinator, and a certificate for each that speaks.

One authority signs for the coordinator's side (the scheduler, and who gives orders), the other one for hosts. A host
trusts the first alone: no other host can give it orders, or pass for the scheduler. Who connects also looks whether
the certificate is for the address that was called. TLS 1.3, keys on the curve P-256.

Nothing of this is ever a file: a coordinator that starts again makes new ones, and starts the workers again. Keys
travel on standard input, of a child or through ssh, and are handed to OpenSSL in memory (memfd_create(2)).
See RFC 5280 for the certificates, RFC 8446 for TLS 1.3.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from hugewise.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, KeyUsage


Side = Literal["coordinator", "host"]

_EARLIER: Final = datetime.timedelta(days=2)  # a host's clock may be behind
_LATER: Final = datetime.timedelta(days=800)  # longer than any fleet; keys are gone with the coordinator


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What one that speaks has of its own, and whom it believes. All are texts of PEM.

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
        """Without the key: what is printed of it by accident is harmless."""
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
        """For the scheduler at an IP address, which the coordinator and hosts call, and which calls hosts."""
        return self._identity("coordinator", "scheduler", address, callers=("coordinator", "host"), called=("host",))

    def coordinator(self, address: str) -> Identity:
        """For who gives the orders: it calls the scheduler, and nobody calls it."""
        return self._identity("coordinator", "coordinator", address, callers=(), called=("coordinator",))

    def host(self, name: str, address: str) -> Identity:
        """For a host's worker, which the scheduler calls, and which calls the scheduler."""
        return self._identity("host", name, address, callers=("coordinator",), called=("coordinator",))

    def _identity(
        self, side: Side, name: str, address: str, *, callers: tuple[Side, ...], called: tuple[Side, ...]
    ) -> Identity:
        key = _key()
        signed = self._signed(side, name, (key, address))
        return Identity(
            certificate=_pem(signed),
            key=_pem_of_key(key),
            callers="".join(_pem(self._own[each]) for each in callers),
            called="".join(_pem(self._own[each]) for each in called),
        )

    def _signed(self, side: Side, name: str, whose: tuple[EllipticCurvePrivateKey, str] | None) -> Certificate:
        """A certificate by that side's authority: of a key for an address, or (None) of the authority itself."""
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
    """The context for those that connect: only with a certificate that `callers` signed. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _filled(context, identity, identity.callers)


def calling(identity: Identity) -> ssl.SSLContext:
    """The context to connect: to who has a certificate that `called` signed for the address. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it looks at the address (check_hostname)
    return _filled(context, identity, identity.called)


def _filled(context: ssl.SSLContext, identity: Identity, trusted: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if trusted:
        context.load_verify_locations(cadata=trusted)
    with _in_memory(identity.certificate) as certificate, _in_memory(identity.key) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A path of a file that is in memory alone, for a library that takes nothing else."""
    descriptor = os.memfd_create("hugewise", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def issued_to(certificate: object) -> tuple[str, str] | None:
    """The side and the name that a peer's certificate says (`ssl.SSLSocket.getpeercert`); None where there is none.

    Only of a certificate that was verified: one of the two authorities has said it then.
    """
    if not isinstance(certificate, dict):
        return None
    names = {key: value for part in certificate.get("subject", ()) for key, value in part}
    side, name = names.get("organizationalUnitName"), names.get("commonName")
    return (side, name) if isinstance(side, str) and isinstance(name, str) else None
