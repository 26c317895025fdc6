"""`make results`: what it is asked for reaches hugewise as it was written."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.requirements import need_program

ROOT = Path(__file__).parents[1]
FAKE = "#!/bin/sh\nexec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"\n"
MEASURE = ("-m", "tools.results", "measure")
HOSTILE = """a;touch planted1 "`touch planted2`" '$(touch planted3)' $(shell touch planted4) $HOME $$ \\"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, and a hugewise and a Python that print their arguments as JSON."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("hugewise", "python"):
        program = tmp_path / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(FAKE.format(python=shutil.which("python3")))
        program.chmod(0o755)
    for name in ("src", "ground", "exec", "layout"):  # that the Makefile looks into
        (tmp_path / "probe" / name).mkdir(parents=True)
    return tmp_path


def asked(checkout: Path, *words: str, **environment: str) -> list[list[str]]:
    """The arguments of each call of either."""
    make = [need_program("make", "make"), "--silent", "--old-file=.venv/ready", "results", *words]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        make, cwd=checkout, env=clean | environment, capture_output=True, text=True, check=True, timeout=240
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_study_is_run_and_joins_its_page(checkout: Path) -> None:
    page = "docs/results/redhat-2021.parquet"
    assert asked(checkout, "STUDY=redhat-2021") == [[*MEASURE, page, "studies/redhat-2021.toml"]]


def test_a_part_is_planned_and_run_as_it_is_asked_for(checkout: Path) -> None:
    words = ["STUDY=demo", "ONLY=chase,fault", "ARMS=thp", "SCALE=sure", "TIME=4m", "BLOCKS=12", "PILOT=20"]
    part = ["studies/demo.toml", "--scale", "sure", "--only", "chase,fault", "--arms", "thp"]
    assert asked(checkout, *words) == [
        ["plan", *part, "--pilot", "20"],
        [*MEASURE, "docs/results/demo-sure.parquet", *part, "--blocks", "12", "--time", "4m"],
    ]


def test_neither_make_nor_a_shell_interprets_it(checkout: Path) -> None:
    """On the command line of make, and in its environment."""
    expected = [[*MEASURE, "docs/results/demo.parquet", "studies/demo.toml", "--only", HOSTILE]]
    assert asked(checkout, "STUDY=demo", f"ONLY={HOSTILE}") == expected
    assert asked(checkout, "STUDY=demo", ONLY=HOSTILE) == expected
    assert not list(checkout.glob("**/planted*"))


def test_without_a_study_nothing_is_run(checkout: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        asked(checkout)
    assert "name a study, such as STUDY=redhat-2021" in error.value.stderr
