"""TAB: bash itself with the script that it reads; the others have a script."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import HUGEWISE, Call
from tests.requirements import need_program


def test_bash_completes_with_the_script_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "hugewise").write_text(f'#!/bin/sh\nexec {shlex.join(HUGEWISE)} "$@"\n')
    (tmp_path / "hugewise").chmod(0o755)
    asks = 'eval "$(hugewise completion bash)"; COMP_WORDS=(hugewise list stu) COMP_CWORD=2'
    asks += '; _hugewise_completion hugewise; complete -p hugewise; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        [need_program("bash", "bash"), "--norc", "-c", asks],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["complete -o nosort -F _hugewise_completion hugewise", "studies"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, call: Call) -> None:
    status, out, err = call("completion", shell)
    assert (status, err) == (0, "")
    assert f"_HUGEWISE_COMPLETE={shell}_complete" in out
