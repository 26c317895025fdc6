"""Before hours are spent: every host is asked who it is, and what does not fit is told, all of it, before anything is
begun anywhere.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from hugewise.errors import HugewiseError, UserError
from hugewise.fleet import inventory
from hugewise.fleet.engine import Engine, ask, at_once
from hugewise.fleet.installation import different
from hugewise.fleet.inventory import Inventory, Stratum
from hugewise.fleet.protocol import FleetQuestion, Greeting, HelloOrder, Installed
from hugewise.fleet.records import HostGreeted, QueueStatus
from hugewise.visible import printable

HELLO_S = 120.0
_CLOCK_S = 60.0
_MOST_TOLD = 20
_MOST_LEFT_OUT, _LONGEST, _LONGEST_LINE = 100, 300, 2000


class GatheredHost(msgspec.Struct, frozen=True):
    """A host that has answered, in its stratum."""

    host: str
    greeting: Greeting
    stratum: Stratum

    def record(self, t: float, labels: Mapping[str, str]) -> HostGreeted:
        """As the log has it."""
        found = self.greeting
        return HostGreeted(
            t=t,
            host=self.host,
            stratum=self.stratum,
            machine=_text(found.fingerprint.get("machine")),
            name=_text(found.fingerprint.get("name")) or self.host,
            root=found.root,
            installed=found.installed,
            labels=labels,
            left_out=tuple(printable(line)[:_LONGEST] for line in found.examined.left_out[:_MOST_LEFT_OUT]),
        )


class HostProblem(msgspec.Struct, frozen=True):
    """Why a host cannot take part, and what cures it."""

    host: str
    why: str
    cure: str | None = None

    @property
    def line(self) -> str:
        """It in one line, whatever the host said."""
        cure = f" (cure: {self.cure})" if self.cure else ""
        return printable(f"{self.host}: {self.why}{cure}")[:_LONGEST_LINE]


def _text(value: object) -> str | None:
    return printable(value)[:_LONGEST] if isinstance(value, str) else None


def greeted(engine: Engine, hosts: Mapping[str, FleetQuestion | None]) -> dict[str, GatheredHost | HostProblem]:
    """What each host answers to Hello, asked its question, or why there is no answer. Raises nothing that one host can
    cause.
    """

    def hello(host: str) -> Greeting:
        found = ask(engine, host, HelloOrder(question=hosts[host]), HELLO_S)
        if not isinstance(found, Greeting):
            raise HugewiseError(f"{host} answered something else than who it is")
        return found

    found: dict[str, GatheredHost | HostProblem] = {}
    for host, came in at_once(hello, hosts).items():
        if isinstance(came, Greeting):
            stratum = inventory.stratum(came.fingerprint, came.thp, came.memory_age)
            found[host] = GatheredHost(host, came, stratum)
        elif isinstance(came, HugewiseError):
            found[host] = HostProblem(host, came.message, came.hint)
        else:
            raise came
    return {host: found[host] for host in hosts}


def problems(
    found: Mapping[str, GatheredHost | HostProblem], inventory: Inventory, here: Installed, *, question: bool
) -> list[HostProblem]:
    """All that keeps hosts from taking part: no answer, another hugewise, no root, nothing that can run there, or other
    cells than elsewhere. `question`: whether they were asked what of a study can run there.
    """
    told = [each for each in found.values() if isinstance(each, HostProblem)]
    there = [each for each in found.values() if isinstance(each, GatheredHost)]
    told += [problem for each in there for problem in _of_one(each, inventory, here, question=question)]
    told += _odd_probes(there)
    if not inventory.fleet.same_machine:
        told += _twins(there)
    if question:
        told += _odd_cells(there)
    return told


def _of_one(each: GatheredHost, inventory: Inventory, here: Installed, *, question: bool) -> list[HostProblem]:
    host, greeting, told = each.host, each.greeting, []
    if (why := different(here, greeting.installed)) is not None:
        told.append(HostProblem(host, why, "install this one there: hugewise fleet provision"))
    if inventory.entry(host).root and not greeting.root:
        cure = "let sudo call it without a password, or log in as root, or write root = false"
        told.append(HostProblem(host, f"it is to run as root, and runs as {greeting.account}", cure))
    examined = greeting.examined
    if examined.error is not None:
        told.append(HostProblem(host, examined.error, "see there: hugewise doctor"))
    elif question and not examined.cells:
        reasons = "; ".join(examined.left_out[:3]) or "hugewise doctor there does not say why"
        told.append(HostProblem(host, f"nothing of the study can run there: {reasons}", examined.install))
    return told


def _odd_probes(there: Sequence[GatheredHost]) -> list[HostProblem]:
    """Hosts of one architecture have one probe: the times that it takes are to be compared."""
    kinds: defaultdict[str, list[GatheredHost]] = defaultdict(list)
    for each in there:
        if each.greeting.installed.probe is not None:
            kinds[each.greeting.installed.machine].append(each)
    told = []
    for machine, several in kinds.items():
        usual = Counter(each.greeting.installed.probe for each in several).most_common(1)[0][0]
        for each in several:
            if (probe := each.greeting.installed.probe) != usual:
                hashes = f"{str(probe)[:12]}, {str(usual)[:12]}"
                why = f"its probe is another one than on the other hosts of {machine} ({hashes})"
                told.append(HostProblem(each.host, why, "install one wheel on all: hugewise fleet provision"))
    return told


def _twins(there: Sequence[GatheredHost]) -> list[HostProblem]:
    """One machine is one host, whatever it is called."""
    told: list[HostProblem] = []
    known: dict[str, str] = {}
    for each in there:
        machine = _text(each.greeting.fingerprint.get("machine"))
        if machine is not None and known.setdefault(machine, each.host) != each.host:
            why = f"it is the same machine as {known[machine]}: one machine is one host of the sample"
            told.append(
                HostProblem(each.host, why, "take it out of the inventory, or write [fleet] same_machine = true")
            )
    return told


def _odd_cells(there: Sequence[GatheredHost]) -> list[HostProblem]:
    """A study is one question: its cells and arms are the same everywhere, and so is how policies work."""
    known = [each for each in there if each.greeting.examined.cells]
    if not known:
        return []
    usual = Counter((each.greeting.examined.mechanism, each.greeting.examined.cells) for each in known)
    (mechanism, cells), _ = max(usual.items(), key=lambda item: (item[1], len(item[0][1] or ())))
    told = []
    for each in known:
        examined = each.greeting.examined
        if examined.mechanism != mechanism:
            ways = {"system": "as root", "process": "as an ordinary user"}
            own, others = (
                ways.get(examined.mechanism or "", "in another way"),
                ways.get(mechanism or "", "in another way"),
            )
            why = f"policies work {own} there, and {others} on other hosts: they do not measure the same"
            told.append(HostProblem(each.host, why, "write root = true for all hosts, or for none"))
        elif examined.cells != cells:
            without = [cell for cell in cells or () if cell not in (examined.cells or ())]
            reasons = "; ".join(examined.left_out[:3])
            why = (
                f"other cells can run there than on other hosts; not there: {'; '.join(without) or 'none'} ({reasons})"
            )
            cure = examined.install or "leave the host out, or choose what all have with --only and --arms"
            told.append(HostProblem(each.host, why, cure))
    return told


def must_fit(told: Sequence[HostProblem], hosts: int) -> None:
    """Raise UserError with all of them, where there are any."""
    if not told:
        return
    lines = [each.line for each in told[:_MOST_TOLD]]
    more = [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    named = len({each.host for each in told})
    message = "\n  ".join([f"{named} of {hosts} hosts cannot take part; nothing was begun", *lines, *more])
    raise UserError(
        message, hint="cure that, or take them out of the inventory; see: hugewise fleet doctor --hosts FILE"
    )


def remarks(there: Sequence[GatheredHost], now: float) -> list[str]:
    """What a person should know, and what keeps nothing from being done: clocks, and hosts that are one machine."""
    told = []
    machines: defaultdict[str, list[str]] = defaultdict(list)
    for each in there:
        skew = each.greeting.clock - now
        if abs(skew) > _CLOCK_S:
            told.append(
                f"{each.host}: its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}; nothing rests on it"
            )
        if (machine := _text(each.greeting.fingerprint.get("machine"))) is not None:
            machines[machine].append(each.host)
    told += [f"{' and '.join(names)} are one machine" for names in machines.values() if len(names) > 1]
    return told


def placed(there: Sequence[GatheredHost], per_stratum: int | None, t: float, seed: str) -> QueueStatus:
    """Which hosts measure: of each stratum so many (None: all), by lot: an inventory is in an order of its own, by rack
    or by age. The others stand by. `seed` is in the log.
    """
    lot = random.Random(seed)  # noqa: S311  (nobody gains by knowing it)
    chosen: set[str] = set()
    for stratum in sorted({each.stratum for each in there}):
        members = [each.host for each in there if each.stratum == stratum]
        chosen.update(members if per_stratum is None else lot.sample(members, min(per_stratum, len(members))))
    measuring = tuple(each.host for each in there if each.host in chosen)
    spare = tuple(each.host for each in there if each.host not in chosen)
    return QueueStatus(t=t, measuring=measuring, spare=spare, seed=seed)
