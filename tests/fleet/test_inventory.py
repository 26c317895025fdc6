"""What an inventory may hold: every mistake names file, key, value and cure. Strata: names, and what differs."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.fleet import engine, inventory
from hugewise.fleet.inventory import ClientEntry, FleetTable, HostEntry, Inventory, parse
from hugewise.host import knob
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint
from hugewise.model.host import ClientHost
from hugewise.model.pages import THP
from hugewise.study.keys import keys_of
from tests.fleet.hosts import STRATUM
from tools import reference

WHOLE = """
[fleet]
engine = "ssh"
installation = "/opt/hugewise"
wait = "5m"

[[host]]
name = "rack1-a"
ssh = "admin@rack1-a.example"
root = true

[[host]]
name = "rack1-b"
ssh = "rack1-b"
installation = "/home/me/hugewise"
spool = "/var/tmp/hw"
"""


def test_what_hosts_are(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no such file"):
        inventory.load(tmp_path / "hosts.toml")
    (tmp_path / "hosts.toml").write_text(WHOLE)
    hosts = inventory.load(tmp_path / "hosts.toml")
    first, second = hosts.host
    assert (hosts.fleet.wait, first.root) == (300.0, True)
    assert [hosts.installation(host) for host in hosts.host] == ["/opt/hugewise", "/home/me/hugewise"]
    assert [hosts.spool(host) for host in hosts.host] == [None, "/var/tmp/hw"]
    assert hosts.entry("rack1-b") is second
    assert engine.obey_words(hosts.installation(first), None, root=True) == [
        *("sudo", "-n", "--", "/opt/hugewise/bin/hugewise", "fleet", "obey")
    ]
    assert engine.obey_words("/o", "/var/tmp/hw", root=False) == [
        *("/o/bin/hugewise", "fleet", "obey", "--spool", "/var/tmp/hw")
    ]


HOST = '[[host]]\nname = "a"\nssh = "a"\n'


@pytest.mark.parametrize(
    ("text", "lines"),
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
        (HOST + '[fleet]\nwait = "0s"\n', ["fleet.wait", "is out of range"]),
        (HOST.replace('name = "a"', 'name = "../a"'), ["host[1].name = '../a'", "is not a name"]),
        ("[[host]\n", ["it is not TOML"]),
    ],
)
def test_a_mistake_names_its_place_and_cure(text: str, lines: list[str]) -> None:
    with pytest.raises(StudyError) as raised:
        inventory.parse(text, "hosts.toml")
    message = f"{raised.value.message} {raised.value.hint}"
    assert message.startswith("hosts.toml")
    for each in lines:
        assert each in message


CLIENT = '[[client]]\nname = "loads"\nssh = "me@loads"\naddress = "10.0.1.2"\n'
HOST_WITH_CLIENT = '[[host]]\nname = "a"\nssh = "a"\nclient = "loads"\n'


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
    hosts = inventory.load(written(tmp_path, HOST_WITH_CLIENT + CLIENT))
    entry = hosts.client_of(hosts.entry("a"))
    assert entry is not None
    # As the host's keeper hands it to `hugewise run`.
    assert inventory.client(written(tmp_path, entry.toml()), "loads") == entry.host
    alone = inventory.load(written(tmp_path, HOST_WITH_CLIENT.replace('client = "loads"\n', "") + CLIENT))
    assert alone.client_of(alone.entry("a")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HOST_WITH_CLIENT, "is no table"),
        (HOST_WITH_CLIENT + HOST_WITH_CLIENT.replace('"a"', '"b"') + CLIENT, "another host's already"),
        (HOST_WITH_CLIENT + '[[host]]\nname = "b"\nssh = "b"\n' + CLIENT, "client"),
        (CLIENT + CLIENT, "stands twice"),
        (HOST_WITH_CLIENT + CLIENT.replace("me@loads", "-oProxyCommand=x"), "ssh"),
        (HOST_WITH_CLIENT + CLIENT.replace("10.0.1.2", "a b"), "address"),
        (HOST_WITH_CLIENT + CLIENT + 'folder = "/tmp/$(x)"\n', "folder"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(StudyError) as caught:
        inventory.load(written(tmp_path, text))
    assert why in str(caught.value)


FACTS = {
    "cpu": {"vendor": "AuthenticAMD", "model": "AMD EPYC 9654", "family": "25", "model_number": "17", "stepping": "1",
            "microcode": "0xa10113e"},
    "kernel": {"release": "6.1.0-26-amd64"},
    "libc": "glibc 2.36",
    "pages": {"base": 4096},
    "virtualisation": {"hypervisor": False, "vendor": "Dell Inc.", "product": "R7625"},
}  # fmt: skip
SETTINGS = {
    f"{THP}/enabled": "madvise",
    f"{THP}/defrag": "madvise",
    f"{THP}/khugepaged/pages_to_scan": "4096",
    f"{THP}/hugepages-64kB/enabled": "never",
}


def test_what_a_stratum_is_made_of() -> None:
    stratum = inventory.stratum(FACTS, SETTINGS, "fresh")
    assert stratum.cpu == "AMD EPYC 9654 (family 25, model 17, stepping 1)"
    assert (stratum.microcode, stratum.kernel, stratum.libc) == ("0xa10113e", "6.1.0-26-amd64", "glibc 2.36")
    assert stratum.pages == "base 4096; defrag=madvise; enabled=madvise; hugepages-64kB/enabled=never"
    assert (stratum.hypervisor, stratum.memory) == ("none", "fresh")
    busy = SETTINGS | {f"{THP}/khugepaged/pages_to_scan": "1"}
    assert inventory.stratum(FACTS, busy, "fresh") == stratum  # how busily a thread works is no stratum


def test_what_is_not_known_is_said() -> None:
    stratum = inventory.stratum({}, {}, None)
    assert (stratum.cpu, stratum.hypervisor, stratum.memory) == ("not known", "guest of not known"[9:], "not known")
    assert stratum.pages == "base not known; THP not known"


def test_this_machine_has_one() -> None:
    host = LocalHost()
    stratum = inventory.stratum(fingerprint.fingerprint(host), knob.read_knobs(host), "used")
    assert "not known" not in (stratum.kernel, stratum.libc, stratum.pages)
    assert inventory.stratum(msgspec.json.decode(msgspec.json.encode(fingerprint.fingerprint(host))), {}, "used") == (
        msgspec.structs.replace(stratum, pages=stratum.pages.partition(";")[0] + "; THP not known")
    )


def test_names_have_what_tells_them_apart() -> None:
    one = STRATUM
    older = msgspec.structs.replace(one, microcode="0x0")
    settled = msgspec.structs.replace(one, pages="base 4096; enabled=always")
    assert inventory.strata_names([one, one]) == {one: "cpu"}
    assert inventory.strata_names([one, older]) == {older: "cpu, 0x0", one: "cpu, 0x1"}
    assert inventory.strata_names([one, settled]) == {one: "cpu, pages alike", settled: "cpu, enabled=always"}
    stepping = msgspec.structs.replace(one, cpu="cpu (stepping 2)")  # the same name of the model
    assert len(set(inventory.strata_names([one, stepping]).values())) == 2


def test_differences_are_told_field_by_field() -> None:
    other = msgspec.structs.replace(STRATUM, kernel="6.12", pages="base 4096; enabled=always")
    assert inventory.differences(STRATUM, other) == ["kernel: 6.1 / 6.12", "pages: - / enabled=always"]
    assert inventory.differences(STRATUM, STRATUM) == []


def test_how_old_memory_is() -> None:
    large = "Node 0, zone   Normal   0 0 0 0 0 0 0 0 0 0 100\n"
    small = "Node 0, zone   Normal   1024 0 0 0 0 0 0 0 0 0 1\n"
    mixed = "Node 0, zone   Normal   512 0 0 0 0 0 0 0 0 0 2\n"
    assert [inventory.memory_age(text) for text in (large, mixed, small, "", "zone x y")] == [
        *("fresh", "used", "used", None, None)
    ]
    assert inventory.memory_age("Node 0, zone   Normal   4096 0 0 0 0 0 0 0 0 0 1\n") == "aged"
    assert inventory.memory_age(LocalHost().read("/proc/buddyinfo")) in ("fresh", "used", "aged")


def test_every_key_that_is_read_is_on_it() -> None:
    page = reference.text("inventory")
    assert {*keys_of(Inventory)} == {"fleet", "host", "client"}
    for table in (FleetTable, HostEntry, ClientEntry):
        assert all(f"| `{name}` |" in page for name in keys_of(table))


@pytest.mark.parametrize("engine", ["ssh", "dask", "slurm"])
def test_all_its_examples_together_are_an_inventory(engine: str) -> None:
    def examples(table: type[msgspec.Struct]) -> str:
        return "\n".join(note.example for note, _ in keys_of(table).values())

    fleet = examples(FleetTable).replace('engine = "dask"', f'engine = "{engine}"')
    text = f"[fleet]\n{fleet}\n[[host]]\n{examples(HostEntry)}\n[[client]]\n{examples(ClientEntry)}\n"
    hosts = parse(text, "examples")
    assert (hosts.fleet.engine, hosts.fleet.wait, hosts.host[0].root) == (engine, 3600.0, True)
    assert hosts.client_of(hosts.host[0]) is hosts.client[0]
    smallest = reference.text("inventory").split("```toml\n")[1].split("```")[0]
    assert parse(smallest, "smallest").host[0].name == tomllib.loads(smallest)["host"][0]["name"]


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
