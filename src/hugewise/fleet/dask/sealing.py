"""Whose an answer is: each carries a code that only its host can make, over the order that it answers.

A second lock beside TLS, which does not rest on what Dask does with its messages. HMAC with SHA-256 (RFC 2104), a key
of 32 bytes for each host, which goes to its worker with the other ones; an order begins with 16 random bytes, so that
no answer is ever right twice.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

__all__ = ["asked", "checked", "key", "opened", "sealed"]

_ONCE: Final = 16
_CODE: Final = hashlib.sha256().digest_size


def key() -> str:
    """One that is new, in hexadecimal digits."""
    return secrets.token_hex(32)


def asked(order: bytes) -> bytes:
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
