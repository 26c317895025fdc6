"""`hugewise fleet doctor`: what every host says of itself, in lines."""

from __future__ import annotations

from collections.abc import Callable

from hugewise.fleet import conduct, strata
from hugewise.fleet.conduct import Asked, Connect
from hugewise.fleet.engines import engine_of
from hugewise.fleet.gathering import GatheredHost
from hugewise.fleet.inventory import Inventory
from hugewise.visible import printable

__all__ = ["told"]

_FREE = 1 << 30


def told(hosts: Inventory, wanted: Asked | None, say: Callable[[str], None], *, connect: Connect = engine_of) -> bool:
    """Ask all hosts, and say what came of it; whether each of them can take part. Raises UserError."""
    with connect(hosts, "doctor", say) as engine:
        found, problems = conduct.examine(engine, hosts, wanted, say)

    def tell(line: str) -> None:
        say(printable(line))

    there = [each for each in found.values() if isinstance(each, GatheredHost)]
    names = strata.named(each.stratum for each in there)
    for each in there:
        greeting = each.greeting
        who = "root" if greeting.root else greeting.account
        tell(f"{each.host}: hugewise {greeting.installed.version} as {who}; {names[each.stratum]}")
        for cell in greeting.examined.cells or ():
            tell(f"  runs      {cell}")
        for line in greeting.examined.left_out:
            tell(f"  left out  {line}")
        if wanted is None:
            for check in greeting.examined.checks:
                if check.state != "ok":
                    cure = f" (cure: {check.cure})" if check.cure else ""
                    tell(f"  {check.state:8}  {check.section}, {check.name}: {check.finding}{cure}")
        if greeting.spool_free is not None and greeting.spool_free < _FREE:
            tell(f"  limited   room for runs: {greeting.spool_free >> 20} MiB are free in its spool")
    for problem in problems:
        tell(problem.line)
    tell(f"{len(hosts.host) - len({problem.host for problem in problems})} of {len(hosts.host)} hosts can take part")
    return not problems
