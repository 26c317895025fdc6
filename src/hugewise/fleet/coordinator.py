"""Coordinator of a fleet: carries out the decisions of `decision` and records the results, until nothing is left to do.

Every decision is in the fleet's log before it is carried out, or can be found again on the host: after a kill at any
moment another coordinator continues from the log. A run that was brought is checked: whether it is the one that was
asked for (`check_run`, `foreign`), and whether a host's check passed (`calibration_failure`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hugewise.analysis.analysis import analyze
from hugewise.errors import FencedError, HostLostError, HugewiseError, StorageError
from hugewise.fleet.decision import Act, Agenda, Assign, Close, Decision, FleetRules, GiveUp, Observations, Quarantine
from hugewise.fleet.engine import Calls, Engine, ask
from hugewise.fleet.folder import DiskSpace, FleetFolder, FleetSnapshot, RunSource, ShippedRun, Snapshots, ship_run
from hugewise.fleet.inventory import Inventory, differences, stratum
from hugewise.fleet.protocol import (
    CHECK,
    Assignment,
    AssignmentSeen,
    BeginOrder,
    EndOrder,
    FleetQuestion,
    ForgetOrder,
    HostAnswer,
    LookOrder,
    study_of_question,
)
from hugewise.fleet.records import (
    Assigned,
    AssignmentState,
    Checked,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    FleetState,
    HostGone,
    HostGreeted,
    HostQuarantined,
    HostReturned,
    RunForgotten,
    RunGivenUp,
    RunSettled,
    RunShipped,
)
from hugewise.fleet.spool import FINAL
from hugewise.model.host import CLOCK, Clock
from hugewise.model.results import DIRECTIONS
from hugewise.store.folder import RunFolder
from hugewise.visible import printable


def check_run(path: Path, name: str, question: FleetQuestion, opened: FleetOpened) -> None:
    """Raise HugewiseError where the run at `path` is not one of that question, or `name` is not its own."""
    first_record = RunFolder(path).opened()
    wanted = opened.digest if question.text == opened.question.text else study_of_question(question, "check").digest
    if first_record.digest != wanted or first_record.run != name:
        raise HugewiseError(f"{name} is not a run of the study that was asked")


def foreign(path: Path, greeted: HostGreeted | None, others: Mapping[str, str]) -> str | None:
    """Return why the run at `path` is not from that host, or None; `others`: hosts by the hash of their seeds."""
    first_record = RunFolder(path).opened()
    if (other := others.get(first_record.seed_hash)) is not None:
        return f"it is a copy of a run of {other}"
    if greeted is None:
        return None
    if greeted.machine is not None and first_record.host.get("machine") != greeted.machine:
        return "it was measured on another machine than the one that was greeted"
    there = stratum(first_record.host, first_record.settings, greeted.stratum.memory)
    if changed := differences(greeted.stratum, there):
        return f"its machine is not as it was when it was greeted: {'; '.join(changed)}"
    for name, known in (
        ("hugewise", greeted.installed.version),
        ("hugewise-probe", greeted.installed.probe_version),
    ):
        if known is not None and (now := first_record.versions.get(name)) != known:
            return f"it was measured by {name} {now}, and {known} was there when it was greeted"
    return None


def calibration_failure(path: Path) -> str | None:
    """Return why a host's comparison of a setting with itself does not pass, or None. Raises RunError."""
    results = analyze(path)
    if results.state not in ("finished", "time is up"):
        return f"it did not come to its end ({results.state})"
    for cell in results.cells:
        for comparison in cell.comparisons:
            if comparison.verdict in DIRECTIONS:
                return f"the same is called {comparison.verdict} than the same on {cell.cell} ({comparison.n} pairs)"
    blocks = results.blocks_complete + results.blocks_incomplete + results.blocks_disturbed
    if 2 * results.blocks_complete <= blocks:
        what = results.disturbances[0] if results.disturbances else "attempts could not be started"
        return f"{blocks - results.blocks_complete} of {blocks} blocks do not count: {what}"
    failed = sum(attempt.state == "failed" for attempt in results.attempts)
    return f"{failed} of {len(results.attempts)} attempts failed" if failed else None


