"""Phases of an advice, one run each, and the record `results/advice/<when>/advice.json`.

The record is written after every phase, so that an interrupted advice tells what it knows and can be resumed.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import msgspec

from hugewise import workloads
from hugewise.advise import decision, text
from hugewise.advise import pilot as pilots
from hugewise.advise import question as questions
from hugewise.advise.advice import FORMAT, RECORD, Advice, AdviceFolder, Screen, confirmed, with_earlier_runs
from hugewise.advise.candidates import LeftOutCandidate, ProgramHere, SettingCandidate, candidates
from hugewise.advise.pilot import ProgramAsIs
from hugewise.advise.program import own_options, program_of, thp_option, unlaid
from hugewise.advise.question import AS_IS, Question
from hugewise.analysis.analysis import analyze
from hugewise.deployment.runtimes import turns_off
from hugewise.errors import HugewiseError, UserError
from hugewise.files import own, storing
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.inspection.allocator import BY_CLOCK, allocator_of
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Treatment
from hugewise.model.reason import NotClearlyBeaten
from hugewise.model.results import CellResult, Results
from hugewise.plan.cells import resolve
from hugewise.plan.plan import EVERY
from hugewise.policies import _thp
from hugewise.report.reasons import in_words
from hugewise.session import progress, session
from hugewise.session.feasibility import make_plan
from hugewise.stats import power
from hugewise.stats.family import methods_for
from hugewise.stats.screening import Screened
from hugewise.store.folder import RunFolder
from hugewise.store.records import CellRecord
from hugewise.study.study import Study
from hugewise.study.tables import Design


@dataclass
class Asking:
    """An advice under way."""

    advice: Advice
    record: AdviceFolder
    results: Path
    listener: progress.Listener
    lock: HostLock
    began: float

    @property
    def folder(self) -> Path:
        """Folder of the record, as people call it."""
        return self.record.path

    @property
    def left(self) -> float:
        """Seconds of the time that was given, 0 where it is over."""
        return max(0.0, self.advice.question.seconds - self.spent)

    @property
    def spent(self) -> float:
        return self.advice.seconds + time.monotonic() - self.began

    def say(self, text: str) -> None:
        self.listener(progress.Message(text))

    def keep(self) -> None:
        """Have on disk what is known; the folder is made when the first run has begun."""
        self.advice.seconds, self.began = self.spent, time.monotonic()
        self.put(RECORD, msgspec.json.format(msgspec.json.encode(self.advice), indent=1))

    def put(self, name: str, data: bytes) -> None:
        """Have a file beside the record."""
        self.record.put(name, data)

    def run(self, study: Study, phase: str) -> RunFolder:
        """Return a phase's run: a new one, or the one that was begun, which may have been continued to its end."""
        name = f"{phase}_folder"
        begun = getattr(self.advice, name)
        if begun:
            return self._taken_up(study, Path(begun))

        def listener(event: progress.Event) -> None:
            if isinstance(event, progress.Started):  # known as soon as it is there: whoever is killed can go on with it
                setattr(self.advice, name, str(Path(event.folder).absolute()))
                self.keep()
            self.pass_on(event)

        return session.run(study, self.results, listener=listener, lock=self.lock, command=self.advice.command)

    def pass_on(self, event: progress.Event) -> None:
        """Report a phase's run, without the room of its budget and how it is resumed: the advice has its own."""
        if isinstance(event, progress.BlockEnded) and self.advice.arrived == "pilot":
            event = msgspec.structs.replace(event, decided=0, judged=0)  # the arms of a pilot are the same
        if not isinstance(event, progress.BudgetMessage | progress.Interrupted):
            self.listener(event)

    def _taken_up(self, study: Study, path: Path) -> RunFolder:
        own(path, f"the run {path}")
        folder = RunFolder(path)
        run = folder.read()
        if questions.asks(run.study) != questions.asks(study):
            raise UserError(f"{path} is no run of this advice", hint="ask for a new advice")
        if run.closed is not None:
            return folder
        return session.resume(path, listener=self.pass_on, lock=self.lock)


class InterruptedPhaseError(Exception):
    """A phase was interrupted: what it has measured stays."""


def ended(folder: RunFolder) -> Results:
    """Return the results of a phase's run. Raises InterruptedPhaseError for a run that has not ended."""
    found = analyze(folder.path)
    if found.state in ("running", "interrupted"):
        raise InterruptedPhaseError
    return found


