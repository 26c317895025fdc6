"""What would run, without running it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from hugewise.analysis import budget
from hugewise.analysis.budget import Round
from hugewise.cli import list as listing
from hugewise.cli import request
from hugewise.errors import HugewiseError, UserError
from hugewise.model.pages import PageTarget
from hugewise.plan.plan import Plan
from hugewise.session import feasibility, session
from tests.build.hosts import FakeHost
from tests.build.studies import an_arm, cell_of, study_of, workloads
from tests.cli.conftest import Call, tiny


def test_dry_runs_differ_without_a_seed(call: Call, fake: FakeHost, tmp_path: Path) -> None:
    assert call("run", tiny(tmp_path), "--dry-run") != call("run", tiny(tmp_path), "--dry-run")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            'method = "sequential"',
            "budget: at most 2 pairs of each comparison; 2 comparisons, together at 99% (sequential)",
        ),
        ("confidence = 0.9999", "budget: 2 pairs of each comparison; 2 comparisons, together at 99.99% (fixed-n)"),
        ('method = "screening"', "budget: at most 2 pairs of each comparison; claims nothing (screening)"),
    ],
)
def test_a_dry_run_says_in_a_line_how_much_and_how_sure(call: Call, tmp_path: Path, written: str, said: str) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(tiny(tmp_path, "base", "thp", "mthp-64k").read_text().replace("[budget]", f"{written}\n[budget]"))
    status, out, err = call("run", study, "--dry-run")
    assert status == 0, err
    assert said in out.splitlines()
    study.write_text(study.read_text().replace("blocks = 2", 'blocks = 2\ntime = "90s"'))
    assert " pairs of each comparison, at most 1 min 30 s in all; " in call("run", study, "--dry-run")[1]


def test_a_cells_name_stands_in_one_piece(call: Call, tmp_path: Path) -> None:
    """As --only takes it: the defect broke it in two at 80 columns."""
    study = tiny(tmp_path, "base", "thp", "mthp-64k", "hugetlb-2m")
    name = "of-a-name-that-is-long"
    label = f'name = "chase"\nlabel = "{name}"\nalso = ["page_faults", "cpu_s"]'
    text = study.read_text().replace('name = "chase"', label)
    study.write_text(text.replace('"8m"', '["8388608", "16777216"]').replace("20000", "[1048576, 2097152]"))
    _, out, _ = call("run", study, "--dry-run")
    cells = [line.split()[0] for line in out.splitlines() if line.startswith(name)]
    assert len(cells) == 4
    assert all(f" ({cell}): " in out for cell in cells)


def test_a_dry_run_of_what_cannot_run_says_why(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(thp=False, capacity={})
    monkeypatch.setattr(feasibility, "LocalHost", lambda: host)
    status, out, _ = call("run", tiny(tmp_path), "--dry-run")
    assert status == 0
    assert "left out: thp: the kernel has no transparent huge pages" in out
    assert "left out: chase: only base is left to run" in out
    assert out.endswith("nothing of it can run here\n")


def test_what_cannot_run_is_said_before_pairs_are_asked_for(call: Call, tmp_path: Path) -> None:
    """A pilot of it could not be had either."""
    study = tmp_path / "s.toml"
    study.write_text(
        'format = 1\nname = "s"\npolicies = ["as-is", { name = "b", from = "as-is", environment = { A = "1" } }]\n'
        '[[workload]]\nname = "spin"\n[design]\nkind = "interleaved"\n'
    )
    status, _, said = call("plan", study)
    assert status == 2
    assert "nothing of s can run here: spin: spin is no workload whose arms can take turns" in said


def test_the_words_of_a_command_are_split_and_nothing_else_of_a_shell_is_there() -> None:
    assert request.words("prepare", None) == []
    assert request.words("prepare", "rm -f 'a b' $HOME;x >y") == ["rm", "-f", "a b", "$HOME;x", ">y"]


@pytest.mark.parametrize("text", ["", "  ", "''", "rm 'a", "rm \\"])
def test_a_command_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--prepare") as caught:
        request.words("prepare", text)
    assert "rm -f out.dat" in (caught.value.hint or "")


@contextmanager
def standard_input(descriptor: int) -> Iterator[None]:
    kept = os.dup(0)
    os.dup2(descriptor, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_standard_input_is_a_file_for_every_run(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    numbers.write_text("1")
    assert request.standard_input(numbers) == str(numbers)
    with pytest.raises(UserError, match="no such file"):
        request.standard_input(tmp_path / "other")
    with numbers.open() as file, standard_input(file.fileno()):
        assert request.standard_input(None) == str(numbers)
        numbers.unlink()
        with pytest.raises(UserError, match="is not there any more"):
            request.standard_input(None)
    with open(os.devnull) as nothing, standard_input(nothing.fileno()):  # noqa: PTH123
        assert request.standard_input(None) == ""


def test_a_pipe_with_data_cannot_be_read_by_every_run() -> None:
    reader, writer = os.pipe()
    with open(reader), open(writer, "wb") as told, standard_input(reader):  # noqa: PTH123
        assert request.standard_input(None) == ""
        told.write(b"1")
        told.flush()
        with pytest.raises(UserError, match="each run of the command needs the input anew") as caught:
            request.standard_input(None)
    assert "--stdin FILE" in (caught.value.hint or "")


def test_what_is_run_before_each_attempt_is_in_the_plan(call: Call) -> None:
    status, out, _ = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm -f x", "--", "true")
    assert status == 0
    assert "command" in out
    status, _, err = call("run", "--policy", "base,thp", "--dry-run", "--prepare", "rm 'x", "--", "true")
    assert status == 2
    assert "no closing quotation" in err
    status, _, err = call("run", "--dry-run", "--prepare", "rm x", "demo")
    assert status == 2
    assert "--prepare belongs to --policy" in err
    status, _, err = call("run", "--policy", "base,thp", "--prepare", "no-such-program -x", "--", "true")
    assert status == 2
    assert "no-such-program: no such program on PATH" in err


def test_a_program_in_the_place_of_a_study_is_told_where_it_belongs(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prog").write_bytes(b"\x7fELF\xff")
    (tmp_path / "prog").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for verb, before in (("advise", "hugewise advise --"), ("run", "hugewise run --policy base,thp --")):
        for name in ("prog", "./prog"):
            status, _, err = call(verb, name)
            assert (status, f"cure: {before} ./prog" in err) == (2, True), err


def test_a_command_that_begins_with_no_program_is_told_why(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prog").write_text("#!/bin/sh\n")
    (tmp_path / "prog").chmod(0o755)
    (tmp_path / "text").write_text("")
    monkeypatch.chdir(tmp_path)
    for words, said, cure in (
        (
            "./prog -n 5",
            "'./prog -n 5': no such program",
            "without quotes, each word by itself: hugewise advise -- ./p",
        ),
        ("prog", "prog: no such program on PATH", "it is in this folder: hugewise advise -- ./prog"),
        ("./text", "./text: no such program, or it is not executable", "by its whole path"),
    ):
        status, _, err = call("advise", "--", words)
        assert (status, said in err, cure in err) == (2, True, True), err
        assert not (tmp_path / "results").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("run", "demo", "--blocks", "3"), ("hugewise", "run", "demo", "--blocks", "3")),
        (("run", "demo", "--seed", "ab" * 16, "--seed"), ("hugewise", "run", "demo", "--seed", "SEED", "--seed")),
        (("run", f"--seed={'ab' * 16}", "demo"), ("hugewise", "run", "--seed=SEED", "demo")),
        (
            ("run", "--policy", "a,b", "--", "x", "--seed", "42"),
            ("hugewise", "run", "--policy", "a,b", "--", "x", "--seed", "42"),
        ),
        (("run", "demo", "--results", "/tmp/\udce9"), ("hugewise", "run", "demo", "--results", "/tmp/?")),
        ((), ()),
        (None, ()),
    ],
)
def test_a_run_keeps_its_command_line_without_a_seed(given: object, kept: tuple[str, ...]) -> None:
    assert request.command_line(given) == kept


class _BegunError(HugewiseError):
    pass


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("plan", "demo", "--only", "fresh-memory", "--pilot", "6"),) * 2,
        (("calibrate", "--pairs", "12", "--seed", "ab" * 16), ("calibrate", "--pairs", "12", "--seed", "SEED")),
        (("advise", "--time", "4m", "--", "true", "--seed", "42"),) * 2,
    ],
)
def test_whatever_measures_keeps_its_command_line(
    words: tuple[str, ...], kept: tuple[str, ...], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of pilots, calibrations and advices, as those of `run`."""
    seen: list[Sequence[str]] = []

    def run(*_: object, command: Sequence[str], **__: object) -> NoReturn:
        seen.append(command)
        raise _BegunError("begun")

    monkeypatch.setattr(session, "run", run)
    monkeypatch.chdir(tmp_path)
    assert call(*words)[0] != 0
    assert seen == [("hugewise", *kept)]


