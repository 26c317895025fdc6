"""Figures that are drawn in a process beside this one are those that are drawn here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hugewise.errors import StorageError
from hugewise.model.results import Results
from hugewise.report import images
from hugewise.report.document import figures
from hugewise.report.images import drawn
from hugewise.report.write import report, write
from tests.build.results import example


def one_cell() -> Results:
    """The cell whose names are hostile, and nothing else."""
    whole = example()
    name = whole.cells[-1].cell
    return replace(whole, cells=whole.cells[-1:], attempts=tuple(one for one in whole.attempts if one.cell == name))


def specs(results: Results, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Its figures, which are enough for a process of their own where there are two CPUs."""
    found: list[Mapping[str, Any]] = [dict(figure.spec) for figure in figures(report(results))]
    monkeypatch.setattr(images, "_MANY", len(found))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return found


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Some figures with names as hostile as they get."""
    return specs(one_cell(), monkeypatch)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """So many that they are not all drawn as soon as the first one is."""
    return specs(example(), monkeypatch)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that are started, which all have ended at the end."""
    found: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    yield found
    assert all(one.returncode is not None for one in found)


def test_it_makes_no_difference_where_they_are_drawn(
    several: list[Mapping[str, Any]], begun: list[subprocess.Popen[bytes]]
) -> None:
    with drawn(several) as beside:
        apart = list(beside)
    assert len(begun) == 1
    assert [one.svg for one in apart] == [images.render(spec) for spec in several]
    made = {number: one.png for number, one in enumerate(apart) if one.png}
    assert set(made) == set(range(1, len(several), 2)), "every second one, as the other process makes the others"
    assert all(png == images.png(images.standalone(apart[number].svg)) for number, png in made.items())


@pytest.mark.usefixtures("several")
def test_the_files_are_the_same(
    tmp_path: Path, begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = write(one_cell(), tmp_path / "beside")
    assert len(begun) == 1
    monkeypatch.setattr(images, "_MANY", 1000)
    here = write(one_cell(), tmp_path / "here")
    assert len(begun) == 1
    assert beside.keys() == here.keys()
    assert all(beside[key].read_bytes() == here[key].read_bytes() for key in here)


def test_one_cpu_is_not_shared(
    several: list[Mapping[str, Any]], begun: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with drawn(several) as found:
        assert next(found).svg.startswith("<svg")
    assert begun == []


def test_a_process_that_is_killed_is_an_error(
    many: list[Mapping[str, Any]], begun: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(StorageError, match="process that draws its figures was killed"), drawn(many) as found:
        next(found)
        begun[0].send_signal(signal.SIGKILL)
        list(found)


def test_nothing_goes_on_where_its_report_does_not(
    several: list[Mapping[str, Any]], begun: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(OSError, match="full"), drawn(several):
        raise OSError("the disk is full")
    assert begun[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("program", ["", "/no/such/python", "/bin/false", "/bin/true"])
def test_where_no_process_draws_they_are_drawn_here(
    several: list[Mapping[str, Any]], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python was embedded or removed, or is one that does not find hugewise."""
    monkeypatch.setattr(sys, "executable", program)
    with drawn(several) as found:
        assert [one.svg for one in found] == [images.render(spec) for spec in several]


@pytest.mark.parametrize("lengths", [r"\377" + r"\0" * 15, r"\4" + r"\0" * 7 + r"\377" + r"\0" * 7])
def test_a_figure_that_came_in_part_is_drawn_here(
    several: list[Mapping[str, Any]], lengths: str, tmp_path: Path
) -> None:
    """Its SVG, or the PNG behind that."""
    script = tmp_path / "half"
    script.write_text(f"#!/bin/sh\nprintf '{lengths}<svg'\n")
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(sys, "executable", str(script))
        with drawn(several) as found:
            assert [one.svg for one in found] == [images.render(spec) for spec in several]
