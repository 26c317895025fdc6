"""Advice for each cell of a study, in turn: as for a command, each with a share of the time.

The record is `results/advice/<when>/study.json`, beside a folder for each cell. An advice keeps `[between]` and
`[validity]`, and of `[design]` what does not depend on the arms of a block, of which it has others.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from hugewise import workloads
from hugewise.advise import advise as phases
from hugewise.advise import question as questions
from hugewise.advise import text
from hugewise.advise.advice import RECORD as OF_CELL
from hugewise.advise.advice import Advice, AdviceFolder
from hugewise.advise.program import is_own
from hugewise.advise.question import Question
from hugewise.advise.text import answer
from hugewise.errors import UserError
from hugewise.files import own, storing
from hugewise.host.local_host import LocalHost
from hugewise.host.lock import HostLock
from hugewise.model.results import Results
from hugewise.plan.cells import Resolved, resolve
from hugewise.report import numbers
from hugewise.report.document import table
from hugewise.report.terminal import lines
from hugewise.session import progress
from hugewise.study.study import Study
from hugewise.study.tables import Between, Design, Validity
from hugewise.visible import printable


def taken_over(study: Study) -> dict[str, Any]:
    """Return the fields of a `Question` that the study's tables give; an absent setting gives none."""
    found: dict[str, Any] = {}
    if study.between != Between():
        found["between"] = study.between
    if study.validity != Validity():
        found["validity"] = study.validity
    if study.design != Design():
        kind = "auto" if study.design.kind == "interleaved" else study.design.kind
        found["design"] = replace(study.design, kind=kind)
    return found


FORMAT = 2
"""Format of the record, and of the advices in it: it changes where that of an advice does."""
_EACH_S = 600.0  # for each cell, where no time is given
RECORD = "study.json"
_METRIC, _CELL = 12, 18  # characters
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_KEYS = ("user", "cpus", "client_cpus", "storage", "memory")  # keys of a workload's table, besides its parameters


class CellAdvice(msgspec.Struct, kw_only=True):
    """The advice of a cell: its question, and its folder and advice once it was begun; or `why` there is none."""

    cell: str
    question: Question | None = None
    folder: str = ""
    advice: Advice | None = None
    why: str = ""

    @property
    def over(self) -> bool:
        """True if nothing is left to be done."""
        return bool(self.why) or (self.advice is not None and self.advice.arrived == "finished")


class StudyAdvice(msgspec.Struct, kw_only=True):
    """The advices of a study's cells, as far as they have come; `time`: seconds for all, `seconds`: spent."""

    format: int = FORMAT
    study: str
    cwd: str = ""
    command: tuple[str, ...] = ()
    time: float
    seconds: float = 0.0
    cells: list[CellAdvice]

    @property
    def arrived(self) -> str:
        """`finished` where every cell is."""
        return "finished" if all(one.over for one in self.cells) else "interrupted"


def cell_questions(study: Study, *, seconds: float | None, **asked: Any) -> StudyAdvice:
    """Return the questions about each cell; `seconds` for all (None: 10 minutes each). Raises UserError."""
    cells = [_cell(one, study, asked) for one in resolve(study, workloads.discover())]
    askable = [one for one in cells if not one.why]
    if not askable:
        whose: dict[str, list[str]] = {}
        for one in cells:
            whose.setdefault(one.why, []).append(one.cell)
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in whose.items())
        raise UserError(f"no cell of {study.name} can be advised on: {reasons}", hint="compare policies: hugewise run")
    whole = _EACH_S * len(askable) if seconds is None else seconds
    for one in askable:
        assert one.question is not None
        questions.check(msgspec.structs.replace(one.question, seconds=whole / len(askable)))
    return StudyAdvice(study=study.name, cwd=str(Path.cwd()), time=whole, cells=cells)


def _cell(one: Resolved, study: Study, asked: Mapping[str, Any]) -> CellAdvice:
    if (why := _refused(one, study)) is not None:
        return CellAdvice(cell=one.id, why=why)
    parameters = {name: list(value) if isinstance(value, tuple) else value for name, value in one.values.items()}
    table: dict[str, Any] = {"name": one.workload.name, "metric": one.metric.name, "parameters": parameters}
    table |= {key: value for key in _KEYS if (value := getattr(one.used, key)) is not None}
    table |= {key: list(value) for key, value in table.items() if isinstance(value, tuple)}
    pool = asked.get("pool") or parameters.get("pool_bytes", 0)
    return CellAdvice(cell=one.id, question=Question(workload=table, **{**asked, "pool": pool}, **taken_over(study)))


