"""SIGKILL at any moment of a run's life, and of what puts the machine back after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hugewise.torture import studies, traces
from hugewise.torture.rack import Rack
from hugewise.torture.subject import CommandEnded

__all__ = ["POOL_MIB", "anywhere", "while_the_pool_changes"]

POOL_MIB = 1024
_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
_TRIES = 6
_RESTORE_S = 0.5  # about its life, most of it Python's start

# What puts the machine back after the kill; those that are killed are followed by what is not.
_RECOVERIES = (
    *(("restore",),) * 6,
    *(("restore killed", "restore"),) * 4,
    *(("resume",),) * 3,
    *(("resume killed", "restore"),) * 3,
    *(("resume killed", "resume"),) * 2,
    *(("run",),) * 2,
)


def anywhere(rack: Rack, text: str) -> None:
    """Kill a run of the study at a moment that is drawn from its whole life."""

    def kill(draw: int) -> CommandEnded:
        moment = rack.draws.between(f"moment {draw}", 0, rack.life)
        return rack.subject.kill_after(moment, *rack.words(rack.study(text)))

    _killed(rack, kill)


def while_the_pool_changes(rack: Rack, text: str) -> None:
    """Kill a run as the kernel fills its pool (three of five) or empties it: at a number of pages that is drawn."""
    had = int(_POOL.read_text())
    pages = POOL_MIB // 2

    def kill(draw: int) -> CommandEnded:
        goal = had + int(rack.draws.share(f"pages {draw}") * pages)
        empties = rack.draws.share(f"empties {draw}") < 0.4
        descriptor, seen = os.open(_POOL, os.O_RDONLY), had

        def reached() -> bool:
            nonlocal seen
            now = int(os.pread(descriptor, 32, 0))
            seen = max(seen, now)
            return seen > had and (seen > goal and now <= goal if empties else now > goal)

        try:
            return rack.subject.kill_when(reached, *rack.words(rack.study(text)))
        finally:
            os.close(descriptor)

    _killed(rack, kill)


def _killed(rack: Rack, kill: Callable[[int], CommandEnded]) -> None:
    """Kill, recover as it is drawn, and hold everything against what was."""
    for draw in range(_TRIES):
        ended = rack.did(kill(draw))
        if ended.hit:
            break
        # Drawn again: it was over before the kill, or somebody else has the memory that its pool needs.
        rack.clear(ended, 0, 1)
        rack.same()
        if rack.results.exists():
            rack.results.rename(rack.work / f"over-{draw}")
    else:
        rack.broke(f"it could not be killed: {ended.told()}")
    rack.found.kills = int(ended.hit)
    rack.found.turned = len(traces.differences(rack.before, rack.work))
    had = rack.had()
    for verb in rack.draws.one_of("recovery", _RECOVERIES):
        _recover(rack, verb)
    rack.keeps(had)
    rack.same()
    if rack.owed and not rack.found.resumed and rack.resume():
        rack.same()


def _recover(rack: Rack, verb: str) -> None:
    """Put the machine back in one of the ways in which that happens."""
    if verb == "restore":
        rack.restore()
    elif verb == "restore killed":
        moment = rack.draws.between(verb, 0, _RESTORE_S)
        rack.found.recovery_kills += rack.did(rack.subject.kill_after(moment, "restore")).hit
    elif verb == "run":
        words = ("run", rack.study(studies.small()), "--results", str(rack.work / "next"))
        rack.clear(rack.did(rack.subject.run(*words)), 0)
    elif verb == "resume killed":
        if rack.resumable:
            moment = rack.draws.between(verb, 0, rack.life)
            rack.found.recovery_kills += rack.did(rack.subject.kill_after(moment, "resume", str(rack.run))).hit
    elif not rack.resume():
        rack.restore()  # nothing was begun, or all was done
