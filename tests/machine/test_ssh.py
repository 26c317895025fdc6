"""The command line of ssh, and what the real program makes of it beside a configuration that gives more away."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hugewise.machine.programs import ssh_command
from tests.requirements import need_program


def test_a_host_is_given_nothing_but_the_command(tmp_path: Path) -> None:
    need_program("ssh", "openssh-client")
    generous = tmp_path / "config"
    generous.write_text(
        "Host *\n ForwardAgent yes\n ForwardX11 yes\n RemoteForward 9000 localhost:9000\n"
        " PermitLocalCommand yes\n LocalCommand touch given\n RemoteCommand sh\n BatchMode no\n"
    )
    words = ssh_command(["-F", str(generous), "host"], "true", connect_s=7, alive_s=3)
    assert words[-3:] == ["--", "host", "true"]
    said = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True, timeout=30).stdout
    held = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    named = ("forwardagent", "forwardx11", "clearallforwardings", "permitlocalcommand", "batchmode", "requesttty")
    assert [held[name] for name in named] == ["no", "no", "yes", "no", "yes", "false"]
    assert [held[name] for name in ("connecttimeout", "serveraliveinterval", "serveralivecountmax")] == ["7", "3", "3"]
    assert held.get("remotecommand", "none") == "none"