_TRIES = 3  # of a step that a host refuses, before it is given up
_AGAIN_S = 10.0
_SOON_S = 1.0
_MOST_AT_ONCE = 32
_READ_S = 120.0
_ANSWER_S = 60.0
_MOST_PASSED_S = 45.0  # time that one failed call stands for, at most
_LONGEST = 1000

CallResult = HostAnswer | ShippedRun | str | None


def rules_of(inventory: Inventory, *, ending: bool = False) -> FleetRules:
    """Return the rules from the inventory."""
    table = inventory.fleet
    return FleetRules(
        wait=table.wait,
        look=table.look,
        check=table.check > 0,
        ending=ending,
    )


@dataclass
class Coordinator:
    """Coordinator of the fleet in `folder`: `on_step` hears each record and order before it is made."""

    folder: FleetFolder
    engine: Engine
    inventory: Inventory
    rules: FleetRules
    say: Callable[[str], None] = lambda _: None
    on_step: Callable[[str], None] = lambda _: None
    clock: Clock = CLOCK
    state: FleetState = field(init=False)
    agenda: Agenda = field(init=False)
    view: Observations = field(default_factory=Observations)
    _calls: Calls[Act, CallResult] = field(default_factory=lambda: Calls(_MOST_AT_ONCE))
    _failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    _reasons: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, float] = field(default_factory=dict)
    _present: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def __post_init__(self) -> None:
        self.state = FleetState.of(self.folder.records())
        self.agenda = Agenda(self.state, self.view, self.rules)
        self._snapshots = Snapshots(self.folder.path / "now.json", self.clock)
        self._entries = {host.name: host for host in self.inventory.host}
        self._room = DiskSpace(self.inventory.fleet.largest_run)

    def conduct(self) -> FleetState:
        """Conduct the fleet until nothing can be done now. Raises HugewiseError, StorageError."""
        while True:
            now = self.clock.up()
            if decided := self.agenda.decide(now, self._calls.free):
                for decision in decided:
                    self._do(decision)
                continue
            if self.state.closed is not None and not self.view.busy and not self.agenda.waits():
                self._show(float("inf"))
                return self.state
            self._show(now)
            if (came := self._calls.came(self._pause(now))) is not None:
                self.view.busy.discard(came[0].host)
                self._done(*came)

    def _pause(self, now: float) -> float:
        # until a host is to be asked again; where no more hosts can be asked at once, an answer will come
        due = self.agenda.next_due()
        return _SOON_S if due is None or not self._calls.free else min(max(due - now, 0.005), _SOON_S)

    # -- doing

    def _do(self, decision: Decision) -> None:
        match decision:
            case Act():
                self._start(decision)
            case Assign():
                number = self.state.next_number
                self._append(Assigned(t=self._t(), number=number, host=decision.host, purpose=decision.purpose))
                what = "a check" if decision.purpose == "check" else "the study"
                self._say(f"{decision.host}: {what} is begun (number {number})")
            case Quarantine():
                self._append(HostQuarantined(t=self._t(), host=decision.host, reason=decision.reason))
                self._say(f"{decision.host} is quarantined: {decision.reason}")
            case GiveUp():
                self._append(RunGivenUp(t=self._t(), number=decision.number, reason=decision.reason))
                self._say(f"number {decision.number} is given up: {decision.reason}")
            case Close():
                self._append(FleetClosed(t=self._t(), reason=decision.reason))
                self._say(decision.reason)

    def _say(self, line: str) -> None:
        # a host's words cannot begin another line
        self.say(printable(line))

    def _t(self) -> float:
        return self.clock.wall()

    def _append(self, record: FleetRecord) -> None:
        self.on_step(type(record).__name__)
        self.folder.append(record)
        self.state.add(record)
        self.agenda.wrote(record)

    def _start(self, act: Act) -> None:
        self.view.busy.add(act.host)
        self.on_step(f"call {act.step}")
        work = self.state.assignments[act.number]
        if act.step != "judge" and act.host not in self._present_hosts():
            self.view.busy.discard(act.host)
            self._done(act, HostLostError(f"{act.host} is not connected"))
            return
        self._calls.start(act, lambda: self._call(act, work))

    def _present_hosts(self) -> frozenset[str]:
        now = self.clock.up()
        if now - self._present[0] >= _SOON_S:
            self._present = (now, self.engine.present())
        return self._present[1]

    # -- in a thread of its own: nothing here changes the state

    def _call(self, act: Act, work: AssignmentState) -> CallResult:
        assignment = Assignment(self.state.opened.fleet, act.number)
        match act.step:
            case "begin":
                order = BeginOrder(
                    assignment=assignment,
                    question=self._question(work),
                    restarts=self.inventory.fleet.restarts,
                    package=self.state.opened.installed.package,
                    client=self.inventory.client_of(self._entries[act.host])
                    if work.assigned.purpose == "study"
                    else None,
                )
                return ask(self.engine, act.host, order, _ANSWER_S)
            case "look":
                return ask(self.engine, act.host, LookOrder(assignment=assignment), _ANSWER_S)
            case "end":
                return ask(self.engine, act.host, EndOrder(assignment=assignment), _ANSWER_S)
            case "forget":
                return ask(self.engine, act.host, ForgetOrder(assignment=assignment), _ANSWER_S)
            case "ship":
                source = RunSource(self.engine, act.host, assignment, _READ_S)
                asked_of = self._question(work)
                return ship_run(
                    source,
                    self._place(work),
                    self._room,
                    look=lambda path, name: check_run(path, name, asked_of, self.state.opened),
                    on_step=lambda step: self.on_step(f"ship {step}"),
                )
            case "judge":
                assert work.shipped is not None
                return calibration_failure(self.folder.path / work.shipped.folder)

    def _question(self, work: AssignmentState) -> FleetQuestion:
        entry = self._entries[work.assigned.host]
        if work.assigned.purpose == "check":
            return FleetQuestion(text=CHECK.format(blocks=self.inventory.fleet.check))
        return msgspec.structs.replace(self.state.opened.question, directory=entry.directory)

    def _place(self, work: AssignmentState) -> Path:
        return self.folder.path / ("checks" if work.assigned.purpose == "check" else "hosts") / work.assigned.host

    # -- results

    def _done(self, act: Act, came: CallResult | BaseException) -> None:
        now = self.clock.up()
        self.agenda.mark_changed(act.host)
        if isinstance(came, HostLostError):
            self.view.due.pop(act.host, None)
            self._lost(act.host, came, now)
            return
        if isinstance(came, StorageError) or (isinstance(came, BaseException) and not isinstance(came, Exception)):
            raise came  # an error of this machine: nothing more can be written
        if isinstance(came, Exception) and not isinstance(came, HugewiseError):  # an unforeseen error concerns one host
            came = HugewiseError(f"{act.step}: {type(came).__name__}: {came}"[:_LONGEST])
        self.view.due.pop(act.host, None)
        if isinstance(came, HugewiseError):
            self._refused(act, came, now)
            return
        self._failures.pop((act.step, act.number), None)
        if act.step != "judge" and act.host in self.view.out:
            self._returned(act.host)
        self._came(act, came, now)

    def _lost(self, host: str, error: HugewiseError, now: float) -> None:
        self.view.due.setdefault(host, now + min(_AGAIN_S, self.rules.look))
        # Only the time of failed calls counts, up to a limit for each: nothing is known of the time that this machine
        # slept.
        passed = min(now - self._failed.get(host, now), _MOST_PASSED_S)
        self._failed[host] = now
        new = host not in self.view.out
        self.view.out[host] = self.view.out.get(host, 0.0) + passed
        if new:
            self._reasons[host] = error.message
            if self.state.hosts[host].out is None:
                self._append(HostGone(t=self._t(), host=host, reason=error.message))
            self._say(f"{host} is out of reach: {error.message}")

    def _returned(self, host: str) -> None:
        self.view.out.pop(host, None)
        self._failed.pop(host, None)
        self._reasons.pop(host, None)
        self._say(f"{host} is back")

    def _refused(self, act: Act, error: HugewiseError, now: float) -> None:
        key = (act.step, act.number)
        self._failures[key] += 1
        self.view.due[act.host] = now + min(2.0 ** (self._failures[key] - 1), _AGAIN_S * _TRIES, self.rules.look)
        if self._failures[key] == 1:
            self._say(f"{act.host}: {error.message}")
        if isinstance(error, FencedError):
            self._append(RunGivenUp(t=self._t(), number=act.number, reason=error.message, over=True))
        elif self._failures[key] < _TRIES:
            return
        elif act.step == "judge":
            self._append(Checked(t=self._t(), number=act.number, reason=error.message[:_LONGEST]))
        else:
            self._lost(act.host, HugewiseError(f"{act.step}: {error.message}"), now)

    def _came(self, act: Act, came: CallResult, now: float) -> None:
        work = self.state.assignments[act.number]
        if self.state.hosts[act.host].out is not None and act.step != "judge":
            self._append(HostReturned(t=self._t(), host=act.host))
        match act.step:
            case "begin":
                self.view.begun.add(act.number)
                self.view.due[act.host] = now + min(_SOON_S, self.rules.look)
            case "look":
                self._looked(act, work, came, now)
            case "end":
                self.view.ended.add(act.number)
                self.view.due[act.host] = now + min(_SOON_S, self.rules.look)
            case "ship":
                assert isinstance(came, ShippedRun)
                self._shipped(act, came)
            case "judge":
                assert came is None or isinstance(came, str)
                self._append(Checked(t=self._t(), number=act.number, reason=came))
                self._say(f"{act.host}: the check {'passed' if came is None else f'failed: {came}'}")
            case "forget":
                self._append(RunForgotten(t=self._t(), number=act.number))

    def _looked(self, act: Act, work: AssignmentState, came: CallResult, now: float) -> None:
        if not isinstance(came, AssignmentSeen) or came.assignment.number != act.number:
            self._refused(act, HugewiseError("it answered something else when it was looked at"), now)
            return
        self.view.begun.add(act.number)
        self.view.seen[act.number] = came
        if came.state == "unknown":
            why = "its host knows nothing of it: its spool was emptied"
            self._append(RunGivenUp(t=self._t(), number=act.number, reason=why, over=True))
        elif came.state in FINAL:
            self._append(
                RunSettled(
                    t=self._t(),
                    number=act.number,
                    state=came.state,
                    run=came.run,
                    reason=came.reason,
                    restarts=came.restarts,
                )
            )
            self._say(f"{act.host}: number {act.number} has {came.state}{f': {came.reason}' if came.reason else ''}")
        else:
            self.view.due[act.host] = now + self.rules.look

    def _shipped(self, act: Act, came: ShippedRun) -> None:
        why = foreign(came.path, self.state.hosts[act.host].greeted, self.state.seeds)
        folder = came.path.relative_to(self.folder.path)
        self._append(
            RunShipped(
                t=self._t(),
                number=act.number,
                folder=str(folder),
                digest=came.digest,
                files=came.files,
                size=came.size,
                foreign=None if why is None else printable(why)[:_LONGEST],
                seed_hash=RunFolder(came.path).opened().seed_hash,
            )
        )
        if why is not None:
            self._say(f"{act.host}: its run is kept and does not count: {why}")
        self._say(f"{act.host}: its run is at {folder} ({came.files} files, {came.size >> 10:,} KiB)")

    def _show(self, now: float) -> None:
        if self._snapshots.due(now):
            seen = {self.state.assignments[number].assigned.host: answer for number, answer in self.view.seen.items()}
            self._snapshots.write(FleetSnapshot(t=time.time(), seen=seen, out=dict(self._reasons)))
