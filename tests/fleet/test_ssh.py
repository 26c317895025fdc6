"""A fleet over real sshds, as a person comes to it: provisioned, doctored, run, shipped, and left clean.

Two hosts (`harness`), on which nothing is installed at first. What is wrong is told before anything is begun.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import hugewise
from tests.build.wheels import of_another_version, wheels
from tests.fleet.driven import Driven
from tests.fleet.harness import Machine, Rack
from tests.state import changed, page_state
from tests.wait import until

pytestmark = pytest.mark.whole

HOSTS = ("alpha", "beta")
STUDY = """
format = 1
name = "slept"
policies = ["as-is", { name = "slow", from = "as-is", environment = { NAP = "0.3" } }]
method = "sequential"
confidence = 0.9
budget = { blocks = 60 }

[between]
settle = "0ms"

[[workload]]
name = "command"
timeout = "30s"
parameters = { argv = ["sh", "-c", "sleep ${NAP:-0.01}"] }
"""
QUICK = 'look = "0.5s"\ncheck = 0'


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    before = page_state()
    with Rack(HOSTS, bare=True) as rack:
        wheels(rack.desk.folder / "wheels")
        of_another_version(rack.desk.folder / "wheels", rack.desk.folder / "old")
        (rack.desk.folder / "slept.toml").write_text(STUDY)
        yield rack
    assert changed(before) == {}


def over_ssh(rack: Rack, *hosts: str, fleet: str = QUICK, more: str = "") -> Path:
    return rack.inventory(fleet, hosts or None, engine="ssh", more=more)


def provisioned(rack: Rack, hosts: Path, folder: str = "wheels") -> str:
    return Driven(rack, "provision", "--hosts", str(hosts), "--wheels", str(rack.desk.folder / folder)).end()


def refused(rack: Rack, *words: str) -> str:
    """What is said of it; nothing was begun."""
    driven = Driven(rack, *words)
    status = driven.running.wait(120)
    driven._reading.join(10)
    assert status != 0, driven.lines
    assert not [*(rack.desk.folder / "none").glob("**/log.jsonl")]
    return "\n".join(driven.lines)


def run_words(rack: Rack, hosts: Path) -> tuple[str, ...]:
    study, results = rack.desk.folder / "slept.toml", rack.desk.folder / "none"
    return "run", str(study), "--hosts", str(hosts), "--results", str(results)


def files(host: Machine) -> set[str]:
    """All that is in the home of its account, and what is its own in shared folders."""
    by_name = {
        str(path.relative_to(host.folder)) for path in host.folder.rglob("*") if host.install not in path.parents
    }
    output = subprocess.run(
        host.within("find", "/tmp", "/var/tmp", "/dev/shm", "-user", str(host.uid), account=False),
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return by_name | {line for line in output.splitlines() if not line.startswith("/var/tmp/hw-fleet-")}  # of any rack


@pytest.fixture(scope="module")
def installed(rack: Rack) -> Rack:
    """Both hosts have what is here; before that, a person learns that they have nothing."""
    output = refused(rack, *run_words(rack, over_ssh(rack)))
    assert "2 of 2 hosts cannot take part; nothing was begun" in output
    assert "alpha" in output and "hugewise fleet provision" in output
    before = {name: files(rack[name]) for name in HOSTS}
    output = provisioned(rack, over_ssh(rack))
    for name in HOSTS:
        assert f"{name}: installed in {rack[name].install}" in output
        assert files(rack[name]) - before[name] == {"install"}  # of the wheels nothing is left
    return rack


@pytest.mark.soak
def test_from_an_empty_host_to_a_run_that_was_brought(installed: Rack) -> None:
    rack = installed
    first, both, results = over_ssh(rack, "alpha"), over_ssh(rack), rack.desk.folder / "results"
    command = Driven(rack, "doctor", "--hosts", str(both), str(rack.desk.folder / "slept.toml")).end()
    assert "2 of 2 hosts can take part" in command and "command: slow against as-is" in command
    before = {name: files(rack[name]) for name in HOSTS}
    fleet = Driven(rack, "run", str(rack.desk.folder / "slept.toml"), "--hosts", str(first), "--results", str(results))
    command = fleet.end()
    assert "1 of 1 hosts have measured" in command
    (work,) = fleet.state().counted()
    assert work.settled is not None and work.settled.state == "ended"
    found = hugewise.open_results(fleet.shipped()["alpha"])
    assert found.state == "finished" and found.blocks_complete > 4
    (cell,) = found.cells
    assert [(comparison.arm, comparison.verdict) for comparison in cell.comparisons] == [("slow", "worse")]
    # What is new on the host: its spool with the fence, and nothing of the run.
    assert {Path(name).name for name in files(rack["alpha"]) - before["alpha"]} <= {fleet.folder.name, "fence", "order"}
    until(lambda: rack["alpha"].pids() == [], "no process is left on alpha", seen=rack["alpha"].pids)


@pytest.mark.soak
def test_what_keeps_a_host_from_taking_part_is_told_before_anything_is_begun(installed: Rack) -> None:
    """Each with its cure; nothing is left begun anywhere."""
    rack = installed
    both, beta = over_ssh(rack), rack["beta"]
    # Without root: sudo would ask for a password, and is never asked for one.
    output = refused(rack, *run_words(rack, over_ssh(rack, more="root = true")))
    assert "2 of 2 hosts cannot take part" in output and "sudo" in output, output
    # Another file in it than here.
    (module,) = beta.install.glob("lib/python3*/site-packages/hugewise/__init__.py")
    text = module.read_text()
    module.write_text(f"{text}\n# mended by hand\n")
    output = refused(rack, *run_words(rack, both))
    assert "1 of 2 hosts cannot take part" in output and "is there with other files than here" in output
    assert "hugewise fleet provision" in output and "beta: " in output
    module.write_text(text)
    # Another probe than on the others.
    probe = beta.install / "bin" / "hugewise-probe"
    data = probe.read_bytes()
    probe.write_bytes(data + b"\0")
    output = refused(rack, *run_words(rack, both))
    assert "its probe is another one than on the other hosts" in output
    probe.write_bytes(data)
    # Another version, and the same again.
    alone = over_ssh(rack, "beta")
    provisioned(rack, alone, "old")
    output = refused(rack, *run_words(rack, both))
    assert "beta: hugewise 0.0.9 is there, and " in output
    provisioned(rack, alone)
    assert "cannot take part" not in Driven(rack, "doctor", "--hosts", str(both)).end()
    # Not reached.
    rack.cut("beta")
    try:
        output = refused(rack, *run_words(rack, both))
    finally:
        rack.mend("beta")
    assert "1 of 2 hosts cannot take part" in output and "beta: ssh beta: " in output and "try: ssh beta true" in output
    # A name that ssh does not know, and a key that the host does not have.
    path = rack.desk.folder / ".ssh" / "config"
    config = path.read_text()
    path.write_text(config.replace("User hw-beta", "User nobody-there"))
    output = refused(rack, *run_words(rack, both))
    assert "beta: ssh beta: " in output and "Permission denied" in output
    path.write_text(config)
    os.chown(path, rack.desk.uid, rack.desk.uid)
    for name in HOSTS:
        assert not [*rack[name].path(rack[name].spool).rglob("begin.json")]