_ROOM = 4  # times the fewest pairs of a verdict: with less time the chosen one has all of it
_DAY_S, _STEP = 86_400.0, 1.1
_LONGER = 1.5  # times the pairs of an undecided answer, at least, are proposed
_MORE = 1.5  # times as long takes a block of three attempts as one of two


def ratios_to_as_is(cell: CellResult) -> dict[str, float | None]:
    """Return the ratio of each arm to as-is; None where nothing is known of it, or failures outweigh."""
    return {one.arm: decision.finite(one.ratio) for one in cell.comparisons}


def record_with_runner_up(screen: Screen, found: Results, chosen: str) -> Screen:
    """Return the screening's record with every arm's figures, and the best arm neither chosen nor dropped."""
    (cell,) = found.cells
    out = {AS_IS, *screen.dropped, *screen.left_out}
    second = decision.runner_up(screen.estimates, screen.better, chosen, out)
    return msgspec.structs.replace(screen, runner_up=second, measured=decision.measured(found, cell))


def runner_up_of(advice: Advice, pilot: ProgramAsIs, seconds: float) -> str:
    """Return the setting measured beside the chosen one; empty where its longer blocks would cost the verdict."""
    if advice.screen is None or not advice.screen.runner_up:
        return ""
    asked = advice.question
    least = power.least_pairs(1 - asked.confidence, pilot.declared(seconds), asked.copies)
    if least is None or pilot.pairs_in(seconds / _MORE) < _ROOM * least:
        return ""
    return advice.screen.runner_up


POOL_ROOM = 1.1
"""The size of a pool or a heap, as a multiple of the memory that the pilot saw: a heap grows in steps."""

_SCREENING_SHARE, _MOST_SHARE = 1 / 4, 1 / 3  # of the time; where the fewest blocks take longer, at most


def advise(
    asked: Question,
    results: Path,
    *,
    record: AdviceFolder | None = None,
    listener: progress.Listener = lambda _: None,
    lock: HostLock | None = None,
    command: Sequence[str] = (),
) -> tuple[Advice, Path]:
    """Find out what to set for a workload; return the advice and its folder. `command`: the command line to keep.
    Raises UserError where the workload cannot be measured, HugewiseError.
    """
    questions.check(asked)
    record = record or AdviceFolder.new(results)
    with storing(f"the advice {record.path}"):
        own(results, f"results = {str(results)!r}")
    begun = Advice(question=asked, cwd=str(Path.cwd()), command=tuple(command))
    return _conducted(Asking(begun, record, results, listener, lock or HostLock(LocalHost()), time.monotonic()))


def resume(
    folder: Path,
    *,
    results: Path | None = None,
    record: AdviceFolder | None = None,
    listener: progress.Listener = lambda _: None,
    lock: HostLock | None = None,
) -> tuple[Advice, Path]:
    """Go on with an interrupted advice, whose runs are in `results`; a finished one is returned. Raises UserError."""
    folder = folder.absolute()
    record = record or AdviceFolder(folder)
    found = record.read(RECORD, Advice, FORMAT)
    if found.cwd and found.cwd != str(Path.cwd()):
        cure = f"cd {shlex.quote(found.cwd)}; its command may be another one elsewhere"
        raise UserError(f"{folder}: its command is run in {found.cwd}", hint=cure)
    if found.arrived == "finished":
        record.close()
        return found, folder
    questions.check(found.question)
    record.must_be_own()
    results = results or record.results
    return _conducted(Asking(found, record, results, listener, lock or HostLock(LocalHost()), time.monotonic()))


def _conducted(asking: Asking) -> tuple[Advice, Path]:
    with asking.lock:  # no other run between two phases
        asking.began = time.monotonic()  # the time of an advice does not count what it has waited
        asking.lock.expect_end(asking.left)
        return _phases(asking)


def _phases(asking: Asking) -> tuple[Advice, Path]:
    advice = asking.advice
    try:
        for phase in (_run_pilot, _screen, _confirm):
            phase(asking)
            asking.keep()
        advice.arrived = "finished"
    except (InterruptedPhaseError, KeyboardInterrupt):  # in a run, which reports it, or between two
        if not advice.pilot_folder:
            raise  # nothing was begun
        asking.say(f"interrupted; to go on: hugewise advise --resume {asking.folder}")
    asking.keep()
    asking.put(text.DETAILS, text.whole(advice).encode())
    if advice.arrived == "finished":
        asking.record.hand_over()
    asking.record.close()
    return advice, asking.folder