def _refused(one: Resolved, study: Study) -> str | None:
    if study.guest is not None:
        return "it runs in guests, whose memory and kernel are what the study compares"
    if is_own(one.workload, one.values):
        return f"{one.workload.name} is a program of hugewise's own, which maps its memory as the policy says"
    if one.metric.better == "neutral":
        return f"its metric {one.metric.name} is neither better high nor low"
    return None


def advise(
    asked: StudyAdvice, results: Path, *, listener: progress.Listener = lambda _: None, lock: HostLock | None = None
) -> tuple[StudyAdvice, Path]:
    """Advise on each cell in turn; return the record and its folder. What is left of the time is shared evenly by the
    cells left; a cell that cannot be measured is told with the reason. Raises HugewiseError.
    """
    record = AdviceFolder.new(results)
    with storing(f"the advice {record.path}"):
        own(results, f"results = {str(results)!r}")
    return _conducted(asked, record, results, listener, lock or HostLock(LocalHost()))


def is_study(folder: Path) -> bool:
    """Return whether the advice in `folder` is about a study's cells."""
    return (folder / RECORD).is_file()


def resume(
    folder: Path, *, listener: progress.Listener = lambda _: None, lock: HostLock | None = None
) -> tuple[StudyAdvice, Path]:
    """Go on with an advice of a study that was interrupted. Raises UserError, HugewiseError."""
    folder = folder.absolute()
    record = AdviceFolder(folder)
    found = record.read(RECORD, StudyAdvice, FORMAT)
    if found.cwd and found.cwd != str(Path.cwd()):
        cure = f"cd {shlex.quote(found.cwd)}; its commands may be others elsewhere"
        raise UserError(f"{folder}: its commands are run in {found.cwd}", hint=cure)
    if found.arrived == "finished":
        record.close()
        return found, folder
    record.must_be_own()
    return _conducted(found, record, record.results, listener, lock or HostLock(LocalHost()))


def _conducted(
    found: StudyAdvice, record: AdviceFolder, results: Path, listener: progress.Listener, lock: HostLock
) -> tuple[StudyAdvice, Path]:
    with lock:  # no other run between two cells
        lock.expect_end(found.time - found.seconds)
        return _advised_cells(found, record, results, listener, lock)


def _advised_cells(
    found: StudyAdvice, record: AdviceFolder, results: Path, listener: progress.Listener, lock: HostLock
) -> tuple[StudyAdvice, Path]:
    folder = record.path
    left = [(number, one) for number, one in enumerate(found.cells, 1) if not one.over]
    for done, (number, one) in enumerate(left):
        clock = time.monotonic()
        listener(progress.Message(f"cell {number} of {len(found.cells)}: {one.cell}"))
        own_record = AdviceFolder(folder / f"{number}-{_UNSAFE.sub('_', one.cell)[:60]}", record)

        def hearing(event: progress.Event, one: CellAdvice = one, place: Path = own_record.path) -> None:
            if isinstance(event, progress.Started) and not one.folder:  # as soon as the advice can be resumed
                one.folder = str(place)
                _keep(found, record)
            listener(event)

        try:
            share = (found.time - found.seconds) / (len(left) - done)
            _advised(one, own_record, results, share, hearing, lock=lock, command=found.command)
        except UserError as error:
            one.why = error.message if not error.hint else f"{error.message} ({error.hint})"
            listener(progress.Message(f"{one.cell}: {one.why}"))
        except KeyboardInterrupt:
            if not any(each.folder for each in found.cells):
                raise  # nothing was begun
        finally:
            found.seconds += time.monotonic() - clock
            if any(each.folder for each in found.cells):
                _keep(found, record)
        if not one.over:
            listener(progress.Message(f"interrupted; all of it goes on by: hugewise advise --resume {folder}"))
            return found, folder
    if any(each.folder for each in found.cells):
        record.hand_over()
    return found, folder


