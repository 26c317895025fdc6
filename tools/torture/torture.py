"""Draws the cases of a torture and goes through those that are left: each is done by one function of `kills` or
`faults`, and what it found is kept before the next one begins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugewise.errors import HugewiseError, UserError
from tools.torture import cases, subject, traces
from tools.torture.context import CaseContext, unmount_below
from tools.torture.findings import Draws, FaultCase, Findings, TortureReport, summarise
from tools.torture.subject import THIS

_QEMU = "qemu-system-x86_64"


@dataclass(frozen=True)
class TortureKind:
    """A kind of case. `share`: of the kills, or of the faults. `missing`: why it cannot be done here; None: it can."""

    what: str
    share: float
    torture: Callable[[CaseContext, str], None]
    study: Callable[[], str]
    missing: Callable[[], str | None]
    kills: bool = False


@dataclass(frozen=True)
class TortureOptions:
    """Options of a torture.

    kills    how many runs are killed: 70% with servers, 20% as their pool changes, 10% in guests
    faults   how many runs something else happens to
    kinds    only these; empty: all
    most     cases to do in this call; None: all that are left
    seconds  that this call may take before it begins no other case; None: any
    hugewise the command that is tortured
    """

    folder: Path
    seed: int = 1
    kills: int = 200
    faults: int = 70
    kinds: Sequence[str] = ()
    most: int | None = None
    seconds: float | None = None
    hugewise: Sequence[str] = THIS


def _nothing() -> None:
    return None


def _root() -> str | None:
    return None if os.geteuid() == 0 else "it needs root"


def _pool() -> str | None:
    if not Path("/sys/kernel/mm/hugepages/hugepages-2048kB").is_dir():
        return "this kernel has no pool of 2 MiB pages"
    return _root()


def _guest() -> str | None:
    return None if shutil.which(_QEMU) else f"{_QEMU} is not there (apt install qemu-system-x86)"


def _server() -> str | None:
    return None if subject.servers() else "no server is installed (apt install redis-server)"


def _clock() -> str | None:
    tried = ["unshare", "--time", "--boottime", "60", "true"]
    can = shutil.which("unshare") and subprocess.run(tried, stderr=subprocess.DEVNULL, check=False).returncode == 0
    return None if can else "no time namespace can be made (root, and a kernel with CONFIG_TIME_NS)"


def _memory() -> str | None:
    return _root() or (None if cases.limits_memory() else "no memory cgroup can be made")


def _guest_study() -> str:
    return subject.guest(root=os.geteuid() == 0)


KINDS = {
    "host": TortureKind("killed with servers", 0.7, cases.anywhere, subject.host, _nothing, kills=True),
    "pool": TortureKind(
        "killed as its pool changes",
        0.2,
        cases.while_the_pool_changes,
        lambda: subject.pool(cases.POOL_MIB),
        _pool,
        kills=True,
    ),
    "guest": TortureKind("killed with a guest", 0.1, cases.anywhere, _guest_study, _guest, kills=True),
    "disk": TortureKind("no room for results", 0.46, cases.no_room_for_results, subject.small_study, _root),
    "journal": TortureKind("no room for the journal", 0.12, cases.no_room_for_the_journal, subject.small_study, _root),
    "scratch": TortureKind("no room for scratch", 0.06, cases.no_room_for_scratch, subject.host, _root),
    "address": TortureKind("little address space", 0.14, cases.little_address_space, subject.small_study, _nothing),
    "memory": TortureKind("a small memory cgroup", 0.1, cases.little_memory, subject.small_study, _memory),
    "starved": TortureKind(
        "servers killed for memory", 0.02, cases.starved_server, subject.stopping, lambda: _root() or _server()
    ),
    "silent": TortureKind("a server that is stopped", 0.04, cases.silent_server, subject.stopping, _server),
    "clock": TortureKind(
        "resumed at another clock", 0.06, cases.another_clock, subject.small_study, lambda: _root() or _clock()
    ),
}


def torture(options: TortureOptions, listener: Callable[[str], None] = lambda _: None) -> TortureReport:
    """Do the cases that are left, and count what all of them found. Raises HugewiseError."""
    end = None if options.seconds is None else time.monotonic() + options.seconds
    findings = _begin(options)
    done, left = findings.all(), options.most
    plan = [name for name in _plan(options) if name not in done]
    total = len(plan) + len(done)
    for name in plan:
        if left == 0 or (end is not None and time.monotonic() > end):
            break
        kind, made = name.rpartition("-")[0], len(done)
        if not _can(findings, options, kind, listener):
            continue
        owed = KINDS[kind].kills and _owed(done)
        done[name] = _case(findings, options, name, owed=owed)
        left = None if left is None else left - 1
        one = done[name]
        listener(f"{made + 1}/{total} {name}: {one.did}: {'; '.join(one.faults) or 'as promised'}")
    report = summarise(findings.begun, _numbers(options), {name: kind.what for name, kind in KINDS.items()}, done)
    findings.report(report)
    return report


def again(options: TortureOptions, name: str, listener: Callable[[str], None] = lambda _: None) -> FaultCase:
    """Do one case again, as it was drawn; its folder is kept. Raises HugewiseError."""
    kind = name.rpartition("-")[0]
    if kind not in KINDS or not name.rpartition("-")[2].isdigit():
        raise UserError(
            f"--case {name}: there is no such case", hint=f"write KIND-NUMBER, such as {next(iter(KINDS))}-7"
        )
    findings = _begin(options)
    if not _can(findings, options, kind, listener):
        raise UserError(f"--case {name}: {findings.begun.left_out[kind]}", hint="choose another kind with --kinds")
    return _case(findings, options, name, owed=KINDS[kind].kills)


def _numbers(options: TortureOptions) -> dict[str, int]:
    """Return the number of cases of each kind: the shares of the requested kinds, the largest remainders rounded up."""
    wanted = {name: kind for name, kind in KINDS.items() if not options.kinds or name in options.kinds}
    numbers: dict[str, int] = {}
    for of_kills, total in ((True, options.kills), (False, options.faults)):
        some = {name: kind.share for name, kind in wanted.items() if kind.kills is of_kills}
        exact = {name: total * share / sum(some.values()) for name, share in some.items()}
        numbers |= {name: int(number) for name, number in exact.items()}
        rest = total - sum(int(number) for number in exact.values()) if some else 0
        for name in sorted(exact, key=lambda name: int(exact[name]) - exact[name])[:rest]:
            numbers[name] += 1
    return {name: numbers[name] for name in wanted}


def _plan(options: TortureOptions) -> list[str]:
    """Return the names of all cases, the kinds evenly mixed: a torture that is broken off has some of each."""
    places = [
        ((number + 0.5) / total, f"{kind}-{number:03}")
        for kind, total in _numbers(options).items()
        for number in range(total)
    ]
    return [name for _, name in sorted(places)]


def _begin(options: TortureOptions) -> Findings:
    """Begin on a machine that is restored, and that nobody else uses. Raises UserError."""
    for name in options.kinds:
        if name not in KINDS:
            raise UserError(f"--kinds {name}: there is no such kind", hint=f"choose from {', '.join(KINDS)}")
    findings = Findings(options.folder.resolve() / f"torture-{options.seed}", options.seed)
    traces.adopt()
    unmount_below(findings.folder)
    work = findings.folder / "work"
    rack = CaseContext(options.hugewise, work, FaultCase(name="begin"), Draws(options.seed, "begin"), 0)
    rack.restore()
    if rack.found.broken:
        raise HugewiseError(rack.found.broken[0], hint="hugewise restore")
    findings.begun.left_out.clear()  # missing parts may be there by now
    findings.note()
    return findings


def _can(findings: Findings, options: TortureOptions, kind: str, listener: Callable[[str], None]) -> bool:
    """Return whether cases of the kind can be done here, by an untouched run of its study, which also times them."""
    begun = findings.begun
    if kind in begun.left_out:
        return False
    if kind in begun.lives:
        return True
    if (reason := KINDS[kind].missing()) is None:
        listener(f"an untouched run: {KINDS[kind].what}")
        rack = _rack(findings, options, f"{kind}-untouched")
        for draw in range(1 + (kind == "guest")):  # the first one may fill caches
            ended = rack.did(
                rack.subject.run("run", rack.study(KINDS[kind].study()), "--results", str(rack.work / str(draw)))
            )
        begun.lives[kind] = ended.seconds
        rack.same()
        if rack.found.faults:
            raise HugewiseError(f"an untouched run leaves something: {rack.found.faults[0]}", hint=f"see {rack.work}")
        if ended.status:
            reason = ended.told()
    if reason is not None:
        begun.left_out[kind] = reason
        begun.lives.pop(kind, None)
        listener(f"not tortured here: {kind}: {reason}")
    findings.note()
    return reason is None


def _owed(done: dict[str, FaultCase]) -> bool:
    """Return whether this kill is to be followed by a resume, so that every second kill is."""
    killed = [one for one in done.values() if one.kind in KINDS and KINDS[one.kind].kills]
    return 2 * sum(one.resumed for one in killed) <= len(killed)


def _rack(findings: Findings, options: TortureOptions, name: str, *, owed: bool = False) -> CaseContext:
    life = findings.begun.lives.get(name.rpartition("-")[0], 0.0)
    work = findings.folder / "work"
    return CaseContext(options.hugewise, work, FaultCase(name=name), Draws(options.seed, name), life, owed)


def _case(findings: Findings, options: TortureOptions, name: str, *, owed: bool) -> FaultCase:
    begin = time.monotonic()
    rack = _rack(findings, options, name, owed=owed)
    kind = KINDS[rack.found.kind]
    try:
        kind.torture(rack, kind.study())
    except BaseException:  # also for an interrupt: clean up after the run
        traces.end_all()
        rack.subject.before = ()
        rack.subject.run("restore")
        raise
    found = rack.found
    found.did = ", ".join([found.did, *rack.done] if found.did else rack.done)
    found.seconds, found.ended = time.monotonic() - begin, time.time()
    findings.keep(found, rack.work)
    return found
