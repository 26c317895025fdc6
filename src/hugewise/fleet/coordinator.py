"""The coordinator: does what `decision` says, writes down what came of it, until nothing is left to do.

Everything that counts is in the fleet's log before it is done, or is found again where it was done: killed at any
moment, another coordinator goes on from the log.

What the coordinator looks at in a run that was brought: whether it is the one that was asked, and passed a check.
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
from hugewise.fleet.decision import Act, Agenda, Assign, Close, Decision, FleetRules, GiveUp, Quarantine, View
from hugewise.fleet.engine import Calls, Engine, ask
from hugewise.fleet.folder import FleetFolder
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
    Checked,
    FleetClosed,
    FleetOpened,
    FleetRecord,
    FleetState,
    FleetWork,
    HostGone,
    HostGreeted,
    HostQuarantined,
    HostReturned,
    RunForgotten,
    RunGivenUp,
    RunSettled,
    RunShipped,
)
from hugewise.fleet.shipping import Brought, Room, RunSource, bring
from hugewise.fleet.spool import FINAL
from hugewise.fleet.status import FleetSnapshot, Snapshots
from hugewise.model.host import CLOCK, Clock
from hugewise.store.folder import RunFolder
from hugewise.visible import printable


def must_be(path: Path, name: str, question: FleetQuestion, opened: FleetOpened) -> None:
    """Raise HugewiseError where the run at `path` is not one of that question, or `name` is not its own."""
    found = RunFolder(path).opened()
    wanted = opened.digest if question.text == opened.question.text else study_of_question(question, "check").digest
    if found.digest != wanted or found.run != name:
        raise HugewiseError(f"{name} is not a run of the study that was asked")


def foreign(path: Path, greeted: HostGreeted | None, others: Mapping[str, str]) -> str | None:
    """Why the run at `path` is not one of that host as it was greeted, by its first record; None where it is.

    `others`: the hosts of the runs that were brought before, by the hash of their seeds.
    """
    found = RunFolder(path).opened()
    if (other := others.get(found.seed_hash)) is not None:
        return f"it is a copy of a run of {other}"
    if greeted is None:
        return None
    if greeted.machine is not None and found.host.get("machine") != greeted.machine:
        return "it was measured on another machine than the one that was greeted"
    there = stratum(found.host, found.settings, greeted.stratum.memory)
    if told := differences(greeted.stratum, there):
        return f"its machine is not as it was when it was greeted: {'; '.join(told)}"
    for name, known in (
        ("hugewise", greeted.installed.version),
        ("hugewise-probe", greeted.installed.probe_version),
    ):
        if known is not None and (now := found.versions.get(name)) != known:
            return f"it was measured by {name} {now}, and {known} was there when it was greeted"
    return None


def seed_hash(path: Path) -> str:
    """The hash of a run's seed. Raises RunError."""
    return RunFolder(path).opened().seed_hash


def calibration_failure(path: Path) -> str | None:
    """Why a host's comparison of the same with the same does not pass; None where it does. Raises RunError."""
    found = analyze(path)
    if found.state not in ("finished", "time is up"):
        return f"it did not come to its end ({found.state})"
    for cell in found.cells:
        for one in cell.comparisons:
            if one.verdict in ("better", "worse"):
                return f"the same is called {one.verdict} than the same on {cell.cell} ({one.n} pairs)"
    blocks = found.blocks_complete + found.blocks_incomplete + found.blocks_disturbed
    if 2 * found.blocks_complete <= blocks:
        what = found.disturbances[0] if found.disturbances else "attempts could not be started"
        return f"{blocks - found.blocks_complete} of {blocks} blocks do not count: {what}"
    failed = sum(attempt.state == "failed" for attempt in found.attempts)
    return f"{failed} of {len(found.attempts)} attempts failed" if failed else None


_TRIES = 3  # of a step that a host refuses, before it is given up
_AGAIN_S = 10.0
_SOON_S = 1.0
_MOST_AT_ONCE = 32
_READ_S = 120.0
_SSH_S = 60.0
_MOST_PASSED_S = 45.0  # that one failed call tells of
_SEVERAL = 3  # hosts, of which more than half are not gone by chance
_LONGEST = 1000

Came = HostAnswer | Brought | str | None


def rules_of(inventory: Inventory, *, ending: bool = False) -> FleetRules:
    """What the inventory says of it."""
    table = inventory.fleet
    return FleetRules(
        replace=table.replace,
        patience=table.patience,
        wait=max(table.wait, table.patience),
        look=table.look,
        check=table.check > 0,
        ending=ending,
    )


