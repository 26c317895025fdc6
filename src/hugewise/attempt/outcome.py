"""State, metrics and delivery of an attempt, from the probe's events. Pure.

The value of a counter that shared its place with others is an extrapolation: its metric is null, with share and
estimate as the reason. A program may print anything: its output yields a value or a reason, and never ends the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hugewise import reading
from hugewise.machine import probe
from hugewise.machine.noise import Difference
from hugewise.machine.probe import Count
from hugewise.model.metric import COUNTERS, NO_CGROUP, OPERATIONS, RATES, SUMS, WALL_US, Sum, label
from hugewise.model.pages import PageTarget
from hugewise.model.procedure import Outputs, Reading, RoleUse, Staged
from hugewise.model.trial import AttemptState, Delivery
from hugewise.model.workload import OutputParser, ParameterValue, Proof
from hugewise.quantity import format_size
from hugewise.reading import AbsentError, UnreadableError

_MOST_EVENTS = 8  # for each role


def counter_metrics(
    counts: Mapping[str, Count], elsewhere: Mapping[str, str] | None = None
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the metrics that are counters, and the reasons of those without a value.

    `elsewhere`: by label why an event was not asked for in this attempt. What only some processors count by mode is
    left out where nobody asked for it.
    """
    elsewhere = {} if elsewhere is None else elsewhere
    metrics: dict[str, float | None] = {}
    absent: dict[str, str] = {}
    for counter in COUNTERS:
        if counter.metric is not None:
            _take(metrics, absent, counter.metric.name, _whole(counter.event, counts, elsewhere))
    for one in SUMS:
        found = _sum(one, counts, elsewhere)
        if found is not None or one.mode == "all":
            _take(metrics, absent, one.metric.name, f"{one.roles[0]} was not counted" if found is None else found)
    return metrics, absent


def _take(metrics: dict[str, float | None], absent: dict[str, str], name: str, found: float | str) -> None:
    metrics[name] = None if isinstance(found, str) else found
    if isinstance(found, str):
        absent[name] = found


def _whole(name: str, counts: Mapping[str, Count], elsewhere: Mapping[str, str]) -> float | str:
    """Return a count that ran all of the time, or why there is none."""
    count = counts.get(name)
    if count is None:
        return elsewhere.get(name, f"{name} was not counted")
    if count.value is None:
        return count.reason or f"{name} was not counted"
    if not count.whole:
        share = count.running_ns / count.enabled_ns
        return f"it ran {share:.0%} of the time, as it shared a counter: {count.value:,} is an estimate, and not judged"
    return count.value


def _sum(one: Sum, counts: Mapping[str, Count], elsewhere: Mapping[str, str]) -> float | str | None:
    """Return the sum over the roles asked for; None where no role was, here or in other blocks."""
    total, found = 0.0, False
    for name in _labels(one.roles, one, {**elsewhere, **counts}):
        value = _whole(name, counts, elsewhere)
        if isinstance(value, str):
            return value
        total, found = total + value, True
        if name.startswith("l1_misses"):
            for less in _labels(one.less, one, {**elsewhere, **counts}):
                taken = _whole(less, counts, elsewhere)
                if isinstance(taken, str):
                    return taken
                total -= taken
    if not found:
        return None
    return total if total >= 0 else "more misses of the second level than of the first were counted"


def _labels(roles: tuple[str, ...], one: Sum, known: Mapping[str, object]) -> Iterator[str]:
    for role in roles:
        for index in range(_MOST_EVENTS):
            if (name := label(role, one.mode, index)) in known:
                yield name


_KINDS = {"base": ("anon", "shmem"), "thp": ("anon", "shmem"), "mthp": ("anon", "shmem"), "hugetlb": ("hugetlb",)}


