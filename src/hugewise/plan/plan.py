"""From a study to the cells and arms that this machine can run, and what is left out with its reason.

Pure but for the files that policies read through `Host`. Mistakes of the study that only show here (an unknown policy,
workload, parameter or metric) raise StudyError; what the machine cannot offer is left out before anything runs.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping

import msgspec

from hugewise.model import design
from hugewise.model.host import Host
from hugewise.model.metric import COMMON, Metric
from hugewise.model.pages import PageSizes
from hugewise.model.policy import Mechanism, Policy
from hugewise.model.results import LeftOut
from hugewise.model.trial import DeliveryThreshold
from hugewise.model.workload import Hearing, ParameterValue, Workload
from hugewise.plan import parameters
from hugewise.plan.arms import Arm, Machine
from hugewise.plan.venue import GuestHouse, Venue, in_guests, on_host
from hugewise.quantity import format_size, parse_cpus, readable_size
from hugewise.study import keys
from hugewise.study.keys import Place
from hugewise.study.study import Study
from hugewise.study.tables import PolicyUse, Slots
from hugewise.study.workload import SMALL, WorkloadUse

__all__ = ["EVERY", "Arm", "Cell", "Plan", "plan"]

EVERY = "*"  # in LeftOut: every cell, or every policy of the cell

_MOST_CELLS = 10_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_LONGEST_ID = 120


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A workload with its parameters. `id` is unique, readable and safe as a file name; sizes in bytes, times in s.

    `together`: the arms of a block run at once.
    """

    id: str
    workload: Workload
    values: Mapping[str, ParameterValue]
    metric: Metric
    baseline: str
    arms: tuple[Arm, ...]
    timeout: float
    delivery: DeliveryThreshold
    user: str | None
    cpus: tuple[int, ...] | None
    client_cpus: tuple[int, ...] | None = None
    storage: str = "/dev/shm"  # noqa: S108  (as in the study's key)
    memory: int | None = None
    together: bool = False

    def given(self, arm: Arm) -> Mapping[str, ParameterValue]:
        """The parameters of the workload under `arm`: the cell's, but for those that the arm has of its own."""
        return {**self.values, **arm.treatment.parameters}

    def threshold(self, arm: Arm) -> DeliveryThreshold:
        """What the delivery of `arm` is held against: the cell's threshold, or none where its setting is judged."""
        return self.delivery.of(arm.judged)

    def proof_wanted(self, arm: Arm) -> bool:
        """Whether an attempt of `arm` is worth another, untimed one to see its pages (a twin).

        Not where nothing is promised, nor where the whole cell demands nothing; an arm that is declared as a setting
        has its coverage beside its verdict.
        """
        return arm.treatment.target.kind != "any" and (self.delivery.share > 0 or arm.judged == "setting")

    def arm(self, name: str) -> Arm:
        """The arm of that name. Raises KeyError."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)


class Plan(msgspec.Struct, frozen=True):
    """What runs, in the order of the study, and what does not, with the reasons.

    `first` is what a run does before, in words: of guests, what has to be fetched, built or asked.
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
) -> Plan:
    """The plan of `study` on this machine, or in `guests` of it. Raises StudyError."""
    place = Place(study.file)
    _check_parameters(study, workloads, place)
    venue = on_host(policies, Machine(host, sizes, mechanism)) if guests is None else in_guests(study, guests, host)
    left_out: list[LeftOut] = []
    arms: dict[str, Arm] = {}
    for index, use in enumerate(study.policies, 1):
        arm = venue.arm(use, place.at("policies").item(index))
        if isinstance(arm, str):
            left_out.append(LeftOut(EVERY, use.name, arm))
        else:
            arms[use.name] = arm
    cells: list[Cell] = []
    taken: set[str] = set()
    offline = _offline(study.design.places, host)
    with venue.within():
        for index, used in enumerate(study.workload, 1):
            for cell in _cells(used, place.at("workload").item(index), study, workloads, taken, venue):
                planned = _offer(cell, used, study, arms, offline, venue)
                left_out += planned.left_out
                cells += planned.cells
    return Plan(tuple(cells), tuple(left_out))


