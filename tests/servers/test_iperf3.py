"""iperf3 over the loopback: its JSON, and that it is a negative control."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.pages import PageTarget
from hugewise.policy import Treatment
from hugewise.scene import Places
from hugewise.workload import ParameterValue
from hugewise.workloads.iperf3 import WORKLOAD
from tests.requirements import need_program
from tests.servers.said import Said
from tests.servers.trying import need_pages, tried

VALUES: dict[str, ParameterValue] = {"duration": 2.0, "streams": 1}
BASE = Treatment(policy="base", mechanism="system", target=PageTarget("base", 4096))
# Said by iperf3 3.12 on Debian 12, without the cookie and the name of the system.
JSON = (Path(__file__).parent / "data" / "iperf3.json").read_text()


def test_server_and_client_meet_on_the_loopback() -> None:
    scene = WORKLOAD.scene(BASE, VALUES, Places(data="/d", run="/r", ports=(15201,), sut=(0,), client=(1,)))
    (server,) = scene.servers
    assert server.argv == ("iperf3", "-s", "-B", "127.0.0.1", "-p", "15201")
    assert scene.timed.argv == ("iperf3", "-c", "127.0.0.1", "-p", "15201", "-t", "2", "-P", "1", "-J")


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
    assert reading.facts == {"iperf3": "iperf 3.12"}


@pytest.mark.parametrize("said", ["", "{}", '{"error": "unable to connect to server"}', '{"end": 1}'])
def test_other_output_is_an_error_that_shows_it(said: str) -> None:
    with pytest.raises(ValueError, match="iperf3's JSON is not as expected"):
        WORKLOAD.read(Said({"timed": said}), VALUES)


def test_a_pool_is_refused_with_the_reason() -> None:
    pool = Treatment(policy="hugetlb-2m", mechanism="system", target=PageTarget("hugetlb", 2 << 20))
    assert "mapped from a file" in (WORKLOAD.refuses(pool, VALUES) or "")
    assert WORKLOAD.refuses(BASE, VALUES) is None
    assert "at least 1 s" in (WORKLOAD.refuses(BASE, {**VALUES, "duration": 0.5}) or "")


def test_nothing_of_it_becomes_huge(tmp_path: Path) -> None:
    need_program("iperf3", "iperf3")
    need_pages()
    workload = {"name": "iperf3", "parameters": {"duration": "1s"}}
    found = tried(tmp_path, workload, ["base", "thp", "mthp-64k"])
    assert {arm: attempt.state for arm, attempt in found.items()} == dict.fromkeys(found, "accepted")
    assert found["base"].delivery.share == 1
    assert found["thp"].delivery.share == 0
    assert set(found["thp"].delivery.coverage) == {"anon:4096"}
    # Its heap may have room for a page or two of 64 KiB; its data, which are a file's, have none.
    assert found["mthp-64k"].delivery.coverage.get("anon:65536", 0) <= 2 << 16
    rate = found["thp"].metrics["receiver_bits_per_s"]
    assert rate is not None
    assert rate > 1e6


def test_a_demanded_share_is_not_delivered(tmp_path: Path) -> None:
    need_program("iperf3", "iperf3")
    need_pages()
    workload = {"name": "iperf3", "parameters": {"duration": "1s"}, "delivery": {"share": 0.9}}
    found = tried(tmp_path, workload, ["base", "thp"])
    assert found["base"].delivery.delivered is True
    assert found["thp"].delivery.delivered is False
