"""`hugewise predict` as it is called: one real run under QEMU, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hugewise.errors import HugewiseError, UserError
from hugewise.predict import timing, trace
from tests.cli.conftest import Call
from tests.requirements import need, need_program
from tests.terminal import as_input

SWEEP = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
/* Touches each of 4096 pages of 4 KiB (large: 12288), of two regions of 8 MiB, in turn, ROUNDS times. */
int main(int argc, char **argv) {
    long rounds = atol(argv[1]), pages = argc > 2 && argv[2][0] == 'l' ? 12288 : 4096;
    char *at = aligned_alloc(2 << 20, pages << 12);
    if (argc > 2 && argv[2][0] == 'f' && fork() == 0) _exit(0);
    if (argc > 2 && argv[2][0] == 'f') wait(NULL);
    if (argc > 2 && argv[2][0] == 'k') abort();
    if (argc > 2 && argv[2][0] == 'e') execl("/bin/true", "true", NULL);
    for (long round = 0; round < rounds; round++)
        for (long page = 0; page < pages; page++) *(volatile char *)(at + (page << 12)) = 1;
    puts("done");
    return argc > 2 && argv[2][0] == 'x' ? 3 : 0;
}
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = need_program("cc", "gcc")
    need_program("qemu-x86_64", "qemu-user")
    need(os.uname().machine == "x86_64", "a compiler for x86-64")
    folder = tmp_path_factory.mktemp("sweep, with a comma")
    (folder / "sweep.c").write_text(SWEEP)
    subprocess.run([compiler, "-O1", "-static", "-o", folder / "sweep", folder / "sweep.c"], check=True)
    return folder / "sweep"


def predicted(call: Call, *words: str | Path) -> dict[str, dict[str, float]]:
    status, out, err = call("predict", "--json", "--machine", "neoverse-n1", "--", *words)
    assert (status, err) == (0, "")
    told = json.loads(out)
    return {
        f"{row['page']}/{row['base']}": {
            "walks": row["misses_pki"]["low"] * told["instructions"] / 1000,
            "steps": row["steps_pki"]["high"] * told["instructions"] / 1000,
            "l1": row["l1_misses_pki"]["low"] * told["instructions"] / 1000,
        }
        for row in told["rows"]
    }


def test_a_sweep_misses_in_each_page_of_each_round(sweep: Path, call: Call) -> None:
    rounds = {number: predicted(call, sweep, str(number)) for number in (2, 12)}
    more = {
        page: {what: round(rounds[12][page][what] - rounds[2][page][what]) for what in rounds[2][page]}
        for page in rounds[2]
    }
    assert abs(more["4K/4K"]["l1"] - 10 * 4096) <= 40  # 4096 pages, and 48 entries
    assert abs(more["16K/16K"]["l1"] - 10 * 1024) <= 40
    assert abs(more["64K/4K"]["l1"] - 10 * 256) <= 40
    # 1280 entries of the second level: too few for 4096 pages, enough for 1024 of 16 KiB.
    assert more["4K/4K"]["walks"] > 10 * 2700  # at random some stay
    assert abs(more["16K/16K"]["walks"]) <= 40
    # Eight entries of 2 MiB cover the rest of each walk.
    assert abs(more["4K/4K"]["steps"] - 10 * 4096) <= 100
    assert abs(more["2M/4K"]["l1"]) <= 40


def test_the_program_prints_on_stderr_and_the_report_is_written(sweep: Path, tmp_path: Path, call: Call) -> None:
    status, out, _ = call("predict", "--policy", "thp", "--output", tmp_path / "told", "--", sweep, "1", "x")
    assert status == 0
    assert "The program ended with status 3" in " ".join(out.split())
    assert "2M on 4K" in out
    assert "64K on 4K" not in out
    assert "done" not in out
    names = {path.name for path in (tmp_path / "told").iterdir()}
    assert names >= {"report.html", "report.md", "prediction.json", "figures"}
    told = json.loads((tmp_path / "told" / "prediction.json").read_bytes())
    assert (told["command"], told["status"]) == ([str(sweep), "1", "x"], 3)
    assert (tmp_path / "told" / "figures" / "steps.svg").stat().st_size > 1000


def test_a_signal_that_ends_the_program_is_said(sweep: Path, call: Call) -> None:
    """QEMU 8 lets the plugin answer then, and QEMU 7 does not."""
    status, out, err = call("predict", "--json", "--", sweep, "1", "killed")
    assert "was killed by signal 6" in (err if status else " ".join(json.loads(out)["limits"]))
    assert (status == 2) is (out == "")


def test_a_terminal_is_the_input_of_a_single_run_alone(sweep: Path) -> None:
    program = trace.program(["test", "-t", "0"])
    asked: dict[str, list[int]] = {"sizes": [], "configurations": []}
    with as_input():
        found = [trace.run(program, asked, None, given).status for given in (None, {"LANG": "C"})]
    assert found == [0, 1]


def test_a_file_says_when_counting_begins(sweep: Path, tmp_path: Path, call: Call) -> None:
    begin = tmp_path / "begin"
    status, out, err = call("predict", "--count-from", begin, "--", sweep, "1")
    assert (status, out) == (2, "")
    assert "nothing was counted" in err
    begin.touch()
    status, _, err = call("predict", "--count-from", begin, "--", sweep, "1")
    assert status == 2
    assert "it is there already" in err


@pytest.mark.looks
def test_timed_runs_and_the_trace_have_the_same_layouts(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(timing, "text_of", lambda *_: "always [madvise] never")
    monkeypatch.setattr(timing, "here", lambda: ("zen-3", True))
    program = tmp_path / "dynamic"
    subprocess.run([need_program("cc", "gcc"), "-O1", "-o", program, sweep.with_suffix(".c")], check=True)
    status, out, _ = call(
        "predict", "--time", "30s", "--machine", "neoverse-n1", "--json", "--", program, "100", "large"
    )
    told = json.loads(out)
    found = told["timing"]
    assert (status, found["heap_bytes"]) == (0, 56 << 20)  # of 48 MiB and the C library's
    assert all(len(layout["seconds"]) >= 3 and min(layout["seconds"]) > 0 for layout in found["layouts"])
    base, quarter, half, most, thp = (layout["misses"][0] for layout in found["layouts"])
    # 48 MiB from the begin of 56, more than QEMU has room for: a quarter has 14 of these, the second half 20.
    assert base > 10**6
    assert [round(48 * (1 - part / base)) for part in (quarter, half, most, thp)] == [14, 20, 34, 48]
    assert found["host"] in told["machines"]
    assert found["why"] is None or any(word in found["why"] for word in ("off what the others predict", "coarsely"))


def test_a_static_program_has_misses_and_no_time(sweep: Path, call: Call) -> None:
    status, out, _ = call("predict", "--time", "30s", "--json", "--", sweep, "1")
    told = json.loads(out)
    assert (status, told["timing"]["layouts"]) == (0, [])
    assert "statically linked" in told["timing"]["why"]
    assert told["rows"][0]["seconds"] is None
    assert told["rows"][0]["l1_misses_pki"]["low"] > 0


def test_children_are_a_told_limit(sweep: Path, call: Call) -> None:
    status, out, _ = call("predict", "--json", "--", sweep, "1", "fork")
    assert status == 0
    assert "The program forked a child, which was not traced." in json.loads(out)["limits"]


def test_a_program_that_becomes_another_is_refused(sweep: Path, call: Call) -> None:
    status, out, err = call("predict", "--", sweep, "1", "exec")
    assert (status, out) == (2, "")
    assert "replaced itself by another program" in err
    assert "cure: name that program" in err


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Files that cannot be traced."""
    (tmp_path / "setuid").write_bytes(Path(sys.executable).resolve().read_bytes()[:100_000])
    (tmp_path / "setuid").chmod(0o4755)
    (tmp_path / "old").write_bytes(b"\x7fELF\x01\x01\x01" + bytes(100))
    (tmp_path / "script").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "text").write_text("no program")
    (tmp_path / "other").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(100))
    for name in ("old", "script", "text", "other"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ("no program to trace", "hugewise predict -- ./prog")),
        (("--", "no-such-program"), ("no-such-program: no such program", "name a program on PATH")),
        (("--machine", "zen-9", "--", "true"), ("--machine zen-9: no such machine", "name one of golden-cove")),
        (("--policy", "thp,huge", "--", "true"), ("--policy huge: no page of these machines", "name some of base")),
        (("--time", "soon", "--", "true"), ("--time soon: not a duration", "write for example 2m")),
        (("--time", "2m", "--count-from", "x", "--", "true"), ("--time and --count-from", "give one of them")),
        (("--", "./setuid"), ("it is setuid", "trace a copy")),
        (("--", "./old"), ("it is of 32 bits", "trace a program of 64 bits")),
        (("--", "./script"), ("it is a script of /bin/sh", "name its interpreter: /bin/sh ./script")),
        (("--", "./text"), ("it is no program of x86-64 or arm64", "trace an ELF program")),
        (("--", "./other"), ("it is no program of x86-64 or arm64", "trace an ELF program")),
        (("--", "true", "\x1b[2J"), ("qemu-x86_64 is not there", "install it: apt install qemu-user")),
    ],
)
def test_bad_input_is_said_with_its_cure(
    words: tuple[str, ...], said: tuple[str, str], programs: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    true = shutil.which("true")
    assert true is not None
    (programs / "true").symlink_to(true)
    monkeypatch.chdir(programs)
    monkeypatch.setenv("PATH", str(programs))  # there is no QEMU
    status, out, err = call("predict", *words)
    assert (status, out) == (2, "")
    told = " ".join(err.split())
    assert said[0] in told
    assert f"cure: {said[1]}" in told


def test_without_the_plugin_the_build_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(trace.PLUGIN, str(tmp_path / "none.so"))
    with pytest.raises(UserError, match=r"the plugin of QEMU .*none\.so is not there") as refused:
        trace.plugin()
    assert refused.value.hint == f"correct {trace.PLUGIN}"


def test_an_answer_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it was killed by signal 11 under QEMU, and left no trace"):
        trace._read(tmp_path / "answer.json", "prog", -11)
    (tmp_path / "answer.json").write_text('{"version": 1}')
    with pytest.raises(HugewiseError, match="the answer of the plugin cannot be read"):
        trace._read(tmp_path / "answer.json", "prog", 0)
