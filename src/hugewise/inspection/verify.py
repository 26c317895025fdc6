"""Verification that a promise backs a process, or a unit's processes, now: the answer, with its reasons.

Of a command that is run for this, each process is seen at its exit and whenever it has grown, as an untimed twin of an
attempt is: programs that end at once, or free their memory, are seen with it.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from hugewise.attempt.driver import CommandDriver
from hugewise.attempt.launching import untimed_spec
from hugewise.attempt.outcome import coverage_proof, judge_delivery, last, printed, total_coverage
from hugewise.errors import HugewiseError, ProbeError, UserError
from hugewise.host.local_host import LocalHost
from hugewise.host.local_machine import LocalMachine
from hugewise.inspection import reasons
from hugewise.inspection.allocator import tunable
from hugewise.inspection.backing import coverage_once
from hugewise.inspection.look import DeniedError, GoneError, Look, Looker, coverage, whole_blocks
from hugewise.inspection.reasons import Reason
from hugewise.inspection.rules import Rules, rules_of
from hugewise.inspection.targets import Inspected, subject
from hugewise.machine import probe, proc
from hugewise.machine.machine import read_events, run_launchers
from hugewise.machine.smaps import BackedMapping
from hugewise.model.host import Host
from hugewise.model.pages import PageSizes, PageTarget, page_flags_readable
from hugewise.model.policy import Treatment
from hugewise.model.procedure import Named
from hugewise.model.trial import Delivery
from hugewise.policies import discover

SHARE = 0.95
"""The share of the memory at the promised size that is enough, as a study has it."""
BASE_ABOVE = 0.01
_MOST_MAPPINGS = 10
_AS_ROOT = "call it as root: sudo"
_OUTSIDE = "call it outside of the container, or name a process that may be looked at"
_LOOKS = 3  # at most, if the rules change meanwhile


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """Promise by a policy, in words and as pages."""

    policy: str
    text: str
    target: PageTarget
    needed: float


class MappingSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One of the largest mappings: bytes by what backs them; `eligible` and `advised` as the kernel says."""

    start: str
    name: str
    memory: int
    huge: int
    pool: int
    eligible: bool | None
    advised: bool


class ProcessSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was looked at. `thp_disabled`: prctl(PR_SET_THP_DISABLE), in its full form."""

    pid: int
    command: str
    uid: int
    coverage: Mapping[str, int]
    thp_disabled: bool | None
    allocator: str
    tunable: int | None


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `delivered` None: it could not be proven; `share` of the memory that was promised something."""

    subject: str
    promise: Promise
    delivered: bool | None
    share: float | None
    coverage: Mapping[str, int]
    source: str
    said: str
    reasons: tuple[Reason, ...]
    rules: tuple[str, ...]
    processes: tuple[ProcessSeen, ...]
    mappings: tuple[MappingSeen, ...]
    notes: tuple[str, ...] = ()


def verify(text: str, host: Host, policy: str, *, share: float = SHARE, named: Named = "all") -> Verified:
    """Look at the process or unit `text` once. Raises UserError where there is nothing to look at, or it is not allowed
    (what can be said all the same is in its text), and for a policy that this machine does not know.
    """
    treatment = _treatment(policy, host)
    who = subject(text, host)
    source = "kpageflags" if host.privileged() and page_flags_readable() else "smaps"
    looker = Looker("kpageflags" if source == "kpageflags" else "smaps", named)
    for _ in range(_LOOKS):
        rules = rules_of(host)
        looks, notes, denied = _looked(who, looker)
        if rules_of(host).same(rules):
            break
    else:
        notes = [*notes, "the rules changed while it was looked at: what is said of them may not hold"]
    found_together, more = _together(looks, looker.source)
    notes += more
    promise, delivered, part, said, found = _by_policy(
        looks, rules, treatment, share, source=source, backed=found_together
    )
    if denied and delivered:
        delivered, said = None, f"{said}; of {denied} of its processes nothing is known"
    told = {(one.id, one.text): one for one in (*found, *reasons.ignored(looks, rules), *reasons.unknown(looks, rules))}
    return Verified(
        subject=who.name,
        promise=promise,
        delivered=delivered,
        share=part,
        coverage=found_together,
        source=source,
        said=said,
        reasons=tuple(told.values()),
        rules=tuple(rules.lines()),
        processes=tuple(_process(look) for look in looks),
        mappings=tuple(_largest(looks)),
        notes=(*who.notes, *notes),
    )


