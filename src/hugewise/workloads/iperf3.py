"""iperf3 over the loopback: a negative control on one host, where the data have no memory that could be huge.

Server and client have some 4 MiB each, most of it their programs' files; what they send lies in a buffer of 128 KiB
that is mapped from a temporary file, and the kernel's socket buffers are no process's memory. So no policy can change
what backs it, and an effect that is found here is none of page sizes. What was published is about two virtual machines,
whose whole memory the policy backs: there the server is on the host (`peer = "host"`), and the client in the guest is
the system under test.

Source: iperf 3.12, src/iperf_api.c (iperf_new_stream).
"""

from __future__ import annotations

from typing import Any

from hugewise import reading
from hugewise.machine import programs
from hugewise.model.metric import Metric
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Outputs, Places, Procedure, Reading, Server, Step
from hugewise.model.workload import Launch, Missing, Parameter
from hugewise.workloads._staged import PartedWorkload, Values, float_value, integer

_HOST = "127.0.0.1"
_ON_THE_WAY = 48 << 20  # bytes that the socket buffers of a stream can hold: Linux 6.18 lets a receiver have 32 MiB


class Iperf3(PartedWorkload):
    """The server is the system under test, or the client is, with the server on the host beside its guest."""

    name = "iperf3"
    description = "iperf3 over the loopback, or from a guest to the host: nothing of it becomes huge on one host"
    ports = 1
    clients = True
    client_programs = ("iperf3",)
    programs = (("iperf3", "iperf3"),)
    choices = (("peer", ("machine", "host")),)
    least = (("bytes", 0),)
    parameters = (
        Parameter("duration", "duration", "10s", "length of the transfer, in whole seconds"),
        Parameter(
            "bytes", "size", 0, "how much is sent, instead of a duration: the same work on any machine; 0: by time"
        ),
        Parameter("streams", "integer", 1, "parallel streams"),
        Parameter(
            "peer", "text", "machine", "where the server is: machine (the client's own), or host (beside a guest)"
        ),
    )
    metrics = (
        Metric("sender_bits_per_s", "bits/s", "higher", "what the client sent a second"),
        Metric("receiver_bits_per_s", "bits/s", "higher", "what the server received a second"),
        Metric("client_cpu_share", "CPUs", "lower", "CPU time of the client, in CPUs, as iperf3 says"),
        Metric("server_cpu_share", "CPUs", "lower", "CPU time of the server, in CPUs, as iperf3 says"),
        Metric("retransmits", "segments", "lower", "segments that TCP sent again"),
    )
    # Measured, of the 552 KiB that are no file's: 0% under thp, one page at most under mthp-64k. So it cannot be
    # demanded.
    delivered_share = 0.0

    def refuses(self, treatment: Treatment, values: Values) -> str | None:
        """Return why a value is not possible, or None; pages of a pool do not reach iperf3."""
        duration, streams = float_value(values, "duration"), integer(values, "streams")
        if duration < 1:
            return f"duration = {duration:g} s must be at least 1 s"
        if not 1 <= streams <= 128:
            return f"streams = {streams} must be 1 to 128"
        if treatment.target.kind == "hugetlb":
            return "its buffer is mapped from a file: malloc's pages, which alone could come from a pool, hold no data"
        return super().refuses(treatment, values)

    def missing(self, values: Values) -> tuple[Missing, ...]:
        lacking = list(super().missing(values))
        if values["peer"] == "host" and programs.place() is not None:
            with programs.looking_here():
                beside = super().missing(values)
            lacking += [Missing(f"on this host, where its server is: {each.reason}", "iperf3", True) for each in beside]
        return tuple(lacking)

    def memory(self, treatment: Treatment, values: Values) -> int:
        # two small processes
        return 16 << 20

    def parted_refused(self, values: Values) -> str | None:
        # beside a guest the two are apart already
        return 'peer = "host" is beside a guest: leave it out' if values["peer"] == "host" else None

    def unprotected_access(self, values: Values) -> str | None:
        # iperf3's RSA authentication (iperf3(1)) has the client take the password from its environment or a terminal,
        # and no file: the password would lie in the run's records
        return "the server of iperf3 takes transfers of whoever reaches its address"

    def procedure(self, treatment: Treatment, values: Values, places: Places) -> Procedure:
        beside = values["peer"] == "host"
        far = places.far
        bind, address = (places.peer.bind, places.peer.address) if beside else (_HOST, _HOST)
        ports = places.peer.ports if beside else places.ports
        if far is not None:
            bind = address = far.address
            ports = far.ports
        port = ("-p", str(ports[0]))
        client = ("iperf3", "-c", address, *port)
        server = Server(
            name="server",
            argv=("iperf3", "-s", "-B", bind, *port),
            ready=Step(name="ready", argv=(*client, "-n", "128K"), timeout=30),
            where="host" if beside else "machine",
        )
        duration, size = values["duration"], integer(values, "bytes")
        work = ("-n", str(size)) if size else ("-t", f"{duration:.0f}")
        timed = Launch(
            argv=(
                *(client if far is None else (far.program("iperf3"), *client[1:])),
                *work,
                "-P",
                str(values["streams"]),
                "-J",
            ),
            proof="exit" if beside else "live",
            environment=treatment.environment if beside else {},
        )
        return Procedure(servers=(server,), timed=timed)

    def read(self, outputs: Outputs, values: Values) -> Reading:
        text = outputs.stdout()
        with reading.believing("iperf3's JSON"):
            report = reading.json(text.encode(), "iperf3's JSON")
            end = report["end"]
            sent, received, cpu = end["sum_sent"], end["sum_received"], end["cpu_utilization_percent"]
            metrics: dict[str, float | None] = {
                "sender_bits_per_s": reading.number(sent["bits_per_second"], "what was sent a second", low=0),
                "receiver_bits_per_s": reading.number(received["bits_per_second"], "what was received a second", low=0),
                "client_cpu_share": reading.number(cpu["host_total"], "host_total", low=0) / 100,
                "server_cpu_share": reading.number(cpu["remote_total"], "remote_total", low=0) / 100,
                "retransmits": float(reading.count(sent["retransmits"], "retransmits"))
                if "retransmits" in sent
                else None,
            }
            series = tuple(_whole_seconds(report["intervals"]))
            version = str(report["start"]["version"])
            carried = (
                reading.count(sent["bytes"], "the bytes sent"),
                reading.count(received["bytes"], "the bytes received"),
            )
        absent = {"retransmits": "iperf3 does not say on this system"} if metrics["retransmits"] is None else {}
        return Reading(
            metrics=metrics,
            absent=absent,
            series=series,
            facts={"iperf3": version, "sent_bytes": carried[0], "received_bytes": carried[1]},
            problem=_short(integer(values, "bytes"), *carried, integer(values, "streams")),
        )


def _short(wanted: int, sent: int, received: int, streams: int) -> str | None:
    # The server stops counting with the last bytes still on their way.
    if sent < wanted:
        return f"the client sent {sent} of {wanted} bytes"
    if received < max(1, sent - streams * _ON_THE_WAY):
        return f"the server received {received} of {sent} bytes"
    return None


def _whole_seconds(intervals: list[Any]) -> list[float]:
    sums = [interval["sum"] for interval in intervals]
    return [
        reading.number(each["bits_per_second"], "an interval", low=0)
        for each in sums
        if reading.number(each["seconds"], "its length") > 0.5
    ]


WORKLOAD = Iperf3()
