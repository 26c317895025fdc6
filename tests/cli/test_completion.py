"""TAB, as a shell asks: bash itself with the script that it reads, the others by the words that they send."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import HUGEWISE, Call, tiny
from tests.requirements import need_program


def asked(line: str, shell: str = "bash") -> dict[str, str]:
    """What the script of a shell has in the environment when it asks."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    return {
        "_HUGEWISE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }


def completed(line: str, here: Path, shell: str = "bash") -> list[str]:
    """What is offered for the last word of `line`, with its kind: plain, file or dir."""
    told = asked(line, shell)
    done = subprocess.run(HUGEWISE, cwd=here, env=os.environ | told, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hugewise doc", ["plain,doctor"]),
        ("hugewise run dem", ["plain,demo"]),
        ("hugewise run tin", ["plain,tiny.toml"]),
        ("hugewise run no/such", ["file,no/such"]),
        ("hugewise run --policy base -- ./pro", ["file,./pro"]),
        ("hugewise run --policy base,mad", ["plain,base,madvise"]),
        ("hugewise run demo --only random-access,fr", ["plain,random-access,fresh-memory"]),
        ("hugewise run tiny.toml --arms ", ["plain,base", "plain,thp"]),
        ("hugewise run no-such --arms ", []),
        ("hugewise doctor lpc-2024-mthp --scale ", ["plain,published", "plain,sizes"]),
        ("hugewise resume res", ["dir,res"]),
        ("hugewise list stu", ["plain,studies"]),
    ],
)
def test_what_tab_offers(
    line: str, offered: list[str], here: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked in this process: the tests below start one, as a shell does."""
    tiny(here, "base", "thp")
    for name, value in asked(line).items():
        monkeypatch.setenv(name, value)
    status, out, err = call()
    assert (status, out.split(), err) == (0, offered, "")


def test_tab_knows_the_services_of_a_host(tmp_path: Path) -> None:
    for name in ("app.service", "apply@.service", "app.socket"):
        (tmp_path / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
        (tmp_path / "etc/systemd/system" / name).write_text("[Service]\n")
    assert completed("hugewise audit --root . --unit app", tmp_path) == ["plain,app", "plain,apply@"]


def test_bash_completes_with_the_script_that_it_reads(tmp_path: Path) -> None:
    (tmp_path / "hugewise").write_text(f'#!/bin/sh\nexec {shlex.join(HUGEWISE)} "$@"\n')
    (tmp_path / "hugewise").chmod(0o755)
    asks = (
        'eval "$(hugewise completion bash)"; COMP_WORDS=(hugewise run redh) COMP_CWORD=2; _hugewise_completion hugewise'
    )
    done = subprocess.run(
        [need_program("bash", "bash"), "--norc", "-c", f'{asks}; complete -p hugewise; echo "${{COMPREPLY[@]}}"'],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _hugewise_completion hugewise",
        "redhat-2021 redhat-2021-vm",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_and_are_answered(shell: str, call: Call, tmp_path: Path) -> None:
    status, out, err = call("completion", shell)
    assert (status, err) == (0, "")
    assert f"_HUGEWISE_COMPLETE={shell}_complete" in out
    assert any("demo" in line for line in completed("hugewise run dem", tmp_path, shell))
