"""The XML of a domain that libvirt runs, by its own client: `virsh dumpxml`. Nothing here needs it to be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from urllib.parse import urlsplit

from hugewise.errors import UserError
from hugewise.machine import programs

__all__ = ["dumpxml", "elsewhere"]

_PATIENCE_S = 60.0
_HERE = ("localhost", "127.0.0.1", "::1")


def elsewhere(uri: str) -> str | None:
    """The other host that a connection leads to, as libvirt's URI names it (qemu+ssh://root@HOST/system), or None."""
    try:
        name = urlsplit(uri).hostname
    except ValueError:  # virsh says what is wrong with it
        return None
    return None if not name or name in (*_HERE, os.uname().nodename.lower()) else name


def dumpxml(uri: str, domain: str) -> bytes:
    """What libvirt says of the domain now. Raises UserError."""
    program = programs.of_root("virsh") if os.geteuid() == 0 else shutil.which("virsh")
    if program is None:
        raise UserError(
            "--connect needs virsh, libvirt's client, and it is not installed here",
            hint="apt install libvirt-clients; or copy the XML from where it is: virsh dumpxml DOMAIN > DOMAIN.xml",
        )
    words = [program, "--connect", uri, "dumpxml", "--domain", domain]
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"virsh --connect {uri} dumpxml {domain}: {error}", hint="is libvirt running there?") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[:500]
        raise UserError(f"virsh --connect {uri} dumpxml {domain}: {said}", hint=f"virsh --connect {uri} list --all")
    return done.stdout
