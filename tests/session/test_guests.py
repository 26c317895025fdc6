"""What a session makes for guests and keeps of them, from session to session; nothing where a study has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from hugewise.deployment import configuration as host_files
from hugewise.errors import RunError
from hugewise.guests import machines
from hugewise.host.knob import Settings
from hugewise.host.lock import HostLock
from hugewise.model import guest as record
from hugewise.model.guest import Backing, GuestsRecord
from hugewise.model.pages import PageSizes, PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.plan.arms import Arm, Platform
from hugewise.plan.plan import Plan
from hugewise.session import guests as guest_session
from hugewise.session import identity, session, steps
from hugewise.session.conductor import Conductor
from hugewise.session.steps import Session
from hugewise.store.folder import RunFolder
from hugewise.store.records import Noted
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build.hosts import FakeHost, Unheld
from tests.build.studies import IN_GUESTS, FakePolicy, cell_of, workloads
from tests.build.trials import begun

STUDY = parse(IN_GUESTS, "s.toml")
SIZES = PageSizes(base=16384, pmd=32 << 20, mthp=(), shmem=(), hugetlb=())
KEPT = GuestsRecord(arch="arm64", accelerator="tcg", why="w", counting=False, baseline="16k", kernels=())


@dataclass
class Guests:
    """`resources.GuestResources`, as far as a session asks it."""

    found: Mapping[str, str] = field(default_factory=dict)
    counting: bool = False
    inside: list[bool] = field(default_factory=list)
    memory: int = 1 << 30
    emulated: bool = True

    def versions(self) -> Mapping[str, str]:
        return self.found

    def identity(self, kernel: str, backing: Backing) -> dict[str, str]:
        return {"accelerator": self.found["accelerator"], "kernel": kernel, "backing": backing.pages}

    def machine(self, kernel: str) -> Platform | str:
        assert kernel == "16k"
        return Platform(FakeHost(), SIZES, "system")

    def record(self, study: Study) -> GuestsRecord:
        assert study is STUDY
        return KEPT

    @contextmanager
    def within(self) -> Iterator[None]:
        self.inside.append(True)
        yield
        self.inside.append(False)


def arm(kernel: str | None) -> Arm:
    target = PageTarget("base", 4096)
    return Arm(
        "base",
        FakePolicy("base", target),
        Treatment(policy="base", mechanism="system", target=target),
        "backing",
        kernel,
        None if kernel is None else Backing(),
    )


def guests(versions: Mapping[str, str] | None = None, *, counting: bool = False) -> Any:
    return Guests(versions or {}, counting)


def test_an_arm_is_deployed_where_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[PageSizes, int]] = []

    def deployment(policy: FakePolicy, sizes: PageSizes, treatment: Treatment, pool_bytes: int) -> Deployment:
        asked.append((sizes, pool_bytes))
        return Deployment(files=(host_files.now({"/k": "never"}),), note="n")

    monkeypatch.setattr(FakePolicy, "deployment", deployment)
    host = FakeHost()
    cell = cell_of(workloads()["chase"], arm(None))
    here = guest_session.deployment(cell, cell.arms[0], 5, None, host)
    assert here.commands() == ("echo never > /k",)
    there = guest_session.deployment(cell, arm("16k"), 0, guests(), host)
    assert asked == [(PageSizes.discover(host), 5), (SIZES, 0)]
    assert there.note.startswith("in a guest whose memory is transparent huge pages of its host, under the kernel 16k ")
    assert there.note.endswith("; judged by what an emulated guest counts: no time was measured")
    assert there.commands()[:3] == ("# in the guest:", "echo never > /k", "# on its host, before it starts:")


def test_a_program_of_the_folder_that_a_run_was_called_in_is_deployed_by_its_path() -> None:
    off = msgspec.structs.replace(an := arm(None), treatment=msgspec.structs.replace(an.treatment, thp_disable="all"))
    for name, path in (("./prog", str(Path.cwd() / "prog")), ("prog", "prog"), ("/bin/prog", "/bin/prog")):
        cell = cell_of(workloads()["command"], off, values={"argv": (name, "./data")})
        script = guest_session.deployment(cell, off, 0, None, FakeHost()).files[0].content
        assert f'-- {path} ./data "$@"' in script, "arguments stay as they are"


def test_what_is_deployed_is_checked_by_the_name_of_a_registered_policy() -> None:
    """`hugewise verify --policy` knows no name that an arm has in its study alone."""
    own = msgspec.structs.replace(
        an := arm(None), name="mine", treatment=msgspec.structs.replace(an.treatment, policy="mine", thp_disable="all")
    )
    found = guest_session.deployment(cell_of(workloads()["chase"], own), own, 0, None, FakeHost())
    checks = {file.check for file in found.files if "hugewise verify" in file.check}
    assert checks
    assert all("--policy base" in check for check in checks), checks


@pytest.fixture
def opened(tmp_path: Path) -> Session:
    """A session that is open, of a run that was begun under an emulated accelerator."""
    folder = begun(tmp_path, STUDY, versions={**identity.versions(), "accelerator": "tcg: no KVM: no device"})
    made = Session(
        STUDY,
        folder,
        bytes(16),
        Plan((), ()),
        folder.read(),
        lambda _: None,
        lambda _: None,
        cast(HostLock, Unheld(FakeHost())),
    )
    made.host = FakeHost()
    made.settings = Settings(made.host, None)
    return made


def test_the_folder_of_a_run_keeps_what_its_guests_are(opened: Session) -> None:
    for opened.guests in (None, guests()):
        assert not (opened.folder.path / "guests.json").exists()
        (opened.folder.path / "run.jsonl").unlink()
        opened.folder, opened.run = RunFolder(opened.folder.path), None
        opened.record()
    assert record.read(opened.folder.path) == opened.folder.read().guests == KEPT


def test_a_run_that_begins_asks_the_coins_and_one_of_before_does_not(
    opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def methods_for(*_: object, coins: bool) -> tuple[()]:
        asked.append(coins)
        return ()

    monkeypatch.setattr(steps, "methods_for", methods_for)
    monkeypatch.setattr(Conductor, "conduct", lambda self: None)
    opened.conduct()
    (opened.folder.path / "run.jsonl").unlink()
    opened.folder, opened.run = RunFolder(opened.folder.path), None
    opened.record()
    opened.conduct()
    assert asked == [False, True]


def test_programs_are_looked_for_in_guests_that_there_are(opened: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made = guests()
    monkeypatch.setattr(Conductor, "conduct", lambda self: asked.append(list(made.inside)))
    asked: list[list[bool]] = []
    for opened.guests in (None, made):
        opened.conduct()
    assert asked == [[], [True]]
    assert made.inside == [True, False]


def test_what_guests_share_is_made_for_them_alone(opened: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def opening(*given: Any, seed: bytes, privileged: bool) -> str:
        asked.append((*given, seed, privileged))
        return "aboard"

    monkeypatch.setattr(machines.GuestPerAttempt, "open", opening)
    opened.make_guests()
    assert (opened.boarding, asked) == (None, [])
    opened.guests = made = guests()
    opened.make_guests()
    assert str(opened.boarding) == "aboard"
    ((study, known, contain, _, note, seed, privileged),) = asked
    assert (study, known, contain, seed, privileged) == (
        STUDY,
        made,
        opened.contain,
        bytes(16),
        opened.host.privileged(),
    )
    assert note == opened.settings.note


def test_one_run_has_one_accelerator(tmp_path: Path) -> None:
    kvm, tcg, other = ({"accelerator": text} for text in ("kvm: it boots", "tcg: no KVM", "tcg: as the study says"))
    guest_session.check(tmp_path, {}, None)
    guest_session.check(tmp_path, tcg, guests(other))  # why may change
    with pytest.raises(RunError, match="ran under tcg, and would run under kvm now"):
        guest_session.check(tmp_path, tcg, guests(kvm))


@pytest.mark.parametrize("name", ["initramfs 16k", "kernel 16k", "qemu"])
def test_a_count_is_of_one_agent_kernel_and_qemu(tmp_path: Path, name: str) -> None:
    before = {"accelerator": "tcg: w", "qemu": "7.2", "kernel 16k": "6.12", "initramfs 16k": "SHA-256 a"}
    counting = guests(before | {"accelerator": "tcg: another reason"}, counting=True)
    guest_session.check(tmp_path, before | {"python": "3.11"}, counting)
    for was, said in ((before | {name: "b"}, "it was b"), ({"accelerator": "tcg: w"}, "it was not kept")):
        guest_session.check(tmp_path, was, guests(before))  # of faults and memory it is only noted
        with pytest.raises(RunError, match=said) as caught:
            guest_session.check(tmp_path, was, counting)
        assert caught.value.hint


def test_a_run_is_not_resumed_under_another_accelerator(opened: Session) -> None:
    opened.guests = guests({"accelerator": "kvm: a guest booted with it"})
    with pytest.raises(RunError, match="its guests ran under tcg, and would run under kvm now"):
        opened.record()


def test_under_the_same_one_it_goes_on_and_says_what_changed(opened: Session) -> None:
    opened.guests = guests({"accelerator": "tcg: no KVM: it took 11 s"})
    opened.record()
    assert opened.number == 2
    noted = [each.text for each in opened.folder.read().records if isinstance(each, Noted)]
    assert any("accelerator is tcg: no KVM: it took 11 s" in text for text in noted)


def test_the_next_session_of_a_run_has_the_same_guests(opened: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    planned_in: list[Any] = []

    def hold(self: Session) -> bool:
        seen.append(self.guests)
        return len(seen) == 3

    def make_plan(study: Study, host: object = None, guests: object = None, in_turns: object = ()) -> Plan:
        planned_in.append(guests)
        return Plan((), ())

    opened.guests = guests()
    monkeypatch.setattr(Session, "hold", hold)
    monkeypatch.setattr(session, "make_plan", make_plan)
    session._hold(opened)
    assert seen == [opened.guests] * 3
    assert planned_in == [opened.guests] * 2
