"""The runner's steps with guests that a test plays: what is stored of them, and what becomes of one that is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.attempt import recording, runner
from hugewise.attempt.context import Backed, Boarding, Disturbed, RunContext
from hugewise.errors import MachineError
from hugewise.machine import noise, probe
from hugewise.machine.machine import Contained, Drift, Running, Site
from hugewise.model.metric import NOT_IN_EMULATION, Metric
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt, DeliveryThreshold, Trial
from hugewise.model.workload import Launch, ParameterValue
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.store.folder import RunFolder
from hugewise.study.load import parse
from hugewise.study.tables import Slots
from tests.attempt.test_disturbances import FILES, FOLDER
from tests.build.hosts import Files
from tests.build.studies import IN_GUESTS, FakeWorkload, an_arm, cell_of
from tests.machine.test_serving import Launcher

GONE = "guest fake: it ended\n  console: Kernel panic - not syncing"
TARGET = PageTarget("any", 4096)
USAGE = {"user_s": 1.0, "system_s": 1.0, "peak_bytes": 8192, "minor_faults": 30, "major_faults": 2}
SAID: tuple[dict[str, Any], ...] = (
    {"ev": "start", "v": 1, "t_ns": 1, "pid": 7, "probe": "0"},
    {"ev": "usage", **USAGE, "voluntary": 1, "involuntary": 1},
    {
        "ev": "exit", "t_ns": 9, "wall_ns": 9, "code": 0, "signal": None,
        "timed_out": False, "early_exits": 0, "killed": 0,
    },
)  # fmt: skip
TIMED = {"ev": "result", "workload": "fault", "wall_ns": 123456, "metrics": {"ns_per_load": 1.0}, "facts": {}}


class Knobs:
    """Page settings that are as they should be, unless the guest is gone."""

    def __init__(self, gone: bool = False) -> None:
        self.turned: list[Mapping[str, str]] = []
        self.gone = gone

    def apply(self, knobs: Mapping[str, str]) -> list[Any]:
        if self.gone:
            raise MachineError(GONE)
        self.turned.append(knobs)
        return []

    def drift(self) -> list[Any]:
        return []

    def values(self) -> Mapping[str, str]:
        return {"/k": "always"}


class Dying(Launcher):
    """Its guest is gone while it is waited for."""

    def wait(self, timeout: float | None = None) -> int:
        raise MachineError(GONE)


class Ending(Launcher):
    """Its guest is ended by others."""

    def wait(self, timeout: float | None = None) -> int:
        super().wait(timeout)
        raise MachineError("guest other: it was given up")


@dataclass
class FakeMachine:
    """What is started in it has ended at once, and has said `said`; 64k pages were allocated meanwhile."""

    launcher: Callable[[], Launcher] = Launcher
    said: tuple[dict[str, Any], ...] = SAID
    emulated: bool = True
    counters: bool = False
    host: Files = field(default_factory=lambda: Files(FILES, root=True))
    environment: Mapping[str, str] = field(default_factory=dict)
    started: list[Launcher] = field(default_factory=list)
    gone: bool = False

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> Running:
        assert inherited == ()
        launcher = self.launcher()
        self.started.append(launcher)
        if self.gone:
            raise MachineError("guest other: it was given up")
        job.stderr.write_bytes(b"")
        if type(launcher) is Launcher:
            job.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in self.said))
            Path(job.spec.stdout).write_text("heard")
            Path(job.spec.stderr).write_text("")
            self.host.files[f"{FOLDER}/anon_fault_alloc"] = "17"  # it was 10
            launcher.end(0)
        return launcher


@dataclass
class FakeGuest:
    """`context.AcquiredMachine`."""

    machine: Any
    counting: bool = False
    base_size: int = 4096
    knobs: Knobs = field(default_factory=Knobs)
    problem: str | None = None
    left: int = 0
    closed: int = 0
    own = True
    meets = False
    cwd = "/"
    far: None = None
    places: Slots = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.site = Site(
            machine=self.machine,
            knobs=self.knobs,
            contain=lambda _: Contained(),
            scratch=lambda place: pytest.fail(f"no folder {place} is asked for"),
            source="kpageflags",
            base_size=self.base_size,
        )

    def look(self, here: noise.Snapshot) -> noise.Snapshot | None:
        return None if self.counting else noise.snapshot(self.machine.host)

    def instructions(self, events: Sequence[probe.Event]) -> int | None:
        return recording.instructions(events) if self.counting else None

    def leave(self) -> Backed:
        self.left += 1
        return Backed({"kernel": "k", "backing_share": 1.0}, self.problem)

    def close(self) -> None:
        self.closed += 1
        self.machine.gone = True
        for launcher in self.machine.started:
            launcher.end(-9)


@dataclass
class Inn:
    """`context.Boarding`: the guests of a test, one for each attempt."""

    guests: list[FakeGuest | MachineError]
    boarded: list[tuple[str, int, Path]] = field(default_factory=list)

    def board(self, cell: Cell, arm: Arm, trial: Trial, number: int, outputs: Path) -> FakeGuest:
        guest = self.guests[len(self.boarded)]
        self.boarded.append((arm.name, number, outputs))
        if isinstance(guest, MachineError):
            raise guest
        return guest


class Fault(FakeWorkload):
    """A command; with `micro` one that times itself."""

    def __init__(self, *, micro: bool = False, argv: tuple[str, ...] = ("true",)) -> None:
        super().__init__("fault", ())
        self.micro, self.argv = micro, argv

    def launch(self, treatment: Treatment, values: Mapping[str, ParameterValue]) -> Launch:
        return Launch(argv=self.argv, micro=self.micro, proof="exit")


class Heard(Fault):
    """Its metrics are in what it says."""

    def named(self, values: Mapping[str, ParameterValue]) -> tuple[Metric, ...]:
        return ()

    def parse(self, stdout: str, stderr: str, values: Mapping[str, ParameterValue]) -> Mapping[str, float]:
        return {"words": float(len(stdout.split()))}


def bench(folder: Path, *guests: FakeGuest | MachineError, boarding: Boarding | None = None) -> RunContext:
    return RunContext(
        host=Files(FILES),
        boarding=boarding or Inn(list(guests)),
        study=parse(IN_GUESTS, "s.toml"),
        settings=Knobs(),  # type: ignore[arg-type]
        folder=RunFolder.create(folder, "s", study_json=b"{}", study_toml=None, seed=bytes(16)),
        session=1,
        boot_id="b",
        pools={},
    )


def cell(workload: Fault | None = None, *, together: bool = False) -> Cell:
    arms = (an_arm(name, knobs={"/k": "always"}, kernel="k") for name in ("base", "thp"))
    return cell_of(workload or Fault(), *arms, together=together)


def trial(arm: str = "thp", order: int = 0) -> Trial:
    return Trial(block=1, cell="fault", arm=arm, order=order, slot=order, environment_pad=0)


def attempted(made: RunContext, planned: Cell | None = None) -> Attempt:
    planned = planned or cell()
    return runner.attempt(made, planned, planned.arm("thp"), trial(), 1)


def attempted_or_disturbed(made: RunContext) -> Attempt:
    """The attempt, also where its block is disturbed."""
    with suppress(Disturbed):
        return attempted(made)
    (stored,) = made.folder.attempt_files()
    return msgspec.json.decode(stored.read_bytes(), type=Attempt)


def both(made: RunContext) -> list[Attempt]:
    planned = cell(together=True)
    arms = [(planned.arm(name), trial(name, order)) for order, name in enumerate(("base", "thp"))]
    return runner.run_together(made, planned, arms, 1)


def kept(made: RunContext) -> list[str]:
    """The attempts that are part of the run."""
    return sorted(path.name for path in (made.folder.path / "attempts").iterdir() if not path.name.startswith("."))


def test_an_attempt_in_a_guest_has_counts_and_no_times(tmp_path: Path) -> None:
    guest = FakeGuest(FakeMachine())
    made = bench(tmp_path, guest)
    attempt = attempted(made)
    assert (attempt.state, attempt.reason) == ("accepted", None)
    assert (attempt.wall_s, attempt.cpu_s, attempt.series, attempt.disturbances) == (None, None, (), ())
    assert attempt.overhead_s is None  # this host's clock less the guest's is neither's
    assert (attempt.metrics["page_faults"], attempt.metrics["peak_bytes"]) == (32, 8192)
    assert attempt.metrics["wall_s"] is attempt.metrics["cpu_s"] is attempt.metrics["cycles"] is None
    assert attempt.absent["wall_s"] == NOT_IN_EMULATION
    assert attempt.metrics["allocations_64k"] == 7
    assert attempt.guest == {"kernel": "k", "backing_share": 1.0}
    assert attempt.knobs == {"/k": "always"}
    assert guest.knobs.turned == [{"/k": "always"}]
    assert (guest.left, guest.closed) == (1, 1)
    assert len(kept(made)) == 1


def test_under_kvm_times_stay(tmp_path: Path) -> None:
    attempt = attempted(bench(tmp_path, FakeGuest(FakeMachine(emulated=False))))
    assert (attempt.metrics["wall_s"], attempt.cpu_s) == (9e-9, 2.0)
    assert attempt.overhead_s is not None and attempt.overhead_s >= 0


@pytest.mark.parametrize(("emulated", "state"), [(True, "accepted"), (False, "abandoned")])
def test_a_knob_of_the_host_disturbs_what_has_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: bool, state: str
) -> None:
    made = bench(tmp_path, FakeGuest(FakeMachine(emulated=emulated)))
    monkeypatch.setattr(made.settings, "drift", lambda: [Drift("/sys/kernel/mm/k", "madvise", "always")])
    assert attempted_or_disturbed(made).state == state


def usage(faults: int) -> dict[str, Any]:
    return {"ev": "usage", **USAGE, "minor_faults": faults, "voluntary": 1, "involuntary": 1}


class Twice(FakeMachine):
    """Its command leaves a process behind, so that it is run once more, untimed: then with 1 GiB and fewer faults."""

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> Running:
        exited = {**SAID[-1], "early_exits": 1}
        seen = {"ev": "coverage", "pid": 7, "command": "true", "named": False, "source": "kpageflags",
                "bytes": {"anon:2097152": 1 << 30}, "thp_disabled": False, "scan_ns": 1}  # fmt: skip
        again = bool(self.started)
        self.said = (SAID[0], seen, usage(600), exited) if again else (SAID[0], usage(4000), exited)
        return super().start(job, inherited)


@pytest.mark.parametrize(("base_size", "delivered"), [(4096, True), (65536, None)])
def test_a_twin_is_held_against_its_attempt_in_pages_of_their_guest(
    tmp_path: Path, base_size: int, delivered: bool | None
) -> None:
    target = PageTarget("thp", 2 << 20)
    arm = an_arm("thp", target, kernel="k")
    planned = msgspec.structs.replace(cell(), arms=(cell().arms[0], arm), delivery=DeliveryThreshold(0.9, 0.01))
    found = attempted(bench(tmp_path, FakeGuest(Twice(), base_size=base_size)), planned).delivery
    assert (found.proof, found.delivered) == ("twin", delivered)


class GivesBack(FakeMachine):
    """Its command gives its memory back before it ends; in a second run it is looked at before that."""

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> Running:
        size = 1 << 30 if self.started else 8192
        seen = {"ev": "coverage", "pid": 7, "command": "true", "named": False, "source": "kpageflags",
                "bytes": {"anon:2097152": size}, "thp_disabled": False, "scan_ns": 1}  # fmt: skip
        self.said = (SAID[0], seen, {**usage(600), "peak_bytes": self.most}, SAID[-1])
        return super().start(job, inherited)

    most = 1 << 30


@pytest.mark.parametrize(("most", "proof"), [(1 << 30, "twin"), (8192, "exit")], ids=["gives back", "keeps"])
def test_memory_that_was_given_back_before_the_exit_is_proven_by_a_twin(tmp_path: Path, most: int, proof: str) -> None:
    arm = an_arm("thp", PageTarget("thp", 2 << 20), kernel="k")
    planned = msgspec.structs.replace(cell(), arms=(cell().arms[0], arm), delivery=DeliveryThreshold(0.9, 0.01))
    machine = GivesBack()
    machine.most = most
    found = attempted(bench(tmp_path, FakeGuest(machine)), planned).delivery
    assert (found.proof, found.delivered) == (proof, True)


def test_a_guest_that_counts_is_not_looked_at_and_tells_instructions(tmp_path: Path) -> None:
    guest = FakeGuest(FakeMachine(said=(*SAID[:1], TIMED, *SAID[1:])), counting=True)
    attempt = attempted(bench(tmp_path, guest), cell(Fault(micro=True)))
    assert attempt.state == "accepted"
    assert attempt.metrics["instructions"] == 123456
    assert attempt.metrics["ns_per_load"] is None
    assert not any(name.startswith("allocations") for name in attempt.metrics)  # nobody asked


def test_an_attempt_without_its_backing_is_rejected(tmp_path: Path) -> None:
    guest = FakeGuest(FakeMachine(), problem="backing hugetlb-1g: half of it are base pages")
    attempt = attempted(bench(tmp_path, guest))
    assert (attempt.state, attempt.reason) == ("rejected", "backing hugetlb-1g: half of it are base pages")


def test_a_guest_that_is_gone_after_the_launch_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    guest = FakeGuest(FakeMachine(launcher=Dying))
    made = bench(tmp_path, guest)
    attempt = attempted(made)
    assert (attempt.state, attempt.reason) == ("failed", GONE)
    assert (attempt.metrics, attempt.absent, attempt.wall_s, attempt.cpu_s) == ({}, {}, None, None)
    assert attempt.ended >= attempt.started > 0
    assert attempt.guest["kernel"] == "k"
    assert guest.closed >= 1
    assert len(kept(made)) == 1


class LetDown(Launcher):
    """Its guest is brought down by its emulator."""

    def wait(self, timeout: float | None = None) -> int:
        error = MachineError(GONE)
        error.emulator = True
        raise error


def test_one_that_its_emulator_brings_down_is_to_be_tried_again(tmp_path: Path) -> None:
    attempt = attempted(bench(tmp_path, FakeGuest(FakeMachine(launcher=LetDown))))
    assert (attempt.state, attempt.reason, attempt.metrics) == ("rejected", GONE, {})


class Collapsing(FakeGuest):
    """Its emulator brings it down when its command has ended."""

    def look(self, here: noise.Snapshot) -> noise.Snapshot | None:
        if not self.machine.started:
            return super().look(here)
        error = MachineError(GONE)
        error.emulator = True
        raise error


def test_what_had_failed_before_its_emulator_brought_it_down_has_failed(tmp_path: Path) -> None:
    attempt = attempted(bench(tmp_path, Collapsing(FakeMachine(said=(*SAID[:-1], {**SAID[-1], "code": 1})))))
    assert (attempt.state, attempt.reason) == ("failed", GONE)


def test_what_it_said_may_be_gone_with_it(tmp_path: Path) -> None:
    attempt = attempted(bench(tmp_path, FakeGuest(FakeMachine(launcher=Dying))), cell(Heard()))
    assert (attempt.state, attempt.reason) == ("failed", GONE)


def test_before_the_launch_it_is_to_be_tried_again(tmp_path: Path) -> None:
    made = bench(tmp_path, MachineError(GONE))
    with pytest.raises(MachineError, match="Kernel panic"):
        attempted(made)
    assert kept(made) == []
    guest = FakeGuest(FakeMachine(), knobs=Knobs(gone=True))
    made = bench(tmp_path / "second", guest)
    with pytest.raises(MachineError, match="Kernel panic"):
        attempted(made)
    assert kept(made) == []
    assert guest.closed == 1


def test_guests_that_run_together_are_each_looked_at(tmp_path: Path) -> None:
    guests = FakeGuest(FakeMachine()), FakeGuest(FakeMachine())
    made = bench(tmp_path, *guests)
    found = both(made)
    assert [(attempt.arm, attempt.state) for attempt in found] == [("base", "accepted"), ("thp", "accepted")]
    # A guest's counters are its own, also when another runs beside it.
    assert [attempt.metrics["allocations_64k"] for attempt in found] == [7, 7]
    assert [guest.closed for guest in guests] == [1, 1]
    assert isinstance(made.boarding, Inn)
    assert [name for name, _, _ in made.boarding.boarded] == ["base", "thp"]


@pytest.mark.parametrize("dies", [0, 1])
def test_one_that_is_gone_ends_those_beside_it(tmp_path: Path, dies: int) -> None:
    order: list[Callable[[], Launcher]] = [Dying, Ending]
    guests = [FakeGuest(FakeMachine(launcher=each)) for each in (order if dies == 0 else order[::-1])]
    made = bench(tmp_path, *guests)
    found = both(made)
    assert [(attempt.state, attempt.reason) for attempt in found] == [("failed", GONE)] * 2
    assert all(guest.closed for guest in guests)
    assert len(kept(made)) == 2


def test_one_without_its_backing_takes_the_block_with_it(tmp_path: Path) -> None:
    guests = FakeGuest(FakeMachine()), FakeGuest(FakeMachine(), problem="backing thp: none")
    found = both(bench(tmp_path, *guests))
    assert [attempt.state for attempt in found] == ["rejected", "rejected"]
    assert found[0].reason == "thp beside it was rejected: backing thp: none"


def test_one_that_does_not_boot_ends_the_one_that_did(tmp_path: Path) -> None:
    first = FakeGuest(FakeMachine())
    made = bench(tmp_path, first, MachineError(GONE))
    with pytest.raises(MachineError, match="Kernel panic"):
        both(made)
    assert first.closed == 1
    assert kept(made) == []


class Lying(FakeMachine):
    """Its kernel says nonsense once its program has run: `text` in /proc/stat."""

    text = "cpu " + "9" * 5000

    def start(self, job: probe.Job, inherited: tuple[int, ...] = ()) -> Running:
        launched = super().start(job, inherited)
        self.host.files["/proc/stat"] = self.text
        return launched


@pytest.mark.parametrize("text", ["cpu 1 2 3", "cpu  " + "9" * 5000 + " 1 1 1 1 1 1 1 1", "cpu  x 1 1 1 1 1 1 1 1", ""])
def test_a_guest_whose_kernel_says_nonsense_has_failed_and_the_run_goes_on(tmp_path: Path, text: str) -> None:
    machine = Lying()
    machine.text = text
    made = bench(tmp_path, FakeGuest(machine))
    attempt = attempted(made)
    assert attempt.state == "failed"
    assert attempt.reason is not None and "what it said: this makes no sense (" in attempt.reason
    assert len(attempt.reason) < 500
    assert kept(made) == ["b00001-0-thp-1"]


def test_a_guest_that_says_nonsense_before_its_program_runs_is_tried_again(tmp_path: Path) -> None:
    machine = FakeMachine()
    machine.host.files["/proc/stat"] = "cpu 1"
    with pytest.raises(MachineError, match="what it said: this makes no sense"):
        attempted(bench(tmp_path, FakeGuest(machine)))
