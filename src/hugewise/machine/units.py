"""Which unit of systemd a control group is of, by its path: units of the system, and what others call so.

Whoever a subtree is delegated to (a user's own manager, a container, a service) makes groups of any name in it. The
manager of the system puts its units below slices alone, so what lies below anything else is no unit of the system's.

Sources: cgroups(7); systemd.slice(5); systemd's "Control Group APIs and Delegation" (names that begin as the kernel's
own have a `_` before them).
"""

from __future__ import annotations

__all__ = ["is_of_system", "managed", "service", "top"]

_INIT = "init.scope"


def managed(cgroup: str) -> list[str]:
    """The paths in the text of /proc/PID/cgroup by which systemd manages: of version 2, and of its own hierarchy."""
    parts = (line.split(":", 2) for line in cgroup.split("\n"))
    return [each[2] for each in parts if len(each) == 3 and (each[:2] == ["0", ""] or each[1] == "name=systemd")]


def top(cgroup_of_1: str) -> str:
    """Below what the manager's units lie, from /proc/1/cgroup: nothing, but for a container that sees where it is."""
    return next((path.removesuffix(f"/{_INIT}") for path in managed(cgroup_of_1) if path.endswith(f"/{_INIT}")), "")


def is_of_system(path: str, above: str = "") -> bool:
    """Whether a group that is called as a unit is one of the system's manager, whose units lie below `above`."""
    inside = path.removeprefix(above) if path.startswith(f"{above}/") else path
    return all(part.endswith(".slice") for part in inside.split("/")[1:-1])


def service(cgroup: str, above: str = "") -> str | None:
    """The service of the system's that a process of this /proc/PID/cgroup belongs to; None: to none."""
    for path in managed(cgroup):
        parts = path.split("/")
        at = next((at for at, part in enumerate(parts) if part.endswith(".service")), None)
        if at is not None and is_of_system("/".join(parts[: at + 1]), above):
            return parts[at]
    return None
