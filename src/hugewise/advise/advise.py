"""The phases of an advice, one run each, and its record: `results/advice/<when>/advice.json`.

The record is written after every phase, so that an interrupted advice says what it knows and goes on from there. Each
run puts the machine back itself, as any run does.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from hugewise import workloads
from hugewise.advise import choosing, decision, layout_phases, layouts, telling
from hugewise.advise import pilot as pilots
from hugewise.advise import question as questions
from hugewise.advise.advice import FORMAT, Advice, Screen, confirmed
from hugewise.advise.aims import aimed
from hugewise.advise.asking import Asking, InterruptedPhaseError, ended
from hugewise.advise.candidates import LeftOutCandidate, ProgramHere, SettingCandidate, candidates
from hugewise.advise.own_options import own_options
from hugewise.advise.program import allocator_of, program_of
from hugewise.advise.question import AS_IS, Question
from hugewise.advise.record import RECORD, AdviceFolder
from hugewise.errors import HugewiseError, UserError
from hugewise.files import own, storing
from hugewise.host.local_host import LocalHost
from hugewise.inspection.neighbours import neighbours
from hugewise.model.pages import PageSizes
from hugewise.model.results import Results
from hugewise.plan.cells import resolve
from hugewise.plan.plan import EVERY
from hugewise.policies import _thp
from hugewise.session import progress
from hugewise.session.feasibility import make_plan
from hugewise.stats.family import methods_for
from hugewise.stats.screening import Screened
from hugewise.store.folder import RunFolder

__all__ = ["advise", "resume"]

_SCREENED = 1 / 3  # of the time, at most


def advise(
    asked: Question,
    results: Path,
    *,
    record: AdviceFolder | None = None,
    listener: progress.Listener = lambda _: None,
    anyway: bool = False,
    command: Sequence[str] = (),
) -> tuple[Advice, Path]:
    """Find out what to set for a workload; the advice and its folder (`record`, where it is one of several).
    Interrupted, it says so in its state. `command`: the command line that asked, which it keeps, as its runs do.

    Raises UserError where the workload cannot be measured, HugewiseError.
    """
    questions.check(asked)
    asked = aimed(asked)
    record = record or AdviceFolder.new(results)
    with storing(f"the advice {record.path}"):
        own(results, f"results = {str(results)!r}")
    begun = Advice(question=asked, cwd=str(Path.cwd()), command=tuple(command))
    return _conducted(Asking(begun, record, results, listener, anyway, time.monotonic()))


def resume(
    folder: Path,
    *,
    results: Path | None = None,
    record: AdviceFolder | None = None,
    listener: progress.Listener = lambda _: None,
    anyway: bool = False,
) -> tuple[Advice, Path]:
    """Go on with an advice that was interrupted; its runs are in `results`. One that is finished is what it was. Raises
    UserError where there is none, or it was begun elsewhere, HugewiseError.
    """
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
    aimed(found.question)
    record.must_be_own()
    results = results or folder.parent.parent
    return _conducted(Asking(found, record, results, listener, anyway, time.monotonic()))


def _conducted(asking: Asking) -> tuple[Advice, Path]:
    advice = asking.advice
    try:
        for phase in (_pilot, _curve) if advice.question.curve else (_pilot, _screen, _confirm, _apart, _look_around):
            phase(asking)
            asking.keep()
        advice.arrived = "finished"
    except (InterruptedPhaseError, KeyboardInterrupt):  # in a run, which tells it, or between two
        if not advice.pilot_folder:
            raise  # nothing was begun
        asking.say(f"interrupted; to go on: hugewise advise --resume {asking.folder}")
    asking.keep()
    asking.put(telling.DETAILS, telling.whole(advice).encode())
    if advice.arrived == "finished":
        asking.record.hand_over()
    asking.record.close()
    return advice, asking.folder


def _pilot(asking: Asking) -> None:
    """The program as it is, and what can be tried on it."""
    advice = asking.advice
    if advice.pilot is not None:
        return
    asked = advice.question
    if asked.curve and (why := layouts.unlaid(asked)) is not None:
        raise UserError(f"there is no curve of it: {why}", hint="see docs/concepts/layouts.md for whom layouts reach")
    asking.say("pilot: the program as it is")
    try:
        folder = asking.run(questions.pilot(asked), "pilot")
    except HugewiseError as error:  # of what never ran, why not is what is told
        blocks = RunFolder(Path(advice.pilot_folder)).read().blocks if advice.pilot_folder else ()
        raise pilots.never_ran(blocks, service=asked.of_service) or error from error
    ended(folder)
    run = folder.read()
    metric = run.opened.cells[0].metric.name
    found = advice.pilot = pilots.judged(run.blocks, folder.path, asked.seconds, metric, service=asked.of_service)
    if asked.curve:
        return
    tried, left = candidates(_found(found, asked), asked.most)
    if not (asked.of_service or layouts.command_of(asked)):
        tried, left = _taken(asked, tried, left, found)
    advice.tried, advice.left_out = tuple(tried), tuple(left)
    for_it = asking.left * (1 - _SCREENED if len(tried) > 1 else 1)  # what a screening leaves of the time
    loaded = asked.of_service and metric == "wall_s"
    alpha, spent = 1 - asked.confidence, asking.spent
    advice.more_time = pilots.needed(found, for_it, alpha, spent)
    uncounted = loaded and not questions.counted(asked)
    advice.remarks = tuple(pilots.remarks(found, for_it, alpha, loaded=loaded, uncounted=uncounted, spent=spent))
    for remark in advice.remarks:
        asking.say(remark)
    asking.say(f"candidates: {', '.join(each.name for each in tried) or 'none'}")


def _taken(
    asked: Question, tried: list[SettingCandidate], left: list[LeftOutCandidate], found: pilots.ProgramAsIs
) -> tuple[list[SettingCandidate], list[LeftOutCandidate]]:
    """The candidates that the workload can take here, and those that are left out: a server has settings of its own."""
    if not tried:
        return tried, left
    planned = make_plan(questions.screening(asked, tried, int(found.memory * layout_phases.POOL_ROOM), 1.0))
    why = {one.policy: one.reason for one in planned.left_out}
    whole = why.get(EVERY)
    refused = [one for one in tried if one.name in why or whole is not None]
    gone = [LeftOutCandidate(name=one.name, reason=why.get(one.name) or whole or "") for one in refused]
    return [one for one in tried if one not in refused], [*left, *gone]


def _program(asked: Question) -> tuple[str, ...]:
    """The words of the program of a workload that is no command; none where that cannot be said."""
    (cell,) = resolve(questions.pilot(asked), workloads.discover())
    try:
        return program_of(cell.workload, cell.values)
    except HugewiseError:
        return ()


def _found(found: pilots.ProgramAsIs, asked: Question) -> ProgramHere:
    host = LocalHost()
    sizes = PageSizes.discover(host)
    argv = layouts.command_of(asked) or _program(asked)
    known = allocator_of(argv, questions.environment(asked)) if argv else None
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
        allocator="" if known is None else known.name,
        forked=found.forked,
        executed=found.executed,
        threads=found.threads,
        ended=found.ended,
        unlaid=layouts.unlaid(asked),
        shared=found.shared,
        own=own_options(found, asked, sizes),
        shared_mode="never" if sizes.pmd is None else _thp.mode(host, sizes, sizes.pmd, shared=True),
    )


def _screen(asking: Asking) -> None:
    """Which of several candidates goes on."""
    advice = asking.advice
    if advice.chosen or advice.screen is not None or not advice.tried:
        return
    if len(advice.tried) == 1:
        advice.chosen = advice.tried[0].name
        return
    advice.arrived = "screening"
    study = questions.screening(advice.question, advice.tried, _pool(advice), asking.left * _SCREENED)
    asking.say(f"screening: {len(advice.tried)} candidates, at most {asking.left * _SCREENED:.0f} s")
    folder = asking.run(study, "screening")
    found = ended(folder)
    if advice.question.priority == "memory":
        advice.screen = choosing.for_memory(folder, found)
        advice.chosen = "" if advice.screen.chosen == AS_IS else advice.screen.chosen
    else:
        screen = _screened(folder, found)
        advice.chosen = _going_on(screen, advice.tried)
        advice.screen = choosing.with_runner_up(screen, found, advice.chosen)
    asking.say(f"screening: {advice.screen.chosen}: {advice.screen.reason}")


def _screened(folder: RunFolder, found: Results) -> Screen:
    """What the screening says: it is fed its stored blocks again."""
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
        reason=chosen.reason,
        better=cell.metric.better,
        estimates=choosing.estimates(cell),
        failed=decision.failures(cell),
        dropped=dict(made.dropped),
        left_out={left.policy: left.reason for left in run.opened.left_out},
    )


def _going_on(screen: Screen, tried: tuple[SettingCandidate, ...]) -> str:
    """Whom the confirmation looks at: the chosen one; where that is `as-is`, the candidate that came closest."""
    if screen.chosen != AS_IS:
        return screen.chosen
    every = {name: ratio for name, ratio in screen.estimates.items() if ratio is not None}
    known = {name: ratio for name, ratio in every.items() if name not in screen.dropped} or every
    if not known:
        return next((each.name for each in tried if each.name not in screen.left_out), tried[0].name)
    return (max if screen.better == "higher" else min)(known, key=lambda name: known[name])


def _confirm(asking: Asking) -> None:
    """The verdict, on blocks that had no part in the choice."""
    advice = asking.advice
    if not advice.chosen or advice.confirmed is not None:
        return
    assert advice.pilot is not None  # it chose
    advice.arrived = "confirmation"
    chosen = advice.candidate(advice.chosen)
    if advice.beside is None:  # once: a run that is gone on with has the arms that it had
        advice.beside = choosing.beside(advice, advice.pilot, asking.left)
    second = advice.candidate(advice.beside) if advice.beside else None
    with_it = f", {second.name} measured beside it" if second is not None else ""
    left = asking.left * (1 - layouts.KEPT if layouts.is_layout(chosen) else 1)
    most = max(1.0, left)
    asking.say(f"confirmation: {chosen.name} against the program as it is, at most {most:.0f} s{with_it}")
    declared = advice.pilot.declared(left)
    study = questions.confirmation(advice.question, chosen, _pool(advice), left, declared, beside=second)
    folder = asking.run(study, "confirmation")
    found = ended(folder)
    (cell,) = found.cells
    comparison = next((one for one in cell.comparisons if one.arm == chosen.name), None)
    if comparison is None:
        why = next((left.reason for left in found.left_out if left.policy == chosen.name), "it was left out")
        raise UserError(f"{chosen.name} cannot be confirmed here: {why}", hint="cure that, and ask again")
    seen = decision.measured(found, cell, chosen.name)
    (planned,) = folder.read().opened.cells
    advice.confirmed = confirmed(str(folder.path), cell, comparison, seen, planned.kind or "sequential")


def _look_around(asking: Asking) -> None:
    """What the recommended setting does to the other programs that run now; nothing is timed any more."""
    advice = asking.advice
    last = advice.confirmed
    if last is None or advice.neighbours is not None or not telling.recommended(advice):
        return
    size = PageSizes.discover(LocalHost()).pmd
    if advice.candidate(last.candidate).reach == "host" and size is not None:
        asking.say("the other programs that run now")
        advice.neighbours = neighbours(size)


def _apart(asking: Asking) -> None:
    """What of a layout's gain is the library's own."""
    layout_phases.apart(asking, _mode(LocalHost()), _pool(asking.advice))


def _curve(asking: Asking) -> None:
    """The gain against the memory that is on huge pages."""
    assert asking.advice.pilot is not None  # it came first
    layout_phases.curve(asking, _found(asking.advice.pilot, asking.advice.question))


def _mode(host: LocalHost) -> str:
    sizes = PageSizes.discover(host)
    return "never" if sizes.pmd is None else _thp.mode(host, sizes, sizes.pmd)


def _pool(advice: Advice) -> int:
    """Bytes of a pool that a candidate of it needs; 0 where there is none."""
    assert advice.pilot is not None
    return (
        int(advice.pilot.memory * layout_phases.POOL_ROOM) if any(each.reach == "pool" for each in advice.tried) else 0
    )