def _cells(  # noqa: PLR0917 (what is used, where it says so, and what is known already)
    used: WorkloadUse,
    place: Place,
    study: Study,
    workloads: Mapping[str, Workload],
    taken: set[str],
    venue: Venue,
) -> list[Cell]:
    """One cell without arms for each combination of the parameters and ways to run. Raises StudyError."""
    workload = workloads.get(used.name)
    if workload is None:
        raise place.at("name").wrong(
            "is not a workload", used.name, hint=keys.near(used.name, workloads.keys(), what="workloads")
        )
    if study.scale == SMALL:  # mistakes of the other scales are told before they are chosen
        for scale in used.scales:
            parameters.factors(used.at(scale), workload, place, scale)
    factors = parameters.factors(used, workload, place, study.scale)
    varied = [name for name in used.parameters if name in factors and parameters.is_factor(used, workload, name)]
    combinations = math.prod(len(levels) for levels in factors.values())
    if combinations > _MOST_CELLS:
        raise place.at("parameters").wrong(
            f"makes {combinations} cells", hint=f"a study has at most {_MOST_CELLS}: shorten the lists"
        )
    delivery = DeliveryThreshold(
        workload.delivered_share if used.delivery.share is None else used.delivery.share, used.delivery.base_above
    )
    cells = []
    for *levels, concurrency in itertools.product(*factors.values(), used.concurrency):
        values = dict(zip(factors, levels, strict=True))
        called = f"{used.called}-{concurrency}" if len(used.concurrency) > 1 else used.called
        cells.append(
            Cell(
                id=_identify(called, workload, values, varied, taken),
                workload=workload,
                values=values,
                metric=_metric(used, workload, values, place, venue),
                baseline=study.compared_with,
                arms=(),
                timeout=used.timeout,
                delivery=delivery,
                user=used.user,
                cpus=used.cpus,
                client_cpus=used.client_cpus,
                storage=used.storage,
                memory=used.memory,
                together=design.at_once(study.design.kind) or concurrency == "together",
            )
        )
    return cells


def _check_parameters(study: Study, workloads: Mapping[str, Workload], place: Place) -> None:
    """An arm's own parameters must be ones of some workload of the study. Raises StudyError."""
    found = [workloads[used.name] for used in study.workload if used.name in workloads]
    known = {parameter.name for workload in found for parameter in workload.parameters}
    for index, use in enumerate(study.policies, 1):
        for name, value in use.parameters.items():
            if name not in known:
                here = place.at("policies").item(index).at("parameters").at(name)
                raise here.wrong("is not a parameter of any workload of the study", value, hint=keys.near(name, known))
    for index, used in enumerate(study.workload, 1):
        if study.design.slots and used.cpus is not None:
            here = place.at("workload").item(index).at("cpus")
            raise here.wrong("the design has slots", list(used.cpus), hint="remove cpus here, or slots of the design")


def _offline(slots: Slots, host: Host) -> str | None:
    """Why the slots cannot all be had, or None. A machine that does not say which CPUs are online has them all."""
    try:
        online = parse_cpus(host.read("/sys/devices/system/cpu/online"))
    except (OSError, ValueError):
        return None
    absent = [cpu for slot in slots for cpu in slot if cpu not in online]
    return f"CPU {absent[0]} of the design's slots is not online here" if absent else None


def _with_parameters(arm: Arm, use: PolicyUse, cell: Cell, place: Place) -> Arm | str:
    """The arm with its own parameters as the workload takes them, or why it cannot."""
    known = {parameter.name: parameter for parameter in cell.workload.parameters}
    absent = [name for name in use.parameters if name not in known]
    if absent:
        return f"{cell.workload.name} has no parameter {absent[0]}"
    own = {name: parameters.typed(known[name], given, place.at(name)) for name, given in use.parameters.items()}
    return msgspec.structs.replace(arm, treatment=msgspec.structs.replace(arm.treatment, parameters=own))


def _offer(  # noqa: PLR0917 (the study's three sides, the host's slots, and where it runs)
    cell: Cell,
    used: WorkloadUse,
    study: Study,
    arms: Mapping[str, Arm],
    offline: str | None,
    venue: Venue,
) -> Plan:
    """The cell with the arms that it can take, or nothing, and what is left out."""
    if offline is not None:
        return Plan((), (LeftOut(cell.id, EVERY, offline),))
    missing = [each for each in cell.workload.missing(cell.values) if each.here or not (venue.pending and each.package)]
    if missing:
        reason = "; ".join(each.reason for each in missing)
        packages = dict.fromkeys(name for each in missing for name in (each.package or "").split())
        return Plan((), (LeftOut(cell.id, EVERY, reason, tuple(packages)),))
    taken: list[Arm] = []
    left_out: list[LeftOut] = []
    place = Place(study.file).at("policies")
    uses = [(place.item(n).at("parameters"), use) for n, use in enumerate(study.policies, 1)]
    wanted = [(here, use) for here, use in uses if used.policies is None or use.name in used.policies]
    wanted.sort(key=lambda each: each[1].name != cell.baseline)  # the others are held against it
    for here, use in wanted:
        if use.name not in arms:
            continue  # said once, for every cell
        arm = _with_parameters(arms[use.name], use, cell, here)
        if isinstance(arm, Arm):
            arm = _refusal(arm, cell, study, taken, venue) or arm
        if isinstance(arm, Arm):
            taken.append(arm)
        else:
            left_out.append(LeftOut(cell.id, use.name, arm))
    order = [use.name for use in study.policies]
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


