"""The network between this host and that of clients: its addresses here, what it carries, and what it is seen to carry.

iperf3 asks the network alone, before anything is measured: a transfer of one block for the round trip, one each way.

Source: iperf3(1) and its JSON; tcp(7), TCP_INFO; netdevice(7).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from hugewise import reading, unprivileged
from hugewise.errors import MachineError, ProbeError, UserError
from hugewise.host.local_machine import LocalMachine
from hugewise.machine import probe, programs, serving
from hugewise.machine.machine import Machine
from hugewise.machine.messages import plain
from hugewise.machine.serving import Serving
from hugewise.model.host import Host
from hugewise.reading import UnreadableError

_SECONDS = 1
_BLOCK = "128K"
_PATIENCE_S, _PAUSE_S, _LONGEST_S = 10.0, 0.05, 60.0
_SIOCGIFADDR = 0x8915
_DISCARD = 9  # a port to which nothing is sent
_OF_HOST = {"PATH": programs.PATH}


class NetworkSeen(msgspec.Struct, frozen=True):
    """What it was seen to carry, bits a second from the clients here and back, and its round trip in seconds."""

    there: float
    back: float
    round_trip: float | None

    @property
    def least(self) -> float:
        """The lesser of both directions."""
        return min(self.there, self.back)

    def __str__(self) -> str:
        trip = "" if self.round_trip is None else f", round trip {self.round_trip * 1e6:,.0f} us"
        return f"{self.there / 1e6:,.0f} Mbit/s from the client, {self.back / 1e6:,.0f} Mbit/s to it{trip}"


def resolved(address: str) -> str:
    """The IP address. Raises UserError where the name has none."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(address))
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(f"{address}: {error.strerror}", hint="name the client's IP address in the inventory") from None


def address_towards(client: str) -> str:
    """The address of this host that it would send from: the one at which servers listen. Raises UserError."""
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((client, _DISCARD))
        except OSError as error:
            raise UserError(
                f"no route to the client at {client}: {error.strerror}", hint=f"see: ip route get {client}"
            ) from None
        return str(asked.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface of this host that has the address as its first; None where none says so."""
    if ":" in address:
        wanted = ipaddress.ip_address(address).packed.hex()
        lines = reading.content(Path("/proc/net/if_inet6")).decode(errors="replace").splitlines()
        return next((line.split()[-1] for line in lines if line.startswith(wanted)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                told = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    return None


def carried(host: Host, interface: str | None) -> int | None:
    """Bytes that the interface has received and sent; None where it does not say."""
    if interface is None:
        return None
    try:
        counts = [host.read(f"/sys/class/net/{interface}/statistics/{way}_bytes") for way in ("rx", "tx")]
        return sum(reading.whole(count, "what an interface has carried") for count in counts)
    except (OSError, UnreadableError):
        return None


def output_of(
    machine: Machine, argv: Sequence[str], owner: tuple[int | None, int | None], environment: dict[str, str]
) -> str:
    """What a short program says there on stdout. Raises MachineError, with its last words where it fails."""
    with tempfile.TemporaryDirectory(prefix="hugewise-") as folder:
        job = _job(Path(folder), argv, owner, environment)
        status = serving.run([(machine, job)])[0]
        ended = next((event for event in serving.events(job) if isinstance(event, probe.Exit)), None)
        out, err = (reading.content(Path(path)).decode(errors="replace") for path in (job.spec.stdout, job.spec.stderr))
        if status != 0 or ended is None or ended.code != 0:
            lines = (err.strip() or out.strip()).splitlines()
            raise MachineError(f"{argv[0]}: {lines[-1] if lines else 'it did not start'}")
        return out


def _job(
    folder: Path,
    argv: Sequence[str],
    owner: tuple[int | None, int | None],
    environment: dict[str, str],
    *,
    server: bool = False,
) -> probe.Job:
    spec = probe.Spec(
        argv=tuple(argv),
        env=environment,
        cwd="/",
        stdout=str(folder / "stdout"),
        stderr=str(folder / "stderr"),
        uid=owner[0],
        gid=owner[1],
        timeout_s=_LONGEST_S,
        announce=server,
    )
    return probe.Job.below(folder, "server" if server else "asked", spec)


def look(machine: Machine, address: str, iperf3: str, owner: tuple[int | None, int | None]) -> NetworkSeen:
    """Ask the network between the clients' `machine` and this host's `address`. `iperf3`: its path there.

    Raises MachineError, UserError where this host has none.
    """
    here = programs.which("iperf3", "/usr/bin")
    if here is None:
        raise UserError(
            "iperf3: no such program on this host; the network to a client is asked by it", hint="apt install iperf3"
        )
    who = unprivileged.account()
    local = (None, None) if who is None else (who.pw_uid, who.pw_gid)
    port = str(LocalMachine().ports(1, address)[0])
    with tempfile.TemporaryDirectory(prefix="hugewise-") as folder:
        job = _job(Path(folder), (here, "-s", "-B", address, "-p", port), local, _OF_HOST, server=True)
        try:
            server = Serving(LocalMachine(), job)
        except ProbeError as error:
            raise MachineError(f"iperf3 on this host: {error.message}") from None
        try:
            client = (iperf3, "-c", address, "-p", port, "-J")
            trip = _first(machine, (*client, "-n", _BLOCK), owner)
            way = ("-t", str(_SECONDS))
            there, back = (
                _rate(output_of(machine, (*client, *way, *more), owner, dict(machine.environment)))
                for more in ((), ("-R",))
            )
        finally:
            server.close()
    return NetworkSeen(there, back, trip)


def _first(machine: Machine, argv: Sequence[str], owner: tuple[int | None, int | None]) -> float | None:
    """The round trip of the first transfer, as soon as the server answers."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _round_trip(output_of(machine, argv, owner, dict(machine.environment)))
        except MachineError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)


def _rate(text: str) -> float:
    """Bits a second that were received. Raises MachineError."""
    try:
        with reading.believing("iperf3's JSON"):
            return reading.number(_end(text)["sum_received"]["bits_per_second"], "what was received a second", low=0)
    except UnreadableError as error:
        raise MachineError(f"iperf3: {error.reason}") from None


def _round_trip(text: str) -> float | None:
    """The shortest that TCP saw, in seconds; None where the system does not say. Raises MachineError."""
    try:
        with reading.believing("iperf3's JSON"):
            sender = _end(text)["streams"][0]["sender"]
            trip = sender.get("min_rtt") or sender.get("mean_rtt")
            return None if not trip else reading.number(trip, "the round trip", low=0) / 1e6
    except UnreadableError as error:
        raise MachineError(f"iperf3: {error.reason}") from None


def _end(text: str) -> Any:
    """What iperf3 says of a transfer at its end. What went wrong stands there too, with exit status 0 (3.12)."""
    found = reading.json(text.encode(), "iperf3's JSON")
    if "error" in found:
        raise MachineError(f"iperf3: {plain(str(found['error']))}")
    return found["end"]