def verify_command(argv: Sequence[str], host: Host, policy: str, *, stdin: str = "", share: float = SHARE) -> Verified:
    """Run a command once, as it is, and judge the memory of all its processes. Raises UserError where the command fails
    and for a policy that this machine does not know, HugewiseError.
    """
    treatment = _treatment(policy, host)
    source: probe.Source = "kpageflags" if host.privileged() and page_flags_readable() else "smaps"
    machine, shown = LocalMachine(host), shlex.join(argv)
    with tempfile.TemporaryDirectory(prefix="hugewise-verify-") as folder:
        around = CommandDriver(account=None, inherited=os.environ, cwd=str(Path.cwd()), cpus=None).surroundings({})
        spec = untimed_spec(argv, around, Path(folder), "command", machine=machine, account=None, timeout=probe.FOREVER)
        spec = msgspec.structs.replace(spec, scan="every-exit", source=source, stdin=stdin or msgspec.UNSET)
        job = probe.Job.below(Path(folder), "command", spec)
        run_launchers([(machine, job)])
        events = read_events(job)
        exited, lost = last(events, probe.Exit), last(events, probe.Error)
        if exited is None or exited.code != 0:
            raise _not_run(shown, exited, lost, Path(spec.stderr))
    proof = coverage_proof(
        events,
        events,
        None,
        target=treatment.target,
        proof="exit",
        source=source,
        share=share,
        base_above=BASE_ABOVE,
        base_size=os.sysconf("SC_PAGE_SIZE"),
        thp_disabled_by_us=False,
    )
    promise = _promise(treatment, share)
    seen = len({event.pid for event in events if isinstance(event, probe.Coverage)})
    return Verified(
        subject=f"the command {shown}",
        promise=promise,
        delivered=proof.delivered,
        share=proof.share,
        coverage=proof.coverage,
        source=proof.source,
        said=_part(promise, proof),
        reasons=(),
        rules=tuple(rules_of(host).lines()),
        processes=(),
        mappings=(),
        notes=(f"processes that were seen, each at its exit or at its largest: {seen}",),
    )


def _not_run(shown: str, exited: probe.Exit | None, lost: probe.Error | None, stderr: Path) -> HugewiseError:
    """Return the error that a command did not run to a successful end."""
    if exited is None:
        return HugewiseError(f"{shown}: {'it ended without a word' if lost is None else lost.message}")
    how = f"exit status {exited.code}" if exited.code is not None else f"killed by signal {exited.signal}"
    words = " / ".join(printed(stderr).splitlines()[-3:])
    return UserError(
        f"{shown}: {how}{f': {words}' if words else ''}",
        hint="name a command that succeeds, with the input that it needs",
    )


def _treatment(name: str, host: Host) -> Treatment:
    sizes = PageSizes.discover(host)
    known = discover(sizes)
    if name not in known:
        choices = f"choose from: {', '.join(known)}; for a setting of an advice, its files' README.md names the policy"
        raise UserError(f"--policy {name}: not a policy of this machine", hint=choices)
    return known[name].treatment(host, sizes, "system")


def _together(looks: Sequence[Look], source: probe.Source) -> tuple[dict[str, int], list[str]]:
    """Return the backing of all processes together, and notes for the reader."""

    def scan(pid: int, ranges: list[tuple[int, int]]) -> Mapping[str, int]:
        return coverage(proc.living(LocalHost(), pid) or pid, source, ranges)

    try:
        return coverage_once(looks, scan), []
    except (GoneError, ProbeError):
        return total_coverage(look.coverage for look in looks), [
            "what several of its processes share is counted for each of them"
        ]


def _looked(who: Inspected, looker: Looker) -> tuple[list[Look], list[str], int]:
    """Return the processes that could be read, and how many could not. Raises UserError where none could."""
    looks: list[Look] = []
    denied: dict[int, DeniedError] = {}
    gone = 0
    for pid in who.processes:
        try:
            looks.append(looker.look(pid))
        except DeniedError as error:
            denied[pid] = error
        except GoneError as error:
            if pid == who.process:
                raise UserError(f"{who.name}: {error}", hint="name one that runs: pgrep -a NAME") from None
            gone += 1
    if not looks and not denied:
        raise UserError(
            f"{who.name}: all its processes have ended meanwhile", hint="is it being started again and again?"
        )
    if not looks or who.processes[0] in denied:
        pid, why = next(iter(denied.items()))
        hint = why.hint or (_AS_ROOT if os.geteuid() else _OUTSIDE)
        raise UserError(f"{who.name}: the memory of {pid} cannot be looked at: {why}", hint=hint)
    notes = [f"{len(denied)} of its processes cannot be looked at: {next(iter(denied.values()))}"] if denied else []
    ended = [f"{gone} of its processes have ended meanwhile, or have no memory"] if gone else []
    return looks, notes + ended, len(denied)


