"""The service that `--unit` names, as this host has it."""

from __future__ import annotations

import pytest

from hugewise.audit import systemd
from hugewise.audit.root import Root
from hugewise.cli.unit import of_host
from hugewise.errors import UserError
from tests.requirements import need


def test_a_service_of_this_host_is_found_by_its_name() -> None:
    names = [name for name in systemd.service_files(Root()) if "@" not in name]
    need(bool(names), "services of systemd")
    found = next(one for name in names if (one := of_host(name.removesuffix(".service"))) is not None and one.starts)
    assert found.name in names
    place, text = found.starts[0]
    path, _, line = place.rpartition(":")
    assert text.split()[0] in Root().read(path).split("\n")[int(line) - 1]


def test_a_service_that_is_not_there_is_none() -> None:
    assert of_host("nobody-has-this") is None
    with pytest.raises(UserError, match="not the name of a unit"):
        of_host("../x")