def _refusal(arm: Arm, cell: Cell, study: Study, taken: list[Arm], venue: Venue) -> str | None:
    """Why the arm cannot run on this workload, not in this machine's memory, or not beside its baseline in this design.

    What attempts on this host that run at once need together, and what is free of its memory, is asked when pools are
    reserved; guests have all of theirs, which is known.
    """
    refusal = cell.workload.refuses(arm.treatment, cell.given(arm))
    if refusal is not None:
        return refusal
    needed = cell.workload.memory(arm.treatment, cell.given(arm))
    if venue.memory is not None and needed > venue.memory:
        return f"needs {readable_size(needed)}, the machine has {readable_size(venue.memory)}"
    if arm.kernel is not None:  # guests have nothing in common but the host
        slots = len(study.design.slots)
        if cell.together and len(taken) >= slots:
            return f"guests that run together have a slot each, and slots names {slots}"
        return _too_large(len(taken) + 1 if cell.together else 1, venue)
    baseline = next((each for each in taken if each.name == cell.baseline), arm)
    return design.refusal(
        study.design.kind,
        arm.treatment,
        baseline.treatment,
        cell.workload,
        cell.values,
        taken=len(taken),
        slots=len(study.design.slots),
        metric=cell.metric.name,
    )


def _too_large(guests: int, venue: Venue) -> str | None:
    """Why so many guests at once cannot be had in the memory of the host, all of it, or None."""
    needed = guests * (venue.memory or 0)
    if venue.shared is None or needed <= venue.shared:
        return None
    what = "a guest needs" if guests == 1 else f"{guests} guests at once need"
    return f"{what} {readable_size(needed)}, the host has {readable_size(venue.shared)}"


def _metric(
    used: WorkloadUse,
    workload: Workload,
    values: Mapping[str, ParameterValue],
    place: Place,
    venue: Venue,
) -> Metric:
    """The metric that is judged; where the machine is emulated, one that emulation counts exactly."""
    named: tuple[Metric, ...] = ()
    if isinstance(workload, Hearing):
        try:
            named = workload.named(values)
        except ValueError as error:
            raise place.at("parameters").wrong("names a metric wrongly", hint=str(error)) from None
    own = (*named, *workload.metrics)
    known = {metric.name: metric for metric in (*COMMON, *own)}
    for key, name in (("metric", used.metric), ("counted", used.counted)):
        if name is not None and name not in known:
            raise place.at(key).wrong(
                f"is not a metric of {workload.name}", name, hint=keys.near(name, known, what="metrics")
            )
    counts = {name for name, metric in known.items() if metric.emulated}
    could = counts | {"instructions"}
    if used.counted is not None and used.counted not in could:
        raise place.at("counted").wrong(
            "is nothing that emulation counts exactly", used.counted, hint=f"one of {', '.join(sorted(could))}"
        )
    if venue.emulated:
        wanted = used.counted or used.metric or own[0].name
        return known[wanted if wanted in (could if venue.counting else counts) else "page_faults"]
    return own[0] if used.metric is None else known[used.metric]


def _identify(
    called: str,
    workload: Workload,
    values: Mapping[str, ParameterValue],
    varied: list[str],
    taken: set[str],
) -> str:
    """A readable name: the label and what is varied, with a hash where that is too long or stands already."""
    types = {parameter.name: parameter.type for parameter in workload.parameters}
    found = "-".join([called, *(f"{name}={_written(types[name], values[name])}" for name in varied)])
    if len(found) > _LONGEST_ID or found in taken:
        exact = msgspec.json.encode([called, values], order="deterministic")
        found = f"{found[: _LONGEST_ID - 9]}-{hashlib.sha256(exact).hexdigest()[:8]}"
    taken.add(found)
    return found


def _written(kind: str, value: ParameterValue) -> str:
    if isinstance(value, tuple):
        text = "_".join(value)
    elif kind == "size" and isinstance(value, int):
        text = format_size(value)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return _UNSAFE.sub("_", text)[:40]