@dataclass
class Coordinator:
    """Of the fleet in `folder`, which it holds. `on_step` is told of each record and each order before it is made,
    `shipped` of each run that is here and will be judged.
    """

    folder: FleetFolder
    engine: Engine
    inventory: Inventory
    rules: FleetRules
    say: Callable[[str], None] = lambda _: None
    on_step: Callable[[str], None] = lambda _: None
    shipped: Callable[[Path], None] = lambda _: None
    clock: Clock = CLOCK
    state: FleetState = field(init=False)
    agenda: Agenda = field(init=False)
    view: View = field(default_factory=View)
    _calls: Calls[Act, Came] = field(default_factory=lambda: Calls(_MOST_AT_ONCE))
    _failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    _reasons: dict[str, str] = field(default_factory=dict)
    _failed: dict[str, float] = field(default_factory=dict)
    _present: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def __post_init__(self) -> None:
        self.state = FleetState.of(self.folder.records())
        self.agenda = Agenda(self.state, self.view, self.rules)
        self._snapshots = Snapshots(self.folder.path / "now.json", self.clock)
        self._entries = {host.name: host for host in self.inventory.host}
        self._room = Room(self.inventory.fleet.largest_run)

    def conduct(self) -> FleetState:
        """Until nothing is left to do, or nothing that can be done now. Raises HugewiseError, StorageError."""
        for work in self.state.works.values():
            self._tell_shipped(work)
        while True:
            now = self.clock.up()
            if decided := self.agenda.decide(now, self._calls.free):
                for one in decided:
                    self._do(one)
                continue
            if self.state.closed is not None and not self.view.busy and not self.agenda.waits():
                self._show(float("inf"))
                return self.state
            self._show(now)
            if (came := self._calls.came(self._pause(now))) is not None:
                self.view.busy.discard(came[0].host)
                self._done(*came)

    def _pause(self, now: float) -> float:
        """Until a host is to be asked again, and never long. Where no more can be asked at once, one will answer."""
        due = self.agenda.next_due()
        return _SOON_S if due is None or not self._calls.free else min(max(due - now, 0.005), _SOON_S)

    # -- doing

    def _do(self, one: Decision) -> None:
        match one:
            case Act():
                self._start(one)
            case Assign():
                number = self.state.next_number
                self._append(
                    Assigned(
                        t=self._t(),
                        number=number,
                        host=one.host,
                        purpose=one.purpose,
                        place=one.place,
                        replaces=one.replaces,
                    )
                )
                what = "a check" if one.purpose == "check" else "the study"
                instead = f", in the place of {one.place}" if one.place not in (None, one.host) else ""
                self._say(f"{one.host}: {what} is begun (number {number}{instead})")
            case Quarantine():
                self._append(HostQuarantined(t=self._t(), host=one.host, reason=one.reason))
                self._say(f"{one.host} is quarantined: {one.reason}")
            case GiveUp():
                self._append(RunGivenUp(t=self._t(), number=one.number, reason=one.reason))
                self._say(f"number {one.number} is given up: {one.reason}")
            case Close():
                self._append(FleetClosed(t=self._t(), reason=one.reason))
                self._say(one.reason)

    def _say(self, line: str) -> None:
        """A line of the coordinator's: what hosts say in it begins no other."""
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
        work = self.state.works[act.number]
        if act.step != "judge" and act.host not in self._there():
            self.view.busy.discard(act.host)
            self._done(act, HostLostError(f"{act.host} is not connected"))
            return
        self._calls.start(act, lambda: self._call(act, work))

    def _there(self) -> frozenset[str]:
        """The hosts that may be there, asked of the engine once a second."""
        now = self.clock.up()
        if now - self._present[0] >= _SOON_S:
            self._present = (now, self.engine.present())
        return self._present[1]

    # -- in a thread of its own: nothing here changes the state

    def _call(self, act: Act, work: FleetWork) -> Came:
        assignment = Assignment(self.state.opened.fleet, act.number)
        # Over ssh nothing waits for a block to end, and a login that hangs holds up others.
        patience = _SSH_S if self.inventory.fleet.engine == "ssh" else self.rules.patience
        match act.step:
            case "begin":
                order = BeginOrder(
                    assignment=assignment,
                    question=self._question(work),
                    stop=self.inventory.fleet.stop_worker,
                    restarts=self.inventory.fleet.restarts,
                    package=self.state.opened.installed.package,
                    client=self.inventory.client_of(self._entries[act.host])
                    if work.assigned.purpose == "study"
                    else None,
                )
                return ask(self.engine, act.host, order, patience)
            case "look":
                return ask(self.engine, act.host, LookOrder(assignment=assignment), patience)
            case "end":
                return ask(self.engine, act.host, EndOrder(assignment=assignment), patience)
            case "forget":
                return ask(self.engine, act.host, ForgetOrder(assignment=assignment), patience)
            case "ship":
                source = RunSource(self.engine, act.host, assignment, max(_READ_S, patience))
                asked_of = self._question(work)
                return bring(
                    source,
                    self._place(work),
                    self._room,
                    look=lambda path, name: must_be(path, name, asked_of, self.state.opened),
                    on_step=lambda step: self.on_step(f"ship {step}"),
                )
            case "judge":
                assert work.shipped is not None
                return calibration_failure(self.folder.path / work.shipped.folder)

    def _question(self, work: FleetWork) -> FleetQuestion:
        entry = self._entries[work.assigned.host]
        if work.assigned.purpose == "check":
            return FleetQuestion(text=CHECK.format(blocks=self.inventory.fleet.check))
        return msgspec.structs.replace(self.state.opened.question, directory=entry.directory)

    def _place(self, work: FleetWork) -> Path:
        below = "checks" if work.assigned.purpose == "check" else "hosts" if work.replaced is None else "late"
        return self.folder.path / below / work.assigned.host

    # -- what came of it

    def _done(self, act: Act, came: Came | BaseException) -> None:
        now = self.clock.up()
        self.agenda.look_at(act.host)
        if isinstance(came, HostLostError):
            self.view.due.pop(act.host, None)
            self._lost(act.host, came, now)
            return
        if isinstance(came, StorageError) or (isinstance(came, BaseException) and not isinstance(came, Exception)):
            raise came  # of this machine: nothing more can be written
        if isinstance(came, Exception) and not isinstance(came, HugewiseError):  # what nobody foresaw is of one host
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
        # Only what was asked counts, a while for each call: of the time that this machine slept nothing is known.
        passed = min(now - self._failed.get(host, now), _MOST_PASSED_S)
        self._failed[host] = now
        new = host not in self.view.out
        self.view.out[host] = self.view.out.get(host, 0.0) + passed
        self.view.alone[host] = self.view.alone.get(host, 0.0) + passed
        if len(self.state.hosts) >= _SEVERAL and 2 * len(self.view.out) > len(self.state.hosts):
            self.view.alone.clear()  # it is the link of this machine: none is alone
        if new:
            self._reasons[host] = error.message
            if self.state.hosts[host].out is None:
                self._append(HostGone(t=self._t(), host=host, reason=error.message))
            self._say(f"{host} is out of reach: {error.message}")

    def _returned(self, host: str) -> None:
        self.view.out.pop(host, None)
        self.view.alone.pop(host, None)
        self._failed.pop(host, None)
        self._reasons.pop(host, None)
        self._say(f"{host} is back")

    def _refused(self, act: Act, error: HugewiseError, now: float) -> None:
        """A host that says no may say yes later: it is asked again, ever more seldom, and counts as out of reach when
        it has said so three times. Nothing of it is thrown away. Only a fence is for ever.
        """
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

    def _came(self, act: Act, came: Came, now: float) -> None:
        work = self.state.works[act.number]
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
                assert isinstance(came, Brought)
                self._shipped(act, work, came)
            case "judge":
                assert came is None or isinstance(came, str)
                self._append(Checked(t=self._t(), number=act.number, reason=came))
                self._say(f"{act.host}: the check {'passed' if came is None else f'failed: {came}'}")
            case "forget":
                self._append(RunForgotten(t=self._t(), number=act.number))

    def _looked(self, act: Act, work: FleetWork, came: Came, now: float) -> None:
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
                    cost=came.cost,
                )
            )
            self._say(f"{act.host}: number {act.number} has {came.state}{f': {came.reason}' if came.reason else ''}")
        else:
            self.view.due[act.host] = now + self.rules.look

    def _shipped(self, act: Act, work: FleetWork, came: Brought) -> None:
        why = foreign(came.path, self.state.hosts[act.host].greeted, self.state.seeds)
        folder = came.path.relative_to(self.folder.path)
        late = folder.parts[0] == "late"
        self._append(
            RunShipped(
                t=self._t(),
                number=act.number,
                folder=str(folder),
                digest=came.digest,
                files=came.files,
                size=came.size,
                late=late,
                foreign=None if why is None else printable(why)[:_LONGEST],
                seed_hash=seed_hash(came.path),
            )
        )
        self._tell_shipped(work)
        late_words = ", which is late: another host took its place" if late or work.replaced is not None else ""
        if why is not None:
            self._say(f"{act.host}: its run is kept and does not count: {why}")
        self._say(f"{act.host}: its run is at {folder} ({came.files} files, {came.size >> 10:,} KiB){late_words}")

    def _tell_shipped(self, work: FleetWork) -> None:
        if work.shipped is not None and work.assigned.purpose == "study":
            self.shipped(self.folder.path / work.shipped.folder)

    def _show(self, now: float) -> None:
        if self._snapshots.due(now):
            seen = {self.state.works[number].assigned.host: one for number, one in self.view.seen.items()}
            self._snapshots.write(FleetSnapshot(t=time.time(), seen=seen, out=dict(self._reasons)))