def _candidates_that_fit(found: pilots.ProgramAsIs, most: int, seconds: float, alpha: float, copies: int) -> int:
    """Return how many candidates, of `most`, can be screened by a few blocks so that the time left has room for a
    verdict; 1: the time has room for a verdict without a screening; 0: for none.
    """
    if not pilots.needed(found, seconds * (1 - _MOST_SHARE), alpha, 0.0, copies):
        for count in range(most, 1, -1):
            if _fewest_s(found, count) <= seconds * _MOST_SHARE:
                return count
    return 0 if pilots.needed(found, seconds, alpha, 0.0, copies) else 1


def _fewest_s(found: pilots.ProgramAsIs, candidates: int) -> float:
    """Return the seconds of the fewest blocks that screen so many candidates."""
    return questions.FEWEST_SCREENED * found.block_s * (candidates + 1) / 2


def _time_for_all(found: pilots.ProgramAsIs, asked: Question, most: int, spent: float) -> str:
    """Return the `--time` with which all candidates are screened and a verdict has room; empty where that is a day."""
    seconds = asked.seconds
    while seconds < _DAY_S:
        left = seconds - max(spent, questions.PILOT_SHARE * seconds + found.block_s)
        if _candidates_that_fit(found, most, left, 1 - asked.confidence, asked.copies) == most:
            return pilots.time_option(seconds)
        seconds *= _STEP
    return ""


def _screening_s(found: pilots.ProgramAsIs, candidates: int, left: float) -> float:
    """Return the seconds, of those that are left, in which so many candidates are screened."""
    return left * (_SCREENING_SHARE if _fewest_s(found, candidates) <= left * _SCREENING_SHARE else _MOST_SHARE)


def _run_pilot(asking: Asking) -> None:
    advice = asking.advice
    if advice.pilot is not None:
        return
    asked = advice.question
    asking.say("pilot: the program as it is")
    try:
        folder = asking.run(questions.pilot_study(asked), "pilot")
    except HugewiseError as error:  # the reason why nothing ever ran tells more
        blocks = RunFolder(Path(advice.pilot_folder)).read().blocks if advice.pilot_folder else ()
        raise pilots.never_ran(blocks, service=asked.of_service) or error from error
    ended(folder)
    run = folder.read()
    metric = run.opened.cells[0].metric.name
    asked = advice.question = _as_pilot(asked, run.opened.cells[0])
    found = advice.pilot = pilots.judge_pilot(run.blocks, folder.path, asked.seconds, metric, service=asked.of_service)
    tried, left = candidates(_found(found, asked), asked.most)
    if not (asked.of_service or questions.command_of(asked)):
        tried, left = _taken(asked, tried, left, found)
    advice.tried, advice.left_out = tuple(tried), tuple(left)
    if not tried:
        return
    alpha, spent = 1 - asked.confidence, asking.spent
    fit = _candidates_that_fit(found, len(tried), asking.left, alpha, asked.copies)
    for_it = asking.left - (_screening_s(found, fit, asking.left) if fit > 1 else 0.0)
    if fit < len(tried):
        several = f"{fit} candidate{'' if fit == 1 else 's'}: those of the narrowest reach are tried"
        room = f"the time has room for {several}" if fit else "the time has no room for a verdict"
        advice.time_for_all = _time_for_all(found, asked, len(tried), spent) if fit else ""
        late = bool(advice.time_for_all)
        gone = [LeftOutCandidate(name=one.name, reason=room, late=late) for one in tried[fit:]]
        advice.tried, advice.left_out = tuple(tried[:fit]), (*left, *gone)
    if not fit:
        advice.more_time = pilots.needed(found, asking.left, alpha, spent, asked.copies)
        return
    loaded = asked.of_service and metric == "wall_s"
    uncounted = loaded and not questions.counted(asked)
    advice.time_remark = pilots.time_remark(found, for_it, alpha, asked.copies)
    advice.remarks = tuple(pilots.remarks(found, service=asked.of_service, loaded=loaded, uncounted=uncounted))
    for remark in filter(None, (advice.time_remark, *advice.remarks)):
        asking.say(remark)
    asking.say(f"candidates: {', '.join(each.name for each in advice.tried)}")


def _as_pilot(asked: Question, cell: CellRecord) -> Question:
    """Return the question with the metric that the pilot's run chose, and without turns where the pilot had none."""
    given = asked.design or Design(kind="auto")
    if given.kind == "auto" and cell.kind is None:
        given = msgspec.structs.replace(given, kind="sequential", copies=given.copies_each)
    return msgspec.structs.replace(asked, design=given, workload={**asked.workload, "metric": cell.metric.name})


