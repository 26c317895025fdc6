from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from hugewise.errors import SettingError
from hugewise.host import LocalHost
from hugewise.journal import Journal
from hugewise.knob import knobs
from hugewise.lock import HostLock
from hugewise.pages import HUGETLB, THP, PageSizes
from hugewise.policy import Mechanism, Policy, discover
from hugewise.setting import Settings
from tests.fake_host import FakeHost
from tests.requirements import need, need_root
from tests.test_setting import Notes

ENABLED = f"{THP}/enabled"
SYSTEM, PROCESS = get_args(Mechanism)


def sized(kilobytes: int) -> str:
    return f"{THP}/hugepages-{kilobytes}kB/enabled"


def machine(**options: object) -> tuple[FakeHost, PageSizes, dict[str, Policy]]:
    host = FakeHost(**options)  # type: ignore[arg-type]
    sizes = PageSizes.discover(host)
    return host, sizes, discover(sizes)


def test_policies_follow_the_sizes_that_the_machine_has() -> None:
    assert set(machine()[2]) == {
        *("as-is", "base", "thp", "thp-advised", "madvise"),
        *("mthp-16k", "mthp-64k", "hugetlb-2m", "hugetlb-1g"),
    }
    other = machine(mthp=(32, 512), capacity={64 << 10: 9, 16 << 30: 1})[2]
    assert {"mthp-32k", "mthp-512k", "hugetlb-64k", "hugetlb-16g"} < set(other)
    assert set(machine(thp=False, capacity={})[2]) == {"as-is", "base"}


def test_each_system_treatment_sets_every_size_of_anonymous_and_shared_memory() -> None:
    host, sizes, policies = machine()
    for name, policy in policies.items():
        assert policy.name == name
        assert policy.missing(host, sizes, SYSTEM) is None
        treatment = policy.treatment(host, sizes, SYSTEM)
        assert (treatment.policy, treatment.mechanism, treatment.thp_disable) == (name, SYSTEM, "none")
        if name != "as-is":
            assert set(treatment.knobs) == {path for path in host.choices if path.endswith("enabled")}
            assert all(v == "never" for k, v in treatment.knobs.items() if "shmem" in k)


@pytest.mark.parametrize(
    ("name", "on", "target"),
    [
        ("base", {}, "4k base pages"),
        ("thp", {ENABLED: "always", sized(2048): "inherit"}, "2m thp pages"),
        ("thp-advised", {ENABLED: "madvise", sized(2048): "inherit"}, "2m thp pages"),
        ("madvise", {ENABLED: "madvise", sized(2048): "inherit"}, "any page size"),
        ("mthp-16k", {sized(16): "always"}, "16k mthp pages"),
        ("mthp-64k", {sized(64): "always"}, "64k mthp pages"),
        ("hugetlb-2m", {}, "2m hugetlb pages"),
        ("hugetlb-1g", {}, "1g hugetlb pages"),
    ],
)
def test_what_a_system_policy_turns_on(name: str, on: dict[str, str], target: str) -> None:
    host, sizes, policies = machine()
    treatment = policies[name].treatment(host, sizes, SYSTEM)
    assert {path: value for path, value in treatment.knobs.items() if value != "never"} == on
    assert str(treatment.target) == target
    settings = Settings(host, Notes())
    assert settings.apply(treatment.knobs) == []
    assert settings.restore() == []


def test_advice_and_tunables_of_the_system_mechanism() -> None:
    host, sizes, policies = machine()
    of = {name: policy.treatment(host, sizes, SYSTEM) for name, policy in policies.items()}
    assert {name for name, treatment in of.items() if treatment.advice == "huge"} == {"thp-advised"}
    assert dict(of["thp-advised"].environment) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert dict(of["thp"].environment) == {}
    assert (of["hugetlb-2m"].map_hugetlb, of["hugetlb-1g"].map_hugetlb) == (2 << 20, 1 << 30)
    assert of["hugetlb-2m"].environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=2"  # the default size
    assert of["hugetlb-1g"].environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1073741824"


def test_the_process_mechanism_turns_nothing() -> None:
    host, sizes, policies = machine(root=False)
    for policy in policies.values():
        if policy.missing(host, sizes, PROCESS) is None:
            assert dict(policy.treatment(host, sizes, PROCESS).knobs) == {}
    assert policies["base"].treatment(host, sizes, PROCESS).thp_disable == "all"
    for name in ("base", "thp", "mthp-64k", "madvise"):
        assert policies[name].missing(host, sizes, SYSTEM) == "turning system-wide page settings needs root"
    assert policies["hugetlb-2m"].missing(host, sizes, SYSTEM) == "filling a pool needs root"


@pytest.mark.parametrize(
    ("top", "pmd", "advice", "tunable"),
    [
        ("always", "inherit", "none", False),
        ("madvise", "inherit", "huge", True),
        ("never", "always", "none", False),
        ("always", "madvise", "huge", False),  # glibc looks at the top level only, and would not advise
        ("never", "inherit", None, False),
        ("always", "never", None, False),
    ],
)
def test_thp_of_an_ordinary_user_goes_by_the_machines_setting(
    top: str, pmd: str, advice: str | None, tunable: bool
) -> None:
    host, sizes, policies = machine()
    host.turn(ENABLED, top)
    host.turn(sized(2048), pmd)
    thp = policies["thp"]
    if advice is None:
        assert "set to never: root can set" in (thp.missing(host, sizes, PROCESS) or "")
        return
    assert thp.missing(host, sizes, PROCESS) is None
    treatment = thp.treatment(host, sizes, PROCESS)
    assert treatment.advice == advice
    assert bool(treatment.environment) == tunable
    assert (policies["thp-advised"].missing(host, sizes, PROCESS) is None) == (advice == "huge")
    assert (policies["madvise"].missing(host, sizes, PROCESS) is None) == (advice == "huge")


