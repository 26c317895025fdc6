"""The notebooks of docs/examples run, cell after cell, and show what they say. HUGEWISE_WRITE_GOLDEN=1 writes what they
show anew. nbclient would start a kernel for it; a notebook of prints needs none.
"""

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import same

EXAMPLES = sorted((Path(__file__).parents[1] / "docs/examples").glob("*.ipynb"))


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells print."""
    made, names = copy.deepcopy(notebook), {"__name__": "__main__"}
    number = 0
    for cell in made["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)  # noqa: S102
        text = said.getvalue().splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    return made


def test_there_is_an_example() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_shows_what_it_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    made = run(json.loads(path.read_text(encoding="utf-8")))
    assert all(cell["outputs"] for cell in made["cells"] if cell["cell_type"] == "code")
    same(json.dumps(made, indent=1, ensure_ascii=False) + "\n", path)
