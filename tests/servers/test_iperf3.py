"""iperf3 over the loopback: its JSON, and that it is a negative control."""

from pathlib import Path

import pytest

from hugewise.machine import programs
from hugewise.model.procedure import Peer, Places, Step
from hugewise.workloads.iperf3 import WORKLOAD
from tests.build import known
from tests.build.workloads import BASE, Said, given
from tests.requirements import need_program
from tests.servers.trying import accepted, tried

VALUES = given(WORKLOAD, duration="2s")
# Said by iperf3 3.12 on Debian 12, without the cookie and the name of the system.
JSON = (Path(__file__).parent / "data" / "iperf3.json").read_text()


def test_server_and_client_meet_on_the_loopback() -> None:
    procedure = WORKLOAD.procedure(BASE, VALUES, Places(data="/d", run="/r", ports=(15201,), sut=(0,), client=(1,)))
    (server,) = procedure.servers
    assert server.argv == ("iperf3", "-s", "-B", "127.0.0.1", "-p", "15201")
    assert procedure.timed.argv == ("iperf3", "-c", "127.0.0.1", "-p", "15201", "-t", "2", "-P", "1", "-J")


def test_bandwidth_and_cpu_of_both_sides_are_read() -> None:
    reading = WORKLOAD.read(Said({"timed": JSON}), VALUES)
    assert reading.metrics == pytest.approx(
        {
            "sender_bits_per_s": 12468465929.85,
            "receiver_bits_per_s": 12455684843.5,
            "client_cpu_share": 0.302552,
            "server_cpu_share": 0.26301922,
            "retransmits": 7,
        },
        rel=0.001,
    )
    assert len(reading.series) == 2
    assert reading.facts == {"iperf3": "iperf 3.12", "sent_bytes": 3122135040, "received_bytes": 3121741824}
    assert reading.problem is None


def test_a_server_beside_a_guest_is_reached_at_the_address_of_the_host() -> None:
    values = {**VALUES, "peer": "host", "bytes": 64 << 20}
    peer = Peer(bind="127.0.0.1", address="10.0.2.2", ports=(31001,))
    procedure = WORKLOAD.procedure(
        BASE, values, Places(data="/d", run="/r", ports=(1,), sut=(0,), client=(0,), peer=peer)
    )
    (server,) = procedure.servers
    assert (server.where, server.argv) == ("host", ("iperf3", "-s", "-B", "127.0.0.1", "-p", "31001"))
    assert isinstance(server.ready, Step)
    assert server.ready.argv[:5] == ("iperf3", "-c", "10.0.2.2", "-p", "31001")
    work = ("-n", "67108864", "-P", "1", "-J")
    assert procedure.timed.argv == ("iperf3", "-c", "10.0.2.2", "-p", "31001", *work)
    assert procedure.timed.proof == "exit"


def test_work_that_was_not_done_fails_the_attempt() -> None:
    less = WORKLOAD.read(Said({"timed": JSON}), {**VALUES, "bytes": 4 << 30})
    assert less.problem == "the client sent 3122135040 of 4294967296 bytes"
    slow = JSON.replace("3121741824", str(3122135040 - (36 << 20)))
    assert WORKLOAD.read(Said({"timed": slow}), VALUES).problem is None, "the rest is in the buffers of the sockets"
    lost = JSON.replace("3121741824", "1048576")
    assert WORKLOAD.read(Said({"timed": lost}), VALUES).problem == "the server received 1048576 of 3122135040 bytes"


def test_iperf3_must_be_on_both_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with programs.looking_in(["/usr/bin/iperf3"]):
        assert WORKLOAD.missing(VALUES) == ()
        assert [each.package for each in WORKLOAD.missing({**VALUES, "peer": "host"})] == ["iperf3"]


@pytest.mark.parametrize("said", ["", "{}", '{"error": "unable to connect to server"}', '{"end": 1}'])
def test_other_output_is_an_error_that_shows_it(said: str) -> None:
    with pytest.raises(ValueError, match="iperf3's JSON is not as expected"):
        WORKLOAD.read(Said({"timed": said}), VALUES)


@pytest.mark.whole
@pytest.mark.soak
def test_nothing_of_it_becomes_huge(tmp_path: Path) -> None:
    need_program("iperf3", "iperf3")
    workload = {"name": "iperf3", "parameters": {"duration": "1s"}}
    found = tried(tmp_path, workload, ["base", "thp", "mthp-64k"])
    accepted(found)
    assert found["base"].delivery.share == 1
    assert found["thp"].delivery.share == 0
    assert set(found["thp"].delivery.coverage) == {"anon:4096"}
    # Its heap may have room for a page or two of 64 KiB; its data, which are a file's, have none.
    assert found["mthp-64k"].delivery.coverage.get("anon:65536", 0) <= 2 << 16
    assert known(found["thp"].metrics["receiver_bits_per_s"]) > 1e6


@pytest.mark.whole
@pytest.mark.soak
def test_a_server_on_the_host_side_of_this_host(tmp_path: Path) -> None:
    need_program("iperf3", "iperf3")
    workload = {"name": "iperf3", "parameters": {"bytes": "128M", "peer": "host"}}
    found = tried(tmp_path, workload, ["base", "thp"])
    accepted(found)
    assert found["thp"].facts["sent_bytes"] >= 128 << 20  # type: ignore[operator]


@pytest.mark.whole
def test_a_demanded_share_is_not_delivered(tmp_path: Path) -> None:
    need_program("iperf3", "iperf3")
    workload = {"name": "iperf3", "parameters": {"duration": "1s"}, "delivery": {"share": 0.9}}
    found = tried(tmp_path, workload, ["base", "thp"])
    assert found["base"].delivery.delivered is True
    assert found["thp"].delivery.delivered is False