def total_coverage(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several processes' coverage, in bytes by `kind:page size`; empty entries are left out."""
    added: Counter[str] = Counter()
    for part in parts:
        added.update(part)
    return {key: size for key, size in sorted(added.items()) if size}


def judge_delivery(
    target: PageTarget,
    coverage: Mapping[str, int],
    *,
    proof: Proof,
    source: str,
    share: float,
    base_above: float,
    thp_disabled: bool | None = None,
    problem: str | None = None,
) -> Delivery:
    """Compare `coverage` (bytes by `kind:page size`) with `target`.

    Delivered means: at least `share` of the bytes at the promised size; for base pages at most `base_above` of the
    bytes above the base size. What cannot be told apart counts for neither side: where it could decide, the delivery
    is unproven (None). `share` 0 demands nothing: the setting itself is judged (intention to treat); what was found is
    still told, or why nothing was. `problem` says why there is no proof, if there is none.
    """
    whole = sum(coverage.values())
    stated = sum(coverage.get(f"{kind}:{target.size}", 0) for kind in _KINDS.get(target.kind, ()))
    unknown = coverage.get("unproven", 0)
    part = stated / whole if whole and target.kind != "any" else None

    def verdict(delivered: bool | None, reason: str | None = None) -> Delivery:
        return Delivery(
            target=target,
            delivered=delivered,
            share=part,
            coverage=coverage,
            proof=proof,
            source=source,
            reason=reason,
        )

    if target.kind == "any":
        return verdict(True)
    if part is None:
        return verdict(True if share == 0 else None, problem or "no memory was found to prove it by")
    if share == 0:
        return verdict(True)
    needed = 1 - base_above if target.kind == "base" else share
    if part >= needed:
        return verdict(True)
    if part + unknown / whole >= needed:
        return verdict(None, "these page sizes cannot be told apart without root (unproven)")
    return verdict(False, _why(target, coverage, part, thp_disabled))


def _why(target: PageTarget, coverage: Mapping[str, int], part: float, thp_disabled: bool | None) -> str:
    if target.kind == "base":
        above = max((key for key in coverage if key != "unproven"), key=lambda key: int(key.split(":")[1]))
        return f"larger pages were used ({above.split(':')[0]} {format_size(int(above.split(':')[1]))})"
    found = f"{part:.1%} of the memory at {format_size(target.size)}"
    if thp_disabled and target.kind in ("thp", "mthp"):
        return f"the program disabled THP for itself ({found})"
    if target.kind == "hugetlb":
        return f"the pool was too short, or the program did not map from it ({found})"
    return f"memory too small, unaligned or fragmented for the page size, or freed before the end ({found})"


# Allowed difference between the page faults of a twin and of its attempt. Seen in 16 attempts of builds and transcodes:
# at most 1.2%, and 78% where the attempt alone had found the pool empty. In addition, the faults by which starts differ
# (addresses are drawn anew).
_TWIN_FAULTS, _TWIN_FAULTS_OF_START = 0.03, 500

# The share of a command's memory in pages of its pool that a scan at its exit is believed for, where none is demanded.
_WHOLE_POOL = 0.95

# Below this peak, pages missing from a scan may be file mappings of any program.
_WORTH_PROVING = 32 << 20

# Rates that have a place in every attempt, if only for the reason why they are null.
_OF_EVERY_ATTEMPT = ("ipc", "dtlb_mpki", "walk_steps_pki", "page_faults_per_s")

_EVENTS = {"compact_stalls": "compact_stall", "thp_fallbacks": "thp_fault_fallback"}  # metrics, in /proc/vmstat

_Kind = TypeVar("_Kind", bound=probe.Event)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """State, and numbers where there are any. `absent` says why a metric is None."""

    state: AttemptState
    reason: str | None = None
    cpu_s: float | None = None
    metrics: Mapping[str, float | None] = {}
    absent: Mapping[str, str] = {}
    peak_bytes: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False

    @property
    def wall_s(self) -> float | None:
        """Seconds of the timed region."""
        return self.metrics.get("wall_s")

    def failed(self, reason: str, state: AttemptState = "failed") -> Outcome:
        """Return the outcome without its numbers, for that reason."""
        return msgspec.structs.replace(
            self, state=state, reason=reason, metrics={}, absent={}, cpu_s=None, timed_out=False
        )

    def adding(self, values: Mapping[str, float | None], why: Mapping[str, str] | str = "") -> Outcome:
        """Return the outcome with these metrics added or replaced; `why` gives the reason for those that are None, for
        all or for each.

        An attempt that was not accepted has no metrics and is returned unchanged.
        """
        if self.state != "accepted":
            return self
        absent = {name: reason for name, reason in self.absent.items() if name not in values}
        absent |= {name: why if isinstance(why, str) else why[name] for name, value in values.items() if value is None}
        return msgspec.structs.replace(self, metrics={**self.metrics, **values}, absent=absent)

    def with_rates(self) -> Outcome:
        """Return the outcome with the rates of its counters, or with the reasons why there are none."""
        values: dict[str, float | None] = {}
        why: dict[str, str] = {}
        for rate in RATES:
            name, above, below = rate.metric.name, self.metrics.get(rate.part), self.metrics.get(rate.whole)
            if rate.part not in self.metrics and rate.metric.name not in _OF_EVERY_ATTEMPT:
                continue  # an event that no processor was asked for
            values[name] = None if above is None or not below else rate.times * above / below
            why[name] = self.absent.get(rate.part) or self.absent.get(rate.whole) or f"{rate.part} was not counted"
        return self.adding(values, why)


class Problem(msgspec.Struct, frozen=True):
    """Reason why a staged attempt is `rejected` (before its measured part) or `failed` (in it, or by its result)."""

    state: Literal["rejected", "failed"]
    reason: str


def last(events: Sequence[probe.Event], kind: type[_Kind]) -> _Kind | None:
    """Return the last event of a kind, or None."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def outcome(
    events: Sequence[probe.Event],
    *,
    micro: bool,
    timeout_s: float,
    success: Sequence[int] = (0,),
    elsewhere: Mapping[str, str] | None = None,
) -> Outcome:
    """Read an attempt's events. `elsewhere` is by label why an event of the processor was not counted in it.

    rejected: hugewise or the host failed before the timed region started (to be tried again). failed: the workload
    exited with an error, was killed, timed out or gave no result; it counts, as the worst. Otherwise accepted, with
    metrics of the timed region: a micro-workload's own, or the whole command's.
    """
    exited, result, usage = last(events, probe.Exit), last(events, probe.Result), last(events, probe.Usage)
    error = last(events, probe.Error)
    state, reason = _state(exited, result, error, micro=micro, timeout_s=timeout_s, success=success)
    cpu = None if usage is None else usage.user_s + usage.system_s
    peak = None if usage is None else usage.peak_bytes
    found = Outcome(
        state=state,
        reason=reason,
        cpu_s=cpu,
        peak_bytes=peak,
        exit_code=None if exited is None else exited.code,
        signal=None if exited is None else exited.signal,
        timed_out=exited is not None and exited.timed_out,
    )
    if state != "accepted" or exited is None:
        return found
    wall = (exited if result is None else result).wall_ns / 1e9
    counted: dict[str, probe.Count] = {}
    for event in events:
        if isinstance(event, probe.Counters) and event.scope == ("timed" if micro else "command"):
            counted |= event.values
    user, system = (None, None) if usage is None else (usage.user_s, usage.system_s)
    times = {"wall_s": wall, "cpu_s": cpu, "user_s": user, "system_s": system}
    found = msgspec.structs.replace(found, metrics={**times, "peak_bytes": peak})
    found = found.adding(*counter_metrics(counted, elsewhere))
    if result is not None and "cpu_s" not in result.metrics:
        # Times of the timed region, as its counters are: setting up can take as long as the work.
        told = {name: result.facts.get(name) for name in ("user_s", "system_s")}
        found = found.adding({name: value for name, value in told.items() if isinstance(value, int | float)})
    if result is not None and "cpu_s" in result.metrics:  # of its turns alone
        found = found.adding({"user_s": None, "system_s": None}, "its CPU time was counted as a whole")
    if result is not None:
        # The workload's own figures take precedence; others stay as counted.
        return msgspec.structs.replace(found, metrics={**found.metrics, **result.metrics})
    if found.metrics["page_faults"] is None and usage is not None:
        return found.adding({"page_faults": usage.minor_faults + usage.major_faults})
    return found


def _state(
    exited: probe.Exit | None,
    result: probe.Result | None,
    error: probe.Error | None,
    *,
    micro: bool,
    timeout_s: float,
    success: Sequence[int],
) -> tuple[AttemptState, str | None]:
    if error is not None and error.fault == "host" and error.before_timed:
        return "rejected", error.message
    if exited is None:
        return "failed", error.message if error is not None else "it did not start"
    if exited.exceeded is not None:
        return "failed", exited.exceeded
    if exited.timed_out:
        return "failed", f"timed out after {timeout_s:g} s"
    if exited.signal is not None:
        return "failed", f"killed by signal {exited.signal}"
    if exited.code not in success:
        return "failed", (error.message if error is not None else f"exit status {exited.code}")
    if micro and result is None:
        return "failed", "it gave no result"
    return "accepted", None


def with_kernel_work(found: Outcome, host: Difference, base_size: int, *, alone: bool = True) -> Outcome:
    """`found` with what the kernel did meanwhile (machine-wide), and with rates of its hardware counters.

    Of an attempt that was not `alone` on its machine, what the kernel did is the others' too: the same figure for all
    would be taken for a proof that they do not differ.
    """
    metrics: dict[str, float | None] = {}
    why = dict.fromkeys(("swap_bytes", *_EVENTS), "/proc/vmstat does not say")
    for thread in ("khugepaged", "kcompactd", "kswapd"):
        times = [spent for name, spent in host.kernel_thread_cpu.items() if name.startswith(thread)]
        metrics[f"{thread}_cpu_s"] = sum(times) if times else None
        why[f"{thread}_cpu_s"] = f"no kernel thread {thread} is seen here"
    metrics |= {name: host.vmstat.get(event) for name, event in _EVENTS.items()}
    metrics["swap_bytes"] = None if host.swap_pages is None else host.swap_pages * base_size
    if not alone:
        metrics, why = dict.fromkeys(metrics), dict.fromkeys(metrics, "it is of the machine, which the arms shared")
    return found.adding(metrics, why).with_rates()


def with_memory_kills(found: Outcome, host: Difference | None) -> Outcome:
    """Return `found`; a failed one says that the OOM killer acted meanwhile, where it did."""
    if found.state != "failed" or host is None or not (killed := host.vmstat.get("oom_kill")):
        return found
    why = f"the kernel's OOM killer acted meanwhile (oom_kill in /proc/vmstat: +{killed})"
    return msgspec.structs.replace(found, reason=f"{found.reason}; {why}")


def staged(
    found: Outcome,
    problem: Problem | None,
    reading: Reading,
    *,
    servers: RoleUse | None,
    counted: probe.Counters | str,
    seconds: float | None,
    footprint: int | None,
    elsewhere: Mapping[str, str] | None = None,
) -> Outcome:
    """Return the outcome with what a procedure runner says, which goes before what the timed command said.

    `servers`: what the system under test used where that is not the timed command (whose counters are then of a client,
    and belong to nobody). `counted`: the servers' own counters in the measured part, or why there are none. `seconds`:
    length of the measured part where that is not the whole command.
    """
    if problem is not None:
        return found.failed(problem.reason, problem.state)
    if found.state != "accepted":
        return found
    if seconds is not None:
        found = found.adding({"wall_s": seconds})
    if servers is not None:
        values, why = counter_metrics({} if isinstance(counted, str) else counted.values, elsewhere)
        found = found.adding(values, counted if isinstance(counted, str) else why)
        faults = values["page_faults"] if servers.faults is None else servers.faults
        found = found.adding(
            {
                **{"cpu_s": servers.cpu_s, "user_s": servers.user_s, "system_s": servers.system_s},
                **{"page_faults": faults, "footprint_bytes": footprint},
            },
            NO_CGROUP,
        ).with_rates()
    found = found.adding(
        reading.metrics, {**dict.fromkeys(reading.metrics, "the workload did not say"), **reading.absent}
    )
    absent = {name: why for name, why in reading.absent.items() if found.metrics.get(name) is None}
    return msgspec.structs.replace(found, cpu_s=found.metrics.get("cpu_s"), absent={**found.absent, **absent})


def with_output(found: Outcome, said: Mapping[str, float] | str) -> Outcome:
    """`found` with the metrics that a command's output holds; failed, with the reason, where it does not hold them."""
    if isinstance(said, str):
        return found.failed(said) if found.state == "accepted" else found
    return found.adding(said)


def with_work(found: Outcome) -> Outcome:
    """`found` with the elapsed time for each operation, where it says how many there were."""
    if OPERATIONS not in found.metrics:
        return found
    wall, work = found.wall_s, found.metrics[OPERATIONS]
    if wall is None or not work or work < 0:
        why = found.absent.get("wall_s", "it was not timed") if wall is None else f"{OPERATIONS} is {work or 0:g}"
        return found.adding({WALL_US.name: None}, why)
    return found.adding({WALL_US.name: 1e6 * wall / work})


def with_footprint(found: Outcome, proof: Delivery) -> Outcome:
    """`found` with the memory that its scan saw, where nothing else has said how much there was."""
    if "footprint_bytes" in found.metrics:
        return found
    size = sum(proof.coverage.values()) if proof.source != "counters" else 0
    return found.adding({"footprint_bytes": size or None}, "its memory was not scanned")


def coverage_proof(
    events: Sequence[probe.Event],
    twin: Sequence[probe.Event] | None,
    by_counters: Mapping[str, int] | None,
    *,
    target: PageTarget,
    proof: Proof,
    source: str,
    share: float,
    base_above: float,
    base_size: int,
    thp_disabled_by_us: bool,
    success: Sequence[int] = (0,),
) -> Delivery:
    """Judge the delivery by the best proof that the attempt has.

    The twin's scan goes before the attempt's own (it saw every process). The counters are used where the workload
    asked for them, and where most of a command's memory was given back before it could be scanned: then the proof is
    named `counters` too. Pages of a pool are in no counter. A twin whose page faults are not those of the attempt had
    other pages, and proves nothing. Of a micro-workload only the memory that it named counts. `base_size`: bytes of a
    base page of the attempt's machine.
    """
    seen = events if twin is None else twin
    scanned = [event for event in seen if isinstance(event, probe.Coverage)]
    found: Mapping[str, int] = total_coverage(event.bytes for event in scanned)
    source = scanned[0].source if scanned else source
    named: Proof = "twin" if twin is not None else proof
    error = last(seen, probe.Error)
    problem = error.message if error is not None and error.fault == "host" else None
    given_back = proof not in ("ranges", "live") and gave_back(events, found)
    unseen = proof == "exit" and twin is None and pool_unseen(found, target, share)
    if target.kind == "hugetlb":  # faults of a pool's pages are counted by no size
        by_counters = None
    if twin is not None and _broken_off(twin, success):
        # A twin that did not run to its end did not use the memory that the attempt used.
        found, problem = {}, problem or "its untimed twin did not run to its end"
    elif twin is not None and (apart := _twin_differs(events, twin, sum(found.values()) / base_size)) is not None:
        found, problem = {}, problem or apart
    elif by_counters is not None and (proof == "counters" or given_back):
        found, source, named = by_counters, "counters", "counters"
    elif given_back:
        # The memory left at the exit proves nothing of the memory used before.
        found, problem = {}, problem or "most of its memory was given back before it could be scanned"
    elif unseen:
        found, problem = {}, problem or "pages of a pool that it gave back before its exit are not seen"
    return judge_delivery(
        target,
        found,
        proof=named,
        source=source,
        share=share,
        base_above=base_above,
        thp_disabled=any(event.thp_disabled for event in scanned) and not thp_disabled_by_us,
        problem=problem,
    )


def _broken_off(events: Sequence[probe.Event], success: Sequence[int]) -> bool:
    """Return whether the command did not end by its own exit with a status of success."""
    exited = last(events, probe.Exit)
    return exited is not None and (exited.timed_out or bool(exited.exceeded) or exited.code not in success)


def _twin_differs(events: Sequence[probe.Event], twin: Sequence[probe.Event], pages: float) -> str | None:
    """Return why the twin does not stand for the attempt (the page faults of their trees differ), or None.

    `pages`: base pages of the memory that the twin was seen with.
    """
    timed, other = last(events, probe.Usage), last(twin, probe.Usage)
    if timed is None or other is None:
        return None
    here, there = (usage.minor_faults + usage.major_faults for usage in (timed, other))
    allowed = _TWIN_FAULTS * (max(here, there) + pages) + _TWIN_FAULTS_OF_START
    if abs(here - there) <= allowed:
        return None
    return (
        f"its untimed twin had other pages: {there:,} page faults against {here:,} of the attempt (more than"
        f" {_TWIN_FAULTS:.0%} apart)"
    )


def gave_back(events: Sequence[probe.Event], found: Mapping[str, int]) -> bool:
    """Return whether a command's processes had given back most of their memory when they were scanned at exit."""
    usage = last(events, probe.Usage)
    return usage is not None and usage.peak_bytes >= _WORTH_PROVING and sum(found.values()) < usage.peak_bytes / 2


def pool_unseen(found: Mapping[str, int], target: PageTarget, share: float) -> bool:
    """Return whether a command may have given back pages of its pool before the scan at its exit.

    The scan `found` these bytes, and less than the promised `share` of them in the pool. The peak that the kernel keeps
    (ru_maxrss) leaves out pages of pools.
    """
    pool, least = found.get(f"hugetlb:{target.size}", 0), share or _WHOLE_POOL
    return target.kind == "hugetlb" and pool < least * sum(found.values())


_MOST = 64 << 20  # bytes of a program's output
_TAIL = 1 << 16  # bytes of it in which its last lines are looked for
_LONGEST = 2000  # characters of a fact, a mark or a reason


def printed(path: Path) -> str:
    """Read a program's output file; empty where there is no file. Raises UnreadableError."""
    try:
        return reading.content(path, _MOST).decode("utf-8", "replace")
    except AbsentError:
        return ""
    except UnreadableError as error:
        raise UnreadableError(f"its {path.name}: {error.reason}") from error


def last_lines(path: Path, lines: int) -> list[str]:
    """Return the last lines that a program printed, without empty ones; empty for a file that cannot be read."""
    try:
        told = reading.content(path, _TAIL, part="tail").decode("utf-8", "replace")
    except UnreadableError:
        return []
    return [line.strip() for line in told.splitlines() if line.strip()][-lines:]


def read(workload: Staged, outputs: Outputs, values: Mapping[str, ParameterValue]) -> Reading:
    """Read the outputs of a staged workload. Raises UnreadableError."""
    with reading.believing("its output"):
        found = workload.read(outputs, values)
        for name, value in found.metrics.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UnreadableError(f"{name} is {value}, which is no measurement")
        if not all(map(math.isfinite, found.series)):
            raise UnreadableError("its rate in some second is no number")
        msgspec.json.encode(found)  # checks that it can be stored
    facts = {name: fact[:_LONGEST] if isinstance(fact, str) else fact for name, fact in found.facts.items()}
    problem = None if found.problem is None else found.problem[:_LONGEST]
    return msgspec.structs.replace(
        found, facts=facts, problem=problem, marks=tuple(mark[:_LONGEST] for mark in found.marks)
    )


def parse_output(workload: OutputParser, draft: Path, values: Mapping[str, ParameterValue]) -> Mapping[str, float]:
    """Return the metrics in what a command printed into the attempt's folder. Raises UnreadableError."""
    with reading.believing("its output"):
        return workload.parse(printed(draft / "stdout"), printed(draft / "stderr"), values)
