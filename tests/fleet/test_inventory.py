"""What an inventory may hold: every mistake names file, key, value and cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.errors import StudyError
from hugewise.fleet import engine, inventory

WHOLE = """
[fleet]
engine = "ssh"
installation = "/opt/hugewise"
patience = "5m"

[[host]]
name = "rack1-a"
ssh = "admin@rack1-a.example"
labels = { rack = "r1" }
root = true

[[host]]
name = "rack1-b"
ssh = "rack1-b"
installation = "/home/me/hugewise"
spool = "/var/tmp/hw"
"""


def test_what_hosts_are(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text(WHOLE)
    found = inventory.load(tmp_path / "hosts.toml")
    first, second = found.host
    assert (found.fleet.patience, first.labels, first.root) == (300.0, {"rack": "r1"}, True)
    assert [found.installation(host) for host in found.host] == ["/opt/hugewise", "/home/me/hugewise"]
    assert [found.spool(host) for host in found.host] == [None, "/var/tmp/hw"]
    assert found.entry("rack1-b") is second
    assert engine.command(found.installation(first), None, root=True) == [
        *("sudo", "-n", "--", "/opt/hugewise/bin/hugewise", "fleet", "obey")
    ]
    assert engine.command("/o", "/var/tmp/hw", root=False, worker=17) == [
        *("/o/bin/hugewise", "fleet", "obey", "--spool", "/var/tmp/hw", "--worker", "17")
    ]


HOST = '[[host]]\nname = "a"\nssh = "a"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["host", "is missing", "[[host]]"]),
        ('[[host]]\nname = "a"\n', ["host[1].ssh", "is missing", 'ssh = "a"']),
        (HOST + HOST.replace('ssh = "a"', 'ssh = "b"'), ["host[2].name = 'a'", "stands twice"]),
        (HOST + '[[host]]\nname = "A"\nssh = "b"\n', ["host[2].name = 'A'", "stands twice"]),
        (HOST + '[[host]]\nname = "b"\nssh = "a"\n', ["host[2].ssh = 'a'", "names a host that stands above"]),
        (HOST.replace('ssh = "a"', 'ssh = "-oProxyCommand=x"'), ["host[1].ssh", "is not a target of ssh"]),
        (HOST.replace('ssh = "a"', 'ssh = "a; reboot"'), ["host[1].ssh", "is not a target of ssh"]),
        (HOST + 'spool = "relative"\n', ["host[1].spool = 'relative'", "is not an absolute folder"]),
        (HOST + 'spool = "/tmp/$(reboot)"\n', ["host[1].spool", "is not an absolute folder"]),
        (HOST + "rot = true\n", ["host[1].rot", "unknown key", "did you mean root"]),
        (HOST + '[fleet]\nengine = "ray"\n', ["fleet.engine = 'ray'", "is not one of the choices"]),
        (HOST + '[fleet]\npatience = "0s"\n', ["fleet.patience", "is out of range"]),
        (HOST.replace('name = "a"', 'name = "../a"'), ["host[1].name = '../a'", "is not a name"]),
        ("[[host]\n", ["it is not TOML"]),
    ],
)
def test_a_mistake_names_its_place_and_cure(text: str, told: list[str]) -> None:
    with pytest.raises(StudyError) as raised:
        inventory.parse(text, "hosts.toml")
    said = f"{raised.value.message} {raised.value.hint}"
    assert said.startswith("hosts.toml")
    for each in told:
        assert each in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no such file"):
        inventory.load(tmp_path / "hosts.toml")
