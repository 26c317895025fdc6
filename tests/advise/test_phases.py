"""An advice from phase to phase, on runs that are written here: what is kept, taken up again, and refused."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from hugewise.advise import advise as phases
from hugewise.advise import decision
from hugewise.advise import pilot as pilots
from hugewise.advise import question as questions
from hugewise.advise.advice import Advice
from hugewise.advise.advise import runner_up_of
from hugewise.advise.candidates import LeftOutCandidate, ProgramHere, SettingCandidate
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.question import Question, command
from hugewise.advise.text import DETAILS, answer, details, ending, recommended, settings, whole
from hugewise.analysis.analysis import analyze
from hugewise.errors import HugewiseError, StudyError, UserError
from hugewise.inspection.allocator import Allocator
from hugewise.model.metric import Metric
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Deployment, Treatment
from hugewise.model.results import LeftOut
from hugewise.model.trial import DeliveryThreshold
from hugewise.session import progress, session
from hugewise.stats.family import methods_for
from hugewise.store.folder import RunFolder
from hugewise.store.records import ArmRecord, Begun, BlockClosed, BlockOpened, CellRecord, Closed
from hugewise.study.study import Study
from hugewise.study.tables import Design
from tests.advise.test_advice import SCREENED, found
from tests.build.hosts import FakeHost, Unheld
from tests.build.trials import attempt, begun, delivery

WALL = Metric("wall_s", "s", "lower", "time")
ANY = PageTarget("any", 4096)
TRIED = tuple(
    SettingCandidate(name=name, use={"name": name, "from": source, "mechanism": "process"}, reach="process", reason="r")
    for name, source in (("off", "base"), ("advised", "thp"))
)
TRUE = ("/bin/true", "-x")
MOST = 40  # blocks, after which a run of these has ended
ASKED = Question(workload=command(TRUE), seconds=120.0, confidence=0.9)


@dataclass
class Machine:
    """Where runs take no time. `levels`: log-times by arm; `memory`: peaks in 100 MiB; `stops`: after so many blocks,
    by study, or what is raised; `dies`: arms whose runs fail in every so-many-th block behind
    the screening (1: from the screening on, in all); `better` of the metric; `noise`: sd of a log-time.
    """

    levels: Mapping[str, float] = field(default_factory=dict)
    stops: dict[str, int | BaseException] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    memory: Mapping[str, float] = field(default_factory=dict)
    dies: tuple[str, ...] = ()
    every: int = 1
    better: Literal["lower", "higher"] = "lower"
    noise: float = 0.01
    begun: list[Study] = field(default_factory=list)
    resumed: list[Path] = field(default_factory=list)
    host: FakeHost = field(default_factory=FakeHost)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def run(
        self, study: Study, results: Path, *, listener: progress.Listener, lock: object, command: tuple[str, ...] = ()
    ) -> RunFolder:
        self.commands.append(command)
        gone = {left.policy for left in self.left_out}
        names = [use.name for use in study.policies if use.name not in gone]
        cell = CellRecord(
            id="command", workload="command", values={}, metric=msgspec.structs.replace(WALL, better=self.better),
            baseline=study.compared_with,
            delivery=DeliveryThreshold(0.0, 0.01),
            arms=tuple(
                ArmRecord(name, Treatment(policy=name, mechanism="process", target=ANY), 0, Deployment(note=""))
                for name in names
            ),
        )  # fmt: skip
        folder = begun(results, study, cells=(cell,), left_out=self.left_out)
        self.begun.append(study)
        listener(progress.Started(folder.run, str(folder.path), 1, 0, None))
        return self.conducted(study, folder, self.stops.pop(study.name, MOST))

    def conducted(self, study: Study, folder: RunFolder, most: int | BaseException) -> RunFolder:
        run = folder.read()
        methods, random = methods_for(study, run.opened.cells), np.random.default_rng(len(run.blocks))
        for block in run.blocks:
            for method in methods:
                method.observe(block)
        if isinstance(most, BaseException):
            raise most
        for number in range(len(run.blocks) + 1, most + 1):
            wanted = [method.contrast.arm for method in methods if method.decision().status == "continue"]
            if not wanted:
                break
            arms = [study.compared_with, *dict.fromkeys(wanted)]
            folder.append(BlockOpened(t=1000.0 + number, block=number, cell="command", session=1, arms=arms))
            for order, arm in enumerate(arms):
                folder.append(Begun(t=1000.0 + number, block=number, arms=[arm], number=1))
                wall: float | None = math.exp(self.levels.get(arm, 0.0) + random.normal(0, self.noise))
                late = study.name == "advise-confirmation" or (study.name != "advise-pilot" and self.every == 1)
                died = arm in self.dies and late and number % self.every == 0
                wall = None if died else wall
                made = attempt(
                    arm, 1.0, block=number, cell="command", order=order, wall_s=wall, metrics={"wall_s": wall},
                    state="failed" if died else "accepted", reason="exit status 1" if died else None,
                    peak_bytes=int(self.memory.get(arm, 1.0) * (100 << 20) * random.normal(1, 1e-3)),
                    delivery=delivery(None, target=ANY, coverage={"anon:4096": 1 << 20}),
                )  # fmt: skip
                folder.accept(folder.draft(f"b{number:05d}-{order}-{arm}-1"), made)
            folder.append(BlockClosed(t=1001.0 + number, block=number, state="complete"))
            closed = folder.read().blocks[-1]
            for method in methods:
                method.observe(closed)
        if most == MOST:
            folder.append(Closed(t=2000.0, state="finished", seed=bytes(16).hex()))
        return folder

    def resume(self, path: Path, *, listener: progress.Listener, lock: object) -> RunFolder:
        self.resumed.append(path)
        folder = RunFolder(path)
        return self.conducted(folder.read().study, folder, MOST)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine({"off": 0.2, "advised": -0.2})
    monkeypatch.setattr(session, "run", made.run)
    monkeypatch.setattr(session, "resume", made.resume)
    monkeypatch.setattr(phases, "candidates", lambda *_: (TRIED, []))
    monkeypatch.setattr(phases, "LocalHost", lambda: made.host)
    return made


def kept(folder: Path) -> Advice:
    return msgspec.json.decode((folder / "advice.json").read_bytes(), type=Advice)


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads((folder / "advice.json").read_text())
    change(told)
    (folder / "advice.json").write_text(json.dumps(told))


@pytest.mark.parametrize("whole", [False, True])
def test_candidates_that_the_workload_does_not_take_are_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """They are planned as the screening would be, with room for the program's memory in a pool."""
    asked: list[tuple[int, float]] = []

    def screening(_: Question, tried: object, pool: int, seconds: float, declared: int) -> object:
        asked.append((pool, seconds))
        return tried

    refused = [LeftOut(cell="w", policy=TRIED[0].name, reason="of its own")]
    refused += [LeftOut(cell="w", policy="*", reason="it is not there")] if whole else []
    monkeypatch.setattr(questions, "screening", screening)
    monkeypatch.setattr(phases, "make_plan", lambda _: SimpleNamespace(left_out=refused))
    before = [LeftOutCandidate(name="before", reason="no root")]
    found: Any = SimpleNamespace(memory=1 << 30)
    tried, left = phases._taken(ASKED, list(TRIED), before, found)
    assert tried == ([] if whole else list(TRIED[1:]))
    gone = {each.name: each.reason for each in left}
    others = {each.name: "it is not there" for each in TRIED[1:]} if whole else {}
    assert gone == {"before": "no root", TRIED[0].name: "of its own", **others}
    assert asked[0][0] > 1 << 30
    assert phases._taken(ASKED, [], before, found) == ([], before)
    assert len(asked) == 1  # nothing is planned for none


