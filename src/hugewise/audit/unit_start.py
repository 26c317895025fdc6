"""How a service of this host is started, by its files: for a drop-in that keeps its words."""

from __future__ import annotations

import re

from hugewise.audit import unit_files
from hugewise.audit.root import Root
from hugewise.audit.unit_files import LoadedUnit
from hugewise.deployment.unit_start import UnitStart

__all__ = ["unit_start"]

_TUNABLES = "GLIBC_TUNABLES"


def unit_start(root: Root, name: str) -> UnitStart | None:
    """That of the service `name` (or of the template that it is of, or by its other name); None where the host has no
    such service, or has it masked.
    """
    paths = unit_files.services(root)
    others = unit_files.aliases(root, paths)
    real = others.get(name, name)
    path = paths.get(real) or paths.get(re.sub(r"@[^@]*(?=\.service$)", "@", real))
    if path is None:
        return None
    also = [other for other, whose in others.items() if whose == real]
    found = unit_files.load(root, real, path, also)
    return None if found.config.masked else _start(name, found)


def _start(name: str, found: LoadedUnit) -> UnitStart:
    last = next((one for one in reversed(found.variables) if one[0] == _TUNABLES), None)
    if last is None:
        return UnitStart(name=name, starts=found.starts, confined=found.confined)
    _, value, where = last
    by_command = where in {command.where for command in found.config.commands}
    of_unit = where.rpartition(":")[0] in found.config.files
    return UnitStart(
        name=name,
        starts=found.starts,
        tunables=value,
        tuned_by="command" if by_command else "unit" if of_unit else "file",
        tuned_at=where,
        confined=found.confined,
    )
