from __future__ import annotations

import tomllib
from pathlib import Path

from hugewise import workload
from hugewise.metric import COMMON
from hugewise.reference import studies_reference
from hugewise.study import Study, read
from hugewise.study_keys import keys_of

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "study.md"


def test_the_page_is_the_generated_text() -> None:
    assert PAGE.read_text(encoding="utf-8") == studies_reference(), (
        "regenerate it: .venv/bin/python -m hugewise.reference > docs/reference/study.md"
    )


def test_every_key_workload_and_metric_is_on_it() -> None:
    page = studies_reference()
    for name, (note, _) in keys_of(Study).items():
        assert f"| `{name}` |" in page
        if note.kind.nested is not None:
            assert all(f"| `{inner}` |" in page for inner in keys_of(note.kind.nested))
    for name, found in workload.discover().items():
        assert f"### `{name}`" in page
        assert all(f"| `{parameter.name}` |" in page for parameter in found.parameters)
    assert all(f"| `{metric.name}` |" in page for metric in COMMON)


def test_the_examples_of_the_page_can_be_read() -> None:
    """Each key's example is TOML, and all of them together are a study."""
    page = studies_reference()
    smallest = page.split("```toml\n")[1].split("```")[0]
    assert read(tomllib.loads(smallest), "smallest").name == "first"
    data: dict[str, object] = {}
    for name, (note, _) in keys_of(Study).items():
        if note.kind.nested is None or name == "policies":
            data |= tomllib.loads(note.example)
        else:
            inner: dict[str, object] = {}
            for key, _field in keys_of(note.kind.nested).values():
                inner |= tomllib.loads(key.example)
            data[name] = [inner] if note.example.startswith("[[") else inner
    study = read(data, "examples")
    assert study.workload[0].delivery.base_above == 0.01
    assert study.policies[2].set == {"defrag": "defer"}