def test_from_the_pilot_to_the_answer(machine: Machine, tmp_path: Path) -> None:
    found, folder = phases.advise(ASKED, tmp_path)
    assert [study.name for study in machine.begun] == ["advise-pilot", "advise-screening", "advise-confirmation"]
    assert found.confirmed is not None
    assert (found.chosen, found.confirmed.verdict) == ("advised", "better")
    assert kept(folder) == found
    assert (folder / DETAILS).read_text() == whole(found)
    assert all(Path(one).is_absolute() for one in (found.pilot_folder, found.screening_folder))
    assert {study.workload[0].timeout for study in machine.begun} == {30.0}, "no phase waits longer than another"
    arms = analyze(Path(found.confirmation_folder)).cells[0].arms
    notes = {arm.arm: arm.deployment.note for arm in arms if arm.deployment is not None}
    assert "no policy of this version" not in notes["advised"], "its files are those of the policy that it is made of"


@pytest.mark.parametrize("name", ["Go", "jemalloc", "glibc"])
def test_a_program_that_works_by_the_clock_is_confirmed_one_arm_after_the_other(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(phases, "allocator_of", lambda *_: Allocator(name=name, tuned=False))
    in_turns = Design(kind="auto")
    monkeypatch.setattr(phases, "_as_pilot", lambda asked, _: msgspec.structs.replace(asked, design=in_turns))
    found, _ = phases.advise(ASKED, tmp_path)
    pilot, *_, confirmation = (study.design.kind for study in machine.begun)
    assert (pilot, confirmation) == ("auto", "auto" if name == "glibc" else "sequential")
    said = [f"{name} gives memory back by the clock: confirmed one arm after the other"]
    assert [one for one in found.remarks if "clock" in one] == (said if name != "glibc" else [])


@pytest.mark.parametrize("phase", ["pilot", "screening", "confirmation"])
def test_a_run_that_was_gone_on_with_to_its_end_by_itself_is_taken_as_it_is(
    machine: Machine, tmp_path: Path, phase: str
) -> None:
    """`hugewise resume` of its run ends it, and a run that has ended cannot be resumed."""
    machine.stops[f"advise-{phase}"] = 2
    found, folder = phases.advise(ASKED, tmp_path)
    assert found.arrived == phase
    run = Path(getattr(found, f"{phase}_folder"))
    machine.conducted(RunFolder(run).read().study, RunFolder(run), MOST)
    after, _ = phases.resume(folder)
    assert machine.resumed == []
    assert (after.arrived, getattr(after, f"{phase}_folder")) == ("finished", str(run))
    assert after.confirmed is not None


@pytest.mark.parametrize("phase", ["pilot", "screening", "confirmation"])
def test_whoever_is_killed_in_a_phase_goes_on_with_its_run(machine: Machine, tmp_path: Path, phase: str) -> None:
    machine.stops[f"advise-{phase}"] = HugewiseError("the power went")
    with pytest.raises(HugewiseError, match="the power went"):
        phases.advise(ASKED, tmp_path)
    (folder,) = (tmp_path / "advice").iterdir()
    begun_with = getattr(kept(folder), f"{phase}_folder")
    assert begun_with
    after, _ = phases.resume(folder)
    assert (after.arrived, machine.resumed) == ("finished", [Path(begun_with)])


def test_an_interrupt_between_two_phases_leaves_what_is_known(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(pilots, "judge_pilot", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        found, folder = phases.advise(ASKED, tmp_path)
    assert answer(found) == "No answer yet: interrupted in the pilot."
    assert phases.resume(folder)[0].arrived == "finished"


def test_an_advice_holds_the_host_through_all_its_phases(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, seen = Unheld(None), list[tuple[str, bool, int]]()

    def run(study: Study, results: Path, *, lock: object, **more: Any) -> RunFolder:
        seen.append((study.name, lock is held, held.depth))
        return machine.run(study, results, lock=lock, **more)

    monkeypatch.setattr(session, "run", run)
    assert phases.advise(ASKED, tmp_path, lock=held)[0].arrived == "finished"  # type: ignore[arg-type]
    assert seen == [(f"advise-{phase}", True, 1) for phase in ("pilot", "screening", "confirmation")]
    assert (held.taken, held.depth) == (1, 0)


def test_it_is_said_once_how_an_advice_goes_on(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(
        study: Study, results: Path, *, listener: progress.Listener, lock: object, command: tuple[str, ...]
    ) -> RunFolder:
        made = machine.run(study, results, listener=listener, lock=lock, command=command)
        listener(progress.Interrupted("to go on: hugewise resume", str(made.path)))
        return made

    monkeypatch.setattr(session, "run", run)
    machine.stops["advise-pilot"] = 1
    said: list[progress.Event] = []
    phases.advise(ASKED, tmp_path, listener=said.append)
    assert len([one for one in said if isinstance(one, progress.Message) and "to go on" in one.text]) == 1


def test_an_interrupt_before_there_is_anything_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> RunFolder:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", run)
    with pytest.raises(KeyboardInterrupt):
        phases.advise(ASKED, tmp_path)
    assert not (tmp_path / "advice").exists()


def test_time_that_is_over_is_none_and_not_less(machine: Machine, tmp_path: Path) -> None:
    machine.stops["advise-pilot"] = 2
    _, folder = phases.advise(ASKED, tmp_path)
    edited(folder, lambda told: told.update(seconds=500.0))
    said: list[str] = []

    def listener(event: progress.Event) -> None:
        said.extend([event.text] if isinstance(event, progress.Message) else [])

    found, _ = phases.resume(folder, listener=listener)
    assert (found.arrived, found.tried, found.screen, found.confirmed) == ("finished", (), None, None)
    assert found.more_time
    assert not any(one.startswith(("screening", "confirmation")) for one in said)


def test_of_short_time_one_candidate_has_all(machine: Machine, tmp_path: Path) -> None:
    """The screening would take a third of it, and then no verdict could come."""
    machine.stops["advise-pilot"] = 2
    _, folder = phases.advise(ASKED, tmp_path)
    (pilot,) = folder.parents[1].glob("advise-pilot/*")
    edited(folder, lambda told: told.update(seconds=0.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilots, "needed", lambda _, seconds, *rest: "2m" if seconds < 100 else "")
        found, _ = phases.resume(folder)
    assert pilot.is_dir()
    assert (len(found.tried), found.screen) == (1, None)
    assert found.confirmed is not None and found.confirmed.candidate == found.tried[0].name
    assert "the time has room for 1 candidate:" in found.left_out[-1].reason


def test_it_is_resumed_by_a_relative_name(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    machine.stops["advise-screening"] = 2
    _, folder = phases.advise(ASKED, Path("results"))
    edited(folder, lambda told: told.update(cwd=str(tmp_path / "results/advice")))
    monkeypatch.chdir(folder.parent)
    assert phases.resume(Path(folder.name))[0].arrived == "finished"
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "advice", "advise-pilot", "advise-screening", "advise-confirmation",
    }  # fmt: skip


def test_its_command_is_not_looked_for_elsewhere(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.stops["advise-pilot"] = 1
    _, folder = phases.advise(ASKED, tmp_path)
    (tmp_path / "other").mkdir()
    before = Path.cwd()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(UserError, match="its command is run in") as caught:
        phases.resume(folder)
    assert f"cd {before}" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chosen": "nobody"}, "'nobody', which it has not tried"),
        ({"format": 1}, "of the format 1"),
        ({"pilot": None, "pilot_folder": "/nowhere"}, "/nowhere"),
        ({"question": {"workload": command(["/bin/true"]), "margin": 0.7}}, "margin"),
        ({"question": {"workload": command([])}}, "argv"),
    ],
)
def test_a_record_that_was_edited_is_refused_in_words(
    machine: Machine, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    machine.stops["advise-confirmation"] = 1
    _, folder = phases.advise(ASKED, tmp_path)
    edited(folder, lambda told: told.update(change))
    with pytest.raises((UserError, HugewiseError), match=words) as caught:
        phases.resume(folder)
    assert caught.value.hint


def test_a_run_of_something_else_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.stops["advise-screening"] = 2
    found, folder = phases.advise(ASKED, tmp_path)
    edited(folder, lambda told: told.update(screening_folder=found.pilot_folder))
    with pytest.raises(UserError, match="no run of this advice"):
        phases.resume(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.4}, "confidence"),
        ({"margin": 0.0}, "margin"),
        ({"margin": 0.6}, "margin"),
        ({"workload": command(TRUE, metric="nonsense")}, "nonsense"),
        ({"workload": command(TRUE, metric="")}, "metric"),
        ({"workload": command(TRUE, values=("n,neutral=regex:x",))}, "neither better high nor low"),
        ({"workload": command(TRUE, values=("x1,lower=regex:((",))}, "metric"),
        ({"workload": command(("a\0b",))}, "NUL"),
        ({"workload": command((os.fsdecode(b"./\xff"),))}, "Unicode"),
        ({"seconds": 9.0}, "less than 10 s"),
    ],
)
def test_what_is_wrong_with_the_question_is_said_before_anything_is_run(
    machine: Machine, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises((UserError, StudyError), match=words) as caught:
        phases.advise(msgspec.structs.replace(ASKED, **changes), tmp_path)
    assert caught.value.hint
    assert machine.begun == []
    assert not (tmp_path / "advice").exists()


def test_a_candidate_that_cannot_be_run_here_is_said_to_be(machine: Machine, tmp_path: Path) -> None:
    machine.stops["advise-screening"] = 0
    found, folder = phases.advise(ASKED, tmp_path)
    run = Path(found.screening_folder)
    assert found.arrived == "screening"
    machine.left_out = (LeftOut("command", "off", "the kernel granted 0"),)
    edited(folder, lambda told: told.update(screening_folder=""))
    after, _ = phases.resume(folder)
    assert after.screen is not None
    assert after.screening_folder != str(run)
    assert after.chosen == "advised"
    assert any("Tried: off" in one and "could not be run here: the kernel granted 0" in one for one in details(after))


def test_the_pool_that_was_asked_for_is_known_memory(machine: Machine) -> None:
    seen: list[ProgramHere] = []
    pilot = pilots.ProgramAsIs(
        runs=6, wall_s=1.0, block_s=2.0, sd=None, coverage={}, memory=0, faults=None, same_output=None
    )
    seen.append(phases._found(pilot, msgspec.structs.replace(ASKED, pool=1 << 30)))
    assert (seen[0].memory, seen[0].huge) == (1 << 30, None)
    assert questions.pilot_study(ASKED).confidence == 0.9


def test_the_time_decides_how_many_candidates_are_screened(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of two runs take 10 s; three candidates and the program as it is take 20 s a block."""
    seen = SimpleNamespace(block_s=10.0)
    wanted = []

    def needed(_: object, seconds: float, *rest: float) -> str:
        wanted.append(seconds)
        return "" if seconds >= 100 else "9m"

    monkeypatch.setattr(pilots, "needed", needed)
    fits: Any = phases._candidates_that_fit
    assert [fits(seen, 3, left, 0.01, 2) for left in (99, 100, 151, 179, 181, 239, 241)] == [0, 1, 1, 1, 2, 2, 3]


def test_the_forecast_is_for_the_time_that_the_screening_leaves(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    def time_remark(_: object, seconds: float, *__: object) -> str:
        left.append(seconds)
        return ""

    monkeypatch.setattr(phases.Asking, "left", property(lambda _: 100.0))
    monkeypatch.setattr(pilots, "time_remark", time_remark)
    monkeypatch.setattr(phases, "_screening_s", lambda *_: 30.0)
    phases.advise(ASKED, tmp_path)
    monkeypatch.setattr(phases, "_candidates_that_fit", lambda *_: 1)
    phases.advise(ASKED, tmp_path)
    assert left == [70.0, 100.0]
    budgets = [study.budget.time for study in machine.begun if study.name == "advise-screening"]
    assert budgets == [30.0]


@pytest.mark.parametrize(
    ("unsure", "late", "seconds"), [(None, False, 60.0), (False, False, 60.0), (True, True, 80.0), (None, True, 90.0)]
)
def test_a_longer_advice_has_its_screening_too(unsure: bool | None, late: bool, seconds: float) -> None:
    screen = None if unsure is None else SimpleNamespace(unsure=unsure)
    advice: Any = SimpleNamespace(screen=screen, time_for_all="8m" if late else "")
    assert phases._with_screening(advice, 60.0) == pytest.approx(seconds)


def test_what_the_time_has_no_room_for_is_named_with_the_time_that_has(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_candidates_that_fit", lambda *_: 1)
    monkeypatch.setattr(phases, "_time_for_all", lambda *_: "8m")
    machine.levels = dict.fromkeys(("off", "advised"), 0.2)
    found, folder = phases.advise(ASKED, tmp_path)
    assert found.confirmed is not None and found.confirmed.verdict == "worse"
    assert [one.name for one in found.left_out if one.late] == ["advised"]
    told = " ".join(ending(found, folder))
    assert "Not tried for lack of time: `advised`. With all candidates this workload takes 8m." in told
    machine.levels = dict.fromkeys(("off", "advised"), -0.5)
    found, folder = phases.advise(ASKED, tmp_path)
    assert "lack of time" not in " ".join(ending(found, folder))


def test_the_time_for_all_candidates_has_room_for_them() -> None:
    """Blocks of two runs take 15 s: a longer time has a longer pilot, too."""
    seen = pilots.ProgramAsIs(
        runs=2, wall_s=5.0, block_s=15.0, sd=None, coverage={}, memory=0, faults=None, same_output=None
    )
    asked = msgspec.structs.replace(ASKED, seconds=180.0, confidence=0.99)
    time = phases._time_for_all(seen, asked, 6, 16.0)
    seconds = 60.0 * float(time.removesuffix("m"))

    def fit(given: float) -> int:
        left = given - (given * questions.PILOT_SHARE + seen.block_s)
        return phases._candidates_that_fit(seen, 6, left, 0.01, asked.copies)

    assert (fit(180.0) < 6, fit(seconds), fit(seconds / 1.3) < 6) == (True, 6, True)
    assert not phases._time_for_all(msgspec.structs.replace(seen, block_s=9000.0), asked, 6, 16.0)


def test_a_screening_has_a_quarter_of_the_time_and_a_third_for_its_fewest_blocks() -> None:
    seen: Any = SimpleNamespace(block_s=10.0)  # 80 s for three candidates
    assert [phases._screening_s(seen, 3, left) for left in (320.0, 300.0, 180.0)] == [80.0, 100.0, 60.0]


def test_an_undecided_answer_names_the_time_and_the_metric_that_decide(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (TRIED[1:], []))
    machine.levels, machine.noise = {"advised": -0.05}, 0.2
    monkeypatch.setattr(decision, "decisive", lambda *_: "cpu_s was lower in 20 of 20 pairs")
    found, folder = phases.advise(ASKED, tmp_path)
    assert found.confirmed is not None and found.confirmed.verdict == "undecided"
    assert found.more_time and f"Give --time {found.more_time} or more." in answer(found)
    assert "cpu_s was lower in 20 of 20 pairs." in ending(found, folder)


def test_what_a_service_loads_is_said_by_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so")
    made = questions.service(("a",), ("b",), seconds=60.0, environment=("LD_PRELOAD=/lib/its.so", "A=b=c"))
    found = questions.environment(questions.Question(workload=made))
    assert found is not None
    assert (found["LD_PRELOAD"], found["A"]) == ("/lib/its.so", "b=c")
    bare = questions.environment(questions.Question(workload=questions.service(("a",), ("b",), seconds=60.0)))
    assert bare is not None
    assert "LD_PRELOAD" not in bare
    assert questions.environment(questions.Question(workload=questions.command(("a",)))) is None


THREE = (*TRIED, msgspec.structs.replace(TRIED[0], name="other", use={"name": "other", "from": "base"}))


def test_the_runner_up_is_measured_beside_the_chosen_one(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (THREE, []))
    machine.levels = {"off": -0.2, "advised": 0.3, "other": -0.2}
    found, _ = phases.advise(ASKED, tmp_path)
    assert found.screen is not None
    assert (found.chosen, found.screen.runner_up, found.beside) == ("off", "other", "other")
    study = machine.begun[-1]
    assert study.unjudged == ("other",)
    assert [use.name for use in study.policies] == ["as-is", "off", "other"]
    last = found.confirmed
    assert last is not None
    assert [(one.name, one.known) for one in last.measured] == [
        ("as-is", "confirmed"), ("off", "confirmed"), ("other", "beside"),
    ]  # fmt: skip
    assert (last.candidate, last.verdict) == ("off", "better")
    assert last.confidence == pytest.approx(0.9), "its error rate is not shared"
    assert [row.name for row in settings(found)] == ["as-is", "off", "advised", "other"]


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_an_arm_whose_runs_fail_is_said_to_fail(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: Literal["lower", "higher"]
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (THREE, []))
    machine.dies, machine.better, machine.levels = ("off",), better, {}
    found, folder = phases.advise(ASKED, tmp_path)
    assert found.screen is not None
    assert found.screen.estimates["off"] is None
    assert "off" not in (found.chosen, found.beside)
    (line,) = (one for one in details(found) if one.startswith("Tried: off"))
    assert "runs failed (as-is is better" in line
    assert "about" not in line
    assert kept(folder) == found


@pytest.mark.parametrize(
    ("dies", "begins"),
    [
        ("off", "Leave it as it is: runs of `off` failed, whatever it does to the others (wall_s "),
        ("as-is", "Set `off`: wall_s "),
    ],
)
def test_nobody_is_told_to_set_what_runs_fail_under(machine: Machine, tmp_path: Path, dies: str, begins: str) -> None:
    """A pool that is short now and then kills the program: its interval, of typical pairs, is as good as before."""
    machine.levels, machine.dies, machine.every = {"off": -0.3, "advised": 0.1}, (dies,), 7
    found, _ = phases.advise(ASKED, tmp_path)
    assert found.confirmed is not None
    assert recommended(found) == begins.startswith("Set")
    assert answer(found).startswith(begins)
    assert "runs failed" in answer(found)


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("dies", [("as-is",), ("off", "advised", "other")])
def test_where_runs_fail_there_is_an_answer(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    better: Literal["lower", "higher"],
    dies: tuple[str, ...],
) -> None:
    monkeypatch.setattr(phases, "candidates", lambda *_: (THREE, []))
    machine.dies, machine.better, machine.levels = dies, better, {}
    found, folder = phases.advise(ASKED, tmp_path)
    assert found.arrived == "finished"
    assert answer(found).startswith("Set" if dies == ("as-is",) else ("Leave", "No answer"))
    again, _ = phases.resume(folder)
    assert list(details(again)) == list(details(found))
    assert answer(again) == answer(found), "what is read again says the same"
    if found.confirmed is not None and found.confirmed.failed:
        assert "runs failed" in answer(found)


def test_whoever_goes_on_later_has_the_same_arms(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less time left there would be no runner-up: its run has one."""
    monkeypatch.setattr(phases, "candidates", lambda *_: (THREE, []))
    machine.levels = {"off": -0.2, "advised": 0.3, "other": -0.2}
    machine.stops["advise-confirmation"] = 2
    found, folder = phases.advise(ASKED, tmp_path)
    assert (found.arrived, found.beside) == ("confirmation", "other")
    edited(folder, lambda told: told.update(seconds=119.0))
    after, _ = phases.resume(folder)
    assert (after.arrived, machine.resumed) == ("finished", [Path(found.confirmation_folder)])
    assert after.confirmed is not None
    assert len(after.confirmed.measured) == 3


def test_whoever_finds_a_run_of_an_advice_reads_of_which_program_it_is() -> None:
    asked = questions.Question(workload=questions.command(["./prog", "a b\n"]))
    assert questions.pilot_study(asked).question == "What to set for: ./prog 'a b '"
    served = questions.Question(workload=questions.service(("serve", "-p"), ("ask",), seconds=60.0))
    assert questions.pilot_study(served).question == "What to set for: serve -p"
    assert len(questions.pilot_study(questions.Question(workload=questions.command(["x" * 900]))).question) <= 200


PILOT = ProgramAsIs(
    runs=6, wall_s=1.0, block_s=2.0, sd=0.02, coverage={}, memory=1 << 20, faults=None, same_output=None
)


def advice(runner_up: str) -> Advice:
    return found(confirmed=None, screen=msgspec.structs.replace(SCREENED, runner_up=runner_up))


@pytest.mark.parametrize(("seconds", "who"), [(600.0, "pool-2m"), (120.0, "pool-2m"), (80.0, ""), (1.0, "")])
def test_the_runner_up_is_measured_where_the_time_allows(seconds: float, who: str) -> None:
    """Of 2 s a block of two: 120 s hold 40 pairs of three attempts, and a verdict at 99% takes 8 to 10 pairs."""
    assert runner_up_of(advice("pool-2m"), PILOT, seconds) == who


def test_the_runner_up_is_planned_with_the_copies_of_the_design() -> None:
    """125 s hold 41 pairs of three attempts; four times the fewest are 40 with two copies and 44 with one."""
    for copies, who in ((None, "pool-2m"), (1, "")):
        asked = advice("pool-2m")
        asked.question = msgspec.structs.replace(asked.question, design=Design(kind="auto", copies=copies))
        assert runner_up_of(asked, PILOT, 125.0) == who


def test_where_there_is_no_runner_up_nobody_is() -> None:
    assert runner_up_of(advice(""), PILOT, 600.0) == ""
    assert runner_up_of(found(screen=None), PILOT, 600.0) == ""
