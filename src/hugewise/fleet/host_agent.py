"""Host side of a fleet: an order comes in, an answer goes out, whatever carried it. The agent never measures and never
waits.

    answered(data, place)             one order as JSON, one answer as JSON; raises nothing
    examine_host(question, folder)    what `hugewise doctor` says there, and what of a question can run there

The spool is root's own under root, and 0700: no other account decides what is run, or reads what was found.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

import hugewise
from hugewise import reading
from hugewise.beneath import DirFd, discard
from hugewise.errors import HugewiseError, UserError
from hugewise.files import made_folder, own, write_whole
from hugewise.fleet import keeper
from hugewise.fleet.inventory import memory_age
from hugewise.fleet.protocol import (
    THIS,
    AssignmentSeen,
    BeginOrder,
    Done,
    EndOrder,
    Examined,
    FleetQuestion,
    ForgetOrder,
    Greeting,
    HelloOrder,
    HostAnswer,
    HostContext,
    HostOrder,
    LookOrder,
    ManifestOrder,
    ReadOrder,
    Refusal,
    RunBytes,
    decode_order,
    encode,
    installed,
    package_digest,
    refusal_of,
    study_of_question,
)
from hugewise.fleet.spool import FINAL, Fence, SpoolEntry, obeying_order, terminate_keeper
from hugewise.host import knob
from hugewise.host.local_host import LocalHost
from hugewise.machine import fingerprint
from hugewise.model.host import Check, text_of
from hugewise.model.pages import THP

_PATIENCE_S = 60.0
_LONGEST = 4000


class _DoctorOutput(msgspec.Struct, frozen=True):
    mechanism: str
    checks: tuple[Check, ...]


_SAID = msgspec.json.Decoder(_DoctorOutput)


def examine_host(question: FleetQuestion | None, folder: Path) -> Examined:
    """Examine the host and the question as this account; `folder`: where the study's commands run."""
    try:
        doctor = _doctor(folder)
        if question is None:
            return Examined(mechanism=doctor.mechanism, checks=doctor.checks)
        cells, left_out, install = _plan_cells(question)
    except HugewiseError as error:
        hint = "" if error.hint is None else f" (cure: {error.hint})"
        return Examined(error=f"{error.message}{hint}"[:_LONGEST])
    return Examined(mechanism=doctor.mechanism, checks=doctor.checks, cells=cells, left_out=left_out, install=install)