def test_mthp_of_an_ordinary_user_needs_a_machine_that_gives_this_size_and_no_other() -> None:
    host, sizes, policies = machine()
    mthp = policies["mthp-64k"]
    assert "hugepages-64kB/enabled is set to never" in (mthp.missing(host, sizes, PROCESS) or "")
    host.turn(sized(64), "always")
    assert mthp.missing(host, sizes, PROCESS) is None  # the PMD size is only for who asks
    assert mthp.treatment(host, sizes, PROCESS).advice == "none"
    host.turn(sized(64), "madvise")
    assert "pages of 2m are on as well" in (mthp.missing(host, sizes, PROCESS) or "")
    host.turn(sized(2048), "never")
    assert mthp.missing(host, sizes, PROCESS) is None
    assert mthp.treatment(host, sizes, PROCESS).advice == "huge"
    host.turn(sized(16), "always")
    assert "pages of 16k are on as well" in (mthp.missing(host, sizes, PROCESS) or "")


def test_hugetlb_of_an_ordinary_user_needs_free_pages() -> None:
    host, sizes, policies = machine()
    hugetlb = policies["hugetlb-2m"]
    assert "has no free page: root can write a number to" in (hugetlb.missing(host, sizes, PROCESS) or "")
    host.turn(f"{HUGETLB}/hugepages-2048kB/nr_hugepages", "3")
    assert hugetlb.missing(host, sizes, PROCESS) is None
    assert hugetlb.treatment(host, sizes, PROCESS).thp_disable == "all"
    host.use(2048, 3)
    assert hugetlb.missing(host, sizes, PROCESS) is not None


def test_policies_of_another_machine_say_what_this_one_lacks() -> None:
    _, sizes, policies = machine()
    bare = FakeHost(thp=False, capacity={})
    lacking = PageSizes.discover(bare)
    for name, policy in policies.items():
        reason = policy.missing(bare, lacking, SYSTEM)
        assert (reason is None) == (name in ("as-is", "base"))
        if reason is not None:
            assert reason.startswith("the kernel has no ")
    base = policies["base"].treatment(bare, sizes, PROCESS)
    assert (base.thp_disable, dict(base.knobs)) == ("none", {})


def test_a_kernel_without_sizes_has_the_top_level_alone() -> None:
    host, _, _ = machine()
    for path in [each for each in (*host.choices, *host.fixed) if "/hugepages-" in each]:
        host.choices.pop(path, None)
        host.fixed.pop(path, None)
    sizes = PageSizes.discover(host)
    policies = discover(sizes)
    assert not any(name.startswith("mthp") for name in policies)
    treatment = policies["thp"].treatment(host, sizes, SYSTEM)
    assert dict(treatment.knobs) == {ENABLED: "always", f"{THP}/shmem_enabled": "never"}
    assert policies["thp"].deployment(sizes, treatment, 0).now == (f"echo always > {ENABLED}",)
    assert policies["thp"].treatment(host, sizes, PROCESS).advice == "huge"


def test_deployment_is_commands_and_lines_that_the_kernel_knows() -> None:
    host, sizes, policies = machine()

    def deployed(name: str, mechanism: Mechanism, pool: int = 0) -> tuple[str, str]:
        policy = policies[name]
        found = policy.deployment(sizes, policy.treatment(host, sizes, mechanism), pool)
        assert found.note
        return "\n".join(found.now), "\n".join(found.boot)

    now, boot = deployed("mthp-64k", SYSTEM)
    assert now.splitlines() == [
        f"for size in {THP}/hugepages-*kB/enabled; do echo never > $size; done",
        f"echo never > {ENABLED}",
        f"echo always > {sized(64)}",
    ]
    assert f"w {sized(64)} - - - - always" in boot
    assert "thp_anon=64K:always" in boot
    now, boot = deployed("thp", SYSTEM)
    assert now.splitlines()[1:] == [f"echo always > {ENABLED}", f"echo inherit > {sized(2048)}"]
    assert "transparent_hugepage=always" in boot
    assert "transparent_hugepage=never" in deployed("base", SYSTEM)[1]
    assert "prctl(41, 1, 0, 0, 0)" in deployed("base", PROCESS)[0]
    assert "MemoryTHP=disable" in deployed("base", PROCESS)[1]
    now, boot = deployed("hugetlb-1g", SYSTEM, 3 * 2**30 - 1)
    assert f"echo 3 > {HUGETLB}/hugepages-1048576kB/nr_hugepages" in now
    assert "hugepagesz=1G hugepages=3" in boot
    assert "vm.nr_hugepages = 5" in deployed("hugetlb-2m", SYSTEM, 10 << 20)[1]
    assert "env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 COMMAND..." in deployed("thp-advised", SYSTEM)[0]
    assert deployed("as-is", SYSTEM) == ("", "")


def test_real_kernel_takes_every_system_policy(tmp_path: Path) -> None:
    need_root()
    host = LocalHost()
    sizes = PageSizes.discover(host)
    need(sizes.pmd is not None, "a kernel with transparent huge pages")
    with HostLock(host):
        before = knobs(host)
        settings = Settings(host, Journal.begin(host, tmp_path / "journal.jsonl", "test"))
        try:
            for policy in discover(sizes).values():
                treatment = policy.treatment(host, sizes, SYSTEM)
                assert settings.apply(treatment.knobs) == [], policy.name
                assert settings.drift() == []
        except SettingError as error:
            pytest.fail(f"{error.message}; {error.hint}")
        finally:
            left = settings.restore()
        assert left == []
        assert knobs(host) == before
