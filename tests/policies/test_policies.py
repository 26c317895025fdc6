import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from hugewise.errors import SettingError
from hugewise.host.journal import Journal
from hugewise.host.knob import Settings, read_knobs
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.machine import probe
from hugewise.model.pages import HUGETLB, THP, PageSizes, page_flags_readable
from hugewise.model.policy import DeployedFile, Mechanism, Policy
from hugewise.policies import discover
from tests import golden
from tests.build import known
from tests.build.hosts import FakeHost, Notes
from tests.requirements import need, need_root

ENABLED = f"{THP}/enabled"
SYSTEM, PROCESS = get_args(Mechanism)
SHMEM = f"{THP}/shmem_enabled"


def sized(kilobytes: int, name: str = "enabled") -> str:
    return f"{THP}/hugepages-{kilobytes}kB/{name}"


def machine(**options: object) -> tuple[FakeHost, PageSizes, dict[str, Policy]]:
    host = FakeHost(**options)  # type: ignore[arg-type]
    sizes = PageSizes.discover(host)
    return host, sizes, discover(sizes)


def test_policies_follow_the_sizes_that_the_machine_has() -> None:
    assert set(machine()[2]) == {
        *("as-is", "base", "thp", "thp-advised", "thp-shmem", "madvise"),
        *("mthp-16k", "mthp-64k", "mthp-16k-shmem", "mthp-64k-shmem", "hugetlb-2m", "hugetlb-1g"),
        *("reserved-2m", "reserved-1g", "surplus-2m", "surplus-1g"),
        *("layout-base", "layout-thp", "layout-hugetlb-2m", "layout-hugetlb-1g"),
    }
    other = machine(mthp=(32, 512), capacity={64 << 10: 9, 16 << 30: 1})[2]
    assert {"mthp-32k", "mthp-512k", "hugetlb-64k", "hugetlb-16g"} < set(other)
    assert set(machine(thp=False, capacity={})[2]) == {"as-is", "base"}


def test_each_system_treatment_sets_every_size_of_anonymous_and_shared_memory() -> None:
    host, sizes, policies = machine()
    for name, policy in policies.items():
        assert policy.name == name
        if name == "surplus-1g":
            reason = "the kernel makes no page of 1g when it is asked for: those are reserved"
            assert policy.missing(host, sizes, SYSTEM) == reason
            continue
        assert policy.missing(host, sizes, SYSTEM) is None
        treatment = policy.treatment(host, sizes, SYSTEM)
        assert (treatment.policy, treatment.mechanism, treatment.thp_disable) == (name, SYSTEM, "none")
        if name == "as-is" or name.startswith("reserved-"):
            assert treatment.knobs == {}, "the machine as it is"
        else:
            allowed = {f"{HUGETLB}/hugepages-2048kB/nr_overcommit_hugepages"} if name == "surplus-2m" else set()
            assert set(treatment.knobs) - allowed == {path for path in host.choices if path.endswith("enabled")}
        if not name.endswith("-shmem"):
            assert all(v == "never" for k, v in treatment.knobs.items() if "shmem" in k)


def described(policy: Policy, host: FakeHost, sizes: PageSizes, mechanism: Mechanism) -> str:
    """What a policy asks for, and how it is deployed with a pool of 3 GiB less a byte, or why it cannot be had."""
    head = f"{policy.name} by the mechanism {mechanism}: {policy.description}"
    if reason := policy.missing(host, sizes, mechanism):
        return f"{head}\nmissing: {reason}\n"
    treatment = policy.treatment(host, sizes, mechanism)
    on = [f"{path} = {value}" for path, value in treatment.knobs.items() if value != "never"]
    told = f"advice {treatment.advice}, THP disabled {treatment.thp_disable}, map_hugetlb {treatment.map_hugetlb}"
    environment = [f"{name}={value}" for name, value in treatment.environment.items()]
    environment += [f"layout {treatment.layout}"] if treatment.layout else []
    found = policy.deployment(sizes, treatment, 3 * 2**30 - 1)
    deployed = [line for file in found.files for line in written(file)]
    return (
        "\n".join([head, f"promises {treatment.target}; {told}", *on, *environment, *deployed, f"note: {found.note}"])
        + "\n"
    )


