"""Asks an NFS server whether it serves an export, without a mount: one call of NFSv4.0 over TCP.

Source: RFC 5531 (ONC RPC: messages, record marking, AUTH_SYS), RFC 4506 (XDR), RFC 7530 and 7531 (COMPOUND, PUTROOTFH,
LOOKUP).
"""

from __future__ import annotations

import socket
import struct

__all__ = ["lookup", "serves", "status"]

_PROGRAM, _VERSION, _COMPOUND = 100003, 4, 1
_PUTROOTFH, _LOOKUP = 24, 15
_CALL, _REPLY, _ACCEPTED, _SUCCESS = 0, 1, 0, 0
_AUTH_NONE, _AUTH_SYS = 0, 1
_LAST_FRAGMENT = 1 << 31
_MOST_BYTES = 1 << 16


def lookup(number: int, name: str) -> bytes:
    """The record of a call that looks `name` up in the server's root; `number` tells its answer from others. Pure."""
    credential = _words(0) + _text("") + _words(0, 0, 0)
    header = _words(number, _CALL, 2, _PROGRAM, _VERSION, _COMPOUND, _AUTH_SYS, len(credential)) + credential
    body = _words(_AUTH_NONE, 0) + _text("") + _words(0, 2, _PUTROOTFH, _LOOKUP) + _text(name)
    message = header + body
    return _words(_LAST_FRAGMENT | len(message)) + message


def status(number: int, message: bytes) -> int:
    """The status of the call in the server's message (0: it is there). Raises ValueError when it is another answer."""
    try:
        told, kind, reply = struct.unpack_from(">3I", message)
        if (told, kind, reply) != (number, _REPLY, _ACCEPTED):
            raise ValueError("the call was not accepted")
        (length,) = struct.unpack_from(">I", message, 16)  # of the verifier, after its flavor
        accepted, found = struct.unpack_from(">2I", message, 20 + length + -length % 4)
    except struct.error:
        raise ValueError(f"an answer of {len(message)} bytes is cut short") from None
    if accepted != _SUCCESS:
        raise ValueError(f"the server does not speak NFSv4 (accept status {accepted})")
    return int(found)


def serves(address: str, port: int, name: str, timeout: float) -> bool:
    """Whether the server there answers and has `name` in its root. Raises OSError, ValueError when it does not."""
    number = 1
    with socket.create_connection((address, port), timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(lookup(number, name))
        message = b""
        last = False
        while not last:
            (mark,) = struct.unpack(">I", _exactly(connection, 4))
            last, length = bool(mark & _LAST_FRAGMENT), mark & ~_LAST_FRAGMENT
            if len(message) + length > _MOST_BYTES:
                raise ValueError("an answer that is too long")
            message += _exactly(connection, length)
    return status(number, message) == 0


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        more = connection.recv(length - len(received))
        if not more:
            raise ConnectionResetError("the server ended the connection")
        received += more
    return received


def _words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def _text(text: str) -> bytes:
    told = text.encode()
    return _words(len(told)) + told + bytes(-len(told) % 4)
