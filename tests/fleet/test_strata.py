"""Strata: what hosts have alike, in names and differences that a person reads."""

from __future__ import annotations

import msgspec

from hugewise.fleet import inventory
from hugewise.host import knob
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint
from hugewise.model.pages import THP
from tests.fleet.hosts import STRATUM

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
    found = inventory.stratum(FACTS, SETTINGS, "fresh")
    assert found.cpu == "AMD EPYC 9654 (family 25, model 17, stepping 1)"
    assert (found.microcode, found.kernel, found.libc) == ("0xa10113e", "6.1.0-26-amd64", "glibc 2.36")
    assert found.pages == "base 4096; defrag=madvise; enabled=madvise; hugepages-64kB/enabled=never"
    assert (found.hypervisor, found.memory) == ("none", "fresh")
    busy = SETTINGS | {f"{THP}/khugepaged/pages_to_scan": "1"}
    assert inventory.stratum(FACTS, busy, "fresh") == found  # how busily a thread works is no stratum


def test_what_is_not_known_is_said() -> None:
    found = inventory.stratum({}, {}, None)
    assert (found.cpu, found.hypervisor, found.memory) == ("not known", "guest of not known"[9:], "not known")
    assert found.pages == "base not known; THP not known"


def test_this_machine_has_one() -> None:
    host = LocalHost()
    found = inventory.stratum(fingerprint.fingerprint(host), knob.read_knobs(host), "used")
    assert "not known" not in (found.kernel, found.libc, found.pages)
    assert inventory.stratum(msgspec.json.decode(msgspec.json.encode(fingerprint.fingerprint(host))), {}, "used") == (
        msgspec.structs.replace(found, pages=found.pages.partition(";")[0] + "; THP not known")
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
