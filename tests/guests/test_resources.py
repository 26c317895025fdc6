"""What a study's guests need, in the order in which it is had; everything that fetches, builds or boots is faked."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hugewise.errors import RunError, UserError
from hugewise.guests import counted, hypervisor, image, kernels, resources
from hugewise.guests.counted import Survey
from hugewise.guests.hypervisor import Choice, NoKvm
from hugewise.guests.resources import GuestResources
from hugewise.machine import programs
from hugewise.model import guest as guests_json
from hugewise.model.guest import GuestsRecord, Image, Initramfs, Kernel, Option
from hugewise.model.workload import Missing
from hugewise.report.sections.guests import kernels_table
from hugewise.session import calibrate, feasibility, session
from hugewise.study import load
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build import known
from tests.build.booted import lpc
from tests.build.guests import kernel
from tests.build.hosts import FakeHost
from tests.build.studies import study_of

SURVEY = Survey(release="6.12.1", page_size=4096, files={})
MODULES = ("/m/000-virtio_blk.ko", "/m/001-nfs.ko")


def study(**guest: Any) -> Study:
    arms = ["base", {"name": "again", "from": "base"}, {"name": "other", "from": "base", "kernel": "two"}]
    kernels = [{"name": "one", "package": "linux-image-amd64"}, {"name": "two", "build": "pv-none"}]
    used = [{"name": "fault"}]
    return study_of(policies=arms, guest={"arch": "x86-64", **guest}, kernel=kernels, workload=used)


class Provider:
    """Does what `provided` asks, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.here: dict[str, Kernel] = {}
        self.surveys: dict[str, Survey] = {}
        self.choice = Choice("tcg", "no KVM: no device")

    def provide(self, use: Any, arch: str, suite: str, say: Any) -> Kernel:
        self.asked.append(f"kernel {use.name} of {suite}")
        return msgspec.structs.replace(kernel(), name=use.name, digest=use.name * 16, modules=MODULES)

    def choose(self, first: Kernel, *_: Path | str | None) -> Choice:
        self.asked.append(f"accelerator by {first.name}")
        return self.choice

    def find(self, found: Kernel, cpu: str) -> Survey:
        self.asked.append(f"survey of {found.name} on {cpu}")
        return SURVEY

    def image(self, packages: tuple[str, ...], arch: str, suite: str, *, sources: Any, files: Any, say: Any) -> Image:
        self.asked.append(f"image of {' '.join(packages)}; {' '.join(sources)}")
        return Image(
            arch="x86-64",
            root="/i/root",
            digest="d" * 64,
            programs=("/usr/bin/gcc",),
            packages=(("gcc", "12 sha256:0"),),
        )


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    made = Provider()
    for module in (feasibility, calibrate):
        monkeypatch.setattr(module, "LocalHost", FakeHost)
    monkeypatch.setattr(hypervisor, "missing", lambda *_: None)
    monkeypatch.setattr(hypervisor, "find_qemu", lambda *_: "/usr/bin/qemu")
    monkeypatch.setattr(hypervisor, "qemu_version", lambda _: "7.2.22")
    monkeypatch.setattr(image, "guest_probe", lambda _: Path("/share/probe"))
    monkeypatch.setattr(image, "build", lambda built: Path(f"/cache/{built.name}"))
    monkeypatch.setattr(image, "existing_initramfs", lambda path: Initramfs(path=str(path), digest=path.name * 16))
    monkeypatch.setattr(kernels, "provide", made.provide)
    monkeypatch.setattr(kernels, "available", lambda use, *_: made.here.get(use.name))
    monkeypatch.setattr(hypervisor, "choose", made.choose)
    no = NoKvm("/dev/kvm may not be opened by you", "sudo usermod -aG kvm you")
    monkeypatch.setattr(hypervisor, "refusal", lambda _: no)
    monkeypatch.setattr(counted, "find_survey", made.find)
    monkeypatch.setattr(image, "image", made.image)
    return made


def lacked(*names: str) -> resources.ImagePackages:
    return resources.ImagePackages(names, names)


def none(_: resources.GuestResources) -> resources.ImagePackages:
    return lacked()