ARMS = (an_arm("base", PageTarget("base", 4096)), an_arm("thp", PageTarget("thp", 2 << 20)))
PLAN = Plan((cell_of(workloads()["chase"], *ARMS),), ())
EMULATED = {"guest": {"arch": "arm64"}, "kernel": [{"name": "4k", "package": "linux-image-arm64"}]}


@pytest.mark.parametrize(
    ("keys", "round_", "said"),
    [
        ({}, Round(90.0, "took 1 min 30 s in results/s/1"), "time: 30 min 00 s for 20 pairs of each comparison"),
        ({}, Round(0.0, "takes 0 ms"), "time: not known before a first run (--blocks 2): 40 attempts"),
        (EMULATED, Round(0.0, ""), "time: not known before a first run (--blocks 2): 40 attempts, most with a boot of"),
        ({"budget": {"blocks": 20, "time": "5m"}}, Round(0.0, ""), ""),
    ],
)
def test_a_dry_run_says_how_long_a_run_takes(
    keys: dict[str, object], round_: Round, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "measured", lambda *_: round_ if round_.seconds else None)
    monkeypatch.setattr(budget, "declared", lambda *_: round_)
    study = study_of(**{"budget": {"blocks": 20}, **keys})
    lines = list(listing._time(study, PLAN, Path("results")))
    assert "".join(lines[:1]).startswith(said)
    assert bool(lines) == bool(said)
    assert lines[1:] == ([f"  a round of all cells {round_.source}"] if round_.seconds else [])