def written(file: DeployedFile) -> list[str]:
    """A file, with what its reader is told of it."""
    head = f"{'or ' if file.instead else ''}{file.path} ({file.scope}; {file.label})"
    told = [f"needs: {each}" for each in file.needs]
    told += (
        [f"apply: {each}" for each in file.apply] + [f"undo: {each}" for each in file.undo] + [f"check: {file.check}"]
    )
    return [head, *(f"  | {line}" for line in file.content.splitlines()), *(f"  {line}" for line in told)]


def test_what_policies_ask_for_and_how_they_are_deployed() -> None:
    _, sizes, policies = machine()
    hosts = {SYSTEM: machine()[0], PROCESS: machine(root=False)[0]}
    golden.same(
        "\n".join(described(policy, host, sizes, by) for by, host in hosts.items() for policy in policies.values()),
        golden.GOLDEN / "policies.txt",
    )


def test_a_pool_that_a_server_takes_itself_changes_nothing_else() -> None:
    host, sizes, policies = machine()
    for mechanism in (SYSTEM, PROCESS):
        treatment = policies["reserved-2m"].treatment(host, sizes, mechanism)
        assert (treatment.thp_disable, treatment.map_hugetlb, dict(treatment.environment)) == ("none", None, {})
        assert str(treatment.target) == "2m hugetlb pages"
    kinds = [file.kind for file in policies["reserved-2m"].deployment(sizes, treatment, 5 << 20).files]
    assert "sysctl" in kinds, "2m is what vm.nr_hugepages counts"
    kinds = [file.kind for file in policies["reserved-1g"].deployment(sizes, treatment, 5 << 20).files]
    assert "sysctl" not in kinds and "tmpfiles" in kinds


