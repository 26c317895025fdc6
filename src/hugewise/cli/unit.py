"""Units of systemd: `hugewise restore` at boot, and how the service that `--unit` names is started on this host.

Page settings, pools, mounts and cgroups are the kernel's, and gone with it after a reboot. Two things are not: what a
run had copied to a disk, which only a journal knows, and everything where the kernel goes on without the processes (a
container that is started again, `systemctl soft-reboot`).
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Final

from hugewise.deployment.program import UnitStart
from hugewise.errors import UserError
from hugewise.host.journal import JOURNAL
from hugewise.model.host import Check, Host

PATH: Final = "/etc/systemd/system/hugewise-restore.service"
INSTALL: Final = f"hugewise doctor --unit | sudo tee {PATH} && sudo systemctl enable hugewise-restore"
_AS_ROOT: Final = "sudo PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin pipx install hugewise"


def text() -> str:
    """Return the unit, which calls this very installation. Raises UserError where it cannot be told."""
    program = _program()
    return f"""\
# {INSTALL}
[Unit]
Description=Put back what a killed run of hugewise left on this host
ConditionPathExists={JOURNAL}
RequiresMountsFor={JOURNAL.parent} {program}
After=local-fs.target

[Service]
Type=oneshot
ExecStart={program} restore

[Install]
WantedBy=multi-user.target
"""


def _program() -> Path:
    """Return the path of the command `hugewise`, with which systemd starts it as root: beside this Python."""
    program = Path(sys.executable).parent.resolve() / "hugewise"
    if not program.is_file():
        raise UserError(f"{program} is not there", hint=_AS_ROOT)
    if set(str(program)) & set(" \"'\\%$;\n"):  # these have a meaning to systemd
        raise UserError(f"{program} cannot stand in a unit", hint="install hugewise in a folder of a plain name")
    for place in (program, *program.parents):
        found = place.stat()
        if found.st_uid != 0 or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
            raise UserError(f"{place} can be changed by others than root: root must not start it", hint=_AS_ROOT)
    return program


def check(host: Host) -> Check | None:
    """Check whether the unit is there; None on a machine that systemd did not start."""
    if "system" not in host.names("/run/systemd"):  # sd_booted(3)
        return None
    try:
        host.read(PATH)
    except OSError:
        finding = "no unit puts back at boot what a killed run left on a disk"
        return Check("host", "restore at boot", "limited", finding, INSTALL)
    return Check("host", "restore at boot", "ok", PATH)


def of_host(unit: str) -> UnitStart | None:
    """Return the unit's start from its files; None where this host has no such service. Raises UserError for what is no
    name of a unit.
    """
    from hugewise.audit.root import Root  # noqa: PLC0415  (each verb pays only for what it uses)
    from hugewise.audit.systemd import unit_start  # noqa: PLC0415
    from hugewise.deployment.quoting import unit_name  # noqa: PLC0415

    return unit_start(Root(), unit_name(unit))
