"""The page of an inventory's keys: it is the generated one, and what it shows can be read."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from hugewise.cli.inventory_reference import inventories_reference
from hugewise.fleet.inventory import ClientEntry, FleetTable, HostEntry, Inventory, parse
from hugewise.study.keys import keys_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "inventory.md"


def test_the_page_is_the_generated_text() -> None:
    assert PAGE.read_text(encoding="utf-8") == inventories_reference(), (
        "regenerate it: .venv/bin/python -m hugewise.cli.inventory_reference > docs/reference/inventory.md"
    )


def test_every_key_that_is_read_is_on_it() -> None:
    page = inventories_reference()
    assert {*keys_of(Inventory)} == {"fleet", "host", "client"}
    for table in (FleetTable, HostEntry, ClientEntry):
        assert all(f"| `{name}` |" in page for name in keys_of(table))


@pytest.mark.parametrize("engine", ["ssh", "dask", "slurm"])
def test_all_its_examples_together_are_an_inventory(engine: str) -> None:
    def examples(table: type[msgspec.Struct]) -> str:
        return "\n".join(note.example for note, _ in keys_of(table).values())

    fleet = examples(FleetTable).replace('engine = "dask"', f'engine = "{engine}"')
    text = f"[fleet]\n{fleet}\n[[host]]\n{examples(HostEntry)}\n[[client]]\n{examples(ClientEntry)}\n"
    found = parse(text, "examples")
    assert (found.fleet.engine, found.fleet.patience, found.host[0].root) == (engine, 600.0, True)
    assert found.client_of(found.host[0]) is found.client[0]
    smallest = inventories_reference().split("```toml\n")[1].split("```")[0]
    assert parse(smallest, "smallest").host[0].name == tomllib.loads(smallest)["host"][0]["name"]