def _taken(
    asked: Question, tried: list[SettingCandidate], left: list[LeftOutCandidate], found: pilots.ProgramAsIs
) -> tuple[list[SettingCandidate], list[LeftOutCandidate]]:
    if not tried:
        return tried, left
    planned = make_plan(questions.screening(asked, tried, int(found.memory * POOL_ROOM), 1.0, power.declared(0)))
    why = {one.policy: one.reason for one in planned.left_out}
    whole = why.get(EVERY)
    refused = [one for one in tried if one.name in why or whole is not None]
    gone = [LeftOutCandidate(name=one.name, reason=why.get(one.name) or whole or "") for one in refused]
    return [one for one in tried if one not in refused], [*left, *gone]


def _program(asked: Question) -> tuple[str, ...]:
    (cell,) = resolve(questions.pilot_study(asked), workloads.discover())
    try:
        return program_of(cell.workload, cell.values)
    except HugewiseError:
        return ()


def _found(found: pilots.ProgramAsIs, asked: Question) -> ProgramHere:
    host = LocalHost()
    sizes = PageSizes.discover(host)
    argv = questions.command_of(asked) or _program(asked)
    if asked.of_service:
        argv = tuple(map(str, asked.workload.get("parameters", {}).get("server", ())))
    known = allocator_of(argv, questions.environment(asked)) if argv else None
    allocator = "" if known is None else known.name
    return ProgramHere(
        root=host.privileged(),
        mode=_mode(host),
        top=_thp.top_mode(host),
        pmd=sizes.pmd,
        mthp=tuple(size for size in sizes.mthp if size != sizes.pmd),
        pools=tuple(sizes.hugetlb),
        huge=found.huge,
        memory=asked.pool or found.memory,
        tuned=None if known is None else known.tuned,
        why="" if known is None else known.why,
        allocator=allocator,
        forked=found.forked,
        executed=found.executed,
        threads=found.threads,
        ended=found.ended,
        unlaid=unlaid(asked),
        shared=found.shared,
        option=thp_option(allocator, asked, argv) if asked.of_service or questions.command_of(asked) else None,
        disabled=turns_off(argv) and not found.huge,
        own=own_options(found, asked, sizes),
        shared_mode="never" if sizes.pmd is None else _thp.mode(host, sizes, sizes.pmd, shared=True),
    )


def _screen(asking: Asking) -> None:
    advice = asking.advice
    if advice.chosen or advice.screen is not None or not advice.tried:
        return
    if len(advice.tried) == 1:
        advice.chosen = advice.tried[0].name
        return
    advice.arrived = "screening"
    assert advice.pilot is not None
    seconds = _screening_s(advice.pilot, len(advice.tried), asking.left)
    declared = advice.pilot.declared(seconds)  # as if two arms were left
    study = questions.screening(advice.question, advice.tried, _pool(advice), seconds, declared)
    asking.say(f"screening: {len(advice.tried)} candidates, at most {seconds:.0f} s")
    folder = asking.run(study, "screening")
    found = ended(folder)
    screen = _screened(folder, found)
    advice.chosen = _going_on(screen, advice.tried)
    advice.screen = record_with_runner_up(screen, found, advice.chosen)
    asking.say(f"screening: {advice.screen.chosen}: {advice.screen.reason}")


def _screened(folder: RunFolder, found: Results) -> Screen:
    run = folder.read()
    methods = [each for each in methods_for(run.study, run.opened.cells) if isinstance(each, Screened)]
    for block in run.blocks:
        for method in methods:
            method.observe(block)
    made = methods[0].screening
    chosen = made.chosen()
    (cell,) = found.cells
    return Screen(
        folder=str(folder.path),
        chosen=chosen.arm,
        unsure=chosen.unsure,
        reason=in_words(chosen.reason),
        best=chosen.reason.best if isinstance(chosen.reason, NotClearlyBeaten) else "",
        better=cell.metric.better,
        estimates=ratios_to_as_is(cell),
        failed=decision.failures(cell),
        dropped={name: in_words(why) for name, why in made.dropped.items()},
        left_out={left.policy: left.reason for left in run.opened.left_out},
    )