def test_pages_that_are_made_when_they_are_mapped_are_limited_by_the_memory_and_need_root() -> None:
    host, sizes, policies = machine()
    treatment = policies["surplus-2m"].treatment(host, sizes, SYSTEM)
    assert treatment.knobs[f"{HUGETLB}/hugepages-2048kB/nr_overcommit_hugepages"] == str((64 << 30) // (2 << 20))
    assert (treatment.surplus, treatment.map_hugetlb, treatment.target.kind) == (True, 2 << 20, "hugetlb")
    assert treatment.environment == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"}
    needs = policies["surplus-2m"].missing(machine(root=False)[0], sizes, PROCESS)
    assert needs is not None and needs.endswith("needs root")


@pytest.mark.parametrize("name", ["hugetlb-2m", "surplus-2m"])
def test_what_a_study_has_set_beside_a_pool_is_deployed_with_it(name: str) -> None:
    host, sizes, policies = machine()
    treatment = policies[name].treatment(host, sizes, SYSTEM)
    more = f"{THP}/khugepaged/defrag"
    told = msgspec.structs.replace(treatment, knobs={**treatment.knobs, more: "0"})
    for file in policies[name].deployment(sizes, told, 5 << 20).files:
        assert more in file.content and f"{THP}/enabled" not in file.content, file.kind
    assert all(more not in file.content for file in policies[name].deployment(sizes, treatment, 5 << 20).files)


def test_what_a_policy_turns_is_put_back() -> None:
    host, sizes, policies = machine()
    for policy in policies.values():
        settings = Settings(host, Notes())
        assert settings.apply(policy.treatment(host, sizes, SYSTEM).knobs) == []
        assert settings.restore() == []


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
        knob = ENABLED if pmd == "inherit" else sized(2048)  # what `enabled` says does not count then
        assert f"set to never: root can set {knob} to" in (thp.missing(host, sizes, PROCESS) or "")
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
    host, sizes, policies = machine(root=False)
    hugetlb = policies["hugetlb-2m"]
    assert hugetlb.missing(machine()[0], sizes, PROCESS) is None, "root fills the pool"
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
    assert policies["thp"].deployment(sizes, treatment, 0).commands() == (f"echo always > {ENABLED}",)
    assert policies["thp"].treatment(host, sizes, PROCESS).advice == "huge"
    shared = policies["thp-shmem"]
    treatment = shared.treatment(host, sizes, SYSTEM)
    assert dict(treatment.knobs) == {ENABLED: "always", SHMEM: "always"}
    assert shared.deployment(sizes, treatment, 0).commands() == (f"echo always > {ENABLED}", f"echo always > {SHMEM}")
    del host.choices[SHMEM]
    assert shared.missing(host, sizes, SYSTEM) == "the kernel has no transparent huge pages of 2m for shared memory"


def test_shared_memory_of_an_ordinary_user_goes_by_the_machines_setting() -> None:
    host, sizes, policies = machine()
    thp, mthp = policies["thp-shmem"], policies["mthp-64k-shmem"]
    assert f"set to never: root can set {SHMEM} to always" in (thp.missing(host, sizes, PROCESS) or "")
    host.turn(SHMEM, "advise")
    assert "of shared memory are set to advise" in (thp.missing(host, sizes, PROCESS) or "")
    host.turn(SHMEM, "always")
    assert thp.missing(host, sizes, PROCESS) is None
    assert dict(thp.treatment(host, sizes, PROCESS).knobs) == {}
    assert thp.treatment(host, sizes, PROCESS).policy == "thp-shmem"
    host.turn(sized(64), "always")
    host.turn(sized(64, "shmem_enabled"), "always")
    assert "pages of 64k are on for shared memory as well" in (thp.missing(host, sizes, PROCESS) or "")
    host.turn(sized(2048), "never")
    assert "pages of 2m are on for shared memory as well" in (mthp.missing(host, sizes, PROCESS) or "")
    host.turn(sized(2048, "shmem_enabled"), "never")
    assert mthp.missing(host, sizes, PROCESS) is None
    assert "set to never" in (thp.missing(host, sizes, PROCESS) or "")


def test_a_size_without_a_knob_for_shared_memory_has_no_policy_of_it() -> None:
    host, _, _ = machine()
    del host.choices[sized(16, "shmem_enabled")]
    assert {name for name in discover(PageSizes.discover(host)) if "shmem" in name} == {"thp-shmem", "mthp-64k-shmem"}


@pytest.mark.whole
def test_real_kernel_takes_every_system_policy(tmp_path: Path) -> None:
    need_root()
    host = LocalHost()
    sizes = PageSizes.discover(host)
    need(sizes.pmd is not None, "a kernel with transparent huge pages")
    with HostLock(host):
        before = read_knobs(host)
        settings = Settings(host, Journal.begin(host, tmp_path / "journal.jsonl", "test"))
        try:
            for policy in discover(sizes).values():
                if (why := policy.missing(host, sizes, SYSTEM)) is not None:
                    assert policy.name.startswith("surplus-"), why  # pages that are larger than any free block
                    continue
                treatment = policy.treatment(host, sizes, SYSTEM)
                assert settings.apply(treatment.knobs) == [], policy.name
                assert settings.drift() == []
                with pytest.raises(SettingError, match="Invalid argument"):
                    settings.apply({ENABLED: "sometimes"})
        except SettingError as error:
            pytest.fail(f"{error.message}; {error.hint}")
        finally:
            left = settings.restore()
        assert left == []
        assert read_knobs(host) == before


# A child that holds 32 MiB of touched shared memory: anonymous, of System V, or a file in the tmpfs that is named.
_HOLDER = """
import ctypes, mmap, os, sys, tempfile
size = 32 << 20
libc = ctypes.CDLL(None)
libc.shmat.restype = libc.mmap.restype = ctypes.c_void_p
if sys.argv[1] == "anonymous":
    held = mmap.mmap(-1, size)
elif sys.argv[1] == "system-v":
    segment = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    ctypes.memset(libc.shmat(segment, None, 0), 1, size)
    libc.shmctl(segment, 0, None)
else:
    file, huge = tempfile.TemporaryFile(dir="/dev/shm"), 2 << 20
    file.truncate(size)
    def mapped(at, bytes, *how):
        return libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(bytes), *how, ctypes.c_long(0))
    room = mapped(0, size + 2 * huge, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    at = (room // huge + 1) * huge + (0 if sys.argv[1] == "aligned" else 4096)
    fixed = 0x10
    assert mapped(at, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | fixed, file.fileno()) == at
    ctypes.memset(at, 1, size)
if "held" in globals():
    for offset in range(0, size, 4096):
        held[offset] = 1
print("ready", flush=True)
sys.stdin.readline()
"""


def shared_pages(kind: str) -> dict[str, int]:
    """What backs the shared memory of a child of that kind, in bytes by page size."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert known(child.stdout).readline() == "ready\n"
        found = probe.ask("scan", "--pid", str(child.pid))
        child.communicate("\n")
    assert isinstance(found, probe.Coverage)
    return {kind: size for kind, size in found.bytes.items() if kind.startswith("shmem:")}


@pytest.mark.whole
@pytest.mark.parametrize(("name", "page"), [("thp-shmem", 2 << 20), ("mthp-64k-shmem", 64 << 10), ("thp", 4 << 10)])
def test_real_shared_memory_gets_the_pages_of_the_policies_that_are_about_it(
    name: str, page: int, tmp_path: Path
) -> None:
    need_root()
    need(page_flags_readable(), "physical page flags (CAP_SYS_ADMIN)")
    host = LocalHost()
    sizes = PageSizes.discover(host)
    need(name in (policies := discover(sizes)), f"a kernel with {name}")
    need(sizes.base == 4096 and sizes.pmd == 2 << 20, "4k base pages and huge pages of 2m")
    mounted = [line for line in host.read("/proc/mounts").splitlines() if line.split()[1:3] == ["/dev/shm", "tmpfs"]]
    need(bool(mounted) and not any("huge=" in line for line in mounted), "/dev/shm as a tmpfs without huge=")
    with HostLock(host):
        before = read_knobs(host)
        settings = Settings(host, Journal.begin(host, tmp_path / "journal.jsonl", "test"))
        try:
            assert settings.apply(policies[name].treatment(host, sizes, SYSTEM).knobs) == []
            found = {kind: shared_pages(kind) for kind in ("anonymous", "system-v", "aligned", "unaligned")}
        finally:
            settings.restore()
        assert read_knobs(host) == before
    assert found["anonymous"] == {f"shmem:{page}": 32 << 20}
    # A segment of System V follows the top-level knob alone. A mounted tmpfs follows neither, but for mTHP where the
    # address is aligned, in some kernels (6.18).
    assert found["system-v"] == {f"shmem:{page if name == 'thp-shmem' else 4096}": 32 << 20}
    assert found["unaligned"] == {"shmem:4096": 32 << 20}
    assert found["aligned"] in ({"shmem:4096": 32 << 20}, {f"shmem:{min(page, 64 << 10)}": 32 << 20})


def test_what_a_study_adds_to_a_policy_is_deployed_with_it() -> None:
    """An arm is deployed as it was measured; the kernel's command line has no word for all of it."""
    _, sizes, policies = machine()
    host = FakeHost()
    defrag = {f"{THP}/defrag": "defer"}
    for name, kinds in (
        ("thp", ["script", "tmpfiles", "tuned"]),
        ("as-is", ["script", "tmpfiles", "tuned"]),
        ("hugetlb-2m", ["script", "tmpfiles", "tuned"]),
    ):
        treatment = policies[name].treatment(host, sizes, SYSTEM)
        changed = msgspec.structs.replace(treatment, knobs={**treatment.knobs, **defrag})
        found = policies[name].deployment(sizes, changed, 4 << 20).files
        assert [file.kind for file in found] == kinds
        assert all("defer" in file.content for file in found)
    assert not any(
        "shmem" in file.content
        for file in policies["thp"].deployment(sizes, policies["thp"].treatment(host, sizes, SYSTEM), 0).files
    )
