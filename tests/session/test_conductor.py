"""What the conductor asks for, with attempts that take no time and methods that decide when a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.analysis import budget
from hugewise.attempt import runner
from hugewise.attempt.context import Disturbed, RunContext
from hugewise.errors import AttemptLostError, HugewiseError, MachineError
from hugewise.machine.machine import Drift
from hugewise.model import trial as design
from hugewise.model.design import Kind
from hugewise.model.host import Clock
from hugewise.model.pages import PageTarget
from hugewise.model.policy import Treatment
from hugewise.model.trial import Attempt, Block, DeliveryThreshold, Trial
from hugewise.plan.arms import Arm
from hugewise.plan.plan import Cell
from hugewise.quantity import format_duration
from hugewise.report.reasons import in_words
from hugewise.session import progress
from hugewise.session.conductor import Conductor
from hugewise.stats.method import Contrast, Decision, Method
from hugewise.stats.pairs import Pairs
from hugewise.stats.power import least_pairs
from hugewise.stats.screening import Screened, Screening
from hugewise.stats.sequential import Sequential, Unjudged
from hugewise.store.folder import RunFolder
from hugewise.store.records import BlockClosed, BlockOpened, Noted, Resumed
from hugewise.study.load import parse
from hugewise.study.study import Study
from tests.build import known
from tests.build.logs import rewritten
from tests.build.trials import LOWER, begun
from tests.build.trials import attempt as example

SEED = bytes(range(16))
STUDY = """
format = 1
name = "s"
policies = ["base", "thp", "mthp-64k"]
window = "5m"
[budget]
blocks = 3
[[workload]]
name = "chase"
"""


@dataclass
class Decides:
    """A method that decides after so many complete blocks."""

    contrast: Contrast
    after: int
    planned: int = 3
    name: str = "test"
    seen: list[int] = field(default_factory=list)

    def observe(self, block: Block) -> Decision:
        arms = {attempt.arm for attempt in block.attempts}
        if block.state == "complete" and block.cell == self.contrast.cell and self.contrast.arm in arms:
            self.seen.append(block.number)
        return self.decision()

    def decision(self) -> Decision:
        if len(self.seen) >= self.after:
            return Decision("stop", None, "better", "")
        return Decision("continue", None, "undecided", "")


@dataclass
class FakeSettings:
    yielded: list[Drift] = field(default_factory=list)
    initial: dict[str, str] = field(default_factory=dict)

    def acknowledge(self, drifts: list[Drift]) -> None:
        self.yielded += drifts


def cell(
    name: str,
    *arms: str,
    together: bool = False,
    kind: Kind = "sequential",
    at_most: int | None = None,
    copies: int = 1,
) -> Cell:
    def arm(each: str) -> Arm:
        treatment = Treatment(policy=each, mechanism="system", target=PageTarget("any", 4096))
        return Arm(each, None, treatment)  # type: ignore[arg-type]

    return Cell(
        id=name,
        workload=None,  # type: ignore[arg-type]
        values={},
        metric=LOWER,
        baseline="base",
        arms=tuple(arm(each) for each in ("base", *arms)),
        timeout=1.0,
        delivery=DeliveryThreshold(0.95, 0.01),
        cpus=None,
        together=together,
        kind=kind,
        at_most=at_most,
        copies=copies,
    )


class ProcedureRunner:
    """A run folder, a clock that a test moves, and a runner that the test scripts; `asked` has what ran at once."""

    def __init__(self, path: Path, study: str = STUDY) -> None:
        self.study: Study = parse(study, "test.toml")
        self.now, self.jump = 1000.0, 0.0
        clock = Clock(wall=lambda: 1e9 + self.now + self.jump, up=lambda: self.now)
        self.folder = begun(path, self.study, seed=SEED, clock=clock)
        self.ran: list[tuple[int, str, str, int]] = []
        self.script: Callable[[Trial, int], str] = accepted
        self.events: list[progress.Event] = []
        self.open: list[tuple[str, list[str]]] = []
        self.settings = FakeSettings()
        self.asked: list[tuple[int, tuple[str, ...], int, str]] = []

    def attempt(self, bench: RunContext, cell: Cell, arm: Arm, trial: Trial, number: int) -> Attempt:
        self.ran.append((trial.block, cell.id, trial.label, number))
        state: Any = self.script(trial, number)
        self.now += 1.0
        made = example(
            arm.name, 1.0, block=trial.block, cell=cell.id, state=state, order=trial.order, copy=trial.copy,
            ended=self.now, started=self.now - 1, reason="no room" if state == "rejected" else None,
        )  # fmt: skip
        bench.folder.accept(bench.folder.draft(f"b{trial.block:05d}-{trial.order}-{arm.name}-{number}"), made)
        return made

    def conduct(
        self,
        cells: list[Cell],
        after: dict[tuple[str, str], int],
        *,
        boot: str = "b",
        beside: Sequence[Method] = (),
    ) -> list[Decides]:
        methods = [
            Decides(Contrast(each.id, arm.name, "base", LOWER), after.get((each.id, arm.name), 3))
            for each in cells
            for arm in each.arms
            if arm.name != "base"
        ]
        bench = RunContext(
            host=None,  # type: ignore[arg-type]
            boarding=None,  # type: ignore[arg-type]
            study=self.study,
            settings=self.settings,  # type: ignore[arg-type]
            folder=self.folder,
            session=1,
            boot_id=boot,
            pools={2 << 20: 4},
        )
        conductor = Conductor(bench, self.folder.read(), cells, [*methods, *beside], SEED, self.hear)
        ended = conductor.conduct()
        self.state = None if ended is None else ended.state
        return methods

    def together(
        self,
        bench: RunContext,
        cell: Cell,
        arms: list[tuple[Arm, Trial]],
        number: int,
        *,
        turns: str = "",
    ) -> list[Attempt]:
        self.asked.append((arms[0][1].block, tuple(trial.label for _, trial in arms), number, turns))
        return [self.attempt(bench, cell, arm, trial, number) for arm, trial in arms]

    def hear(self, event: progress.Event) -> None:
        self.events.append(event)
        if isinstance(event, progress.BlockEnded):
            self.open.append((event.cell, [each.arm for each in event.comparisons()]))

    def ended(self) -> list[progress.BlockEnded]:
        return [event for event in self.events if isinstance(event, progress.BlockEnded)]

    def left(self, session: int = 1, draft: int = 1, **changes: Any) -> str:
        """Leave block 1 open, with an attempt of the arm whose turn is first; this arm."""
        first = design.draw_order(SEED, 1, ["base", "thp"])[0].arm
        self.folder.append(BlockOpened(t=1000.0, block=1, cell="one", session=session, arms=["base", "thp"]))
        changes = {"session": session, "ended": 1000.0} | changes
        made = example(first, 1.0, block=1, cell="one", **changes)
        self.folder.accept(self.folder.draft(f"b00001-0-{first}-{draft}"), msgspec.structs.replace(made, number=draft))
        return first

    def opened(self) -> list[tuple[int, str, tuple[str, ...]]]:
        records = [record for record in self.folder.read().records if isinstance(record, BlockOpened)]
        return [(record.block, record.cell, tuple(sorted(record.arms))) for record in records]


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcedureRunner:
    made = ProcedureRunner(tmp_path, getattr(request, "param", STUDY))
    monkeypatch.setattr(runner, "attempt", made.attempt)
    monkeypatch.setattr(runner, "run_together", made.together)
    return made


def of(study: str) -> pytest.MarkDecorator:
    """The test's stage plays this study."""
    return pytest.mark.parametrize("stage", [study], indirect=True)


