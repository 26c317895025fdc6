import copy
import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.errors import StudyError
from hugewise.model.guest import Backing
from hugewise.study.guest import GuestUse, KernelUse
from hugewise.study.load import at_scale, load, parse, part, read
from hugewise.study.study import Study, stored_digest
from tests.build.studies import study_data, study_of
from tests.study.test_study import FULL as OF_HOST

STUDIES = Path(__file__).parents[2] / "studies"

FULL = """
format = 1
name = "guests"
policies = [
    "base",
    { name = "4k-64k", from = "mthp-64k", kernel = "4k" },
    { name = "16k-64k", from = "mthp-64k", kernel = "16k" },
    { name = "shp1g", from = "base", backing = "hugetlb-1g" },
    { name = "f", from = "thp", backing = {pages = "hugetlb-2m", source = "file", preallocate = false, nodes = [0]} },
]

[guest]
arch = "arm64"
memory = "2g"
cpus = 2
cpu = "max"
accelerator = "tcg"
settle = "30s"
network = "user"
nfs = true
packages = ["gcc", "make"]
sources = ["lua5.4"]
suite = "trixie"

[[kernel]]
name = "4k"
package = "linux-image-arm64"
suite = "trixie"
append = ["nokaslr"]

[[kernel]]
name = "16k"
package = "linux-image-arm64-16k"

[[kernel]]
name = "64k"
build = "arm64-64k"

[[kernel]]
name = "mine"
path = "/boot/Image"
modules = "/lib/modules/6.12.0"

[design]
slots = ["0-1", "2,3"]

[[workload]]
name = "build"
policies = ["base", "shp1g"]
storage = "nfs"
concurrency = ["together", "alone"]
counted = "peak_bytes"

[[workload]]
name = "iperf3"

[scales.published]
design = { slots = ["0-13", "14-27"] }
guest = { arch = "arm64", memory = "12g", cpus = 14, network = "user", nfs = true }
"""


def guests(**changes: Any) -> dict[str, Any]:
    """A small study of guests, with `changes` at its top."""
    arms = ["base", {"name": "shp", "from": "base", "backing": "hugetlb-2m"}]
    kernels = [{"name": "debian", "package": "linux-image-cloud-amd64"}]
    return study_data(**{"policies": arms, "guest": {}, "kernel": kernels, **changes})


def test_every_key_is_read_into_its_type() -> None:
    study = parse(FULL, "guests.toml")
    assert study.guest == GuestUse(
        arch="arm64",
        memory=2 << 30,
        cpus=2,
        cpu="max",
        accelerator="tcg",
        settle=30.0,
        network="user",
        nfs=True,
        packages=("gcc", "make"),
        sources=("lua5.4",),
        suite="trixie",
    )
    assert study.kernel == (
        KernelUse(name="4k", package="linux-image-arm64", suite="trixie", append=("nokaslr",)),
        KernelUse(name="16k", package="linux-image-arm64-16k"),
        KernelUse(name="64k", build="arm64-64k"),
        KernelUse(name="mine", path="/boot/Image", modules="/lib/modules/6.12.0"),
    )
    assert [study.kernel_of(use).name for use in study.policies] == ["4k", "4k", "16k", "4k", "4k"]
    assert [use.backed_by for use in study.policies] == [
        Backing(),
        Backing(),
        Backing(),
        Backing(pages="hugetlb-1g"),
        Backing(pages="hugetlb-2m", source="file", preallocate=False, nodes=(0,)),
    ]
    build, iperf = study.workload
    assert (build.storage, build.concurrency, build.counted) == ("nfs", ("together", "alone"), "peak_bytes")
    assert (iperf.concurrency, iperf.counted) == (("alone",), None)
    assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study
    assert part(study, policies=["shp1g"]).kernel == study.kernel


def test_defaults_are_a_small_guest_of_this_host() -> None:
    study = read(guests(), "s.toml")
    assert study.guest == GuestUse(arch=None, memory=1 << 30, cpus=1, cpu=None, accelerator="auto", network="none")
    assert read(guests(guest={"counting": True}), "s.toml").guest == GuestUse(counting=True, settle=60.0)


def test_guests_that_count_differ_in_their_seed_alone_and_have_no_pad() -> None:
    study = read(guests(guest={"counting": True}, attempt={"environment_pad": "1k"}), "s.toml")
    assert study.environment_pad == 0
    assert read(guests(attempt={"environment_pad": "1k"}), "s.toml").environment_pad == 1024


def test_a_scale_has_guests_of_its_own() -> None:
    large = at_scale(parse(FULL, "guests.toml"), "published")
    assert large.guest is not None
    assert (large.guest.memory, large.guest.cpus, large.guest.settle) == (12 << 30, 14, 60.0)


