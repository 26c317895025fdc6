import copy
import tomllib
from typing import Any

import pytest

from hugewise import workloads
from hugewise.model.guest import Backing
from hugewise.model.metric import COMMON
from hugewise.study.keys import keys_of
from hugewise.study.load import read
from hugewise.study.study import Study
from hugewise.study.tables import BackingUse
from tools import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_the_generated_text(name: str) -> None:
    assert (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8") == reference.text(name), "run make docs"


def test_every_key_workload_and_metric_is_on_it() -> None:
    page = reference.text("study")
    for name, (note, _) in keys_of(Study).items():
        assert f"| `{name}` |" in page
        if note.kind.nested is not None:
            assert all(f"| `{inner}` |" in page for inner in keys_of(note.kind.nested))
    for name, found in workloads.discover().items():
        assert f"### `{name}`" in page
        assert all(f"| `{parameter.name}` |" in page for parameter in found.parameters)
    assert all(f"| `{metric.name}` |" in page for metric in COMMON)


def test_the_examples_of_the_page_can_be_read() -> None:
    """Each key's example is TOML, and all of them together are a study."""
    page = reference.text("study")
    smallest = page.split("```toml\n")[1].split("```")[0]
    assert read(tomllib.loads(smallest), "smallest").name == "first"
    data: dict[str, Any] = {}
    for name, (note, _) in keys_of(Study).items():
        if note.kind.nested is None or name == "policies":
            data |= tomllib.loads(note.example)
        else:
            inner: dict[str, object] = {}
            for key, _field in keys_of(note.kind.nested).values():
                inner |= tomllib.loads(key.example)
            data[name] = [inner] if note.example.startswith("[[") else inner
    guests = copy.deepcopy(data)
    del data["guest"], data["kernel"], data["workload"][0]["concurrency"], data["workload"][0]["counted"]
    study = read(data, "examples")
    assert study.workload[0].delivery.base_above == 0.01
    assert study.policies[2].set == {"defrag": "defer"}
    # Guests have the design sequential alone, the CPUs and the memory that they have, and a kernel is had in one way.
    del guests["design"]["kind"], guests["workload"][0]["client_cpus"], guests["workload"][0]["memory_age"]
    guests["kernel"] = [
        {key: value for key, value in guests["kernel"][0].items() if key not in others}
        for others in (("build", "path", "modules"), ("package", "path", "modules"), ("package", "build", "suite"))
    ]
    # A disk of one's own has no packages added, and guests that run together are pinned by their slots.
    assert {"image", "image_format", "root", "pin"} <= guests["guest"].keys()
    guests["guest"] = {k: v for k, v in guests["guest"].items() if k not in ("image", "image_format", "root", "pin")}
    for kernel, name in zip(guests["kernel"], ("a", "b", "c"), strict=True):
        kernel["name"] = name
    backing = {
        name: value for key, _ in keys_of(BackingUse).values() for name, value in tomllib.loads(key.example).items()
    }
    guests["policies"][2] |= {"kernel": "b", "backing": backing}
    study = read(guests, "examples")
    assert study.guest is not None
    assert (study.guest.arch, study.guest.memory, study.kernel[2].path) == ("arm64", 2 << 30, "/boot/vmlinuz")
    assert study.policies[2].backing == Backing(
        pages="hugetlb-2m",
        source="file",
        preallocate=False,
        nodes=(0,),
        share=True,
        by_node=("hugetlb-2m", "hugetlb-1g"),
    )