class KilledError(Exception):
    """Hugewise ended here."""


def accepted(trial: Trial, number: int) -> str:
    return "accepted"


def raising(error: BaseException, when: Callable[[Trial], bool]) -> Callable[[Trial, int], str]:
    """A script in which that trial ends with the error."""

    def script(trial: Trial, number: int) -> str:
        if when(trial):
            raise error
        return "accepted"

    return script


def rejecting(block: int, arm: str, number: int | None = None) -> Callable[[Trial, int], str]:
    """A script in which the host fails that trial: in that try, or in all."""

    def script(trial: Trial, at: int) -> str:
        return "rejected" if (trial.block, trial.arm, at) == (block, arm, number or at) else "accepted"

    return script


def test_cells_are_interleaved_block_by_block(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp"), cell("two", "thp")], {})
    assert [name for _, name, _ in stage.opened()] == ["one", "two"] * 3
    assert stage.state == "finished"


COUNTING = """
[guest]
arch = "x86-64"
counting = true

[[kernel]]
name = "k"
package = "linux-image-cloud-amd64"
"""


@pytest.mark.parametrize(("stage", "padded"), [(STUDY, True), (STUDY + COUNTING, False)], indirect=["stage"])
def test_pads_are_drawn_but_for_guests_that_count(stage: ProcedureRunner, padded: bool) -> None:
    pads = set[int]()

    def script(trial: Trial, _: int) -> str:
        pads.add(trial.environment_pad)
        return "accepted"

    stage.script = script
    stage.conduct([cell("one", "thp")], {})
    assert (len(pads) > 1, pads == {0}) == (padded, not padded)


def test_a_decided_arm_leaves_and_the_baseline_stays_until_the_last(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", "mthp-64k")], {("one", "thp"): 1, ("one", "mthp-64k"): 3})
    assert [arms for _, _, arms in stage.opened()] == [
        ("base", "mthp-64k", "thp"),
        ("base", "mthp-64k"),
        ("base", "mthp-64k"),
    ]
    assert [(event.decided, event.judged) for event in stage.ended()] == [(1, 2), (1, 2), (2, 2)]


def test_a_cell_that_is_decided_gives_its_time_to_the_others(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp"), cell("two", "thp")], {("one", "thp"): 1})
    assert [name for _, name, _ in stage.opened()] == ["one", "two", "two", "two"]


@of(STUDY.replace("blocks = 3", 'blocks = 100\ntime = "7s"'))
def test_the_time_budget_ends_a_run_between_blocks(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp")], {("one", "thp"): 100})
    assert stage.state == "time is up"
    assert len(stage.opened()) == 3  # 2 s each: a fourth would end after 8 s
    assert all(block.state == "complete" for block in stage.folder.read().blocks)


FUTILE = STUDY.replace("blocks = 3", 'blocks = 100\ntime = "60s"\nfutility = "5%"')


@pytest.mark.parametrize(
    ("stage", "blocks"),
    [(FUTILE, 4), (FUTILE.replace('futility = "5%"', ""), 30), (FUTILE.replace("60s", "16m"), 21)],
    indirect=["stage"],
)
def test_a_run_ends_where_its_time_will_hardly_decide(
    stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """Only with the study's `futility`, and by the pairs that fit into the time that is left, of those declared."""
    asked: list[int] = []

    def futile(self: Sequential, more: int, worth: float) -> bool:
        asked.append(more)
        return len(self.pairs.usable) >= 4 and more < 80 and worth == 0.05

    monkeypatch.setattr(Sequential, "futile", futile)
    (one,) = cells = [cell("one", "thp")]
    method = Sequential(
        Contrast(one.id, "thp", "base", LOWER, proof_demanded=False), planned=100, alpha=1e-9, margin=0.02
    )
    stage.conduct(cells, {("one", "thp"): 0}, beside=[method])
    assert len(stage.opened()) == blocks
    closed = known(stage.folder.read().closed)
    if blocks == 30:
        assert (stage.state, closed.early, asked) == ("time is up", "", [])
        return
    assert stage.state == "finished"
    spared = "52.0 s" if blocks == 4 else "15 min 18 s"
    assert closed.early == f"ended {spared} before its time: the pairs that fit into it would hardly change the answer"
    assert closed.early in {event.text for event in stage.events if isinstance(event, progress.Message)}
    assert asked == [29, 28, 27, 26] if blocks == 4 else [*range(99, 78, -1)]


@of(STUDY.replace("blocks = 3", 'blocks = 8\ntime = "1h"\nfutility = "5%"'))
def test_the_pairs_of_an_arm_that_are_left_are_its_own(stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three arms are in a block: after eight blocks some of an arm's eight pairs are still to come."""
    asked: list[tuple[str, int]] = []

    def futile(self: Sequential, more: int, worth: float) -> bool:
        asked.append((self.contrast.arm, more))
        return self.contrast.arm == "thp"

    monkeypatch.setattr(Sequential, "futile", futile)
    (one,) = cells = [cell("one", "thp", "mthp-64k", at_most=2)]
    arms = ("thp", "mthp-64k")
    methods = [
        Sequential(Contrast(one.id, arm, "base", LOWER, proof_demanded=False), planned=8, alpha=1e-9, margin=0.02)
        for arm in arms
    ]
    stage.conduct(cells, {("one", arm): 0 for arm in arms}, beside=methods)
    assert len(stage.opened()) > 8
    assert sum("mthp-64k" in arms for _, _, arms in stage.opened()) == 8, "to its end, as it is not futile"
    first, second = ([more for arm, more in asked if arm == name] for name in arms)
    assert (first[0], second[0]) == (7, 8), "after the first block"
    assert {*second} == {*range(1, 9)}
    assert min(first) >= 1


@of(FUTILE)
def test_a_run_goes_on_while_one_of_its_cells_may_be_decided(
    stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screening is asked as well as a verdict."""

    def futile(self: Sequential | Screened, more: int, worth: float) -> bool:
        return self.contrast.cell == "one" or len(stage.opened()) >= 10

    monkeypatch.setattr(Sequential, "futile", futile)
    monkeypatch.setattr(Screened, "futile", futile)
    cells = [cell("one", "thp"), cell("two", "thp")]
    first, second = (Contrast(each.id, "thp", "base", LOWER, proof_demanded=False) for each in cells)
    methods: list[Method] = [
        Sequential(first, planned=100, alpha=1e-9, margin=0.02),
        Screened(second, Screening([second], planned=100, alpha=1e-9, margin=0.02)),
    ]
    stage.conduct(cells, {("one", "thp"): 0, ("two", "thp"): 0}, beside=methods)
    assert (stage.state, len(stage.opened())) == ("finished", 10)


@of(FUTILE)
def test_a_cell_that_is_given_up_has_its_second_try_before_a_run_ends_early(
    stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sequential, "futile", lambda self, more, worth: len(stage.opened()) >= 8)
    stage.script = all_failing(stage, "one")
    cells = [cell("one", "thp"), cell("two", "thp")]
    methods = [
        Sequential(Contrast(each.id, "thp", "base", LOWER, proof_demanded=False), planned=100, alpha=1e-9, margin=0.02)
        for each in cells
    ]
    stage.conduct(cells, {("one", "thp"): 0, ("two", "thp"): 0}, beside=methods)
    assert stage.state == "time is up"


@of(FUTILE.replace('name = "s"', 'name = "s"\nmethod = "sequential"\nunjudged = ["mthp-64k"]'))
def test_an_arm_that_is_not_judged_prolongs_no_run(stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequential, "futile", lambda self, more, worth: self.contrast.arm == "thp")
    one = cell("one", "thp", "mthp-64k")
    judged, beside = (Contrast("one", arm, "base", LOWER, proof_demanded=False) for arm in ("thp", "mthp-64k"))
    judging = Sequential(judged, planned=100, alpha=1e-9, margin=0.02)
    methods: list[Method] = [judging, Unjudged(beside, [judging], planned=100, alpha=1e-9, margin=0.02)]
    stage.conduct([one], {("one", "thp"): 0, ("one", "mthp-64k"): 0}, beside=methods)
    assert (stage.state, len(stage.opened())) == ("finished", 1)


def test_a_trial_is_tried_again_only_when_the_host_failed_it(stage: ProcedureRunner) -> None:
    stage.script = rejecting(1, "thp", 1)
    stage.conduct([cell("one", "thp")], {})
    assert [number for block, _, arm, number in stage.ran if (block, arm) == (1, "thp")] == [1, 2]


def test_a_failure_of_the_workload_counts_and_is_not_repeated(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, number: "failed" if trial.arm == "thp" else "accepted"
    (method,) = stage.conduct([cell("one", "thp")], {})
    assert {number for *_, number in stage.ran} == {1}
    assert method.seen == [1, 2, 3]


LONG = STUDY.replace("blocks = 3", "blocks = 40")


def all_failing(stage: ProcedureRunner, cell: str) -> Callable[[Trial, int], str]:
    """Nothing succeeds in that cell; the stage knows of each attempt where it is made."""
    return lambda trial, number: "failed" if stage.ran[-1][1] == cell else "accepted"


@of(LONG)
def test_a_run_in_which_nothing_succeeds_ends_with_the_reason_and_can_be_resumed(stage: ProcedureRunner) -> None:
    stage.script = all_failing(stage, "one")
    for blocks in (3, 6):  # resumed it tries again
        with pytest.raises(HugewiseError, match="every attempt failed in the 3 blocks of one; the last: ") as found:
            stage.conduct([cell("one", "thp")], {("one", "thp"): 40})
        assert f"hugewise resume {stage.folder.path}" in (found.value.hint or "")
        run = stage.folder.read()
        assert [block.state for block in run.blocks] == ["complete"] * blocks  # what failed counts as such
        assert run.closed is None
    stage.script = accepted
    stage.conduct([cell("one", "thp")], {("one", "thp"): 10})
    assert stage.state == "finished"


@of(LONG)
def test_a_cell_in_which_nothing_succeeds_leaves_its_time_to_the_others(stage: ProcedureRunner) -> None:
    stage.script = all_failing(stage, "one")
    stage.conduct([cell("one", "thp"), cell("two", "thp")], {("one", "thp"): 8, ("two", "thp"): 8})
    assert stage.state == "finished"
    run = stage.folder.read()
    cells = [block.cell for block in run.blocks]
    assert (cells.count("one"), cells.count("two")) == (4, 8)
    assert cells[-1] == "one"  # tried once more when the other had all that it needed
    noted, again = (record.text for record in run.records if isinstance(record, Noted))
    assert noted.startswith("every attempt failed in the 3 blocks of one; ") and noted.endswith("is given up")
    assert again == noted.replace("the 3 blocks", "the 4 blocks")
    assert noted in {one.text for one in stage.events if isinstance(one, progress.Message)}


@of(LONG)
def test_a_cell_whose_outage_is_over_by_then_is_measured_after_the_others(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, number: "failed" if stage.ran[-1][1] == "one" and trial.block < 9 else "accepted"
    one, two = stage.conduct([cell("one", "thp"), cell("two", "thp")], {("one", "thp"): 8, ("two", "thp"): 8})
    assert stage.state == "finished"
    assert (len(one.seen), len(two.seen)) == (8, 8)


@of(LONG)
def test_disturbed_blocks_give_no_cell_up(stage: ProcedureRunner) -> None:
    drift = Drift("/sys/kernel/mm/transparent_hugepage/enabled", "never", "always")
    fails = all_failing(stage, "one")

    def script(trial: Trial, number: int) -> str:
        if trial.block <= 3 and trial.order == 1:
            raise Disturbed([drift])
        return fails(trial, number) if trial.block <= 5 else "accepted"

    stage.script = script
    stage.conduct([cell("one", "thp")], {("one", "thp"): 5})
    assert stage.state == "finished"


@pytest.mark.parametrize("works", ["base", "thp", "once"])
@of(LONG)
def test_a_cell_in_which_anything_succeeded_is_never_given_up(stage: ProcedureRunner, works: str) -> None:
    """Of an arm alone, or of all before the disk was full: that ends, and the run goes on."""

    def state(trial: Trial, number: int) -> str:
        good = trial.block == 1 if works == "once" else trial.arm == works
        return "accepted" if good else "failed"

    stage.script = state
    (method,) = stage.conduct([cell("one", "thp")], {("one", "thp"): 9})
    assert (method.seen, stage.state) == ([*range(1, 10)], "finished")


@of(LONG)
def test_a_cell_is_not_given_up_before_each_of_its_arms_was_tried(stage: ProcedureRunner) -> None:
    """Where not all of them fit at once, the coin draws some for each block."""
    stage.script = all_failing(stage, "one")
    arms = ("thp", "mthp-64k", "mthp-128k", "mthp-256k")
    with pytest.raises(HugewiseError, match="every attempt failed"):
        stage.conduct([cell("one", *arms, at_most=2)], {("one", arm): 40 for arm in arms})
    assert {arm for _, _, arm, _ in stage.ran} == {"base", *arms}
    assert len(stage.folder.read().blocks) >= len(arms)


def test_a_short_run_in_which_all_fails_finishes_as_planned(stage: ProcedureRunner) -> None:
    stage.script = all_failing(stage, "one")
    (method,) = stage.conduct([cell("one", "thp")], {})
    assert method.seen == [1, 2, 3]


def test_a_trial_that_cannot_be_had_leaves_its_block_incomplete_and_gives_up_in_the_end(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, number: "rejected" if trial.arm == "thp" else "accepted"
    with pytest.raises(HugewiseError, match="5 blocks in a row do not count.*no room") as caught:
        stage.conduct([cell("one", "thp")], {})
    assert "hugewise resume" in (caught.value.hint or "")
    blocks = stage.folder.read().blocks
    assert [block.state for block in blocks] == ["incomplete"] * 5
    assert {attempt.state for block in blocks for attempt in block.attempts} == {"abandoned"}


def test_a_guest_that_never_boots_ends_the_run_with_its_own_cure(stage: ProcedureRunner) -> None:
    """Nothing interferes: the guest has too little memory, and the boot has said so."""

    def too_small(trial: Trial, number: int) -> str:
        error = MachineError("the guest ended before it said hello\n  console: panic", hint="give the guest more")
        error.arm = trial.arm
        raise error

    stage.script = too_small
    with pytest.raises(HugewiseError, match="blocks? in a row do not count") as caught:
        stage.conduct([cell("one", "thp")], {})
    assert "said hello (give the guest more)" in caught.value.message
    hint = caught.value.hint or ""
    assert hint.startswith("give the guest more; then: hugewise resume ")
    assert hint.endswith("or a new run where that changes the study")
    assert "interferes" not in hint


def test_a_disturbed_block_is_named_counts_nowhere_and_is_replaced(stage: ProcedureRunner) -> None:
    drift = Drift("/sys/kernel/mm/transparent_hugepage/enabled", "never", "always")
    stage.script = raising(Disturbed([drift]), lambda trial: (trial.block, trial.order) == (2, 1))
    (method,) = stage.conduct([cell("one", "thp")], {})
    assert method.seen == [1, 3, 4]
    assert stage.settings.yielded == [drift]
    disturbed = stage.folder.read().blocks[1]
    assert disturbed.state == "disturbed"
    assert "enabled is always, not never" in (disturbed.reason or "")


def test_a_pool_of_ours_that_is_taken_ends_the_run(stage: ProcedureRunner) -> None:
    drift = Drift("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4", "0")
    stage.script = raising(Disturbed([drift]), lambda trial: True)
    with pytest.raises(HugewiseError, match="pool"):
        stage.conduct([cell("one", "thp")], {})
    assert [block.state for block in stage.folder.read().blocks] == ["disturbed"]


@pytest.mark.parametrize(
    ("pause", "boot", "continues"), [(10.0, "b", True), (301.0, "b", False), (10.0, "other", False)]
)
def test_a_block_that_was_broken_off(stage: ProcedureRunner, pause: float, boot: str, continues: bool) -> None:
    first = design.draw_order(SEED, 1, ["base", "thp"])[0].arm
    stage.script = raising(KeyboardInterrupt(), lambda trial: len(stage.ran) == 2)
    with pytest.raises(KeyboardInterrupt):
        stage.conduct([cell("one", "thp")], {})
    stage.now += pause
    (method,) = stage.conduct([cell("one", "thp")], {}, boot=boot)
    assert method.seen == ([1, 2, 3] if continues else [2, 3, 4])
    in_first = [arm for block, _, arm, _ in stage.ran if block == 1]
    assert in_first.count(first) == 1  # accepted once, never repeated
    assert stage.folder.read().blocks[0].state == ("complete" if continues else "incomplete")


def test_a_disturbed_attempt_does_not_count_when_its_run_was_killed_before_the_block_was_closed(
    stage: ProcedureRunner,
) -> None:
    stage.left(state="abandoned", reason="enabled is always")
    (method,) = stage.conduct([cell("one", "thp")], {})
    assert method.seen == [2, 3, 4]
    block = stage.folder.read().blocks[0]
    assert (block.state, block.reason) == ("disturbed", "turned by somebody else: enabled is always")


def test_a_try_that_left_no_attempt_keeps_its_number_on_resume(stage: ProcedureRunner) -> None:
    """The first try broke off in the probe, the second was rejected, then the run was killed: the next is the third."""
    first = stage.left(draft=2, state="rejected", started=1000.0)
    stage.conduct([cell("one", "thp")], {})
    assert stage.ran[0] == (1, "one", first, 3)
    assert stage.folder.read().blocks[0].state == "complete"


def test_a_pause_within_a_block_is_not_what_a_block_takes(stage: ProcedureRunner) -> None:
    stage.left(session=0, started=1000.0, ended=1001.0)
    stage.now = 1200.0
    stage.conduct([cell("one", "thp")], {})
    assert [event.closed for event in stage.ended()] == [1, 2, 3]
    assert all(event.left_s < 10 for event in stage.ended())


def test_resuming_a_run_with_all_its_blocks_only_closes_it(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp")], {("one", "thp"): 2})
    ran = len(stage.ran)
    stage.conduct([cell("one", "thp")], {("one", "thp"): 2})
    assert len(stage.ran) == ran


def test_progress_says_what_runs_and_what_is_left(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp")], {})
    assert [(event.closed, event.blocks) for event in stage.ended()] == [(1, 3), (2, 3), (3, 3)]
    assert [event.left_s for event in stage.ended()] == pytest.approx([4.0, 2.0, 0.0])
    assert sum(isinstance(event, progress.AttemptStarted) for event in stage.events) == 6


@of(STUDY.replace("blocks = 3", 'blocks = 100\ntime = "7s"'))
def test_blocks_that_the_time_has_no_room_for_are_not_told_as_planned(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp")], {})
    told = [(event.closed, event.blocks) for event in stage.ended()]
    assert told == [(1, 3), (2, 3), (3, 3)]


@of(STUDY.replace("[budget]", "[sessions]\npairs = 2\n[budget]"))
def test_a_session_is_over_when_every_open_cell_has_its_pairs(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp"), cell("two", "thp")], {})
    assert stage.state is None
    assert [name for _, name, _ in stage.opened()] == ["one", "two"] * 2


SLOTS = STUDY.replace("[budget]", "[design]\nslots = [0, 1, 2]\n[budget]")


def test_where_not_all_arms_fit_the_coin_says_which_one_is_beside_the_baseline(stage: ProcedureRunner) -> None:
    stage.conduct(
        [cell("one", "thp", "mthp-64k", together=True, kind="interleaved", at_most=2)],
        {("one", "thp"): 6, ("one", "mthp-64k"): 6},
    )
    drawn = [set(arms) - {"base"} for _, arms, *_ in stage.asked]
    assert all("base" in arms and len(arms) == 2 for _, arms, *_ in stage.asked)
    assert drawn == [{*design.draw_some(SEED, block, ["mthp-64k", "thp"], 1)} for block in range(1, len(drawn) + 1)]
    assert {"thp"} in drawn and {"mthp-64k"} in drawn


@of(SLOTS)
def test_arms_that_run_together_are_attempted_at_once_each_arm_on_a_slot_of_its_own(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", "mthp-64k", together=True)], {})
    assert [(block, number, turns) for block, _, number, turns in stage.asked] == [
        (1, 1, ""),
        (2, 1, ""),
        (3, 1, ""),
    ]
    for block, arms, _, _ in stage.asked:
        trials = design.draw_order(SEED, block, ["base", "thp", "mthp-64k"], 3)
        assert arms == tuple(trial.arm for trial in trials)
        assert {trial.slot for trial in trials} == {0, 1, 2}


def test_arms_that_take_turns_are_told_their_block_s_order_and_it_is_kept(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", together=True, kind="interleaved")], {})
    drawn = [design.draw_turns(SEED, block, 2) for block in (1, 2, 3)]
    assert [turns for *_, turns in stage.asked] == [block.turns for block in stage.folder.read().blocks] == drawn


@of(SLOTS)
def test_when_one_of_the_arms_that_run_together_is_tried_again_so_are_all(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, number: "rejected" if (trial.block, number) == (1, 1) else "accepted"
    stage.conduct([cell("one", "thp", together=True)], {})
    assert [(block, number) for block, _, number, _ in stage.asked] == [(1, 1), (1, 2), (2, 1), (3, 1)]


@of(SLOTS)
def test_a_block_of_arms_together_that_is_broken_off_is_replaced(stage: ProcedureRunner) -> None:
    stage.script = raising(KeyboardInterrupt(), lambda trial: len(stage.ran) == 2)
    with pytest.raises(KeyboardInterrupt):
        stage.conduct([cell("one", "thp", together=True)], {})
    (method,) = stage.conduct([cell("one", "thp", together=True)], {})
    assert method.seen == [2, 3, 4]
    first = stage.folder.read().blocks[0]
    assert (first.state, first.reason) == ("incomplete", "broken off between attempts that ran at the same time")


def test_a_blocks_record_says_the_order_that_the_coin_chose(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", "mthp-64k")], {})
    records = [record for record in stage.folder.read().records if isinstance(record, BlockOpened)]
    for record in records:
        coin = [trial.arm for trial in design.draw_order(SEED, record.block, ["base", "thp", "mthp-64k"])]
        assert list(record.arms) == coin == [arm for block, _, arm, _ in stage.ran if block == record.block]


def test_an_arm_that_cannot_be_started_costs_the_others_nothing(stage: ProcedureRunner) -> None:
    stage.script = rejecting(2, "thp")
    methods = stage.conduct([cell("one", "thp", "mthp-64k")], {})
    assert [set(method.seen) for method in methods] == [{1, 2, 3}] * 2
    _, without, _ = stage.folder.read().blocks
    assert (without.state, dict(without.unstarted), without.late) == ("complete", {"thp": "no room"}, ())
    assert without.reason == "thp could not be started: no room"
    states = {attempt.arm: attempt.state for attempt in without.attempts}
    assert states == {"base": "accepted", "mthp-64k": "accepted", "thp": "rejected"}


def test_what_holds_for_several_arms_is_said_once(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, number: "rejected"
    with pytest.raises(HugewiseError, match="do not count; the last: .* and .* could not be started: no room$"):
        stage.conduct([cell("one", "thp")], {})


def test_a_try_that_failed_is_kept_also_when_the_next_one_counts(stage: ProcedureRunner) -> None:
    stage.script = rejecting(1, "thp", 1)
    stage.conduct([cell("one", "thp")], {})
    first, *others = stage.folder.read().blocks
    assert (first.unstarted, first.late) == ({}, ("thp",))
    assert all((other.unstarted, other.late) == ({}, ()) for other in others)


def test_a_baseline_that_cannot_be_started_leaves_no_pair_but_a_record(stage: ProcedureRunner) -> None:
    stage.script = rejecting(1, "base")
    stage.conduct([cell("one", "thp", "mthp-64k")], {})
    first, *_ = stage.folder.read().blocks
    assert (first.state, dict(first.unstarted)) == ("incomplete", {"base": "no room"})
    assert {block for block, _, arm, _ in stage.ran if arm == "thp"} >= {1}  # the others still had their turn


def test_what_could_not_be_started_is_known_after_a_kill_within_the_block(stage: ProcedureRunner) -> None:
    """The record is written when it happens: whoever ends the run then does not choose its blocks."""
    lost, next_one = (trial.arm for trial in design.draw_order(SEED, 1, ["base", "thp"]))
    killed = raising(KilledError(), lambda trial: trial.block == 1)
    stage.script = lambda trial, number: "rejected" if trial.arm == lost else killed(trial, number)
    with pytest.raises(KilledError):
        stage.conduct([cell("one", "thp")], {})
    stage.now += 10_000  # beyond the window: the block cannot be gone on with
    stage.script = accepted
    stage.conduct([cell("one", "thp")], {})
    first, *_ = stage.folder.read().blocks
    assert (first.state, dict(first.unstarted)) == ("incomplete", {lost: "no room"})
    assert next_one not in first.unstarted


def test_of_arms_together_the_one_at_fault_is_the_one_that_could_not_be_started(
    stage: ProcedureRunner, monkeypatch: pytest.MonkeyPatch
) -> None:

    def together(
        bench: RunContext, cell: Cell, arms: list[tuple[Arm, Trial]], number: int, *, turns: str = ""
    ) -> list[Attempt]:
        stage.now += 1
        if arms[0][1].block > 1:
            made = [example(arm.name, 1.0, block=trial.block, cell=cell.id, ended=stage.now) for arm, trial in arms]
        elif number == 1:
            error = MachineError("its guest did not boot")
            error.arm = "thp"
            raise error
        else:
            why = {"thp": "no room", "base": "thp beside it was rejected: no room"}
            rejected: dict[str, Any] = {"block": 1, "cell": cell.id, "ended": stage.now, "state": "rejected"}
            made = [example(arm.name, None, reason=why[arm.name], **rejected) for arm, _ in arms]
        for one in made:
            bench.folder.accept(bench.folder.draft(f"b{one.block:05d}-0-{one.arm}-{number}"), one)
        return made

    monkeypatch.setattr(runner, "run_together", together)
    stage.conduct([cell("one", "thp", together=True)], {})
    first, *others = stage.folder.read().blocks
    assert (first.state, dict(first.unstarted)) == ("incomplete", {"thp": "no room"})
    assert all(not other.unstarted and not other.late for other in others)


@pytest.mark.parametrize("pause", [1, 10_000])
def test_an_attempt_under_way_when_hugewise_ended_is_known(stage: ProcedureRunner, pause: float) -> None:
    """Made anew within the window, or lost with its block: whose it was stands in the run's log."""
    stage.script = raising(KilledError(), lambda trial: (trial.block, trial.arm) == (2, "thp"))
    with pytest.raises(KilledError):
        stage.conduct([cell("one", "thp")], {})
    stage.now += pause
    stage.script = accepted
    stage.conduct([cell("one", "thp")], {})
    blocks = stage.folder.read().blocks
    assert [(one.number, one.state, one.redone) for one in blocks[:2]] == [
        (1, "complete", ()),
        (2, "complete" if pause == 1 else "incomplete", ("thp",)),
    ]
    assert all(one.redone == () for one in blocks[2:])


def test_a_rejected_try_without_its_record_is_a_late_start_all_the_same(stage: ProcedureRunner) -> None:
    """Killed between the two; and runs that were made before there were such records."""
    stage.script = rejecting(1, "thp", 1)
    stage.conduct([cell("one", "thp")], {})
    rewritten(stage.folder.path, lambda records: [one for one in records if one["record"] != "unstarted"])
    assert stage.folder.read().blocks[0].late == ("thp",)


WEEK = 7 * 86400.0


@of(STUDY.replace("blocks = 3", 'blocks = 4\ntime = "100s"'))
@pytest.mark.parametrize("jump", [WEEK, -WEEK])
def test_a_clock_that_is_set_within_a_block_ends_no_run(stage: ProcedureRunner, jump: float) -> None:
    """Nor are seeds revealed by it, or what a block takes mistaken."""

    def script(trial: Trial, _: int) -> str:
        if (trial.block, trial.order) == (2, 1):
            stage.jump += jump
        return "accepted"

    stage.script = script
    stage.conduct([cell("one", "thp")], {("one", "thp"): 4})
    assert (stage.state, len(stage.opened())) == ("finished", 4)
    assert [event.left_s for event in stage.ended()] == pytest.approx([4.0, 2.0, 0.0, 0.0])


@of(STUDY.replace("blocks = 3", 'blocks = 100\ntime = "7s"'))
@pytest.mark.parametrize("jump", [WEEK, -WEEK])
def test_a_clock_that_is_set_prolongs_no_run(stage: ProcedureRunner, jump: float) -> None:
    def script(trial: Trial, _: int) -> str:
        stage.jump += jump / 4
        if trial.block == 2:
            raise KilledError
        return "accepted"

    stage.script = script
    with pytest.raises(KilledError):
        stage.conduct([cell("one", "thp")], {("one", "thp"): 100})
    stage.folder.append(Resumed(t=1e9 + stage.now + stage.jump, session=2, boot_id="b"))
    stage.script = accepted
    stage.conduct([cell("one", "thp")], {("one", "thp"): 100})
    assert (stage.state, len(stage.opened())) == ("time is up", 3)  # 2 s each, of 7 that stand in its records


@pytest.mark.parametrize("jump", [WEEK, -WEEK])
def test_the_window_of_an_open_block_is_not_told_by_a_clock_that_is_set(stage: ProcedureRunner, jump: float) -> None:
    for paused, state in ((10.0, "complete"), (301.0, "incomplete")):
        block = len(stage.folder.read().blocks) + 1
        stage.script = raising(KilledError(), lambda trial, block=block: (trial.block, trial.order) == (block, 1))  # type: ignore[misc]
        with pytest.raises(KilledError):
            stage.conduct([cell("one", "thp")], {("one", "thp"): 9})
        stage.jump, stage.now = stage.jump + jump, stage.now + paused
        stage.script = raising(KilledError(), lambda trial, block=block: trial.block > block)  # type: ignore[misc]
        with pytest.raises(KilledError):
            stage.conduct([cell("one", "thp")], {("one", "thp"): 9})
        stage.folder.append(BlockClosed(t=0.0, block=block + 1, state="incomplete"))
        assert stage.folder.read().blocks[block - 1].state == state


def test_a_block_whose_records_are_ahead_of_the_clock_is_not_gone_on_with(stage: ProcedureRunner) -> None:
    """In another time namespace the seconds since boot are others: how long it was broken off is not known."""
    stage.now = 700_000.0
    stage.script = raising(KilledError(), lambda trial: trial.order == 1)
    with pytest.raises(KilledError):
        stage.conduct([cell("one", "thp")], {("one", "thp"): 1})
    stage.now, stage.script = 5.0, accepted
    stage.conduct([cell("one", "thp")], {("one", "thp"): 1})
    first, *_ = stage.folder.read().blocks
    assert first.state == "incomplete"
    assert "the clock is behind its records" in (first.reason or "")


def test_a_session_in_another_boot_has_a_clock_of_its_own(stage: ProcedureRunner) -> None:
    """The seconds since boot begin anew: what was spent is told from each session's own."""
    stage.now = 50_000.0
    stage.conduct([cell("one", "thp")], {("one", "thp"): 1})
    stage.folder.path.joinpath("seed").write_text(SEED.hex())
    rewritten(stage.folder.path, lambda records: records[:-1])
    spent = stage.folder.read().active_seconds
    stage.folder = RunFolder(stage.folder.path, stage.folder.clock)
    stage.now = 5.0
    stage.folder.append(Resumed(t=1.0, session=2, boot_id="c"))
    stage.now = 8.0
    stage.folder.append(Noted(t=2.0, text="later"))
    assert stage.folder.read().active_seconds == spent + 3.0


def test_an_attempt_that_is_lost_is_not_made_again_and_costs_the_others_nothing(stage: ProcedureRunner) -> None:
    stage.script = raising(AttemptLostError("killed"), lambda trial: (trial.block, trial.arm) == (2, "thp"))
    methods = stage.conduct([cell("one", "thp", "mthp-64k")], {})
    assert [set(method.seen) for method in methods] == [{1, 3, 4}, {1, 2, 3}]
    assert [number for block, _, arm, number in stage.ran if (block, arm) == (2, "thp")] == [1]
    second = stage.folder.read().blocks[1]
    assert (second.state, dict(second.lost), second.late, second.redone) == ("complete", {"thp": "killed"}, (), ())
    assert second.reason == "thp is lost: killed"
    for arm, lost, bad in (("thp", 1, True), ("mthp-64k", 0, False)):
        pairs = Pairs(Contrast("one", arm, "base", LOWER, proof_demanded=False))
        for block in stage.folder.read().blocks[:3]:
            pairs.take(block)
        assert (pairs.lost, len(pairs.usable)) == (lost, 3 - lost)
        assert (pairs.refusal(3) is not None) == bad
        assert not bad or "1 of 3 attempts of thp were lost: killed" in in_words(pairs.refusal(3) or "")


def test_a_lost_attempt_stays_lost_when_the_run_is_killed_within_its_block(stage: ProcedureRunner) -> None:
    first, second = (trial.arm for trial in design.draw_order(SEED, 1, ["base", "thp"]))

    def script(trial: Trial, _: int) -> str:
        raise AttemptLostError("killed") if trial.arm == first else KilledError

    stage.script = script
    with pytest.raises(KilledError):
        stage.conduct([cell("one", "thp")], {})
    stage.script = accepted
    stage.conduct([cell("one", "thp")], {})
    assert [arm for block, _, arm, _ in stage.ran if block == 1] == [first, second, second]
    one = stage.folder.read().blocks[0]
    assert (one.state, dict(one.lost), one.redone) == ("incomplete", {first: "killed"}, (second,))


@of(SLOTS)
def test_a_lost_attempt_of_arms_together_ends_their_block(stage: ProcedureRunner) -> None:
    lost = AttemptLostError("killed")
    lost.arm = "thp"
    stage.script = raising(lost, lambda trial: (trial.block, trial.arm) == (1, "thp"))
    stage.conduct([cell("one", "thp", together=True)], {})
    first = stage.folder.read().blocks[0]
    assert (first.state, dict(first.lost)) == ("incomplete", {"thp": "killed"})
    assert [block for block, *_ in stage.asked] == [1, 2, 3, 4]


@pytest.mark.parametrize("under_way", [True, False])
def test_an_open_block_is_replaced_when_page_settings_were_changed_before_it_goes_on(
    stage: ProcedureRunner, under_way: bool
) -> None:
    first, second = (trial.arm for trial in design.draw_order(SEED, 1, ["base", "thp"]))
    if under_way:
        stage.script = raising(KilledError(), lambda trial: trial.arm == second)
        with pytest.raises(KilledError):
            stage.conduct([cell("one", "thp")], {})
    else:
        stage.left()
    stage.settings.initial = {"/sys/k": "always"}
    rewritten(stage.folder.path, lambda records: [records[0] | {"settings": {"/sys/k": "never"}}, *records[1:]])
    stage.folder = RunFolder(stage.folder.path, stage.folder.clock)
    stage.script = accepted
    (method,) = stage.conduct([cell("one", "thp")], {})
    assert method.seen == [2, 3, 4]
    one, *others = stage.folder.read().blocks
    why = "page settings were changed before it went on: /sys/k is always, it was never"
    assert one.state == "incomplete"
    assert (one.reason or "").startswith(why)
    assert [each.arm for each in one.attempts] == [first]
    assert dict(one.lost) == ({second: f"it was under way when hugewise ended, and {why}"} if under_way else {})
    assert all(not each.lost for each in others)


def test_an_estimate_says_of_which_cells_it_knows_nothing_yet(stage: ProcedureRunner) -> None:
    """10 s of the first cell said nothing of the 4 minutes of the others."""
    stage.conduct([cell("one", "thp"), cell("two", "thp"), cell("three", "thp")], {})
    assert [event.unmeasured for event in stage.ended()][:4] == [2, 1, 0, 0]


def test_a_block_that_ended_tells_the_open_comparisons_of_its_cell(stage: ProcedureRunner) -> None:
    """With an interval that may be looked at; what is decided is none, nor what has an interval at its end alone."""
    beside = [
        Sequential(Contrast(where, "thp", "base", LOWER), planned=planned, alpha=0.01, margin=0.01)
        for where, planned in (("one", 3), ("two", 2))
    ]
    stage.conduct([cell("one", "thp", "mthp-64k"), cell("two", "thp")], {}, beside=beside)
    one, two = ("one", ["thp"]), ("two", ["thp"])
    assert stage.open == [one, two, one, ("two", []), ("one", []), ("two", [])]


TIMED = STUDY.replace("blocks = 3", 'blocks = 40\ntime = "TIME"').replace(
    'name = "s"', 'name = "s"\nmethod = "sequential"'
)
LEAST = known(least_pairs(0.01, 40))


def shortages(stage: ProcedureRunner, *cells: Cell) -> list[str]:
    """What is said of the time; a block of an arm and the baseline takes 2 s."""
    judging = [
        Sequential(Contrast(each.id, "thp", "base", LOWER), planned=40, alpha=0.01, margin=0.01) for each in cells
    ]
    stage.conduct(list(cells), {(each.id, "thp"): 0 for each in cells}, beside=judging)
    told = [(n, event.text) for n, event in enumerate(stage.events) if isinstance(event, progress.Message)]
    return [f"after {sum(isinstance(e, progress.BlockEnded) for e in stage.events[:n])}: {text}" for n, text in told]


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", "15s")], indirect=True)
def test_a_time_without_room_for_a_verdict_is_told_once_after_the_first_block(stage: ProcedureRunner) -> None:
    assert shortages(stage, cell("one", "thp")) == [
        f"after 1: about 7 pairs of each comparison fit into the time of 15.0 s, and a verdict takes at least {LEAST}:"
        " 1 min 00 s or more"
    ]
    assert stage.state == "time is up"


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", f"{2 * LEAST - 1}s")], indirect=True)
def test_a_time_that_is_a_little_short_is_told_when_it_is_known_what_a_block_takes(stage: ProcedureRunner) -> None:
    (told,) = shortages(stage, cell("one", "thp"))
    assert told.startswith(f"after 3: about {LEAST - 1} pairs of each comparison fit")


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", f"{2 * LEAST}s")], indirect=True)
def test_a_time_with_room_for_a_verdict_is_not(stage: ProcedureRunner) -> None:
    assert shortages(stage, cell("one", "thp")) == []


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", f"{2 * LEAST + 2}s")], indirect=True)
def test_cells_share_the_time(stage: ProcedureRunner) -> None:
    """The last comparison waits, and the first has all of the time."""
    (told,) = shortages(stage, cell("one", "thp"), cell("two", "thp"))
    assert told == (
        f"after 1: the time of {format_duration(2 * LEAST + 2)} has no room for verdicts on all comparisons: two (thp)"
        f" waits until the others are decided (for all: {budget.more_time(4 * (LEAST + 1), asked=False)})"
    )
    cells = [block.cell for block in stage.folder.read().blocks]
    assert (cells.count("one"), cells.count("two")) == (LEAST, 1)


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", f"{2 * LEAST + 4}s")], indirect=True)
def test_arms_in_turns_share_the_time(stage: ProcedureRunner) -> None:
    """A block of arms that take turns is shorter without one of them: the last arm waits, and the first is decided."""
    one = cell("one", "thp", "mthp-64k", together=True, kind="interleaved")
    judging = [
        Sequential(Contrast("one", arm, "base", LOWER), planned=40, alpha=0.01, margin=0.01)
        for arm in ("thp", "mthp-64k")
    ]
    stage.conduct([one], {("one", "thp"): 0, ("one", "mthp-64k"): 0}, beside=judging)
    attempts = Counter(len(block.attempts) for block in stage.folder.read().blocks)
    assert attempts == {3: 1, 2: LEAST}
    (told,) = (event.text for event in stage.events if isinstance(event, progress.BudgetMessage))
    assert "one (mthp-64k) waits until the others are decided" in told


@pytest.mark.parametrize("stage", [TIMED.replace("TIME", f"{2 * LEAST + 8}s")], indirect=True)
def test_what_waits_has_the_time_of_a_cell_that_is_given_up(stage: ProcedureRunner) -> None:
    stage.script = all_failing(stage, "one")
    told = shortages(stage, cell("one", "thp"), cell("two", "thp"))
    assert "two (thp) waits until the others are decided" in told[0]
    cells = [block.cell for block in stage.folder.read().blocks]
    assert cells[:4] == ["one", "two", "one", "one"]
    assert cells.count("two") == LEAST


UNJUDGED = TIMED.replace('method = "sequential"', 'method = "sequential"\nunjudged = ["mthp-64k"]')


@pytest.mark.parametrize("stage", [UNJUDGED.replace("TIME", f"{2 * LEAST + 4}s")], indirect=True)
def test_an_unjudged_arm_is_not_measured_while_what_it_stands_beside_waits(stage: ProcedureRunner) -> None:
    """It ends with the judged ones of its cell: measured alone, it would keep the cell open for ever."""
    one, two = cell("one", "thp"), cell("two", "mthp-64k", "thp")
    judging = [
        Sequential(Contrast(each.id, "thp", "base", LOWER), planned=40, alpha=0.01, margin=0.01) for each in (one, two)
    ]
    beside = Unjudged(Contrast("two", "mthp-64k", "base", LOWER), judging[1:], planned=40, alpha=0.01, margin=0.01)
    stage.conduct(
        [one, two], dict.fromkeys([("one", "thp"), ("two", "thp"), ("two", "mthp-64k")], 0), beside=[*judging, beside]
    )
    ran = [(block.cell, len(block.attempts)) for block in stage.folder.read().blocks]
    assert ran == [("one", 2)] * LEAST + [("two", 3)]


@pytest.mark.parametrize("stage", [TIMED.replace("sequential", "screening").replace("TIME", "15s")], indirect=True)
def test_a_screening_has_no_verdict_to_be_short_of(stage: ProcedureRunner) -> None:
    assert shortages(stage, cell("one", "thp")) == []


def test_the_cure_of_a_command_line_is_its_options() -> None:
    assert budget.more_time(530.0, asked=True) == (
        "begin it anew with --time 10m or more, or with fewer cells and arms (--only, --arms)"
    )


LABELS = ["base", "base#2", "thp", "thp#2"]


def test_a_block_has_both_copies_of_each_arm_in_the_coins_order(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", copies=2)], {("one", "thp"): 2})
    expected = [trial.label for block in (1, 2) for trial in design.draw_order(SEED, block, LABELS)]
    assert [labelled for _, _, labelled, _ in stage.ran] == expected
    blocks = stage.folder.read().blocks
    assert [sorted(block.arms) for block in blocks] == [LABELS, LABELS]
    assert [one.label for one in blocks[0].attempts] == expected[:4]
    pairs = Pairs(Contrast("one", "thp", "base", LOWER, proof_demanded=False, copies=2))
    assert [len(pairs.take(block)) for block in blocks] == [2, 2]


def test_a_copy_that_cannot_start_leaves_the_others(stage: ProcedureRunner) -> None:
    stage.script = lambda trial, _: "rejected" if (trial.block, trial.label) == (1, "thp#2") else "accepted"
    stage.conduct([cell("one", "thp", copies=2)], {})
    (first, *_) = stage.folder.read().blocks
    assert (first.state, dict(first.unstarted)) == ("complete", {"thp#2": "no room"})
    tried = Counter(labelled for block, _, labelled, _ in stage.ran if block == 1)
    assert tried == {"base": 1, "base#2": 1, "thp": 1, "thp#2": 3}


def test_a_block_of_copies_that_was_broken_off_goes_on(stage: ProcedureRunner) -> None:
    stage.script = raising(KeyboardInterrupt(), lambda _: len(stage.ran) == 3)
    with pytest.raises(KeyboardInterrupt):
        stage.conduct([cell("one", "thp", copies=2)], {})
    stage.script = accepted
    stage.conduct([cell("one", "thp", copies=2)], {})
    order = [trial.label for trial in design.draw_order(SEED, 1, LABELS)]
    assert [labelled for block, _, labelled, _ in stage.ran if block == 1] == [*order[:3], *order[2:]]
    assert stage.folder.read().blocks[0].redone == (order[2],)


def test_copies_take_turns_by_their_labels(stage: ProcedureRunner) -> None:
    stage.conduct([cell("one", "thp", together=True, kind="interleaved", copies=2)], {})
    block, labels, _, turns = stage.asked[0]
    assert labels == tuple(trial.label for trial in design.draw_order(SEED, 1, LABELS))
    assert (block, turns) == (1, design.draw_turns(SEED, 1, 4))
