from __future__ import annotations

import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console

from hugewise.report.terminal import show
from tests.build.results import example, plain

GOLDEN = Path(__file__).parents[1] / "golden" / "verdicts.txt"
PATHS = {"html": Path("results/demo/20261120-193000-ab12/report.html")}


def test_golden_output_at_80_columns() -> None:
    out = io.StringIO()
    show(plain(), PATHS, Console(file=out, width=80, force_terminal=False))
    assert out.getvalue() == GOLDEN.read_text(encoding="utf-8")
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_colour_on_a_terminal_only_adds_to_the_words() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard", legacy_windows=False)
    show(plain(), PATHS, console)
    assert "\x1b[32m▲" in out.getvalue()
    assert "▲ better" in GOLDEN.read_text(encoding="utf-8")


def test_hostile_text_reaches_neither_the_terminal_nor_the_markup() -> None:
    out = io.StringIO()
    show(example(), None, Console(file=out, width=80, force_terminal=False))
    assert "\x1b" not in out.getvalue()
    assert "[bold]" in out.getvalue()


def test_commands_and_paths_are_never_broken() -> None:
    out = io.StringIO()
    path = Path("/a/" + "long/" * 30 + "report.html")
    show(plain(), {"html": path}, Console(file=out, width=60, force_terminal=False))
    assert f"Report: {path}\n" in out.getvalue()
    assert "    echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages\n" in out.getvalue()


def test_many_disturbances_are_counted() -> None:
    out = io.StringIO()
    noisy = replace(plain(), disturbances=tuple(f"disturbance {n}" for n in range(40)))
    show(noisy, None, Console(file=out, width=80, force_terminal=False))
    assert "disturbance 4\n  and 35 more, in the report\n" in out.getvalue()