def test_kernel_and_backing_do_not_change_the_policy() -> None:
    """They are factors of their own: arms of one registered policy may differ in nothing else."""
    study = parse(FULL, "guests.toml")
    assert not any(use.changed for use in study.policies)
    assert [use.registered for use in study.policies] == ["base", "mthp-64k", "mthp-64k", "base", "thp"]
    plain = read(guests(policies=[{"name": "base", "backing": "base"}, {"name": "x", "from": "base"}]), "s.toml")
    assert plain.policies[0].backed_by.pages == "base"


@pytest.mark.parametrize("name", ["lkml-2009", "redis-bgsave"])
def test_later_keys_that_say_nothing_do_not_count_for_the_digest(name: str) -> None:
    """A run that was begun before there were guests is still the run of its study."""
    study = load(STUDIES / f"{name}.toml")
    stored = json.loads(msgspec.json.encode(study))
    older = copy.deepcopy(stored)
    del older["guest"], older["kernel"], older["unjudged"], older["not_worse"], older["sampling"], older["cells"]
    del older["whole"], older["blocks_open"]
    for use in older["policies"]:
        del use["kernel"], use["backing"], use["layout"], use["mechanism"]
        use["judged"] = use["judged"] or "backing"  # what one that did not say was, before memory could be aged
    for used in older["workload"]:
        del used["client"], used["concurrency"], used["counted"], used["memory_age"]
        assert bool(used["also"]) == (name == "redis-bgsave")  # what is said counts
        if not used["also"]:
            del used["also"]
    for scale in older["scales"].values():
        del scale["guest"]
    before = hashlib.sha256(msgspec.json.encode(older | {"file": ""}, order="sorted")).hexdigest()
    assert stored_digest(json.dumps(older).encode()) == before == study.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"guest": {"memory": "2g"}},
        {"kernel": [{"name": "other", "package": "linux-image-cloud-amd64"}]},
        {
            "policies": [
                "base",
                {"name": "shp", "from": "base", "backing": {"pages": "hugetlb-2m", "preallocate": False}},
            ]
        },
        {"workload": [{"name": "chase", "counted": "page_faults"}]},
        {"sampling": {"period": "2s"}},
        {"policies": ["base", {"name": "thp", "judged": "setting"}]},
        {"policies": ["base", {"name": "mine", "from": "layout-thp", "layout": "thp,heap=2m"}]},
    ],
)
def test_what_is_said_counts_for_the_digest(changes: dict[str, Any]) -> None:
    assert read(guests(**changes), "s.toml").digest != read(guests(), "s.toml").digest


def guest(**more: Any) -> dict[str, Any]:
    return {"guest": more}


def large(**more: Any) -> dict[str, Any]:
    return {"scales": {"large": guest(**more)}}


def arm(**more: Any) -> dict[str, Any]:
    return {"policies": ["base", {"name": "arm", "from": "base", **more}]}


def kernel(**more: Any) -> dict[str, Any]:
    return {"kernel": [{"name": "k", **more}]}


def work(**more: Any) -> dict[str, Any]:
    return {"workload": [{"name": "chase", **more}]}