def _doctor(folder: Path) -> _DoctorOutput:
    try:
        done = subprocess.run(
            [*THIS, "doctor", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=folder,
            check=False,
            timeout=_PATIENCE_S,
        )
        return reading.decoded(_SAID, done.stdout)
    except subprocess.TimeoutExpired:
        raise HugewiseError(f"hugewise doctor has not ended within {_PATIENCE_S:g} s") from None
    except reading.UnreadableError:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise HugewiseError(
            f"hugewise doctor failed: {''.join(last_line) or f'exit status {done.returncode}'}"
        ) from None


def _plan_cells(question: FleetQuestion) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    from hugewise.session import feasibility  # noqa: PLC0415  (policies and workloads)

    study = study_of_question(question, "study.toml")
    if study.guest is not None:
        lacking = [check for check in feasibility.guest_checks(study) if check.state == "missing"]
        return (
            () if lacking else tuple(use.called for use in study.workload),
            tuple(f"{check.name}: {check.finding}"[:_LONGEST] for check in lacking),
            _packages([name for check in lacking for name in check.packages]),
        )
    plan = feasibility.make_plan(study)
    cells = tuple(
        f"{cell.id}: {', '.join(arm.name for arm in cell.arms if arm.name != cell.baseline)} against {cell.baseline}"
        for cell in plan.cells
    )
    left_out = tuple(f"{left.cell}, {left.policy}: {left.reason}"[:_LONGEST] for left in plan.left_out)
    return cells, left_out, _packages([name for left in plan.left_out for name in left.packages])


def _packages(names: list[str]) -> str | None:
    return f"apt install {' '.join(sorted(set(names)))}" if names else None


_OTHERS = 0o077
_CURE = "name another folder with spool = ..., or see who writes there"


def answer_order(data: bytes, place: HostContext) -> bytes:
    """Return the answer to the order in `data`. Raises nothing that a host can foresee: such an error is a refusal."""
    try:
        return encode(obey(decode_order(data), place))
    except reading.UnreadableError as error:
        return encode(Refusal(why=f"that is no order of this version: {error}"[:4000]))
    except HugewiseError as error:
        return encode(refusal_of(error))
    except OSError as error:
        return encode(Refusal(why=f"{error.filename or place.spool}: {error.strerror or error}"[:4000], hint=_CURE))


def obey(order: HostOrder, place: HostContext) -> HostAnswer:
    """Carry out one order. Raises HugewiseError, OSError."""
    make_spool(place.spool)
    if isinstance(order, HelloOrder):
        return _hello(order, place)
    fleet = place.spool / order.assignment.fleet
    if isinstance(order, BeginOrder | EndOrder | ForgetOrder):
        made_folder(fleet)
    elif not fleet.is_dir():
        return _answer_unknown(order)
    alone = isinstance(order, BeginOrder | EndOrder | ForgetOrder)
    with obeying_order(fleet / "order", alone=alone):
        spooled = SpoolEntry(fleet / str(order.assignment.number))
        if isinstance(order, BeginOrder):
            return _begin(order, spooled, fleet, place)
        return _obey_assignment(order, spooled, fleet, place)


def _obey_assignment(
    order: LookOrder | ManifestOrder | ReadOrder | ForgetOrder | EndOrder,
    spooled: SpoolEntry,
    fleet: Path,
    place: HostContext,
) -> HostAnswer:
    begun = spooled.order()
    if isinstance(order, ForgetOrder):
        return _forget(order, spooled, fleet)
    if begun is None:
        if isinstance(order, EndOrder):  # an order to begin that comes later begins nothing
            _close_fence(fleet, order.assignment.number)
        return _answer_unknown(order)
    match order:
        case LookOrder():
            return _look(begun, spooled, place)
        case EndOrder():
            spooled.end()
            if spooled.kept().state not in FINAL and spooled.has_keeper():
                terminate_keeper(spooled.kept().keeper)
            return Done()
        case ManifestOrder():
            if (manifest := spooled.manifest()) is None:
                return Refusal(why=f"its run has no manifest: {spooled.kept().reason or spooled.kept().state}"[:4000])
            return manifest
        case ReadOrder():
            return RunBytes(data=_read_part(spooled, order.offset, order.size))


def _answer_unknown(order: HostOrder) -> HostAnswer:
    if isinstance(order, ForgetOrder | EndOrder):
        return Done()
    if isinstance(order, LookOrder):
        return AssignmentSeen(assignment=order.assignment, state="unknown")
    return Refusal(why="nothing was begun there under that number")


def make_spool(spool: Path) -> None:
    """Make the folder of all runs, accessible to its owner alone. Raises UserError, OSError."""
    made = not spool.exists()
    own(spool, f"the spool {spool}", _CURE)
    made_folder(spool)
    if made:
        spool.chmod(0o700)
    status = spool.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        raise UserError(
            f"the spool {spool} is no folder that this account alone can enter",
            hint=f"as the account that hugewise runs as: chmod 700 {spool}; or name another one with spool = ...",
        )


# -- orders


def _hello(order: HelloOrder, place: HostContext) -> Greeting:
    host = LocalHost()
    held = os.statvfs(place.spool)
    knobs = knob.read_knobs(host)
    return Greeting(
        installed=installed(),
        account=_account(),
        root=host.privileged(),
        fingerprint=fingerprint.fingerprint(host),
        examined=_examined(order, place),
        memory_age=memory_age(text_of(host, "/proc/buddyinfo") or ""),
        thp={path: value for path, value in knobs.items() if path.startswith(THP)},
        spool_free=held.f_bavail * held.f_frsize,
    )


def _examined(order: HelloOrder, place: HostContext) -> Examined:
    if order.question is not None and not Path(order.question.directory).is_dir():
        return Examined(error=f"there is no folder {order.question.directory} for the commands of the study")
    return examine_host(order.question, place.spool)


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name[:100]
    except KeyError:
        return str(os.geteuid())


def _begin(order: BeginOrder, spooled: SpoolEntry, fleet: Path, place: HostContext) -> HostAnswer:
    number, fence = order.assignment.number, _fence(fleet)
    if number < fence.number or (number == fence.number and fence.over):
        why = f"the number {fence.number} of {order.assignment.fleet} was begun here, and {number} is over"
        return Refusal(why=why, fenced=True)
    if order.package not in (None, here := package_digest(Path(hugewise.__file__).parent)):
        why = f"another hugewise is there by now ({here[:12]}) than when it was greeted ({str(order.package)[:12]})"
        return Refusal(why=why, hint="install that one again: hugewise fleet provision")
    if (before := spooled.order()) is not None:
        if _question_of(before) != _question_of(order):
            return Refusal(why=f"the number {number} of {order.assignment.fleet} was begun with another question")
    else:
        if number > fence.number:
            write_whole(fleet / "fence", msgspec.json.encode(Fence(number)), 0o600)
        if spooled.path.exists():  # left by an order that was broken off before anything was begun
            discard(spooled.path)
        made_folder(spooled.path)
        spooled.reserve_space()
        write_whole(spooled.path / "study.toml", order.question.text.encode(), 0o600)
        if order.client is not None:
            write_whole(spooled.path / "hosts.toml", order.client.toml().encode(), 0o600)
        write_whole(spooled.path / "begin.json", msgspec.json.encode(order), 0o600)
    _ensure_keeper(spooled, place)
    return Done()


def _question_of(order: BeginOrder) -> object:
    # a resumed fleet may name another directory for commands; the first one stays
    return msgspec.structs.replace(order.question, directory="/")


def _fence(fleet: Path) -> Fence:
    try:
        return reading.stored(fleet / "fence", Fence)
    except reading.AbsentError:
        return Fence()
    except reading.UnreadableError as error:
        raise HugewiseError(f"{fleet / 'fence'}: {error}", hint="see who writes there") from None


def _ensure_keeper(spooled: SpoolEntry, place: HostContext) -> bool:
    if spooled.concluded():
        return spooled.has_keeper()
    with spooled.held() as lock:
        if lock is not None:
            (place.start or keeper.start_keeper)(spooled.path, lock)
    return True


def _look(begun: BeginOrder, spooled: SpoolEntry, place: HostContext) -> HostAnswer:
    if _fence(spooled.path.parent).number == begun.assignment.number:
        living = _ensure_keeper(spooled, place)
    else:
        living = spooled.has_keeper()  # another number was begun after it: it is not taken up again
    return spooled.seen(begun, keeper=living)


def _read_part(spooled: SpoolEntry, offset: int, size: int) -> bytes:
    manifest, run = spooled.manifest(), spooled.run()
    if manifest is None or run is None:
        raise HugewiseError("its run has no manifest: it has not ended")
    part = bytearray()
    with DirFd.open(run) as held:
        for entry in manifest.files:
            if len(part) == size:
                break
            if offset >= entry.size:
                offset -= entry.size
                continue
            wanted = min(size - len(part), entry.size - offset)
            with _opened(held, entry.name) as (below, name), below.file(name) as file:
                file.seek(offset)
                got = file.read(wanted)
            if len(got) != wanted:
                raise HugewiseError(f"{run / entry.name} was changed after its run had ended")
            part += got
            offset = 0
    return bytes(part)


@contextlib.contextmanager
def _opened(held: DirFd, relative: str) -> Iterator[tuple[DirFd, str]]:
    above, _, name = relative.rpartition("/")
    if not above:
        yield held, name
        return
    with held.folder(above) as below:
        yield below, name


def _forget(order: ForgetOrder, spooled: SpoolEntry, fleet: Path) -> HostAnswer:
    if spooled.path.exists() and spooled.has_keeper():
        return Refusal(why="its keeper lives: it has not ended")
    spooled.give_up_reserve()  # on a full disk: room for the fence
    _close_fence(fleet, order.assignment.number)
    if spooled.path.exists():
        discard(spooled.path)
    return Done()


def _close_fence(fleet: Path, number: int) -> None:
    if number >= _fence(fleet).number:
        write_whole(fleet / "fence", msgspec.json.encode(Fence(number, over=True)), 0o600)