def _going_on(screen: Screen, tried: tuple[SettingCandidate, ...]) -> str:
    """Return the candidate to confirm: the chosen one, or, where that is `as-is`, the closest to it."""
    if screen.chosen != AS_IS:
        return screen.chosen
    every = {name: ratio for name, ratio in screen.estimates.items() if ratio is not None}
    known = {name: ratio for name, ratio in every.items() if name not in screen.dropped} or every
    if not known:
        return next((each.name for each in tried if each.name not in screen.left_out), tried[0].name)
    return (max if screen.better == "higher" else min)(known, key=lambda name: known[name])


def _confirm(asking: Asking) -> None:
    # blocks that had no part in the choice
    advice = asking.advice
    if not advice.chosen or advice.confirmed is not None:
        return
    assert advice.pilot is not None
    advice.arrived = "confirmation"
    chosen = advice.candidate(advice.chosen)
    if advice.beside is None:  # once: a run that is gone on with has the arms that it had
        advice.beside = runner_up_of(advice, advice.pilot, asking.left)
    second = advice.candidate(advice.beside) if advice.beside else None
    with_it = f", {second.name} measured beside it" if second is not None else ""
    left, spent = asking.left, asking.spent
    asking.say(f"confirmation: {chosen.name} against the program as it is, at most {max(1.0, left):.0f} s{with_it}")
    declared = advice.pilot.declared(left)
    asked, runtime = advice.question, _found(advice.pilot, advice.question).allocator
    if runtime in BY_CLOCK and asked.design is not None and asked.design.kind == "auto":
        in_sequence = msgspec.structs.replace(asked.design, kind="sequential", copies=asked.design.copies_each)
        asked = msgspec.structs.replace(asked, design=in_sequence)
        if not advice.confirmation_folder:
            advice.remarks += (f"{runtime} gives memory back by the clock: confirmed one arm after the other",)
    study = questions.confirmation(asked, chosen, _pool(advice), left, declared, beside=second)
    folder = asking.run(study, "confirmation")
    found = ended(folder)
    (cell,) = found.cells
    comparison = next((one for one in cell.comparisons if one.arm == chosen.name), None)
    if comparison is None:
        why = next((left.reason for left in found.left_out if left.policy == chosen.name), "it was left out")
        raise UserError(f"{chosen.name} cannot be confirmed here: {why}", hint="cure that, and ask again")
    seen = decision.measured(found, cell, chosen.name)
    run = folder.read()
    (planned,) = run.opened.cells
    last = confirmed(str(folder.path), cell, comparison, seen, planned.kind or "sequential")
    treatment = next(arm for arm in planned.arms if arm.name == chosen.name).treatment
    last = msgspec.structs.replace(last, variables=_variables(treatment))
    advice.confirmed = with_earlier_runs(last, found, cell, comparison)
    if last.verdict != "undecided":
        return
    alpha, asked = 1 - last.confidence, advice.question
    pairs = decision.blocks_of((one for one in found.attempts if one.state == "accepted"), chosen.name, AS_IS)
    if (count := decision.pairs_to_decide(pairs, last.metric, margin=asked.margin, alpha=alpha)) is not None:
        took = [block.seconds for block in run.blocks if block.seconds]
        more = max(count, math.ceil(_LONGER * last.n)) * fmean(took or [0.0])
        advice.more_time = pilots.time_option(spent + _with_screening(advice, more))
    others = [name for name in ("cpu_s", "wall_s", "user_s") if name != last.metric]
    advice.confirmed = msgspec.structs.replace(advice.confirmed, decisive=decision.decisive(pairs, others, alpha))


def _with_screening(advice: Advice, seconds: float) -> float:
    """Return the seconds of a longer advice of which its confirmation has so many: a screening takes its share."""
    if advice.screen is not None and advice.screen.unsure:
        return seconds / (1 - _SCREENING_SHARE)
    return seconds / (1 - _MOST_SHARE) if advice.time_for_all else seconds


def _variables(given: Treatment) -> dict[str, str]:
    """Return the variables of a treatment that consists of these alone; none of any other."""
    more = (given.knobs, given.thp_disable != "none", given.layout, given.parameters, given.target.kind == "hugetlb")
    return {} if any(more) else dict(given.environment)


def _mode(host: LocalHost) -> str:
    sizes = PageSizes.discover(host)
    return "never" if sizes.pmd is None else _thp.mode(host, sizes, sizes.pmd)


def _pool(advice: Advice) -> int:
    assert advice.pilot is not None
    return int(advice.pilot.memory * POOL_ROOM) if any(each.reach == "pool" for each in advice.tried) else 0
