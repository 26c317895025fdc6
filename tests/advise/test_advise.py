"""Whole advices on the real kernel: from a command to a verdict, interrupted, and refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hugewise.advise import advise as phases
from hugewise.advise.advice import Advice
from hugewise.advise.question import Question, command
from hugewise.advise.text import answer, details, settings
from hugewise.errors import UserError
from hugewise.session import progress
from hugewise.session.progress import AttemptStarted, Event, Message
from hugewise.store.folder import RunFolder
from tests.build import known
from tests.build.services import service as service_parameters
from tests.requirements import need, need_program, need_root
from tests.servers.trying import need_pages

pytestmark = pytest.mark.usefixtures("unchanged")

# What huge pages are worth hangs on the machine: where its host takes back what lies free, they can cost. So the effect
# is planted: with the tunable of malloc it does a third of the work. What is saved is some 0.2 s of the program's own
# time, beside which that of its 6,144 faults (some 10 ms, in either direction) is too little to be a cause.
PLANTED = """
import os
b = bytearray(b"x") * (24 << 20)
for _ in range(1 if "GLIBC_TUNABLES" in os.environ else 3):
    sum(range(6_000_000))
"""
# Far more than an advice takes: each phase ends when it has decided, and none for want of time on a busy machine.
AMPLE_S = 900.0
ASKED = Question(workload=command((sys.executable, "-IS", "-c", PLANTED)), seconds=AMPLE_S, most=2)


@pytest.mark.timeout(4 * AMPLE_S)
def test_a_program_that_gains_is_told_what_to_set(tmp_path: Path) -> None:
    need_root()
    need_pages()
    said: list[str] = []

    def listener(event: Event) -> None:
        if isinstance(event, Message):
            said.append(event.text)

    found, folder = phases.advise(ASKED, tmp_path, listener=listener)
    assert found.arrived == "finished"
    # Where others take huge pages all the time, counters of the machine let the program seem to have some to turn off.
    tried = [each.name for each in found.tried]
    assert tried in (["advised", "heap-thp"], ["off", "advised"])
    assert found.pilot is not None
    assert found.pilot.huge is not None  # the heap is gone at the exit: counters of the machine, with others' faults
    last = found.confirmed
    assert last is not None
    # How the comparison ends is left to the machine: the words follow its verdict.
    assert last.verdict in {"better", "undecided"}, last.reason
    metric = found.question.workload["metric"]  # that of the pilot, which hangs on how busy the machine is
    assert metric in {"cpu_s", "wall_s"}
    assert answer(found).startswith(f"Set `{last.candidate}`: {metric} −") == (last.verdict == "better")
    assert known(last.huge_before) < 0.5
    assert known(last.huge_after) > 0.5
    rows = {row.name: row.seen for row in settings(found)}
    assert list(rows) == ["as-is", *tried]
    seen = rows[last.candidate]
    assert seen is not None
    assert seen.known == "confirmed"
    assert seen.footprint.total is not None
    assert seen.footprint.total > 24 << 20
    assert last.cause is not None
    stored = msgspec.json.decode((folder / "advice.json").read_bytes(), type=Advice)
    assert msgspec.structs.replace(stored, seconds=found.seconds) == found
    runs = [
        RunFolder(Path(each)).read() for each in (found.pilot_folder, found.screening_folder, found.confirmation_folder)
    ]
    assert len({run.opened.seed_hash for run in runs}) == 3, "each phase has coins of its own"
    assert [run.study.method for run in runs] == ["fixed-n", "screening", "sequential"]
    assert said[0] == "pilot: the program as it is"
    again, _ = phases.resume(folder)
    assert (again.arrived, again.confirmed) == ("finished", last), "there is nothing left to be done"


LAID = """
#include <stdlib.h>
#include <string.h>
int main(void) {
    const char *layout = getenv("HUGEWISE_LAYOUT");
    unsigned long rounds = layout && strstr(layout, "hugetlb") ? 40000000 : 120000000;
    for (int i = 0; i < 24 << 14; i++) *(volatile char *)malloc(48) = 1;
    for (volatile unsigned long i = 0; i < rounds; i++) {}
    return 0;
}
"""


@pytest.mark.soak
def test_a_heap_from_a_pool_is_told_where_no_tunable_reaches_it(tmp_path: Path) -> None:
    """Of an older glibc: here one whose loader does not list the tunable. The effect is planted."""
    need_root()
    need_pages()
    compiler, loader = need_program("gcc", "gcc"), Path("/lib64/ld-linux-x86-64.so.2")
    need(loader.exists(), "the loader of glibc on x86-64")
    old = tmp_path / loader.name
    old.write_bytes(loader.read_bytes().replace(b"glibc.malloc.hugetlb\0", b"glibc.malloc.hugetlX\0"))
    old.chmod(0o755)
    (tmp_path / "laid.c").write_text(LAID)
    words = [compiler, "-O1", "-o", str(tmp_path / "laid"), str(tmp_path / "laid.c"), f"-Wl,--dynamic-linker={old}"]
    subprocess.run(words, check=True)
    asked = Question(workload=command((str(tmp_path / "laid"),)), seconds=AMPLE_S, most=2)
    found, _ = phases.advise(asked, tmp_path)
    assert [each.name for each in found.tried] == ["heap-thp", "heap-2m"]
    why = {one.name: one.reason for one in found.left_out}
    assert "its glibc is older than 2.35" in why["pool"]
    last = known(found.confirmed)
    assert (last.candidate, last.verdict) == ("heap-2m", "better"), last.reason
    assert known(last.huge_after) > 0.9


@pytest.mark.parametrize("phase", ["pilot", "screening", "confirmation"])
@pytest.mark.soak
def test_interrupted_it_says_how_far_it_came_and_goes_on(tmp_path: Path, phase: str) -> None:
    need_root()
    need_pages()
    found, folder = phases.advise(ASKED, tmp_path, listener=interrupting(phase))
    assert found.arrived == phase
    assert answer(found).startswith(f"No answer yet: interrupted in the {phase}.")
    after, _ = phases.resume(folder)
    assert after.arrived == "finished"
    assert after.confirmed is not None
    assert after.seconds > found.seconds
    for begun in (found.pilot_folder, found.screening_folder, found.confirmation_folder):
        assert not begun or begun in (after.pilot_folder, after.screening_folder, after.confirmation_folder)


def interrupting(phase: str) -> progress.Listener:
    """Whoever presses Ctrl-C at the second attempt of that phase."""
    under_way, attempts = "", 0

    def listener(event: Event) -> None:
        nonlocal under_way, attempts
        if isinstance(event, Message) and event.text.partition(":")[0] in ("pilot", "screening", "confirmation"):
            under_way, attempts = event.text.partition(":")[0], 0
        attempts += isinstance(event, AttemptStarted)
        if under_way == phase and attempts == 2:
            attempts += 1
            raise KeyboardInterrupt

    return listener


@pytest.mark.parametrize(
    ("argv", "seconds", "words"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), 600.0, "the command fails"),
        ((sys.executable, "-c", "import sys; sys.stdin.read(1) or exit(4)"), 600.0, "the command fails"),
        (("/bin/sleep", "1000"), 10.0, "the command does not end in time"),
        (("no-such-program-anywhere",), 60.0, "no such program"),
        (("/bin/true",), 2.0, "nothing can be found in less than 10 s"),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(
    tmp_path: Path, argv: tuple[str, ...], seconds: float, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        phases.advise(Question(workload=command(argv), seconds=seconds), tmp_path)
    assert caught.value.hint


def test_a_folder_that_is_no_advice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "advice.json").write_text('{"format": 1')
    with pytest.raises(UserError, match="no advice"):
        phases.resume(tmp_path)


# -- a service


def of_service(*words: str, most: int = 2, seconds: float = AMPLE_S, **parameters: Any) -> Question:
    made = service_parameters(*words, environment=["ROUNDS=24", "HELD=24"], **parameters)
    return Question(workload={"name": "service", "parameters": made}, seconds=seconds, most=most)


@pytest.mark.soak
def test_a_service_that_gains_is_told_what_to_set(tmp_path: Path) -> None:
    need_root()
    need_pages()
    found, folder = phases.advise(of_service(asked=30), tmp_path)
    assert found.arrived == "finished"
    assert found.pilot is not None
    assert found.pilot.memory > 24 << 20, "the server's"
    # Where others take huge pages all the time, counters of the machine let the program seem to have some to turn off.
    tried = [each.name for each in found.tried]
    assert tried in (["advised", "heap-thp"], ["off", "advised"])
    assert (found.pilot.forked, found.pilot.executed, found.pilot.threads, found.pilot.ended) == (0, 0, 0, 0)
    last = found.confirmed
    assert last is not None
    assert last.verdict == "better", last.reason
    assert known(last.ratio) < 1
    assert last.design == "interleaved"
    assert "  ".join(details(found)).count("Design: interleaved, ") == 1
    again, _ = phases.resume(folder)
    assert again.confirmed == last


@pytest.mark.soak
def test_a_service_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    need_root()
    need_pages()
    found, folder = phases.advise(of_service(asked=30), tmp_path, listener=interrupting("screening"))
    assert found.arrived == "screening"
    after, _ = phases.resume(folder)
    assert after.arrived == "finished"
    assert after.confirmed is not None
    assert after.pilot_folder == found.pilot_folder


@pytest.mark.parametrize(
    ("words", "parameters", "told", "cure"),
    [
        (("early",), {}, "the service could not be measured: server ended before it answered", "by hand"),
        pytest.param(("daemon",), {}, "it went into the background", "by hand", marks=pytest.mark.soak),
        pytest.param(
            ("silent",), {"ready_within": "500ms"}, "it does not listen at TCP port", "--ready", marks=pytest.mark.soak
        ),
        (("mortal",), {}, "the service fails under its load: server ended", "stays up"),
        pytest.param(
            (),
            {"status": 3},
            "the service fails under its load: exit status 3",
            "end with status 0",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_service_that_cannot_be_measured_is_said_at_once(
    tmp_path: Path, words: tuple[str, ...], parameters: dict[str, Any], told: str, cure: str
) -> None:
    with pytest.raises(UserError) as caught:
        phases.advise(of_service(*words, **parameters), tmp_path)
    assert told in caught.value.message
    assert cure in (caught.value.hint or "")