def quiet(_: str) -> None:
    pass


def test_each_kernel_is_had_once_and_the_image_last(provider: Provider) -> None:
    seen: list[resources.GuestResources] = []

    def packages(bare: resources.GuestResources) -> resources.ImagePackages:
        seen.append(bare)
        return lacked("redis-server", "gcc")

    made = resources.provide(study(packages=["gcc"], sources=["lua5.4"]), packages, quiet)
    assert provider.asked == [
        "kernel one of trixie",
        "kernel two of trixie",
        "accelerator by one",
        "survey of one on max",
        "survey of two on max",
        "image of gcc redis-server; lua5.4",
    ]
    assert seen[0].image.root is None  # what its workloads lack is asked of nothing but the agent
    assert (made.emulated, made.counting, made.pending, made.image.root) == (True, False, False, "/i/root")
    machine = made.machine("two")
    assert not isinstance(machine, str)
    assert (machine.host.name, machine.sizes.base, machine.mechanism) == ("two", 4096, "system")
    versions = made.versions()
    assert (versions["qemu"], versions["accelerator"]) == ("7.2.22", "tcg: no KVM: no device")
    assert versions["kernel two"].startswith("6.12.1, SHA-256 ")
    assert versions["initramfs two"] == "SHA-256 twotwotwotwotwot"
    assert made.initramfs["one"].path == "/cache/one"
    with made.within():
        assert programs.which("gcc") == "/usr/bin/gcc"


def test_without_packages_or_nfs_there_is_nothing_but_the_agent(provider: Provider) -> None:
    for keys, modules in (({}, MODULES[:1]), ({"network": "user", "nfs": True}, MODULES)):
        provided = resources.provide(study(**keys), none, quiet)
        found = provided.kernels["one"]
        assert isinstance(found, Kernel)
        assert found.modules == modules
        assert provided.image.root is None
    assert not any(asked.startswith("image") for asked in provider.asked)


def test_the_accelerator_is_tried_only_where_it_is_open(provider: Provider) -> None:
    assert resources.provide(study(accelerator="tcg"), none, quiet).choice.why == "as the study says"
    counting = resources.provide(study(counting=True), none, quiet)
    assert (counting.choice.accelerator, counting.counting) == ("tcg", True)
    assert not any(asked.startswith("accelerator") for asked in provider.asked)
    provider.choice = Choice("tcg", "no KVM: no device", "sudo modprobe kvm_amd")
    with pytest.raises(UserError, match="no KVM: no device") as caught:
        resources.provide(study(accelerator="kvm"), none, quiet)
    assert known(caught.value.hint).startswith("sudo modprobe kvm_amd; or write ")
    # That `auto` emulates is said at once, with what would give KVM; where the study says tcg it is no news.
    for use, told in ((study(), True), (study(accelerator="tcg"), False), (study(counting=True), False)):
        lines: list[str] = []
        resources.provide(use, none, lines.append)
        assert any("never a time; no KVM: no device (for KVM: sudo modprobe kvm_amd)" in line for line in lines) == told
    provider.choice = Choice("kvm", "a guest booted with it")
    under = resources.provide(study(), none, quiet)
    assert (under.emulated, under.cpu) == (False, "host")


def test_guests_that_count_have_no_disk_for_what_workloads_need(provider: Provider) -> None:
    assert resources.provide(study(counting=True), none, quiet).image.root is None
    with pytest.raises(UserError, match="micro-workloads alone, and others need gcc redis-server") as caught:
        resources.provide(study(counting=True), lambda _: lacked("redis-server", "gcc"), quiet)
    assert "remove counting = true" in (caught.value.hint or "")
    assert not any(asked.startswith("image") for asked in provider.asked)


def test_what_this_host_lacks_is_told_before_anything_is_fetched(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hypervisor, "missing", lambda *_: Missing("no qemu-system-x86_64", "qemu-system-x86"))
    with pytest.raises(UserError, match="no qemu-system-x86_64") as caught:
        resources.provide(study(), none, quiet)
    assert caught.value.hint == "apt install qemu-system-x86"
    assert provider.asked == []


