"""The memory of idle servers when khugepaged has looked at all of it: what a policy costs beside what it wins.

A server's footprint at the end of the measured part has what faults gave it; khugepaged adds to that later, at a pace
of 16 MiB in ten seconds by default. Here it scans without pauses until two passes have ended (of one that was under way
nobody knows where it began), in a bounded time.

Source: Documentation/admin-guide/mm/transhuge.rst of the Linux kernel (khugepaged controls, full_scans).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from hugewise.attempt.performance import Performance
from hugewise.attempt.underway import Group, Work
from hugewise.errors import SettingError
from hugewise.host.setting import Settings
from hugewise.machine.site import Site
from hugewise.model.host import number_of
from hugewise.model.pages import THP

__all__ = ["IdleFootprint", "idle", "never_collapses"]

SCANS = f"{THP}/khugepaged/full_scans"
SLEEP = f"{THP}/khugepaged/scan_sleep_millisecs"
PASSES = 2
_LOOK_S = 0.02


class IdleFootprint(msgspec.Struct, frozen=True):
    """Bytes, or why they are not known."""

    bytes: int | None
    why: str = ""


def idle(group: Group, work: Work) -> IdleFootprint:
    """Wait for khugepaged, and look at the servers' memory."""
    patience, play = group.bench.study.sampling.idle, work.play
    if not patience:
        return IdleFootprint(None, "not asked for: idle in [sampling]")
    if not isinstance(play, Performance) or not play.served:
        return IdleFootprint(None, "only servers are idle after the measured part: other processes have ended")
    if work.broken is not None or play.problem is not None:
        return IdleFootprint(None, "the attempt did not come to its end")
    if work.site.machine.emulated:
        return IdleFootprint(None, "the guest is emulated: how long khugepaged takes there means nothing")
    if not group.alone(work):
        return IdleFootprint(None, "the arms were there together, and khugepaged works for all of them")
    why = _passed(group, work, patience)
    if why is not None:
        return IdleFootprint(None, why)
    size = play.stage.tested.footprint()
    return IdleFootprint(size, "" if size is not None else "the servers' memory could not be read in time")


def _passed(group: Group, work: Work, patience: float) -> str | None:
    """Why khugepaged has not passed twice; None where it has, or has nothing to do under these settings."""
    host = work.site.host
    if never_collapses(work.site.knobs.values()):
        return None
    if number_of(host, SCANS) is None:
        return f"{SCANS}: not there"
    if host.privileged() and (why := _hurried(group, work.site, work.arm.treatment.knobs)) is not None:
        return why
    return _waited(lambda: number_of(host, SCANS), patience, time.monotonic, time.sleep)


def _hurried(group: Group, site: Site, knobs: Mapping[str, str]) -> str | None:
    """Have khugepaged scan without pauses, until the next attempt's knobs are turned; why not, where it cannot be."""
    if SLEEP not in site.knobs.values():
        return None
    try:
        drift = site.knobs.apply({**knobs, SLEEP: "0"})
    except SettingError as error:
        return f"khugepaged could not be hurried: {error.message}"
    if drift:
        if isinstance(site.knobs, Settings):
            group.drift += drift
        return f"somebody else turned knobs: {'; '.join(map(str, drift))}"
    return None


def _waited(
    scans: Callable[[], int | None], patience: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> str | None:
    first, until = scans(), clock() + patience
    while (now := scans()) is not None and first is not None:
        if now - first >= PASSES:
            return None
        if clock() >= until:
            return f"khugepaged ended {now - first} of {PASSES} passes within {patience:g} s"
        sleep(_LOOK_S)
    return f"{SCANS} could not be read"


def never_collapses(knobs: Mapping[str, str]) -> bool:
    """Whether khugepaged does not run: no size of anonymous or shared memory is on."""
    off = {"never", "deny"}
    whole = knobs.get(f"{THP}/enabled"), knobs.get(f"{THP}/shmem_enabled", "never")
    if whole[0] not in off or whole[1] not in off:
        return False
    sizes = [
        value for path, value in knobs.items() if path.startswith(f"{THP}/hugepages-") and path.endswith("enabled")
    ]
    return all(value in {*off, "inherit"} for value in sizes)
