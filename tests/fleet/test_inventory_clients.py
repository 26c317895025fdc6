"""The hosts of clients in an inventory: for a run by itself, and for hosts of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from hugewise.errors import StudyError
from hugewise.fleet import inventory
from hugewise.model.host import ClientHost

CLIENT = '[[client]]\nname = "loads"\nssh = "me@loads"\naddress = "10.0.1.2"\n'
HOST = '[[host]]\nname = "a"\nssh = "a"\nclient = "loads"\n'


def written(folder: Path, text: str) -> Path:
    file = folder / "hosts.toml"
    file.write_text(text)
    return file


def test_a_client_needs_no_host_beside_it(tmp_path: Path) -> None:
    file = written(tmp_path, f'{CLIENT}ssh_config = "/etc/ssh/other"\ncpus = [2, 3]\nfolder = "/var/tmp"\n')
    words = ("-F", "/etc/ssh/other", "me@loads")
    expected = ClientHost(name="loads", ssh=words, address="10.0.1.2", cpus=(2, 3), folder="/var/tmp")
    assert inventory.client(file, "loads") == expected
    with pytest.raises(StudyError, match="has no lods") as caught:
        inventory.client(file, "lods")
    assert "loads" in str(caught.value.hint)
    with pytest.raises(StudyError, match="host"):
        inventory.load(file)


def test_a_host_of_a_fleet_names_its_own(tmp_path: Path) -> None:
    found = inventory.load(written(tmp_path, HOST + CLIENT))
    entry = found.client_of(found.entry("a"))
    assert entry is not None
    # As the host's keeper hands it to `hugewise run`.
    assert inventory.client(written(tmp_path, entry.toml()), "loads") == entry.host
    alone = inventory.load(written(tmp_path, HOST.replace('client = "loads"\n', "") + CLIENT))
    assert alone.client_of(alone.entry("a")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HOST, "is no table"),
        (HOST + HOST.replace('"a"', '"b"') + CLIENT, "another host's already"),
        (HOST + '[[host]]\nname = "b"\nssh = "b"\n' + CLIENT, "client"),
        (CLIENT + CLIENT, "stands twice"),
        (HOST + CLIENT.replace("me@loads", "-oProxyCommand=x"), "ssh"),
        (HOST + CLIENT.replace("10.0.1.2", "a b"), "address"),
        (HOST + CLIENT + 'folder = "/tmp/$(x)"\n', "folder"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(StudyError) as caught:
        inventory.load(written(tmp_path, text))
    assert why in str(caught.value)
