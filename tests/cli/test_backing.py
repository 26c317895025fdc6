"""`hugewise verify`: the answer in words and as JSON, its exit statuses, and texts of others that stay text."""

import json
import os
import sys
from pathlib import Path

import pytest

from hugewise.cli import backing
from hugewise.inspection.reasons import Reason
from hugewise.inspection.verify import MappingSeen, ProcessSeen, Promise, Verified
from hugewise.model.pages import PageTarget
from tests import golden
from tests.cli.conftest import Call

HOSTILE = "x\n\x1b[2J\u202e[bold]evil[/bold]"
FOUND = Verified(
    subject="redis-server.service",
    promise=Promise(policy="thp", text="2m thp pages", target=PageTarget("thp", 2 << 20), needed=0.95),
    delivered=False,
    share=0.25,
    coverage={"anon:2097152": 16 << 20, "anon:4096": 47 << 20, "unproven": 1 << 20},
    source="smaps",
    said="25.0% of its memory is in 2m thp pages (95% was promised)",
    reasons=(
        Reason(id="not-advised", text="47 MiB could be in pages of 2m", bytes=47 << 20, cure="advise it"),
        Reason(id="too-small", text="1 MiB is too small", bytes=1 << 20),
    ),
    rules=("transparent huge pages of anonymous memory: 2m madvise",),
    processes=(
        ProcessSeen(
            pid=7, command=HOSTILE, uid=0, coverage={}, thp_disabled=True, allocator="jemalloc", tunable=1
        ),
        *(
            ProcessSeen(pid=pid, command="w", uid=0, coverage={}, thp_disabled=None, allocator="glibc", tunable=None)
            for pid in range(8, 20)
        ),
    ),
    mappings=(
        MappingSeen(
            start="55d0c0000000", name="[heap]", memory=64 << 20, huge=16 << 20, pool=0, eligible=True, advised=True
        ),
        MappingSeen(start="7f00", name=HOSTILE, memory=4096, huge=0, pool=0, eligible=False, advised=False),
        MappingSeen(start="", name="9 smaller ones", memory=9, huge=0, pool=0, eligible=None, advised=False),
    ),
    notes=("3 of its processes have ended meanwhile, or have no memory",),
)  # fmt: skip


def test_the_answer_in_words() -> None:
    told = "\n".join(backing.lines(FOUND)) + "\n"
    assert told.replace("\n", "").isprintable()
    golden.same(told, golden.GOLDEN / "verified.txt")


@pytest.mark.parametrize(
    ("delivered", "status", "word"), [(True, 0, "as promised"), (False, 1, "NOT as promised"), (None, 1, "NOT PROVEN")]
)
def test_the_exit_status_is_the_answer(
    delivered: bool | None, status: int, word: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msgspec.structs import replace

    monkeypatch.setattr("hugewise.inspection.verify.verify", lambda *_, **__: replace(FOUND, delivered=delivered))
    assert call("verify", "7", "--policy", "thp")[0] == status
    assert call("verify", "7", "--policy", "thp")[1].startswith(f"redis-server.service: {word}: ")
    found, out, _ = call("verify", "7", "--policy", "thp", "--json")
    assert found == status
    assert json.loads(out)["delivered"] is delivered
    assert out.replace("\n", "").isprintable()


def test_this_very_process_is_looked_at(call: Call) -> None:
    status, out, err = call("verify", str(os.getpid()), "--policy", "as-is")
    assert (status, err) == (0, "")
    assert out.startswith(f"process {os.getpid()}: as promised")
    assert "Rules in force now:" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0", "--policy", "thp"), "there is no such process"),
        (("\x1b[2J", "--policy", "thp"), "is not the name of a unit"),
        (("no-such-unit-here", "--policy", "thp"), "no-such-unit-here.service: "),
        (("1",), "--policy is missing"),
        (("1", "--policy", "nonsense"), "--policy nonsense: not a policy of this machine"),
        (("1", "--share", "x"), "--share x: not a share"),
        (("1", "--share", "120%"), "a share lies between 0 and 1"),
        ((), "nothing to verify"),
    ],
)
def test_bad_input_is_said_with_its_cure(words: tuple[str, ...], said: str, call: Call) -> None:
    status, out, err = call("verify", *words)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())
    assert "cure: " in err or not words
    assert err.replace("\n", "").isprintable()


_TOUCHED = """
import mmap, os, sys
kept = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
kept.madvise({"huge": mmap.MADV_HUGEPAGE, "base": mmap.MADV_NOHUGEPAGE}[sys.argv[1]])
block = sys.stdin.buffer.read().ljust(1 << 20, b"x")
for _ in range(64):
    kept.write(block)
os._exit(int(sys.argv[2]))  # with its memory
"""


@pytest.mark.looks
def test_a_command_that_ends_at_once_is_verified(call: Call, tmp_path: Path) -> None:
    command = ["--", sys.executable, "-c", _TOUCHED]
    status, out, err = call("verify", "--policy", "thp", "--share", "50%", "--json", *command, "base", "0")
    assert status == 1, err
    found = json.loads(out)
    assert found["delivered"] is False
    assert found["coverage"]["anon:4096"] >= 64 << 20
    assert found["said"].endswith("of its memory is in 2m thp pages (50% was promised)")
    assert found["notes"] == ["processes that were seen, each at its exit or at its largest: 1"]
    (tmp_path / "input").write_bytes(b"y" * 100)
    words = ["verify", "--policy", "base", "--stdin", tmp_path / "input", *command]
    status, out, err = call(*words, "base", "0")
    assert (status, err) == (0, "")
    assert out.startswith(f"the command {sys.executable} -c ")
    assert ": as promised: " in out
    assert "Processes:" not in out
    status, out, err = call(*words, "base", "3")
    assert (status, out) == (2, "")
    assert "base 3: exit status 3" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "true"), "--policy is missing"),
        (("--policy", "thp", "--memory", "large", "--", "true"), "--memory large is for a process"),
        (("--policy", "thp", "1", "--", "true"), "1 and a command: one thing is verified at a time"),
        (("--policy", "thp"), "nothing to verify"),
        (("--policy", "thp", "--"), "nothing to verify"),
        (("--policy", "thp", "--stdin", "/dev/null", "1"), "--stdin is for a command"),
        (("--policy", "thp", "--", "/no/program"), "/no/program: no such program"),
        (("--policy", "none", "--", "true"), "--policy none: not a policy of this machine"),
    ],
)
def test_what_does_not_go_with_a_command_is_refused(call: Call, words: tuple[str, ...], said: str) -> None:
    status, out, err = call("verify", *words)
    assert (status, out) == (2, "")
    assert said in err
