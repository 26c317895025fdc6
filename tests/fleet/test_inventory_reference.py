"""The page of an inventory's keys: it is the generated one, and what it shows can be read."""

from __future__ import annotations

import tomllib

import msgspec
import pytest

from hugewise.fleet.inventory import ClientEntry, FleetTable, HostEntry, Inventory, parse
from hugewise.study.keys import keys_of
from tools import reference


def test_every_key_that_is_read_is_on_it() -> None:
    page = reference.text("inventory")
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
    smallest = reference.text("inventory").split("```toml\n")[1].split("```")[0]
    assert parse(smallest, "smallest").host[0].name == tomllib.loads(smallest)["host"][0]["name"]