def test_looking_fetches_and_boots_nothing(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.here = {"two": kernel()}
    monkeypatch.setattr(counted, "find_survey", lambda *_: None)
    seen = resources.look(study())
    assert seen.pending
    assert "not in the cache" in str(seen.kernels["one"])
    assert "was not booted yet" in str(seen.surveys["two"])
    monkeypatch.setattr(counted, "find_survey", lambda *_: SURVEY)
    machine = resources.look(study()).machine("two")
    assert not isinstance(machine, str) and machine.sizes == SURVEY.sizes
    assert provider.asked == []


def test_kernels_that_nobody_asked_are_planned_and_what_a_run_does_first_is_told(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "find_survey", lambda *_: None)
    seen = resources.look(study())
    machine = seen.machine("two")
    assert not isinstance(machine, str)
    assert {16 << 10, 2 << 20, 512 << 20} <= set(machine.sizes.mthp)
    emulated, fetched, built, asked = seen.first
    assert emulated == (
        "guests are emulated, so that counts and sizes are measured and never a time; no KVM: /dev/kvm may not be"
        " opened by you (for KVM: sudo usermod -aG kvm you)"
    )
    assert fetched == "the kernel one is fetched: linux-image-amd64 of Debian trixie"  # no lists, no size
    assert built.startswith("the kernel two is built by the recipe pv-none: 15 minutes of CPU time (")
    assert built.endswith("and 3 GB below /var/tmp meanwhile, once")
    assert asked.startswith("one, two: booted once and asked for page sizes.")
    plan = feasibility.make_plan(study())
    assert not plan.left_out
    (only,) = plan.cells  # an arm of each kernel
    assert [arm.name for arm in only.arms] == ["base", "again", "other"]
    assert feasibility.make_plan(study()).first == seen.first
    made = feasibility.make_plan(study(packages=["gcc"], sources=["lua5.4"])).first[-1]
    assert made == (
        "an image is made of Debian trixie: gcc, and the sources of lua5.4; once, for every choice of its workloads"
        " (--only, --arms)"
    )
    # All of it is there: nothing comes first, and a plan has what surveys say.
    provider.here = {"one": kernel(), "two": kernel()}
    monkeypatch.setattr(counted, "find_survey", lambda *_: SURVEY)
    assert resources.look(study()).first == (emulated,)
    assert resources.look(study(accelerator="tcg")).first == ()
    monkeypatch.setattr(hypervisor, "refusal", lambda _: None)
    assert resources.look(study()).first == ("KVM is tried, by a boot of 10 s at most",)
    # What a run plans with was asked: without a survey there is no such arm.
    bare = dataclasses.replace(seen, pending=False)
    assert "was not booted yet" in str(bare.machine("two"))


LUA: dict[str, Any] = {"name": "build", "parameters": {"project": "lua"}}
REDIS: dict[str, Any] = {"name": "redis", "parameters": {"keys": 1000, "operations": 1000}}


def several(**guest: Any) -> Study:
    """A build, redis and a micro-workload, each under a kernel of its own beside the baseline's."""
    arms = ["base", {"name": "other", "from": "base", "kernel": "two"}, {"name": "third", "from": "base"}]
    kernels = [{"name": "one", "package": "linux-image-amd64"}, {"name": "two", "build": "pv-none"}]
    used = [LUA | {"policies": ["base", "other"]}, REDIS, {"name": "fault"}]
    keys = {"arch": "x86-64", "accelerator": "tcg", "sources": ["lua5.4"], **guest}
    return study_of(policies=arms, guest=keys, kernel=kernels, workload=used)


def test_a_part_has_the_image_of_its_study(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is chosen of a study: workloads, arms with their kernels, and again of a part."""
    whole = several()

    def asked_for(of: Study) -> list[str]:
        provider.asked.clear()
        feasibility.provide(of, quiet)
        return [asked for asked in provider.asked if asked.startswith("image")]

    (made,) = asked_for(whole)
    assert {"gcc", "make", "redis-server"} <= set(made.split("; ")[0].split())
    parts = [
        load.part(whole, ["redis"]),
        load.part(whole, [], ["third"]),  # nothing is built under this one, and the kernel of the other is not asked
        load.part(load.part(whole, [], ["other"]), ["redis"]),
        load.part(whole, ["fault"]),
    ]
    for one in [*parts, msgspec.json.decode(msgspec.json.encode(parts[0]), type=Study)]:  # as a run is resumed
        (part,) = asked_for(one)
        assert part == made
    # It is told so, before.
    first, other = (feasibility.make_plan(one).first[-1] for one in (whole, parts[0]))
    assert first == other
    assert first.startswith("an image is made of Debian trixie: ") and "redis-server" in first
    # A part that needs none has none, be the image of the others as large as it is.
    bare = several(sources=[])
    assert asked_for(load.part(bare, ["fault"])) == []
    assert asked_for(load.part(bare, ["redis"])) == asked_for(bare)


def test_what_another_workload_needs_and_nobody_has_is_told(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    refused = {"no-such"}

    def made(packages: tuple[str, ...], *_: Any, **__: Any) -> Image:
        asked.append(packages)
        if refused & set(packages):
            raise UserError("Debian trixie has no package for amd64 named no-such")
        return Image(arch="x86-64", root="/i/root", digest="d" * 64)

    monkeypatch.setattr(image, "image", made)
    lines: list[str] = []
    wanted = resources.ImagePackages(("gcc",), ("gcc", "no-such"))
    provided = resources.provide(study(accelerator="tcg"), lambda _: wanted, lines.append)
    assert (provided.image.root, asked) == ("/i/root", [("gcc", "no-such"), ("gcc",)])
    assert lines[-1].startswith("no image of the whole study (Debian trixie has no package for amd64 named no-such): ")
    refused = {"gcc"}
    with pytest.raises(UserError, match="named no-such"):  # its own is what it cannot do without
        resources.provide(study(accelerator="tcg"), lambda _: lacked("gcc"), lines.append)


@pytest.mark.parametrize(
    "other",
    [{"name": "of-a-newer-one", "label": "other"}, {"name": "fault", "label": "other", "parameters": {"no-such": 1}}],
)
def test_a_workload_that_is_wrong_is_no_reason_against_another_that_is_chosen(
    other: dict[str, Any], provider: Provider
) -> None:
    whole = study_of(
        policies=["base", "thp"],
        guest={"arch": "x86-64", "accelerator": "tcg"},
        kernel=[{"name": "one", "package": "linux-image-amd64"}],
        workload=[REDIS, other],
    )
    part = load.part(whole, ["redis"])
    feasibility.provide(part, quiet)
    (made,) = [asked for asked in provider.asked if asked.startswith("image")]
    assert made == "image of redis-server redis-tools; "
    with pytest.raises(UserError, match=r"workload\[2\]"):
        feasibility.provide(whole, quiet)


def test_a_run_of_some_cells_goes_on_with_the_image_that_it_began_with(provider: Provider) -> None:
    """Before the whole was kept, a part had the packages of its own cells."""
    guest = {"arch": "x86-64", "accelerator": "tcg"}
    kernel = [{"name": "one", "package": "linux-image-amd64"}]
    tpcc = {"name": "tpcc", "parameters": {"server": ["mariadb", "postgres"]}}
    whole = study_of(policies=["base", "thp"], guest=guest, kernel=kernel, workload=[tpcc])
    part = load.part(whole, ["tpcc-server=postgres"])
    images = []
    for one in (whole, part, msgspec.structs.replace(part, whole=None)):
        provider.asked.clear()
        feasibility.provide(one, quiet)
        (image,) = [asked for asked in provider.asked if asked.startswith("image")]
        images.append("mariadb-server" in image)
    assert images == [True, True, False]


def test_what_else_there_was_to_choose_is_no_part_of_a_study_s_digest() -> None:
    whole = several()
    part = load.part(whole, ["redis"])
    assert (load.part(whole), part.whole) == (whole, whole)
    assert msgspec.structs.replace(part, whole=None).digest == part.digest
    assert load.part(part, ["redis"]).whole == whole
    on_the_host = study_of(policies=["base", "thp"], workload=[{"name": "fault"}, {"name": "spin"}])
    assert load.part(on_the_host, ["spin"]).whole is None


def test_the_streams_of_a_calibration_have_the_image_of_its_study(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class BegunError(Exception):
        pass

    streams: list[Study] = []

    def run(study: Study, *_: Any, **__: Any) -> Any:
        streams.append(study)
        raise BegunError

    monkeypatch.setattr(session, "run", run)
    with pytest.raises(BegunError):
        calibrate.calibrate(several(), tmp_path)
    (stream,) = streams
    assert ([use.name for use in stream.workload], stream.whole) == (["fault"], several())


STUDY = """
format = 1
name = "kernels"
policies = ["base", { name = "other", from = "base", kernel = "xxl" }, { name = "own", from = "base", kernel = "file" }]
baseline = "base"

[guest]
arch = "x86-64"
counting = true

[[kernel]]
name = "none"
build = "pv-none"

[[kernel]]
name = "xxl"
build = "pv-xxl"

[[kernel]]
name = "file"
path = "/boot/vmlinuz"

[[workload]]
name = "mmap-perf"
"""


def kernel_with_config(folder: Path, name: str, config: str | None) -> Kernel:
    path = folder / f"{name}.config"
    if config is not None:
        path.write_text(config, encoding="utf-8")
    return Kernel(
        name=name,
        arch="x86-64",
        image=f"/kernels/{name}",
        digest=name * 8,
        release=f"6.12-{name}",
        config=str(path) if config is not None else None,
        origin=f"recipe {name}",
    )


def made(folder: Path, **surveys: Survey) -> GuestsRecord:
    study = parse(STUDY, "kernels.toml")
    assert study.guest is not None
    kernels = {
        "none": kernel_with_config(folder, "none", "CONFIG_SMP=y\n# CONFIG_PARAVIRT is not set\n"),
        "xxl": kernel_with_config(folder, "xxl", "CONFIG_SMP=y\nCONFIG_PARAVIRT=y\nCONFIG_PARAVIRT_XXL=y\n"),
        "file": kernel_with_config(folder, "file", None),
    }
    image = Image(arch="x86-64", packages=(("libc6", "2.41"),))
    return GuestResources(study.guest, "x86-64", Choice("tcg", "counted"), image, dict(kernels), surveys).record(study)


def test_kernels_are_compared_with_the_baselines_while_they_are_there(tmp_path: Path) -> None:
    record = made(tmp_path)
    assert (record.baseline, record.accelerator, record.why, record.counting) == ("none", "tcg", "counted", True)
    none, xxl, file = record.kernels
    assert none.differs == ()
    assert xxl.differs == (Option("PARAVIRT", "n", "y"), Option("PARAVIRT_XXL", "n", "y"))
    assert (xxl.release, xxl.origin, xxl.base_page, xxl.had) == ("6.12-xxl", "recipe xxl", 4096, "build")
    assert (file.differs, file.base_page, file.had) == (None, None, "path")
    assert record.packages == {"libc6": "2.41"}


def test_a_kernel_by_path_has_the_base_page_that_it_told_when_it_was_booted(tmp_path: Path) -> None:
    """It may have no configuration; where there is one, that says it. The report shows what is kept."""
    changed = Survey(release="6.12-own", page_size=64 << 10, files={})
    kept = made(tmp_path, file=changed, none=changed)
    assert {kernel.name: kernel.base_page for kernel in kept.kernels} == {"none": 4096, "xxl": 4096, "file": 64 << 10}
    shown = known(kernels_table(replace(known(lpc().guests), kernels=kept.kernels, baseline=kept.baseline)))
    assert [row[2] for row in shown.rows] == ["4k", "4k", "64k"]


def test_it_is_kept_and_read_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    record = made(tmp_path)
    assert guests_json.read(tmp_path) is None
    guests_json.write(tmp_path, record)
    assert guests_json.read(tmp_path) == record
    (tmp_path / guests_json.NAME).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"guests\.json cannot be read"):
        guests_json.read(tmp_path)
