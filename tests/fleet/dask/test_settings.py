"""Certificates of a fleet: who may call whom, at which address; and the quiet preset of Dask."""

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest

from hugewise.fleet.dask import settings
from hugewise.fleet.dask.settings import Authority, Identity

HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("f-1")


def meet(caller: Identity | ssl.SSLContext, listener: Identity, address: str) -> tuple[object, object]:
    """What each sees of the other's certificate, or the error that it has, when `caller` calls `address`."""
    calling = caller if isinstance(caller, ssl.SSLContext) else settings.calling(caller)
    near, far = socket.socketpair()
    seen: list[object] = []

    def listen() -> None:
        try:
            with far, settings.listening(listener).wrap_socket(far, server_side=True) as held:
                held.recv(1)
                seen.append(held.getpeercert())
                held.send(b"y")
        except OSError as error:
            seen.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    found: object
    try:
        with near, calling.wrap_socket(near, server_hostname=address) as held:
            held.send(b"x")
            held.recv(1)  # a refused certificate is heard of here: TLS 1.3 ends its part before the other's
            assert held.version() == "TLSv1.3"
            found = held.getpeercert()
    except OSError as error:
        found = error
    thread.join()
    return found, seen[0]


def test_host_and_scheduler_and_coordinator_know_each_other(authority: Authority) -> None:
    scheduler, coordinator = authority.scheduler(HERE), authority.coordinator(HERE)
    host = authority.host("alpha", THERE)
    for caller, listener, address, names in (
        (host, scheduler, HERE, (("coordinator", "scheduler"), ("host", "alpha"))),
        (scheduler, host, THERE, (("host", "alpha"), ("coordinator", "scheduler"))),
        (coordinator, scheduler, HERE, (("coordinator", "scheduler"), ("coordinator", "coordinator"))),
    ):
        assert tuple(map(settings.issued_to, meet(caller, listener, address))) == names


def test_a_host_gives_no_orders_to_another_one(authority: Authority) -> None:
    first, other = authority.host("alpha", HERE), authority.host("beta", THERE)
    for caller, listener, address in ((first, other, THERE), (other, first, HERE)):
        found, seen = meet(caller, listener, address)
        assert isinstance(found, ssl.SSLError)
        assert isinstance(seen, ssl.SSLError)


def test_a_host_does_not_pass_for_the_scheduler(authority: Authority) -> None:
    """Neither to another host nor to who gives the orders, though its certificate is for that address."""
    fake = authority.host("alpha", HERE)
    for caller in (authority.host("beta", THERE), authority.coordinator(HERE)):
        found, _ = meet(caller, fake, HERE)
        assert isinstance(found, ssl.SSLCertVerificationError)


def test_a_certificate_is_for_one_address(authority: Authority) -> None:
    found, _ = meet(authority.scheduler(HERE), authority.host("alpha", THERE), "127.0.0.3")
    assert isinstance(found, ssl.SSLCertVerificationError)
    assert "IP address mismatch" in found.verify_message


def test_another_fleet_is_a_stranger(authority: Authority) -> None:
    foreign = Authority("f-1")  # of the same name
    found, seen = meet(foreign.host("alpha", THERE), authority.scheduler(HERE), HERE)
    assert isinstance(found, ssl.SSLCertVerificationError)
    assert isinstance(seen, ssl.SSLError)
    found, seen = meet(authority.host("alpha", THERE), foreign.scheduler(HERE), HERE)
    assert isinstance(found, ssl.SSLCertVerificationError)


def test_who_has_no_certificate_is_refused(authority: Authority) -> None:
    known = ssl.create_default_context(cadata=authority.coordinator(HERE).called)
    _, refused = meet(known, authority.scheduler(HERE), HERE)
    assert "CERTIFICATE" in str(refused)


def test_who_gives_orders_is_called_by_nobody(authority: Authority) -> None:
    _, seen = meet(authority.scheduler(HERE), authority.coordinator(HERE), HERE)
    assert isinstance(seen, ssl.SSLError)


def test_no_key_is_printed_or_left_as_a_file(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = authority.host("alpha", HERE)
    assert "PRIVATE KEY" in made.key
    assert "PRIVATE" not in repr(made) + str(made) + f"{[made]}"
    settings.calling(made)
    settings.listening(made)
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_is_an_hour_off_changes_nothing(authority: Authority) -> None:
    """OpenSSL judges by the clock of this machine: the span of the certificates has room for that of any host."""
    from cryptography import x509

    made = x509.load_pem_x509_certificate(authority.host("alpha", HERE).certificate.encode())
    now = datetime.datetime.now(datetime.UTC)
    assert made.not_valid_before_utc < now - datetime.timedelta(hours=24)
    assert made.not_valid_after_utc > now + datetime.timedelta(days=365)
