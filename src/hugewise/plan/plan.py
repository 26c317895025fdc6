"""Plan from a study: the cells and arms that this machine can run, and what is left out with its reason.

Pure but for the files that policies read through `Host`. Mistakes of the study that only show here (an unknown policy,
workload, parameter or metric) raise StudyError; what the machine cannot offer is left out before anything runs.
"""

from __future__ import annotations

import functools
import pwd
from collections.abc import Mapping

import msgspec

from hugewise.errors import UserError
from hugewise.host.local_host import account
from hugewise.machine.proc import meminfo
from hugewise.model import design, pages
from hugewise.model.design import Kind
from hugewise.model.host import Host, text_of
from hugewise.model.metric import Metric
from hugewise.model.pages import THP, MemoryAge, PageSizes
from hugewise.model.policy import Mechanism, Policy
from hugewise.model.procedure import Parted, Staged
from hugewise.model.results import LeftOut
from hugewise.model.trial import DeliveryThreshold
from hugewise.model.workload import Laid, Missing, ParameterValue, Workload
from hugewise.plan.arms import Arm, GuestHouse, Platform, Venue, in_guests, margin, on_host
from hugewise.plan.cells import NO_TURNS, Resolved, TakesTurns, resolve
from hugewise.quantity import parse_cpus, readable_size
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import Slots

_LEAST = 4 << 30  # bytes: a quarter is left to others, and the rest is to be many times the use of one workload


def ageing_refusal(wanted: MemoryAge, host: Host) -> str | None:
    """Return why this host cannot have its memory aged so, with the cure, or None when it can."""
    if wanted == "fresh":
        return None
    if not host.privileged():
        return "ageing this host's memory needs root"
    return (_unfragmentable(host) if pages.fragmented(wanted) else None) or (
        _unpressable(host) if pages.pressed(wanted) else None
    )


def _unfragmentable(host: Host) -> str | None:
    if text_of(host, f"{THP}/hpage_pmd_size") is None:
        return "the kernel has no transparent huge pages: nothing is lost to it in fragmented memory"
    for path in ("/proc/buddyinfo", "/proc/zoneinfo"):
        if text_of(host, path) is None:
            return f"whether memory is fragmented cannot be seen: {path} cannot be read"
    total = meminfo(host).get("MemTotal", 0)
    if total < _LEAST:
        least = readable_size(_LEAST)
        return f"this machine has {readable_size(total)} of memory: fragmenting it is for {least} and more"
    return None


def _unpressable(host: Host) -> str | None:
    if text_of(host, "/proc/swaps") is None:
        return "the kernel has no swap (CONFIG_SWAP)"
    groups = text_of(host, "/proc/self/cgroup") or ""
    first = any("memory" in line.split(":")[1].split(",") for line in groups.splitlines() if line.count(":") >= 2)
    if not first and "memory" not in (text_of(host, "/sys/fs/cgroup/cgroup.controllers") or "").split():
        return "there is no memory cgroup, whose limit would make programs swap"
    return None