_Answer = tuple[Promise, bool | None, float | None, str, list[Reason]]


def _by_policy(
    looks: Sequence[Look],
    rules: Rules,
    treatment: Treatment,
    share: float,
    *,
    source: str,
    backed: Mapping[str, int],
) -> _Answer:
    target = treatment.target
    # Swapped memory is in no larger page, and comes back in base pages.
    swapped = sum(mapping.swapped for one in looks for mapping in one.mappings) if target.kind != "base" else 0
    judgement = judge_delivery(
        target,
        total_coverage([backed, {f"anon:{rules.base}": swapped}]),
        proof="live",
        source=source,
        share=share,
        base_above=BASE_ABOVE,
        thp_disabled=any(look.thp_disabled for look in looks),
    )
    promise = _promise(treatment, share)
    if target.kind == "any":
        return promise, True, None, _part(promise, judgement), []
    return (
        promise,
        judgement.delivered,
        judgement.share,
        _part(promise, judgement),
        [] if judgement.delivered else _why(looks, rules, treatment),
    )


def _promise(treatment: Treatment, share: float) -> Promise:
    target = treatment.target
    needed = 1 - BASE_ABOVE if target.kind == "base" else share
    return Promise(policy=treatment.policy, text=f"{target}", target=target, needed=needed)


def _part(promise: Promise, judgement: Delivery) -> str:
    target = promise.target
    if target.kind == "any":
        return "the policy promises no page size"
    part = "nothing was found" if judgement.share is None else f"{judgement.share:.1%} of its memory is in {target}"
    why = f": {judgement.reason}" if judgement.delivered is None else ""
    return f"{part} ({promise.needed:.0%} was promised){why}"


def _why(looks: Sequence[Look], rules: Rules, treatment: Treatment) -> list[Reason]:
    target = treatment.target
    wanted = tunable(treatment.environment)
    if target.kind == "base":
        return list(reasons.not_base(looks))
    if target.kind == "hugetlb":
        missing = list(reasons.not_pooled(looks, rules, target.size))
    else:
        missing = list(reasons.not_huge(looks, rules, target, _whole(looks, rules, target.size)))
    return missing + (list(reasons.tunables(looks, rules, wanted)) if wanted else [])


def _whole(looks: Sequence[Look], rules: Rules, size: int) -> dict[int, int | None]:
    """Return, by process, how much of the eligible memory without huge pages is touched throughout."""
    found: dict[int, int | None] = {}
    for look in looks:
        if several := reasons.waiting(look, rules, size):
            found[look.pid] = whole_blocks(look.pid, several, size, rules.base)
    return found


def _process(one: Look) -> ProcessSeen:
    return ProcessSeen(
        pid=one.pid,
        command=one.command,
        uid=one.uid,
        coverage=one.coverage,
        thp_disabled=one.thp_disabled,
        allocator=one.allocator.name,
        tunable=tunable(one.environment or {}),
    )


def _largest(looks: Sequence[Look]) -> list[MappingSeen]:
    """Return the mappings with most memory, and the rest of each process as one line."""
    every = sorted(
        (mapping for look in looks for mapping in look.mappings if mapping.memory), key=_memory, reverse=True
    )
    shown = [_mapping(each) for each in every[:_MOST_MAPPINGS]]
    if rest := every[_MOST_MAPPINGS:]:
        sums: Counter[str] = Counter()
        for each in rest:
            sums.update(memory=each.memory, huge=each.huge + each.shared_huge, pool=each.pool)
        name = f"{len(rest)} smaller ones"
        shown.append(MappingSeen(start="", name=name, eligible=None, advised=False, **{k: sums[k] for k in _SUMS}))
    return shown


_SUMS = ("memory", "huge", "pool")


def _memory(mapping: BackedMapping) -> int:
    return mapping.memory


def _mapping(one: BackedMapping) -> MappingSeen:
    return MappingSeen(
        start=f"{one.start:x}",
        name=one.called,
        memory=one.memory,
        huge=one.huge + one.shared_huge,
        pool=one.pool,
        eligible=one.eligible,
        advised="hg" in one.flags,
    )
