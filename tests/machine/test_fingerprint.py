"""The fingerprint: facts, nulls where there are none, and no secret of the machine."""

import json
import os

from hugewise.host.local_host import LocalHost
from hugewise.machine.fingerprint import fingerprint
from tests.build.hosts import Files

MACHINE_ID = "0123456789abcdef0123456789abcdef"
CPU = "/sys/devices/system/cpu"
ZONES = """Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 0
  pages free     3840
        spanned  4095
        present  3998
        managed  3840
Node 0, zone   Normal
  pages free     12
        spanned  6549504
        present  6287360
        managed  2588672
Node 0, zone   Device
  pages free     0
        present  0
        managed  0
"""
FILES = {
    "/etc/machine-id": MACHINE_ID,
    "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian"',
    "/proc/sys/kernel/random/boot_id": "b007",
    "/proc/sys/kernel/osrelease": "6.18.0",
    "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nmicrocode\t: 0x1000065\n"
    "flags\t\t: fpu hypervisor lm\n\nprocessor\t: 1\nmodel name\t: other",
    f"{CPU}/online": "0-1,4",
    **{f"{CPU}/cpu{number}/topology/physical_package_id": str(number // 4) for number in (0, 1, 4)},
    f"{CPU}/smt/active": "0",
    f"{CPU}/cpufreq/policy0/scaling_governor": "performance",
    f"{CPU}/cpufreq/policy1/scaling_governor": "performance",
    f"{CPU}/intel_pstate/no_turbo": "1",
    f"{CPU}/vulnerabilities/meltdown": "Not affected",
    "/proc/meminfo": "MemTotal:       24684092 kB\nSwapTotal:             0 kB",
    "/sys/devices/system/node/node0/cpulist": "0-1,4",
    "/proc/zoneinfo": ZONES,
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0",
    "/proc/cmdline": "quiet",
}


def test_facts_are_read() -> None:
    found = fingerprint(Files(FILES))
    assert found["distribution"] == "Debian GNU/Linux 12 (bookworm)"
    assert found["cpu"]["model"] == "AMD EPYC"
    assert (found["cpu"]["count"], found["cpu"]["sockets"], found["cpu"]["smt"]) == (3, 2, False)
    assert found["memory"]["total_bytes"] == 24684092 << 10
    assert found["memory"]["swap_bytes"] == 0
    assert found["memory"]["nodes"] == {"node0": {"cpus": "0-1,4", "present_bytes": (3998 + 6287360) << 12}}
    assert found["virtualisation"]["hypervisor"] is True
    assert found["pages"]["hugetlb"] == [2 << 20]
    assert found["mitigations"] == {"meltdown": "Not affected"}


def test_the_memory_of_a_node_is_the_same_while_the_kernel_begins_to_use_more_of_it() -> None:
    """Kernels that initialise memory when it is first needed: MemTotal of the node, and `managed`, grow."""
    node = "/sys/devices/system/node/node0/meminfo"
    early = {**FILES, node: "Node 0 MemTotal: 6100000 kB"}
    late = {**FILES, node: "Node 0 MemTotal: 15400000 kB", "/proc/zoneinfo": ZONES.replace("2588672", "5505024")}
    assert fingerprint(Files(early))["memory"] == fingerprint(Files(late))["memory"]


def test_nodes_have_the_memory_of_their_own_zones() -> None:
    more = {f"/sys/devices/system/node/node{node}/cpulist": str(node) for node in (1, 2)}
    zones = f"{ZONES}Node 1, zone Normal\n        spanned  9\n        present  7\n        managed  1\n"
    nodes = fingerprint(Files({**FILES, **more, "/proc/zoneinfo": zones}))["memory"]["nodes"]
    assert {name: of["present_bytes"] for name, of in nodes.items()} == {
        "node0": (3998 + 6287360) << 12,
        "node1": 7 << 12,
        "node2": None,
    }


def test_equal_frequency_policies_are_said_once() -> None:
    frequency = fingerprint(Files(FILES))["frequency"]
    assert [policy["scaling_governor"] for policy in frequency["policies"]] == ["performance"]
    assert frequency["boost"] is False


def test_the_machine_id_is_stable_and_never_given_away() -> None:
    found = fingerprint(Files(FILES))
    assert found["machine"] == fingerprint(Files(FILES))["machine"]
    assert found["machine"] != fingerprint(Files({**FILES, "/etc/machine-id": "f" * 32}))["machine"]
    assert MACHINE_ID not in json.dumps(found)
    assert fingerprint(Files({"/etc/machine-id": "uninitialized"}))["machine"] is None


def test_an_empty_machine_gives_nulls_and_no_guess() -> None:
    found = fingerprint(Files({}))
    for key in ("machine", "boot_id", "distribution", "frequency", "mitigations"):
        assert found[key] is None, key
    assert set(found["cpu"].values()) == {None}
    assert set(found["virtualisation"].values()) == {None}
    assert set(found["memory"].values()) == {None}
    assert found["clock_source"] == {"current": None, "available": None}


def test_this_machine_is_json() -> None:
    found = fingerprint(LocalHost())
    assert json.loads(json.dumps(found)) == found
    assert found["pages"]["base"] == os.sysconf("SC_PAGE_SIZE")
    assert found["boot_id"] == LocalHost().read("/proc/sys/kernel/random/boot_id")
