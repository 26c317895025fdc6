"""Times from layouts: given where each is as the others predict, and else the sentence that says why not."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hugewise import processes
from hugewise.machine import fingerprint, loader
from hugewise.predict import machines, timing, trace
from hugewise.predict.prediction import rows
from hugewise.predict.trace import Traced
from hugewise.quantity import parse_size
from tests.predict.test_prediction import CHOSEN, answer, counts
from tests.terminal import as_input
from tests.wait import until

MISSES = (8_000_000, 6_000_000, 4_000_000, 2_000_000, 0)
NOISE = np.array([-0.002, 0.0, 0.002, 0.004, 0.01])  # its lower quartile is 0

TRUE = trace.Program(("true",), "/bin/true", os.uname().machine, "qemu", Path("plugin"))

RAN = timing._Ran(1.0, 1.0, 1 << 20, 9000)


def runs(*seconds: float, host: str = "zen-5") -> timing.Runs:
    return timing.Runs(64 << 20, np.array(seconds)[:, np.newaxis] + NOISE, host, known=True)


def laid(*, split: bool = False) -> tuple[tuple[int, int, int], ...]:
    """Misses of base pages in each layout, and of huge ones where an entry is of a base page."""
    return tuple((base, 1000, (MISSES[0] - base) * split) for base in MISSES)


def traced(**other: object) -> Traced:
    told = {
        "instructions": 10**9,
        "regions": 1,
        "laid": (*laid(), *laid(split=True)),
        "configurations": (
            counts(8_001_000, 8_000_000, 9),
            counts(9, 9, 9),
            counts(51_000, 50_000, 9),
            counts(9, 9, 9),
        ),
    }
    return Traced(answer(**{**told, **other}), 0, 1.0)


def judged(*seconds: float, **other: object) -> tuple[timing.Timing, Sequence[float | None]]:
    found = traced(**other)
    told, times = timing.judge(runs(*seconds), found, CHOSEN)
    shown = (row.seconds for row in rows(CHOSEN, found.answer, times))
    return told, [None if each is None else round(each.value, 3) for each in shown]


def test_times_are_given_where_the_others_predict_each_layout() -> None:
    told, times = judged(*(1 + 5e-8 * each for each in MISSES))
    assert told.why is None
    assert (told.host, told.known, told.entries, told.heap_bytes) == ("zen-5", True, "whole", 64 << 20)
    assert told.costs_ns == (50.0, None, None)
    assert [each.misses[0] for each in told.layouts] == list(MISSES)
    assert times == [1.4, 1.0, 1.0]  # 4K, 2M and 1G: misses of huge pages are not in the line
    assert all(each.predicted and each.predicted.low < each.took < each.predicted.high for each in told.layouts)


def test_no_time_where_a_layout_held_out_lies_outside() -> None:
    told, times = judged(1.4, 1.3, 1.2, 1.4, 1.0)
    assert told.why is not None
    assert told.why.startswith("the layout mosaic:25-100%=thp took 1.4 s, 27.3% off what the others predict (1.09")
    assert times == [None, None, None]
    assert len(told.layouts) == 5


def test_no_time_where_intervals_are_wide() -> None:
    told, times = judged(1.4, 1.0, 1.9, 0.8, 1.6)
    assert told.why is not None
    short, _ = timing.judge(timing.Runs(8 << 20, np.zeros((5, 3)), "zen-5", known=True), traced(), CHOSEN)
    assert "base too coarsely (0 to 0 s)" in str(short.why)
    assert "too coarsely" in told.why
    assert times == [None, None, None]


def test_no_time_where_one_layout_alone_has_misses() -> None:
    one = ((9_000_000, 0, 0), *((0, 9, 0) for _ in range(4)))
    told, _ = judged(1.4, 1, 1, 1, 1, laid=one * 2)
    assert told.why == "without the layout base no layouts differ in misses"


def test_entries_are_what_predicts_better_and_of_base_pages_huge_pages_miss_as_often() -> None:
    skewed = tuple((base**2 // MISSES[0], 1000, 0) for base in MISSES)
    split = tuple(zip(MISSES, (1000,) * 5, (0, 1_000_000, 5_000_000, 5_500_000, 8_000_000), strict=True))
    told, times = judged(*(1 + 5e-8 * base + 1e-8 * huge for base, _, huge in split), laid=(*skewed, *split))
    assert told.entries == "split"
    assert told.costs_ns == (50.0, None, 10.0)
    assert times == [1.4, 1.08, 1.08]  # 2M and 1G: 8 million misses of 10 ns


def test_a_time_below_zero_is_not_given() -> None:
    """The program has more misses than its heap: without all of them nothing of its time would be left."""
    _, times = judged(*(1 + 5e-8 * each - 0.999 for each in MISSES))
    assert times[1:] == [None, None]


def test_pages_that_no_layout_has_get_no_time() -> None:
    """What a walk of 64K pages costs is not known."""
    chosen = [("neoverse-n1", page) for page in machines.load("neoverse-n1").page]
    found = traced(configurations=tuple(counts(8_001_000, 8_000_000, 9) for _ in chosen))
    _, times = timing.judge(runs(*(1 + 5e-8 * each for each in MISSES), host="neoverse-n1"), found, chosen)
    named = {page.name: page for _, page in chosen if page.granule == "4k"}
    assert "64K" in named
    assert {name for _, _, name in times} == {
        name for name, page in named.items() if name == "4K" or page.bytes >= 2 << 20
    }


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"forks": 1}, "it forked, and its children were not traced"),
        ({"regions": 0}, "its heap could not be laid out"),
        ({"laid": ((1, 2, 3),)}, "its heap could not be laid out"),
    ],
)
def test_no_time_where_the_trace_is_not_of_the_runs(other: dict[str, object], why: str) -> None:
    told, times = judged(1.4, 1.3, 1.2, 1.1, 1.0, **other)
    assert (told.why or "").startswith(why)
    assert times == [None, None, None]


def test_what_is_simulated_is_what_the_layouts_say() -> None:
    asked = runs(*range(5), host="golden-cove").asked()
    quarter = 16 << 20
    assert asked["layouts"][1:4] == [[[0, quarter]], [[2 * quarter, 4 * quarter]], [[quarter, 4 * quarter]]]
    assert {each["shift"] for level in ("l1", "l2") for each in asked["tlbs"][1][level]} == {12}  # split


@pytest.mark.parametrize(
    ("host", "first", "second"),
    [
        ("golden-cove", [96, 32], [(12, 128, 16), (21, 128, 8)]),
        ("zen-5", [96, 96], [(12, 256, 16), (21, 256, 16)]),
        ("neoverse-n1", [48, 48], [(12, 256, 5), (21, 256, 5)]),
    ],
)
def test_each_size_of_page_has_the_levels_that_the_machine_describes_for_it(
    host: str, first: list[int], second: list[tuple[int, int, int]]
) -> None:
    whole = runs(*range(5), host=host).asked()["tlbs"][0]
    assert [each["entries"] for each in whole["l1"]] == first
    assert [(each["shift"], each["sets"], each["ways"]) for each in whole["l2"]] == second


@pytest.mark.parametrize(
    ("cpu", "found"),
    [
        ({"vendor": "AuthenticAMD", "family": "25", "model_number": "1", "stepping": "1"}, ("zen-3", True)),
        ({"vendor": "AuthenticAMD", "family": "27", "model_number": "1", "stepping": "1"}, ("zen-5", False)),
        ({"vendor": "GenuineIntel", "family": "6", "model_number": "143", "stepping": "8"}, ("golden-cove", True)),
        ({"vendor": "GenuineIntel", "family": "6", "model_number": "85", "stepping": "4"}, ("golden-cove", False)),
        ({"vendor": "0x41", "model_number": "0xd0c"}, ("neoverse-n1", True)),
    ],
)
def test_the_machine_that_stands_for_this_host(
    cpu: dict[str, str], found: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "fingerprint", lambda _: {"cpu": cpu})
    assert timing.here() == found


def once(folder: Path, *command: str, end: float | None = None) -> timing._Ran | str:
    path = shutil.which(command[0])
    assert path is not None
    program = TRUE._replace(command=command, path=path)
    return timing._once(program, "base", 0, folder, time.monotonic() + 60 if end is None else end)


def gone(pid: int) -> bool:
    found = processes.stat(Path("/proc", str(pid)))
    return found is None or found.has_ended


def test_a_run_counts_its_own_time_and_memory_and_leaves_its_input_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "undelivered", lambda *_: None)
    monkeypatch.setattr(loader, "environment", lambda *_: {})
    (tmp_path / "input").write_text("x" * 1000)
    with (tmp_path / "input").open("rb", buffering=0) as file:
        file.seek(10)
        held = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            ran = once(tmp_path, "cat")
            ended = once(tmp_path, "sh", "-c", "exit 3")
            killed = once(tmp_path, "sh", "-c", "kill -9 $$")
            late = once(tmp_path, "sleep", "60", end=0)
            monkeypatch.chdir(tmp_path)
            told = once(
                tmp_path, "sh", "-c", "(sleep 600 & echo $! > child); yes | head -c 1000000; test -c /dev/stdout"
            )
            left = once(tmp_path, "setsid", "--wait", "sh", "-c", "sleep 600 & echo $! > gone")
        finally:
            os.dup2(held, 0)
            os.close(held)
        assert file.tell() == 10
    assert isinstance(ran, tuple)
    assert isinstance(told, tuple), told  # it writes more than a pipe holds
    assert isinstance(left, tuple), left
    for name in ("child", "gone"):  # of its session, and of another
        pid = int((tmp_path / name).read_text())
        until(partial(gone, pid), "its child ends")
    assert 0 < ran.peak < parse_size("64m")  # less than this process has
    assert ended == "a timed run ended with status 3"
    assert killed == "a timed run was killed by signal 9"
    assert late == "the runs do not end in time: give more --time"


def test_a_terminal_is_no_input_of_a_timed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "undelivered", lambda *_: None)
    monkeypatch.setattr(loader, "environment", lambda *_: {})
    with as_input():
        assert os.isatty(0)
        assert once(tmp_path, "test", "-t", "0") == "a timed run ended with status 1"


def test_no_time_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "unreached", lambda *_: None)
    monkeypatch.setattr(timing, "text_of", lambda *_: "always madvise [never]")
    assert timing.run(TRUE, 60) == "transparent huge pages are off (enabled=never): all layouts would be base pages"
    monkeypatch.setattr(timing, "text_of", lambda *_: "[always] madvise never")
    assert str(timing.run(TRUE, 60)).startswith("memory outside of its heap is in huge pages, too (enabled=always)")
    monkeypatch.setattr(timing, "text_of", lambda *_: "always [madvise] never")
    monkeypatch.setattr(loader, "environment", lambda *_: {"LD_PRELOAD": "/a,b/lib.so"})
    assert timing.run(TRUE, 60) == "QEMU cannot be given an LD_PRELOAD with a comma"


def test_no_time_where_the_kernel_refuses_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(_: object, layout: str, *others: object) -> object:
        return RAN if layout == "base" else "the kernel refused the advice, in 1 of 1 processes"

    monkeypatch.setattr(timing, "obstacle", lambda _: None)
    monkeypatch.setattr(timing, "_once", once)
    assert timing.run(TRUE, 60) == "mosaic:0-25%=thp: the kernel refused the advice, in 1 of 1 processes"
    assert str(timing.run(TRUE, 0)).startswith("3 runs of 5 layouts take longer: give some")


FAULTS = 9000 - (32 << 20) // resource.getpagesize() // 4  # huge pages save a quarter of the heap's, the least


def test_the_runs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    def once(_: object, layout: str, *others: object) -> timing._Ran:
        began.append(layout)
        faults = 9000 if layout != "thp" else FAULTS
        return timing._Ran(0.2 * (len(began) % 2), 1.0 + len(began), 30 << 20, faults)

    monkeypatch.setattr(timing, "obstacle", lambda _: None)
    monkeypatch.setattr(timing, "_once", once)
    found = timing.run(TRUE, 3600)
    assert isinstance(found, timing.Runs)
    assert (found.heap, found.seconds.shape) == (32 << 20, (5, 20))
    both = [sum(1.0 + at for at, one in enumerate(began, 1) if at > 1 and one == name) for name in timing._QUARTERS]
    user = [
        sum(0.2 * (at % 2) for at, one in enumerate(began, 1) if at > 1 and one == name) for name in timing._QUARTERS
    ]
    assert found.seconds.sum(axis=1) == pytest.approx(user)  # the share of all runs
    assert found.seconds[0, 0] == pytest.approx(3 * user[0] / both[0])
    assert began[1] == began[6 + 4] == "base"  # the second round begins with the second layout
    monkeypatch.setattr(timing, "_LEAST_SAVED", 0.26)
    assert str(timing.run(TRUE, 3600)).startswith("its heap was not in huge pages: they saved 2,048 page faults")