def _advised(
    one: CellAdvice,
    record: AdviceFolder,
    results: Path,
    share: float,
    listener: progress.Listener,
    *,
    lock: HostLock,
    command: tuple[str, ...],
) -> None:
    assert one.question is not None
    if record.has(OF_CELL):
        one.advice, _ = phases.resume(record.path, results=results, record=record, listener=listener, lock=lock)
    elif share < questions.LEAST_S:
        raise UserError("no time was left for it", hint="give more for all of them: --time")
    else:
        one.question = msgspec.structs.replace(one.question, seconds=share)
        held: dict[str, Any] = {"record": record, "listener": listener, "lock": lock, "command": command}
        one.advice, _ = phases.advise(one.question, results, **held)


def _keep(found: StudyAdvice, record: AdviceFolder) -> None:
    record.put(RECORD, msgspec.json.format(msgspec.json.encode(found), indent=1))


def study_summary(found: StudyAdvice) -> Iterator[str]:
    """Yield the answers, each once for all of its cells, then the cells without one, with the reason."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in found.cells:
        if one.advice is not None:
            head, _, rest = answer(one.advice).partition(": ")
            groups.setdefault(head, []).append((one.cell, rest))
    for head, cells in groups.items():
        names = ", ".join(cell for cell, _ in cells)
        reasons = {rest for _, rest in cells}
        if len(reasons) == 1:
            (only,) = reasons
            yield f"{names}: {head}{': ' if only else ''}{only}"
        else:
            yield f"{head} ({len(cells)} cells)"
            yield from (f"  {cell}: {rest}" for cell, rest in cells)
    for one in found.cells:
        if one.why:
            yield f"{one.cell}: no advice: {printable(one.why)}"
        elif one.advice is None:
            yield f"{one.cell}: not begun"
    yield from together(found)


def whole(found: StudyAdvice) -> Iterator[str]:
    """Yield all of it: the answers, and what stands behind the one of each cell."""
    yield from study_summary(found)
    for one in found.cells:
        if one.advice is not None:
            yield from ("", f"{one.cell}:", *(f"  {line}" for line in text.details(one.advice)))
            yield f"  Advice: {one.folder}"


def together(found: StudyAdvice) -> Iterator[str]:
    """Yield the joint confidence of all answers."""
    advices = [one.advice for one in found.cells if one.advice is not None]
    sure = [advice.confirmed.confidence for advice in advices if advice.confirmed is not None]
    if len(sure) > 1:
        wrong = min(1.0, sum(1 - each for each in sure))
        yield text.joint_confidence(len(sure), len(advices), max(1 - each for each in sure), wrong)


def ending(found: StudyAdvice, folder: Path, *, files: bool = False) -> tuple[str, ...]:
    """Return the ending of the advice on a study's cells: a row for each cell that has an advice."""
    cells = [one for one in found.cells if one.advice is not None]
    head = ("cell", "answer", "change (interval)")
    rows = list(lines(table("", head, map(_row, cells), len(head))))
    notes = [
        f"{one.cell}: {f'no advice: {one.why}' if one.why else 'not begun'}" for one in found.cells if one not in cells
    ]
    late = [(one.cell, text.not_tried(one.advice)) for one in cells if one.advice is not None]
    notes += [f"{cell}: {said}" for cell, said in late if said]
    notes += together(found)
    where = [f"Advice: {folder} (all in {text.DETAILS} of each cell)"]
    done = sum(one.over and not one.why for one in found.cells)
    title = f"{found.study}: {done} of {len(found.cells)} cells answered"
    return text.fitted([title], rows, notes, where, files=files)


def _row(one: CellAdvice) -> tuple[str, ...]:
    assert one.advice is not None
    last = one.advice.confirmed
    effect = numbers.NOTHING
    if last is not None:
        metric = numbers.shortened(printable(last.metric), _METRIC)
        effect = f"{metric} {numbers.effect(last.ratio, last.low, last.high)}"
    told = (printable(one.cell), printable(text.in_short(one.advice)))
    return (*(numbers.shortened(each, _CELL) for each in told), effect)


def named_as_cell(results: Results, cell: str) -> Results:
    """Return the results of an advice's run, with its one cell named as in the study; an empty name changes nothing."""
    cells = tuple(msgspec.structs.replace(one, cell=cell or one.cell) for one in results.cells)
    return msgspec.structs.replace(results, cells=cells)
