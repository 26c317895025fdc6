"""What an inventory must say for Dask: who is reached how, and where is listened."""

from __future__ import annotations

import pytest

from hugewise.errors import StudyError
from hugewise.fleet import inventory

HOSTS = """
[fleet]
engine = "dask"
{fleet}
[[host]]
name = "a"
{one}
[[host]]
name = "b"
ssh = "b"
address = "10.0.0.3"
"""
GOOD = {"fleet": 'address = "10.0.0.1"', "one": 'ssh = "a"\naddress = "10.0.0.2"'}


def test_what_is_enough() -> None:
    found = inventory.parse(HOSTS.format(**GOOD), "hosts.toml")
    assert [host.address for host in found.host] == ["10.0.0.2", "10.0.0.3"]


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"fleet": ""}, "fleet.address"),
        ({"fleet": 'address = "desk.example"'}, "fleet.address"),
        ({"fleet": 'address = "0.0.0.0"'}, "fleet.address"),
        ({"fleet": 'address = "255.255.255.255"'}, "fleet.address"),
        ({"one": 'address = "10.0.0.2"'}, "host[1].ssh"),
        ({"one": 'ssh = "a"'}, "host[1].address"),
        ({"one": 'ssh = "a"\naddress = "a.example"'}, "host[1].address"),
        ({"one": 'ssh = "a"\naddress = "0.0.0.0"'}, "host[1].address"),
        ({"one": 'ssh = "a"\naddress = "224.0.0.1"'}, "host[1].address"),
        ({"one": 'ssh = "a"\naddress = "10.0.0.3"'}, "host[2].address"),
    ],
)
def test_what_is_missing_or_listens_everywhere_is_told(changed: dict[str, str], key: str) -> None:
    with pytest.raises(StudyError) as error:
        inventory.parse(HOSTS.format(**GOOD | changed), "hosts.toml")
    assert error.value.key == key
    assert error.value.hint
