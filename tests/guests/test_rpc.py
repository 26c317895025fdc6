"""One call of NFSv4 as bytes, its answers, and a server that is none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from hugewise.guests import rpc


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


ACCEPTED = words(7, 1, 0, 0, 0, 0)  # the number, REPLY, MSG_ACCEPTED, an empty verifier, SUCCESS


def test_the_call_is_as_the_standard_says() -> None:
    record = rpc.lookup(7, "hugewise")
    (mark,) = struct.unpack_from(">I", record)
    assert mark == 1 << 31 | len(record) - 4
    assert record[4:28] == words(7, 0, 2, 100003, 4, 1)  # CALL, RPC 2, NFS 4, COMPOUND
    assert record[28:32] == words(1)  # AUTH_SYS
    assert record.endswith(words(0, 0, 2, 24, 15, 8) + b"hugewise")  # no tag, minor 0, PUTROOTFH, LOOKUP
    assert len(rpc.lookup(7, "abc")) % 4 == 0


@pytest.mark.parametrize(("found", "is_there"), [(0, True), (2, False), (10016, False)])
def test_the_status_is_the_answer(found: int, is_there: bool) -> None:
    assert (rpc.status(7, ACCEPTED + words(found)) == 0) is is_there


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "cut short"),
        (ACCEPTED, "cut short"),
        (words(8, 1, 0, 0, 0, 0, 0), "not accepted"),
        (words(7, 1, 1, 0, 0, 0, 0), "not accepted"),
        (words(7, 1, 0, 0, 0, 2, 4, 4), "does not speak NFSv4"),
    ],
)
def test_other_answers_are_told(message: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        rpc.status(7, message)


def _answering(answer: Callable[[socket.socket], None]) -> tuple[threading.Thread, int]:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(1 << 12)
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread, int(listening.getsockname()[1])


def test_an_answer_in_two_fragments_is_put_together() -> None:
    told = words(1, 1, 0, 0, 0, 0, 0)
    sent = words(12) + told[:12] + words(1 << 31 | len(told) - 12) + told[12:]
    thread, port = _answering(lambda connection: connection.sendall(sent))
    assert rpc.serves("127.0.0.1", port, "hugewise", 5)
    thread.join()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", words(1 << 31 | 1 << 30)])
def test_another_server_is_an_error(said: bytes) -> None:
    thread, port = _answering(lambda connection: connection.sendall(said))
    with pytest.raises((ValueError, ConnectionResetError)):
        rpc.serves("127.0.0.1", port, "hugewise", 5)
    thread.join()