EVERY = "*"  # in LeftOut: every cell, or every policy of the cell


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with its parameters. `id` is unique, readable and safe as a file name; sizes in bytes, times in s.

    account        whom the timed command runs as; None: as the caller
    stage_account  of a staged workload: whom all else of it runs as, and who owns its folders
    kind           how the arms of a block are laid out
    together       they run at once
    apart          its clients are on a host of their own
    memory_age     what this host's memory has been through before each attempt: the same for all arms
    at_most        so many of them take part in a block, which ones is the coin's: there is no memory for all
    also           the metrics that are judged beside `metric`
    copies         attempts of each arm in a block: one, or two
    """

    id: str
    workload: Workload
    values: Mapping[str, ParameterValue]
    metric: Metric
    baseline: str
    arms: tuple[Arm, ...]
    timeout: float
    delivery: DeliveryThreshold
    cpus: tuple[int, ...] | None
    account: pwd.struct_passwd | None = None
    stage_account: pwd.struct_passwd | None = None
    client_cpus: tuple[int, ...] | None = None
    storage: str = "/dev/shm"  # noqa: S108  (as in the study's key)
    memory: int | None = None
    kind: Kind = "sequential"
    together: bool = False
    at_most: int | None = None
    apart: bool = False
    memory_age: MemoryAge = "fresh"
    also: tuple[Metric, ...] = ()
    copies: int = 1

    def given(self, arm: Arm) -> Mapping[str, ParameterValue]:
        """Return the parameters of the workload under `arm`: the cell's, but for those that the arm has of its own."""
        return {**self.values, **arm.treatment.parameters}

    @property
    def has_layouts(self) -> bool:
        """True if an arm has the layout library loaded."""
        return any(arm.treatment.layout for arm in self.arms)

    def threshold(self, arm: Arm) -> DeliveryThreshold:
        """Return the delivery threshold of `arm`: the cell's, or none where the arm's setting is judged."""
        return self.delivery.of(arm.judged)

    def proof_wanted(self, arm: Arm) -> bool:
        """Return whether an attempt of `arm` is worth an untimed twin to see its pages.

        False where nothing is promised, or where the whole cell demands nothing; an arm that is declared as a setting
        has its coverage beside its verdict.
        """
        return arm.treatment.target.kind != "any" and (self.delivery.share > 0 or arm.judged == "setting")

    def arm(self, name: str) -> Arm:
        """Return the arm of that name. Raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


class Plan(msgspec.Struct, frozen=True):
    """Cells that run, in the order of the study, and what is left out, with the reasons.

    `first` lists in words what a run does before: for guests, what has to be fetched, built or booted.
    """

    cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...]
    first: tuple[str, ...] = ()


def plan(  # noqa: PLR0917 (the study, the two registries, and the machine's three sides)
    study: Study,
    policies: Mapping[str, Policy],
    workloads: Mapping[str, Workload],
    host: Host,
    sizes: PageSizes,
    mechanism: Mechanism,
    guests: GuestHouse | None = None,
    in_turns: Mapping[str, TakesTurns] = NO_TURNS,
) -> Plan:
    """Plan `study` on this machine, or in `guests` of it. `in_turns`: see `cells.resolve`. Raises StudyError."""
    if study.design.kind in ("crossover", "duet"):
        raise (
            Place(study.file)
            .at("design")
            .at("kind")
            .wrong(
                "is a design of earlier versions, whose runs can be read and not gone on with",
                study.design.kind,
                hint='begin a new run with kind = "interleaved"; to read an old one: hugewise report RUN',
            )
        )
    resolved = resolve(study, workloads, in_turns)
    venue = on_host(policies, Platform(host, sizes, mechanism)) if guests is None else in_guests(study, guests, host)
    arms = {use.name: venue.arm(use, here) for here, use in Place(study.file).items("policies", study.policies)}
    left_out = [LeftOut(EVERY, name, arm) for name, arm in arms.items() if isinstance(arm, str)]
    offered = {name: arm for name, arm in arms.items() if isinstance(arm, Arm)}
    cells: list[Cell] = []
    offline = _offline(study.design.places, host)
    with venue.within():
        for one in resolved:
            planned = _offer(one, study, offered, offline or ageing_refusal(one.memory_age, host), venue)
            left_out += planned.left_out
            cells += planned.cells
    return Plan(tuple(cells), tuple(left_out))


def _beside(cell: Cell, venue: Venue) -> str | None:
    """Return why the clients of the cell cannot be on a host of their own, or None when they can or need not."""
    if not cell.apart:
        return None
    if not isinstance(cell.workload, Parted):
        return f"{cell.workload.name} has no client that can be on another host"
    if venue.shared is not None:
        return "in guests, clients are beside their servers"
    if cell.kind != "sequential" or cell.together:
        return f"its client is on another host, where arms that run at once cannot meet: {design.SEQUENTIAL}"
    return cell.workload.parted_refused(cell.values)


def _offline(slots: Slots, host: Host) -> str | None:
    """Return why some CPUs of the slots are offline, or None. A machine that does not tell has all online."""
    try:
        online = parse_cpus(host.read("/sys/devices/system/cpu/online"))
    except (OSError, ValueError):
        return None
    absent = [cpu for slot in slots for cpu in slot if cpu not in online]
    return f"CPU {absent[0]} of the design's slots is not online here" if absent else None


def _cell(one: Resolved, study: Study, venue: Venue) -> Cell:
    used, workload, rule = one.used, one.workload, one.used.delivery
    runs = functools.partial(account, used.user, privileged=venue.privileged)
    return Cell(
        id=one.id,
        workload=workload,
        values=one.values,
        metric=one.judged(emulated=venue.emulated, counting=venue.counting),
        baseline=study.compared_with,
        arms=(),
        timeout=used.timeout,
        delivery=DeliveryThreshold(workload.delivered_share if rule.share is None else rule.share, rule.base_above),
        account=runs(workload.account),
        stage_account=runs(workload.stage_account) if isinstance(workload, Staged) else None,
        cpus=used.cpus,
        client_cpus=used.client_cpus,
        storage=used.storage,
        memory=used.memory,
        kind=one.kind,
        together=one.together,
        apart=one.used.client == "apart",
        memory_age=one.memory_age,
        also=one.beside(emulated=venue.emulated, counting=venue.counting),
        copies=_copies(one, study, venue),
    )


def _copies(one: Resolved, study: Study, venue: Venue) -> int:
    """Return the attempts of each arm in a block: two where the design allows them and the method counts on them."""
    guests, turns = venue.shared is not None, design.interleaved(one.kind)
    laid_out = turns or (one.kind == "sequential" and not one.together)
    return study.design.copies_each if study.method == "sequential" and laid_out and not guests else 1


def _offer(one: Resolved, study: Study, arms: Mapping[str, Arm], offline: str | None, venue: Venue) -> Plan:
    """Return the plan of a cell with the arms that it can take, or an empty one, and what is left out."""
    try:
        cell = _cell(one, study, venue)
    except UserError as error:  # no account here can run it
        return Plan((), (LeftOut(one.id, EVERY, error.message),))
    if (why := offline or _beside(cell, venue)) is not None:
        return Plan((), (LeftOut(cell.id, EVERY, why),))
    missing = [each for each in cell.workload.missing(cell.values) if each.here or not _comes(each, venue)]
    if missing:
        reason = "; ".join(each.reason for each in missing)
        packages = dict.fromkeys(name for each in missing for name in (each.package or "").split())
        return Plan((), (LeftOut(cell.id, EVERY, reason, tuple(packages)),))
    taken: list[Arm] = []
    left_out: list[LeftOut] = []
    order = [use.name for use in study.policies]
    wanted = [name for name in order if one.used.policies is None or name in one.used.policies]
    for name in sorted(wanted, key=lambda name: name != cell.baseline):  # the others are held against it
        if name not in arms:
            continue  # said once, for every cell
        own = one.own[name]
        arm = _within(cell, arms[name], {} if isinstance(own, str) else own)
        refusal = own if isinstance(own, str) else _refusal(arm, cell, study, taken, venue)
        if refusal is None:
            taken.append(arm)
        else:
            left_out.append(LeftOut(cell.id, name, refusal))
    taken.sort(key=lambda arm: order.index(arm.name))
    if not taken and len(reasons := {each.reason for each in left_out}) == 1:
        return Plan((), (LeftOut(cell.id, EVERY, reasons.pop()),))
    if all(arm.name != cell.baseline for arm in taken):
        reason = f"its baseline {cell.baseline} is left out, and nothing can be compared without it"
    elif len(taken) < 2:
        reason = f"only {cell.baseline} is left to run: there is nothing to compare it with"
    else:
        return Plan((msgspec.structs.replace(cell, arms=tuple(taken)),), tuple(left_out))
    return Plan((), (*left_out, LeftOut(cell.id, EVERY, reason)))


def _comes(lacking: Missing, venue: Venue) -> bool:
    """Return whether an image that is still to be made may bring the missing program."""
    return venue.pending and (lacking.package is not None or (lacking.named != "" and venue.packages))


def _within(cell: Cell, arm: Arm, own: Mapping[str, ParameterValue]) -> Arm:
    # in memory that has aged an arm is judged as a setting
    treatment = msgspec.structs.replace(arm.treatment, parameters=own)
    return msgspec.structs.replace(
        arm, treatment=treatment, judged=arm.judged if cell.memory_age == "fresh" else "setting"
    )


def _refusal(arm: Arm, cell: Cell, study: Study, taken: list[Arm], venue: Venue) -> str | None:
    """Return why the arm cannot run on this workload, in this machine's memory, or beside its baseline in this design,
    or None.

    The memory of attempts that run at once on this host is checked when pools are reserved; guests' memory is known
    now.
    """
    refusal = cell.workload.refuses(arm.treatment, cell.given(arm))
    if refusal is not None:
        return refusal
    if (unlaid := _unlaid(arm, cell)) is not None:
        return unlaid
    needed = cell.workload.memory(arm.treatment, cell.given(arm))
    if venue.memory is not None and needed > venue.memory:
        return f"needs {readable_size(needed)}, the machine has {readable_size(venue.memory)}"
    if arm.treatment.surplus and arm.kernel is None and cell.together:
        return "where arms run at once, what is reserved for one serves any: its pages are for blocks of one at a time"
    if arm.kernel is not None:  # guests have nothing in common but the host
        slots = len(study.design.slots)
        if cell.together and len(taken) >= slots:
            return f"guests that run together have a slot each, and slots names {slots}"
        return _too_large(len(taken) + 1 if cell.together else 1, venue)
    baseline = next((each for each in taken if each.name == cell.baseline), arm)
    return design.refusal(
        cell.kind,
        arm.treatment,
        baseline.treatment,
        cell.workload,
        cell.values,
        taken=len(taken),
    )


def _unlaid(arm: Arm, cell: Cell) -> str | None:
    if not arm.treatment.layout:
        return None
    if not isinstance(cell.workload, Laid):
        return "layouts are for commands: this workload's program chooses its pages itself"
    return cell.workload.unlaid(arm.treatment, cell.given(arm))


def _too_large(guests: int, venue: Venue) -> str | None:
    """Return why the host's whole memory cannot hold so many guests at once, or None."""
    needed = guests * (venue.memory or 0)
    if venue.shared is None or needed <= venue.shared - margin(venue.shared):
        return None
    what = "a guest needs" if guests == 1 else f"{guests} guests at once need"
    kept = readable_size(margin(venue.shared))
    return f"{what} {readable_size(needed)}, the host has {readable_size(venue.shared)}, of which {kept} stay its own"