@pytest.mark.parametrize(
    ("changes", "key", "message", "hint"),
    [
        (guest(arch="arm"), "guest.arch", "choices", "did you mean arm64?"),
        (guest(arch="riscv64"), "guest.arch", "choices", "choices: arm64, x86-64"),
        (guest(memory="1m"), "guest.memory", "out of range", "from 67108864"),
        (guest(memory="65537k"), "guest.memory", "whole MiB", '"65m"'),
        (guest(memory=(1 << 30) + (1 << 20)), "guest.memory", "not a multiple of 2m, the pages that back shp", '"1g"'),
        (guest(memory="512m") | arm(backing="hugetlb-1g"), "guest.memory", "of 1g", 'memory = "1g"'),
        (guest(memory="1536m") | arm(backing="hugetlb-1g"), "guest.memory", "of 1g", '"1g" or "2g"'),
        (guest(cpus=0), "guest.cpus", "out of range", "from 1"),
        (guest(cpu="max -x"), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(cpu="help"), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(cpu="help,x=on"), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(cpu="?"), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(cpu="-erms"), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(cpu=""), "guest.cpu", "CPU model", "max,-erms,-fsrm"),
        (guest(accelerator="hvf"), "guest.accelerator", "choices", "kvm"),
        (guest(counting=True, cpus=2), "guest.cpus", "one virtual CPU", "cpus = 1"),
        (guest(counting=True, accelerator="kvm"), "guest.accelerator", "exactly", '"tcg"'),
        (guest(counting=True, network="user"), "guest.network", "from outside", '"none"'),
        (guest(counting=True, packages=["gcc"]), "guest.packages", "no disk", "counting = false"),
        (guest(counting=True, image="/d.qcow2"), "guest.image", "no disk", "counting = false"),
        (guest(counting=True, disk=[{"path": "/d.img"}]), "guest.disk", "no disk", "counting = false"),
        (
            guest(counting=True, memory="512m", node=[{"memory": "256m", "cpus": 0}, {"memory": "256m"}]),
            "guest.node",
            "has one node",
            "remove them",
        ),
        (
            guest(cpus=2, node=[{"memory": "524289k", "cpus": 0}, {"memory": "524287k", "cpus": 1}]),
            "guest.node[1].memory",
            "whole MiB",
            "",
        ),
        (large(counting=True, sources=["lua5.4"]), "scales.large.guest.sources", "no disk", "remove it"),
        (
            work(name="command", parameters={"argv": ["cat"], "stdin": "/numbers"}),
            "workload[1].parameters.stdin",
            "does not have the files of the host",
            "its name as an argument",
        ),
        (work(name="iperf3", parameters={"peer": "host"}), "workload[1].parameters.peer", "no network", '"user"'),
        (work(parameters={"peer": ["machine", "host"]}), "workload[1].parameters.peer", "no network", "in the guest"),
        (
            work(parameters={"peer": "host"}, scales={"large": {"bytes": "1g"}})
            | guest(network="user")
            | large(cpus=2),
            "workload[1].parameters.peer",
            "no network",
            '"user"',
        ),
        (work(scales={"l": {"peer": "host"}}), "workload[1].scales.l.peer", "no network", '"user"'),
        (arm(parameters={"peer": "host"}), "policies[2].parameters.peer", "no network", 'network = "user"'),
        (guest(nfs=True), "guest.nfs", "needs a network", '"user"'),
        (guest(network="bridge"), "guest.network", "choices", "none, tap, user"),
        (guest(packages=["gcc; rm"]), "guest.packages[1]", "package's name", "lower case"),
        (guest(sources=["../x"]), "guest.sources[1]", "package's name", "lower case"),
        (guest(suite="Trixie/main"), "guest.suite", "suite", "trixie"),
        (guest(settel="1s"), "guest.settel", "unknown key", "did you mean settle?"),
        ({"kernel": []}, "kernel", "at least 1", "add to the list"),
        (kernel(), "kernel[1]", "is named in no way", 'package = "..."'),
        (kernel(package="linux-image-amd64", path="/k"), "kernel[1]", "2 ways: package, path", "keep one"),
        (kernel(path="vmlinuz"), "kernel[1].path", "absolute path", "bzImage"),
        (kernel(package="linux-image-amd64", modules="/m"), "kernel[1].modules", "brings its own", "remove it"),
        (kernel(path="/k", suite="trixie"), "kernel[1].suite", "the kernel is a file", "remove it"),
        (kernel(package="-o=x"), "kernel[1].package", "package's name", "apt"),
        (kernel(path="/k", append=["a b"]), "kernel[1].append[1]", "a word", "without spaces"),
        (kernel(path="/k", append=["rdinit=/bin/sh"]), "kernel[1].append[1]", "set by hugewise", "remove it"),
        (kernel(path="/k", append=["hugewise.root=x"]), "kernel[1].append[1]", "set by hugewise", "remove it"),
        (
            guest(arch="arm64") | kernel(package="linux-image-amd64"),
            "kernel[1].package",
            "not of an arm64 kernel",
            "architecture",
        ),
        ({"kernel": [{"name": "k", "path": "/a"}, {"name": "k", "path": "/b"}]}, "kernel[2].name", "two", "rename"),
        (arm(kernel="debain"), "policies[2].kernel", "not one of", "did you mean debian?"),
        (arm(kernel="16k"), "policies[2].kernel", "not one of", "its kernels: debian"),
        (arm(backing="hugetlb-64k"), "policies[2].backing", "choices", "did you mean hugetlb-"),
        (arm(backing=2), "policies[2].backing", "kind of pages", '"hugetlb-1g"'),
        (arm(backing={"source": "file"}), "policies[2].backing.pages", "is missing", "add: pages"),
        (arm(backing={"pages": "thp", "source": "file"}), "policies[2].backing.source", "pages of a pool", "remove it"),
        (arm(backing={"pages": "thp", "nodes": [0, 0]}), "policies[2].backing.nodes[2]", "stands twice", "remove"),
        (arm(pages="thp"), "policies[2].pages", "unknown key", "belongs below [backing]"),
        (work(concurrency="both"), "workload[1].concurrency", "choices", "alone, together"),
        (work(concurrency=["alone", "alone"]), "workload[1].concurrency[2]", "twice", "remove one"),
        (work(concurrency="together"), "workload[1].concurrency", "2 guests at once need 2 slots", "slots = [0, 1]"),
        (
            work(concurrency="together") | {"guest": {"cpus": 2}, "design": {"slots": ["0-3", 4]}},
            "workload[1].concurrency",
            "each guest has 2 virtual CPUs, and a slot of the design 1",
            'slots = ["0-1", "2-3"]',
        ),
        (
            work(concurrency="together")
            | {"design": {"slots": [0, 1]}, "scales": {"large": {"design": {"slots": [0]}}}},
            "workload[1].concurrency",
            "at the scale large, 2 guests at once need 2 slots, and the design has 1",
            "slots = [0, 1]",
        ),
        (work(storage="nfs"), "workload[1].storage", "serves none", "nfs = true"),
        (work(storage="nsf"), "workload[1].storage", "absolute path", "folder"),
        (work(cpus=[1]), "workload[1].cpus", "CPU 0 alone", "cpus of [guest]"),
        (
            work(scales={"large": {"workload": {"cpus": [2]}}}) | guest(cpus=2),
            "workload[1].scales.large.workload.cpus",
            "CPUs 0 to 1",
            "cpus of [guest]",
        ),
        ({"design": {"kind": "interleaved"}}, "design.kind", "not of guests", 'concurrency = "together"'),
        (large(counting=True, cpus=4), "scales.large.guest.cpus", "one virtual CPU", "cpus = 1"),
    ],
)
def test_a_mistake_names_key_and_cure(changes: dict[str, Any], key: str, message: str, hint: str) -> None:
    with pytest.raises(StudyError, match="^s.toml: ") as caught:
        read(guests(**changes), "s.toml")
    assert caught.value.key == key
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_guests_need_a_kernel() -> None:
    data = guests(guest={"arch": "arm64"})
    del data["kernel"]
    with pytest.raises(StudyError, match="guests need one") as caught:
        read(data, "s.toml")
    assert 'package = "linux-image-arm64"' in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kernel": [{"name": "k", "path": "/k"}]}, "kernel"),
        (arm(kernel="k"), "policies[2].kernel"),
        (arm(backing="thp"), "policies[2].backing"),
        (work(concurrency="together"), "workload[1].concurrency"),
        (work(counted="page_faults"), "workload[1].counted"),
        (work(storage="nfs"), "workload[1].storage"),
        (work(scales={"big": {"workload": {"storage": "nfs"}}}), "workload[1].scales.big.workload.storage"),
        ({"scales": {"big": guest()}}, "scales.big.guest"),
    ],
)
def test_without_guests_their_keys_are_mistakes(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(StudyError, match="and the study has none") as caught:
        study_of(**changes)
    assert caught.value.key == key
    assert caught.value.hint


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a study's tables, the root not."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


ODD: tuple[Any, ...] = (
    "",
    "nfs",
    "a\0b",
    "x" * 500,
    -1,
    0,
    1 << 70,
    float("nan"),
    True,
    [],
    [[]],
    [{}],
    {},
    {"name": 1},
    {"pages": []},
)


@pytest.mark.parametrize("text", [FULL, OF_HOST], ids=["guests", "host"])
def test_whatever_stands_where_is_a_study_or_a_mistake_with_a_cure(text: str) -> None:
    data = tomllib.loads(text)
    found = 0
    for path in places(data):
        for odd in ODD:
            changed = copy.deepcopy(data)
            table: Any = changed
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = odd
            try:
                study = read(changed, "s.toml")
                assert msgspec.json.decode(msgspec.json.encode(study), type=Study) == study
            except StudyError as error:
                found += 1
                assert error.message.startswith("s.toml: ")
                assert error.hint
                assert len(error.message) < 500
    assert found > 400


def test_the_example_of_the_documentation_is_a_study() -> None:
    page = (STUDIES.parent / "docs/concepts/guests.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    study = parse(f'format = 1\nname = "example"\n{example}\n[[workload]]\nname = "fault"\n', "guests.md")
    assert [(use.name, study.kernel_of(use).name, use.backed_by.pages) for use in study.policies] == [
        ("base", "4k", "thp"),
        ("64k-mthp", "4k", "thp"),
        ("16k", "16k", "thp"),
        ("shp1g", "4k", "hugetlb-1g"),
    ]
